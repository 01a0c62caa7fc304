"""The measurement loop of base and variant on a GPU: every point is held against its reference, then timed in turns.

A variant that is wrong anywhere is timed nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from ncuflow.race.record import CheckedCase, MeasuredPoint, Outcome, Relative, TrialTiming
from ncuflow.race.rounds import LOOKS, Interval, look
from ncuflow.race.sides import BaseError, LostError, Side, SideError, burst, of_base
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

Tell = Callable[[str], None]


@dataclass
class Sides:
    """control: the base once more, in a process of its own, which says what the same code differs by (the A/A control)."""

    base: Side
    change: Side
    control: Side
    limit_s: float  # of one request


def cases(target: Target, point: Planned) -> list[Planned]:
    """The point, and those at the edges of what its kernel takes, each once."""
    sets = [dict(point.params), *({**point.params, **edge} for edge in target.edges(point.params))]
    found = {target.point_id(params): params for params in sets}
    return [Planned(name, target.name, params) for name, params in found.items()]


# --- is it right? -----------------------------------------------------------------------------


def checked(
    sides: Sides, target: Target, points: Sequence[Planned], tell: Tell
) -> list[MeasuredPoint]:
    """Each point with its cases, outcome "unchecked" where all of them are right.

    After a variant that hung, or lost the GPU, the points that follow are not tried.
    """
    found: list[MeasuredPoint] = []
    seen: dict[str, CheckedCase] = {}
    lost = None
    for point in points:
        trial = MeasuredPoint(point=point.id, outcome="unchecked")
        found.append(trial)
        if lost is not None:
            trial.reason = f"the trial ended at {lost}"
            continue
        tell(f"{point.id}: is it right?")
        for case in cases(target, point):
            if case.id not in seen:
                seen[case.id] = _case(sides, case)
            trial.cases.append(seen[case.id])
            if seen[case.id].status == "lost":
                lost = case.id
                break
        _conclude(trial)
    return found


def _case(sides: Sides, case: Planned) -> CheckedCase:
    """How the variant does at a case: in the plain launch, then from a side stream and with extreme inputs. Where it fails the
    base is asked as well: what that cannot do (an API that takes no stream, what comes of infinities) is not the variant's."""
    found = _check(sides.change, case, sides.limit_s)
    if found.status not in ("ok", "wrong", "error"):
        return found
    if found.status == "ok":
        other = _check_on_side_stream(sides.change, case, sides.limit_s)
        if not other or any(wrong.status == "lost" for wrong in other.values()):
            return next(iter(other.values()), found)
        theirs = _right(case, _check_on_side_stream(sides.base, case, sides.limit_s))
        return next((wrong for how, wrong in other.items() if how not in theirs), found)
    base = _right(case, {"": _check(sides.base, case, sides.limit_s)})[""]
    if base.status == "ok":
        return found
    reason = f"the base is no better: {base.reason}"
    return CheckedCase(id=case.id, status="skipped", reason=reason, check=base.check)


def _right(case: Planned, base: dict[str, CheckedCase]) -> dict[str, CheckedCase]:
    """What the base said of a case. Raises BaseError where it was lost there."""
    for found in base.values():
        if found.status == "lost":
            raise BaseError(f"{case.id}: the base: {found.reason}")
    return base


def _check_on_side_stream(side: Side, case: Planned, limit_s: float) -> dict[str, CheckedCase]:
    """What is wrong in another launch than the plain one, by how it was launched; by "" where that failed."""
    try:
        found = side.ask("side_stream", limit_s, point=case.as_dict())["wrong"]
    except SideError as error:
        return {"": _failed(case, error)}
    return {how: CheckedCase.model_validate(wrong) for how, wrong in found.items()}


def _check(side: Side, case: Planned, limit_s: float) -> CheckedCase:
    try:
        return CheckedCase.model_validate(side.ask("check", limit_s, point=case.as_dict()))
    except SideError as error:
        return _failed(case, error)


def _failed(case: Planned, error: SideError) -> CheckedCase:
    return CheckedCase(id=case.id, status=failure(error), reason=str(error))


