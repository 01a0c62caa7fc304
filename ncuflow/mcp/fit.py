"""An answer's text for a program: whole, or what fits in four kilobytes."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ncuflow.io import JsonObject

MOST_BYTES = 4096
LONGEST = 240  # characters of a text in an answer that is cut to fit
SMALL = 150  # bytes of a list that stays whole: a grid, an interval
MAPS = ("columns", "metrics")  # mappings that are cut as lists are


def text(found: BaseModel, whole: bool) -> str:
    """An answer as JSON: whole, or what fits. Then numbers have six digits, a null is left out, and the longest lists lose their
    last entries, which ``left_out`` counts."""
    document = found.model_dump(mode="json", by_alias=True)
    if whole:
        return _dumped(document)
    fitted = _sourced(_brief(document))
    while len(_dumped(fitted).encode()) > MOST_BYTES and (longest := _longest(fitted)):
        kept = len(longest) // 2
        fitted["left_out"] = fitted.get("left_out", 0) + len(longest) - kept
        if isinstance(longest, list):
            del longest[kept:]
        else:
            for key in [*longest][kept:]:
                del longest[key]
    return _dumped(fitted)


def _longest(value: JsonObject) -> list[Any] | dict[str, Any] | None:
    """What is cut next: of lists of several entries the longest that holds no other such; then one of a single entry."""
    found = [one for one in _lists(value, "") if one[1] > SMALL]
    return max(found, key=lambda one: (len(one[2]) > 1, one[0], one[1]))[2] if found else None


def _lists(value: Any, name: str) -> Iterator[tuple[bool, int, Any]]:
    """Each list and mapping that may be cut, those inside it before it: whether none of these has several entries, its bytes
    beside them, and itself."""
    within, lowest = 0, True
    for key, one in value.items() if isinstance(value, dict) else (("", one) for one in value):
        for leaf, size, inner in _lists(one, key) if isinstance(one, dict | list) else ():
            within += size
            lowest = lowest and not (len(inner) > 1 and size > SMALL)
            yield leaf, size, inner
    if isinstance(value, list) or name in MAPS:
        yield lowest, len(_dumped(value)) - within, value


def _sourced(document: JsonObject) -> JsonObject:
    """With the first of the words of all ``trace`` once, as ``source``, where it is the same of all."""
    found = [one for one in _objects(document) if " " in str(one.get("trace"))]
    sources = {one["trace"].rpartition(" ")[0] for one in found}
    if len(found) < 2 or len(sources) > 1:
        return document
    for one in found:
        one["trace"] = one["trace"].rpartition(" ")[2]
    return document | {"source": sources.pop().strip("'")}


def _objects(value: Any) -> Iterator[JsonObject]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from _objects(one)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _brief(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_brief(one) for one in value]
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]} …"
    return float(f"{value:.6g}") if isinstance(value, float) else value
