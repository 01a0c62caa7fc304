"""Between which two versions a point became slower or faster, by what, and which files differ.

    ncuflow bisect --recorded 'recordings/h200/*/*' --point decode/B16_L2048_H32_K8_D128_P16_f16_tc
    ncuflow bisect --releases --good 0.6.12 --bad 0.6.14 --point ID [--journal bisect.jsonl]
    ncuflow bisect --wheels FOLDER | --env NAME=A,B --point ID

With --good and --bad the versions between them are halved, each held against the good one; --bad may be the older one.
Without them every version is held against the one before it, and each change is found. Recordings are compared as
`ncuflow compare` does, without a GPU; all others are timed in turns, each in a process and a folder of its own. Noise never
decides: a version that cannot be told, or cannot run the point, is passed over and named.
Commits of a checkout are for `git bisect run ncuflow try flashinfer@. …` (docs/advise.md).

exit  0 found    1 nothing could be run    2 bad input    3 it did not change    5 it cannot be told
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from ncuflow import answer
from ncuflow.experiments import bisection, versions
from ncuflow.experiments.arguments import LIMIT_S, effect, tell
from ncuflow.experiments.bisection import Bisection, BisectStep, Over, report
from ncuflow.experiments.versions import Recordings, Source, Versions
from ncuflow.gpu import nvml, turns
from ncuflow.io import UsageError, emit, file_to_write, not_over, scratch, write_json
from ncuflow.origin import now
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
    with ExitStack() as stack:
        found = _recorded(args, stack) if args.recorded else _timed(args, stack)
    if args.out:
        write_json(args.out, found.model_dump(mode="json"))
    if args.json:
        kept, found.left_out = answer.cut(found.steps, args.limit)
        answer.tell(found.model_copy(update={"steps": kept}))
    else:
        emit(report(found), None)
    return EXIT[found.outcome]


def _recorded(args: argparse.Namespace, stack: ExitStack) -> Bisection:
    place = stack.enter_context(scratch())
    sides = Recordings(args.recorded, args.point, args.metric, args.effect, place)
    return _searched(args, "recordings", sides)


def _timed(args: argparse.Namespace, stack: ExitStack) -> Bisection:
    if args.metric != COLD:
        raise UsageError(f"--metric {args.metric!r}: what is timed here is {COLD}")
    target, point = _point(args)
    source = _source(args)
    nvml.visible()
    held = stack.enter_context(turns.gpu_lock())
    folder = args.cache or stack.enter_context(scratch())
    sides = Versions(source, target, point, args.effect, args.patience, tell, held, folder)
    return _searched(args, source.over, sides)


def _source(args: argparse.Namespace) -> Source:
    if args.wheels is not None:
        return versions.wheels(args.wheels)
    if args.env is not None:
        return versions.values(args.env)
    if not args.good:
        raise UsageError("--releases needs --good and --bad")
    return versions.releases()


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


def _searched(args: argparse.Namespace, over: Over, sides: Recordings | Versions) -> Bisection:
    """Halve from the good one to the bad one, or walk through all."""
    try:
        chosen = bisection.between(sides.versions, args.good, args.bad)
    except ValueError as error:
        raise UsageError(str(error)) from None
    about = {"point": args.point, "metric": args.metric, "gpu": sides.gpu, "over": over, "versions": chosen}  # fmt: skip
    hold = bisection.journaled(sides.hold, args.journal, about)
    date = None if over == "recordings" else now()
    found = Bisection(
        **about, date=date, good=args.good, bad=args.bad, outcome="no change", found=[], steps=[]
    )

    def note(step: BisectStep) -> None:
        found.steps.append(step)
        tell(f"{step.head}: {step.said}")

    changes = (bisection.bisect if args.good else bisection.walk)(chosen, hold, note)
    if changes is None:
        found.outcome = "untold"
    for one in changes or ():
        sides.explain(one)
        found.found.append(one)
        found.outcome = "found"
    return found
