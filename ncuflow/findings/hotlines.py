"""Hot lines: the source lines at which warps of a deep-profiled kernel stood, and why they waited.

    ncuflow hotlines --results A_results.json … --evidence ROOT --out hotlines.json

A sample says where a warp stood, so the line is the one that waits, seldom the one that causes the
wait: a long_scoreboard stands at the first use of a value, not at its load.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.findings import stored
from ncuflow.findings.join import ratio
from ncuflow.findings.roles import roles, told_apart
from ncuflow.findings.stalltree import sampling_error
from ncuflow.io import below, read_json, write_json
from ncuflow.model import Kernel, LineRow
from ncuflow.parsers import listing

MOST_LINES = 5
ADDRESS = re.compile(r"\s+0x[0-9a-f]{6,}$")  # that a branch goes to, of one process
MOST_OPCODES = 4
NOT_A_STALL = ("selected", "not_selected")


@dataclass(frozen=True)
class HotLine:
    """A source line (or, without line tables, one instruction) with its share of all samples.

    file: as the compiler knew it, from ``include/`` on; None without line tables. function: the
    enclosing function of the source index. uncertainty: half-width of share. reason: the largest
    stall there, with its part of the stalled samples. opcodes: (SASS opcode, samples), the largest
    first. text: the line itself, where that FlashInfer version is installed. pc: of
    the instruction, without line tables.
    """

    file: str | None
    line: int | None
    function: str | None
    sass: str | None
    samples: int
    share: float
    uncertainty: float | None
    reason: str | None
    reason_share: float | None
    opcodes: tuple[tuple[str, int], ...]
    text: str | None = None
    pc: int | None = None


def hottest(
    kernel: Kernel, index: Any = None, version: str | None = None, most: int = MOST_LINES
) -> list[HotLine]:
    """The hottest lines of a deep-profiled kernel, the hottest first; none without samples.

    index: the source index of the FlashInfer measured; version: that FlashInfer's version, whose
    installed source is quoted.
    """
    rows = [row for row in told_apart(kernel["lines"]) if row["samples"]]
    total = _samples(rows)
    places: dict[tuple[str | None, int | None, int | None], list[LineRow]] = defaultdict(list)
    for row in rows:
        known = row["file"] is not None and row["line"]
        places[(row["file"], row["line"], None) if known else (None, None, row["pc"])].append(row)
    ordered = sorted(places.items(), key=lambda p: (-_samples(p[1]), str(p[0])))[:most]
    root = installed(version)
    return [_line(file, line, rows, total, index, root) for (file, line, _), rows in ordered]


def coverage(kernel: Kernel) -> float | None:
    """Share of the samples that have a source line; None without samples."""
    rows = kernel["lines"]
    known = _samples(row for row in rows if row["file"] is not None and row["line"])
    return ratio(known, _samples(rows))


def records(
    target: str,
    deep: Iterable[Kernel],
    index: Any = None,
    version: str | None = None,
    evidence: Path | None = None,
) -> list[dict[str, Any]]:
    """The hot lines and roles of all deep kernels of a target, as rows for ``results/hotlines.json``."""
    return [
        {
            "target": target,
            "point": kernel["point"],
            "kernel": kernel["name"],
            "report": kernel["report"],
            "samples": _samples(kernel["lines"]),
            "with_lines": coverage(kernel),
            "lines": [asdict(line) for line in hottest(kernel, index, version, 32)],
            "roles": [asdict(role) for role in roles(kernel, instructions(kernel, evidence))],
        }
        for kernel in deep
    ]


def instructions(kernel: Kernel, evidence: Path | None) -> dict[int, str]:
    """Instruction text by pc from the listing beside a recorded report; {} without one."""
    report = Path(kernel["report"])
    path = below(evidence, str(listing.place(report))) if evidence and report.name else None
    if path is None:
        return {}
    for listed in read_json(path)["kernels"]:
        if listed["kernel"] == kernel["kernel"]:
            return {pc: text for pc, text, _, _ in listed["instructions"]}
    return {}


def _samples(rows: Iterable[LineRow]) -> int:
    return sum(row["samples"] for row in rows)


def _line(
    file: str | None,
    line: int | None,
    rows: list[LineRow],
    total: int,
    index: Any,
    root: Path | None,
) -> HotLine:
    samples = _samples(rows)
    stalled = [row for row in rows if row["reason"] not in NOT_A_STALL]
    reasons = _largest((row["reason"], row["samples"]) for row in stalled)
    reason, count = next(iter(reasons), (None, 0))
    return HotLine(
        file,
        line,
        enclosing(index, file, line),
        _placeless(rows[0]["sass"]) if file is None else None,
        samples,
        samples / total,
        sampling_error(samples / total, total),
        reason,
        ratio(count, _samples(stalled)),
        tuple(_largest((row["opcode"], row["samples"]) for row in rows)[:MOST_OPCODES]),
        text_of(root, file, line),
        rows[0]["pc"] if file is None else None,
    )


def _placeless(sass: str | None) -> str | None:
    """An instruction without the address that its branch had in one process."""
    return sass and ADDRESS.sub("", sass)


def _largest(counted: Iterable[tuple[str | None, int]]) -> list[tuple[str, int]]:
    """The samples added up by name, the largest sum first."""
    counts: Counter[str] = Counter()
    for name, samples in counted:
        if name:
            counts[name] += samples
    return sorted(counts.items(), key=lambda c: (-c[1], c[0]))


def enclosing(index: Any, file: str | None, line: int | None) -> str | None:
    """The innermost function of the source index around a line, or None."""
    table = (index or {}).get("functions") or {}
    spans = table.get(f"data/{file}") or ()
    around = [(end - start, name) for start, end, name in spans if line and start <= line <= end]
    return str(min(around)[1]) if around else None


def installed(version: str | None) -> Path | None:
    """The data folder of the installed FlashInfer if it is of this version; it is not imported."""
    try:
        if version is None or importlib.metadata.version("flashinfer-python") != version:
            return None
        spec = importlib.util.find_spec("flashinfer")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return Path(spec.origin).parent / "data" if spec and spec.origin else None


def text_of(root: Path | None, file: str | None, line: int | None) -> str | None:
    """A line of an installed source file, stripped; None where the file is not there, or is none of the package's."""
    lines = _lines(root, file) if root and file else []
    return lines[line - 1].strip() if line and 0 < line <= len(lines) else None


@cache
def _lines(root: Path, file: str) -> list[str]:
    """The lines of a file that anybody's report names; none where it is not there."""
    # An editable install's own links lead to its checkout.
    path = below(root, file, within=Path("/"))
    return path.read_text("utf-8", "replace").splitlines() if path else []


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--evidence", type=Path, required=True, help="folder with source_index.json"
    )
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    index = stored.optional(args.evidence / "source_index.json")
    kernels = []
    for results in map(stored.results, args.results):
        version = results["provenance"].get("flashinfer")
        kernels += records(results["target"], results["deep"], index, version, args.evidence)
    write_json(args.out, {"schema": 1, "kernels": kernels})
