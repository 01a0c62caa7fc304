"""The page of a trial: one HTML file without script, made of the trial's record alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ncuflow.experiments import text
from ncuflow.experiments.record import (
    HotPlace,
    KernelCode,
    KernelCounters,
    KernelTrial,
    PointTrial,
    Trial,
)
from ncuflow.format import change as relative
from ncuflow.format import micro, number, percent, quantity
from ncuflow.io import clean, resource
from ncuflow.pages import Context
from ncuflow.parsers.registry import METRICS
from ncuflow.race import measure

FOLDER = "templates/html"
BUDGET = 300_000  # bytes of a page
# How many points of a trial are shown with counters, and how many changes with theirs: less where that is too much.
DETAILS = (1000, 16, 6, 2, 0)
WIDTH = 240.0  # pixels of an interval's drawing
SIGNS = {"+": "added", "-": "removed", "@": "place"}


def rendered(trials: Sequence[Trial]) -> str:
    """The page's text. Where all points with their counters are too much, the first ones have them."""
    for most in DETAILS:
        text = _rendered(trials, most)
        if len(text.encode()) <= BUDGET:
            break
    return text


def _rendered(trials: Sequence[Trial], most: int) -> str:
    ranked = text.ranked(trials)
    title = ", ".join(trial.change.name for _, trial in ranked)
    return environment().get_template("trial.html.j2").render(
        title=title,
        style="".join(
            (resource(FOLDER) / name).read_text(encoding="utf-8")
            for name in ("style.css", "trial.css")
        ),
        ranking=[(rank, trial, _mean(trial)) for rank, trial in ranked] if len(trials) > 1 else [],
        trials=[TrialView(trial, most) for _, trial in ranked],
    )  # fmt: skip


def _mean(trial: Trial) -> str | None:
    found = text.mean(trial)
    return None if found is None else relative(found - 1)


@cache
def environment() -> jinja2.Environment:
    """Jinja2 by which all that a record says is text; an undefined name is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(FOLDER)),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    env.globals |= {"micro": micro, "number": number, "percent": percent, "place": file_and_line}
    env.globals["spelled"] = measure.with_interval
    return env


def _printable(value: Any) -> Any:
    """What a template prints: characters that a reader could not see are made visible, and a dash is what is not known."""
    if value is None:
        return "–"
    return clean(value) if type(value) is str else value


class Row(NamedTuple):
    """A quantity on both sides, and how the change's differs."""

    what: str
    base: str
    change: str
    differs: str = ""


class DiffLine(NamedTuple):
    """A line of a difference, and what it is: added, removed, place, file or nothing of these."""

    kind: str
    text: str


