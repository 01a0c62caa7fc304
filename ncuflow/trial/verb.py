"""A change of FlashInfer: is it still right? Is it faster, where, and by how much?

    ncuflow try CHANGE --target TARGET [--points points.json | --blocks JSON] [--effect 2%] [--json out.json]

CHANGE is a unified patch against FlashInfer, or a folder that is laid over it. It is made in a copy: the installed
package stays as it is. Modules that it reaches are compiled anew, by the flags of the base. Each point is held against
its float32 reference, also at inputs where kernels go wrong; then base and change are timed in turns, until it is
known whether the change matters. A change is code, and runs as the user who tries it.

exit  0 faster or the same    1 it does not compile, or nothing could be run    2 bad input    3 slower somewhere
      4 wrong somewhere, in error, or it did not end    5 nothing is slower, and some are not decided
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.format import aligned, micro, with_unit
from ncuflow.gpu import nvml, turns
from ncuflow.io import CommandError, UsageError, clean, emit, scratch, write_json
from ncuflow.origin import flashinfer_version, now, package_folder
from ncuflow.runner import builds
from ncuflow.runner.job import FATAL
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, known, load
from ncuflow.trial import code, course
from ncuflow.trial.change import PACKAGE, read
from ncuflow.trial.overlay import Overlay, lay
from ncuflow.trial.reach import Module, Roots, reached, reuse
from ncuflow.trial.record import (
    EXIT,
    WORST,
    Case,
    ChangeRecord,
    CompileError,
    KernelTrial,
    ModuleTrial,
    PointTrial,
    Trial,
)
from ncuflow.trial.sequential import ALPHA
from ncuflow.trial.sides import LostError, Process, Side, SideError, started

BUILD_S = 3600.0  # that all modules of a side may take
START_S = 300.0  # to load torch and FlashInfer, and to generate sources
LIMIT_S = 300.0  # of a point's check, or of one burst
KERNELS, OPCODES = 6, 5  # that the screen has: kernels whose code differs, and opcodes of each
CODE = {
    "registers": "registers",
    "shared_bytes": "static shared memory",
    "stack_bytes": "stack",
    "local_instructions": "loads and stores of local memory",
    "instructions": "instructions",
}


@dataclass
class NotCompiledError(Exception):
    """The change does not compile, or cannot be imported."""

    reason: str
    complaint: CompileError | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("change", type=Path, metavar="CHANGE", help="unified patch, or folder of changed files")
    add("--target", required=True, help=f"kernel target: {', '.join(known())}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--points", type=Path, help="points.json (default: the target's own point)")
    which.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON")
    add(
        "--effect", type=effect, default=0.02, help="change of the time that matters (default: 2%%)"
    )
    add("--json", type=Path, metavar="OUT", help="write the record of the trial as well")
    add(
        "--limit",
        type=float,
        default=LIMIT_S,
        help="seconds of one check, or of one burst of launches",
    )
    add("--jobs", type=int, help="files compiled at once (default: one per core)")


def effect(text: str) -> float:
    """A relative change of 1 from "2%" or "0.02". Raises ArgumentTypeError unless it lies between 0.1 and 50 %."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no change between 0.1% and 50%")
    return value


def run(args: argparse.Namespace) -> int:
    target, planned = _points(args)
    if not args.limit > 0 or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--limit and --jobs are above 0")
    installed = package_folder(PACKAGE)
    if installed is None:
        raise CommandError("flashinfer is not installed", FATAL)
    change = read(args.change, installed)
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    trial = Trial(
        change=ChangeRecord(
            name=clean(args.change.name),
            files=[clean(str(file)) for file in change.files],
            elsewhere=list(change.elsewhere),
        ),
        target=target.name,
        effect=args.effect,
        alpha=ALPHA,
        date=now(),
        flashinfer=flashinfer_version(),
        outcome="unchecked",
    )
    _tell(f"{trial.change.name} is code, and runs as the user {getpass.getuser()}")
    for name in change.elsewhere:
        _tell(f"left out, for it is no file of the installed package: {name}")
    with scratch() as folder:
        overlay = lay(change, installed, folder)
        trial.change.files = sorted(clean(str(file)) for file in overlay.files)
        try:
            trial.modules = _built(target, planned, installed, overlay, args.jobs)
            _measured(trial, target, planned, overlay, args.limit)
        except NotCompiledError as error:
            trial.outcome, trial.reason = "not compiled", error.reason
            trial.compile_error = error.complaint
        except course.BaseError as error:
            raise CommandError(clean(str(error)), FATAL) from None
    if args.json is not None:
        write_json(args.json, trial.model_dump())
    emit(screen(trial), None)
    return EXIT[trial.outcome]


