"""Why one choice takes longer than another, from counters: what limits each, and what each executes, reads and computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.advice.record import Advice, AdvisedShape
from ncuflow.compare import attribution, verdict
from ncuflow.compare.records import Cause
from ncuflow.compare.verdict import Side
from ncuflow.findings import limiter, locate, profiled
from ncuflow.format import si
from ncuflow.io import BadInput
from ncuflow.model import Kernel
from ncuflow.parsers import ncu
from ncuflow.target.contract import load

CAUSES = 2  # of two launches of the same kernels
LEAST_SHARE = 0.05  # of the difference: a smaller part of it is no cause
LEAST_RATIO = 1.25  # of a counter: a smaller difference is not said
# Counters of which kernels of other code have other amounts for the same work: the key, how it is said, and its unit.
AMOUNTS = (
    ("inst_executed", "executes {} the instructions", ""),
    ("dram_bytes_read", "reads {} the bytes from DRAM", "B"),
    ("tensor_flops", "computes {} the FLOPs on tensor cores", "FLOP"),
)


@dataclass(frozen=True)
class CountedChoice:
    """What counters say of a choice. row: columns of its measurement, as `ncuflow.findings.limiter` reads them."""

    point: str
    profile: attribution.Profile
    row: Mapping[str, Any]

    @property
    def kernels(self) -> Sequence[Kernel]:
        return self.profile.kernels

    def total(self, key: str) -> float | None:
        """A counter of all kernels together; None where one lacks it."""
        values = [kernel["metrics"].get(key) for kernel in self.kernels]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None


Counts = Mapping[str, CountedChoice]  # by point


def of_side(side: Side) -> Counts:
    """The points of results that were profiled."""
    return {
        name: CountedChoice(name, side.profile(name), point["measurement"])
        for name, point in side.points.items()
        if point["kernels"]
    }


@contextmanager
def counts(folder: Path) -> Iterator[Counts]:
    """What was counted: results, a recording, or a folder with reports of `ncuflow ncu`. Raises BadInput where it is none."""
    reports = sorted([*folder.rglob("*.ncu-rep"), *folder.rglob("*.ncu-rep.xz")])
    if locate.is_recording(folder) or (folder / "results").is_dir() or not reports:
        with locate.results_of(folder, None) as place:
            yield of_side(verdict.load(place))
    else:
        yield _of_reports(reports)


def _of_reports(reports: Sequence[Path]) -> Counts:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for path in reports:
        for kernel in profiled.kernels(ncu.read(path, with_lines=False), path.name):
            if kernel["point"]:
                found[kernel["point"]].append(kernel)
    if not found:
        raise BadInput(reports[0], "no launch in a range that is named after a point")
    return {name: _counted(name, kernels) for name, kernels in found.items()}


def _counted(point: str, kernels: Sequence[Kernel]) -> CountedChoice:
    row = profiled.row_of(kernels, profiled.provenance(kernels[0], None))
    return CountedChoice(point, attribution.Profile(kernels=kernels), row)


def explain(advice: Advice, folder: Path) -> None:
    """Put into an advice, from counters of the same points, why the default and the slowest of what was counted take longer than
    the advised choice."""
    with counts(folder) as found:
        for shape in advice.shapes:
            shape.cause = list(_of_shape(shape, found))


def _of_shape(shape: AdvisedShape, found: Counts) -> Iterator[str]:
    taken = shape.choice(shape.advised)
    if taken is None or taken.point not in found or taken.time_us is None:
        return
    slower = [
        one for one in shape.choices if one.fate == "slower" and one.time_us and one.point in found
    ]
    slower.sort(key=lambda one: -(one.time_us or 0.0))
    default = [one for one in slower if one.point == shape.shape]
    for one in dict.fromkeys(choice.point for choice in [*default, *slower[:1]]):
        other = shape.choice(one)
        assert other is not None and other.time_us is not None
        flops = load(shape.target).work({**shape.params, **other.settings}).flops
        yield from causes(
            found[taken.point], found[one], (taken.time_us, other.time_us), flops=flops
        )


def causes(
    taken: CountedChoice,
    other: CountedChoice,
    times: tuple[float, float],
    noise_us: float = 0.0,
    flops: float | None = None,
) -> list[str]:
    """Why the second of two choices takes longer than the first; times: of both, µs; flops: that the shape asks for."""
    ratio = f"{other.point} takes {times[1] / times[0]:.2f} times as long as {taken.point}"
    names = [sorted(kernel["name"] for kernel in one.kernels) for one in (taken, other)]
    if names[0] != names[1]:
        sides = f"it is {_limit(other, flops)}; the other is {_limit(taken, flops)}"
        return [". ".join([f"{ratio}: {sides}", *filter(None, [_amounts(taken, other)])])]
    found = attribution.explain(taken.profile, other.profile, *times, noise_us).causes
    least = LEAST_SHARE * (times[1] - times[0])
    worth = [c for c in found if c.delta_us is not None and c.delta_us >= least]
    if not worth:
        return [f"{ratio}; under ncu, which runs each kernel alone, its kernels take no longer"]
    return [f"{ratio}: {_cause(cause)}" for cause in worth[:CAUSES]]


def _limit(choice: CountedChoice, flops: float | None) -> str:
    """What limits a choice, with the name of its kernel and its grid."""
    main = profiled.longest(choice.kernels)
    row = dict(choice.row)
    computed = choice.total("tensor_flops")
    if row.get("tensor_padding_pct") is None and flops and computed:
        row["tensor_padding_pct"] = 100 * max(0.0, 1 - flops / computed)
    said = limiter.words(row) or "not judged: its report lacks the breakdown"
    where = f"{main['name']} on a grid of {main['grid']}"
    return f"{where}, {said.removeprefix(main['name']).removeprefix(', ')}"


def _amounts(taken: CountedChoice, other: CountedChoice) -> str:
    """Of what the other has more or less, by counters."""
    found = []
    for key, words, unit in AMOUNTS:
        own, more = taken.total(key), other.total(key)
        if own and more and not 1 / LEAST_RATIO < more / own < LEAST_RATIO:
            times = f"{more / own:.1f} times" if more > own else f"{100 * more / own:.0f} % of"
            amounts = f" ({si(more, unit)}, not {si(own, unit)})"
            found.append(words.format(times) + amounts)
    return f"It {', '.join(found)}" if found else ""


def _cause(cause: Cause) -> str:
    of_it = f" ({100 * cause.share_of_delta:.0f} % of it)" if cause.share_of_delta else ""
    sides = " → ".join(str(value) for value in (cause.base, cause.head) if value is not None)
    return ", ".join(filter(None, [f"{cause.what}{of_it}", sides, cause.evidence]))
