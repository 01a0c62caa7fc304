"""Roles of warps: in a kernel whose warps are specialised, what its producers and its consumers wait for.

From sm_90 on a producer warp loads tiles and consumer warps compute on them. They hand each other the stages of a
buffer at mbarriers in shared memory, and a warp that waits there shows as long_scoreboard, as if for a load: a
consumer waits for the producer's tile, the producer for a stage that the consumers have read.

The roles are told by where they give away and take registers (``USETMAXREG``) in the listing of the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncuflow.model import Kernel, LineRow

MBARRIER = "mbarrier"
MEANING = "a phase of an mbarrier in shared memory: data that another warp or the copy engine has yet to bring or to read"
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
    return [_told(row) for row in every]


def has_mbarriers(opcodes: Iterable[str | None]) -> bool:
    """Whether instructions are of a kernel with mbarriers."""
    return any((opcode or "").startswith("SYNCS") for opcode in opcodes)


def _told(row: LineRow) -> LineRow:
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
    for row in map(_told, texts) if barriers else texts:
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
