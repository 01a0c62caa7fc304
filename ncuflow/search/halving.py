"""Successive halving: a race of few rounds for many candidates, and of many for those that are left.

After each rung, which has twice the rounds of the one before, the slower half of the candidates leaves; but who is not
surely slower than the leader stays, and gets the rounds of the next rung, so noise sends nobody home. The default is in it
to the end, as what the others are held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from statistics import fmean

from ncuflow.advice.racing import Race, Standing
from ncuflow.trial.sequential import LOOKS, judge

RUNGS = (6, 12, 24, 48)  # rounds after which half leaves: no more than the race looks at
assert len(RUNGS) <= len(LOOKS)


@dataclass
class Halving(Race):
    """A race whose slower half leaves after each of RUNGS, where it is surely slower."""

    @property
    def candidates(self) -> list[str]:
        """Those that are left, without the default, the fastest first."""
        left = [name for name in self.contenders if name != self.default]
        return sorted(left, key=self._mean) if self.rounds else left

    def _mean(self, name: str) -> float:
        return fmean(map(log, self.times[name]))

    def look(self, last: bool = False) -> bool:
        """Whether the halving is over: one candidate is left, those that are do not differ by the effect, or the rungs end."""
        if not self.candidates:
            return True
        if self.rounds not in RUNGS and not last:
            return False
        noise, leader = self.noise(), self.leader
        for name in self.candidates[(len(self.candidates) + 1) // 2 :]:
            behind = self.against(name, leader)
            if behind.low > noise:
                self.left[name] = Standing(behind, "slower", self.rounds)
        return last or self.rounds >= RUNGS[-1] or not self._apart()

    def _apart(self) -> bool:
        """Whether more rounds could tell candidates from the fastest: some are neither slower nor the same for sure."""
        best, *others = self.candidates
        noise = self.noise()
        found = (judge(self.against(name, best), self.effect, noise) for name in others)
        return "undecided" in found

    def best(self, departures: Mapping[str, int]) -> list[str]:
        """The candidates in the order in which to confirm them: of those that are the same as the fastest to within the effect
        the one that departs least, the other ones that are left, and who had to leave."""
        fastest, *_ = self.candidates
        same = [
            name
            for name in self.candidates
            if name == fastest or self.against(name, fastest).farthest < self.effect
        ]
        near = sorted(same, key=lambda name: departures[name])
        others = [name for name in self.candidates if name not in same]
        gone = sorted((name for name in self.left if name != self.default), key=self._mean)
        return [*near, *others, *(name for name in gone if name not in self.failed)]
