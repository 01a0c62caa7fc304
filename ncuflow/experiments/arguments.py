"""What the commands of experiments are given alike: a target's points, the effect that matters, limits, jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncuflow.io import CommandError, UsageError, clean
from ncuflow.origin import package_folder
from ncuflow.run import FATAL, builds
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, load

LIMIT_S = 300.0  # of a point's check, or of one burst
PATIENCE_S = 120.0  # of the same, where what hangs costs itself alone
EFFECT = 0.02  # of 1: a smaller difference does not matter
PACKAGE = "flashinfer"


def measuring(parser: argparse.ArgumentParser, limit: str, default_s: float) -> None:
    """The arguments of a command that compiles variants and times them in turns. limit: that of a check or a burst."""
    parser.add_argument(
        "--effect", type=effect, default=EFFECT, help="difference that matters (default: 2%%)"
    )
    parser.add_argument(
        limit,
        type=float,
        default=default_s,
        help="seconds of a check or a burst, after which a variant hangs",
    )
    builds.options(parser)


def effect(text: str) -> float:
    """A relative change of 1 from "2%" or "0.02". Raises ArgumentTypeError unless it lies between 0.1 and 50 %."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no change between 0.1% and 50%")
    return value


def above_0(args: argparse.Namespace, limit: str) -> None:
    """Raises UsageError for a limit of no time, or for no jobs."""
    if not getattr(args, limit) > 0 or (args.jobs is not None and args.jobs < 1):
        raise UsageError(f"--{limit} and --jobs are above 0")


def which(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that is about the points of one target."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--points", type=Path, help="points.json (default: the target's own point)")
    group.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON")


def of_target(
    name: str, file: Path | None, blocks: Sequence[Mapping[str, Any]] | None
) -> tuple[Target, list[Planned]]:
    """A target with its points: those of a file, or of blocks, or its own. Raises UsageError where one of them is bad."""
    try:
        target = load(name)
        found = read_points(file, target) if file else points(target, blocks or [{}])
    except ValueError as error:
        raise UsageError(str(error)) from None
    return target, found


def installed() -> Path:
    """The folder of the installed FlashInfer."""
    found = package_folder(PACKAGE)
    if found is None:
        raise CommandError("flashinfer is not installed", FATAL)
    return found


def tell(line: str) -> None:
    """Say on stderr how far the command is."""
    print(clean(line), file=sys.stderr, flush=True)
