"""What the HTML page is given: findings and tables as columns, in blocks that it unpacks when it needs them.

This is the one place where the page meets the findings. A block is a JSON value; a column is a list
with an entry per point (kernel, operation, instruction), null where the value is not known. No number is
computed here that a finding has: the page shows the tables' own values. What decides a claim is told in words.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ncuflow import format as form
from ncuflow.evidence.provenance import together
from ncuflow.findings import ceilings, choices, limiter, waits
from ncuflow.findings.columns import COLUMNS
from ncuflow.findings.join import main_kernel, total
from ncuflow.findings.results import read, read_some
from ncuflow.format import Struck, change, number, percent, with_unit
from ncuflow.io import BadInput, JsonObject
from ncuflow.model import SOFTWARE, Kernel, LineRow, Point, Results
from ncuflow.pages.section import Findings, target_section
from ncuflow.pages.series import tensor_kinds
from ncuflow.parsers.breakdown import UNITS
from ncuflow.parsers.registry import METRICS
from ncuflow.parsers.stalls import STALL_REASONS
from ncuflow.target.contract import known

# Counted work by precision, and the ceilings of a launch that the measurement row has no column for.
WORK = {"tensor": "tensor_flops", "fp32": "fp32_flops", "fp16": "fp16_flops"}
ROOFS = (
    "dram_peak_bytes_per_second",
    "l2_peak_bytes_per_second",
    "l1_peak_bytes_per_second",
    "fp32_flops_peak_per_second",
    "fp16_flops_peak_per_second",
)
KERNEL = (
    "report", "kernel", "name", "demangled", "grid", "block", "grid_size", "block_size",
    "registers", "smem_static_bytes", "smem_dynamic_bytes", "duration_ns", "passes", "stream",
    "problems",
)  # fmt: skip
OPERATION = (
    "launch", "kind", "name", "start_ns", "duration_ns", "gap_before_ns", "stream", "graph",
    "api_start_ns", "api_duration_ns",
)  # fmt: skip
READ_FROM = ("report", "kernel", "key", "metric")  # of the metrics: what each was read from
CONDITIONS = (
    "report", "run", "sm_mhz_before", "sm_mhz_after", "mem_mhz_before", "mem_mhz_after",
    "throttled", "throttle_reasons", "cold_throttle", "hot_throttle", "sustained_throttle", "retakes",
)  # fmt: skip

# Columns of the table of points, until a reader chooses others.
USUAL = (
    "time_cold_us", "tflops", "gbs", "tflops_fraction_measured", "gbs_fraction_measured", "limits", "issue_active",
    "achieved_occupancy_pct", "top_stall", "top_stall_share", "sol_dram_pct", "tensor_pipe_pct", "time_insitu_us",
    "time_ncu_us",
)  # fmt: skip
# Columns by which two points are told apart.
COMPARED = (
    "time_cold_us", "time_hot_us", "time_insitu_us", "time_ncu_us", "tflops", "gbs", "flops_counted",
    "bytes_dram_counted", "sol_sm_pct", "sol_memory_pct", "sol_dram_pct", "sol_l2_pct", "tensor_pipe_pct",
    "issue_active", "achieved_occupancy_pct", "registers", "smem_bytes", "grid_size", "waves", "kernel_count",
    "main_kernel", "top_stall", "top_stall_share", "sm_clock_ghz",
)  # fmt: skip

# Words of column names that a reader would not guess.
WORDS = {
    "gbs": "bandwidth", "tflops": "FLOP rate", "ai": "intensity", "sol": "SOL", "sm": "SM", "dram": "DRAM", "l2": "L2",
    "l1": "L1", "insitu": "in application", "smem": "shared memory", "flops": "FLOP", "n": "samples",
    "q25": "lower quartile", "q75": "upper quartile", "fraction": "of", "pct": "", "us": "", "ghz": "", "mhz": "",
}  # fmt: skip
ADVICE = ("optimization", "warning")  # types of NVIDIA's rules that advise
# Fires for any kernel: it wants memory allocated as compressible, which torch does not do.
NO_ADVICE = "MemoryL2Compression"


def blocks(side: Findings, number: int) -> Iterator[tuple[str, Any]]:
    """(name, value) of what is unpacked when a point or a source is opened; the tables of a side lie beside its results."""
    for target, results in side.targets.items():
        yield f"detail {number} {target}", detail(results, side.folder.parent / "tables" / target)
        if results["deep"]:
            yield f"source {number} {target}", source(results, side)


def columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> JsonObject:
    """Rows as {name: values}."""
    return {name: [row.get(name) for row in rows] for name in names}


def main(sides: Sequence[Findings]) -> JsonObject:
    """The block that every view needs: sides with their points, and what the columns mean."""
    return {
        "sides": [side_of(side) for side in sides],
        "columns": [_declared(column) for column in COLUMNS],
        "software": SOFTWARE,
        "usual": USUAL,
        "compared": COMPARED,
        **meanings(),
    }


def meanings() -> JsonObject:
    """What names of metrics, units, waits and stall reasons mean, and the groups of reasons."""
    return {
        "metrics": {m.key: [m.label, m.unit, m.meaning] for m in METRICS.values()},
        "limiters": {name: limiter.label(name) for name in (*UNITS, *limiter.WAITS)},
        "stalls": {s.reason: s.meaning for s in STALL_REASONS.values()}
        | {waits.MBARRIER: waits.MBARRIER_MEANING},
        "groups": {r: name for name, found in waits.GROUPS.items() for r in found},
    }


def _declared(column: Any) -> JsonObject:
    """What a column declares, its function aside."""
    named = ("name", "kind", "unit", "formula", "terms", "keys", "main", "evidence", "source")
    found = {name: getattr(column, name) for name in named} | {"label": label_of(column.name)}
    return {name: value for name, value in found.items() if value not in ("", (), None, False)}


def label_of(name: str) -> str:
    """ "time_cold_us" as "time cold": the name of a column without its unit, in words."""
    words = (WORDS.get(word, word) for word in name.split("_"))
    return " ".join(filter(None, words))


def side_of(side: Findings) -> JsonObject:
    """One capture's targets, points and machine."""
    all_results = list(side.targets.values())
    machine = side.optional("environment_info")
    if not all_results and not machine:
        raise BadInput(side.folder.parent, "no results here: results/<target>_results.json")
    measured = together(results["provenance"] for results in all_results)
    provenance = measured or machine["provenance"]
    measurements = [p["measurement"] for found in all_results for p in found["points"]]
    return {
        "name": provenance["recording"] or side.folder.parent.name,
        "provenance": provenance,
        "machine": machine,
        "jit": side.optional("jit_analysis"),
        "targets": [target_of(results, side.source_index) for results in all_results],
        "points": points(all_results),
        "flat_roofs": {
            source: ceilings.flat_roofs(measurements, source)
            for source in ("datasheet", "measured")
        },
        "roofless": ceilings.roofless(measurements),
        "struck": side.struck,
        "stopped": side.stopped,
        "warnings": [warned for results in all_results for warned in results["warnings"]],
    }


