"""Which choice for which shape: every one that is legal there raced in turns, by what is surely faster.

    ncuflow advise --workload mine.json --out advice.json [--html page.html]
    ncuflow advise decode --blocks '[{"batch": [1, 32], "kv_heads": 8}]'
    ncuflow advise --recorded recordings/h200/0.7.2/default
    ncuflow advise --tunables TARGET [--blocks JSON | --points points.json] [--knobs NAME…] [--budget 12] [--budget 90s]

Shapes are those of a sweep (--workload: the configuration that `ncuflow workload` writes, or what it reads), of --blocks of
a target, or of points.json files. On a GPU each choice of a shape (backend, CUDA or tensor cores, split, graph, what the
target declares as free) is held against its float32 reference and timed in turns with the others, until it is surely slower
than the leader; what stays is a winner or a tie. --recorded takes the choices that a recording has, without a GPU.

With --tunables constants of FlashInfer's source that the target declares (tile, stages, threads, chunk) are searched beside
what a caller may set. Each combination of other values is made in an overlay of the installed FlashInfer as a change of
`ncuflow try` is: compiled where it reaches a module, held against the float32 reference, never timed when wrong. They are timed
in turns with the default; after each rung, which has twice the rounds of the one before, the slower half leaves, unless noise
could be why. The best is confirmed in turns on inputs that the search did not see.

exit  0 every shape has an advice (a winner, or the default stands)    1 nothing could be compiled or timed    2 bad input
      3 some shapes have none
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ncuflow import answer
from ncuflow.experiments import arguments, audit, choices, heuristics, page, recorded
from ncuflow.experiments.advise import ShapeRace
from ncuflow.experiments.arguments import tell
from ncuflow.experiments.record import Advice, AdvisedShape, Search, SearchedShape, head
from ncuflow.experiments.search import SearchPlan
from ncuflow.experiments.search import measured as searched
from ncuflow.experiments.text import advice_text, search_text
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
    sniff,
    write_json,
    write_text,
)
from ncuflow.race.sequential import ALPHA
from ncuflow.race.sides import GaveUpError, Session, SideError, started
from ncuflow.run import FATAL, OK, SOME_FAILED
from ncuflow.sweep import workloads
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points, unable
from ncuflow.target.contract import Target, known, load

ANSWER = Advice | audit.Audit | audit.StoreComparison | Search
PYTHON, STORE = "python", "flashinfer-store"
BUILD_S = 3600.0
BUDGET_S = 5.0
MOST = 12  # variants of a search
COLD = "time_cold_us"
Cases = list[tuple[Target, list[Planned]]]  # targets with their shapes


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("kernel", nargs="?", metavar="TARGET", help=f"kernel target: {', '.join(known())}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--workload",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what is run, as `ncuflow workload` reads or writes it",
    )
    which.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON, of one target")
    which.add_argument("--points", type=Path, nargs="+", metavar="FILE", help="points.json files")
    which.add_argument(
        "--recorded",
        type=Path,
        metavar="PATH",
        help="a recording, the outputs of a run, or what --out wrote: no GPU",
    )
    which.add_argument(
        "--audit",
        type=Path,
        nargs="+",
        metavar="STORE",
        help="a store of FlashInfer's autotuner, its tactics against their runners-up; of two what differs, without a GPU",
    )
    add("--target", nargs="+", help="those to take, of several")
    add("--tunables", action="store_true", help="search constants of the source as well")
    add("--knobs", nargs="+", metavar="NAME", help="the tunables to search (default: all)")
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
        type=_budget,
        action="append",
        default=[],
        metavar="N|Ns",
        help=f"seconds of a shape's rounds, after which its race is decided as it stands (default: {BUDGET_S:g}); with"
        f" --tunables variants (default: {MOST}), or seconds of the rounds of all shapes together (90s); both may be given",
    )
    arguments.measuring(parser, "--patience", arguments.PATIENCE_S)


def _also(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    found = [int(v) if v.isdecimal() else v for v in values.split(",") if v]
    if not name or not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=A,B")
    return name, found


def _budget(text: str) -> str:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of candidates, or of seconds (90s)"
        )
    return text


def run(args: argparse.Namespace) -> int:
    arguments.above_0(args, "patience")
    args.target = args.target or ([args.kernel] if args.kernel else None)
    read = [args.recorded, *(args.workload or ()), *(args.points or ()), *(args.audit or ())]
    wanted = {kind: Path(out) for kind, out in args.apply}
    if strange := wanted.keys() - {PYTHON, STORE}:
        raise UsageError(f"--apply {sorted(strange)[0]!r} is neither {PYTHON} nor {STORE}")
    for out in (args.out, args.html, wanted.get(PYTHON)):
        not_over(out, *read)
    _goes_together(args, wanted)
    if args.audit is not None:
        return _audit(args)
    if args.tunables:
        return _search(args)
    live = args.recorded is None
    found = measured(args, wanted.get(STORE)) if live else _recorded(args)
    _written(args, found, "shapes", advice_text(found))
    if args.html:
        write_text(args.html, page.rendered(found))
    if PYTHON in wanted:
        targets = {shape.target: load(shape.target) for shape in found.shapes}
        write_text(wanted[PYTHON], page.python_module(found, targets))
    return _status([shape.advised is not None for shape in found.shapes])


def _status(done: Sequence[bool]) -> int:
    """What the command ends with, of several things that were asked for."""
    return OK if all(done) and done else SOME_FAILED if any(done) else FATAL


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
    given = {"--html": args.html, "--apply": wanted, "--also": args.also}
    given["--counters"] = args.counters
    for mode, more in (
        ("audit", {}),
        (
            "tunables",
            {f"--{name}": getattr(args, name) for name in ("workload", "recorded", "audit")},
        ),
    ):
        for name, value in (given | more).items() if getattr(args, mode) else ():
            if value:
                raise UsageError(f"{name} is of an advice: not with --{mode}")
    if args.knobs and not args.tunables:
        raise UsageError("--knobs is of a search: with --tunables")
    if args.audit is not None and len(args.audit) > 2:
        raise UsageError("--audit takes one store, or two to compare")


def _written(args: argparse.Namespace, found: answer.Answer, rows: str, text: str) -> None:
    """The record as --out and --json want it, else its text. rows: the field that --limit is about."""
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
    with racing(args) as session:
        entries = [
            audit.audited(session, entry, targets, len(sides[0]), args.effect, tell)
            for entry in sides[0]
        ]
        about = head(session.facts["name"], session.driver)
    found = audit.Audit(**about, effect=args.effect, alpha=ALPHA, entries=entries)
    _written(args, found, "entries", audit.audit_text(found))
    return _status([entry.verdict != "not timed" for entry in entries])


# --- a search of tunables ---------------------------------------------------------------------


def _search(args: argparse.Namespace) -> int:
    if len(args.target or ()) != 1:
        raise UsageError("--tunables needs one TARGET")
    counts = [text for text in args.budget if not text.endswith("s")]
    if broken := [text for text in counts if "." in text]:
        raise UsageError(f"{broken[0]!r} is no number of candidates, or of seconds (90s)")
    if len(args.points or ()) > 1:
        raise UsageError("--tunables takes one file of points")
    file = args.points[0] if args.points else None
    target, given = arguments.of_target(args.target[0], file, args.blocks)
    shapes = choices.shapes(target, given)
    _known_tunables(args.knobs, target, shapes)
    installed = arguments.installed()
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    plan = SearchPlan(
        target,
        shapes,
        only=args.knobs,
        variants=min(map(int, counts), default=MOST),
        seconds=min((float(text[:-1]) for text in args.budget if text not in counts), default=None),
        effect=args.effect,
        patience_s=args.patience,
        jobs=args.jobs,
    )
    found = searched(plan, installed, tell)
    _written(args, found, "shapes", search_text(found))
    return search_status(found.shapes)


def search_status(shapes: Sequence[SearchedShape]) -> int:
    """What a search ends with."""
    answered = [shape.found in ("winner", "default") for shape in shapes]
    timed = any(shape.confirmed for shape in shapes)
    return OK if all(answered) else SOME_FAILED if timed else FATAL


def _known_tunables(only: Sequence[str] | None, target: Target, shapes: Sequence[Planned]) -> None:
    """Raises UsageError for a tunable that the target has not, or where it has none."""
    names = [tunable.name for tunable in target.source.tunables]
    names += [name for shape in shapes for name in target.free(shape.params)]
    if not names:
        raise UsageError(f"{target.name} declares no knobs")
    if strange := [name for name in only or () if name not in names]:
        raise UsageError(
            f"{target.name} has no knob {strange[0]!r}; it has: {', '.join(dict.fromkeys(names))}"
        )


# --- what is asked for ------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> tuple[Cases, list[str]]:
    """(targets with their shapes, a line for each case that no target measures)."""
    refused: list[str] = []
    try:
        wanted = [load(name).name for name in args.target or ()]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.points is not None:
        found = _of_points(args.points)
    elif args.workload is not None:
        found, refused = _workload(args.workload)
    elif len(wanted) == 1:
        found = {wanted[0]: arguments.of_target(wanted[0], None, args.blocks)[1]}
    else:
        raise UsageError(
            "one TARGET, or --workload, --points, --recorded or --audit, says what is advised"
        )
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
def racing(args: argparse.Namespace) -> Iterator[Session]:
    """A GPU that nobody else uses, and a process on it. Raises CommandError where there is none, or it is lost for good."""
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    with turns.gpu_lock() as held, ExitStack() as stack:
        session = Session(
            lambda: stack.enter_context(started(None, None, held.environ, held.locks)),
            args.patience,
            min((float(text.removesuffix("s")) for text in args.budget), default=BUDGET_S),
        )
        try:
            found = session.ask("gpu")
            session.facts, session.driver = found["facts"], found["driver"]
            yield session
        except (SideError, GaveUpError) as error:
            raise CommandError(clean(str(error)), FATAL) from None


def measured(args: argparse.Namespace, store: Path | None = None) -> Advice:
    """The advice of a race on this machine's GPU; published through FlashInfer's autotuner into ``store``."""
    asked, refused = cases(args)
    also = dict(args.also)
    with racing(args) as session:
        failed = _built(session, asked, also, args.jobs)
        number = sum(len(shapes) for _, shapes in asked)
        advised = [
            ShapeRace(session, target, shape, also, number, args.effect, tell).advised()
            for target, shapes in asked
            for shape in shapes
        ]
        if store is not None:
            _published(session, advised, store)
        about = head(session.facts["name"], session.driver)
    found = Advice(
        **about,
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


def _published(session: Session, shapes: Sequence[AdvisedShape], store: Path) -> None:
    """Let FlashInfer's autotuner store what it tunes of the advised calls, and say how many that were."""
    entries, kept, reason = 0, 0, None
    for shape in shapes:
        chosen = shape.choice(shape.advised)
        if chosen is None:
            continue
        params = {**shape.params, **chosen.settings}
        point = {"id": chosen.point, "target": shape.target, "params": params}
        found = session.ask("publish", point=point, root=str(store.absolute()))
        entries, kept = entries + found["entries"], kept + bool(found["entries"])
        reason = found["reason"] or reason
    tell(
        reason
        or f"{store}: FlashInfer's autotuner keeps {entries} choices of {kept} of {len(shapes)} shapes"
    )


def _built(session: Session, asked: Cases, also: choices.Also, jobs: int | None) -> dict[str, str]:
    """Compile what all choices need, in one graph; the modules that do not compile, with why."""
    wanted = [
        choice.as_dict()
        for target, shapes in asked
        for shape in shapes
        for choice in choices.choices(target, shape, also)
        if unable(target, choice, session.facts) is None
    ]
    tell(f"{len(wanted)} choices; compiling what of them is not compiled yet")
    jobs = jobs or len(os.sched_getaffinity(0))
    session.ask("modules", BUILD_S, points=wanted)
    failed = session.ask("build", BUILD_S, jobs=jobs)["failed"]
    return {one["name"] or ", ".join(one["points"]): one["reason"] for one in failed}
