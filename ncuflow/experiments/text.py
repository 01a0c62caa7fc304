"""What the record of an experiment says, as text."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from ncuflow.experiments import record
from ncuflow.format import MISSING, aligned, in_one_unit, micro, with_unit
from ncuflow.race import measure
from ncuflow.race import record as race

KERNELS, OPCODES = 6, 5  # that the screen has: kernels whose code differs, and opcodes of each
FILES = 2  # of a module, those that compiled longest
CAUSES, PARTS = 1, 3  # of a point, and of a cause
CODE = {
    "registers": "registers",
    "shared_bytes": "static shared memory",
    "stack_bytes": "stack",
    "local_instructions": "loads and stores of local memory",
    "instructions": "instructions",
}


def trial_text(trial: record.Trial) -> str:
    """What a trial says, on one screen."""
    lines = [f"{trial.change.name} at {trial.target}: {trial.outcome}"]
    if trial.reason:
        lines.append(f"  {trial.reason}")
    anew = [module for module in trial.modules if module.compiled]
    kernels = [kernel for module in anew for kernel in module.kernels]
    if trial.modules:
        lines.append(f"{len(anew)} of {with_unit(len(trial.modules), 'modules')} compiled anew")
        lines += [
            f"  {module.name}: {module.why}{_alike(module)}{_took(module)}" for module in anew
        ]
        lines += _code(kernels)
    if cases := {case.id: case for point in trial.points for case in point.cases}:
        right = sum(case.status == "ok" for case in cases.values())
        lines.append(f"{right} of {with_unit(len(cases), 'inputs')} right")
        lines += [f"  {told}" for case in cases.values() for told in case_lines(case)]
    if timed := [point for point in trial.points if point.timing is not None]:
        lines += [
            "",
            aligned(*times(timed)).rstrip(),
            _sure(trial.alpha, "all points together", trial.effect),
            *host_lines(timed, trial.host),
        ]
        lines += [told for point in timed for told in reasons(point, kernels)]
        if trial.no_counters:
            lines.append(f"no counters: {trial.no_counters}")
    # What is wrong at a case was told with it; these failed, or were left, after their cases.
    apart = [p for p in trial.points if p.timing is None and all(c.status == "ok" for c in p.cases)]
    lines += [f"{point.point}: {point.outcome}: {point.reason}" for point in apart]
    return "\n".join(lines) + "\n"


def host_lines(timed: Sequence[record.PointTrial], state: race.HostState | None) -> list[str]:
    """The host times of points: those that differ, how many do not, and the core that they were taken on."""
    rows = [
        (f"{what} at {point.point}", one, one.outcome)
        for point in timed
        for what, one in (("the call", point.call), ("plan()", point.plan))
        if one is not None
    ]
    if not rows or state is None:
        return []
    told = [row for row in rows if row[-1] in ("slower", "faster")]
    same = sum(row[-1] == "same" for row in rows)
    table = [aligned(*in_turns("host time of", told)).rstrip()] if told else []
    clock = ", ".join(
        [f"{state.mhz} MHz before" if state.mhz else "clock unknown"]
        + ([f"governor {state.governor}"] if state.governor else [])
    )
    effects = " or ".join(f"{100 * one:g} %" for one in sorted({row[1].effect for row in rows}))
    where = (
        f"core {state.core} of {state.cpu or 'an unknown CPU'} ({clock}), minimum effect {effects}"
    )
    said = f"{same} of {with_unit(len(rows), 'host times')} the same, {len(rows) - same - len(told)} undecided"
    return ["", *table, f"{said}; {where}"]


def _alike(module: record.ModuleTrial) -> str:
    """How many of a module's kernels the change left as they were."""
    if module.same_kernels is None:
        return f" (code not compared: {module.not_compared})"
    total = module.same_kernels + len(module.kernels)
    return f"; the code of {len(module.kernels)} of {with_unit(total, 'kernels')} differs"


