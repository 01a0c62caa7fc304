"""What warps wait for: the stall tree of a launch, the roles of its warps, and the source lines at which they stood.

    ncuflow hotlines --results A_results.json … --evidence ROOT --out hotlines.json

The stall tree is what the schedulers of a launch did with their cycles, in shares that sum to 1.

    active scheduler cycles (1)
    ├─ an instruction issued     issue_active, counted
    └─ nothing issued            1 − issue_active
       ├─ memory                 attributed: (1 − issue_active) × share of the stalls
       │  └─ long_scoreboard …
       └─ execution, shared memory, constant cache, synchronisation, front end …

The first split is counted, the second is an attribution. In a cycle in which nothing issues several
warps wait, each for its own reason, and the hardware names none of them as the cause. The cycle is
charged to the reasons in proportion to the warps that waited: by the per-PC samples taken while
nothing issued, where the report has enough of them, else by the stall ratios (cycles in the state
per issued instruction). ``selected`` and ``not_selected`` warps were ready and are not charged.
Where a deep profile shows which long_scoreboard are waits at an mbarrier, those stand apart: they wait
for other warps, not for a load of their own.
"""

import importlib.metadata
import importlib.util
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.findings import stored
from ncuflow.findings.join import ratio
from ncuflow.io import below, read_json, write_json
from ncuflow.model import Kernel, LineRow, Row, Rule, Stall
from ncuflow.parsers import lines
from ncuflow.parsers.stalls import STALL_REASONS

# --- roles: in a kernel whose warps are specialised, what producers and consumers wait for ---

# Roles of warps: in a kernel whose warps are specialised, what its producers and its consumers wait for.
#
# From sm_90 on a producer warp loads tiles and consumer warps compute on them. They hand each other the stages of a
# buffer at mbarriers in shared memory, and a warp that waits there shows as long_scoreboard, as if for a load: a
# consumer waits for the producer's tile, the producer for a stage that the consumers have read.
#
# The roles are told by where they give away and take registers (``USETMAXREG``) in the listing of the kernel.

MBARRIER = "mbarrier"
MBARRIER_MEANING = (
    "a phase of an mbarrier in shared memory: "
    "data that another warp or the copy engine has yet to bring or to read"
)
PRODUCER, CONSUMER, OTHER = "producer", "consumer", "other"
TAKES = {"USETMAXREG.DEALLOC": PRODUCER, "USETMAXREG.TRY_ALLOC": CONSUMER}
AT_MBARRIER = {
    PRODUCER: "a stage that the consumers have read",
    CONSUMER: "the producer's tile",
    OTHER: "an mbarrier",
}
NOT_WAITING = ("selected", "not_selected")
MATRIX = re.compile(r"\w*MMA\b")


@dataclass(frozen=True)
class Role:
    """Warps of one role: their share of all samples, of 1, and of their own samples what they waited for, most first."""

    name: str
    share: float
    waits: tuple[tuple[str, float], ...]


def told_apart(rows: Iterable[LineRow]) -> list[LineRow]:
    """The samples of a kernel, with ``mbarrier`` as the reason of those of warps that waited at one.

    A branch waits for its predicate. Loads give none, and in a kernel with mbarriers (``SYNCS``) the one that is so
    long in coming is that of the barrier's test.
    """
    every = list(rows)
    if not has_mbarriers(row["opcode"] for row in every):
        return every
    return [_renamed_at_mbarrier(row) for row in every]


def has_mbarriers(opcodes: Iterable[str | None]) -> bool:
    """Whether instructions are of a kernel with mbarriers."""
    return any((opcode or "").startswith("SYNCS") for opcode in opcodes)


def _renamed_at_mbarrier(row: LineRow) -> LineRow:
    return row | {"reason": MBARRIER} if _at_mbarrier(row) else row


def _at_mbarrier(row: LineRow) -> bool:
    return row["reason"] == "long_scoreboard" and (row["opcode"] or "").startswith("BRA")


def mbarrier_part(kernel: Kernel) -> float:
    """Of the samples that say long_scoreboard, the part that is waits at an mbarrier; 0 without samples by line."""
    rows = told_apart(kernel.get("lines") or ())
    count = Counter({"long_scoreboard": 0, MBARRIER: 0})
    for row in rows:
        count[row["reason"] or ""] += row["samples"]
    of = count["long_scoreboard"] + count[MBARRIER]
    return count[MBARRIER] / of if of else 0.0


