"""The measurement loop of base and variant on a GPU: every point is held against its reference, then timed in turns.

A variant that is wrong anywhere is timed nowhere.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import exp, log, log1p
from statistics import linear_regression, median
from typing import Any

from ncuflow.io import JsonObject
from ncuflow.race import record
from ncuflow.race.rounds import ALPHA, LOOKS, Interval, Judged, interval, look
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
    core: int | None = None  # that host times are taken on; None: they are not
    # A process that has both FlashInfers, where their host times are taken; None: each has its own.
    together: Side | None = None

    def ask(self, name: str, do: str, /, **words: Any) -> JsonObject:
        """The answer of a side by its name. Raises BaseError where one of the base's fails."""
        with nullcontext() if name == "change" else of_base():
            found: JsonObject = getattr(self, name).ask(do, self.limit_s, **words)
            return found

    def burst(self, name: str) -> tuple[float, bool]:
        """As of a side by its name."""
        with nullcontext() if name == "change" else of_base():
            return burst(getattr(self, name), self.limit_s)


def cases(target: Target, point: Planned) -> list[Planned]:
    """The point, and those at the edges of what its kernel takes, each once."""
    sets = [dict(point.params), *({**point.params, **edge} for edge in target.edges(point.params))]
    found = {target.point_id(params): params for params in sets}
    return [Planned(name, target.name, params) for name, params in found.items()]


# --- is it right? -----------------------------------------------------------------------------


def checked(
    sides: Sides,
    target: Target,
    points: Sequence[Planned],
    tell: Tell,
    seen: dict[str, record.CheckedCase] | None = None,
) -> list[record.MeasuredPoint]:
    """Each point with its cases, outcome "unchecked" where all of them are right. seen: cases that were checked before.

    After a variant that hung, or lost the GPU, the points that follow are not tried.
    """
    found: list[record.MeasuredPoint] = []
    seen = {} if seen is None else seen
    lost = None
    for point in points:
        trial = record.MeasuredPoint(point=point.id, outcome="unchecked")
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


def _case(sides: Sides, case: Planned) -> record.CheckedCase:
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
    return record.CheckedCase(id=case.id, status="skipped", reason=reason, check=base.check)


def _right(case: Planned, base: dict[str, record.CheckedCase]) -> dict[str, record.CheckedCase]:
    """What the base said of a case. Raises BaseError where it was lost there."""
    for found in base.values():
        if found.status == "lost":
            raise BaseError(f"{case.id}: the base: {found.reason}")
    return base


def _check_on_side_stream(
    side: Side, case: Planned, limit_s: float
) -> dict[str, record.CheckedCase]:
    """What is wrong in another launch than the plain one, by how it was launched; by "" where that failed."""
    try:
        found = side.ask("side_stream", limit_s, point=case.as_dict())["wrong"]
    except SideError as error:
        return {"": _failed(case, error)}
    return {how: record.CheckedCase.model_validate(wrong) for how, wrong in found.items()}


def _check(side: Side, case: Planned, limit_s: float) -> record.CheckedCase:
    try:
        return record.CheckedCase.model_validate(side.ask("check", limit_s, point=case.as_dict()))
    except SideError as error:
        return _failed(case, error)


def _failed(case: Planned, error: SideError) -> record.CheckedCase:
    return record.CheckedCase(id=case.id, status=failure(error), reason=str(error))


def failure(error: SideError) -> Any:
    """The outcome of what failed."""
    return "lost" if isinstance(error, LostError) else "error"


def _conclude(trial: record.MeasuredPoint) -> None:
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
    trials: Sequence[record.MeasuredPoint],
    effect: float,
    tell: Tell,
    of: int = 0,
    **words: Any,
) -> None:
    """Time the points that are right, and note what the variant does to each, if all of them are. of: points of the run, where
    these are not all."""
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
            found = in_turns(sides, point, point, effect, of or len(ready), tell, **words)
            trial.outcome, trial.timing = found.outcome, found.timing
            trial.call, trial.plan = found.call, found.plan
        except SideError as error:
            trial.outcome, trial.reason = failure(error), f"{point.id}: {error}"
            lost = point.id if trial.outcome == "lost" else None


