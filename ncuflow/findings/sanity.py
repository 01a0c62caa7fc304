"""Sanity: numbers that cannot be. A page that would print one does not render, and says why.

Every number here is checked against something measured another way: rates against the ceiling of
the same launch, analytic work against counted work, event times against the trace, stall shares
against their sum. What reads stored results strikes these numbers: they are null then (``ncuflow.findings.stored``).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from ncuflow.answer import Answer, AnswerPart
from ncuflow.findings.ceilings import MEASURED_RATE
from ncuflow.findings.columns import BY_NAME, COLUMNS, above
from ncuflow.findings.join import ratio
from ncuflow.findings.limiter import BOUND, PARTLY, WAITING
from ncuflow.model import Kernel, Measurement, Params, Results, Row, Stall

# --- tolerances, each with the reason for its size ------------------------------------------------
# Bytes and their ceiling come from different replay passes, between which clocks move by a per cent
# or two.
COUNTED_RATE = 1.03
# A part runs at most at its datasheet peak; event timing of a 4 µs kernel has a resolution of 0.5
# %.
DATASHEET_RATE = 1.01
# Of the measured ceilings (MEASURED_RATE): the highest of what streamed and of the points' own counted work. An analytic
# rate may be above them by what L2 kept, or by a clock that a matrix product did not run at.
# Tensor FLOPs are counted per instruction: the hardware does the whole tile, so counted ≥ analytic
# always.
TENSOR_CREDIT = 1.05
# CUDA-core conventions (5 FLOP an element for RMSNorm) are not what the compiler emits.
CORE_CREDIT = 2.5
# A causal kernel credited with the full square counts twice the work, less the diagonal tiles.
CAUSAL_IN_FULL = (1.5, 2.1)
# Padding of 1 query row to a 16-row tile, and of a short sequence to one tile of 128: up to 128 ×.
PADDING = 1 / 150
# What a launch writes may still lie in L2 when the counters stop; beyond that every byte must pass
# DRAM.
DRAM_CREDIT = 1.03
# Reading twice, page tables, ECC: over-fetch is reported. Beyond this it is another kernel's
# traffic.
OVERFETCH, OVERFETCH_SLACK = 32.0, 32 << 20
# Shares are ratios over their own sum.
SHARE_SUM = 0.02
# Σ reasons and the warp latency come from different passes. Seen: 6 % off at 24 µs, 25 % and once 68 % at 3 to 5 µs; of
# three launches below 2.1 µs 44 and 114 %: nothing that would find an error there holds for them.
LATENCY, LATENCY_SHORT, SHORT_NS, TINY_NS = 0.12, 1.0, 20_000, 2_500
# Events bracket the kernels that nsys times, at other clocks: an H100 at its power limit took 19 % longer under nsys.
INSITU, INSITU_SLACK_US = 0.3, 1.0
# The same launch timed by ncu and by nsys. Seen on an H200: 0.8 to 1.6, the most for launches of 3 µs; further apart
# they are not the same launch, or one has the wrong unit.
DISTORTION = 10.0
# ncu reports a few tenths above 100 % where numerator and denominator come from different passes.
PERCENT_SLACK = 3.0
OCCUPANCY_SLACK = 3.0
# A row's own arithmetic: the columns are computed from each other in double precision.
ARITHMETIC = 1e-3

NUMERIC = {column.name for column in COLUMNS if column.kind in ("float", "int")}
PERCENTAGES = [column.name for column in COLUMNS if column.unit == "%"]
RATES = [column for column in COLUMNS if column.scale != 1]  # work over a time
# Between two kernels there may be no time at all, so that a gap alone is no duration.
DURATIONS = [c.name for c in COLUMNS if c.unit == "µs" and c.name != "kernel_gap_us"]
CEILINGS = {"datasheet": DATASHEET_RATE, "measured": MEASURED_RATE}
# By unit, what no GPU has: an hour for a launch, clocks as of ``ncuflow.record``, what CUDA lets a kernel be, a thousand times
# the rates of today's; of what has another unit, more than a launch of an hour could count.
MOST = {
    "µs": 3.6e9, "MHz": 1e4, "GHz": 10.0, "/thread": 255, "threads": 1024, "GB/s": 1e8, "TFLOPS": 1e7, "of 1": 1e3,
}  # fmt: skip
Numeric = int | float  # to write it in a call takes longer than the call
COUNTED = 1e21
QUARTILES = ("cold", "hot", "sustained")  # the series of which a row has them
# The column that is the median of a series of samples.
SERIES = {
    "cold_us": "time_cold_us", "hot_us": "time_hot_us", "host_us": "host_launch_us", "plan_us": "plan_us",
}  # fmt: skip


class ImpossibleNumber(AnswerPart):
    """A number that cannot be."""

    point: str
    """The point that has the number."""
    cell: str
    """The column of docs/measurements.md, or the counter and its kernel."""
    value: float | str
    """The value in ``unit``."""
    limit: float | str
    """The bound that the value cannot exceed, in ``unit``."""
    unit: str
    """The unit of value and bound."""
    cause: str
    """What causes such a number."""
    kind: str
    """The check that found it."""
    trace: str | None
    """The words that `ncuflow trace` takes; null for what is no column."""

    @property
    def struck(self) -> frozenset[str]:
        """The cell and every column that is computed from it."""
        return above(self.cell) | {self.cell}

    def __str__(self) -> str:
        return (
            f"{self.point}: {self.cell} = {_text(self.value)} {self.unit} is beyond "
            f"{_text(self.limit)} {self.unit} [{self.kind}]: {self.cause}"
        ).replace("  ", " ")


class SanityAnswer(Answer):
    """Numbers of results that cannot be."""

    ROWS: ClassVar[tuple[str, ...]] = ("violations",)
    command: Literal["sanity"] = "sanity"
    """The command that wrote this JSON."""
    impossible: int
    """How many impossible numbers there are."""
    violations: list[ImpossibleNumber]
    """Each impossible number."""


def check(results: Mapping[str, Any]) -> list[ImpossibleNumber]:
    """All impossible numbers of one target, from what its results file holds (``model.Results``)."""
    l2 = (results.get("provenance") or {}).get("l2_bytes")
    found: list[ImpossibleNumber] = []
    for entry in results["points"]:
        row = entry["measurement"] | {"point": entry["point"]}
        broken = list(_kinds(row))
        own = broken
        clean = row | {violation.cell: None for violation in broken}
        for rule in (
            _durations,
            _bounds,
            _quartiles,
            _rates_counted,
            _rates_timed,
            _percentages,
            _occupancy,
            _arithmetic,
        ):
            own += rule(clean)
        own += [*_flops(clean, entry.get("params") or {}), *_bytes(clean, l2)]
        own += [*_in_situ(clean), *_distortion(clean), *_series(entry)]
        struck = dict.fromkeys(cell for violation in own for cell in violation.struck)
        found += [*own, *_verdict(clean | struck)]
        for kernel in entry.get("kernels") or ():
            found += [*_kernel(kernel, row["point"]), *_counted(kernel, row["point"])]
    for kernel in results.get("deep") or ():
        found += _counted(kernel, str(kernel.get("point")))
    return found


def strike(results: Results) -> list[ImpossibleNumber]:
    """Take what cannot be out of results: it is null then, with all that is computed from it. Returns what that was."""
    found = check(results)
    for violation in found:
        of, _, name = violation.cell.partition(" of ")
        entries = [entry for entry in results["points"] if entry["point"] == violation.point]
        for entry in entries:
            row = entry["measurement"]
            row |= dict.fromkeys(violation.struck & row.keys())
            for series in [one for one, column in SERIES.items() if column in violation.struck]:
                entry["samples"].pop(series, None)
                entry["runs"].pop(series, None)
        kernels = [kernel for entry in entries for kernel in entry["kernels"]]
        for kernel in [*kernels, *results["deep"]]:
            if name and (kernel["name"] or "kernel") == name:
                _strike(kernel, of)
    return found


def _strike(kernel: Kernel, key: str) -> None:
    """One key of a kernel, or of its metrics; a table of it whole."""
    rows: Row = kernel  # type: ignore[assignment]
    if key in rows:
        rows[key] = [] if isinstance(rows[key], list) else None
    if key in kernel["metrics"]:
        kernel["metrics"][key] = None


def _kinds(row: Measurement) -> Iterator[ImpossibleNumber]:
    """What is no number, or no text, where that is expected."""
    for name, value in row.items():
        if value is None or name not in BY_NAME:
            continue
        if name not in NUMERIC:
            if not isinstance(value, str):
                yield _at(row, name, str(value), "text", "", "another column's value", "not text")
        elif isinstance(value, bool | str) or not math.isfinite(value):
            cause = "the counter or the timing failed; missing must be null"
            yield _at(row, name, str(value), "a finite number", "", cause, "not a number")


def _durations(row: Measurement) -> Iterator[ImpossibleNumber]:
    for name in DURATIONS:
        if row.get(name) is not None and row[name] <= 0:
            cause = "nothing ran between the two time stamps, or they are swapped"
            yield _at(row, name, row[name], 0.0, "µs", cause, "duration")


def _bounds(row: Measurement) -> Iterator[ImpossibleNumber]:
    """What is counted is not negative, and no GPU has more than the most of its unit."""
    for name, value in row.items():
        if value is None or name not in NUMERIC or name in PERCENTAGES:
            continue
        unit = BY_NAME[name].unit
        if value < 0 and name not in DURATIONS:
            cause = "a counter that overflowed, or a difference taken the wrong way round"
            yield _at(row, name, value, 0.0, unit, cause, "negative")
        elif value > (most := MOST.get(unit, COUNTED)):
            yield _at(row, name, value, most, unit, "the value is in another unit", "no GPU has it")


def _verdict(row: Measurement) -> Iterator[ImpossibleNumber]:
    """A verdict is one of three, and of units whose shares are known."""
    if row.get("verdict") is None:
        return
    needed = ["busiest_unit", "busiest_pct"]
    needed += ["second_pct"] * (
        row.get("draw") is not None and row["draw"] == row.get("second_unit")
    )
    missing = [name for name in needed if row.get(name) is None]
    if row["verdict"] not in (BOUND, PARTLY, WAITING) or missing:
        cause = f"{', '.join(missing) or 'what it is of'} is not known"
        yield _at(row, "verdict", str(row["verdict"]), "what is known", "", cause, "verdict")


def _quartiles(row: Measurement) -> Iterator[ImpossibleNumber]:
    """A median lies between its quartiles."""
    for name in QUARTILES:
        low, middle, high = (row.get(f"time_{name}{part}_us") for part in ("_q25", "", "_q75"))
        if None in (low, middle, high) or low <= middle <= high:  # type: ignore[operator]
            continue
        cause = "the quartiles are those of another series"
        limit = low if middle < low else high  # type: ignore[operator]
        yield _at(row, f"time_{name}_us", middle, limit, "µs", cause, "quartiles")  # type: ignore[arg-type]


def _series(entry: Mapping[str, Any]) -> Iterator[ImpossibleNumber]:
    """Each sample of a time is one."""
    for name, column in SERIES.items():
        kept = [
            (entry.get("samples") or {}).get(name),
            *((entry.get("runs") or {}).get(name) or ()),
        ]
        samples = [sample for series in kept for sample in series or ()]
        for worst in [s for s in samples if s is not None and not 0 < s <= MOST["µs"]][:1]:
            cause = "nothing ran between the two time stamps, or they are swapped"
            limit = MOST["µs"] if worst > 0 else 0.0
            yield _found(entry["point"], column, worst, limit, "µs", cause, "sample")


def _rates_counted(row: Measurement) -> Iterator[ImpossibleNumber]:
    """Counted bytes and tensor FLOPs against the peak of that launch, at that launch's clock."""
    for name, ceiling, unit, kind, cause in (
        ("dram_gbs_counted", "ceiling_dram_gbs_counter", "GB/s", "rate above the DRAM ceiling",
         "bytes and time belong to different kernels, or the duration is not this launch's"),
        ("tensor_tflops_counted", "ceiling_tensor_tflops_counter", "TFLOPS",
         "rate above the tensor ceiling",
         "the ceiling is another instruction's (HMMA, HGMMA), or sparsity is counted"),
    ):  # fmt: skip
        rate, limit = row.get(name), row.get(ceiling)
        if rate is not None and limit is not None and rate > COUNTED_RATE * limit:
            yield _at(row, name, rate, limit, unit, cause, kind)


