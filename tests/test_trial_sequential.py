"""The sequential test: its error rates hold over all looks, by simulation with fixed seeds."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ncuflow.race.rounds import ALPHA, LOOKS, Interval, Judged, interval, judge, look

RUNS = 500
EFFECT = 0.02
Rounds = Callable[[np.random.Generator], tuple[list[float], list[float]]]


def normal(spread: float, change: float = 0.0) -> Rounds:
    """Six bursts of a round, there and back, each with noise of its own."""

    def rounds(random: np.random.Generator) -> tuple[list[float], list[float]]:
        return ratios(random.normal(0, spread, (LOOKS[-1], 6)), change)

    return rounds


def ratios(noise: np.ndarray, change: float) -> tuple[list[float], list[float]]:
    times = 100 * np.exp(noise)  # base, change, control, control, change, base
    times[:, [1, 4]] *= 1 + change
    base = times[:, 0] + times[:, 5]
    changed, again = times[:, 1] + times[:, 4], times[:, 2] + times[:, 3]
    return list(changed / base), list(again / base)


def drifting(spread: float) -> Rounds:
    """The GPU gets slower by 3 % over the run."""

    def rounds(random: np.random.Generator) -> tuple[list[float], list[float]]:
        drift = np.linspace(0, 0.03, LOOKS[-1] * 6).reshape(-1, 6)
        return ratios(drift + random.normal(0, spread, drift.shape), 0.0)

    return rounds


def outliers(spread: float) -> Rounds:
    """Student's t with three degrees of freedom: now and then a burst is far off."""

    def rounds(random: np.random.Generator) -> tuple[list[float], list[float]]:
        return ratios(spread * random.standard_t(3, (LOOKS[-1], 6)), 0.0)

    return rounds


def stepping(spread: float) -> Rounds:
    """The clock jumps by 4 % at some burst."""

    def rounds(random: np.random.Generator) -> tuple[list[float], list[float]]:
        noise = random.normal(0, spread, LOOKS[-1] * 6)
        noise[random.integers(len(noise)) :] += 0.04
        return ratios(noise.reshape(-1, 6), 0.0)

    return rounds


def processes(spread: float) -> Rounds:
    """Each of the three processes is off by half a per cent of its own, as on an H100 at 15 µs."""

    def rounds(random: np.random.Generator) -> tuple[list[float], list[float]]:
        base, change, control = random.normal(0, 0.005, 3)
        own = np.array([base, change, control, control, change, base])
        return ratios(own + random.normal(0, spread, (LOOKS[-1], 6)), 0.0)

    return rounds


def ended(change: list[float], again: list[float], points: int = 1) -> tuple[Judged, int]:
    """The judgement that ends a run, and its rounds."""
    for n in range(1, LOOKS[-1] + 1):
        found = look(change[:n], again[:n], EFFECT, points)
        if found is not None and found.final:
            return found, n
    raise AssertionError("the last look is final")


def share(rounds: Rounds, *verdicts: str) -> float:
    random = np.random.default_rng(20240229)
    found = Counter(ended(*rounds(random))[0].verdict for _ in range(RUNS))
    return sum(found[verdict] for verdict in verdicts) / RUNS


@pytest.mark.parametrize(
    "rounds",
    [normal(0.002), normal(0.01), normal(0.03), normal(0.1), drifting(0.01), outliers(0.01), stepping(0.01),
     processes(0.01)],
    ids=["calm", "usual", "noisy", "wild", "drift", "outliers", "step", "processes"],
)  # fmt: skip
def test_a_change_that_does_nothing_is_rarely_called_slower_or_faster(rounds: Rounds) -> None:
    assert share(rounds, "slower", "faster") <= ALPHA


@pytest.mark.parametrize("change", [EFFECT, -EFFECT, 2 * EFFECT, -2 * EFFECT])
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_an_effect_that_matters_is_rarely_called_the_same(change: float, spread: float) -> None:
    wrong = "faster" if change > 0 else "slower"
    assert share(normal(spread, change), "same", wrong) <= ALPHA


def test_usual_noise_is_decided_and_soon() -> None:
    assert share(normal(0.005), "same") > 0.99
    assert share(normal(0.005, 0.05), "slower") > 0.99
    assert share(normal(0.005, -0.05), "faster") > 0.99
    random = np.random.default_rng(1)
    rounds = [ended(*normal(0.003)(random))[1] for _ in range(200)]
    assert np.median(rounds) == LOOKS[0]
    assert max(rounds) < LOOKS[-1]


def test_more_points_are_each_held_to_less() -> None:
    change, again = normal(0.01)(np.random.default_rng(3))
    one, ten = (look(change[:6], again[:6], EFFECT, points) for points in (1, 10))
    assert ten.change.half > one.change.half


def test_an_interval_is_of_the_ratio_of_times() -> None:
    found = interval([2.0, 2.1, 1.9, 2.05], 0.05)
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(1.011, abs=1e-3)
    inverse = interval([1 / r for r in (2.0, 2.1, 1.9, 2.05)], 0.05)
    assert inverse.low == pytest.approx(1 / (1 + found.high) - 1)


@pytest.mark.parametrize(
    ("low", "high", "noise", "verdict"),
    [
        (-0.01, 0.015, 0.0, "same"),
        (0.005, 0.015, 0.0, "same"),  # slower for sure, by less than matters
        (0.005, 0.03, 0.0, "slower"),
        (-0.03, -0.005, 0.0, "faster"),
        (-0.01, 0.03, 0.0, "undecided"),
        (0.03, 0.05, 0.04, "undecided"),  # the base differs from itself by as much
        (0.3, 0.5, 0.04, "slower"),
        (-0.05, -0.03, 0.04, "undecided"),
    ],
)
def test_what_an_interval_means(low: float, high: float, noise: float, verdict: str) -> None:
    assert judge(Interval((low + high) / 2, low, high), 0.02, noise) == verdict


def test_a_large_effect_needs_no_narrow_interval_but_a_fair_one() -> None:
    change = [1.4, 1.5, 1.45, 1.38, 1.42, 1.47]
    found = look(change, [1.0, 1.001, 0.999, 1.0, 1.001, 0.999], EFFECT, 1)
    assert found is not None and found.verdict == "slower" and not found.final
    steady = look([1.4, 1.41] * 3, [1.0, 1.001] * 3, EFFECT, 1)
    assert steady is not None and steady.final


def test_it_is_not_looked_at_between() -> None:
    assert look([1.0] * 7, [1.0] * 7, EFFECT, 1) is None