HOST_EFFECT = 0.03  # of host times in one process, of 1
# Of host times in several: by up to 7 % two processes of the same code differed for good, of 50 pairs on an H200.
HOST_APART = 0.1
# The order of processes in a round: each comes after each of the others, and never after itself, which warms the caches.
HOST_ORDER = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
HOST_LOOKS = (*LOOKS, 80, 120, 180)
# Two processes of the same code lie apart for good, however long their kernel takes: by up to 0.7 µs in 105 of 106 pairs on
# H200s. It is no difference of short kernels. Nor is what a short call of the host differs by: up to 0.2 µs in one process.
APART_US, HOST_APART_US = 0.8, 0.3
CALL, PLAN, GPU = "call", "plan", "gpu"
SIDES = ("base", "change", "control")


@dataclass
class Series:
    """One kind of time of a point: by side a value a round, and what was last made of them. points: of the run; least_noise:
    as of `look`; apart_us: that two sides of the same code may lie apart, µs."""

    effect: float
    points: int
    least_noise: float = 0.0
    looks: tuple[int, ...] = LOOKS
    apart_us: float = 0.0
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    judged: Judged | None = None

    @property
    def open(self) -> bool:
        """Whether further rounds could tell more."""
        return self.judged is None or not self.judged.final

    def add(self, found: Mapping[str, Sequence[float]]) -> None:
        """A round, in which each side was timed there and back."""
        for name, both in found.items():
            self.times[name].append(median(both))
        change, noise = map(self._ratios, SIDES[1:])
        apart = self.apart_us / median(self.times["base"])
        effect, least = max(self.effect, apart), max(self.least_noise, apart)
        judged = look(change, noise, effect, self.points, least, self.looks)
        self.judged = judged or self.judged

    def _ratios(self, name: str) -> list[float]:
        """Times of a side over those of the base, round by round."""
        return [
            time / base for time, base in zip(self.times[name], self.times["base"], strict=True)
        ]

    def summary(self, alpha: float | None = None) -> JsonObject:
        """What records say of it. alpha: of all rounds that nobody looked at before; else as it was judged."""
        if alpha is not None:
            change, noise = (interval(self._ratios(name), alpha) for name in SIDES[1:])
        else:
            assert self.judged is not None
            change, noise = self.judged.change, self.judged.noise
        return {
            "base_us": median(self.times["base"]),
            "change_us": median(self.times["change"]),
            "change": change.relative,
            "noise": noise.relative,
            "rounds": len(self.times["base"]),
        }

    def host(self) -> record.HostTiming:
        """As a time of the host."""
        assert self.judged is not None
        return record.HostTiming(**self.summary(), effect=self.effect, outcome=self.judged.verdict)


def in_turns(
    sides: Sides, point: Planned, own: Planned, effect: float, points: int, tell: Tell, **words: Any
) -> record.MeasuredPoint:
    """A point of the base and the variant's own in turns. points: of the run, among which the chance of a false word is
    divided, for each kind of time; words: of the request that opens them."""
    planned = {name: (own if name == "change" else point).as_dict() for name in SIDES}
    for name in SIDES:
        sides.ask(name, "open", point=planned[name], **words)
    sides = _together(sides, planned, tell)
    kinds = {GPU: Series(effect, points, apart_us=APART_US)}
    if sides.core is not None:
        # One control is one draw of how far two processes, or two launches, lie apart.
        of_host = (
            (HOST_EFFECT, points, HOST_EFFECT / 2, HOST_LOOKS, HOST_APART_US)
            if sides.together
            else (HOST_APART, points, HOST_APART, HOST_LOOKS, HOST_APART_US)
        )
        kinds |= {CALL: Series(*of_host), PLAN: Series(*of_host)}
    throttled = rounds = 0
    while waiting := [kind for kind, one in kinds.items() if one.open]:
        found, late = _round(sides, waiting, rounds % 2 == 1)
        throttled, rounds = throttled + late, rounds + 1
        for kind in waiting:
            if kind in found:
                kinds[kind].add(found[kind])
            else:  # a target without plan()
                del kinds[kind]
        judged = kinds[GPU].judged
        if rounds in LOOKS and judged is not None and GPU in waiting:
            tell(f"{point.id}: {rounds} rounds: {with_interval(judged.change)}")
    for name in SIDES:
        sides.ask(name, "close")
    if sides.together is not None:
        with suppress(SideError):
            sides.together.ask("close", sides.limit_s)
    judged = kinds[GPU].judged
    assert judged is not None
    call, plan = (kinds[kind].host() if kind in kinds else None for kind in (CALL, PLAN))
    timing = record.TrialTiming(**kinds[GPU].summary(), throttled=throttled)
    return record.MeasuredPoint(
        point=point.id, outcome=judged.verdict, timing=timing, call=call, plan=plan
    )


