"""Causes: parts that add up, kernels that pair off, facts that differ; made up and real."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from compare_data import STALLS, explain, kernel, point

from ncuflow.compare import attribution, decomposition
from ncuflow.compare.attribution import Copies, Explained, Profile, Traced, match, of_timeline
from ncuflow.compare.decomposition import LaunchRates
from ncuflow.compare.records import ChangeTerm, Fact
from ncuflow.compare.reports import _kernels

RECORDING = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"
REPORTS = sorted(RECORDING.glob("*/b*/sweep.ncu-rep.xz"))


def parts_of(base: dict, head: dict) -> list[ChangeTerm]:
    """The parts of two launches that are themselves what is compared: ncu's clock is theirs."""
    ghz = [(decomposition.profiled_hz(k) or 0) / 1e9 for k in (base, head)]
    rates = (LaunchRates(None, ghz[0]), LaunchRates(None, ghz[1]))
    return decomposition.split(base, head, rates).parts


def grown(base: dict, head: dict) -> float:
    """By how much the second launch is longer, µs."""
    return (head["duration_ns"] - base["duration_ns"]) / 1e3


def cause_of(base: dict, head: dict, delta: float = 5.0) -> dict:
    """The one cause of the change of a point that is one launch."""
    (cause,), _ = explain(point("d/x", 1, [base]), point("d/x", 2, [head]), delta)
    return cause


# --- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"instructions": 154e6}, "instructions"),
        ({"warps": 2.7}, "active warps"),
        ({"clock": 0.95e9}, "SM clock"),
        ({"long_scoreboard": 18.2}, "long_scoreboard"),
        ({"busy": 0.455}, "launch, tail and uneven SMs"),
    ],
)
def test_one_thing_that_doubles_the_time_is_all_of_the_change(change: dict, part: str) -> None:
    base, head = kernel(), kernel(**change)
    assert head["duration_ns"] == pytest.approx(2 * base["duration_ns"])
    (found,) = parts_of(base, head)
    assert found.what == part
    assert found.delta_us == pytest.approx(base["duration_ns"] / 1e3)


def test_what_works_against_the_change_counts_negative() -> None:
    base, head = kernel(), kernel(instructions=154e6, long_scoreboard=2.0)
    parts = {p.what: p.delta_us for p in parts_of(base, head)}
    assert parts["instructions"] > 0 > parts["long_scoreboard"]
    assert sum(parts.values()) == pytest.approx(grown(base, head))


def test_reasons_that_miss_some_of_the_latency_leave_the_rest_named() -> None:
    base, head = kernel(), kernel()
    head["metrics"]["warp_latency_per_issue"] *= 1.2
    head["duration_ns"] *= 1.2
    assert [part.what for part in parts_of(base, head)] == ["not attributed to a reason"]
    # Without stalls the waiting is one part.
    head = kernel(long_scoreboard=18.2) | {"stalls": []}
    (found,) = parts_of(base, head)
    assert found.what == "all waiting"
    assert found.delta_us == pytest.approx(base["duration_ns"] / 1e3)


def test_reasons_that_count_more_than_the_latency_are_passes_that_disagree_and_no_cause() -> None:
    """The total is counted in another replay pass: what is left of it may be below zero, and no wait is."""
    base, head = kernel(), kernel(instructions=154e6)
    head["metrics"]["warp_latency_per_issue"] *= 0.9
    head["duration_ns"] *= 0.9
    parts = parts_of(base, head)
    found = {p.kind: p for p in parts}
    assert "not attributed to a reason" not in {p.what for p in parts}
    assert found["passes"].delta_us < 0 and found["passes"].base is found["passes"].head is None
    assert sum(p.delta_us for p in parts) == pytest.approx(grown(base, head))
    assert [p.kind for p in decomposition.causes(parts, 0.05)] == ["instructions"]
    assert decomposition.causes(parts, 1.5) == []


@pytest.mark.parametrize("missing", ["inst_executed", "warp_latency_per_issue"])
def test_without_a_factor_there_are_no_parts(missing: str) -> None:
    base, head = kernel(), kernel(warps=2.7)
    head["metrics"][missing] = None
    assert parts_of(base, head) == []
    (cause,), unexplained = explain(point("d/x", 1, [base]), point("d/x", 2, [head]), 9)
    assert cause["parts"] == [] and cause["delta_us"] is not None
    assert unexplained == pytest.approx(9 - cause["delta_us"])


