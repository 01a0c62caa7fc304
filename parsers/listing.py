"""The listing of a report: SASS and source line of each sampled instruction, kept beside a recorded report.

NVIDIA's disassembler takes 0.4 s to start and 0.1 s and more per kernel: half of what a deep report costs to
read. It says the same each time, so a recording holds what it said once, as `deep.listing.json.xz` beside
`deep.ncu-rep.xz`; of a report that is kept without its compiled modules, the listing is all there is. It names
its report by sha256 and serves that report alone; without one, or for an instruction that it lacks, the
disassembler is asked.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, digest, opened, read_json
from ncuflow.parsers import children, lines, reader

SUFFIX = ".listing.json.xz"
NO_LISTING = "not the listing of a report"
Listings = Mapping[int, Mapping[int, lines.Instruction]]


def place(report: Path) -> Path:
    """Where the listing of a report lies: deep.ncu-rep.xz has deep.listing.json.xz."""
    return report.with_name(report.name.removesuffix(".xz").removesuffix(".ncu-rep") + SUFFIX)


def make(report: Path) -> dict[str, Any] | None:
    """What `listed` says, in a child: the disassembler leaves a thread behind, and a process with threads should not fork."""
    ((_, made),) = children.each(listed, [report])
    return made


def listed(report: Path) -> dict[str, Any] | None:
    """The listing of a report, plain or `.xz`, by NVIDIA's reader; None where no kernel was sampled.

    {schema, report: its name, sha256: of the plain report, reader: package and version, kernels:
    [{kernel: index, function, instructions: [[pc, sass, file, line], …]}]}, with `pc`, `file` and
    `line` as in the table `lines`.
    """
    with opened(report) as plain:
        kernels = _kernels(plain)
        head = {"schema": 1, "report": report.name.removesuffix(".xz"), "sha256": digest(plain)}
    reader = f"ncu-report {importlib.metadata.version('ncu-report')}"
    return head | {"reader": reader, "kernels": kernels} if kernels else None


def _kernels(plain: Path) -> list[dict[str, Any]]:
    kernels = []
    for index, action in reader.actions(reader.load(plain)):
        listed = [[pc, *of_pc] for pc, of_pc in lines.instructions(action).items()]
        if listed:
            kernels.append({"kernel": index, "function": action.name(), "instructions": listed})
    return kernels


def stored(report: Path, plain: Path) -> Listings:
    """Kernel index -> pc -> instruction, from the listing beside a report; {} without one for it.

    plain: the report itself, decompressed. Raises BadInput where the file there is no listing.
    """
    content = beside(report, plain)
    try:
        return {
            kernel["kernel"]: {
                pc: (sass, file, line) for pc, sass, file, line in kernel["instructions"]
            }
            for kernel in (content["kernels"] if content else ())
        }
    except (KeyError, TypeError, ValueError):
        raise BadInput(place(report), NO_LISTING) from None


def beside(report: Path, plain: Path) -> dict[str, Any] | None:
    """The listing that lies beside a report and is of it, or None. `plain` and BadInput as for `stored`."""
    path = place(report)
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or "sha256" not in content:
        raise BadInput(path, NO_LISTING)
    return content if content["sha256"] == digest(plain) else None
