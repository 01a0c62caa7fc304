"""The page of two measured GPUs: each predicted from the other, beside what was measured there.

ncuflow predict-page --measured DIR --on DIR --out FILE.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncuflow.findings import stored
from ncuflow.io import UsageError, write_text
from ncuflow.pages.markdown.rendering import environment
from ncuflow.static.predict import predictions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measured", type=Path, required=True, help="results of a measured GPU")
    parser.add_argument("--on", type=Path, required=True, help="results of another measured GPU")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    here, there = ([*stored.folder(place).values()] for place in (args.measured, args.on))
    try:
        both = [predictions(here, there), predictions(there, here)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not all(one["crossed"] for one in both):
        raise UsageError(f"{args.measured} and {args.on}: not both measured, or of other points")
    text = environment().get_template("predictions.md.j2").render(directions=both)
    write_text(args.out, text.rstrip() + "\n")
