"""A page: findings become Markdown and figures."""

from typing import Any

Context = dict[str, Any]  # what a template is given, by name
