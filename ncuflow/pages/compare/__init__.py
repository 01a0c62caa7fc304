"""Comparisons become Markdown and figures."""
