"""Per-PC samples of a kernel: which instruction, of which source line, waited for what; and the listing of a report, SASS and
source line of each sampled instruction, kept beside a recorded report.

NVIDIA's disassembler takes 0.4 s to start and 0.1 s and more per kernel: half of what a deep report costs to
read. It says the same each time, so a recording holds what it said once, as `deep.listing.json.xz` beside
`deep.ncu-rep.xz`; of a report that is kept without its compiled modules, the listing is all there is. It names
its report by sha256 and serves that report alone; without one, or for an instruction that it lacks, the
disassembler is asked.
"""

import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, JsonObject, clean, digest, opened, read_json
from ncuflow.model import Row
from ncuflow.parsers import reader
from ncuflow.parsers.stalls import NOT_ISSUED, OTHER, STALL_REASONS, Unnamed, unnamed

Instruction = tuple[str | None, str | None, int | None]  # SASS, source file (relative), line
# Disassembling an instruction costs a third of a millisecond: it is done for those that hold samples worth
# showing. A PC below this share of its kernel's samples keeps them, and its line, without the SASS.
SHOWN_SHARE = 1e-3
_OPCODE = re.compile(r"^\s*(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_.]*)")


def rows_of(
    action: Any,
    listed: Mapping[int, Instruction] | None = None,
    more: Unnamed | None = None,
) -> Iterator[Row]:
    """A row per PC and reason with at least one sample, by PC; none where there are no samples.

    `pc` counts bytes from the kernel's first instruction; `file` is relative: from `flashinfer/`
    on, or the last two components; `sass` is None for PCs below SHOWN_SHARE. listed: what is known
    of the instructions by pc; NVIDIA's disassembler is asked for the others. more: the counters of reasons without a name,
    where somebody has them.
    """
    samples = [
        (reason.reason, counts, _by_pc(action, reason.samples + NOT_ISSUED))
        for reason in STALL_REASONS.values()
        if (counts := _by_pc(action, reason.samples))
    ]
    more = unnamed(tuple(action.metric_names())) if more is None else more
    if others := _all_by_pc(action, more.samples):
        samples.append((OTHER, others, _all_by_pc(action, more.samples_not_issued)))
    totals: Counter[int] = Counter()
    for _, counts, _ in samples:
        totals.update(counts)
    if not totals:
        return
    pcs = sorted(totals)
    first, least = _start(action, pcs), SHOWN_SHARE * totals.total()
    for pc in pcs:
        shown = totals[pc] >= least
        known = (listed or {}).get(pc - first) or _instruction(action, pc, with_sass=shown)
        place = {"pc": pc - first} | _columns(action, known, shown)
        for name, counts, idle in samples:
            if pc in counts:
                yield place | {
                    "reason": name,
                    "samples": counts[pc],
                    "samples_not_issued": None if idle is None else idle.get(pc, 0),
                }


def instructions(action: Any) -> dict[int, Instruction]:
    """Every sampled instruction of a kernel, disassembled: pc from its first instruction -> what is there."""
    pcs = _pcs(action)
    first = _start(action, pcs)
    return {pc - first: _instruction(action, pc) for pc in pcs}


def start(action: Any) -> int:
    """Address from which the `pc` of a kernel's rows count."""
    return _start(action, _pcs(action))


def _pcs(action: Any) -> list[int]:
    """Addresses at which a kernel has samples of any reason."""
    names = [reason.samples for reason in STALL_REASONS.values()]
    names += unnamed(tuple(action.metric_names())).samples
    return sorted({pc for name in names for pc in _by_pc(action, name) or {}})


def _by_pc(action: Any, name: str) -> Counter[int] | None:
    """Samples by PC of one counter, without the PCs that have none; None where it is absent."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_correlation_ids():
        return None
    pcs, get = metric.correlation_ids().as_uint64, metric.as_uint64
    counts: Counter[int] = Counter()
    for index in range(metric.num_instances()):
        if count := get(index):
            counts[pcs(index)] += count
    return counts


def _all_by_pc(action: Any, names: Iterable[str]) -> Counter[int] | None:
    """The same of several counters, added up."""
    counted = [counts for name in names if (counts := _by_pc(action, name)) is not None]
    return sum(counted, Counter[int]()) if counted else None


def _start(action: Any, pcs: list[int]) -> int:
    """Address of the kernel's first instruction: the lowest that was executed, or else sampled."""
    executed = action.metric_by_name("inst_executed")
    if executed is None or not executed.has_correlation_ids():
        return pcs[0] if pcs else 0
    address = executed.correlation_ids().as_uint64
    addresses = [int(address(index)) for index in range(executed.num_instances())]
    return min(addresses + pcs[:1], default=0)


