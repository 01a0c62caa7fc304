"""The plan of a batch: which points it holds, as ``points.json``.

ncuflow plan --points '[{"id": …, "target": …, "params": {…}}, …]' --out points.json
ncuflow plan --target decode --blocks '[{"batch": [1, 32]}]' --out points.json
"""

from __future__ import annotations

from pathlib import Path

from ncuflow.io import JsonObject, UsageError, parsed, write_json
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import load


def command(
    *,
    out: Path,
    points: str | None = None,
    pairs: str | None = None,
    blocks: str | None = None,
    target: str | None = None,
) -> None:
    """One of --points, --pairs and --blocks is given.

    Args:
        out: points.json
        points: the points, as JSON
        pairs: points two by two, as JSON; [] for none
        blocks: blocks of a sweep (with --target), as JSON
        target: kernel target of the blocks
    """
    texts = {"points": points, "pairs": pairs, "blocks": blocks}
    given = [name for name, text in texts.items() if text is not None]
    if len(given) != 1:
        raise UsageError("one of --points, --pairs and --blocks is needed")
    if blocks is not None and target is None:
        raise UsageError("--blocks needs --target")
    try:
        found = objects(texts[given[0]] or "", empty=pairs is not None)
        if target is not None and blocks is not None:
            found = [point.as_dict() for point in sweep.points(load(target), found)]
        elif not all({"id", "target", "params"} <= point.keys() for point in found):
            raise ValueError("a point without id, target and params")
        write_json(out, found)
    except ValueError as error:
        raise UsageError(f"--{given[0]}: {error}") from None


def objects(text: str, empty: bool = False) -> list[JsonObject]:
    """A JSON list of one object or more; ``empty``: or none. Raises ValueError for anything else."""
    try:
        found = parsed(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    listed = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    if not listed or not (found or empty):
        raise ValueError("not a list of one object or more")
    return list(found)
