"""Pages that show a record and nothing beside it: of trials, of an advice, and of the steps of a trace."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.evidence.provenance import TIERS
from ncuflow.experiments import text
from ncuflow.experiments.record import (
    Advice,
    AdvisedChoice,
    AdvisedShape,
    HotPlace,
    KernelCode,
    KernelCounters,
    KernelTrial,
    PointTrial,
    Trial,
)
from ncuflow.experiments.text import between, departing, longer, ruled, spelled, sure, taken
from ncuflow.format import (
    MISSING,
    in_one_unit,
    micro,
    number,
    pct,
    percent,
    quantity,
    short,
    with_unit,
)
from ncuflow.format import change as relative
from ncuflow.pages import Context
from ncuflow.pages.html import page
from ncuflow.parsers.registry import METRICS
from ncuflow.race import measure
from ncuflow.step import trace
from ncuflow.step.record import StepAnswer

BUDGET = 350_000  # bytes of a page
# How many points of a trial are shown with counters, and how many changes with theirs: less where that is too much.
DETAILS = (1000, 16, 6, 2, 0)
WIDTH = 240.0  # pixels of an interval's drawing
CLOCK_US = 0.001  # a nanosecond: no launch is timed closer
LITTLE = 0.01  # of a difference: a cause that adds less is told at its end
# Between ticks of an axis, of 1.
STEPS = tuple(m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5))
MOST_TICKS = 5
SIGNS = {"+": "added", "-": "removed", "@": "place"}


def rendered(trials: Sequence[Trial], said: str = "") -> str:
    """The page's text. Where all points with their counters are too much, the first ones have them.

    said: of an upgrade, whose trials are of as many targets: what its screen has, which comes first.
    """
    for most in DETAILS:
        text = _rendered(trials, most, said.splitlines())
        if len(text.encode()) <= BUDGET:
            break
    return text


def _rendered(trials: Sequence[Trial], most: int, said: Sequence[str]) -> str:
    ranked = [(None, trial) for trial in trials] if said else text.ranked(trials)
    views = [TrialView(trial, most, at) for at, (_, trial) in enumerate(ranked, 1)]
    ranking = [(rank, trial, _mean(trial)) for rank, trial in ranked]
    ranking = ranking if len(trials) > 1 and not said else []
    sections = [("ranking", "Ranking")] if ranking else views[0].sections
    if said:
        sections = [("upgrade", "The workload")]
        sections += [(f"trial-{view.number}", view.trial.target) for view in views]
    if ranking:
        sections += [(f"trial-{view.number}", view.trial.change.name) for view in views]
    return page.framed(
        "trial.html.j2",
        with_unit(len(trials), "changes") if ranking else trials[0].change.name,
        f"{with_unit(len(trials), 'targets') if said else ranked[0][1].target} · {ranked[0][1].gpu or 'unknown GPU'}",
        sections,
        ranking=ranking,
        said=said,
        trials=views,
        number=number,
        percent=percent,
        place=file_and_line,
        spelled=lambda found: _minus(measure.with_interval(found)),
        relative=relative,
        adds=adds,
    )


def _mean(trial: Trial) -> str | None:
    found = text.mean(trial)
    return None if found is None else relative(found - 1)


def _minus(text: str) -> str:
    """Text of a number with the minus sign that pages have."""
    return text.replace("-", "−")


def adds(us: float) -> str:
    """A part of a difference in time with its sign; below what a clock tells it is nothing."""
    if abs(us) < CLOCK_US:
        return "0 µs"
    return f"{'+' if us > 0 else '−'}{micro(abs(us))}"


class Row(NamedTuple):
    """A quantity on both sides, and how the change's differs."""

    what: str
    base: str
    change: str
    differs: str = ""