def _rates_timed(row: Measurement) -> Iterator[ImpossibleNumber]:
    """Analytic work over event time, against the part's peak and the rate measured on it."""
    for name, part, unit in (("gbs", "dram_gbs", "GB/s"), ("tflops", "tensor_tflops", "TFLOPS")):
        rate = row.get(name)
        for source, tolerance in CEILINGS.items():
            limit = row.get(f"ceiling_{part}_{source}")
            if rate is None or limit is None or rate <= tolerance * limit:
                continue
            kind = "warm bandwidth" if name == "gbs" else "analytic rate"
            cause = _warm_cause(row, rate) if name == "gbs" else _credit_cause(row)
            yield _at(row, name, rate, limit, unit, f"{cause} ({source} ceiling)", kind)
            break


def _warm_cause(row: Measurement, rate: float) -> str:
    hot = row.get("gbs_hot")
    if hot is not None and rate >= 0.9 * hot:
        return "the data came from a warm L2: the time is that of launches without a flush"
    return "more bytes are credited than pass DRAM, or the timed range misses part of the work"


def _credit_cause(row: Measurement) -> str:
    ratio = row.get("flops_ratio")
    if ratio is not None and CAUSAL_IN_FULL[0] <= ratio <= CAUSAL_IN_FULL[1]:
        return "a causal kernel is credited with the full square"
    return (
        "more FLOPs are credited than the kernel does, or the timed range misses part of the work"
    )


