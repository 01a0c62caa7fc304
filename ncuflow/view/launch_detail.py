"""A kernel looked at closely: its memory chart, pipes, instruction mix, spread, and its code with samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ncuflow.io import below, clean
from ncuflow.parsers.detail import Detail
from ncuflow.view import memory, memory_tables
from ncuflow.view.model import Code, LaunchDetail, LaunchView, Spread

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
LARGEST_SOURCE = (
    2_000_000  # bytes of a source file: a larger one is generated, and no page shows it
)


def of_launch(launch: LaunchView, detail: Detail, source: Path | None) -> LaunchDetail:
    """What a report holds of a launch. source: a folder below which its source files are looked for."""
    return LaunchDetail(
        kernel=launch.index,
        memory=memory.chart(detail.counters, launch.kernel["metrics"]),
        tables=memory_tables.tables(detail.counters),
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