@pytest.mark.parametrize("report", REPORTS[:3], ids=lambda path: path.parent.parent.name)
def test_parts_of_real_kernels_add_up(report: Path) -> None:
    kernels, _ = _kernels(report)
    compared = 0
    for base, head in combinations(kernels[:12], 2):
        parts = parts_of(base, head)
        compared += bool(parts)
        assert sum(p.delta_us for p in parts) == pytest.approx(grown(base, head), abs=1e-4)
        for idle in (p for p in parts if p.kind == "idle SMs"):
            assert all(v is not None and -0.05 < v < 1 for v in (idle.base, idle.head))
    assert compared


# --- kernels ----------------------------------------------------------------------------------


def test_kernels_pair_by_name_in_order_and_as_many_leftovers_by_time() -> None:
    def timed(name: str, ns: float) -> dict:
        return {"name": name, "duration_ns": ns}

    base = [timed("fill", 1), timed("main", 9), timed("main", 8)]
    head = [timed("main", 7), timed("main", 6), timed("long", 5)]
    pairs, removed, added = match(base, head)
    assert [(a["duration_ns"], b["duration_ns"]) for a, b in pairs] == [(9, 7), (8, 6), (1, 5)]
    assert removed == added == []
    pairs, _, _ = match([timed("a", 1), timed("b", 9)], [timed("c", 8), timed("d", 2)])
    assert [(a["name"], b["name"]) for a, b in pairs] == [("b", "c"), ("a", "d")]
    pairs, removed, added = match(base, [*head, timed("short", 2)])
    left = [[kernel["name"] for kernel in kernels] for kernels in (removed, added)]
    assert len(pairs) == 2 and left == [["fill"], ["long", "short"]]


def test_of_more_launches_of_a_name_on_one_side_the_likest_is_the_pair() -> None:
    """One of a cascade's two levels on another backend: the other level is what it was."""
    own, prefix = (kernel("prefill", instructions=n) for n in (576e6, 27.63e6))
    same, decode = kernel("prefill", instructions=27.64e6), kernel("decode")
    for base, head in (([own, prefix], [decode, same]), ([same, decode], [own, prefix])):
        pairs, removed, added = match(base, head)
        assert removed == added == []
        assert max(k["metrics"]["inst_executed"] for k in pairs[0]) < 28e6
        assert {k["name"] for k in pairs[1]} == {"decode", "prefill"}


def test_kernels_of_other_names_and_number_are_one_cause() -> None:
    one, main = kernel("device_kernel") | {"duration_ns": 31_800.0}, kernel()
    times = {"T": 6_600.0, "MN": 28_400.0, "Fixup": 30_600.0}
    several = [kernel(name) | {"duration_ns": ns} for name, ns in times.items()]
    for turn, others in ((1, ([one], several)), (-1, (several, [one]))):
        base, head = point("d/x", 1, [main, *others[0]]), point("d/x", 2, [*others[1], main])
        (cause,), unexplained = explain(base, head, 34 * turn)
        assert cause["kind"] == "kernel_replaced"
        assert [cause["base"], cause["head"]][::turn] == [["device_kernel"], [*times]]
        assert (cause["delta_us"], unexplained) == pytest.approx((33.8 * turn, 0.2 * turn))
    assert cause["what"] == "3 kernels → 1 kernel of other names"
    (work,) = [fact for fact in cause["facts"] if fact["what"] == "instructions executed"]
    assert (work["base"], work["head"]) == (3 * 77e6, 77e6)
    several[0]["metrics"]["inst_executed"] = several[1]["duration_ns"] = None
    causes, _ = explain(point("d/x", 1, [one]), point("d/x", 2, several), 5.0)
    assert {c["kind"] for c in causes} == {"kernel_added", "kernel_removed"}


@pytest.mark.parametrize("turn", [1, -1])
def test_a_kernel_that_came_or_went_explains_time_that_did(turn: int) -> None:
    with_it, without = (
        point("d/x", 9, [kernel(), kernel("fill") | {"duration_ns": 4e3}]),
        point("d/x", 5, [kernel()]),
    )
    base, head = (without, with_it)[::turn]
    (cause,), unexplained = explain(base, head, 5.0 * turn)
    kind = "kernel_added" if turn > 0 else "kernel_removed"
    assert (cause["kind"], [cause["base"], cause["head"]][::turn]) == (kind, [None, "fill"])
    assert (cause["delta_us"], unexplained) == (4.0 * turn, 1.0 * turn)