def _flops(row: Measurement, params: Params) -> Iterator[ImpossibleNumber]:
    """Analytic FLOPs against those the hardware counted."""
    ratio = row.get("flops_ratio")
    if ratio is None:
        return
    on_tensor = bool(row.get("flops_tensor_counted"))
    limit = TENSOR_CREDIT if on_tensor else CORE_CREDIT
    if ratio > limit:
        in_full = params.get("causal") and CAUSAL_IN_FULL[0] <= ratio <= CAUSAL_IN_FULL[1]
        cause = (
            "the causal mask is ignored: full FLOPs are credited to a kernel that skips the tiles "
            "above the diagonal"
            if in_full
            else "the analytic count credits work that no instruction did"
        )
        yield _at(row, "flops_analytic", ratio, limit, "× counted", cause, "FLOPs ratio")
    elif on_tensor and ratio < PADDING:
        cause = "the counters hold another kernel's work, or count more than one launch"
        yield _at(row, "flops_analytic", ratio, PADDING, "× counted", cause, "FLOPs ratio")


def _bytes(row: Measurement, l2_bytes: float | None) -> Iterator[ImpossibleNumber]:
    """Analytic bytes against DRAM bytes.

    L2 may hold up to its size back, so small footprints always pass.
    """
    analytic, counted = row.get("bytes_analytic"), row.get("bytes_dram_counted")
    if analytic is None or counted is None or l2_bytes is None:
        return
    limit = DRAM_CREDIT * (counted + l2_bytes)
    if analytic > limit:
        cause = "more bytes are credited than passed DRAM, though the footprint is larger than L2"
        yield _at(row, "bytes_analytic", analytic, limit, "B", cause, "bytes ratio")
    most = OVERFETCH * analytic + OVERFETCH_SLACK
    if counted > most:
        cause = (
            "the counters hold another kernel's traffic, or the analytic count misses an operand"
        )
        yield _at(row, "bytes_dram_counted", counted, most, "B", cause, "bytes ratio")