def _instruction(action: Any, pc: int, with_sass: bool = True) -> Instruction:
    sass = disassembled(action, pc) if with_sass else ""
    source = action.source_info(pc)
    if source is None:
        return sass or None, None, None
    return sass or None, relative(source.file_name()), source.line()


def disassembled(action: Any, pc: int) -> str:
    """The instruction at an address; empty where NVIDIA's reader does not know those of the GPU, which it says by ???."""
    text = (action.sass_by_pc(pc) or "").strip()
    return text if text.strip("?") else ""


def _columns(action: Any, instruction: Instruction, shown: bool) -> Row:
    sass, file, line = instruction
    opcode = _OPCODE.match(sass) if sass and shown else None
    return {
        "sass": clean(sass) if sass and shown else None,
        "opcode": opcode[1] if opcode else None,
        "file": clean(file) if file else None,
        "line": line,
        "function": clean(action.name()),
    }


def relative(name: str) -> str | None:
    """A source file's name without the machine it was built on.

    relative("/x/site-packages/flashinfer/data/include/flashinfer/norm.cuh") is
    "include/flashinfer/norm.cuh"; of other files the last two components stay.
    """
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".", "..")]
    if not parts:
        return None
    if "flashinfer" in parts[:-1]:
        at = len(parts) - 2 - parts[-2::-1].index("flashinfer")
        return "/".join(parts[at - 1 :] if at and parts[at - 1] == "include" else parts[at:])
    return "/".join(parts[-2:])


# --- the listing beside a report -------------------------------------------------------------

LISTING_SUFFIX = ".listing.json.xz"
NO_LISTING = "not the listing of a report"
Listings = Mapping[int, Mapping[int, Instruction]]


def listing_path(report: Path) -> Path:
    """Where the listing of a report lies: deep.ncu-rep.xz has deep.listing.json.xz."""
    return report.with_name(
        report.name.removesuffix(".xz").removesuffix(".ncu-rep") + LISTING_SUFFIX
    )


def listing_of(report: Path) -> JsonObject | None:
    """The listing of a report, plain or `.xz`, by NVIDIA's reader; None where no kernel was sampled.

    {schema, report: its name, sha256: of the plain report, reader: package and version, kernels:
    [{kernel: index, function, instructions: [[pc, sass, file, line], …]}]}, with `pc`, `file` and
    `line` as in the table `lines`.
    """
    with opened(report) as plain:
        kernels = _listed_kernels(plain)
        head = {"schema": 1, "report": report.name.removesuffix(".xz"), "sha256": digest(plain)}
    by = f"ncu-report {importlib.metadata.version('ncu-report')}"
    return head | {"reader": by, "kernels": kernels} if kernels else None


def _listed_kernels(plain: Path) -> list[JsonObject]:
    kernels = []
    for index, action in reader.actions(reader.load(plain)):
        found = [[pc, *of_pc] for pc, of_pc in instructions(action).items()]
        if found:
            kernels.append({"kernel": index, "function": action.name(), "instructions": found})
    return kernels


def stored_listing(report: Path, plain: Path) -> Listings:
    """Kernel index -> pc -> instruction, from the listing beside a report; {} without one for it.

    plain: the report itself, decompressed. Raises BadInput where the file there is no listing.
    """
    content = listing_beside(report, plain)
    try:
        return {
            kernel["kernel"]: {
                pc: (sass, file, line) for pc, sass, file, line in kernel["instructions"]
            }
            for kernel in (content["kernels"] if content else ())
        }
    except (KeyError, TypeError, ValueError):
        raise BadInput(listing_path(report), NO_LISTING) from None


def listing_beside(report: Path, plain: Path) -> JsonObject | None:
    """The listing that lies beside a report and is of it, or None. `plain` and BadInput as for `stored`."""
    path = listing_path(report)
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or "sha256" not in content:
        raise BadInput(path, NO_LISTING)
    return content if content["sha256"] == digest(plain) else None
