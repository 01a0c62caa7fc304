"""Between which two versions a point became slower or faster, by what, and which files differ.

    ncuflow bisect --recorded 'recordings/h200/*/*' --point decode/B16_L2048_H32_K8_D128_P16_f16_tc
    ncuflow bisect --releases --good 0.6.12 --bad 0.6.14 --point ID [--journal bisect.jsonl]
    ncuflow bisect --wheels FOLDER | --checkout FOLDER --good TAG --bad TAG | --env NAME=A,B --point ID

With --good and --bad the versions between them are halved, each held against the good one; --bad may be the older one.
Without them every version is held against the one before it, and each change is found. Recordings are compared as
`ncuflow compare` does, without a GPU; all others are timed in turns, each in a process and a folder of its own. Noise never
decides: a version that cannot be told, or cannot run the point, is passed over and named.

exit  0 found    1 nothing could be run    2 bad input    3 it did not change    5 it cannot be told
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ncuflow import answer
from ncuflow.bisection import search
from ncuflow.bisection.journal import BisectJournal
from ncuflow.bisection.live import Versions, between
from ncuflow.bisection.record import Bisection, BisectStep, Over
from ncuflow.bisection.recordings import Recordings
from ncuflow.bisection.screen import screen, told
from ncuflow.bisection.sources import CannotError, Commits, Releases, Values, VersionSource, Wheels
from ncuflow.experiments.try_verb import LIMIT_S, effect
from ncuflow.gpu import nvml
from ncuflow.io import CommandError, UsageError, clean, emit, file_to_write, not_over, write_json
from ncuflow.origin import now
from ncuflow.runner.job import FATAL
from ncuflow.sweep.points import Planned, read_points
from ncuflow.target.contract import Target, load

ANSWER = Bisection
COLD = "time_cold_us"
EXIT = {"found": 0, "no change": 3, "untold": 5}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--recorded", nargs="+", metavar="PATTERN", help="recordings of versions")
    which.add_argument("--wheels", type=Path, metavar="FOLDER", help="with wheels of FlashInfer")
    which.add_argument("--releases", action="store_true", help="what pip's index has")
    which.add_argument(
        "--checkout", type=Path, metavar="FOLDER", help="a git checkout of FlashInfer"
    )
    which.add_argument("--env", metavar="NAME=A,B", help="values of an environment variable")
    add("--point", required=True, help="its id; of what is timed here --points has it")
    add("--points", type=Path, help="points.json with that point")
    add("--good", metavar="VERSION", help="the end that others are held against")
    add("--bad", metavar="VERSION", help="the other end")
    add("--metric", default=COLD, help="column that decides (default: %(default)s)")
    add("--effect", type=effect, default=0.02, help="change that matters (default: 2%%)")
    add("--journal", type=Path, help="file that keeps each step, to go on after an interruption")
    add("--cache", type=Path, metavar="FOLDER", help="keep versions and what they compiled")
    add("--out", type=file_to_write, help="write the record")
    add("--patience", type=float, default=LIMIT_S, help="seconds of one check, or of one burst")
    answer.options(parser)


def run(args: argparse.Namespace) -> int:
    if bool(args.good) != bool(args.bad):
        raise UsageError("--good and --bad go together; without them every change is found")
    if not args.patience > 0:
        raise UsageError("--patience is above 0")
    not_over(args.out, args.points, args.journal)
    found = _recorded(args) if args.recorded else _timed(args)
    if args.out:
        write_json(args.out, found.model_dump(mode="json"))
    if args.json:
        kept, found.left_out = answer.cut(found.steps, args.limit)
        answer.tell(found.model_copy(update={"steps": kept}))
    else:
        emit(screen(found), None)
    return EXIT[found.outcome]


def _recorded(args: argparse.Namespace) -> Bisection:
    with Recordings(args.recorded, args.point, args.metric, args.effect) as sides:
        return _searched(args, "recordings", sides.versions, sides)


def _timed(args: argparse.Namespace) -> Bisection:
    if args.metric != COLD:
        raise UsageError(f"--metric {args.metric!r}: what is timed here is {COLD}")
    target, point = _point(args)
    try:
        source = _source(args)
    except CannotError as error:
        raise CommandError(clean(str(error)), FATAL) from None
    nvml.visible()
    with Versions(
        source, target, point, args.effect, args.patience, _tell, cache=args.cache
    ) as sides:
        return _searched(args, source.over, source.versions, sides)


def _source(args: argparse.Namespace) -> VersionSource:
    if args.wheels is not None:
        return Wheels(args.wheels)
    if args.env is not None:
        return Values(args.env)
    if not args.good:
        raise UsageError("--releases and --checkout need --good and --bad")
    return Releases() if args.releases else Commits(args.checkout, args.good, args.bad)


def _point(args: argparse.Namespace) -> tuple[Target, Planned]:
    """The point of --points, or the target's own where that has this id."""
    try:
        target = load(args.point.partition("/")[0])
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.points is not None:
        planned = read_points(args.points, target)
    else:
        planned = [Planned(target.point_id(target.parameters), target.name, target.parameters)]
    for point in planned:
        if point.id == args.point:
            return target, point
    raise UsageError(
        f"no point {args.point}: --points names a points.json that `ncuflow plan` wrote"
    )


def _searched(
    args: argparse.Namespace, over: Over, versions: Sequence[str], sides: Recordings | Versions
) -> Bisection:
    """Halve from the good one to the bad one, or walk through all."""
    good, bad = args.good, args.bad
    if over == "commits":  # tags and branches are told by what they name
        good, bad = versions[0], versions[-1]
    try:
        chosen = between(versions, good, bad)
    except ValueError as error:
        raise UsageError(str(error)) from None
    question = {
        "point": args.point, "metric": args.metric, "gpu": sides.gpu, "over": over, "versions": chosen
    }  # fmt: skip
    hold = BisectJournal(args.journal, question).remembering(sides.hold)
    found = Bisection(
        point=args.point, metric=args.metric, gpu=sides.gpu,
        date=None if over == "recordings" else now(), over=over, versions=chosen, good=good, bad=bad, outcome="no change",
        found=[], steps=[],
    )  # fmt: skip

    def note(step: BisectStep) -> None:
        found.steps.append(step)
        _tell(f"{step.head}: {told(step)}")

    if good is None:
        found.found = search.walk(chosen, hold, note)
    else:
        ends = search.bisect(chosen, hold, note)
        found.found = [ends.neighbours] if ends.neighbours else []
        if ends.untold:
            found.outcome = "untold"
    for one in found.found:
        sides.explain(one)
        found.outcome = "found"
    return found


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
