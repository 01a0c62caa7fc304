"""The numbers of results that cannot be, each with its limit and the likely cause.

ncuflow sanity RESULTS_DIR [--no-strict]        exit 3 if anything is impossible
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from ncuflow import answer
from ncuflow.findings import sanity, stored
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.sanity import Violation
from ncuflow.format import with_unit


def check_folder(place: Path) -> list[Violation]:
    """All impossible numbers of every ``*_results.json`` in a folder. Raises BadInput where it holds none."""
    every = stored.folder(place, struck=False).values()
    return [violation for found in every for violation in sanity.check(found)]


class ImpossibleNumber(answer.AnswerPart):
    """A number that cannot be."""

    point: str
    """where it is"""
    cell: str
    """the column of docs/measurements.md, or the counter and its kernel"""
    value: float | str
    """what it is, in ``unit``"""
    limit: float | str
    """what it cannot be beyond, in ``unit``"""
    unit: str
    """of both"""
    cause: str
    """what makes such a number"""
    kind: str
    """which check found it"""
    trace: str | None
    """the words that `ncuflow trace` takes; null of what is no column"""


class SanityAnswer(answer.Answer):
    """Numbers of results that cannot be."""

    command: Literal["sanity"] = "sanity"
    """the command that answers"""
    impossible: int
    """how many there are"""
    violations: list[ImpossibleNumber]
    """each of them"""


ANSWER = SanityAnswer


def _traced(one: Violation) -> str | None:
    return f"{one.point} {one.cell}" if one.cell in BY_NAME else None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="folder of *_results.json")
    parser.add_argument("--no-strict", action="store_true", help="print what is found, exit 0")
    answer.options(parser)


def run(args: argparse.Namespace) -> int:
    violations = check_folder(args.results)
    if args.json:
        kept, left_out = answer.cut(violations, args.limit)
        rows = [ImpossibleNumber(**asdict(one), trace=_traced(one)) for one in kept]
        answer.tell(SanityAnswer(impossible=len(violations), violations=rows, left_out=left_out))
        return 3 if violations and not args.no_strict else 0
    for violation in violations:
        print(violation)
    if violations and not args.no_strict:
        print(with_unit(len(violations), "impossible numbers"), file=sys.stderr)
        return 3
    return 0