class Axis(NamedTuple):
    """From the least to the most of what is drawn on it, of 1."""

    start: float
    end: float

    def at(self, value: float) -> float:
        """Its place in pixels."""
        return round(WIDTH * (value - self.start) / (self.end - self.start), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places with what stands there: no difference, and round ones about each end that leave room between them."""
        step = next(s for s in STEPS if (self.end - self.start) / s <= MOST_TICKS)
        first, last = math.ceil(self.start / step), math.floor(self.end / step)
        return [
            (self.at(n * step), _minus(f"{100 * n * step:+.3g} %") if n else "0")
            for n in range(first, last + 1)
        ]


class TrialView:
    """A trial as its page shows it. most: points whose counters are shown; those that differ come first."""

    def __init__(self, trial: Trial, most: int, number: int = 1) -> None:
        self.trial, self.number = trial, number
        self.points = trial.points
        self.timed = [point for point in trial.points if point.timing is not None]
        self.timings = [point.timing for point in trial.points if point.timing is not None]
        self.unit, took = in_one_unit([us for t in self.timings for us in (t.base_us, t.change_us)])
        self.times = [*zip(self.timed, took[::2], took[1::2], strict=True)]
        self.cases = list({case.id: case for p in trial.points for case in p.cases}.values())
        self.right = sum(case.status == "ok" for case in self.cases)
        self.kernels = [(m, k) for m in trial.modules for k in m.kernels]
        counted = [point for point in trial.points if point.counters is not None]
        counted.sort(key=lambda point: not point.causes)
        self.counted = [PointView(point) for point in counted[:most]]
        self.left_out = len(counted) - len(self.counted)

    def id(self, name: str) -> str:
        """Of a section, on a page of several trials as well."""
        return f"{name}-{self.number}"

    @property
    def sections(self) -> list[page.Section]:
        """Those that this trial has."""
        has = {
            "right": ("Is it right?", self.cases),
            "faster": ("Is it faster?", self.timed),
            "why": ("Why", any(one.point.causes for one in self.counted)),
            "change": ("The change", self.trial.change.diff),
            "compiled": ("Compiled", self.trial.modules),
            "counters": ("Counters", self.counted),
        }
        return [(self.id(name), title) for name, (title, there) in has.items() if there]

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
            "minimum effect": percent(trial.effect, 1),
        }
        return [(name, value) for name, value in known.items() if value is not None]

    @property
    def diff(self) -> list[tuple[str, str]]:
        """Lines of the difference, each behind what it is: added, removed, place, file or nothing of these."""
        lines = (self.trial.change.diff or "").splitlines()
        files = ("--- ", "+++ ")
        return [("file" if o.startswith(files) else SIGNS.get(o[:1], ""), o) for o in lines]

    @property
    def apart(self) -> list[PointTrial]:
        """Points that were not timed."""
        return [point for point in self.points if point.timing is None]

    @cached_property
    def axis(self) -> Axis:
        """One axis for the intervals of all points."""
        ends = [
            end
            for one in self.timings
            for found in (one.change, one.noise)
            for end in (found.low, found.high)
        ]
        low, high = min([*ends, -self.trial.effect]), max([*ends, self.trial.effect])
        spare = 0.04 * (high - low)
        return Axis(low - spare, high + spare)

    def strip(self, point: PointTrial) -> Context:
        """The drawing of an interval: places in pixels on the axis of all points."""
        assert point.timing is not None
        found, noise, effect, at = (
            point.timing.change,
            point.timing.noise,
            self.trial.effect,
            self.axis.at,
        )
        bounds = {"low": at(found.low), "high": at(found.high), "middle": at(found.estimate)}
        return bounds | {
            "width": WIDTH,
            "zero": at(0),
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
        return [(opcode, _minus(f"{count:+d}")) for opcode, count in most]


class PointView:
    """The counters of a point, and what explains its difference."""

    def __init__(self, point: PointTrial) -> None:
        assert point.counters is not None
        self.point, self.counters = point, point.counters
        large = [one for one in point.causes if one.share is None or abs(one.share) >= LITTLE]
        self.causes, self.small = large, [one for one in point.causes if one not in large]
        self.pairs = list(_pairs(self.counters.base, self.counters.change))

    @property
    def most(self) -> float:
        """The largest part of any cause, µs."""
        parts = [abs(part.delta_us) for cause in self.point.causes for part in cause.parts]
        return max([CLOCK_US, *parts])

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
        sides = [("baseline", self.base), ("candidate", self.change)]
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


# --- an advice: a map of the shapes, and every choice of each ------------------------------------

COLOURS = 8  # of choices, the most frequent first; what comes after them shares the last


def rendered_advice(advice: Advice) -> str:
    """The page's text."""
    versions = ", ".join(f"{name} {value}" for name, value in advice.versions.items() if value)
    gpu = advice.gpu or "unknown GPU"
    return page.framed(
        "advice.html.j2",
        f"Advice, {gpu}",
        "which choice for which shape",
        [("rules", "Rules"), ("maps", "Maps"), ("shapes", "Shapes")],
        advice=advice,
        versions=versions,
        source=TIERS[advice.tier],
        sure=sure(advice),
        rules=[ruled(rule) for rule in advice.rules],
        maps=_maps(advice.shapes),
        shapes=[_rows(shape) for shape in advice.shapes],
    )


def _maps(shapes: Sequence[AdvisedShape]) -> list[Context]:
    colours = _colours(shapes)
    found = []
    for target in dict.fromkeys(shape.target for shape in shapes):
        own = [shape for shape in shapes if shape.target == target]
        row, column = _axes(own)
        rest: dict[str, list[AdvisedShape]] = {}
        for shape in own:
            rest.setdefault(_title(shape, own, (row, column)), []).append(shape)
        found += [_map(title, row, column, some, colours) for title, some in rest.items()]
    return found


def _axes(shapes: Sequence[AdvisedShape]) -> tuple[str, str]:
    """The two parameters in which the shapes differ most: the rows', the columns'."""
    names = list(shapes[0].params)
    counts = {name: len({str(shape.params[name]) for shape in shapes}) for name in names}
    first, second, *_ = sorted(names, key=lambda name: -counts[name])
    return second, first


def _title(shape: AdvisedShape, shapes: Iterable[AdvisedShape], axes: tuple[str, str]) -> str:
    """The target, and where a shape is one of several kinds."""
    varied = [
        name
        for name in shape.params
        if name not in axes and len({str(s.params[name]) for s in shapes}) > 1
    ]
    return ", ".join([shape.target, *(f"{name} {shape.params[name]}" for name in varied)])


def _map(
    title: str, row: str, column: str, shapes: Sequence[AdvisedShape], colours: dict[str, str]
) -> Context:
    """Shapes that differ in two parameters alone: {title, row, column, columns, lines: [{value, cells}]}."""
    columns = _values(shape.params[column] for shape in shapes)
    by_place = {(s.params[row], s.params[column]): _cell(s, colours) for s in shapes}
    lines = [
        {"value": value, "cells": [by_place.get((value, other)) for other in columns]}
        for value in _values(shape.params[row] for shape in shapes)
    ]
    found = {"title": title, "row": row, "column": column}
    return found | {"columns": columns, "lines": lines}


def _values(found: Iterable[Any]) -> list[Any]:
    """Each value once, numbers by size."""
    return sorted(set(found), key=lambda value: (isinstance(value, str), value))


def _colours(shapes: Sequence[AdvisedShape]) -> dict[str, str]:
    """The class of each choice that is advised somewhere in place of the default."""
    names = [_settings(shape) for shape in shapes if not _grey(shape)]
    often = sorted(set(names), key=lambda name: (-names.count(name), name))
    return {name: f"c{min(at, COLOURS - 1)}" for at, name in enumerate(often)}


def _grey(shape: AdvisedShape) -> bool:
    return shape.advised in (None, shape.shape)


def _settings(shape: AdvisedShape) -> str:
    chosen = shape.choice(shape.advised)
    return departing(chosen, shape) if chosen else MISSING


def _cell(shape: AdvisedShape, colours: dict[str, str]) -> Context:
    """A shape on a map; kind: its class of the style sheet."""
    take = _settings(shape)
    kind = "tie" if _grey(shape) else colours[take]
    return {"id": _id(shape), "kind": kind, "take": take, "gain": longer(shape)}


def _id(shape: AdvisedShape) -> str:
    return re.sub(r"\W", "_", shape.shape)


def _rows(shape: AdvisedShape) -> Context:
    """A shape with a row for each choice."""
    timed = sorted(shape.choices, key=lambda one: (one.time_us is None, one.time_us or 0))
    unit, took = in_one_unit([one.time_us for one in timed])
    plan_unit, plans = in_one_unit([one.plan_us for one in timed])
    head = ("choice", f"time, {unit}", "compared with the leader", "outcome", "rounds", f"plan(), {plan_unit}")  # fmt: skip
    rows = [_choice_row(*one, shape) for one in zip(timed, took, plans, strict=True)]
    found = {"id": _id(shape), "shape": shape, "take": taken(shape)}
    return found | {"head": head, "rows": rows}


def _choice_row(one: AdvisedChoice, time: str, plan: str, shape: AdvisedShape) -> tuple[str, ...]:
    outcome = f"{one.fate}: {one.reason}" if one.reason else one.fate
    behind = between(one.behind) if one.behind else MISSING
    rounds = MISSING if one.rounds is None else str(one.rounds)
    return spelled(one, shape), time, behind, outcome, rounds, plan


# --- the steps of a trace --------------------------------------------------------------------

MOST_ROWS, LONGEST = 400, 1000  # of a table of a step's page, and of a name on it
FILTERS = {
    "micro": micro,
    "pct": pct,
    "shape": trace.shape_text,
    "roof": trace.roof_text,
    "alone": trace.alone_text,
    "gain": trace.gain_text,
    "reason": trace.reason_text,
    "built": trace.built_text,
    "short": partial(short, width=LONGEST),
}


def rendered_step(found: StepAnswer) -> str:
    """The page's text, with so many rows of each table at most."""
    page.environment().filters.update(FILTERS)
    sections = [("trace", "Trace")]
    for at, group in enumerate(found.groups, 1):
        sections.append((f"steps-{at}", f"{group.kind}{' (graph)' if group.replayed else ''}"))
    origin = f"steps of a trace · {found.gpu or 'unknown GPU'}"
    shown = trace.limited(found, MOST_ROWS)
    told = page.framed(
        "step.html.j2",
        found.file,
        origin,
        sections,
        found=shown,
        told_by=trace.told_by,
        roofs=trace.roofs,
        parts=trace.parts,
        times=trace.times,
    )
    return told + "\n"