FAILED = kernel() | {"duration_ns": None}


@pytest.mark.parametrize("sides", [([], [kernel()]), ([kernel()], []), ([kernel()], [FAILED])])
def test_kernels_of_a_side_without_counters_neither_came_nor_went(
    sides: tuple[list[dict], list[dict]],
) -> None:
    base, head = (point("d/x", 9, kernels) for kernels in sides)
    assert explain(base, head, 5.0) == ([], 5.0)


def test_another_kernel_in_its_place_is_a_replacement() -> None:
    base, head = kernel(), kernel("BatchPrefillWithPagedKVCacheKernel", tile=1, instructions=2e8)
    cause = cause_of(base, head, grown(base, head))
    assert cause["kind"] == "kernel_replaced"
    assert not [fact for fact in cause["facts"] if fact["kind"] == "template"]
    assert (cause["base"], cause["head"]) == (base["name"], head["name"])
    assert cause["delta_us"] == pytest.approx(grown(base, head))
    assert not cause["parts"]  # what warps of one kernel wait for explains no other's time
    assert "instructions executed" in [fact["what"] for fact in cause["facts"]]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"tile": 1}, "template"),
        ({"registers": 96, "warps": 4.0}, "code"),
        ({"grid": "64,32,1", "warps": 4.0}, "launch_shape"),
        ({"clock": 1.5e9}, "clock"),
        ({"long_scoreboard": 8.0}, "execution"),
    ],
)
def test_the_kind_is_what_changed_first_of_all(change: dict, kind: str) -> None:
    assert cause_of(kernel(), kernel(**change))["kind"] == kind


def test_another_clock_and_other_instructions_are_not_called_a_change_of_clock() -> None:
    base, head = kernel(), kernel(clock=1.5e9, instructions=80e6)
    cause = cause_of(base, head, grown(base, head))
    assert cause["kind"] == "execution" and cause["what"].endswith("other instructions")
    assert cause["parts"][0]["what"] == "SM clock"


PREFILL = (
    "void flashinfer::Prefill<{first}flashinfer::KernelTraits<(int)1, {tile}, __half{last}>, P>(T2)"
)


def test_a_template_parameter_that_one_side_lacks_is_a_mark_of_other_code() -> None:
    base, head = kernel(), kernel(warps=4.0)
    plain = {"first": "", "tile": "(int)128", "last": ""}
    base["demangled"] = PREFILL.format(**plain)
    for other, said in (({"last": ", (bool)0"}, "other code"), ({"tile": "(int)64"}, "arguments")):
        head["demangled"] = PREFILL.format(**plain | other)
        cause = cause_of(base, head)
        assert cause["kind"] == "template" and said in cause["what"]
        assert ("that one side does not have" in cause["what"]) == (said == "other code")


def test_a_named_template_parameter_that_one_side_lacks_is_a_mark_of_other_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fact = Fact("template", "SAME_KV_STRIDES", None, "true")
    monkeypatch.setattr(attribution, "_template", lambda *_: [fact])
    cause = cause_of(kernel(), kernel(warps=4.0))
    assert cause["what"].endswith("other code (template parameters that one side does not have)")
    assert (cause["base"], cause["head"]) == ("SAME_KV_STRIDES absent", "SAME_KV_STRIDES true")


@pytest.mark.parametrize(
    ("other", "only"),
    [
        ({"first": "(bool)1, ", "last": ", (bool)0"}, ("–", "(bool)1, (bool)0")),
        ({"tile": "(int)64"}, ("(int)128", "(int)64")),
    ],
)
def test_a_template_of_an_unknown_version_names_only_what_differs(
    other: dict, only: tuple[str, str]
) -> None:
    plain = {"first": "", "tile": "(int)128", "last": ""}
    base, head = kernel(), kernel(warps=4.0)
    base["demangled"] = PREFILL.format(**plain)
    head["demangled"] = PREFILL.format(**plain | other)
    facts = [(f.what, f.base, f.head) for f in attribution.facts_of(base, head)]
    assert facts[0] == ("only here:", *only)
    cause = cause_of(base, head)
    assert (cause["kind"], cause["head"]) == ("template", f"only here: {only[1]}")


