"""The counters that `ncu --metrics` has to be given to collect what the registry reads.

ncuflow counters gh100 [--json]
"""

from __future__ import annotations

import argparse
from typing import Literal

from ncuflow import answer
from ncuflow.parsers.chips import CHIPS
from ncuflow.parsers.registry import counters


class CountersAnswer(answer.Answer):
    """The counters that `ncu --metrics` is given."""

    command: Literal["counters"] = "counters"
    """the command that answers"""
    chip: str
    """whose names they are"""
    counters: list[str]
    """names of ncu"""


ANSWER = CountersAnswer


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("chip", choices=CHIPS)
    answer.options(parser)


def run(args: argparse.Namespace) -> None:
    found = counters(args.chip)
    if args.json:
        kept, left_out = answer.cut(found, args.limit)
        answer.tell(CountersAnswer(chip=args.chip, counters=kept, left_out=left_out))
    else:
        print(",".join(found))