def _took(module: record.ModuleTrial) -> str:
    """How long a module was compiled, and which of its files took most of that."""
    if module.compile_s is None:
        return ""
    longest = [f"{file.name} {file.seconds:.0f} s" for file in module.files[:FILES]]
    return f"; compiled in {module.compile_s:.0f} s" + (
        f" ({', '.join(longest)})" if longest else ""
    )


def _code(kernels: Sequence[record.KernelTrial]) -> list[str]:
    """What differs in compiled code, a line per kernel."""
    lines = [f"  {kernel.name}: {', '.join(differences(kernel))}" for kernel in kernels[:KERNELS]]
    left = len(kernels) - KERNELS
    return (
        [*lines, f"  and {with_unit(left, 'kernels')} more (--json has them)"]
        if left > 0
        else lines
    )


def differences(kernel: record.KernelTrial) -> Iterator[str]:
    """What of a kernel's compiled code differs, in words."""
    if kernel.base is None or kernel.change is None:
        yield "new" if kernel.base is None else "gone"
        return
    for field, label in CODE.items():
        was, now_is = getattr(kernel.base, field), getattr(kernel.change, field)
        if was != now_is:
            yield f"{label} {was} to {now_is}"
    most = sorted(kernel.opcodes, key=lambda opcode: -abs(kernel.opcodes[opcode]))[:OPCODES]
    yield (
        " ".join(f"{kernel.opcodes[opcode]:+d} {opcode}" for opcode in most)
        or "other operands or order"
    )


def case_lines(case: race.CheckedCase) -> list[str]:
    """A case that is not right, and its worst element."""
    if case.status == "ok":
        return []
    lines = [f"{case.id}: {case.status}: {case.reason}"]
    if case.worst is not None:
        got, expected = (
            "not finite" if value is None else f"{value:.6g}"
            for value in (case.worst.got, case.worst.expected)
        )
        place = f"output {case.worst.output} at {case.worst.index}"
        lines.append(f"  worst element: {place}: {got}, expected {expected} (seed {case.seed})")
    return lines


UNCOVERED = (
    0.2  # of a timed difference: what the counters leave, or tell too much, is said from there on
)
SAME_BYTES, OTHER_INSTRUCTIONS = 0.1, 0.2  # of logarithms: about 10 and 20 %
WIDTH = re.compile(r"\.[US]?(8|16|64|128)\b")


def reasons(point: record.PointTrial, kernels: Sequence[record.KernelTrial] = ()) -> Iterator[str]:
    """What explains a difference of times: its first cause, the parts of that which add most, instructions for bytes, and how
    much of it the counters cover. kernels: whose code differs."""
    if point.no_counters:
        yield f"{point.point}: no counters: {point.no_counters}"
    for cause in point.causes[:CAUSES]:
        sides = f" ({cause.base} → {cause.change})" if cause.base and cause.change else ""
        adds = "" if cause.delta_us is None else f" {_added(cause.delta_us)}"
        yield f"{point.point}:{adds} {cause.what}{sides}"
        parts = [part for part in cause.parts if part.base is not None]
        most = sorted(parts, key=lambda part: -abs(part.delta_us))[:PARTS]
        if most:
            yield "  " + ", ".join(f"{_added(part.delta_us)} {part.what}" for part in most)
    yield from _work(point, kernels)
    covered = coverage(point)
    if covered is not None and abs(1 - covered.share) > UNCOVERED:
        timed = _added(covered.timed_us)
        # Where other runs are the reason, it has the same numbers.
        why = "" if timed.removesuffix(" µs") in str(point.remainder) else f": {point.remainder}"
        yield f"  counters cover {_added(covered.us)} of the timed {timed}{why}"


class Coverage(NamedTuple):
    """How much of a timed difference the causes are: their µs, those that were timed, and the share."""

    us: float
    timed_us: float

    @property
    def share(self) -> float:
        """Of 1; above it where launches under ncu differ by more."""
        return self.us / self.timed_us