def target_of(results: Results, index: Any) -> JsonObject:
    """What the overview says of one target, as the Markdown pages do."""
    found = target_section(results, index)
    best = found["best"]
    return {
        **{
            k: found[k]
            for k in ("name", "title", "base", "total", "good", "ceilings", "passed", "incomplete")
        },
        "axis": found["axis"].name,
        "rate": found["axis"].rate,
        "best": best and best["id"],
        "noise": results["noise"],
        "prices": list(prices(results)),
        "rules": rules(results),
        "opportunities": [
            {name: value for name, value in row.items() if name != "points"}
            for row in found["opportunities"]
        ],
    }


def rules(results: Results) -> list[JsonObject]:
    """NVIDIA's rules that fired at points of a target, those at most points first, with the largest estimate of each."""
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for point in results["points"]:
        for kernel in point["kernels"]:
            for rule in kernel["rules"]:
                if rule["type"] in ADVICE and rule["rule"] != NO_ADVICE:
                    found[rule["rule"]].append((point["point"], rule))
    told = []
    for name, fired in found.items():
        at, most = max(fired, key=lambda one: one[1]["speedup_pct"] or 0)
        words = {
            "pct": most["speedup_pct"],
            "kind": most["speedup_type"],
            "message": most["message"],
        }
        told.append({"rule": name, "points": len({point for point, _ in fired}), "id": at, **words})
    return sorted(told, key=lambda one: -one["points"])