class TrialView:
    """A trial as its page shows it. most: points whose counters are shown; those that differ come first."""

    def __init__(self, trial: Trial, most: int) -> None:
        self.trial = trial
        self.points = trial.points
        self.timed = [point for point in trial.points if point.timing is not None]
        self.cases = list({case.id: case for p in trial.points for case in p.cases}.values())
        self.right = sum(case.status == "ok" for case in self.cases)
        self.kernels = [(m, k) for m in trial.modules for k in m.kernels]
        counted = [point for point in trial.points if point.counters is not None]
        counted.sort(key=lambda point: not point.causes)
        self.counted = [PointView(point) for point in counted[:most]]
        self.left_out = len(counted) - len(self.counted)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Where and with what the trial was made."""
        trial = self.trial
        known = {
            "GPU": trial.gpu,
            "driver": trial.driver,
            "FlashInfer": trial.flashinfer,
            "ncu": trial.ncu,
            "date": trial.date,
            "effect that matters": percent(trial.effect, 1),
        }
        return [(name, value) for name, value in known.items() if value is not None]

    @property
    def diff(self) -> list[DiffLine]:
        text = self.trial.change.diff or ""
        return [
            DiffLine("file" if line.startswith(("--- ", "+++ ")) else SIGNS.get(line[:1], ""), line)
            for line in text.splitlines()
        ]

    @property
    def apart(self) -> list[PointTrial]:
        """Points that were not timed."""
        return [point for point in self.points if point.timing is None]

    def strip(self, point: PointTrial) -> Context:
        """The drawing of an interval: places in pixels, the middle being no difference."""
        assert point.timing is not None
        found, noise, effect = point.timing.change, point.timing.noise, self.trial.effect
        most = 1.15 * max(map(abs, (found.low, found.high, noise.low, noise.high, effect)))

        def at(value: float) -> float:
            return round(WIDTH / 2 * (1 + value / most), 1)

        bounds = {"low": at(found.low), "high": at(found.high), "middle": at(found.estimate)}
        return bounds | {
            "width": WIDTH,
            "zero": WIDTH / 2,
            "effect": (at(-effect), at(effect)),
            "noise": (at(noise.low), at(noise.high)),
        }

    def code(self, kernel: KernelTrial) -> list[Row]:
        """What a kernel takes on both sides; of one that a side does not have, that alone."""
        return [
            Row(label, *(_field(side, name) for side in (kernel.base, kernel.change)))
            for name, label in text.CODE.items()
        ]

    def opcodes(self, kernel: KernelTrial) -> list[tuple[str, str]]:
        """Opcodes and by how many their number differs, the largest difference first."""
        most = sorted(kernel.opcodes.items(), key=lambda found: (-abs(found[1]), found[0]))
        return [(opcode, f"{count:+d}") for opcode, count in most]


class PointView:
    """The counters of a point, and what explains its difference."""

    def __init__(self, point: PointTrial) -> None:
        assert point.counters is not None
        self.point, self.counters = point, point.counters
        self.pairs = list(_pairs(self.counters.base, self.counters.change))

    @property
    def most(self) -> float:
        """The largest part of any cause, µs."""
        parts = [abs(part.delta_us) for cause in self.point.causes for part in cause.parts]
        return max(parts, default=0.0) or 1.0

    def value(self, value: Any, unit: str) -> str:
        return quantity(value, unit) if isinstance(value, int | float | None) else str(value)


class PairView:
    """A kernel on both sides; one that a side does not have is None there."""

    def __init__(self, base: KernelCounters | None, change: KernelCounters | None) -> None:
        self.base, self.change = base, change
        self.sides = [side for side in (base, change) if side is not None]
        self.name = self.sides[-1].name

    @property
    def rows(self) -> list[Row]:
        """Launch and counters of both sides."""
        shape = {
            "grid": "grid", "block": "block", "registers": "registers a thread", "shared_bytes": "shared memory a block, bytes",
        }  # fmt: skip
        rows = [
            Row(label, *(_field(side, name) for side in (self.base, self.change)))
            for name, label in shape.items()
        ]
        metrics = [side.metrics if side else {} for side in (self.base, self.change)]
        keys = [key for key in METRICS if key in metrics[0] or key in metrics[1]]
        return rows + [_metric(key, *(side.get(key) for side in metrics)) for key in keys]

    @property
    def stalls(self) -> list[Row]:
        """Cycles that a warp waits per issued instruction, the longest first."""
        sides = [side.stalls if side else {} for side in (self.base, self.change)]
        reasons = {reason: max(s.get(reason, 0.0) for s in sides) for s in sides for reason in s}
        order = sorted(reasons, key=lambda reason: -reasons[reason])
        return [_row(name, sides[0].get(name), sides[1].get(name), "") for name in order]

    @property
    def hot(self) -> list[tuple[str, list[HotPlace]]]:
        sides = [("base", self.base), ("change", self.change)]
        found = [(name, side.hot) for name, side in sides if side is not None]
        return found if any(places for _, places in found) else []


def file_and_line(hot: HotPlace) -> str:
    """Where a hot line is: its file and line, or the instruction."""
    if hot.file is None:
        return hot.sass or "–"
    return Path(hot.file).name + (f":{hot.line}" if hot.line is not None else "")


def _pairs(base: Sequence[KernelCounters], change: Sequence[KernelCounters]) -> Iterator[PairView]:
    """Kernels of both sides, by name in launch order; then those of one side."""
    waiting = list(base)
    for kernel in change:
        other = next((one for one in waiting if one.name == kernel.name), None)
        if other is not None:
            waiting.remove(other)
        yield PairView(other, kernel)
    yield from (PairView(one, None) for one in waiting)


def _metric(key: str, base: float | None, change: float | None) -> Row:
    metric = METRICS[key]
    return _row(metric.label, base, change, metric.unit)


def _row(what: str, base: float | None, change: float | None, unit: str) -> Row:
    differs = ""
    if base and change is not None and base != change and math.isfinite(change / base):
        differs = relative(change / base - 1)
    return Row(what, quantity(base, unit), quantity(change, unit), differs)


def _field(side: KernelCode | KernelCounters | None, name: str) -> str:
    found = None if side is None else getattr(side, name)
    return "–" if found is None else str(found)
