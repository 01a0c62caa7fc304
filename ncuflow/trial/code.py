"""What a change does to compiled code: the kernels of a module's library on both sides, as `cuobjdump` lists them.

A change of a comment leaves every instruction as it was; one that spills, or that loads in narrower pieces, is seen here
before anything is timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ncuflow import toolkit
from ncuflow.findings.kernelname import canonical
from ncuflow.parsers import sass
from ncuflow.process import CaptureError
from ncuflow.trial.record import KernelCode, KernelTrial, ModuleTrial

LOCAL = r"(LDL|STL)\b"


@dataclass(frozen=True)
class Compiled:
    """A kernel of a library: what it takes, how often each opcode stands in it, and a digest of its code."""

    code: KernelCode
    mix: Counter[str]
    digest: str


def compare(module: ModuleTrial, base: Path, change: Path) -> None:
    """Note in the record of a module how the kernels of its two libraries differ, or why that is not known."""
    try:
        sides = kernels(base), kernels(change)
        names = [name for name in sides[0] | sides[1] if _differ(name, sides)]
        shown = toolkit.demangled(names)
    except CaptureError as error:
        module.not_compared = str(error)
        return
    module.same_kernels = len(sides[0] | sides[1]) - len(names)
    module.kernels = [
        _difference(canonical(shown[name]), *(s.get(name) for s in sides)) for name in names
    ]


def kernels(library: Path) -> dict[str, Compiled]:
    """The kernels of a library by mangled name. Raises CaptureError where the disassembler is missing or fails."""
    return _listed(library, library.stat().st_mtime_ns if library.exists() else 0)


@lru_cache(maxsize=16)  # the base's are held against those of each change
def _listed(library: Path, written: int) -> dict[str, Compiled]:
    listing = toolkit.said("cuobjdump", "-sass", str(library))
    usage = sass.resources(toolkit.said("cuobjdump", "-res-usage", str(library)))
    digests = sass.digests(listing)
    return {
        name: Compiled(_code(usage[name], found["mix"]), Counter(found["mix"]), digests[name])
        for name, found in sass.kernels(listing).items()
        if name in usage
    }


def _code(usage: Mapping[str, int], mix: dict[str, int]) -> KernelCode:
    return KernelCode(
        **usage, local_instructions=sass.count(mix, LOCAL), instructions=sum(mix.values())
    )


def _differ(name: str, sides: tuple[dict[str, Compiled], dict[str, Compiled]]) -> bool:
    base, change = (side.get(name) for side in sides)
    return (
        base is None or change is None or (base.digest, base.code) != (change.digest, change.code)
    )


def _difference(name: str, base: Compiled | None, change: Compiled | None) -> KernelTrial:
    more = Counter(change.mix if change else {})
    more.subtract(base.mix if base else {})
    return KernelTrial(
        name=name,
        base=None if base is None else base.code,
        change=None if change is None else change.code,
        opcodes={opcode: count for opcode, count in sorted(more.items()) if count},
    )