def test_causes_are_ordered_by_what_they_explain() -> None:
    extra = kernel("fill") | {"duration_ns": 30_000.0}
    base, head = kernel(), kernel(long_scoreboard=5.2)
    causes, _ = explain(point("d/x", 1, [base]), point("d/x", 2, [head, extra]), 33.0)
    assert [c["kind"] for c in causes] == ["kernel_added", "execution"]
    assert causes[0]["share_of_delta"] == pytest.approx(30 / 33)


def test_traffic_spills_and_tensor_work_are_facts_beyond_their_noise() -> None:
    base, head = kernel(), kernel()
    base["metrics"] |= {"spill_bytes": 0.0, "tensor_pipe_pct": 40.0, "l2_hit_pct": 30.0}
    head["metrics"] |= {"spill_bytes": 5e6, "tensor_pipe_pct": 30.0, "l2_hit_pct": 31.0}
    head["metrics"]["dram_bytes_read"] *= 1.5
    head["metrics"]["inst_executed"] *= 1.01
    found = {f.what: (f.base, f.head) for f in attribution.facts_of(base, head)}
    assert found == {
        "DRAM bytes read": (1.07e9, 1.605e9),
        "local memory bytes (spills)": (0.0, 5e6),
        "tensor pipe busy": (40.0, 30.0),
    }


def test_what_is_not_known_on_a_side_is_no_difference() -> None:
    base = kernel() | {"demangled": None, "registers": None}
    base["metrics"]["dram_bytes_read"] = None
    assert list(attribution.facts_of(base, kernel())) == []


@pytest.mark.parametrize("faster", [False, True])
def test_source_lines_that_moved_as_the_kernel_did_are_named_in_time(faster: bool) -> None:
    def deep(ran: dict, ns: float, deep_ns: float, *samples: int) -> dict:
        rows = [
            {"file": "norm.cuh", "line": line, "opcode": "LDG", "samples": n}
            for line, n in zip((10, 20, 30, 40), samples, strict=True)
        ]
        profiled = kernel() | {"duration_ns": deep_ns, "lines": rows}
        return point("d/x", 1, [ran | {"duration_ns": ns}]) | {"deep": [profiled]}

    base = deep(kernel(), 100_000, 100_000, 50, 49, 1, 0)
    head = deep(kernel(long_scoreboard=8.0), 200_000, 199_000, 46, 151, 0, 2)
    sides = (head, base) if faster else (base, head)
    (cause,), _ = explain(*sides, -100.0 if faster else 100.0)
    lines = [(f["what"], f["base"], f["head"]) for f in cause["facts"] if f["kind"] == "line"]
    # 10 and 30 went the other way, 40 by 2 % of the change
    assert lines == [("norm.cuh:20", *((151.0, 49.0) if faster else (49.0, 151.0)))]


# --- copies, gaps, host -----------------------------------------------------------------------


def test_copies_are_counted_per_launch() -> None:
    rows = [
        {"report": report, "point": "d/x", "launch": launch, "kind": kind, "name": name,
         "start_ns": start, "end_ns": start + ns, "duration_ns": ns}
        for report in ("b0/trace.sqlite", "b1/trace.sqlite")
        for launch in range(3)
        for kind, name, start, ns in (
            ("kernel", "k", 0, 9_000), ("memcpy", "D2D", 9_500, 1_000), ("memcpy", "D2D", 10_500, 2_000),
        )
    ]  # fmt: skip
    rows += [rows[0] | {"launch": 3}, rows[0] | {"point": None, "kind": "memset", "name": None}]
    found = of_timeline(rows)
    assert found == {"d/x": Traced({"memcpy D2D": Copies(2, 3.0)}, 0.5)}
    rare = [row for row in rows if row["launch"] in (0, 3)] + [rows[0] | {"launch": 4}] * 2
    assert of_timeline(rare)["d/x"].copies == {"memcpy D2D": Copies(1, 1.5)}


@pytest.mark.parametrize(
    ("base", "head", "kind", "delta"),
    [(1, 2, "copy_added", 3.0), (2, 1, "copy_removed", -3.0), (1, 1, "copy_changed", 0.5)],
)
def test_copies_that_came_went_or_took_longer(
    base: int, head: int, kind: str, delta: float
) -> None:
    def side(count: int, us: float) -> dict:
        return point("d/x", 1, []) | {"traced": Traced({"memcpy D2D": Copies(count, us)}, 0.0)}

    (cause,), _ = explain(side(base, 3.0), side(head, 3.0 + delta), delta)
    assert (cause["kind"], cause["delta_us"]) == (kind, delta)


