"""What a folder of FLASHINFER_TRACE_DUMP=1 says of a model: the axes that its definitions hold for constant."""

from __future__ import annotations

from pathlib import Path

from ncuflow.io import BadInput, read_json
from ncuflow.step.shapes import NOTHING, KnownFacts
from ncuflow.step.spans import WORDS

MOST = 10_000  # definitions
SOURCE = "the dump"


def facts(folder: Path) -> KnownFacts:
    """Of each the one value that all definitions agree in. Raises BadInput where the folder holds no definition."""
    paths = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    if not paths:
        raise BadInput(folder, "a folder without a definition (*.json)")
    if len(paths) > MOST:
        raise BadInput(folder, f"{len(paths)} definitions, of at most {MOST}")
    found: dict[str, set[int]] = {}
    read = 0
    for path in paths:
        try:
            content = read_json(path)
        except BadInput:  # a killed server leaves one half-written
            continue
        name = content.get("name") if isinstance(content, dict) else None
        axes = content.get("axes") if isinstance(content, dict) else None
        if not isinstance(name, str) or not isinstance(axes, dict):
            continue
        read += 1
        values = {axis: one.get("value") for axis, one in axes.items() if isinstance(one, dict)}
        for kind, axis, ours in WORDS["axes"]:
            if name.startswith(kind) and (value := _size(values.get(axis))):
                found.setdefault(ours, set()).add(value)
        if name.startswith(tuple(WORDS["gated"])) and (both := _size(values.get("hidden_size"))):
            found.setdefault("intermediate", set()).add(both // 2)
    if not read:
        raise BadInput(folder, "holds no definition of FlashInfer's")
    sure = {name: values.pop() for name, values in found.items() if len(values) == 1}
    return NOTHING.joined(sure, SOURCE)


def _size(value: object) -> int | None:
    """A constant that a model may have."""
    return value if type(value) is int and 0 < value < 1 << 31 else None
