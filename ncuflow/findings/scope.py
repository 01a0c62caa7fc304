"""Scope: the names that expressions may use of a point or of the machine, and where each value came from.

A point's scope holds its parameters, its measurement columns, the main kernel's metrics by registry
key, ``stall_<reason>`` and ``state_<reason>`` shares, what plan() chose (``info_<key>``), the GPU
(``gpu_sm_count``, ``gpu_l2_bytes``, …) and lists over its kernels (``kernel_names``,
``kernel_grids``, …). The machine's scope holds its ceilings. docs/claims.md has the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from ncuflow.expression import evaluate
from ncuflow.findings import limiter, noise
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import is_merge, main_kernel, ratio, total
from ncuflow.model import Ceilings, Kernel, Point, Results, Stall
from ncuflow.parsers import breakdown, registry
from ncuflow.parsers.stalls import STALL_REASONS
from ncuflow.target.contract import known, traits

# What an expression reads: a number, a text, a yes or no, a list of these, or None where unknown.
Value = Any
Values = dict[str, Value]
REASONS = frozenset(STALL_REASONS)
# Of the GPU; l2_bytes without the prefix is the L2 traffic of the main kernel.
GPU = {f"gpu_{name}": name for name in ("sm_count", "l2_bytes", "memory_bytes")}
KERNEL_LISTS = {
    "kernel_names": "name",
    "kernel_templates": "demangled",
    "kernel_grids": "grid_size",
    "kernel_durations_ns": "duration_ns",
}
ITEMSIZE = {"f32": 4, "f16": 2, "bf16": 2, "f8": 1}
# What the machine reached in ceilings.json, each in bursts and, with _sustained behind it, sustained.
REACHED = ("copy_gbs", "read_gbs", "matmul_tflops_f16", "matmul_tflops_bf16")
MACHINE = {
    "dram_gbs_datasheet",
    "tensor_tflops_datasheet",
    *REACHED,
    *(f"{r}_sustained" for r in REACHED),
}
# Of the kernels that merge a split, and the time of a launch among many.
# Of the kernel whose work others merge, which need not be the longest.
SPLIT = ("issue_active", "waves", "tensor_pipe_elapsed_pct")
DERIVED = {
    "step_us", "step_cold_us", "graph_pays", "capturable",
    "merge_us", *(f"merge_{unit}_pct" for unit in breakdown.UNITS), *(f"split_{name}" for name in SPLIT),
}  # fmt: skip
FIXED = {
    *DERIVED,
    "itemsize",
    "limited_by",
    "main_template",
    "published",
    "ceiling",
    *KERNEL_LISTS,
    *GPU,
}


@dataclass(frozen=True)
class ValueOrigin:
    """Where a value was read: evidence file, point, kernel, metric and its formula."""

    report: str | None
    point: str | None
    kernel: str | None
    metric: str
    formula: str | None


def nothing(name: str) -> None:
    """The origin, and the noise, of a value that has none."""


@dataclass
class Scope(Mapping[str, Value]):
    """Values by name. A name that exists elsewhere in the evidence but not here is unknown (None).

    origin: where a known value was read; noise: its relative floor, if it has one. Both by name, and
    found when asked for: a claim cites a handful of the two hundred names of a point.
    """

    known: Values
    possible: frozenset[str] = frozenset()
    point: str | None = None
    origin: Callable[[str], ValueOrigin | None] = nothing
    noise: Callable[[str], float | None] = nothing

    def __getitem__(self, name: str) -> Value:
        try:
            return self.known[name]
        except KeyError:
            if name in self:
                return None
            raise

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self.possible or str(name).startswith("info_")

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def with_values(self, **values: Value) -> Scope:
        """The same scope with further values."""
        return replace(self, known=self.known | values)


def possible_names(results: Results) -> frozenset[str]:
    """Every name that some point of this target could have."""
    known = set(FIXED) | set(BY_NAME) | set(registry.METRICS) | set(_parameters(results["target"]))
    known |= set(traits(results["target"], {}))
    known |= {f"{kind}_{reason}" for kind in ("stall", "state") for reason in REASONS}
    for entry in results["points"]:
        known |= set(entry["params"]) | set(entry["measurement"])
        known |= {key for kernel in entry["kernels"] for key in kernel["metrics"]}
    return frozenset(known)


def _parameters(target: str) -> Iterable[str]:
    """Parameters that the target declares, where this checkout has the target."""
    found = known().get(target)
    return found.parameters if found else ()


def point_scope(entry: Point, results: Results, possible: frozenset[str]) -> Scope:
    """The scope of one point."""
    provenance, params, row = results["provenance"], entry["params"], entry["measurement"]
    main = main_kernel(entry["kernels"])
    values: Values = {name: provenance.get(key) for name, key in GPU.items()}
    values |= {f"info_{key}": value for key, value in entry["info"].items()}
    values |= _of_kernels(entry["kernels"], main)
    values |= {name: value for name, value in row.items() if name != "params"} | params
    values |= traits(results["target"], params)
    values["itemsize"] = ITEMSIZE.get(str(values.get("dtype")))
    values["limited_by"] = limiter.words(row)
    values |= _of_merges(entry["kernels"]) | _shares(entry["kernels"], values)
    values |= _of_split(entry["kernels"])
    values["capturable"] = not entry["info"].get("rival") and not row.get("plan_us")
    values["step_us"] = evaluate("max(host_launch_us, time_hot_us)", row)
    values["step_cold_us"] = evaluate("max(host_launch_us, time_cold_us)", row)
    floors = results.get("noise") or {}
    return Scope(
        values,
        possible,
        entry["point"],
        lambda name: _origin(name, entry, main) if name in values else None,
        lambda name: noise.floor_at(name, row, floors) if name in values else None,
    )


def machine_scope(ceilings: Ceilings) -> Scope:
    """The scope of the machine, which is no point: what it reached, and what its datasheet promises."""
    sheet, measured = ceilings["datasheet"], ceilings["measured"]
    figures: dict[str, Mapping[str, Any]] = {}
    for name, series in measured["series"].items():
        kind, _, dtype = name.partition(", ")
        key = f"matmul_tflops_{dtype}" if dtype else f"{kind}_gbs"
        figures |= {key: series, f"{key}_sustained": series.get("sustained") or {}}
    published = {
        "dram_gbs_datasheet": sheet["dram_gbs"],
        "tensor_tflops_datasheet": sheet["tensor_tflops"],
    }

    def origin(name: str) -> ValueOrigin:
        method = figures.get(name.removesuffix("_sustained"), {}).get("method", sheet["source"])
        return ValueOrigin("ceilings.json" if name in figures else None, None, None, name, method)

    def spread(name: str) -> float | None:
        found = figures.get(name, {})
        return noise.half_width(*map(found.get, ("q25", "q75", "n", "value")))

    reached = {name: figure.get("value") for name, figure in figures.items()}
    return Scope(reached | published, frozenset(MACHINE), None, origin, spread)


def _of_kernels(kernels: Sequence[Kernel], main: Kernel | None) -> Values:
    columns = {name: [kernel.get(key) for kernel in kernels] for name, key in KERNEL_LISTS.items()}
    out: Values = {name: c if c and None not in c else None for name, c in columns.items()}
    if main:
        out |= main["metrics"] | {"main_template": main["demangled"]} | _stalls(main["stalls"])
    return out


def _shares(kernels: Sequence[Kernel], values: Values) -> Values:
    """Shares of the kernels' time where all kernels are known and the main one runs alone: it takes all, no other any."""
    if len(kernels) != 1 or is_merge(kernels[0]):
        return {}
    none = {name: values.get(name) or 0.0 for name in ("merge_pct", "others_pct")}
    return none | {"main_pct": 100.0}


