"""A sweep: blocks of parameters become points, points become batches; and the plan of a batch, ``points.json``.

ncuflow plan --points '[{"id": …, "target": …, "params": {…}}, …]' --out points.json
ncuflow plan --target decode --blocks '[{"batch": [1, 32]}]' --out points.json
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, JsonObject, UsageError, parsed, read_json, write_json
from ncuflow.target.contract import Target, known, load
from ncuflow.target.launch import MOST, GpuFacts, Written
from ncuflow.target.source import reachable

Block = Mapping[str, Any]
EVERY = "every"  # in a block: all values that a parameter has on this machine, where its target can tell


@dataclass(frozen=True)
class Planned:
    """One measured configuration of a kernel target. ``id`` is also its NVTX range name."""

    id: str
    target: str
    params: JsonObject

    def as_dict(self) -> JsonObject:
        """{"id", "target", "params"}, as in points.json."""
        return {"id": self.id, "target": self.target, "params": dict(self.params)}


def expand(
    blocks: Sequence[Block],
    defaults: Mapping[str, Any],
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> list[JsonObject]:
    """Parameter sets of a sweep.

    A block maps a parameter to a value or a list of values: the product within a block, the union
    of the blocks, in the order written, duplicates dropped, ``defaults`` for what is left out; "every" stands for all values that
    a parameter has on this machine, where its target can tell.
    Raises ValueError for a parameter that ``defaults`` does not have, an empty list, or a value
    that is none of the parameter's ``choices``; a parameter without choices is a number from 1 to MOST.
    """
    sets: dict[tuple[Any, ...], JsonObject] = {}
    for block in blocks:
        values = [_values(key, value, defaults, choices or {}) for key, value in block.items()]
        for chosen in itertools.product(*values):
            one = {**defaults, **dict(zip(block, chosen, strict=True))}
            sets.setdefault(tuple(one.values()), one)
    return list(sets.values())


def _values(
    key: str, value: Any, defaults: Mapping[str, Any], choices: Mapping[str, Sequence[Any]]
) -> list[Any]:
    """The checked values of one parameter of a block."""
    if key not in defaults:
        known = ", ".join(defaults)
        raise ValueError(f"unknown parameter {key!r} in a sweep block; there are: {known}")
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    written = choices.get(key)
    if isinstance(written, Written) and written.every and value == EVERY:
        values = list(written.every())
    if not values:
        raise ValueError(f"parameter {key!r} of a sweep block has no values")
    for one in values:
        # 64.0 and True equal 64 and 1, and would give a point another id
        named = [(type(c), c) for c in choices.get(key, ())]
        if isinstance(written, Written) and one in written:
            continue
        if key in choices and (type(one), one) not in named:
            known = ", ".join(map(str, choices[key]))
            known += f", or such as {written.example}" if isinstance(written, Written) else ""
            raise ValueError(f"parameter {key!r} cannot be {one!r}; it is one of: {known}")
        if key not in choices and (type(one) is not int or not 1 <= one <= MOST):
            raise ValueError(
                f"parameter {key!r} cannot be {one!r}; it is a number from 1 to 2^31 - 1"
            )
    return values


def points(target: Target, blocks: Sequence[Block]) -> list[Planned]:
    """Points of a kernel target's sweep, one an id.

    Two parameter sets with one id describe the same launch (a page size of a ragged prefill, say);
    the first stays. Raises ValueError as ``expand`` does.
    """
    try:
        sets = expand(blocks, target.parameters, target.choices)
    except ValueError as error:
        raise ValueError(f"target {target.name}: {error}") from None
    found: dict[str, Planned] = {}
    for params in sets:
        point = Planned(target.point_id(params), target.name, params)
        found.setdefault(point.id, point)
    return list(found.values())


def runnable(
    target: Target, planned: Sequence[Planned], gpu: GpuFacts
) -> tuple[list[Planned], dict[str, list[Planned]]]:
    """(the points that a GPU can run, the others by the reason why not), in order."""
    kept: list[Planned] = []
    left: dict[str, list[Planned]] = {}
    for point in planned:
        why = target.skip(point.params, gpu)
        (left.setdefault(why, []) if why else kept).append(point)
    return kept, left


def wanting(target: Target, planned: Sequence[Planned]) -> list[str]:
    """What points want downloaded before they run, each with the command for it."""
    named = {point.params.get("backend") for point in planned}
    return [why for one in target.backends if one.name in named and (why := one.wanting())]


def unable(target: Target, point: Planned, gpu: GpuFacts) -> str | None:
    """Why a point cannot run on this machine: its GPU cannot, or what it wants downloaded cannot be; None if it can."""
    if why := target.skip(point.params, gpu):
        return why
    wanted = wanting(target, [point])
    return (
        f"{wanted[0]}, and nothing can be downloaded here" if wanted and not reachable() else None
    )


def of_target(
    name: str, file: Path | None, blocks: Sequence[Block] | None = None
) -> tuple[Target, list[Planned]]:
    """A target with its points: those of a file, or of blocks, or its own. Raises UsageError where one of them is bad."""
    try:
        target = load(name)
        found = read_points(file, target) if file else points(target, blocks or [{}])
    except BadInput:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    return target, found


def read_points(path: Path, target: Target, empty: bool = False) -> list[Planned]:
    """Points of a points.json, parameters completed by the target's defaults. ``empty``: none are points as well.

    Raises BadInput if the file does not hold points of this target.
    """
    entries = read_json(path)
    if not isinstance(entries, list) or not (entries or empty):
        raise BadInput(path, "not a list of points")
    return [_point(path, entry, target) for entry in entries]


def _point(path: Path, entry: Any, target: Target) -> Planned:
    if not isinstance(entry, dict) or not {"id", "target", "params"} <= entry.keys():
        raise BadInput(path, "a point without id, target and params")
    if entry["target"] != target.name:
        raise BadInput(path, f"{entry['id']} is a point of {entry['target']}, not {target.name}")
    try:
        params, *others = expand([entry["params"]], target.parameters, target.choices)
        if others:
            raise ValueError("a parameter with several values")
    except ValueError as error:
        raise BadInput(path, f"{entry['id']}: {error}") from None
    if target.point_id(params) != entry["id"]:
        raise BadInput(
            path, f"{entry['id']}: its parameters are those of {target.point_id(params)}"
        )
    return Planned(entry["id"], entry["target"], params)


def pairs(target: Target, points: Sequence[Planned]) -> list[Planned]:
    """The pairs of points that the target's choices tell apart, one after the other, each pair once.

    The shortest and the longest of the bases, by their work, are paired with themselves as well: how
    far two sides of a pair lie apart where nothing differs.
    """
    places = {
        place: None
        for choice in target.compared
        for place in choice.pairs([point.params for point in points])
    }
    if not places:
        return []
    bases = sorted((base for base, _ in places), key=lambda base: target.work(points[base].params))
    places |= dict.fromkeys((base, base) for base in (bases[0], bases[-1]))
    return [points[place] for pair in places for place in pair]


def pairs_of_batches(
    target: Target, found: Mapping[str, Sequence[Planned]]
) -> dict[str, list[Planned]]:
    """The pairs of all points of the batches, each with the batch that has its base, in whose process it is timed."""
    of = {point.id: batch for batch, members in found.items() for point in members}
    paired = pairs(target, [point for members in found.values() for point in members])
    taken: dict[str, list[Planned]] = {batch: [] for batch in found}
    for base, other in zip(paired[::2], paired[1::2], strict=True):
        taken[of[base.id]] += [base, other]
    return taken


def batches(points: Sequence[Planned], size: int) -> dict[str, list[Planned]]:
    """Batches of about ``size`` points, by name, in order.

    Where a batch ends depends on the ids of its points alone (content-defined chunking), and its
    name on the ids it holds: adding a point renames one batch or two, and the captures of the
    others stay valid. A batch holds size/2 to 2*size points; the last may hold fewer. Points of another number of GPUs are a
    batch of their own.
    """
    if size < 1:
        raise ValueError(f"batch size must be at least 1, not {size}")
    smallest, largest = max(1, size // 2), 2 * size
    found: dict[str, list[Planned]] = {}
    for those in _by_ranks(points):
        batch: list[Planned] = []
        for point in those:
            batch.append(point)
            ends = _digest(point.id) % max(1, size // 2) == 0
            if (ends and len(batch) >= smallest) or len(batch) == largest:
                found[_name(batch)] = batch
                batch = []
        if batch:
            found[_name(batch)] = batch
    return found


def _by_ranks(points: Sequence[Planned]) -> list[list[Planned]]:
    found: dict[int, list[Planned]] = {}
    for point in points:
        found.setdefault(ranks([point.as_dict()]), []).append(point)
    return list(found.values())


def ranks(batch: Sequence[Mapping[str, Any]]) -> int:
    """GPUs of one host that the points of a batch take, each of which is as in points.json."""
    targets = known()
    those = ((targets[p["target"]], p["params"]) for p in batch if p["target"] in targets)
    return max((target.ranks(params) for target, params in those), default=1)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _name(batch: Sequence[Planned]) -> str:
    return f"b{_digest(chr(10).join(point.id for point in batch)):016x}"[:9]


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
            found = _swept(target, found)
        elif not all({"id", "target", "params"} <= point.keys() for point in found):
            raise ValueError("a point without id, target and params")
        write_json(out, found)
    except ValueError as error:
        raise UsageError(f"--{given[0]}: {error}") from None


def _swept(target: str, blocks: Sequence[Block]) -> list[JsonObject]:
    return [point.as_dict() for point in points(load(target), blocks)]


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
