"""Choices: pairs that differ in one parameter, and when a difference is one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from conftest import some
from results_data import entry

from ncuflow.findings import choices
from ncuflow.findings.choices import effects, summary
from ncuflow.target.contract import Choice, known, load

LAUNCHES = (("eager", 12.0), ("graph", 3.0))
CORES = Choice("cores", "", "cores", "cuda", "tensor")


def point(params, cold, samples=(), status="ok", **columns):
    name = "decode/" + "_".join(map(str, params.values()))
    found = entry(name, {}, status=status, time_cold_us=cold, **columns)
    return found | {"params": params, "samples": {"cold_us": list(samples)}}


def cores(a, b, **more):
    """Results of a point on CUDA cores and one on tensor cores, of such medians; each with launches around its own."""
    points = [
        point({"cores": kind}, us, spread(us, seed=seed))
        for seed, (kind, us) in enumerate((("cuda", a), ("tensor", b)), 1)
    ]
    return {"points": points, **more}


def spread(around, n=30, seed=1):
    generator = random.Random(seed)
    return [generator.gauss(around, 0.01 * around) for _ in range(n)]


def test_pairs_agree_in_all_other_parameters():
    results = {"points": [
        point({"batch": 1, "cores": "cuda"}, 10.0),
        point({"batch": 1, "cores": "tensor"}, 8.0),
        point({"batch": 2, "cores": "cuda"}, 20.0),
        point({"batch": 3, "cores": "tensor"}, 30.0),
        point({"batch": 2, "cores": "tensor"}, 30.0, status="wrong"),
    ]}  # fmt: skip
    (found,) = effects(CORES, results)
    assert (found.base, found.other, found.change) == (10.0, 8.0, pytest.approx(-0.2))
    assert found.fixed == (("batch", 1),)
    assert found.verdict == "not tested"  # no launches in this evidence


def test_a_ragged_layout_has_no_page_size_to_agree_in():
    layout = next(c for c in load("prefill").compared if c.key == "layout")
    results = {"points": [
        point({"layout": "paged", "page_size": 16}, 10.0),
        point({"layout": "ragged", "page_size": 1}, 9.0),
    ]}  # fmt: skip
    assert len(effects(layout, results)) == 1


@pytest.mark.parametrize(
    ("a", "b", "floor", "verdict"),
    [
        (100.0, 105.0, None, "differs"),
        (100.0, 100.0, None, "within noise"),
        # What repeated captures cannot tell apart is noise, however tight the launches.
        (100.0, 105.0, 0.06, "within noise"),
        # A threefold gain is as far from noise as a threefold loss.
        (30.0, 10.0, 0.7, "differs"),
        (10.0, 30.0, 0.7, "differs"),
        (10.0, 14.0, 0.7, "within noise"),
    ],
)
def test_a_difference_is_tested_on_the_launches_and_held_against_the_floor(a, b, floor, verdict):
    noise = {"time_cold_us": {"floor": floor}} if floor else {}
    assert effects(CORES, cores(a, b, noise=noise))[0].verdict == verdict


def test_the_host_time_of_a_launch_is_tested_on_its_calls():
    launch = next(c for c in load("decode").compared if c.key == "launch")
    points = [point({"launch": how}, 50.0, host_launch_us=us) for how, us in LAUNCHES]
    for one, (_, us) in zip(points, LAUNCHES, strict=True):
        one["samples"]["host_us"] = spread(us)
    by_metric = {p.metric: p for p in effects(launch, {"points": points})}
    assert by_metric["host_launch_us"].verdict == "differs"
    assert by_metric["host_launch_us"].change == pytest.approx(-0.75)


def turns(base, other, a, b, seed=5):
    """A pair that was timed in turns, with medians a and b."""
    sides = []
    for place, around in enumerate((a, b)):
        samples = sorted(spread(around, seed=seed + place))
        sides.append({"cold_us": around, "cold_samples_us": samples})
    return {"base": base, "other": other, "status": "ok", "reason": None, "sides": sides}


def test_a_pair_timed_in_turns_decides_over_the_two_points_own_series():
    pair = turns("decode/cuda", "decode/tensor", 100.0, 90.0)
    floors = {"time_cold_us": {"floor": 0.7}}
    (found,) = effects(CORES, cores(100.0, 150.0, pairs=[pair], noise=floors))
    assert (found.base, found.other, found.in_turns) == (100.0, 90.0, True)
    assert found.verdict == "differs"  # the floor between runs is not that of a pair
    assert found.low < -0.1 < found.high < 0
    # One that could not be timed leaves the points' own series.
    failed = pair | {"status": "wrong", "sides": []}
    (found,) = effects(CORES, cores(100.0, 150.0, pairs=[failed]))
    assert (found.base, found.in_turns) == (100.0, False)


def test_a_pair_is_held_against_pairs_of_a_point_with_itself():
    points = [point({"cores": "cuda"}, 100.0), point({"cores": "tensor"}, 100.0)]
    pairs = [turns("decode/cuda", "decode/tensor", 100.0, 97.0), turns("x", "x", 100.0, 104.0)]
    (found,) = effects(CORES, {"points": points, "pairs": pairs})
    assert found.floor == pytest.approx(0.04)
    assert found.verdict == "within noise" and found.low < 0 < found.high
    pairs[1]["sides"] = []  # it was not timed
    (found,) = effects(CORES, {"points": points, "pairs": pairs})
    assert found.floor is None and found.verdict == "differs"


@pytest.mark.parametrize(("group", "in_turns", "base"), [(None, False, 3.0), (8, True, 2.0)])
def test_a_pair_whose_hot_launches_were_timed_one_by_one_prices_no_hot_time(group, in_turns, base):
    pdl = Choice("pdl", "", "pdl", "auto", "off", metrics=("time_hot_us",))
    hots = {"auto": 3.0, "off": 4.0}
    points = [point({"pdl": v}, 9.0, time_hot_us=hot, time_hot_n=None) for v, hot in hots.items()]
    side = {"hot_us": 2.0, "hot_samples_us": [2.0] * 30, "hot_group": group}
    pair = {"base": "decode/auto", "other": "decode/off", "status": "ok"}
    pair["sides"] = [side, side | {"hot_us": 2.1}]
    (found,) = effects(pdl, {"points": points, "pairs": [pair]})
    assert (found.in_turns, found.base) == (in_turns, base)


def test_few_samples_are_no_test():
    few = point({"cores": "cuda"}, 100.0, [100.0] * 7)
    points = [few, point({"cores": "tensor"}, 200.0, [200.0] * 30)]
    (found,) = effects(CORES, {"points": points})
    assert (found.p, found.low, found.verdict) == (None, None, "not tested")


def test_summary_ranges_over_all_pairs():
    results = {"points": [
        *(point({"batch": b, "cores": c}, t, spread(t, seed=b)) for b, c, t in
          [(1, "cuda", 100.0), (1, "tensor", 50.0), (2, "cuda", 100.0), (2, "tensor", 150.0)]),
        point({"batch": 3, "cores": "cuda"}, 100.0, spread(100.0, seed=8)),
        point({"batch": 3, "cores": "tensor"}, 100.0, spread(100.0, seed=9)),
    ]}  # fmt: skip
    found = summary(effects(CORES, results))
    assert (found["pairs"], found["differs"], found["within"]) == (3, 2, 1)
    assert (found["least"], found["most"]) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert found["median"] is None  # some gain, others lose
    assert [part for part, _ in found["parts"]] == ["batch == 1", "batch == 2", "batch == 3"]
    assert summary([]) is None
    # the median of those beyond noise alone is that of the pairs which happen to gain the most
    told = summary([pair(0.2), pair(0.3), pair(0.1, "within noise"), pair(-0.05, "within noise")])
    assert [told[name] for name in ("least", "median", "most")] == pytest.approx([-0.05, 0.15, 0.3])


def pair(change: float, verdict: str = "differs", **fixed: object) -> choices.Effect:
    return choices.Effect(
        "time_cold_us", "a", "b", tuple(fixed.items()), 1.0, 1 + change, change, verdict=verdict
    )


@pytest.mark.parametrize(
    ("pairs", "parts"),
    [
        # the value that tells gains from losses, and pairs within noise go with what they resemble
        ([pair(-0.2, cores="tensor", batch=1), pair(0.4, cores="cuda", batch=1)], ["cores == 'tensor'", "cores == 'cuda'"]),
        ([pair(-0.2, n=1), pair(-0.1, n=4), pair(-0.1, n=2), pair(0, "within noise", n=3), pair(0.1, n=8)], ["n <= 4", "n == 8"]),
        # a bound is told of three pairs with a change, of fewer their values
        ([pair(-0.2, n=1), pair(-0.1, n=4), pair(0, "within noise", n=9), pair(0.1, n=8)], ["n in [1, 4]", "n == 8", "n == 9"]),
        ([pair(-0.3, n=8), pair(0.1, n=1), pair(0.2, n=2)], ["n == 8", "n in [1, 2]"]),
        # what is within noise between the bounds of both belongs to neither
        ([pair(-0.2, n=1), pair(0.1, n=8), pair(0, "within noise", n=6), pair(-0.1, n=4)], ["n in [1, 4]", "n == 8", "n == 6"]),
        # of two pairs no bound is told, and where they differ in more than one parameter nothing
        ([pair(-0.3, n=8), pair(0.1, n=1)], ["n == 8", "n == 1"]),
        ([pair(-0.3, n=8, m=2), pair(0.1, n=1, m=1)], [""]),
        # what changes at all from what does not
        ([pair(-0.6, n=512), pair(-0.004, "within noise", n=1024)], ["n == 512", "n == 1024"]),
        # alike, and not to be told apart
        ([pair(-0.1, n=1), pair(-0.5, n=2)], [""]),
        ([pair(-0.1, n=1), pair(0.5, n=2), pair(-0.5, n=3)], [""]),
        ([], [""]),
    ],
)  # fmt: skip
def test_pairs_that_fare_unlike_are_parted_by_the_parameter_that_decides(
    pairs: list[choices.Effect], parts: list[str]
) -> None:
    found = choices.divided(pairs)
    assert [part.where for part in found] == parts
    kept = [p.change for part in found for p in part.effects]
    assert sorted(kept) == sorted(p.change for p in pairs)
    if len(parts) > 1:
        assert {p.change > 0 for p in choices.with_a_change(found[0].effects)} == {False}


def test_a_base_that_needs_a_launch_before_its_own_has_the_time_of_both() -> None:
    draw = Choice("draw", "", "variant", "probs", "logits", after="softmax")
    times = {"probs": 44.0, "logits": 50.0}
    points = [point({"variant": name, "n": 1}, us, spread(us)) for name, us in times.items()]
    assert effects(draw, {"points": points}) == []  # what goes before was not measured
    (found,) = effects(draw, {"points": [*points, point({"variant": "softmax", "n": 1}, 71.0)]})
    assert (found.base, found.other, found.verdict) == (115.0, 50.0, "differs")


def test_choices_name_parameters_and_values_of_their_targets():
    for target in some(known().values()):
        for choice in target.compared:
            values = target.choices.get(choice.parameter)
            assert choice.parameter in target.parameters, choice.key
            assert values is None or {choice.base, choice.other} <= set(values), choice.key
        keys = [choice.key for choice in target.compared]
        assert len(keys) == len(set(keys)), target.name


def test_one_query_head_a_kv_head_and_gqa_are_choices_of_their_own():
    by_key = {c.key: c for c in load("decode").compared}
    for kv_heads, key in ((32, "cores"), (8, "cores_grouped")):
        heads = {"qo_heads": 32, "kv_heads": kv_heads, "backend": "auto", "batch": 32}
        results = {"points": [point({"cores": c, **heads}, 9.0) for c in ("cuda", "tensor")]}
        found = {name: len(effects(by_key[name], results)) for name in ("cores", "cores_grouped")}
        assert found == {"cores": 0, "cores_grouped": 0} | {key: 1}


def test_offsets_pair_with_position_ids_of_any_batch():
    positions = next(c for c in load("rope").compared if c.key == "rope_positions")
    results = {"points": [
        point({"variant": "rope_pos_ids", "batch": 1, "tokens": 64}, 10.0),
        point({"variant": "rope", "batch": 4, "tokens": 64}, 38.0),
    ]}  # fmt: skip
    (found,) = effects(positions, results)
    assert found.change == pytest.approx(2.8)


def test_a_change_whose_interval_holds_no_change_is_within_noise():
    # The launches tell the sides apart, the floor between runs does not.
    samples = ((99.0, 99.5, 100.0, 100.5, 101.0) * 4, (102.0, 102.5, 103.0, 103.5, 104.0) * 4)
    effect = choices.Effect("time_cold_us", "a", "b", (), 100.0, 103.0, 0.03, floor=0.0299)
    found = choices._judged(effect, *choices._tested([samples]))
    assert found.p is not None and found.p < 0.01 and abs(found.change) > 0.0299
    assert found.low is not None and found.high is not None and found.low < 0 < found.high
    assert found.verdict == "within noise"
    surely = choices._judged(replace(effect, floor=0.01), *choices._tested([samples]))
    assert surely.verdict == "differs"
    alike = choices._judged(replace(effect, floor=None), (0.3, -0.1, 0.1))
    assert alike.verdict == "within noise"


LAUNCHED = {"demangled": "k", "grid": "1,1,1", "block": "32,1,1", "registers": 40}


@pytest.mark.parametrize(
    ("sides", "same"),
    [
        (([LAUNCHED], [LAUNCHED]), True),
        (([LAUNCHED], [LAUNCHED | {"grid": "2,1,1"}]), False),
        (([LAUNCHED], [LAUNCHED | {"block": "64,1,1"}]), False),
        (([LAUNCHED], [LAUNCHED, LAUNCHED]), False),
        (([], []), False),
    ],
)
def test_a_choice_of_kernels_is_none_where_both_launch_the_same(sides, same):
    """The two differ by more than their launches do; without kernels nobody knows what ran."""
    cold = {"auto": 10.0, "cuda": 11.0}
    points = [
        point({"norm": norm}, cold[norm], spread(cold[norm])) | {"kernels": kernels}
        for norm, kernels in zip(cold, sides, strict=True)
    ]
    choice = Choice("norm", "", "norm", "auto", "cuda", of_kernels=True)
    (found,) = effects(choice, {"points": points})
    assert found.verdict == ("within noise" if same else "differs")
    assert (found.low <= 0 <= found.high) == same
    (found,) = effects(replace(choice, of_kernels=False), {"points": points})
    assert found.verdict == "differs"


def test_rounding_tells_no_launch_from_itself():
    """Of a thousand differences, in evidence without launches, where the floor alone decides."""
    generator = random.Random(1)
    choice = Choice("norm", "", "norm", "auto", "cuda", of_kernels=True)
    for _ in range(1000):
        sides = [point({"norm": norm}, generator.uniform(9, 11)) for norm in ("auto", "cuda")]
        ran = [side | {"kernels": [LAUNCHED]} for side in sides]
        (found,) = effects(choice, {"points": ran})
        assert found.verdict == "within noise"