def test_gaps_between_kernels_count() -> None:
    head = point("d/x", 2, [])
    head["measurement"]["kernel_gap_us"] = 4.0
    (cause,), unexplained = explain(point("d/x", 1, []), head, 5.0)
    assert (cause["kind"], cause["delta_us"], unexplained) == ("gap", 4.0, 1.0)


def test_what_plan_chose_is_a_fact_where_another_kernel_ran_and_a_label_where_not() -> None:
    for other, told in ((kernel("PrefillWithKVCacheKernel"), 1), (kernel(long_scoreboard=8), 0)):
        base, head = point("d/x", 1), point("d/x", 2, [other])
        base["info"], head["info"] = {"backend": "auto"}, {"backend": "fa3"}
        (cause,), _ = explain(base, head, 5.0)
        facts = [(f["base"], f["head"]) for f in cause["facts"] if f["kind"] == "plan"]
        assert facts == ([("auto", "fa3")] if told else [])


# --- the clock, the work, another GPU ------------------------------------------------------------


def timed(
    base: dict, head: dict, us: tuple[float, float], *rates: LaunchRates, noise: float = 0.0
) -> Explained:
    """What explains these times of two kernels, each side's launches at these rates."""
    sides = [Profile([k], [k], rates=r) for k, r in zip((base, head), rates, strict=True)]
    return attribution.explain(*sides, *us, noise)


def test_the_clock_of_ncu_is_no_cause_and_the_kernels_are_compared_in_cycles() -> None:
    """ncu ran the base at 1.9 and the head at 1.6 GHz, the timing runs both at 1.9; a tenth more instructions."""
    base, head = kernel(), kernel(clock=1.6e9, instructions=77e6 * 1.1)
    us = base["duration_ns"] / 1e3
    found = timed(base, head, (us, 1.1 * us), LaunchRates("H", 1.9), LaunchRates("H", 1.9))
    (cause,) = found.causes
    assert [part.kind for part in cause.parts] == ["instructions"]
    assert "at 1.90 and 1.60 GHz, compared in active cycles" in cause.evidence
    assert cause.share_of_delta == pytest.approx(1) and found.unexplained == pytest.approx(0)


def test_the_clock_of_a_profiled_duration_is_that_of_its_own_cycles() -> None:
    """The counted clock is of another replay pass: sides that ran alike are compared in time, with their idle SMs."""
    base, head = kernel(), kernel(busy=0.7)
    for row, counted in ((base, 1.9e9), (head, 1.75e9)):
        row["metrics"] |= {"cycles_elapsed": row["duration_ns"] * 1.9, "sm_clock_hz": counted}
    us = [row["duration_ns"] / 1e3 for row in (base, head)]
    (cause,) = timed(
        base, head, (us[0], us[1]), LaunchRates("H", 1.9), LaunchRates("H", 1.9)
    ).causes
    assert "GHz" not in cause.evidence and not [f for f in cause.facts if f.kind == "clock"]
    (idle,) = cause.parts
    assert (idle.base, idle.head) == pytest.approx((0.09, 0.3)) and idle.share_of_cause == 1
    head["metrics"]["cycles_elapsed"] = head["duration_ns"] * 1.6
    (cause,) = timed(
        base, head, (us[0], us[1]), LaunchRates("H", 1.9), LaunchRates("H", 1.9)
    ).causes
    assert "at 1.90 and 1.60 GHz, compared in cycles" in cause.evidence
    assert cause.delta_us == pytest.approx(us[1] * 1.6 / 1.9 - us[0])
    assert [p.what for p in cause.parts] == ["launch, tail and uneven SMs"]
    assert [(f.base, f.head) for f in cause.facts if f.kind == "clock"] == [(1.9e9, 1.6e9)]


def test_a_clock_of_the_timing_run_is_a_cause_by_its_own_ratio() -> None:
    base, head = kernel(), kernel(clock=1.2e9)
    us = base["duration_ns"] / 1e3
    found = timed(base, head, (us, 1.25 * us), LaunchRates("H", 2.0), LaunchRates("H", 1.6))
    (cause,) = found.causes
    assert (cause.kind, cause.base, cause.head) == ("clock", "2.000 GHz", "1.600 GHz")
    assert cause.delta_us == pytest.approx(0.25 * us)