def _together(sides: Sides, planned: Mapping[str, JsonObject], tell: Tell) -> Sides:
    """Prepare a point of both in the process that has both; without it where that cannot be."""
    if sides.together is None:
        return sides
    try:
        for name, point in planned.items():
            words = {"name": name, "point": point, "checked": False}
            made = sides.together.ask("prepare", sides.limit_s, **words)
            if made["status"] != "ok":
                raise SideError(made["reason"])
    except SideError as error:
        tell(f"host times in processes of their own: {error}")
        return replace(sides, together=None)
    return sides


BATCHES = (1, 4, 16, 64, 256, 1024)  # numbers of sequences that plan() is timed at
CURVE_ROUNDS = 13


def plan_curve(sides: Sides, points: Mapping[int, Planned]) -> record.PlanCurve | None:
    """plan() of points by their number of sequences, in turns; None of a target that has none. Raises SideError or BaseError
    where one cannot be prepared."""
    for name in SIDES:
        for batch, point in points.items():
            made = sides.ask(name, "prepare", name=f"{batch}", point=point.as_dict(), checked=False)
            if made["status"] != "ok":
                raise SideError(f"{point.id}: {made['reason']}")
    kinds = {batch: Series(HOST_EFFECT, len(points)) for batch in points}
    for number in range(CURVE_ROUNDS):
        for batch, series in kinds.items():
            found = _round(sides, [PLAN], number % 2 == 1, name=f"{batch}")[0]
            if PLAN not in found:
                return None
            series.add(found[PLAN])
    for name in SIDES:
        sides.ask(name, "close")
    alpha = ALPHA / len(points)
    slopes = {name: _exponent({b: s.times[name] for b, s in kinds.items()}) for name in SIDES}
    return record.PlanCurve(
        points=[
            record.PlanAt(batch=b, timing=record.TurnsTiming(**series.summary(alpha)))
            for b, series in kinds.items()
        ],
        base=slopes["base"],
        change=slopes["change"],
    )


def _exponent(times: Mapping[int, Sequence[float]]) -> record.Exponent:
    """How times grow with a size, of rounds that each had all sizes."""
    sizes = [log(size) for size in times]
    rounds = zip(*times.values(), strict=True)
    slopes = [linear_regression(sizes, [log(time) for time in one]).slope for one in rounds]
    found = interval([exp(slope) for slope in slopes], ALPHA)
    bounds = (found.estimate, found.low, found.high)
    return record.Exponent(**dict(zip(("slope", "low", "high"), map(log1p, bounds), strict=True)))


Round = dict[str, dict[str, list[float]]]  # by kind and side, there and back


def _round(sides: Sides, kinds: Sequence[str], turned: bool, **words: Any) -> tuple[Round, int]:
    """One round, there and back; in every other one the base begins in the middle. And how many bursts were throttled.

    Host times follow the launches, all of them within milliseconds: what else the host does falls on each alike. It only adds
    to what the code takes, so the quarter of the calls that it added least to counts.
    """
    there = SIDES[::-1] if turned else SIDES
    both = [*there, *there[::-1]]
    found: Round = defaultdict(lambda: defaultdict(list))
    throttled = 0
    for name in both if GPU in kinds else ():
        time_us, late = sides.burst(name)
        found[GPU][name].append(time_us)
        throttled += late
    for kind, name, times in _host(sides, turned, **words) if {CALL, PLAN} & {*kinds} else ():
        if kind in kinds and times:
            found[kind][name].append(sorted(times)[len(times) // 4])
    return found, throttled


def _host(sides: Sides, turned: bool, **words: Any) -> Iterator[tuple[str, str, list[float]]]:
    """(Kind, side, µs of its calls) of one round: in the process that has both, or in each side's own. Nothing where that which
    has both is lost: it says nothing of the change."""
    if sides.together is not None:
        with suppress(SideError):
            found = sides.together.ask("turns", sides.limit_s, names=SIDES, core=sides.core)
            yield from ((kind, name, found[kind][name]) for kind in found for name in SIDES)
        return
    order = [SIDES[place] for places in HOST_ORDER for place in places]
    for name in order[:: -1 if turned else 1]:
        told = sides.ask(name, "host", core=sides.core, **words)
        yield from ((kind, name, times) for kind, times in told.items())


def with_interval(found: Interval | record.Relative) -> str:
    """+1.2 % (+0.8 to +1.6)"""
    return f"{100 * found.estimate:+z.1f} % ({100 * found.low:+z.1f} to {100 * found.high:+z.1f})"
