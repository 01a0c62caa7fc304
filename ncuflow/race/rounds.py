"""A race of many variants: rounds in turns, and after some of them who is surely slower than the leader leaves.

A round times every variant that is still in it once. Ratios of two variants are taken within a round, so a drift falls on
both. The default is in the race twice (an A/A control): what it differs by from itself, another launch of the same kernel
with buffers of its own, is no difference of variants, nor is half of the effect that matters. The chance of a false word is
divided among looks, pairs of variants and shapes (Bonferroni), so it holds for the whole run, whoever leads.

Successive halving is a race of few rounds for many variants, and of many for those that are left. After each rung, which has
twice the rounds of the one before, the slower half leaves; but who is not surely slower than the leader stays, and gets the
rounds of the next rung, so noise removes no variant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import expm1, log, sqrt
from statistics import fmean, median, stdev
from typing import Literal

from ncuflow.race import EFFECT, record, sides

ALPHA = 0.05  # of a run: the chance that it calls a change slower or faster that is neither
LOOKS = (6, 9, 13, 19, 28, 40)  # rounds after which is looked
FINE = 0.1  # of a large effect, that its interval may be wide to either side
Verdict = Literal["faster", "same", "slower", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A relative change of the time, of 1, and the bounds between which it lies."""

    estimate: float
    low: float
    high: float

    @property
    def relative(self) -> record.Relative:
        """As records have it."""
        return record.Relative(estimate=self.estimate, low=self.low, high=self.high)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def farthest(self) -> float:
        """The largest change, to either side, that is within the bounds."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Judged:
    """What rounds say. final: no further round is needed; noise: the base held against itself."""

    verdict: Verdict
    change: Interval
    noise: Interval
    final: bool


def look(
    change: Sequence[float],
    noise: Sequence[float],
    effect: float,
    points: int,
    least_noise: float = 0.0,
    looks: Sequence[int] = LOOKS,
) -> Judged | None:
    """The judgement after so many rounds; None where this number of them is not looked at.

    change, noise: ratios of times of each round; effect: the relative change that matters, of 1; points: how many are
    tested in the run; least_noise: what the same code may differ by whatever the base says of itself; looks: numbers of rounds.
    """
    if len(change) not in looks:
        return None
    alpha = ALPHA / (len(looks) * points)
    found, against_itself = interval(change, alpha), interval(noise, alpha)
    # The change runs in a process of its own, as the base does twice: what these differ by is not the change's.
    verdict = judge(found, effect, max(least_noise, against_itself.farthest))
    narrow = found.half <= max(effect / 2, FINE * abs(found.estimate))
    final = (verdict != "undecided" and narrow) or len(change) == looks[-1]
    return Judged(verdict, found, against_itself, final)


def judge(found: Interval, effect: float, noise: float = 0.0) -> Verdict:
    """slower: longer for sure by more than the base differs from itself, and perhaps by the effect; same: less than the
    effect to either side for sure."""
    if found.farthest < effect:
        return "same"
    if found.low > noise:
        return "slower"
    return "faster" if found.high < -noise else "undecided"


def interval(ratios: Sequence[float], alpha: float) -> Interval:
    """Student's interval of the mean of the logarithms. Raises StatisticsError for less than two ratios."""
    logs = [log(ratio) for ratio in ratios]
    middle = fmean(logs)
    half = _quantile(len(logs) - 1, alpha) * stdev(logs) / sqrt(len(logs))
    return Interval(expm1(middle), expm1(middle - half), expm1(middle + half))


@cache
def _quantile(freedom: int, alpha: float) -> float:
    from scipy import stats  # a second of its own

    return float(stats.t.ppf(1 - alpha / 2, freedom))


AA = "#control"  # behind the name of the default's A/A control
Decision = Literal["winner", "tie", "undecided"]


@dataclass(frozen=True)
class RaceOutcome:
    """How a variant came out. behind: its time against the leader's of then; rounds: that it was in."""

    behind: Interval
    verdict: Verdict
    rounds: int