def points(all_results: Sequence[Results]) -> JsonObject:
    """All points of a side: identity, parameters, every column of the measurement, and the roofline's terms."""
    found = [(results["target"], point) for results in all_results for point in results["points"]]
    rows = [point["measurement"] for _, point in found]
    kinds = tensor_kinds(all_results)
    order = dict.fromkeys(name for _, point in found for name in point["params"])
    return {
        "id": [point["point"] for _, point in found],
        "target": [target for target, _ in found],
        "status": [point["status"] for _, point in found],
        "reason": [point["reason"] for _, point in found],
        "params": columns([point["params"] for _, point in found], order),
        "measurement": columns(rows, (column.name for column in COLUMNS)),
        "limiter": [row["limiter"] for row in rows],
        "limited_by": [limiter.words(row) or form.MISSING for row in rows],
        "limits": [limiter.kind(row) or form.MISSING for row in rows],
        "instruction": [kinds.get(point["point"]) for _, point in found],
        "work": {
            name: [total(k["metrics"].get(key) for k in point["kernels"]) for _, point in found]
            for name, key in WORK.items()
        },
        "roofs": {key: [_of_main(point, key) for _, point in found] for key in ROOFS},
        "struck": [[n for n, v in row.items() if isinstance(v, Struck)] for row in rows],
    }


def _of_main(point: Point, key: str) -> float | None:
    main = main_kernel(point["kernels"])
    return main["metrics"].get(key) if main else None


def prices(results: Results) -> Iterator[JsonObject]:
    """The choices of a target with every pair that prices them."""
    target = known().get(results["target"])
    for choice in target.compared if target else ():
        found = choices.effects(choice, results)
        if found:
            called = {"key": choice.key, "title": choice.title, "called": choice.called}
            yield called | {
                "pairs": [
                    asdict(price)
                    | {"fixed": dict(price.fixed), "traits": dict(price.traits)}
                    | {"label": label_of(price.metric)}
                    for price in found
                ]
            }


def detail(results: Results, tables: Path) -> JsonObject:
    """What the page of a point shows beyond its row: samples, kernels, stalls, rules, timeline.

    Lists by point stand in the order of the target's points; ``kernels.point`` and
    ``timeline.point`` count within it.
    """
    found = results["points"]
    place: dict[str | None, int] = {point["point"]: at for at, point in enumerate(found)}
    kernels = [kernel for point in found for kernel in point["kernels"]]
    timing = [row for row in read(tables, "timing") if row["point"] in place]
    return {
        "id": list(place),
        "check": columns([point["check"] for point in found], ("tolerance",)),
        "problems": [point["problems"] for point in found],
        "samples": [_known(point["samples"]) for point in found],
        "runs": [_known(point["runs"]) for point in found],
        "timing": {"point": [place[row["point"]] for row in timing]} | columns(timing, CONDITIONS)
        | columns(timing, [n for n in (timing[0] if timing else ()) if n.endswith("left_out_us")]),
        "kernels": {"point": [place.get(kernel["point"]) for kernel in kernels]}
        | columns(kernels, KERNEL)
        | kernel_columns(kernels),
        "counters": counters(kernels, read_some(tables, "metrics", READ_FROM)),
        "timeline": timeline(read_some(tables, "timeline", ("report", "point", *OPERATION)), place),
    }  # fmt: skip


def _known(series: Mapping[str, Any]) -> JsonObject:
    return {name: values for name, values in series.items() if values}


