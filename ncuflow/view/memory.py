"""The memory chart: which unit moved how much to which, and what its caches kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ncuflow.parsers.detail import Counter
from ncuflow.view.model import Flow, MemoryChart

SECTOR, WAVEFRONT = 32, 128  # bytes
KERNEL, L1, SHARED, L2, DRAM, SYSTEM, PEER = (
    "kernel",
    "l1",
    "shared",
    "l2",
    "dram",
    "system",
    "peer",
)
PERCENT = ".pct_of_peak_sustained_elapsed"


class _Flow(NamedTuple):
    """counters: summed; times: bytes of each; other: registry keys to sum where the report lacks the counters."""

    source: str
    target: str
    label: str
    counters: tuple[str, ...]
    unit: str = "byte"
    times: float = 1
    other: tuple[str, ...] = ()


def _lsu(space: str, *ops: str) -> tuple[str, ...]:
    return tuple(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum" for op in ops)


def _aperture(of: str, *ops: str) -> tuple[str, ...]:
    return tuple(f"lts__t_sectors_srcunit_tex_aperture_{of}_op_{op}.sum" for op in ops)


FLOWS = (
    _Flow(L1, KERNEL, "global loads", _lsu("global", "ld"), "request"),
    _Flow(KERNEL, L1, "global stores", _lsu("global", "st"), "request"),
    _Flow(KERNEL, L1, "global atomics", _lsu("global", "atom", "red"), "request"),
    _Flow(L1, KERNEL, "local loads", _lsu("local", "ld"), "request"),
    _Flow(KERNEL, L1, "local stores", _lsu("local", "st"), "request"),
    _Flow(L1, KERNEL, "texture", ("l1tex__t_requests_pipe_tex_mem_texture.sum",), "request"),
    _Flow(SHARED, KERNEL, "shared loads", ("smsp__sass_inst_executed_op_shared_ld.sum",), "inst"),
    _Flow(KERNEL, SHARED, "shared stores", ("smsp__sass_inst_executed_op_shared_st.sum",), "inst"),
    _Flow(SHARED, KERNEL, "ldmatrix", ("smsp__inst_executed_op_ldsm.sum",), "inst"),
    _Flow(L2, L1, "read", ("l1tex__m_xbar2l1tex_read_bytes.sum",)),
    _Flow(L1, L2, "written", ("l1tex__m_l1tex2xbar_write_bytes.sum",)),
    _Flow(L2, SHARED, "of it past L1",
          ("sm__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum",)),
    _Flow(DRAM, L2, "read", ("dram__bytes_read.sum",), other=("dram_bytes_read",)),
    _Flow(L2, DRAM, "written", ("dram__bytes_write.sum",), other=("dram_bytes_write",)),
    _Flow(SYSTEM, L2, "read",
          ("lts__t_sectors_srcunit_tex_aperture_sysmem_op_read_lookup_miss.sum",), times=SECTOR),
    _Flow(L2, SYSTEM, "written", _aperture("sysmem", "write", "atom", "red"), times=SECTOR),
    _Flow(PEER, L2, "read",
          ("lts__t_sectors_srcunit_tex_aperture_peer_op_read_lookup_miss.sum",), times=SECTOR),
    _Flow(L2, PEER, "written", _aperture("peer", "write", "atom", "red"), times=SECTOR),
)  # fmt: skip
# (box, fact, counter, registry key to take where the report lacks it, its unit).
FACTS = (
    (L1, "hit rate", "l1tex__t_sector_hit_rate.pct", "l1_hit_pct", "%"),
    (L2, "hit rate", "lts__t_sector_hit_rate.pct", "l2_hit_pct", "%"),
    (SHARED, "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "smem_wavefronts", ""),
    (SHARED, "bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "smem_bank_conflicts", ""),
    (L2, "busy", "", "l2_throughput_pct", "%"),
    (L1, "busy", "", "l1_throughput_pct", "%"),
    (DRAM, "busy", "", "dram_throughput_pct", "%"),
    (L2, "across halves", "lts__t_sectors_srcunit_ltcfabric.sum", "", "sector"),
)  # fmt: skip
# Without traffic of one of these there is no chart to draw.
NEEDED = ((L2, L1), (DRAM, L2))


def chart(
    counters: Mapping[str, Counter], metrics: Mapping[str, float | None]
) -> MemoryChart | None:
    """The chart of one launch; None where nothing between DRAM, L2 and L1 is known."""
    flows = [found for flow in FLOWS if (found := _flow(flow, counters, metrics))]
    if not any((flow.source, flow.target) in NEEDED for flow in flows):
        return None
    boxes: dict[str, list[tuple[str, float, str]]] = {}
    for box, fact, name, key, unit in FACTS:
        counter = counters.get(name)
        value = counter.value if counter else metrics.get(key)
        if value is not None:
            shown = value * SECTOR if unit == "sector" else value
            boxes.setdefault(box, []).append((fact, shown, "byte" if unit == "sector" else unit))
    return MemoryChart(boxes, flows)


def _flow(
    flow: _Flow, counters: Mapping[str, Counter], metrics: Mapping[str, float | None]
) -> Flow | None:
    known = [counters[name].value for name in flow.counters if name in counters]
    if len(known) < len(flow.counters):
        known = [value for key in flow.other if (value := metrics.get(key)) is not None]
        if not known:
            return None
    pct = [counters[n + PERCENT].value for n in flow.counters if n + PERCENT in counters]
    return Flow(
        flow.source, flow.target, flow.label, sum(known) * flow.times, flow.unit,
        max(pct) if pct else None,
    )  # fmt: skip
