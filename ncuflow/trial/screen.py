"""What a trial says, on one screen; and of several, which is fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from ncuflow.format import aligned, micro, with_unit
from ncuflow.trial import course
from ncuflow.trial.record import (
    WORST,
    CheckedCase,
    KernelTrial,
    ModuleTrial,
    PointTrial,
    Trial,
    TrialTiming,
)

KERNELS, OPCODES = 6, 5  # that the screen has: kernels whose code differs, and opcodes of each
FILES = 2  # of a module, those that compiled longest
CAUSES, PARTS = 1, 3  # of a point, and of a cause
HEAD = ("point", "base", "change", "difference", "base against itself", "rounds", "")
CODE = {
    "registers": "registers",
    "shared_bytes": "static shared memory",
    "stack_bytes": "stack",
    "local_instructions": "loads and stores of local memory",
    "instructions": "instructions",
}


def screen(trial: Trial) -> str:
    """What a trial says, on one screen."""
    lines = [f"{trial.change.name} at {trial.target}: {trial.outcome}"]
    if trial.reason:
        lines.append(f"  {trial.reason}")
    anew = [module for module in trial.modules if module.compiled]
    if trial.modules:
        lines.append(f"{len(anew)} of {with_unit(len(trial.modules), 'modules')} compiled anew")
        lines += [
            f"  {module.name}: {module.why}{_alike(module)}{_took(module)}" for module in anew
        ]
        lines += _code([kernel for module in anew for kernel in module.kernels])
    if cases := {case.id: case for point in trial.points for case in point.cases}:
        right = sum(case.status == "ok" for case in cases.values())
        lines.append(f"{right} of {with_unit(len(cases), 'inputs')} right")
        lines += [f"  {told}" for case in cases.values() for told in case_lines(case)]
    if timed := [point for point in trial.points if point.timing is not None]:
        lines += [
            "",
            aligned(HEAD, [row(point) for point in timed]).rstrip(),
            f"{100 * (1 - trial.alpha):g} % sure of all points together; what matters is {100 * trial.effect:g} %",
        ]
        lines += [told for point in timed for told in reasons(point)]
        if trial.no_counters:
            lines.append(f"no counters: {trial.no_counters}")
    # What is wrong at a case was told with it; these failed, or were left, after their cases.
    apart = [p for p in trial.points if p.timing is None and all(c.status == "ok" for c in p.cases)]
    lines += [f"{point.point}: {point.outcome}: {point.reason}" for point in apart]
    return "\n".join(lines) + "\n"


def _alike(module: ModuleTrial) -> str:
    """How many of a module's kernels the change left as they were."""
    if module.same_kernels is None:
        return f" (code not compared: {module.not_compared})"
    total = module.same_kernels + len(module.kernels)
    return f"; the code of {len(module.kernels)} of {with_unit(total, 'kernels')} differs"


def _took(module: ModuleTrial) -> str:
    """How long a module was compiled, and which of its files took most of that."""
    if module.compile_s is None:
        return ""
    longest = [f"{file.name} {file.seconds:.0f} s" for file in module.files[:FILES]]
    return f"; compiled in {module.compile_s:.0f} s" + (
        f" ({', '.join(longest)})" if longest else ""
    )


def _code(kernels: Sequence[KernelTrial]) -> list[str]:
    """What differs in compiled code, a line per kernel."""
    lines = [f"  {kernel.name}: {', '.join(differences(kernel))}" for kernel in kernels[:KERNELS]]
    left = len(kernels) - KERNELS
    return (
        [*lines, f"  and {with_unit(left, 'kernels')} more (--json has them)"]
        if left > 0
        else lines
    )


def differences(kernel: KernelTrial) -> Iterator[str]:
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


def case_lines(case: CheckedCase) -> list[str]:
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


def reasons(point: PointTrial) -> Iterator[str]:
    """What explains a difference of times: its first cause, and the parts of that which add most."""
    if point.no_counters:
        yield f"{point.point}: no counters: {point.no_counters}"
    for cause in point.causes[:CAUSES]:
        sides = f" ({cause.base} → {cause.change})" if cause.base and cause.change else ""
        adds = "" if cause.delta_us is None else f" {cause.delta_us:+.3g} µs"
        yield f"{point.point}:{adds} {cause.what}{sides}"
        parts = [part for part in cause.parts if part.base is not None]
        most = sorted(parts, key=lambda part: -abs(part.delta_us))[:PARTS]
        if most:
            yield "  " + ", ".join(f"{part.delta_us:+.3g} µs {part.what}" for part in most)


def row(point: PointTrial) -> list[str]:
    """The times of a point, as a line of a table has them."""
    timing = point.timing
    assert timing is not None
    late = f", {timing.throttled} bursts throttled" if timing.throttled else ""
    return [
        point.point,
        micro(timing.base_us),
        micro(timing.change_us),
        course.spelled(timing.change),
        course.spelled(timing.noise),
        str(timing.rounds),
        point.outcome + late,
    ]


def ranked(trials: Sequence[Trial]) -> list[tuple[int | None, Trial]]:
    """Trials with their ranks, the fastest change first; what was not timed at every point has none, and comes last.

    A change has the rank of the one before it unless an interval at some point tells it from the first of that rank.
    """
    timed = sorted((trial for trial in trials if _times(trial)), key=_mean)
    found: list[tuple[int | None, Trial]] = []
    first = None
    for place, trial in enumerate(timed, start=1):
        if first is None or _apart(first[1], trial):
            first = (place, trial)
        found.append((first[0], trial))
    rest = [trial for trial in trials if not _times(trial)]
    order = [*WORST[::-1], "not compiled"]
    return found + [(None, t) for t in sorted(rest, key=lambda trial: order.index(trial.outcome))]


def _times(trial: Trial) -> dict[str, TrialTiming]:
    """The times of a trial by point; none unless every point was timed."""
    found = {point.point: point.timing for point in trial.points if point.timing is not None}
    return found if len(found) == len(trial.points) else {}


def mean(trial: Trial) -> float | None:
    """Geometric mean over points of the change's time over the base's; None unless every point was timed."""
    return _mean(trial) if _times(trial) else None


def _mean(trial: Trial) -> float:
    """Geometric mean over points of the change's time over the base's."""
    return geometric_mean(1 + timing.change.estimate for timing in _times(trial).values())


def _apart(one: Trial, other: Trial) -> bool:
    """Whether the intervals of two changes lie apart at some point."""
    sides = _times(one), _times(other)
    pairs = [(sides[0][point].change, sides[1][point].change) for point in sides[0]]
    return any(a.high < b.low or b.high < a.low for a, b in pairs)


def ranking(trials: Sequence[Trial]) -> str:
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