def _points(args: argparse.Namespace) -> tuple[Target, list[Planned]]:
    try:
        target = load(args.target)
        if args.points is not None:
            return target, read_points(args.points, target)
        return target, points(target, args.blocks or [{}])
    except ValueError as error:
        raise UsageError(str(error)) from None


def _built(
    target: Target, planned: Sequence[Planned], installed: Path, overlay: Overlay, jobs: int | None
) -> list[ModuleTrial]:
    """Compile the modules of both sides; those that the change does not reach are copies of the base's."""
    jobs = jobs or len(os.sched_getaffinity(0))
    here = builds.capabilities(os.environ, nvml.capabilities)
    able = builds.buildable(target, planned, here, _tell)
    entries = [case.as_dict() for point in able for case in course.cases(target, point)]
    with (
        started(target.name) as base,
        started(target.name, overlay.package, _own(overlay)) as other,
    ):
        try:
            roots = _roots(base, installed)
            _tell("compiling what of the base is not compiled yet")
            modules = _modules(base, entries)
            failed = base.ask("build", BUILD_S, jobs=jobs)
        except SideError as error:
            raise course.BaseError(f"the base: {error}") from None
        if failed["failed"]:
            raise course.BaseError(f"the base: {failed['failed']}: {failed['reason']}")
        try:
            sides = (roots, _roots(other, overlay.package))
            theirs = _modules(other, entries)
            why = reached(modules, theirs, sides, overlay)
            kept = reuse([m for m in modules if m.name in {t.name for t in theirs}], why, overlay)
            _tell(f"compiling {with_unit(len(why), 'modules')} of the change, {len(kept)} reused")
            failed = other.ask("build", BUILD_S, jobs=jobs)
        except SideError as error:
            raise NotCompiledError(_relative(str(error), overlay)) from None
    if failed["failed"]:
        raise NotCompiledError(*_complaint(failed, overlay))
    return [_module(m, modules, why) for m in theirs]


def _module(module: Module, base: Sequence[Module], anew: Mapping[str, str]) -> ModuleTrial:
    """The record of a module of the change; of one that was compiled anew, its code beside the base's."""
    trial = ModuleTrial(name=module.name, compiled=module.name in anew, why=anew.get(module.name))
    theirs = next((m.library for m in base if m.name == module.name), None)
    if trial.compiled and theirs is not None:
        code.compare(trial, theirs, module.library)
    elif trial.compiled:
        trial.not_compared = "the base has no module of this name"
    return trial


def _own(overlay: Overlay) -> dict[str, str]:
    """Of the change's sides: what it compiles is nobody else's."""
    return {"FLASHINFER_WORKSPACE_BASE": str(overlay.workspace)}


def _roots(side: Side, package: Path) -> Roots:
    """Where a side has its FlashInfer. Raises SideError where it loads another than it should."""
    found = side.ask("hello", START_S)
    if Path(found["package"]).resolve() != package.resolve():
        raise SideError(f"Python finds another FlashInfer first, in {found['package']}")
    return Roots(package, Path(found["workspace"]))


def _modules(side: Side, entries: list[dict[str, Any]]) -> list[Module]:
    found = side.ask("modules", START_S, points=entries)["modules"]
    return [Module.model_validate(module) for module in found]


def _complaint(failed: dict[str, Any], overlay: Overlay) -> tuple[str, CompileError | None]:
    """Why a module does not compile, and what the compiler said first, its file as the change names it."""
    if failed["complaint"] is None:
        return f"{failed['failed']}: {_relative(failed['reason'], overlay)}", None
    found = CompileError.model_validate(failed["complaint"])
    # Names of the user are masked in what a compiler says, so its folders are told by their last part.
    for folder in (overlay.package.relative_to(overlay.package.parents[1]), overlay.workspace.name):
        found.file = found.file.rpartition(f"/{folder}/")[2]
    found.file, found.message = clean(found.file), clean(found.message)
    return f"{found.file}:{found.line}: {found.message}", found


def _relative(text: str, overlay: Overlay) -> str:
    """A text without the folders of the overlay."""
    for folder in (overlay.package, overlay.workspace):
        for spelled in (folder.resolve(), folder):
            text = text.replace(f"{spelled}/", "")
    return clean(text)