def _in_situ(row: Measurement) -> Iterator[ImpossibleNumber]:
    cold, kernels = row.get("time_cold_us"), row.get("time_insitu_us")
    if cold is None or kernels is None:
        return
    limit = (1 - INSITU) * kernels - INSITU_SLACK_US
    if cold < limit:
        cause = "the events do not bracket every kernel that the trace shows in this point's range"
        yield _at(row, "time_cold_us", cold, limit, "µs", cause, "shorter than its kernels")


def _distortion(row: Measurement) -> Iterator[ImpossibleNumber]:
    ratio = row.get("replay_distortion")
    if ratio is not None and not 1 / DISTORTION <= ratio <= DISTORTION:
        cause = "ncu and nsys timed different launches, or a time has the wrong unit"
        limit = DISTORTION if ratio > 1 else 1 / DISTORTION
        yield _at(row, "time_ncu_us", ratio, limit, "× in application", cause, "replay distortion")


def _percentages(row: Measurement) -> Iterator[ImpossibleNumber]:
    for name in PERCENTAGES:
        if (value := row.get(name)) is not None:
            yield from _percentage(name, value, row["point"])


def _percentage(name: str, value: float, point: str) -> Iterator[ImpossibleNumber]:
    if not -PERCENT_SLACK / 10 <= value <= 100 + PERCENT_SLACK:
        limit = 0.0 if value < 0 else 100.0
        cause = "numerator and denominator are of different launches, units or pass groups"
        yield _found(point, name, value, limit, "%", cause, "percentage")


def _occupancy(row: Measurement) -> Iterator[ImpossibleNumber]:
    achieved, most = row.get("achieved_occupancy_pct"), row.get("theoretical_occupancy_pct")
    if achieved is not None and most is not None and achieved > most + OCCUPANCY_SLACK:
        cause = "the two come from different kernels"
        yield _at(row, "achieved_occupancy_pct", achieved, most, "%", cause, "occupancy")


