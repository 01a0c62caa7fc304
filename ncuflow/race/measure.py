"""The measurement loop of base and variant on a GPU: every point is held against its reference, then timed in turns.

A variant that is wrong anywhere is timed nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from ncuflow.race.record import CheckedCase, MeasuredPoint, Outcome, Relative, TrialTiming
from ncuflow.race.sequential import LOOKS, Interval, Judged, look
from ncuflow.race.sides import Answer, LostError, Side, SideError
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

Tell = Callable[[str], None]


class BaseError(RuntimeError):
    """What is installed cannot be measured: nothing can be said of a change of it."""


@dataclass
class Sides:
    """again: the base once more, in a process of its own, which says what the same code differs by."""

    base: Side
    change: Side
    again: Side
    limit_s: float  # of one request


def cases(target: Target, point: Planned) -> list[Planned]:
    """The point, and those at the edges of what its kernel takes, each once."""
    sets = [dict(point.params), *({**point.params, **edge} for edge in target.edges(point.params))]
    found = {target.point_id(params): params for params in sets}
    return [Planned(name, target.name, params) for name, params in found.items()]


def checked(
    sides: Sides, target: Target, points: Sequence[Planned], tell: Tell
) -> list[MeasuredPoint]:
    """Each point with its cases, outcome "unchecked" where all of them are right.

    After a change that hung, or lost the GPU, the points that follow are not tried.
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
    """How the change does at a case. Where it fails the base is asked as well: what it cannot do is not the change's."""
    found = _ask(sides.change, case, sides.limit_s)
    if found.status == "ok":
        return _aside(sides, case) or found
    if found.status not in ("wrong", "error"):
        return found
    base = _ask(sides.base, case, sides.limit_s)
    if base.status == "ok":
        return found
    if base.status == "lost":
        raise BaseError(f"{case.id}: the base: {base.reason}")
    return CheckedCase(
        id=case.id,
        status="skipped",
        reason=f"the base is no better: {base.reason}",
        check=base.check,
    )


def _aside(sides: Sides, case: Planned) -> CheckedCase | None:
    """What of a case the change does wrong in another launch than the plain one; None where the base is no better there."""
    wrong = _ask_aside(sides.change, case, sides.limit_s)
    if not wrong or any(found.status == "lost" for found in wrong.values()):
        return next(iter(wrong.values()), None)
    # An API that takes no stream, and what comes of infinities there, is the base's.
    base = _ask_aside(sides.base, case, sides.limit_s)
    lost = next((found for found in base.values() if found.status == "lost"), None)
    if lost is not None:
        raise BaseError(f"{case.id}: the base: {lost.reason}")
    return next((found for how, found in wrong.items() if how not in base), None)


def _ask_aside(side: Side, case: Planned, limit_s: float) -> dict[str, CheckedCase]:
    """By how it was launched; by "" where that failed."""
    try:
        found = side.ask("aside", limit_s, point=case.as_dict())["wrong"]
    except SideError as error:
        return {"": _failed(case, error)}
    return {how: CheckedCase.model_validate(wrong) for how, wrong in found.items()}


def _ask(side: Side, case: Planned, limit_s: float) -> CheckedCase:
    try:
        return CheckedCase.model_validate(side.ask("check", limit_s, point=case.as_dict()))
    except SideError as error:
        return _failed(case, error)


def _failed(case: Planned, error: SideError) -> CheckedCase:
    lost = isinstance(error, LostError)
    return CheckedCase(id=case.id, status="lost" if lost else "error", reason=str(error))


def _conclude(trial: MeasuredPoint) -> None:
    """The outcome of a point of which a case is not right. An edge that is left out leaves the others."""
    for status in ("lost", "wrong", "error"):
        bad = next((case for case in trial.cases if case.status == status), None)
        if bad is not None:
            trial.outcome, trial.reason = status, f"{bad.id}: {bad.reason}"
            return
    if trial.cases[0].status == "skipped":
        trial.outcome, trial.reason = "skipped", trial.cases[0].reason