def coverage(point: record.PointTrial) -> Coverage | None:
    """What the counters of a point cover of its timed difference; None where they were not looked at for one."""
    if point.timing is None or point.unexplained_us is None:
        return None
    timed = point.timing.change_us - point.timing.base_us
    return Coverage(timed - point.unexplained_us, timed) if timed else None


def _work(point: record.PointTrial, kernels: Sequence[record.KernelTrial]) -> Iterator[str]:
    """Instructions for the bytes of DRAM, where the one differs and the other does not; and the width of loads and stores."""
    if point.counters is None or not point.causes:
        return
    sides = point.counters.base, point.counters.change
    executed = [_summed(side, "inst_executed") for side in sides]
    moved = [_summed(side, "dram_bytes_read", "dram_bytes_write") for side in sides]
    if None in executed or None in moved or not (executed[0] and moved[0] and moved[1]):
        return
    times = (executed[1] or 0.0) / executed[0]
    if abs(math.log(moved[1] / moved[0])) > SAME_BYTES or abs(math.log(times)) < OTHER_INSTRUCTIONS:
        return
    each = [32 * (count or 0.0) / of for count, of in zip(executed, moved, strict=True) if of]
    yield (
        f"  {times:.2g} times the instructions for the same bytes of DRAM: {each[0]:.2g} → {each[1]:.2g} of a thread for a byte"
    )
    run = {kernel.name for side in sides for kernel in side}
    for kernel in kernels:
        if any(name in kernel.name for name in run) and (told := widths(kernel)):
            yield f"  {told}"
            return


def _summed(kernels: Sequence[record.KernelCounters], *keys: str) -> float | None:
    """Counters of the kernels of a side together; None where one is missing."""
    found = [kernel.metrics.get(key) for kernel in kernels for key in keys]
    return None if None in found else sum(value or 0.0 for value in found)


def widths(kernel: record.KernelTrial) -> str:
    """How wide the loads and stores of global memory are that went, and those that came: "loads of 64 bits → 8 bits"; empty
    where that does not differ."""
    told = []
    for opcode, what in (("LDG", "loads"), ("STG", "stores")):
        sides = [
            sorted(
                {
                    _bits(name)
                    for name, n in kernel.opcodes.items()
                    if _is(name, opcode) and n * sign > 0
                }
            )
            for sign in (-1, 1)
        ]
        if all(sides) and sides[0] != sides[1]:
            went, came = ("/".join(map(str, bits)) for bits in sides)
            told.append(f"{what} of {went} → {came} bits")
    return ", ".join(told)


def _is(name: str, opcode: str) -> bool:
    return name == opcode or name.startswith(f"{opcode}.")


def _bits(opcode: str) -> int:
    """Of what a thread loads or stores at once."""
    found = WIDTH.search(opcode)
    return int(found[1]) if found else 32


def _added(us: float) -> str:
    return f"{us:+.3g} µs" if abs(us) < 1000 else f"{us:+.0f} µs"


def times(points: Sequence[record.PointTrial]) -> tuple[list[str], list[list[str]]]:
    """(head, rows) of the table of the points that were timed, all times in one unit."""
    timed = [(point, point.timing) for point in points if point.timing is not None]
    return in_turns(
        "point",
        [
            (
                point.point,
                of,
                point.outcome + (f", {of.throttled} bursts throttled" if of.throttled else ""),
            )
            for point, of in timed
        ],
    )


def in_turns(
    what: str, rows: Sequence[tuple[str, race.TurnsTiming, str]]
) -> tuple[list[str], list[list[str]]]:
    """(head, rows) of a table of names with their times and verdicts, all times in one unit."""
    unit, took = in_one_unit([us for _, of, _ in rows for us in (of.base_us, of.change_us)])
    told = [
        [
            name,
            base,
            change,
            measure.with_interval(of.change),
            measure.with_interval(of.noise),
            str(of.rounds),
            verdict,
        ]
        for (name, of, verdict), base, change in zip(rows, took[::2], took[1::2], strict=True)
    ]
    head = [what, f"base, {unit}", f"change, {unit}", "difference", "noise floor", "rounds"]
    return [*head, "verdict"], told


