"""Which choice for which shape: every one that is legal there raced in turns, by what is surely faster.

    ncuflow advise --workload mine.json --out advice.json [--html page.html]
    ncuflow advise --target decode --blocks '[{"batch": [1, 32], "kv_heads": 8}]'
    ncuflow advise --recorded recordings/h200/0.7.2/default

Shapes are those of a sweep (--workload: the configuration that `ncuflow workload` writes, or what it reads), of --blocks of
a target, or of points.json files. On a GPU each choice of a shape (backend, CUDA or tensor cores, split, graph, what the
target declares as free) is held against its float32 reference and timed in turns with the others, until it is surely slower
than the leader; what stays is a winner or a tie. --recorded takes the choices that a recording has, without a GPU.

exit  0 every shape has an advice    1 nothing could be timed    2 bad input    3 some shapes have none
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ncuflow import answer
from ncuflow.evidence.provenance import origin
from ncuflow.experiments import advise, audit, choices, heuristics, page, recorded
from ncuflow.experiments.record import Advice, AdvisedShape
from ncuflow.experiments.text import advice_text
from ncuflow.experiments.try_verb import effect, patience
from ncuflow.gpu import nvml, turns
from ncuflow.io import (
    BadInput,
    CommandError,
    UsageError,
    clean,
    emit,
    file_to_write,
    not_over,
    read_json,
    scratch,
    sniff,
    write_json,
    write_text,
)
from ncuflow.model import SOFTWARE
from ncuflow.process import python_environment
from ncuflow.race import sides
from ncuflow.race.rounds import EFFECT
from ncuflow.race.sequential import ALPHA
from ncuflow.race.sides import Process, SideError
from ncuflow.run import FATAL, OK, SOME_FAILED
from ncuflow.sweep import workloads
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points, unable
from ncuflow.target.contract import Target, known, load
from ncuflow.target.source import offline

ANSWER = Advice | audit.Audit | audit.StoreComparison
PYTHON, STORE = "python", "flashinfer-store"
BUILD_S = 3600.0
BUDGET_S = 5.0
COLD = "time_cold_us"
Cases = list[tuple[Target, list[Planned]]]  # targets with their shapes


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--workload",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what is run, as `ncuflow workload` reads or writes it",
    )
    which.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON; needs --target")
    which.add_argument("--points", type=Path, nargs="+", metavar="FILE", help="points.json files")
    which.add_argument(
        "--recorded",
        type=Path,
        metavar="PATH",
        help="a recording, the outputs of a run, or what --out wrote: no GPU",
    )
    add("--target", nargs="+", help=f"of --blocks one, else those to take: {', '.join(known())}")
    which.add_argument(
        "--audit",
        type=Path,
        nargs="+",
        metavar="STORE",
        help="a store of FlashInfer's autotuner, its tactics against their runners-up; of two what differs, without a GPU",
    )
    add(
        "--apply",
        type=str,
        nargs=2,
        action="append",
        default=[],
        metavar=("KIND", "OUT"),
        help=f"{PYTHON}: a module that a server imports; {STORE}: through FlashInfer's autotuner, into a folder",
    )
    add(
        "--also",
        type=_also,
        action="append",
        default=[],
        metavar="NAME=A,B",
        help="a further parameter that is free here, such as page_size=1,16",
    )
    add("--effect", type=effect, default=EFFECT, help="difference that matters (default: 2%%)")
    add("--out", type=file_to_write, help="advice.json")
    add(
        "--counters",
        type=Path,
        metavar="FOLDER",
        help="results, a recording, or reports of `ncuflow ncu`, with counters of these points",
    )
    add("--html", type=file_to_write, help="a page: a map of the shapes, and every choice")
    answer.options(parser)
    add(
        "--budget",
        type=float,
        default=BUDGET_S,
        help="seconds of a shape's rounds, after which its race is decided as it stands (default: %(default)s)",
    )
    patience(parser, "a choice")


def _also(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    found = [int(v) if v.isdecimal() else v for v in values.split(",") if v]
    if not name or not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=A,B")
    return name, found


def run(args: argparse.Namespace) -> int:
    if not (args.patience > 0 and args.budget > 0) or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--patience, --budget and --jobs are above 0")
    read = [args.recorded, *(args.workload or ()), *(args.points or ()), *(args.audit or ())]
    wanted = {kind: Path(out) for kind, out in args.apply}
    if strange := wanted.keys() - {PYTHON, STORE}:
        raise UsageError(f"--apply {sorted(strange)[0]!r} is neither {PYTHON} nor {STORE}")
    for out in (args.out, args.html, wanted.get(PYTHON)):
        not_over(out, *read)
    _goes_together(args, wanted)
    if args.audit is not None:
        return _audit(args)
    live = args.recorded is None
    found = measured(args, wanted.get(STORE)) if live else _recorded(args)
    _written(args, found, "shapes", advice_text(found))
    if args.html:
        write_text(args.html, page.rendered(found))
    if PYTHON in wanted:
        targets = {shape.target: load(shape.target) for shape in found.shapes}
        write_text(wanted[PYTHON], page.python_module(found, targets))
    advised = [shape.advised is not None for shape in found.shapes]
    return OK if all(advised) and advised else SOME_FAILED if any(advised) else FATAL


def _recorded(args: argparse.Namespace) -> Advice:
    """The advice of a recording, or one that was written before, with what counters say where they are given."""
    if args.recorded.is_dir():
        also = _freed(args, [known()[name] for name in args.target or known() if name in known()])
        return recorded.advise(args.recorded, args.target, also, COLD, args.effect)
    found = recorded.read(args.recorded)
    found.shapes = [s for s in found.shapes if s.target in (args.target or (s.target,))]
    found.rules = heuristics.rules(found.shapes, found.metric)
    if args.counters is not None:
        recorded.explain_from(found, args.counters)
    return found


def _goes_together(args: argparse.Namespace, wanted: Mapping[str, Path]) -> None:
    """Raises UsageError for what would be given and not done."""
    if STORE in wanted and args.recorded is not None:
        raise UsageError(f"--apply {STORE} tunes on a GPU: not with --recorded")
    if args.counters is not None and args.recorded is not None and args.recorded.is_dir():
        raise UsageError("--counters adds to an advice that was measured: a recording has its own")
    if args.also and args.recorded is not None and args.recorded.is_file():
        raise UsageError("--also: what is free is settled in an advice that was written")
    if args.audit is not None:
        given = {"--html": args.html, "--apply": wanted, "--also": args.also}
        given["--counters"] = args.counters
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is of an advice: not with --audit")
        if len(args.audit) > 2:
            raise UsageError("--audit takes one store, or two to compare")


def _written(args: argparse.Namespace, found: answer.Answer, rows: str, text: str) -> None:
    """The record as --out and --json want it, else its screen. rows: the field that --limit is about."""
    if args.out:
        write_json(args.out, found.model_dump(mode="json"))
    if args.json:
        kept, left_out = answer.cut(getattr(found, rows), args.limit)
        answer.tell(found.model_copy(update={rows: kept, "left_out": left_out}))
    else:
        emit(text, None)


def _audit(args: argparse.Namespace) -> int:
    """Two stores against each other, or one on this GPU; the status of what was timed."""
    sides = [audit.read_store(path) for path in args.audit]
    if len(sides) == 2:
        compared = audit.compare_stores(*sides)
        _written(args, compared, "different", audit.comparison_text(compared))
        return OK
    targets = [load(name) for name in args.target or known()]
    with racing(args) as track:
        entries = [
            audit.audited(track, entry, targets, len(sides[0]), args.effect, _tell)
            for entry in sides[0]
        ]
        found = audit.Audit(**_here(track), effect=args.effect, alpha=ALPHA, entries=entries)
    _written(args, found, "entries", audit.audit_text(found))
    timed = [entry.verdict != "not timed" for entry in entries]
    return OK if all(timed) else SOME_FAILED if any(timed) else FATAL


# --- what is asked for ------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> tuple[Cases, list[str]]:
    """(targets with their shapes, a line for each case that no target measures)."""
    refused: list[str] = []
    try:
        wanted = [load(name).name for name in args.target or ()]
        if args.blocks is not None:
            if len(wanted) != 1:
                raise UsageError("--blocks needs one --target")
            found = {wanted[0]: points(load(wanted[0]), args.blocks)}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.points is not None:
        found = _of_points(args.points)
    elif args.workload is not None:
        found, refused = _workload(args.workload)
    targets = [load(name) for name in found if name in (wanted or found)]
    if not targets:
        raise UsageError("none of the targets that were asked for is among the shapes")
    also = _freed(args, targets)
    return [(t, choices.shapes(t, found[t.name], also)) for t in targets], refused


def _freed(args: argparse.Namespace, targets: Sequence[Target]) -> dict[str, list[Any]]:
    """What is free beside what targets declare. Raises UsageError for what none of them has."""
    also = dict(args.also)
    try:
        choices.known_to(targets, also)
    except ValueError as error:
        raise UsageError(f"--also: {error}") from None
    return also


def _of_points(paths: Sequence[Path]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for path in paths:
        content = read_json(path)
        try:
            target = load(content[0]["target"])
        except (LookupError, TypeError):
            raise BadInput(path, "not a list of points") from None
        except ValueError as error:
            raise BadInput(path, str(error)) from None
        found.setdefault(target.name, []).extend(read_points(path, target))
    return found


def _workload(paths: Sequence[Path]) -> tuple[dict[str, list[Planned]], list[str]]:
    """(points by target, what was refused). Raises BadInput where there are none."""
    blocks, refused = _blocks(paths)
    try:
        return {name: points(load(name), some) for name, some in blocks.items()}, refused
    except ValueError as error:
        raise BadInput(paths[0], str(error)) from None


def _blocks(paths: Sequence[Path]) -> tuple[Mapping[str, list[Any]], list[str]]:
    """(blocks by target, what was refused): of the configuration of a sweep, or of what `ncuflow workload` reads."""
    if len(paths) == 1 and paths[0].is_file():
        sniff(paths[0])
        if paths[0].suffix == ".json":
            content = read_json(paths[0])
            if isinstance(content, dict) and isinstance(content.get("sweeps"), dict):
                name = content.get("sweep")
                sweeps = content["sweeps"]
                if name not in sweeps or not isinstance(sweeps[name], dict):
                    raise BadInput(paths[0], f"a configuration without its sweep {name!r}")
                return sweeps[name], []
    blocks, refused, _ = workloads.read(list(paths))
    if not blocks:
        raise BadInput(paths[0], "holds no case that can be measured")
    return blocks, refused


# --- on a GPU ---------------------------------------------------------------------------------


@contextmanager
def racing(args: argparse.Namespace) -> Iterator[sides.Session]:
    """A GPU that nobody else uses, and a process on it. Raises CommandError where there is none, or it is lost for good."""
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    with turns.gpu_lock() as held, ExitStack() as stack:
        folder = stack.enter_context(scratch())

        def start() -> Process:
            side = begun(held.environ, held.locks, folder)
            stack.callback(side.close)
            return side

        track = sides.Session(start, args.patience, args.budget)
        try:
            found = track.ask("gpu")
            track.facts, track.driver = found["facts"], found["driver"]
            yield track
        except (SideError, sides.GaveUpError) as error:
            raise CommandError(clean(str(error)), FATAL) from None


def _here(track: sides.Session) -> dict[str, Any]:
    """What a record says of where it was measured."""
    made = origin(track.facts["name"], track.driver)
    versions = {label: made.get(key) for key, label in SOFTWARE.items()}
    return {"gpu": track.facts["name"], "versions": versions, "date": str(made["date"])}


def measured(args: argparse.Namespace, store: Path | None = None) -> Advice:
    """The advice of a race on this machine's GPU; published through FlashInfer's autotuner into ``store``."""
    asked, refused = cases(args)
    also = dict(args.also)
    with racing(args) as track:
        failed = _built(track, asked, also, args.jobs)
        number = sum(len(shapes) for _, shapes in asked)
        advised = [
            advise.advise(track, target, shape, also, number, args.effect, _tell)
            for target, shapes in asked
            for shape in shapes
        ]
        if store is not None:
            _published(track, advised, store)
        found = Advice(
            **_here(track),
            tier="B",
            recording=None,
            metric=COLD,
            effect=args.effect,
            alpha=ALPHA,
            shapes=advised,
            rules=heuristics.rules(advised, COLD),
            refused=refused,
            failed_modules=failed,
        )
    if args.counters is not None:
        recorded.explain_from(found, args.counters)
    return found


def _published(track: sides.Session, shapes: Sequence[AdvisedShape], store: Path) -> None:
    """Let FlashInfer's autotuner store what it tunes of the advised calls, and say how many that were."""
    entries, kept, reason = 0, 0, None
    for shape in shapes:
        chosen = shape.choice(shape.advised)
        if chosen is None:
            continue
        params = {**shape.params, **chosen.settings}
        point = {"id": chosen.point, "target": shape.target, "params": params}
        found = track.ask("publish", point=point, root=str(store.absolute()))
        entries, kept = entries + found["entries"], kept + bool(found["entries"])
        reason = found["reason"] or reason
    _tell(
        reason
        or f"{store}: FlashInfer's autotuner keeps {entries} choices of {kept} of {len(shapes)} shapes"
    )


def begun(environ: Mapping[str, str], locks: Sequence[int], folder: Path) -> Process:
    """A process of a race. environ: beside the minimal environment; locks: that it keeps for as long as it lives."""
    env = python_environment() | offline() | dict(environ)
    number = len(list(folder.iterdir()))
    command = [sys.executable, "-m", "ncuflow", "worker"]
    return Process(command, env, locks, folder / f"log{number}")


def _built(
    track: sides.Session, asked: Cases, also: choices.Also, jobs: int | None
) -> dict[str, str]:
    """Compile what all choices need, in one graph; the modules that do not compile, with why."""
    wanted = [
        choice.as_dict()
        for target, shapes in asked
        for shape in shapes
        for choice in choices.choices(target, shape, also)
        if unable(target, choice, track.facts) is None
    ]
    _tell(f"{len(wanted)} choices; compiling what of them is not compiled yet")
    jobs = jobs or len(os.sched_getaffinity(0))
    track.ask("modules", BUILD_S, points=wanted)
    failed = track.ask("build", BUILD_S, jobs=jobs)["failed"]
    return {one["name"] or ", ".join(one["points"]): one["reason"] for one in failed}


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