def failure(error: SideError) -> Any:
    """The outcome of what failed."""
    return "lost" if isinstance(error, LostError) else "error"


def _conclude(trial: MeasuredPoint) -> None:
    """The outcome of a point of which a case is not right. An edge that is left out leaves the others."""
    for status in ("lost", "wrong", "error"):
        bad = next((case for case in trial.cases if case.status == status), None)
        if bad is not None:
            trial.outcome, trial.reason = status, f"{bad.id}: {bad.reason}"
            return
    if trial.cases[0].status == "skipped":
        trial.outcome, trial.reason = "skipped", trial.cases[0].reason


# --- is it faster? ----------------------------------------------------------------------------


def timed(
    sides: Sides,
    points: Sequence[Planned],
    trials: Sequence[MeasuredPoint],
    effect: float,
    tell: Tell,
) -> None:
    """Time the points that are right, and note what the variant does to each, if all of them are."""
    if any(trial.outcome in ("wrong", "error", "lost") for trial in trials):
        for trial in trials:
            if trial.outcome == "unchecked":
                trial.reason = trial.reason or "not timed: the change is wrong at another point"
        return
    ready = [(p, t) for p, t in zip(points, trials, strict=True) if t.outcome == "unchecked"]
    lost = None
    for point, trial in ready:
        if lost is not None:
            trial.reason = f"the trial ended at {lost}"
            continue
        try:
            trial.outcome, trial.timing = in_turns(sides, point, point, effect, len(ready), tell)
        except SideError as error:
            trial.outcome, trial.reason = failure(error), f"{point.id}: {error}"
            lost = point.id if trial.outcome == "lost" else None


def in_turns(
    sides: Sides, point: Planned, own: Planned, effect: float, points: int, tell: Tell, **words: Any
) -> tuple[Outcome, TrialTiming]:
    """A point of the base and the variant's own in turns. points: of the run, among which the chance of a false word is
    divided; words: of the request that opens them."""
    named = {"base": sides.base, "change": sides.change, "control": sides.control}

    def ask(name: str, do: str, **words: Any) -> None:
        with nullcontext() if name == "change" else of_base():
            named[name].ask(do, sides.limit_s, **words)

    for name in named:
        ask(name, "open", point=(own if name == "change" else point).as_dict(), **words)
    times: dict[str, list[float]] = defaultdict(list)
    judged, throttled, rounds = None, 0, 0
    while judged is None or not judged.final:
        throttled += _round(sides, named, times, rounds % 2 == 1)
        rounds += 1
        change, noise = (
            [time / base for time, base in zip(times[name], times["base"], strict=True)]
            for name in ("change", "control")
        )
        judged = look(change, noise, effect, points) or judged
        if rounds in LOOKS and judged is not None:
            tell(f"{point.id}: {rounds} rounds: {with_interval(judged.change)}")
    for name in named:
        ask(name, "close")
    return judged.verdict, TrialTiming(
        base_us=median(times["base"]),
        change_us=median(times["change"]),
        change=judged.change.relative,
        noise=judged.noise.relative,
        rounds=rounds,
        throttled=throttled,
    )


def _round(
    sides: Sides, named: dict[str, Side], times: dict[str, list[float]], turned: bool
) -> int:
    """One round, there and back; in every other one the base begins in the middle. How many bursts were throttled."""
    there = [*named][::-1] if turned else [*named]
    found: dict[str, list[float]] = defaultdict(list)
    throttled = 0
    for name in [*there, *there[::-1]]:
        with nullcontext() if name == "change" else of_base():
            time_us, late = burst(named[name], sides.limit_s)
        found[name].append(time_us)
        throttled += late
    for name, both in found.items():
        times[name].append(fmean(both))
    return throttled


def with_interval(found: Interval | Relative) -> str:
    """+1.2 % (+0.8 to +1.6)"""
    return f"{100 * found.estimate:+z.1f} % ({100 * found.low:+z.1f} to {100 * found.high:+z.1f})"