def _arithmetic(row: Measurement) -> Iterator[ImpossibleNumber]:
    """A rate times its time must give the work it came from."""
    for column in RATES:
        (work, time), rate = column.terms, row.get(column.name)
        expected = ratio(row.get(work), row.get(time), column.scale)
        if rate is None or expected is None or row[time] < 0:
            continue
        if abs(rate - expected) > ARITHMETIC * max(abs(expected), 1e-12):
            cause = f"it is not {work} / {time}: a unit, or a row joined to another point"
            yield _at(row, column.name, rate, expected, column.unit, cause, "arithmetic")


def _kernel(kernel: Kernel, point: str) -> Iterator[ImpossibleNumber]:
    metrics, stalls = kernel.get("metrics") or {}, kernel.get("stalls") or []
    name = kernel.get("name") or "kernel"
    duration = metrics.get("duration_ns", kernel.get("duration_ns"))
    if isinstance(duration, int | float) and duration <= 0:
        cause = "the profiler did not time this launch"
        yield _found(point, f"duration_ns of {name}", duration, 0.0, "ns", cause, "duration")
    for key, value in metrics.items():
        if key.endswith("_pct") and isinstance(value, int | float):
            yield from _percentage(f"{key} of {name}", value, point)
    yield from _stall_shares(stalls, name, point)
    yield from _stall_latency(stalls, metrics, duration, name, point)


def _counted(kernel: Kernel, point: str) -> Iterator[ImpossibleNumber]:
    """What of a launch is counted below zero or beyond all counts, in its own fields, its metrics or its tables."""
    cause = "a counter that overflowed, or a difference taken the wrong way round"
    fields: Row = {**kernel, **(kernel.get("metrics") or {})}
    numbers, tables = [], []
    for key, value in fields.items():
        if key == "duration_ns" or key.endswith("_pct"):
            continue
        if isinstance(value, list):
            tables.append(
                (key, [v for row in value if isinstance(row, dict) for v in row.values()])
            )
        else:
            numbers.append((key, [value]))
    for key, values in numbers + tables:
        for value in values:
            if isinstance(value, Numeric) and not 0 <= value <= COUNTED:
                cell, limit = f"{key} of {kernel.get('name') or 'kernel'}", COUNTED * (value > 0)
                yield _found(point, cell, value, limit, "", cause, "count")
                break


def _stall_shares(stalls: list[Stall], name: str, point: str) -> Iterator[ImpossibleNumber]:
    known = ((s["kind"], s.get("share")) for s in stalls)
    shares = [share for kind, share in known if kind == "stall" and share is not None]
    if shares and (abs(sum(shares) - 1) > SHARE_SUM or min(shares) < 0):
        cause = "a reason is missing or counted twice, or selected is counted as a stall"
        yield _found(point, f"stalls of {name}", sum(shares), 1.0, "of 1", cause, "stall shares")


def _stall_latency(
    stalls: list[Stall],
    metrics: Mapping[str, float | None],
    duration: float | None,
    name: str,
    point: str,
) -> Iterator[ImpossibleNumber]:
    latency = metrics.get("warp_latency_per_issue")
    ratios = [ratio for stall in stalls if (ratio := stall.get("ratio")) is not None]
    if not latency or not ratios or (duration is not None and duration < TINY_NS):
        return
    short = duration is None or duration < SHORT_NS
    tolerance = LATENCY_SHORT if short else LATENCY
    if abs(sum(ratios) / latency - 1) > tolerance:
        cause = (
            "the reasons do not add up to the warp latency: some are missing, or of another launch"
        )
        cell = f"warp_latency_per_issue of {name}"
        yield _found(point, cell, sum(ratios), latency, "cycles", cause, "warp latency")


def _at(row: Measurement, *found: Any) -> ImpossibleNumber:
    return _found(row["point"], *found)


def _found(
    point: str, cell: str, value: Any, limit: Any, unit: str, cause: str, kind: str
) -> ImpossibleNumber:
    """Infinity, which JSON has no number for, is text."""
    said = [n if isinstance(n, str) or math.isfinite(n) else str(n) for n in (value, limit)]
    trace = f"{point} {cell}" if cell in BY_NAME else None
    return ImpossibleNumber(
        point=point, cell=cell, value=said[0], limit=said[1], unit=unit, cause=cause, kind=kind, trace=trace
    )  # fmt: skip


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