def kernel_columns(kernels: Sequence[Kernel]) -> JsonObject:
    """Metrics and stalls of kernels as columns by key and reason; stall trees; rules with their texts once."""
    keys = dict.fromkeys(key for kernel in kernels for key in kernel["metrics"])
    texts: dict[str, int] = {}
    parts: dict[str, int] = {}
    return {
        "metrics": columns([kernel["metrics"] for kernel in kernels], keys),
        "stalls": [stalls(kernel) for kernel in kernels],
        "breakdown": [
            [
                [part["parent"], parts.setdefault(part["counter"], len(parts)), part["unit"], part["pct"]]
                for part in kernel["breakdown"]
            ]
            for kernel in kernels
        ],
        "parts": list(parts),
        "rolled_up": [limiter.rolled_up(k["breakdown"], k["metrics"]) for k in kernels],
        "tree": [tree(kernel) for kernel in kernels],
        "rules": [
            [
                [r["rule"], r["section"], r["type"], r["speedup_pct"], r["speedup_type"],
                 texts.setdefault(r["message"], len(texts))]
                for r in kernel["rules"]
            ]
            for kernel in kernels
        ],
        "texts": list(texts),
    }  # fmt: skip


def stalls(kernel: Kernel) -> list[list[Any]]:
    """Every state that a warp of a kernel was found in: [reason, kind, cycles per instruction, share, samples]."""
    return [
        [s["reason"], s["kind"], s["ratio"], s["share"], s["samples"]] for s in kernel["stalls"]
    ]


def tree(kernel: Kernel) -> JsonObject | None:
    """The stall tree of a kernel: {issued, basis, samples, reasons: [[reason, share, of_stalls, ±]]}."""
    found = waits.stall_tree(kernel)
    if found is None:
        return None
    reasons = [
        [r.reason, group.name, r.share, r.of_stalls, r.uncertainty]
        for group in found.groups
        for r in group.reasons
    ]
    return {"issued": found.issued, "basis": found.basis, "samples": found.samples, "reasons": reasons}  # fmt: skip


def counters(kernels: Sequence[Kernel], read: Mapping[str, Sequence[Any]]) -> JsonObject:
    """Registry key -> the ncu counters that it was read from, by kernel: places in ``names``. read: columns of READ_FROM."""
    place = {(kernel["report"], kernel["kernel"]): at for at, kernel in enumerate(kernels)}
    names: dict[str, int] = {}
    read_from: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(kernels))
    for report, kernel, key, metric in zip(*(read[name] for name in READ_FROM), strict=True):
        at = place.get((report, kernel))
        if at is not None:
            read_from[key][at] = names.setdefault(metric, len(names))
    return {"names": list(names), "of": dict(read_from)}


def timeline(found: Mapping[str, Sequence[Any]], place: Mapping[str | None, int]) -> JsonObject:
    """The operations of points' launches, of columns of the timeline; times in ns from the first start (or call) of their
    launch."""
    of_launch = zip(found["point"], found["launch"], strict=True)
    rows = [at for at, (of, number) in enumerate(of_launch) if of in place and number is not None]
    shown = {name: [values[at] for at in rows] for name, values in found.items()}
    points = [place[point] for point in shown["point"]]
    keys = list(zip(points, shown["launch"], strict=True))
    first: dict[Any, int] = {}
    for key, start, call in zip(keys, shown["start_ns"], shown["api_start_ns"], strict=True):
        start = min(start, call or start)
        first[key] = min(first.get(key, start), start)
    out: JsonObject = {"point": points, "report": sorted(set(shown["report"]))}
    out |= {name: shown[name] for name in OPERATION}
    for name in ("start_ns", "api_start_ns"):
        out[name] = [
            None if time is None else time - first[key]
            for time, key in zip(out[name], keys, strict=True)
        ]
    return out


def source(results: Results, side: Findings) -> list[JsonObject]:
    """Instructions of each deep kernel with their samples by reason, for the source view."""
    index, version = side.source_index, results["provenance"].get("flashinfer")
    root = waits.installed(version)
    return [_listed(kernel, side.evidence, index, root) for kernel in results["deep"]]


