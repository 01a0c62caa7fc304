"""Findings become Markdown and figures."""