def _measured(
    trial: Trial, target: Target, planned: Sequence[Planned], overlay: Overlay, limit_s: float
) -> None:
    """Check and time every point on one GPU, which nobody else uses meanwhile, and conclude."""
    with turns.gpu_lock() as held, ExitStack() as stack:

        def begun(package: Path | None = None) -> Process:
            own = {} if package is None else _own(overlay)
            environ = {**held.environ, **own}
            return stack.enter_context(started(target.name, package, environ, held.locks))

        # All three load their libraries at once.
        sides = course.Sides(begun(), begun(overlay.package), begun(), limit_s)
        try:
            for side in (sides.base, sides.again):
                found = side.ask("gpu", START_S)
        except SideError as error:
            raise course.BaseError(f"the base: {error}") from None
        trial.gpu, trial.driver = found["name"], found["driver"]
        try:
            _roots(sides.change, overlay.package)
            sides.change.ask("gpu", START_S)
        except SideError as error:
            trial.outcome = "lost" if isinstance(error, LostError) else "error"
            trial.reason = _relative(str(error), overlay)
            return
        trial.points = course.checked(sides, target, planned, _tell)
        course.timed(sides, planned, trial.points, trial.effect, _tell)
    found_here = {point.outcome for point in trial.points}
    trial.outcome = next(outcome for outcome in WORST if outcome in found_here)


def screen(trial: Trial) -> str:
    """What a trial says, on one screen."""
    lines = [f"{trial.change.name} at {trial.target}: {trial.outcome}"]
    if trial.reason:
        lines.append(f"  {trial.reason}")
    anew = [module for module in trial.modules if module.compiled]
    if trial.modules:
        lines.append(f"{len(anew)} of {with_unit(len(trial.modules), 'modules')} compiled anew")
        lines += [f"  {module.name}: {module.why}{_alike(module)}" for module in anew]
        lines += _code([kernel for module in anew for kernel in module.kernels])
    if cases := {case.id: case for point in trial.points for case in point.cases}:
        right = sum(case.status == "ok" for case in cases.values())
        lines.append(f"{right} of {with_unit(len(cases), 'inputs')} right")
        lines += [f"  {told}" for case in cases.values() for told in _case(case)]
    if timed := [point for point in trial.points if point.timing is not None]:
        head = ("point", "base", "change", "difference", "base against itself", "rounds", "")
        lines += [
            "",
            aligned(head, [_row(point) for point in timed]).rstrip(),
            f"{100 * (1 - trial.alpha):g} % sure of all points together; what matters is {100 * trial.effect:g} %",
        ]
    apart = [point for point in trial.points if point.timing is None and not point.cases]
    lines += [f"{point.point}: {point.outcome}: {point.reason}" for point in apart]
    return "\n".join(lines) + "\n"


def _alike(module: ModuleTrial) -> str:
    """How many of a module's kernels the change left as they were."""
    if module.same_kernels is None:
        return f" (code not compared: {module.not_compared})"
    total = module.same_kernels + len(module.kernels)
    return f"; the code of {len(module.kernels)} of {with_unit(total, 'kernels')} differs"


def _code(kernels: Sequence[KernelTrial]) -> list[str]:
    """What differs in compiled code, a line per kernel."""
    lines = [f"  {kernel.name}: {', '.join(_differences(kernel))}" for kernel in kernels[:KERNELS]]
    left = len(kernels) - KERNELS
    return (
        [*lines, f"  and {with_unit(left, 'kernels')} more (--json has them)"]
        if left > 0
        else lines
    )


def _differences(kernel: KernelTrial) -> Iterator[str]:
    if kernel.base is None or kernel.change is None:
        yield "new" if kernel.base is None else "gone"
        return
    for field, label in CODE.items():
        was, now_is = getattr(kernel.base, field), getattr(kernel.change, field)
        if was != now_is:
            yield f"{label} {was} to {now_is}"
    most = sorted(kernel.opcodes, key=lambda opcode: -abs(kernel.opcodes[opcode]))[:OPCODES]
    yield (
        " ".join(f"{kernel.opcodes[opcode]:+d} {opcode}" for opcode in most)
        or "other operands or order"
    )


def _case(case: Case) -> list[str]:
    """A case that is not right, and its worst element."""
    if case.status == "ok":
        return []
    lines = [f"{case.id}: {case.status}: {case.reason}"]
    if case.worst is not None:
        got = "not finite" if case.worst.got is None else f"{case.worst.got:.6g}"
        place = f"output {case.worst.output} at {case.worst.index}"
        lines.append(
            f"  worst element: {place}: {got}, expected {case.worst.expected:.6g} (seed {case.seed})"
        )
    return lines


def _row(point: PointTrial) -> list[str]:
    timing = point.timing
    assert timing is not None
    late = f", {timing.throttled} bursts throttled" if timing.throttled else ""
    return [
        point.point,
        micro(timing.base_us),
        micro(timing.change_us),
        course.spelled(timing.change),
        course.spelled(timing.noise),
        str(timing.rounds),
        point.outcome + late,
    ]


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
