"""Speed of Light taken apart: units of counters, and that the largest counter is the throughput."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import some_by_default

from ncuflow.parsers import breakdown, ncu
from ncuflow.parsers.chips import CHIPS
from scripts import nvperf

RECORDED = sorted((Path(__file__).parents[1] / "recordings").rglob("sweep.ncu-rep.xz"))
PCT = ".avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("counter", "unit"),
    [
        ("dram__cycles_active", "dram"),
        ("lts__d_sectors", "l2"),
        ("l1tex__m_xbar2l1tex_read_sectors", "l2"),
        ("l1tex__data_pipe_lsu_wavefronts", "l1"),
        ("sm__pipe_tensor_op_dmma_cycles_active", "tensor"),
        ("sm__pipe_fmaheavy_cycles_active", "fma"),
        ("sm__inst_executed", "issue"),
        ("sm__inst_executed_pipe_xu", "xu"),
        ("sm__inst_executed_pipe_uniform", "other"),
        ("sm__pipe_tc_cycles_active", "tensor"),
        ("sm__mem_tensor_cycles_active", "tmem"),
        ("sm__pipe_aluheavy_cycles_active", "alu"),
        ("sm__pipe_xu_cycles_active", "xu"),
        ("syslts__t_sectors", "l2"),
        ("gpu__compute_memory_access_throughput_internal_activity", "other"),
    ],
)
def test_unit_of_a_counter(counter, unit):
    assert breakdown.unit_of(counter + PCT) == unit


@pytest.mark.parametrize("chip", CHIPS)
def test_the_units_cover_the_throughputs_of_every_chip(chip):
    """By the parts that NVIDIA's library takes them apart into; what is another unit is known to be none of these."""
    library = nvperf.ChipCounters(chip)
    parts = library.parts("sm__throughput") | library.parts("gpu__compute_memory_throughput")
    units = {n: breakdown.unit_of(n + PCT) for n in parts if not n.startswith(breakdown.SHARED)}
    others = {name for name, unit in units.items() if unit == "other"}
    pipes = ("adu", "cbu_pred_on_any", "ipa", "tex", "uniform")
    known = {f"sm__inst_executed_pipe_{pipe}" for pipe in pipes}
    assert others <= known | {"idc__request_cycles_active", "sm__pipe_tma_cycles_active"}
    assert {"tensor", "fma", "alu", "xu", "lsu", "issue", "l1", "l2"} <= {*units.values()}
    assert ("tmem" in units.values()) == (chip in ("gb100", "gb110", "gb10b"))


class Fake:
    """A kernel of the reader, as far as a breakdown reads it."""

    chip = "gh100"

    def __init__(self, **counters):
        self.counters = {name + PCT: value for name, value in counters.items()}

    def text(self, name):
        return ",".join(self.counters) if name == f"breakdown:sm__throughput{PCT}" else None

    def number(self, name):
        return self.counters[name]


@pytest.mark.parametrize("behind", ["tensor", "fp64"])
def test_the_shared_pipe_is_the_pipe_that_keeps_it_busy(behind):
    pipes = {
        f"sm__pipe_{pipe}_cycles_active": 40.0 if pipe == behind else 2.0
        for pipe in breakdown.BEHIND
    }
    found = list(breakdown.rows(Fake(sm__pipe_shared_cycles_active=41.0, **pipes)))
    assert next(part["unit"] for part in found if part["pct"] == 41.0) == behind


def test_a_counter_without_a_value_is_no_part():
    found = list(breakdown.rows(Fake(sm__issue_active=3.0, sm__pipe_alu_cycles_active=None)))
    assert [part["unit"] for part in found] == ["issue"]


@pytest.mark.parametrize(
    "path", some_by_default(RECORDED, 9), ids=lambda p: "-".join(p.parts[-6:-2])
)
def test_the_largest_part_is_the_throughput(path):
    report = ncu.read(path, with_lines=False)
    parents = [m for m in report.metrics if m["key"] in breakdown.PARENTS]
    whole = {(m["kernel"], m["key"]): m["value"] for m in parents}
    parts = {}
    for part in report.breakdown:
        parts.setdefault((part["kernel"], part["parent"]), []).append(part["pct"])
    assert whole and {key: max(found) for key, found in parts.items()} == pytest.approx(whole)


@pytest.mark.parametrize(
    "path",
    some_by_default([p for p in RECORDED if p.parts[-3] == "decode"], 3),
    ids=lambda p: "-".join(p.parts[-6:-3]),
)
def test_what_a_decode_reads_once_passes_each_level_once_and_cp_async_counts_in_l1(path):
    report = ncu.read(path, with_lines=False)
    # fa3 reads the cache once for each of the four heads of a group, not all of it from DRAM
    twice = {k["kernel"] for k in report.kernels if k["name"] == "PrefillWithKVCacheKernel"}
    found = {}
    for row in report.metrics:
        if row["kernel"] not in twice:
            found.setdefault(row["kernel"], {})[row["key"]] = row["value"]
    large = [m for m in found.values() if m["dram_bytes_read"] > 5e8]
    assert large
    for metrics in large:
        read = metrics["dram_bytes_read"] + metrics["dram_bytes_write"]
        assert metrics["l2_bytes_l1"] == pytest.approx(read, rel=0.02)
        # cp.async writes shared memory, from where it is read: about twice the bytes, or more with several heads.
        assert metrics["l1_bytes"] > 1.5 * read
        for level, moved in (("l1", "l1_bytes"), ("l2", "l2_bytes_l1")):
            rate = metrics[moved] / (metrics["duration_ns"] * 1e-9)
            assert rate < metrics[f"{level}_peak_bytes_per_second"]
