"""Source facts: what the index of the installed FlashInfer says of a name, a file or a signature.

Each function answers None (unknown) where the index does not hold what it would take to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


class SourceFacts:
    """Questions to ``source_index.json``."""

    def __init__(self, index: Row) -> None:
        self.index = index
        self._names = {name for name in _strings(index)}

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The calls that a claim decided over the source may make."""
        return {}


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for key, item in value.items() for s in (key, *_strings(item))]
    if isinstance(value, list):
        return [s for item in value for s in _strings(item)]
    return []