def _listed(kernel: Kernel, evidence: Path, index: Any, root: Path | None) -> JsonObject:
    by_pc: dict[int, list[LineRow]] = defaultdict(list)
    for row in kernel.get("lines") or ():
        by_pc[row["pc"]].append(row)
    listing = waits.instructions(kernel, evidence)
    sass = {pc: rows[0]["sass"] for pc, rows in by_pc.items()} | listing
    firsts = [rows[0] for rows in by_pc.values()]
    places = {(r["file"], r["line"]) for r in firsts if r["file"] and r["line"]}
    return {
        **{name: value for name, value in kernel.items() if name in ("name", "demangled", "point")},
        "tree": tree(kernel),
        "stalls": stalls(kernel),
        "pc": list(by_pc),
        "sass": [sass[pc] for pc in by_pc],
        "file": [r["file"] for r in firsts],
        "line": [r["line"] for r in firsts],
        "samples": [
            [[r["reason"], r["samples"], r["samples_not_issued"]] for r in rows]
            for rows in by_pc.values()
        ],
        "places": [
            [file, line, waits.enclosing(index, file, line), waits.text_of(root, file, line)]
            for file, line in sorted(places)
        ],
    }


Claim = Mapping[str, Any]


def told(claim: Claim) -> list[tuple[str, str]]:
    """What is told of a claim, [[name, text]…]; what is not known is left out."""
    published, measured = claim["published"], claim["measured"]
    apart, floor = (claim["difference"] or {}).get("relative"), claim["noise_floor"]
    found = {
        "published": _published(published),
        "measured": _measured(measured),
        "difference": None if apart is None else change(apart),
        "rule": _rule(claim),
        "tolerance": _tolerance(claim),
        "noise floor": None if floor is None else _amount(floor, claim["unit"]),
    }
    return [(name, text) for name, text in found.items() if text]


def _amount(value: Any, unit: str | None) -> str:
    """A value of a claim, in its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{percent(value, 1)} of the ceiling"
        if unit == "of the ceiling"
        else with_unit(value, unit or "")
    )


def _published(found: Claim | None) -> str | None:
    """The published figure or range, and the GPU that it was measured on or is expected of."""
    figure = _figure(found) if found else None
    if not figure or not found or not found.get("gpu"):
        return figure
    return f"{figure}, {'expected of' if found['expected'] else 'on'} {found['gpu']}"


def _figure(found: Claim) -> str | None:
    unit = found["unit"]
    if found["value"] is not None:
        return _amount(found["value"], unit)
    if not found["range"]:
        return None
    low, high = found["range"]
    if low is None or high is None:
        return f"at most {_amount(high, unit)}" if low is None else f"at least {_amount(low, unit)}"
    return _amount(low, unit) if low == high else f"{number(low)}–{_amount(high, unit)}"


def _measured(found: Claim | None) -> str | None:
    if not found or found["value"] is None:
        return None
    value = _amount(found["value"], found["unit"])
    if not found["aggregate"]:
        return value
    return f"{value}, {found['aggregate']} over {number(found['known'])} points"


def _rule(claim: Claim) -> str | None:
    """How the values are taken together, and what that is compared with."""
    if not claim["compare"]:
        return None
    compared = (claim["published"] or {}).get("compared") or {}
    limit, value = claim["limit"], compared.get("value")
    bounds = [
        limit if limit is not None else value if value is not None else compared.get(end)
        for end in ("low", "high")
    ]
    against = (
        [] if claim["compare"] == "holds" else dict.fromkeys(b for b in bounds if b is not None)
    )
    words = [
        f"{(claim['measured'] or {}).get('aggregate') or 'value'} over {claim['over']}",
        claim["compare"],
    ]
    return " ".join([*words, " and ".join(_amount(one, claim["unit"]) for one in against)]).strip()


def _tolerance(claim: Claim) -> str | None:
    found = claim["tolerance"]
    if not found:
        return None
    if found.get("relative") is None:
        return f"± {_amount(found['absolute'], claim['unit'])}"
    return f"± {percent(found['relative'], 1)} of the figure"