def ranked(trials: Sequence[record.Trial]) -> list[tuple[int | None, record.Trial]]:
    """Trials with their ranks, the fastest change first; what was not timed at every point has none, and comes last.

    A change has the rank of the one before it unless an interval at some point tells it from the first of that rank.
    """
    timed = sorted((trial for trial in trials if _times(trial)), key=_mean)
    found: list[tuple[int | None, record.Trial]] = []
    first = None
    for place, trial in enumerate(timed, start=1):
        if first is None or _apart(first[1], trial):
            first = (place, trial)
        found.append((first[0], trial))
    rest = [trial for trial in trials if not _times(trial)]
    order = [*race.WORST[::-1], "not compiled"]
    return found + [(None, t) for t in sorted(rest, key=lambda trial: order.index(trial.outcome))]


def _times(trial: record.Trial) -> dict[str, race.TrialTiming]:
    """The times of a trial by point; none unless every point was timed."""
    found = {point.point: point.timing for point in trial.points if point.timing is not None}
    return found if len(found) == len(trial.points) else {}


def mean(trial: record.Trial) -> float | None:
    """Geometric mean over points of the change's time over the base's; None unless every point was timed."""
    return _mean(trial) if _times(trial) else None


def _mean(trial: record.Trial) -> float:
    """Geometric mean over points of the change's time over the base's."""
    return geometric_mean(1 + timing.change.estimate for timing in _times(trial).values())


def _apart(one: record.Trial, other: record.Trial) -> bool:
    """Whether the intervals of two changes lie apart at some point."""
    sides = _times(one), _times(other)
    pairs = [(sides[0][point].change, sides[1][point].change) for point in sides[0]]
    return any(a.high < b.low or b.high < a.low for a, b in pairs)


def ranking(trials: Sequence[record.Trial]) -> str:
    """Several changes, the fastest first."""
    rows = [
        (
            "–" if rank is None else str(rank),
            trial.change.name,
            "–" if rank is None else f"{100 * (_mean(trial) - 1):+.1f} %",
            trial.outcome,
        )
        for rank, trial in ranked(trials)
    ]
    table = aligned(("rank", "change", "mean of points", ""), rows).rstrip()
    return f"\n{table}\nChanges of one rank are not told apart: their intervals overlap at every point.\n"


NOTHING_TIMED = "nothing could be timed"
REASONS = 4  # that a screen has of why choices were not timed


def advice_text(advice: record.Advice) -> str:
    """The table of shapes, what it rests on, and what could not be timed."""
    head, rows = advised(advice.shapes)
    lines = [_where(advice), "", aligned(head, rows, left=2).rstrip(), "", sure(advice)]
    for shape in advice.shapes:
        lines += shape.cause
    lines += [ruled(rule) for rule in advice.rules]
    lines += _failed(advice.shapes)
    lines += [f"refused: {text}" for text in advice.refused]
    lines += [f"does not compile: {name}: {why}" for name, why in advice.failed_modules.items()]
    return "\n".join(lines) + "\n"


def advised(shapes: Sequence[record.AdvisedShape]) -> tuple[list[str], list[list[str]]]:
    """(head, rows) of the table of shapes, all times in one unit."""
    chosen = [shape.choice(shape.advised) for shape in shapes]
    unit, took = in_one_unit([one.time_us if one else None for one in chosen])
    rows = [
        [
            shape.shape,
            spelled(one, shape) if one else NOTHING_TIMED,
            time,
            longer(shape),
            shape.outcome if len(shape.best) < 2 else f"{shape.outcome} of {len(shape.best)}",
            f"{sum(c.time_us is not None for c in shape.choices)} of {len(shape.choices)}",
            "–" if shape.layers is None else with_unit(shape.layers, "layers"),
            slowest(shape),
        ]
        for shape, one, time in zip(shapes, chosen, took, strict=True)
    ]
    head = ["shape", "take", f"its time, {unit}", "the default takes", "outcome"]
    return [*head, "choices", "plan() break-even", "slowest"], rows


