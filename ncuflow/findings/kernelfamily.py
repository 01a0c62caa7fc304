"""What a kernel does in a step, and whose it is, by its name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ncuflow.io import read_yaml
from ncuflow.parsers.demangled import without_parameters
from ncuflow.target.contract import Target, known

OTHER = "other"
TELLING = 1 << 13  # characters of a name; a search may take the square of what it looks through
COPY, COMMUNICATION, SAMPLING = "copy", "communication", "sampling"
FLASHINFER = "FlashInfer"
_PLACE = Path(__file__).with_name("families.yaml")


@cache
def family(name: str) -> str:
    """E.g. "norm"; "other" for a name that no pattern knows."""
    return _first("families", without_parameters(name)) or _first("families", name) or OTHER


@cache
def owner(name: str) -> str | None:
    """E.g. "FlashInfer", by its name or because it is a kernel that a target knows; None where the name does not say it."""
    found = _first("owners", name)
    if found in (None, "CUTLASS") and target(name) is not None and "flashinfer" in name.lower():
        return FLASHINFER
    return found


@cache
def target(name: str) -> Target | None:
    """The kernel target of a FlashInfer kernel; the first of those that may launch it."""
    return next(iter(targets(bare(name))), None)


@cache
def targets(short: str) -> list[Target]:
    """The kernel targets whose calls may launch a kernel, by its name without namespaces and arguments."""
    return [
        one
        for one in known().values()
        if not one.generic
        and short
        in (*(k.name for k in one.source.kernels), *one.rules.kernels, *one.rules.finishers)
    ]


@cache
def bare(name: str) -> str:
    """A kernel's name without what it returns, namespaces, template arguments and parameters."""
    text = name.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    angles = parentheses = 0
    kept: list[str] = []
    for character in text:
        if character in "()":
            if not angles and "".join(kept).strip():
                break  # its parameters
            parentheses += 1 if character == "(" else -1
        elif character in "<>" and not parentheses:
            angles += 1 if character == "<" else -1
        elif not angles and not parentheses:
            kept.append(character)
    words = "".join(kept).split()
    return (words[-1].split("::")[-1] if words else "") or name


def families() -> list[str]:
    """All that there are, in the order in which they are looked for."""
    return [*_patterns()["families"], OTHER]


def _first(what: str, name: str) -> str | None:
    name = name[:TELLING]
    return next((key for key, pattern in _patterns()[what].items() if pattern.search(name)), None)


@cache
def _patterns() -> dict[str, dict[str, re.Pattern[str]]]:
    return {
        what: {name: re.compile(text, re.IGNORECASE) for name, text in patterns.items()}
        for what, patterns in read_yaml(_PLACE).items()
    }