def test_causes_of_more_than_the_change_have_no_share_of_it_and_it_is_said_why() -> None:
    base, head = kernel(), kernel(long_scoreboard=8.0)
    change = grown(base, head)
    for part, shared in ((0.9, True), (0.6, False), (-0.5, False)):
        found = timed(base, head, (100.0, 100.0 + part * change), LaunchRates(), LaunchRates())
        (cause,) = found.causes
        assert (cause.share_of_delta is not None) == shared == bool(cause.parts)
        assert cause.delta_us + found.unexplained == pytest.approx(part * change)
        assert "other runs" in found.remainder
    near = timed(base, head, (0.0, 0.9 * change), LaunchRates(), LaunchRates(), noise=change)
    assert near.remainder == "no more than runs of one side differ by"


@pytest.mark.parametrize("more", [{"grid_size": 264}, {"instructions": 178_000.0}])
def test_launches_that_are_too_unlike_share_no_time_out(more: dict) -> None:
    base, head = kernel(instructions=506.0), kernel(instructions=more.get("instructions", 506.0))
    for row, blocks in ((base, 1), (head, more.get("grid_size", 1))):
        row |= {"grid_size": blocks, "grid": f"{blocks},1,1"}
    extra = kernel("fill") | {"duration_ns": 1e6}
    found, _ = explain(point("d/x", 1, [base]), point("d/x", 2, [head, extra]), 900.0)
    assert [c["kind"] for c in found] == ["other_work", "kernel_added"]
    times = "264 × the blocks" if "grid_size" in more else "352 × the instructions"
    assert times in found[0]["what"] and found[0]["parts"] == []
    assert f"{more.get('instructions', 506.0) / 1e6:.3g} M instructions" in found[0]["head"]


def limited(row: dict, **units: float) -> dict:
    return row | {"breakdown": [{"unit": u, "counter": u, "pct": pct} for u, pct in units.items()]}


def test_from_one_gpu_to_another_bandwidth_comes_before_what_warps_wait_for() -> None:
    """GQA decode: on tensor cores it follows DRAM, on CUDA cores the issue of instructions holds it up on the faster GPU."""
    slow, fast = LaunchRates("NVIDIA H100", 1.95, 3350.0), LaunchRates("NVIDIA H200", 1.95, 4800.0)
    base = limited(kernel() | {"duration_ns": 364_000.0}, dram=88.0)
    for dram, issue, us in ((87.0, 22.0, 257.0), (66.0, 77.0, 337.0)):
        other = kernel(long_scoreboard=3.0) | {"duration_ns": 1e3 * us}
        head = limited(other, dram=dram, issue=issue)
        for row in (base, head):
            row["metrics"]["dram_bytes_write"] = 1e6
        (cause,) = timed(base, head, (364.0, us), slow, fast).causes
        first, *rest = cause.parts
        assert (cause.kind, cause.base) == ("gpu", "DRAM 88 % of its peak")
        assert (first.kind, first.base, first.head) == ("DRAM bandwidth", 3350e9, 4800e9)
        assert sum(p.delta_us for p in cause.parts) == pytest.approx(us - 364)
        assert not [p for p in cause.parts if p.kind == "stall"]
        (share,) = [p for p in rest if p.kind == "DRAM share"]
        held = "as instruction issue limits it (77 %)"
        assert (held in share.what) == (issue == 77.0) == (share.delta_us > 50)


def test_a_kernel_that_dram_limits_is_compared_in_time_on_one_gpu() -> None:
    """Its warps wait more cycles at a higher clock, and no longer."""
    base = limited(kernel(), dram=90.0)
    head = limited(kernel(clock=1.5e9, **{k: v * 1.5 / 1.9 for k, v in STALLS.items()}), dram=90.0)
    head["duration_ns"] = base["duration_ns"] * 1.001
    split = decomposition.split(base, head, (LaunchRates("H", 1.9, 4800.0),) * 2)
    assert not split.cycles and {p.unit for p in split.parts if p.kind == "stall"} <= {
        "ns per instruction"
    }
    assert all(abs(p.delta_us) < 0.01 * base["duration_ns"] / 1e3 for p in split.parts)