def timed(
    sides: Sides,
    points: Sequence[Planned],
    trials: Sequence[MeasuredPoint],
    effect: float,
    tell: Tell,
    tested: int = 0,
) -> None:
    """Time the points that are right, and note what the change does to each, if all of them are.

    tested: points of the whole run, among which the chance of a false word is divided; those of this call unless given.
    """
    ready = [p for p, trial in zip(points, trials, strict=True) if trial.outcome == "unchecked"]
    if any(trial.outcome in ("wrong", "error", "lost") for trial in trials):
        for trial in trials:
            if trial.outcome == "unchecked":
                trial.reason = trial.reason or "not timed: the change is wrong at another point"
        return
    by_id = {trial.point: trial for trial in trials}
    for number, point in enumerate(ready):
        trial = by_id[point.id]
        try:
            trial.outcome, trial.timing = _timed(sides, point, effect, tested or len(ready), tell)
        except SideError as error:
            trial.outcome = "lost" if isinstance(error, LostError) else "error"
            trial.reason = f"{point.id}: {error}"
            for other in ready[number + 1 :] if trial.outcome == "lost" else ():
                by_id[other.id].reason = f"the trial ended at {point.id}"
            if trial.outcome == "lost":
                return


@dataclass
class _Rounds:
    """What the rounds of a point gave: µs of each side, one value a round."""

    base: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    throttled: int = 0

    def ratios(self, side: list[float]) -> list[float]:
        return [time / base for time, base in zip(side, self.base, strict=True)]


def _timed(
    sides: Sides, point: Planned, effect: float, points: int, tell: Tell
) -> tuple[Outcome, TrialTiming]:
    named = {"base": sides.base, "change": sides.change, "again": sides.again}
    for name, side in named.items():
        _of(name, side, sides.limit_s, "open", point=point.as_dict())
    rounds, judged = _Rounds(), None
    while judged is None or not judged.final:
        _round(sides, rounds, len(rounds.base) % 2 == 1)
        judged = (
            look(rounds.ratios(rounds.change), rounds.ratios(rounds.again), effect, points)
            or judged
        )
        if len(rounds.base) in LOOKS and judged is not None:
            tell(f"{point.id}: {len(rounds.base)} rounds: {spelled(judged.change)}")
    for name, side in named.items():
        _of(name, side, sides.limit_s, "close")
    return judged.verdict, _timing(rounds, judged)


def _round(sides: Sides, rounds: _Rounds, turned: bool) -> None:
    """One round, there and back; in every other one the base begins in the middle."""
    there = ["base", "change", "again"]
    there = there[::-1] if turned else there
    found: dict[str, list[float]] = {name: [] for name in there}
    for name in [*there, *there[::-1]]:
        side = {"base": sides.base, "change": sides.change, "again": sides.again}[name]
        answer = _of(name, side, sides.limit_s, "burst")
        found[name].append(_positive(name, median(answer["times"])))
        rounds.throttled += bool(answer["throttled"])
    for name, times in found.items():
        getattr(rounds, name).append(fmean(times))


def _positive(name: str, time_us: float) -> float:
    """A time. Raises SideError where a launch of the change took none, BaseError where one of the base did."""
    if time_us > 0:
        return time_us
    if name == "change":
        raise SideError(f"a launch took {time_us:g} µs: it cannot have run")
    raise BaseError(f"the base: a launch took {time_us:g} µs")


def _of(name: str, side: Side, limit_s: float, do: str, **words: object) -> Answer:
    """A side's answer. Raises BaseError where it is not the change that fails."""
    try:
        return side.ask(do, limit_s, **words)
    except SideError as error:
        if name == "change":
            raise
        raise BaseError(f"the base: {error}") from None


def _timing(rounds: _Rounds, judged: Judged) -> TrialTiming:
    return TrialTiming(
        base_us=median(rounds.base),
        change_us=median(rounds.change),
        change=_relative(judged.change),
        noise=_relative(judged.noise),
        rounds=len(rounds.base),
        throttled=rounds.throttled,
    )


def _relative(found: Interval) -> Relative:
    return Relative(estimate=found.estimate, low=found.low, high=found.high)


def spelled(found: Interval | Relative) -> str:
    """+1.2 % (+0.8 to +1.6)"""
    return f"{100 * found.estimate:+z.1f} % ({100 * found.low:+z.1f} to {100 * found.high:+z.1f})"