def roles(kernel: Kernel, listing: Mapping[int, str]) -> list[Role]:
    """The roles of a deep-profiled kernel, the largest first; none where its warps are alike, or without a listing.

    listing: the text of each of its instructions by pc.
    """
    of_pc = _role_of(listing)
    if not of_pc:
        return []
    texts: list[LineRow] = [
        row | {"opcode": _opcode(listing.get(row["pc"]))} for row in kernel.get("lines") or ()
    ]
    counts: dict[str, Counter[str]] = {}
    barriers = has_mbarriers(map(_opcode, listing.values()))
    for row in map(_renamed_at_mbarrier, texts) if barriers else texts:
        role, reason = of_pc.get(row["pc"], OTHER), row["reason"]
        if reason:
            what = AT_MBARRIER[role] if reason == MBARRIER else reason
            counts.setdefault(role, Counter())[what] += row["samples"]
    total = sum(found.total() for found in counts.values())
    found = [_role(name, own, total) for name, own in counts.items() if own.total()]
    return sorted(found, key=lambda role: -role.share)


def _role(name: str, found: Counter[str], total: int) -> Role:
    own = found.total()
    waits = ((what, n / own) for what, n in found.most_common() if what not in NOT_WAITING)
    return Role(name, own / total, tuple(waits))


def _opcode(text: str | None) -> str | None:
    return re.sub(r"^@!?U?P\w+\s+", "", text) if text else None


def _role_of(listing: Mapping[int, str]) -> dict[int, str]:
    """pc -> role; empty where no warp gives registers away, or where the roles' code is not apart.

    The compiler lays each role's code out behind the instruction that sets its registers. Matrix instructions are the
    consumers': one behind the producer's start says that the code is laid out otherwise.
    """
    out: dict[int, str] = {}
    role = OTHER
    for pc, text in sorted(listing.items()):
        opcode = _opcode(text) or ""
        role = next((of for begins, of in TAKES.items() if opcode.startswith(begins)), role)
        if role == PRODUCER and MATRIX.match(opcode):
            return {}
        out[pc] = role
    return out if PRODUCER in out.values() else {}


# --- the tree --------------------------------------------------------------------------------

GROUPS = {
    "memory (L1TEX, L2, DRAM)": (
        "long_scoreboard", "lg_throttle", "tex_throttle", "drain",
    ),
    "constant cache": ("imc_miss",),  # of immediate constants: no load through L1TEX waits for it
    "shared memory and special functions": ("short_scoreboard", "mio_throttle"),
    "execution": ("math_pipe_throttle", "gmma", "wait", "dispatch_stall"),
    "synchronisation": ("barrier", "membar", "sleeping", MBARRIER),
    "front end": ("no_instruction", "branch_resolving"),
}  # fmt: skip
ENOUGH_SAMPLES = 1000  # below it a share of 10 % is uncertain by a fifth of itself
SIGMAS = 2.0
# Fires for any kernel: it wants memory allocated as compressible, which torch does not do.
NOT_ADVICE = ("MemoryL2Compression",)


@dataclass(frozen=True)
class StallShare:
    """One stall reason.

    share: of all active cycles; of_stalls: of the cycles in which nothing issued; meaning: what
    NVIDIA says a warp waits for; uncertainty: half-width of of_stalls at two standard errors,
    None where the shares come from ratios, which are counted.
    """

    reason: str
    meaning: str | None
    share: float
    of_stalls: float
    uncertainty: float | None = None


@dataclass(frozen=True)
class StallGroup:
    """Reasons that wait for the same part of the machine, the largest first."""

    name: str
    share: float
    reasons: tuple[StallShare, ...]


@dataclass(frozen=True)
class Tree:
    """issued + the groups' shares = 1. basis: samples (then how many, ``samples``) or ratio."""

    issued: float
    not_issued: float
    groups: tuple[StallGroup, ...]
    basis: str
    samples: int | None

    def top(self, n: int = 3, least: float = 0.1) -> list[StallShare]:
        """The reasons that matter: at most ``n``, each at least ``least`` of the stall cycles."""
        reasons = sorted((r for g in self.groups for r in g.reasons), key=lambda r: -r.share)
        return [r for r in reasons if r.of_stalls >= least][:n]


