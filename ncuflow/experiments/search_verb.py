"""The fastest values of a kernel's knobs, by successive halving, and what the default costs, shape by shape.

    ncuflow search TARGET [--blocks JSON | --points points.json] [--knobs NAME…] [--budget 12 | --budget 90s] [--out search.json]

Knobs are constants of FlashInfer's source that the target declares (tile, stages, threads, chunk) and what a caller may set
(backend, split, …). Each combination of other values is a candidate, made in an overlay of the installed FlashInfer as a
change of `ncuflow try` is: compiled where it reaches a module, held against the float32 reference, never timed when wrong.
Candidates are timed in turns with the default; after each rung, which has twice the rounds of the one before, the slower half
leaves, unless noise could be why. The best is confirmed in turns on inputs that the search did not see.

exit  0 each shape has an answer: a winner, or the default stands    1 nothing could be compiled or timed    2 bad input
      3 some shapes have none
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncuflow import answer
from ncuflow.experiments import choices
from ncuflow.experiments.record import Search, SearchedShape
from ncuflow.experiments.search import SearchPlan, measured
from ncuflow.experiments.text import search_text
from ncuflow.experiments.try_verb import effect, patience
from ncuflow.experiments.variant import PACKAGE
from ncuflow.gpu import nvml
from ncuflow.io import CommandError, UsageError, clean, emit, not_over, write_json
from ncuflow.origin import package_folder
from ncuflow.run import FATAL, OK, SOME_FAILED
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, known, load

ANSWER = Search
MOST = 12  # candidates


@dataclass(frozen=True)
class Budget:
    """candidates: that are tried at most; seconds: of the halving's rounds, of all shapes together."""

    candidates: int | None = None
    seconds: float | None = None


def budget(text: str) -> Budget:
    """ "24" candidates, or "90s". Raises ArgumentTypeError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s?)", text)
    if not match or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of candidates, or of seconds (90s)"
        )
    return Budget(seconds=float(match[1])) if match[2] else Budget(candidates=int(match[1]))


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", help=f"kernel target: {', '.join(known())}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--points", type=Path, help="points.json (default: the target's own point)")
    which.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON")
    add("--knobs", nargs="+", metavar="NAME", help="those to search (default: all of the target)")
    add(
        "--budget",
        type=budget,
        action="append",
        default=[],
        metavar="N|Ns",
        help=f"candidates (default: {MOST}), or seconds of the rounds of all shapes together (90s); both may be given",
    )
    add("--effect", type=effect, default=0.02, help="difference that matters (default: 2%%)")
    add("--out", type=Path, help="search.json")
    answer.options(parser)
    patience(parser, "a candidate")


def run(args: argparse.Namespace) -> int:
    if not args.patience > 0 or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--patience and --jobs are above 0")
    not_over(args.out, *filter(None, [args.points]))
    target, shapes = _shapes(args)
    _known_knobs(args.knobs, target, shapes)
    installed = package_folder(PACKAGE)
    if installed is None:
        raise CommandError("flashinfer is not installed", FATAL)
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    plan = SearchPlan(
        target,
        shapes,
        only=args.knobs,
        candidates=min((b.candidates for b in args.budget if b.candidates), default=MOST),
        seconds=min((b.seconds for b in args.budget if b.seconds), default=None),
        effect=args.effect,
        patience_s=args.patience,
        jobs=args.jobs,
    )
    found = measured(plan, installed, _tell)
    if args.out:
        write_json(args.out, found.model_dump(mode="json"))
    if args.json:
        kept, left_out = answer.cut(found.shapes, args.limit)
        answer.tell(found.model_copy(update={"shapes": kept, "left_out": left_out}))
    else:
        emit(search_text(found), None)
    return status(found.shapes)


def status(shapes: Sequence[SearchedShape]) -> int:
    """What the command ends with."""
    answered = [shape.found in ("winner", "default") for shape in shapes]
    timed = any(shape.confirmed for shape in shapes)
    return OK if all(answered) else SOME_FAILED if timed else FATAL


def _shapes(args: argparse.Namespace) -> tuple[Target, list[Planned]]:
    try:
        target = load(args.target)
        given = (
            read_points(args.points, target) if args.points else points(target, args.blocks or [{}])
        )
        return target, choices.shapes(target, given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _known_knobs(only: Sequence[str] | None, target: Target, shapes: Sequence[Planned]) -> None:
    """Raises UsageError for a knob that the target has not, or where it has none."""
    names = [tunable.name for tunable in target.source.tunables]
    names += [name for shape in shapes for name in target.free(shape.params)]
    if not names:
        raise UsageError(f"{target.name} declares no knobs")
    if strange := [name for name in only or () if name not in names]:
        raise UsageError(
            f"{target.name} has no knob {strange[0]!r}; it has: {', '.join(dict.fromkeys(names))}"
        )


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
