"""A kernel looked at closely: its memory chart, roofline, pipes, instruction mix, spread, and its code with samples."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ncuflow.io import below, clean
from ncuflow.model import Kernel
from ncuflow.parsers.detail import Counter, Detail
from ncuflow.view import memory
from ncuflow.view.model import Code, LaunchDetail, LaunchView, Roof, Roofline, Spread

# Use of a pipe in per cent of its peak while the SM was active: by cycles where the report has them, else by instructions.
PIPE = re.compile(
    r"sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?\.avg\.pct_of_peak_sustained_active"
)
UNITS = {
    "sm": "SMs", "smsp": "schedulers", "l1tex": "L1TEX caches", "lts": "slices of L2", "dram": "DRAM channels",
    "fbpa": "DRAM partitions", "gpc": "GPCs", "ltc": "slices of L2",
}  # fmt: skip
ROLLED = re.compile(r"(([a-z0-9]+)__[a-z0-9_]+)\.avg")
# Of what an instance counts in a launch, below which its distance from the mean is chance and keeps nobody waiting.
FEW = 100
# bytes of a source file: a larger one is generated, and no page shows it
LARGEST_SOURCE = 2_000_000


def of_launch(launch: LaunchView, detail: Detail, source: Path | None) -> LaunchDetail:
    """What a report holds of a launch. source: a folder below which its source files are looked for."""
    return LaunchDetail(
        kernel=launch.index,
        memory=memory.chart(detail.counters, launch.kernel["metrics"]),
        tables=memory.tables(detail.counters),
        pipes=pipes(detail),
        opcodes=sorted(
            ((name, count) for name, count in detail.opcodes.items() if count),
            key=lambda item: -item[1],
        ),
        spread=list(spread(detail)),
        code=code(detail, source),
        detail=detail,
    )


def pipes(detail: Detail) -> list[tuple[str, float]]:
    """(pipe, per cent of its peak), the busiest first; those that did nothing are left out."""
    found: dict[str, float] = {}
    for name, counter in detail.counters.items():
        if (match := PIPE.fullmatch(name)) and counter.value:
            found[match[1]] = max(counter.value, found.get(match[1], 0.0))
    return sorted(found.items(), key=lambda item: -item[1])


def spread(detail: Detail) -> Iterator[Spread]:
    """Counters whose smallest and largest instance differ, by unit; the widest first."""
    found = []
    for name, counter in detail.counters.items():
        match = ROLLED.fullmatch(name)
        if not match or match[2] not in UNITS or not counter.value:
            continue
        least, most = (detail.counters.get(f"{match[1]}.{end}") for end in ("min", "max"))
        if least and most and least.value < most.value >= FEW:
            unit = UNITS[match[2]]
            found.append(Spread(match[1], unit, counter.value, least.value, most.value))
    yield from sorted(found, key=lambda one: -(one.most - one.least) / one.mean)


def code(detail: Detail, source: Path | None) -> Code | None:
    """The instructions of a kernel with their samples and source lines; None where the report has none."""
    if not detail.instructions:
        return None
    sources = {at: text.splitlines() for at, text in detail.sources.items()}
    found = dict.fromkeys(sources, "report")
    for at, name in enumerate(detail.files) if source else ():
        if at not in sources and (text := _below(source, name)) is not None:
            sources[at], found[at] = text.splitlines(), "folder"
    return Code(detail.instructions, detail.samples, detail.files, sources, found)


def _below(folder: Path | None, name: str) -> str | None:
    """The text of a source file by the longest end of its name that is a file below a folder; None without one.

    A name in a report is anybody's: what a link or ".." leads out of the folder to is not read.
    """
    if folder is None:
        return None
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", "..", ".")]
    for start in range(len(parts)):
        path = below(folder, "/".join(parts[start:]))
        with suppress(OSError):  # one that may not be read
            if path is not None and path.stat().st_size <= LARGEST_SOURCE:
                return clean(path.read_text("utf-8", "replace"))
    return None


# Kinds of arithmetic and levels of memory: label -> registry keys of the count and of its ceiling.
COMPUTE = {
    "tensor": ("tensor_flops", "tensor_flops_peak_per_second"),
    "tensor, integer": ("tensor_int_ops", "tensor_int_ops_peak_per_second"),
    "FP32": ("fp32_flops", "fp32_flops_peak_per_second"),
    "FP16": ("fp16_flops", "fp16_flops_peak_per_second"),
}
LEVELS = {
    "DRAM": (("dram_bytes_read", "dram_bytes_write"), "dram_peak_bytes_per_second"),
    "L2": (("l2_bytes",), "l2_peak_bytes_per_second"),
    "L1": (("l1_bytes",), "l1_peak_bytes_per_second"),
}
# FP64 outside of the tensor cores is of no target, and no metric of the registry: instruction -> FLOP of a thread.
FP64 = "FP64"
FP64_FLOP = {"dadd": 1, "dmul": 1, "dfma": 2}
EXECUTED = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FP64_PEAK = "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained"
NS = 1e-9


def roofline(kernel: Kernel, detail: Detail | None = None) -> Roofline | None:
    """Of one launch; detail: of one that is looked at closely. None without work, traffic or a time."""
    of, ns = kernel["metrics"].get, kernel["duration_ns"]
    if not ns:
        return None
    flops = {name: of(key) for name, (key, _) in COMPUTE.items()}
    peaks = {name: of(key) for name, (_, key) in COMPUTE.items()}
    if detail is not None:
        flops[FP64] = fp64_flops(detail.counters, ns)
        peaks[FP64] = _product(detail.counters, FP64_PEAK, "sm__cycles_elapsed.avg.per_second", 2)
    worked = {name: value for name, value in flops.items() if value}
    moved = {name: [of(key) for key in keys] for name, (keys, _) in LEVELS.items()}
    known = {
        name: sum(value or 0 for value in values)
        for name, values in moved.items()
        if None not in values
    }
    if not worked or not any(known.values()):
        return None
    compute = [Roof(name, peak) for name in worked if (peak := peaks[name])]
    memory = [Roof(name, peak) for name in known if (peak := of(LEVELS[name][1]))]
    return Roofline(worked, {k: v for k, v in known.items() if v}, tuple(compute), tuple(memory))


def fp64_flops(counters: Mapping[str, Counter], ns: float) -> float | None:
    """FLOP in FP64 from counts, else from rates over the time of the launch; None where an instruction is not counted."""
    counts = [_product(counters, EXECUTED.format(op), None, n) for op, n in FP64_FLOP.items()]
    if None in counts:
        rate = ".per_cycle_elapsed"
        clock = "smsp__cycles_elapsed.avg.per_second"
        counts = [
            _product(counters, EXECUTED.format(op) + rate, clock, n * ns * NS)
            for op, n in FP64_FLOP.items()
        ]
    return None if None in counts else sum(one for one in counts if one is not None)


def _product(
    counters: Mapping[str, Counter], name: str, other: str | None, factor: float
) -> float | None:
    if name not in counters or (other and other not in counters):
        return None
    return counters[name].value * (counters[other].value if other else 1) * factor
