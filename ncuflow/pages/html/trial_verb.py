"""`ncuflow try`: a trial, and with --html its page."""

from __future__ import annotations

import argparse

from ncuflow.experiments import try_verb
from ncuflow.experiments.record import Trial, Trials
from ncuflow.io import file_to_write, write_text
from ncuflow.pages.html import trial as page

ANSWER = try_verb.ANSWER
__doc__ = try_verb.__doc__  # what --help says


def configure(parser: argparse.ArgumentParser) -> None:
    try_verb.configure(parser)
    parser.add_argument(
        "--html", type=file_to_write, metavar="OUT", help="a page of the trial, or trials"
    )


def run(args: argparse.Namespace) -> int:
    def written(record: Trial | Trials) -> None:
        if args.html is not None:
            trials = record.trials if isinstance(record, Trials) else [record]
            write_text(args.html, page.rendered(trials))  # standard output may be the record's

    return try_verb.run(args, written)