def taken(shape: record.AdvisedShape) -> str:
    """What to take: "default", or what is set and to what, with its time."""
    chosen = shape.choice(shape.advised)
    if chosen is None:
        return NOTHING_TIMED
    return f"{spelled(chosen, shape)}, {micro(chosen.time_us)}"


def slowest(shape: record.AdvisedShape) -> str:
    """The slowest choice, and how much longer it takes than the leader."""
    timed = [one for one in shape.choices if one.fate == "slower" and one.behind]
    if not timed:
        return MISSING
    last = max(timed, key=lambda one: one.behind.estimate if one.behind else 0.0)
    assert last.behind is not None
    return f"{spelled(last, shape)}: {between(last.behind)}"


def departing(choice: record.AdvisedChoice, shape: record.AdvisedShape) -> str:
    """A choice by where it departs from the default: "cores=tensor backend=fa2"; "default"."""
    words = [f"{n}={v}" for n, v in choice.settings.items() if shape.params.get(n) != v]
    return " ".join(words) or "default"


def spelled(choice: record.AdvisedChoice, shape: record.AdvisedShape) -> str:
    """The same with what FlashInfer makes of it, where that could be asked for as well: "default (backend auto = fa3)"."""
    made = [f"{name} {choice.settings[name]} = {v}" for name, v in choice.resolved.items()]
    return departing(choice, shape) + (f" ({', '.join(made)})" if made else "")


def longer(shape: record.AdvisedShape) -> str:
    """How much longer the default takes; of what was recorded apart from each other without an interval."""
    if shape.advised == shape.shape:
        return MISSING
    if shape.regret is not None:
        return between(shape.regret)
    chosen, default = shape.choice(shape.advised), shape.choice(shape.shape)
    if not (chosen and default and chosen.time_us and default.time_us):
        return "not timed"
    return f"{100 * (default.time_us / chosen.time_us - 1):+.1f} %, no interval"


def between(found: race.Relative) -> str:
    """+1.2 % (+0.8 to +1.6); from twice the time on 3.9 times (3.8 to 4.0)."""
    if found.estimate >= 1:
        return f"{1 + found.estimate:.2f} times ({1 + found.low:.2f} to {1 + found.high:.2f})"
    return measure.with_interval(found)


def sure(advice: record.Advice) -> str:
    """How sure the words of an advice are, and what matters."""
    of = "all shapes together" if advice.recording is None else "each comparison"
    return _sure(advice.alpha, f"{of}, by {advice.metric}", advice.effect)


def ruled(rule: record.Heuristic) -> str:
    """A heuristic with where it holds, or where it does not."""
    if rule.where:
        held = with_unit(len(rule.holds), "shapes")
        return f"at all {held} with {rule.where}: {rule.rule}; not at {', '.join(rule.fails)}"
    if not rule.fails:
        return f"at all {with_unit(len(rule.holds), 'shapes')} that are conclusive: {rule.rule}"
    held = f"{len(rule.holds)} of {with_unit(len(rule.holds) + len(rule.fails), 'shapes')}"
    return f"at {held} that are conclusive: {rule.rule}; not at {', '.join(rule.fails)}"