def _of_merges(kernels: Sequence[Kernel]) -> Values:
    """The time of the kernels that merge what others split, and how busy the first keeps each unit."""
    merges = list(filter(is_merge, kernels))
    if not 0 < len(merges) < len(kernels):
        return {}
    units = limiter.judge(merges[0]["breakdown"], merges[0]["metrics"]).units
    spent = ratio(total(kernel["duration_ns"] for kernel in merges), 1e3)
    return {f"merge_{unit.name}_pct": unit.pct for unit in units} | {"merge_us": spent}


def _of_split(kernels: Sequence[Kernel]) -> Values:
    """Counters of the one kernel that merges nothing: the point's own where no merge follows it."""
    own = [kernel for kernel in kernels if not is_merge(kernel)]
    counted = own[0]["metrics"] if len(own) == 1 else {}
    return {f"split_{name}": counted.get(name) for name in SPLIT}


def _stalls(stalls: Sequence[Stall]) -> Values:
    """``stall_<r>``: share of stall cycles; ``state_<r>``: of all warp cycles, issued ones too."""
    ratios = {s["reason"]: s["ratio"] for s in stalls if s["ratio"] is not None}
    total = sum(ratios.values())
    out: Values = {f"stall_{s['reason']}": s["share"] for s in stalls if s["kind"] == "stall"}
    states = {f"state_{reason}": ratio / total for reason, ratio in ratios.items() if total}
    return out | states


def _origin(name: str, entry: Point, main: Kernel | None) -> ValueOrigin:
    column, kernel = BY_NAME.get(name), main["name"] if main else None
    point, report = entry["point"], main["report"] if main else None
    if name in entry["params"]:
        return ValueOrigin(None, point, None, name, "parameter of the point")
    if column is None:
        return ValueOrigin(report, point, kernel, _ncu_name(name), _stall_formula(name))
    if column.source == "ncu":
        return ValueOrigin(report, point, kernel, name, column.formula)
    file = {"events": "timing.jsonl", "nsys": "trace.sqlite"}.get(column.source)
    folder = PurePosixPath(report).parent if report else entry["measurement"].get("target")
    return ValueOrigin(f"{folder}/{file}" if file else None, point, None, name, column.formula)


def _ncu_name(name: str) -> str:
    kind, _, reason = name.partition("_")
    if kind in ("stall", "state") and reason in REASONS:
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return name


def _stall_formula(name: str) -> str | None:
    kind, _, reason = name.partition("_")
    if reason not in REASONS:
        return None
    return {
        "stall": "ratio / sum of all stall ratios",
        "state": "ratio / sum of all warp states",
    }.get(kind)