def stall_tree(kernel: Kernel) -> Tree | None:
    """The tree of a profiled kernel; None without issue activity or stalls."""
    issued = kernel["metrics"].get("issue_active")
    stalls = [s for s in kernel["stalls"] if s["kind"] == "stall"]
    basis, weights = _weights(stalls)
    if part := mbarrier_part(kernel):
        waited = weights.pop("long_scoreboard", 0.0)
        weights |= {"long_scoreboard": (1 - part) * waited, MBARRIER: part * waited}
    total = sum(weights.values())
    if issued is None or not total:
        return None
    issued = min(1.0, issued)
    samples = round(total) if basis == "samples" else None
    reasons = [
        _reason(name, weight / total, 1 - issued, samples)
        for name, weight in weights.items()
        if weight > 0
    ]
    return Tree(issued, 1 - issued, tuple(_grouped(reasons)), basis, samples)


def _weights(stalls: list[Stall]) -> tuple[str, dict[str, float]]:
    """("samples" or "ratio", weight by reason); unknown weights are left out."""
    taken = {s["reason"]: s.get("samples_not_issued") for s in stalls}
    known = {name: float(n) for name, n in taken.items() if n is not None}
    if sum(known.values()) >= ENOUGH_SAMPLES:
        return "samples", known
    ratios = {s["reason"]: s.get("ratio") for s in stalls}
    return "ratio", {name: r for name, r in ratios.items() if r is not None}


def _reason(name: str, of_stalls: float, not_issued: float, samples: int | None) -> StallShare:
    error = sampling_error(of_stalls, samples)
    return StallShare(name, meaning(name), of_stalls * not_issued, of_stalls, error)


def meaning(name: str) -> str | None:
    """What a warp waits for, by the reason's name; None of a reason that is not known."""
    known = STALL_REASONS.get(name)
    return MBARRIER_MEANING if name == MBARRIER else known.meaning if known else None


def sampling_error(share: float, samples: int | None) -> float | None:
    """Half-width of a share seen in ``samples`` samples: two binomial standard errors, or None.

    A lower bound, for neighbouring samples of a warp are not independent. Two added successes and
    failures (Agresti and Coull) keep it wide where few samples were taken.
    """
    if not samples:
        return None
    n = samples + 4
    p = (share * samples + 2) / n
    return SIGMAS * math.sqrt(p * (1 - p) / n)


def _grouped(reasons: list[StallShare]) -> list[StallGroup]:
    group_of = {reason: group for group, members in GROUPS.items() for reason in members}
    members: dict[str, list[StallShare]] = {}
    for reason in sorted(reasons, key=lambda r: (-r.share, r.reason)):
        members.setdefault(group_of.get(reason.reason, OTHER), []).append(reason)
    groups = [
        StallGroup(n, sum(r.share for r in found), tuple(found)) for n, found in members.items()
    ]
    return sorted(groups, key=lambda g: (-g.share, g.name))


def advice(kernel: Kernel, most: int = 2) -> list[Rule]:
    """NVIDIA's own rules that fired for this kernel, the largest estimated speed-up first.

    Estimates of the whole kernel (global) come before those of a part of it (local).
    One message of each rule.
    """
    fired = [
        rule
        for rule in kernel["rules"]
        if rule["type"] in ("optimization", "warning") and rule["rule"] not in NOT_ADVICE
    ]
    fired.sort(key=_gain)
    unique: dict[str, Rule] = {}
    for rule in fired:
        unique.setdefault(rule["rule"], rule)
    return list(unique.values())[:most]


def _gain(rule: Rule) -> tuple[bool, float, str]:
    return rule["speedup_type"] != "global", -(rule["speedup_pct"] or 0), rule["rule"]


# --- hot lines: where the warps of a deep-profiled kernel stood ------------------------------

# A sample says where a warp stood, so the line is the one that waits, seldom the one that causes the
# wait: a long_scoreboard stands at the first use of a value, not at its load.

MOST_LINES = 5
ADDRESS = re.compile(r"\s+0x[0-9a-f]{6,}$")  # that a branch goes to, of one process
MOST_OPCODES = 4


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
) -> list[Row]:
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
    path = below(evidence, str(lines.listing_path(report))) if evidence and report.name else None
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
    stalled = [row for row in rows if row["reason"] not in NOT_WAITING]
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


share = stored.share


def command(*, results: list[Path], evidence: Path, out: Path) -> None:
    """The hottest lines of the kernels of results.

    Args:
        evidence: folder with source_index.json
    """
    index = stored.optional(evidence / "source_index.json")
    kernels = []
    for found in map(stored.results, results):
        version = found["provenance"].get("flashinfer")
        kernels += records(found["target"], found["deep"], index, version, evidence)
    write_json(out, {"schema": 1, "kernels": kernels})
