"""A page: findings become Markdown and figures."""