@dataclass
class Race:
    """The times of a shape's variants by name, µs, a value a round; ``running`` are still in it.

    default: whose control is timed as well, and which stays to the end, as what the others are held against; None where it
    cannot run. shapes: races of the run; effect: of 1.
    """

    names: Sequence[str]
    default: str | None
    shapes: int = 1
    effect: float = EFFECT
    times: dict[str, list[float]] = field(default_factory=dict)
    left: dict[str, RaceOutcome] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    looks: int = 0

    def __post_init__(self) -> None:
        self.times = {name: [] for name in [*self.names, *self._control()]}

    def _control(self) -> list[str]:
        return [self.default + AA] if self.default is not None else []

    @property
    def alpha(self) -> float:
        """Of one look at one pair."""
        racers = len(self.times)
        pairs = max(1, racers * (racers - 1) // 2)
        return ALPHA / (len(LOOKS) * pairs * self.shapes)

    @property
    def rounds(self) -> int:
        return max((len(times) for times in self.times.values()), default=0)

    @property
    def running(self) -> list[str]:
        """Who is timed in the next round: the variants that nothing was decided of, and the default with its control."""
        kept = [n for n in self.names if n not in self.left and n not in self.failed]
        kept += [n for n in [self.default, *self._control()] if n and n not in self.failed]
        return list(dict.fromkeys(kept))

    @property
    def remaining(self) -> list[str]:
        """Choices that are not surely slower than another."""
        return [n for n in self.names if n not in self.left and n not in self.failed]

    @property
    def empty(self) -> bool:
        """Whether nothing is left to be told."""
        return not self.remaining

    def order(self) -> list[str]:
        """The running variants in the order of the next round: there, and back in the next, each time from another place."""
        running = self.running
        start = (self.rounds // 2) % len(running)
        turned = running[start:] + running[:start]
        return turned if self.rounds % 2 == 0 else turned[::-1]

    def add(self, found: Mapping[str, float]) -> None:
        """A whole round."""
        for name, time in found.items():
            self.times[name].append(time)

    def fail(self, name: str) -> None:
        """A variant that can no longer be timed."""
        self.failed.add(name)

    @property
    def leader(self) -> str:
        """The fastest of the remaining variants, over the rounds that all of them had."""
        return min(self.remaining, key=self.mean)

    def mean(self, name: str) -> float:
        """Of the logarithms of its times."""
        return fmean(map(log, self.times[name]))

    def against(self, name: str, base: str) -> Interval:
        """A variant's time against another's, over the rounds that both were in."""
        pairs = zip(self.times[name], self.times[base], strict=False)
        return interval([time / other for time, other in pairs], self.alpha)

    def noise(self) -> float:
        """By how much two variants may differ that are equal: as far as the default may lie from itself, and half of the effect
        at least, since two launches do so for good where their buffers lie apart."""
        control, least = self._control(), self.effect / 2
        if not control or {self.default, *control} & self.failed:
            return least
        return max(least, self.against(control[0], str(self.default)).farthest)

    def look(self, last: bool = False) -> bool:
        """Whether the race is over: looked at after LOOKS rounds, and at its end; then nothing more is looked at."""
        if not self.remaining:
            return True
        if not last and self.rounds not in LOOKS:
            return self.rounds > 1 and len(self.remaining) == 1 and not self._open()
        if self.rounds < 2:
            return last
        self._leave(self.remaining)
        return last or self.rounds >= LOOKS[-1] or not self._open()

    def _leave(self, names: Sequence[str]) -> None:
        """Those leave that are slower than the leader by more than noise."""
        noise, leader = self.noise(), self.leader
        for name in names:
            if name != leader and (behind := self.against(name, leader)).low > noise:
                self.left[name] = RaceOutcome(behind, "slower", self.rounds)

    def _open(self) -> bool:
        """Whether more rounds could tell more: some variants are neither slower nor the same, or the default's loss is
        not known to half of the effect."""
        leader = self.leader
        if any(self.verdict(name) == "undecided" for name in self.remaining if name != leader):
            return True
        if self.default in (None, leader) or self.default in self.failed:
            return False
        found = self.against(str(self.default), leader)
        return found.half > max(self.effect / 2, 0.1 * abs(found.estimate))

    def verdict(self, name: str) -> Verdict:
        """Of a variant beside the leader."""
        return judge(self.against(name, self.leader), self.effect, self.noise())

    def decision(self) -> Decision:
        """winner: all others are surely slower; tie: those that are not are the same as the leader to within the effect."""
        if len(self.remaining) == 1:
            return "winner"
        others = [name for name in self.remaining if name != self.leader]
        return "tie" if all(self.verdict(n) == "same" for n in others) else "undecided"

    def outcome(self, name: str) -> RaceOutcome | None:
        """How a variant came out; None where it was timed too little to say."""
        if name in self.left:
            return self.left[name]
        if name in self.failed or self.rounds < 2:
            return None
        if name == self.leader:
            return RaceOutcome(Interval(0.0, 0.0, 0.0), "same", len(self.times[name]))
        return RaceOutcome(
            self.against(name, self.leader), self.verdict(name), len(self.times[name])
        )

    def time_us(self, name: str) -> float | None:
        """Median over the rounds of a variant; None without one."""
        return median(self.times[name]) if self.times[name] else None


def advised(race: Race, departures: Mapping[str, int]) -> str:
    """Of the remaining variants the one to take: the default where it is among them, else the fastest of those that depart
    from it least."""
    return min(race.remaining, key=lambda name: (departures[name], race.mean(name)))


RUNGS = (6, 12, 24, 48)  # rounds after which half leaves: no more than the race looks at
assert len(RUNGS) <= len(LOOKS)


@dataclass
class Halving(Race):
    """A race whose slower half leaves after each of RUNGS, where it is surely slower."""

    @property
    def ranking(self) -> list[str]:
        """Those that are left, without the default, the fastest first."""
        left = [name for name in self.remaining if name != self.default]
        return sorted(left, key=self.mean) if self.rounds else left

    @property
    def empty(self) -> bool:
        return not self.ranking

    def look(self, last: bool = False) -> bool:
        """Whether the halving is over: one variant is left, those that are do not differ by the effect, or the rungs end."""
        if not self.ranking:
            return True
        if self.rounds not in RUNGS and not last:
            return False
        self._leave(self.ranking[(len(self.ranking) + 1) // 2 :])
        return last or self.rounds >= RUNGS[-1] or not self._apart()

    def _apart(self) -> bool:
        """Whether more rounds could tell variants from the fastest: some are neither slower nor the same for sure."""
        best, *others = self.ranking
        noise = self.noise()
        found = (judge(self.against(name, best), self.effect, noise) for name in others)
        return "undecided" in found

    def best(self, departures: Mapping[str, int]) -> list[str]:
        """The variants in the order in which to confirm them: of those that are the same as the fastest to within the effect
        the one that departs least, the other ones that are left, and who had to leave."""
        fastest, *_ = self.ranking
        same = [
            name
            for name in self.ranking
            if name == fastest or self.against(name, fastest).farthest < self.effect
        ]
        near = sorted(same, key=lambda name: departures[name])
        others = [name for name in self.ranking if name not in same]
        gone = sorted((name for name in self.left if name != self.default), key=self.mean)
        return [*near, *others, *(name for name in gone if name not in self.failed)]


def run(
    race: Race,
    burst: Callable[[str], float],
    late: Callable[[], bool],
    failed: Callable[[str, sides.SideError], None],
    after: Callable[[set[str], bool], None],
) -> None:
    """Rounds until the race is over, or it is late, which is asked for from the first look on. A round in which a variant fails
    does not count. burst: µs of a variant; failed: is told who failed; after: who left with a round, and whether that was the
    last."""
    over = race.empty
    while not over:
        known, found = set(race.running), {}
        for name in race.order():
            try:
                found[name] = burst(name)
            except sides.SideError as error:
                race.fail(name)
                failed(name, error)
                break
        else:
            race.add(found)
            over = race.look(last=race.rounds >= LOOKS[0] and late())
        after(known - set(race.running), over)
        over = over or race.empty
