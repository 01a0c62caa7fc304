"""The stall tree: shares that add up, what they are attributed by, and what is uncertain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.findings import waits
from ncuflow.findings.waits import MBARRIER
from ncuflow.parsers.stalls import OTHER, STALL_REASONS

REASONS = [name for name, reason in STALL_REASONS.items() if reason.kind == "stall"]


def stall(reason, ratio=None, samples=None, kind="stall"):
    counted = {"ratio": ratio, "share": None, "samples_not_issued": samples}
    return {"reason": reason, "kind": kind, **counted}


def kernel(issued, stalls, rules=()):
    return {"metrics": {"issue_active": issued}, "stalls": stalls, "rules": list(rules)}


RATIOS = st.dictionaries(st.sampled_from(REASONS), st.floats(1e-3, 1e3), min_size=1)


@given(issued=st.floats(0, 1), ratios=RATIOS)
def test_issued_and_all_reasons_add_up_to_one(issued, ratios):
    tree = waits.stall_tree(kernel(issued, [stall(r, v) for r, v in ratios.items()]))
    leaves = [reason.share for group in tree.groups for reason in group.reasons]
    assert math.isclose(tree.issued + sum(leaves), 1, rel_tol=1e-9)
    assert math.isclose(tree.issued + sum(g.share for g in tree.groups), 1, rel_tol=1e-9)


def test_every_reason_of_the_registry_has_its_group():
    grouped = {reason for members in waits.GROUPS.values() for reason in members}
    assert set(REASONS) - grouped == {"misc", OTHER}
    assert grouped - set(REASONS) == {MBARRIER}  # a part of long_scoreboard


def line(opcode, reason, samples):
    return {"pc": 0, "opcode": opcode, "reason": reason, "samples": samples}


def test_a_wait_at_an_mbarrier_is_not_one_for_a_load():
    stalls = [stall("long_scoreboard", 3.0), stall("wait", 1.0)]
    rows = [
        line("SYNCS.PHASECHK.TRANS64.TRYWAIT", "wait", 5), line("BRA", "long_scoreboard", 60),
        line("BRA", "wait", 7), line("FADD", "long_scoreboard", 20),
    ]  # fmt: skip
    tree = waits.stall_tree(kernel(0.2, stalls) | {"lines": rows})
    shares = {r.reason: r.of_stalls for group in tree.groups for r in group.reasons}
    expected = {"mbarrier": 0.75 * 0.75, "long_scoreboard": 0.75 * 0.25, "wait": 0.25}
    assert shares == pytest.approx(expected)
    (group,) = (g.name for g in tree.groups if g.reasons[0].reason == "mbarrier")
    assert group == "synchronisation"
    # A branch of a kernel without mbarriers waits for what its predicate was made from.
    plain = waits.stall_tree(kernel(0.2, stalls) | {"lines": rows[1:]})
    assert {r.reason for g in plain.groups for r in g.reasons} == {"long_scoreboard", "wait"}


def test_an_immediate_constant_waits_for_its_cache_and_not_for_memory():
    tree = waits.stall_tree(kernel(0.5, [stall("imc_miss", 1.0), stall("long_scoreboard", 3.0)]))
    groups = {g.name: [r.reason for r in g.reasons] for g in tree.groups}
    memory = {"memory (L1TEX, L2, DRAM)": ["long_scoreboard"]}
    assert groups == memory | {"constant cache": ["imc_miss"]}


def test_ready_warps_are_not_charged():
    ready = [stall(kind, 9.0, kind=kind) for kind in ("not_selected", "selected")]
    tree = waits.stall_tree(kernel(0.25, [stall("wait", 3.0), *ready]))
    assert [r.reason for g in tree.groups for r in g.reasons] == ["wait"]
    assert tree.groups[0].share == pytest.approx(0.75)


def test_samples_are_used_where_there_are_enough_and_ratios_elsewhere():
    stalls = [stall("wait", 1.0, 100), stall("barrier", 1.0, 1900)]
    tree = waits.stall_tree(kernel(0.5, stalls))
    assert (tree.basis, tree.samples) == ("samples", 2000)
    assert tree.top()[0].of_stalls == pytest.approx(0.95)
    few = waits.stall_tree(kernel(0.5, [stall("wait", 1.0, 10), stall("barrier", 1.0, 190)]))
    assert (few.basis, few.samples) == ("ratio", None)
    assert {r.of_stalls for r in few.top()} == {0.5}
    assert all(r.uncertainty is None for r in few.top())


def test_an_error_of_sampling_shrinks_with_samples_and_never_vanishes():
    assert waits.sampling_error(0.3, 100) > 2 * waits.sampling_error(0.3, 1000)
    assert waits.sampling_error(0.0, 100) > 0
    assert waits.sampling_error(0.5, 10_000) == pytest.approx(2 * 0.005, rel=1e-3)
    assert waits.sampling_error(0.3, 0) is None


@pytest.mark.parametrize(
    "missing", [kernel(None, [stall("wait", 1.0)]), kernel(0.5, []), kernel(0.5, [stall("wait")])]
)
def test_without_evidence_there_is_no_tree(missing):
    assert waits.stall_tree(missing) is None


def test_only_reasons_that_matter_are_named():
    stalls = [stall("wait", 80.0), stall("barrier", 15.0), stall("drain", 4.0), stall("misc", 1.0)]
    tree = waits.stall_tree(kernel(0.4, stalls))
    assert [r.reason for r in tree.top()] == ["wait", "barrier"]
    assert tree.top()[0].meaning == "a fixed-latency execution dependency"


def rule(name, kind="optimization", gain=None, scope="local"):
    speedup = {"speedup_pct": gain, "speedup_type": scope}
    return {"rule": name, "section": "s", "message": "m", "type": kind, **speedup}


def test_advice_is_of_the_whole_kernel_first_and_leaves_out_what_always_fires():
    fired = [rule("Local", gain=90.0), rule("Fine", kind="ok", gain=99.0)]
    for name, gain in (("Global", 20.0), ("Global", 10.0), ("MemoryL2Compression", 99.0)):
        fired.append(rule(name, gain=gain, scope="global"))
    found = waits.advice(kernel(0.5, [], fired), most=3)
    assert [(r["rule"], r["speedup_pct"]) for r in found] == [("Global", 20.0), ("Local", 90.0)]
