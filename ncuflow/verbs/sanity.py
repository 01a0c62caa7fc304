"""The numbers of results that cannot be, each with its limit and the likely cause.

ncuflow check sanity RESULTS_DIR [--no-strict]        exit 3 if anything is impossible
"""

import sys
from pathlib import Path
from typing import ClassVar, Literal

from ncuflow import answer
from ncuflow.findings import sanity, stored
from ncuflow.format import with_unit
from ncuflow.verbs.options import AS_TEXT, Printed


def check_folder(place: Path) -> list[sanity.ImpossibleNumber]:
    """All impossible numbers of every ``*_results.json`` in a folder. Raises BadInput where it holds none."""
    every = stored.folder(place, struck=False).values()
    return [violation for found in every for violation in sanity.check(found)]


class SanityAnswer(answer.Answer):
    """Numbers of results that cannot be."""

    ROWS: ClassVar[tuple[str, ...]] = ("violations",)
    command: Literal["sanity"] = "sanity"
    """The command that wrote this JSON."""
    impossible: int
    """How many impossible numbers there are."""
    violations: list[sanity.ImpossibleNumber]
    """Each impossible number."""


ANSWER = SanityAnswer


def command(results: Path, /, *, no_strict: bool = False, printed: Printed = AS_TEXT) -> int:
    """The numbers of results that cannot be.

    Args:
        results: folder of *_results.json
        no_strict: print what is found, exit 0
    """
    violations = check_folder(results)
    found = SanityAnswer(impossible=len(violations), violations=violations)
    printed.tell(found, "".join(f"{one}\n" for one in violations))
    if no_strict or not violations:
        return 0
    if not printed.json:
        print(with_unit(len(violations), "impossible numbers"), file=sys.stderr)
    return 3