def _failed(shapes: Sequence[record.AdvisedShape]) -> Iterator[str]:
    """Why choices were not timed: what went wrong with its first place, then what cannot be, the most frequent first."""
    choices = [one for shape in shapes for one in shape.choices]
    for outcome in ("wrong", "error", "lost"):
        places: dict[str, list[str]] = {}
        for one in choices:
            if one.fate == outcome:
                places.setdefault(str(one.reason), []).append(one.point)
        for reason, points in places.items():
            more = f" and {with_unit(len(points) - 1, 'more choices')}" if points[1:] else ""
            yield f"{points[0]}{more}: {outcome}: {reason}"
    skipped = Counter(str(one.reason) for one in choices if one.fate == "skipped")
    for reason, count in skipped.most_common(REASONS):
        yield f"not here, {with_unit(count, 'choices')}: {reason}"
    if (rest := sum(skipped.values()) - sum(n for _, n in skipped.most_common(REASONS))) > 0:
        yield f"not here, for other reasons: {with_unit(rest, 'choices')} (--out has them)"


MOST = 8  # variants of a shape that the text has
WORDS = {"winner": "winner", "default": "default stands", "undecided": "undecided", "none": "none"}


def search_text(search: record.Search) -> str:
    """The tunables, a row of each shape, how its variants fared, and what could not be timed."""
    left = search.beyond_budget
    beyond = f", {with_unit(left, 'more')} beyond the budget" if left else ""
    lines = [f"{search.target}: {_where(search)}", *map(_tunable, search.knobs)]
    lines += [f"{with_unit(len(search.candidates), 'variants')} tried{beyond}", ""]
    unit, took = in_one_unit([shape.default_us for shape in search.shapes])
    head = [
        "shape",
        f"default, {unit}",
        "best",
        "best against it, fresh inputs",
        "found",
        "the default costs",
    ]
    rows = [
        (
            shape.shape,
            time,
            shape.candidate or MISSING,
            between(shape.confirmed.change) if shape.confirmed else MISSING,
            WORDS[shape.found],
            between(shape.price) if shape.price else MISSING,
        )
        for shape, time in zip(search.shapes, took, strict=True)
    ]
    lines += [aligned(head, rows, left=1).rstrip(), ""]
    lines += [_sure(search.alpha, "all winners together", search.effect)]
    lines += [f"{shape.shape}: {shape.reason}" for shape in search.shapes if shape.reason]
    lines += [f"{one.name}: {one.reason}" for one in search.candidates if one.reason]
    for shape in search.shapes:
        lines += _fared(shape)
    return "\n".join(lines) + "\n"


def _where(found: record.Advice | record.Search) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items() if value)
    return f"{found.gpu or 'unknown GPU'}; {versions}; {found.date or 'undated'}"


def _sure(alpha: float, of: str, effect: float) -> str:
    """How sure the words of a record are, and what matters."""
    return f"{100 * (1 - alpha):g} % confidence over {of}; minimum effect {100 * effect:g} %"


def _tunable(one: record.SearchedTunable) -> str:
    if one.missing:
        return f"  {one.name}: not there in this FlashInfer: {one.missing}"
    where = f" ({', '.join(one.places)})" if one.places else ""
    return f"  {one.name}: {one.default}, tried {', '.join(map(str, one.values))}{where}"


def _fared(shape: record.SearchedShape) -> Iterator[str]:
    """How the variants of a shape fared, the fastest first."""
    timed = [(one, one.against) for one in shape.candidates if one.against is not None]
    unit, took = in_one_unit([one.time_us for one, _ in timed])
    rows = [
        (one.name, time, between(against), str(one.rounds), one.fate)
        for (one, against), time in zip(timed, took, strict=True)
    ]
    if rows:
        head = (shape.shape, f"time, {unit}", "against the default", "rounds", "")
        yield from ["", aligned(head, rows[:MOST]).rstrip()]
    if len(rows) > MOST:
        yield f"and {with_unit(len(rows) - MOST, 'more variants')} (--out has them)"
    for one in shape.candidates:
        if one.against is None and one.reason:
            yield f"{one.name}: {one.fate}: {one.reason}"
