"""The modules of base and variants: what a variant reaches, compiled in one graph; and their processes on the GPU.

FlashInfer's ninja writes down which headers a module read. A module is reused where its build file, its generated sources and
every file that it read are those of the base; in doubt it is compiled. Of several variants all files are compiled at once, as
many as there are jobs; one that does not compile costs its variant alone.
"""

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ncuflow.experiments.record import CompiledFile, ModuleTrial
from ncuflow.experiments.variant import DATA, PREBUILT, Overlay
from ncuflow.experiments.why import compare_code
from ncuflow.format import with_unit
from ncuflow.gpu import lock, nvml
from ncuflow.io import JsonObject, clean, repeatedly
from ncuflow.process import output_of
from ncuflow.race import eta, measure
from ncuflow.race.record import CompileError, Module
from ncuflow.race.sides import BaseError, Process, Side, SideError, of_base, started, timing_core
from ncuflow.run import builds, progress
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

NOTED, LOG = ".ninja_deps", ".ninja_log"
_OBJECT = re.compile(r"^build (\S+\.o):", re.MULTILINE)


@dataclass(frozen=True)
class Roots:
    """Where one side has its package, and what FlashInfer makes of it (FLASHINFER_WORKSPACE_DIR)."""

    package: Path
    workspace: Path


def reached(
    base: Sequence[Module], other: Sequence[Module], sides: tuple[Roots, Roots], overlay: Overlay
) -> dict[str, str]:
    """Modules of the change that must be compiled, by name, with why."""
    known = {module.name: module for module in base}
    why = {m.name: _why(known.get(m.name), m, sides, overlay) for m in other}
    return {name: reason for name, reason in why.items() if reason is not None}


def reuse(base: Sequence[Module], anew: Mapping[str, str], overlay: Overlay) -> list[str]:
    """Copy the base's other modules to where the overlay's FlashInfer takes them for prebuilt; returns their names."""
    kept = [module for module in base if module.name not in anew and module.library.is_file()]
    for module in kept:
        target = overlay.package / PREBUILT / module.name / f"{module.name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module.library, target)
    return [module.name for module in kept]


def _why(
    base: Module | None, other: Module, sides: tuple[Roots, Roots], overlay: Overlay
) -> str | None:
    """Why a module of the change is not the base's; None if it is."""
    if base is None or not base.library.is_file():
        return "the base has none of this name"
    read = files_read(base.folder)
    if read is None:
        return "which files the base's read is not known"
    flags = {_masked(module.folder / "build.ninja", sides) for module in (base, other)}
    if len(flags) > 1:
        return "its flags or sources differ"
    return _file_that_differs(read, sides, overlay)


def _file_that_differs(
    read: Mapping[Path, Sequence[Path]], sides: tuple[Roots, Roots], overlay: Overlay
) -> str | None:
    package, workspace = sides[0].package, sides[0].workspace.resolve()
    # By what they resolve to: folders of an installation from source are links.
    changed = {Path(os.path.realpath(package / file)): file for file in overlay.files}
    for path in sorted({path for paths in read.values() for path in paths}):
        if path in changed:
            return f"it reads {changed[path]}"
        if path.is_relative_to(workspace):
            theirs = sides[1].workspace / path.relative_to(workspace)
            if _masked(path, sides) != _masked(theirs, sides):
                return f"its generated {path.name} differs"
    added = [file for file in overlay.files if not (package / file).exists()]
    # A new header may be found before the one that was read; the host's compiler names none of the package (-MMD).
    hosted = [o for o in read if not o.name.endswith(".cuda.o")]
    data = sorted(file for file in overlay.files if file.parts[0] == DATA)
    if data and hosted:
        return f"{hosted[0].name} may read {data[0]}: the host's compiler does not tell"
    if new := [file for file in added if file.parts[0] == DATA]:
        return f"{sorted(new)[0]} is new, and may be found before another of its name"
    return None


def files_read(folder: Path) -> dict[Path, list[Path]] | None:
    """Files that a module's compilers read, by object, as ninja noted them; None where it does not know them of each."""
    if not (folder / NOTED).is_file():
        return None
    listed = output_of(["ninja", "-C", str(folder), "-t", "deps"])
    found: dict[Path, list[Path]] = {}
    for line in (listed or "").splitlines():
        if ": #deps " in line:
            if "(VALID)" not in line:
                return None
            current = found.setdefault(folder / line.split(": #deps ")[0], [])
        elif line.startswith("    ") and found:
            current.append(Path(os.path.realpath(folder / line.strip())))
    made = set(objects(folder))
    return found if made and made <= found.keys() else None


def compiling(module: Module) -> dict[Path, tuple[float, float]]:
    """When each object of a module and its library began to be made and were there, seconds of ninja's clock, as it noted."""
    made = {*objects(module.folder), module.library}
    found = {}
    for line in _text(module.folder / LOG).splitlines():
        # start and end (ms), time of the file, file, digest of the command; a file's last line counts
        match line.split("\t"):
            case [start, end, _, file, _] if module.folder / file in made:
                found[module.folder / file] = int(start) / 1e3, int(end) / 1e3
    return found


def objects(folder: Path) -> list[Path]:
    """The object files of a module, by its build file."""
    return [folder / name for name in _OBJECT.findall(_text(folder / "build.ninja"))]


def _masked(path: Path, sides: tuple[Roots, Roots]) -> str:
    """A file of one side, as it would be on the other; the overlay's links lead into the base's package."""
    text = _text(path)
    for word, roots in (
        ("<package>", [side.package for side in sides]),
        ("<workspace>", [side.workspace for side in sides]),
    ):
        for root in roots:
            for spelled in (str(root.resolve()), str(root)):
                text = text.replace(spelled, word)
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


BUILD_S = 3600.0  # that all modules of a command may take
START_S = 300.0  # to load torch and FlashInfer, and to generate sources


@dataclass
class NotCompiledError(Exception):
    """The change does not compile, or cannot be imported."""

    reason: str
    complaint: CompileError | None = None


Failing = dict[str, NotCompiledError]  # points whose modules do not compile, by id


@dataclass
class BuiltVariant:
    """A variant whose modules are made. cases: of its points; anew: the modules that it reaches, with why; failing: why cases,
    and in the end points, do not compile, by id; records: of its modules, unless points fail."""

    overlay: Overlay
    side: Side
    cases: list[JsonObject]
    modules: list[Module] = field(default_factory=list)
    anew: Mapping[str, str] = field(default_factory=dict)
    failing: Failing = field(default_factory=dict)
    records: list[ModuleTrial] = field(default_factory=list)

    def fail(self, error: SideError) -> None:
        """It cannot be imported, or is lost: no case of it compiles."""
        reason = NotCompiledError(without_folders(str(error), self.overlay))
        self.failing = {case["id"]: reason for case in self.cases}


def built(
    target: Target,
    planned: Sequence[Planned],
    installed: Path,
    overlays: Sequence[Overlay],
    jobs: int | None,
    tell: eta.Tell,
    spare: Sequence[Planned] = (),
    each: Sequence[Sequence[Planned]] | None = None,
) -> tuple[list[BuiltVariant], Failing]:
    """Compile the modules of the base and of every change; those that a change does not reach are copies of the base's.

    spare: further points, which the base need not be able to compile; each: of every change the points that need it, of
    both; all that are planned unless given. Returns what became of each change, and the spare points at which the base
    fails. Raises BaseError where it fails at a planned one.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    cases = _cases(target, [*planned, *spare], tell)
    needed, *of_changes = (
        [case.as_dict() for point in some for case in cases[point.id]]
        for some in [planned, *(each or [planned] * len(overlays))]
    )
    entries = [case.as_dict() for some in cases.values() for case in some]
    with ExitStack() as stack:
        base = stack.enter_context(started(target.name))
        changes = [
            BuiltVariant(o, stack.enter_context(started(target.name, o.package, own(o))), some)
            for o, some in zip(overlays, of_changes, strict=True)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, min(jobs, len(changes)))))
        prepared = pool.map(_prepare, changes)
        must = {case["id"] for case in needed}
        roots, modules, failed = _base(base, installed, entries, must, jobs, tell)
        for change, theirs in zip(changes, list(prepared), strict=True):
            if theirs is not None:
                change.anew = reached(modules, change.modules, (roots, theirs), change.overlay)
                shared = {module.name for module in change.modules}
                reuse([m for m in modules if m.name in shared], change.anew, change.overlay)
        anew = [
            module for change in changes for module in change.modules if module.name in change.anew
        ]
        whose = "the change" if len(changes) == 1 else with_unit(len(changes), "changes")
        tell(f"compiling {with_unit(len(anew), 'modules')} of {whose}")
        with watched(tell, [module.folder for module in anew]):
            if len(changes) > 1 and anew:
                said = [module.model_dump(mode="json") for module in anew]
                with of_base():  # in the environment that its own were compiled in
                    base.ask("compile", BUILD_S, modules=said, jobs=jobs)
            share = max(1, jobs // max(1, len(changes)))
            list(pool.map(lambda change: _finish(change, share), changes))
        libraries = {module.name: module.library for module in modules}
        list(pool.map(lambda change: _note(change, libraries), changes))
    for change in changes:
        change.failing = _by_point(change.failing, cases)
    return changes, _by_point(failed, cases)


def _cases(target: Target, points: Sequence[Planned], tell: eta.Tell) -> dict[str, list[Planned]]:
    """What is launched of each point, by its id; of one that this GPU cannot run, nothing."""
    every = {point.id: point for point in points}
    here = builds.capabilities(os.environ, nvml.capabilities)
    able = builds.buildable(target, list(every.values()), here, tell)
    return {id: measure.cases(target, p) if p in able else [] for id, p in every.items()}


def _by_point(failing: Failing, cases: Mapping[str, Sequence[Planned]]) -> Failing:
    """Why points do not compile, from why cases do not."""
    found = {
        point: [failing[case.id] for case in some if case.id in failing]
        for point, some in cases.items()
    }
    return {point: errors[0] for point, errors in found.items() if errors}


def own(overlay: Overlay) -> dict[str, str]:
    """Of the change's sides: what it compiles is nobody else's."""
    workspace = overlay.workspace
    return {} if workspace is None else {"FLASHINFER_WORKSPACE_BASE": str(workspace)}


def roots_of(side: Side, package: Path) -> Roots:
    """Where a side has its FlashInfer. Raises SideError where it loads another than it should."""
    found = side.ask("hello", START_S)
    if Path(found["package"]).resolve() != package.resolve():
        raise SideError(f"Python finds another FlashInfer first, in {found['package']}")
    return Roots(package, Path(found["workspace"]))


def without_folders(text: str, overlay: Overlay) -> str:
    """A text without the folders of the overlay."""
    for folder in filter(None, (overlay.package, overlay.workspace)):
        for spelled in (folder.resolve(), folder):
            text = text.replace(f"{spelled}/", "")
    return clean(text)


def _base(
    side: Side,
    installed: Path,
    entries: list[JsonObject],
    needed: Set[str],
    jobs: int,
    tell: eta.Tell,
) -> tuple[Roots, list[Module], Failing]:
    """The base's modules, compiled where they were not yet, and the cases that are not needed and fail, by id."""
    with of_base():
        roots = roots_of(side, installed)
        tell("compiling what of the base is not compiled yet")
        modules = _modules(side, entries)
        with watched(tell, [module.folder for module in modules]):
            failed = side.ask("build", BUILD_S, jobs=jobs)["failed"]
    for what in failed:
        if needed & set(what["points"]):
            raise BaseError(f"the base: {unbuilt(what)}")
    lacking = _by_case(failed, Overlay(installed, roots.workspace, frozenset()))
    without = {what["name"] for what in failed}
    return roots, [module for module in modules if module.name not in without], lacking


def unbuilt(what: JsonObject) -> str:
    """One of the things that a side could not build."""
    return ": ".join(filter(None, (what["name"], what["reason"])))


def _by_case(failed: Sequence[JsonObject], overlay: Overlay) -> Failing:
    """Why cases do not compile, by id."""
    found: Failing = {}
    for what in failed:
        error = NotCompiledError(*_complaint(what, overlay))
        found |= {case: error for case in what["points"] if case not in found}
    return found


def _prepare(change: BuiltVariant) -> Roots | None:
    """Generate the sources of a change's modules; None where it cannot be imported, or fails at that."""
    try:
        roots = roots_of(change.side, change.overlay.package)
        change.modules = _modules(change.side, change.cases)
    except SideError as error:
        change.fail(error)
        return None
    return roots


def _finish(change: BuiltVariant, jobs: int) -> None:
    """Build what the graph of all did not, and note the compiler's first complaint of each module."""
    if change.failing:
        return
    try:
        failed = change.side.ask("build", BUILD_S, jobs=jobs)["failed"]
    except SideError as error:
        change.fail(error)
    else:
        change.failing = _by_case(failed, change.overlay)


def _note(change: BuiltVariant, libraries: Mapping[str, Path]) -> None:
    """Put down the records of a variant's modules; of those that were compiled anew, their code beside the base's."""
    for module in change.modules if not change.failing else ():
        why = change.anew.get(module.name)
        trial = ModuleTrial(name=module.name, compiled=why is not None, why=why)
        change.records.append(trial)
        if trial.compiled:
            _timed(trial, module)
        if trial.compiled and module.name in libraries:
            compare_code(trial, libraries[module.name], module.library)
        elif trial.compiled:
            trial.not_compared = "the base has no module of this name"


def _timed(trial: ModuleTrial, module: Module) -> None:
    """Note where the time of a module's compilation went."""
    took = compiling(module)
    if took:
        trial.compile_s = round(
            max(end for _, end in took.values()) - min(b for b, _ in took.values()), 1
        )
    trial.files = sorted(
        (
            CompiledFile(name=path.name, seconds=round(end - begin, 1))
            for path, (begin, end) in took.items()
            if path != module.library
        ),
        key=lambda file: -file.seconds,
    )


def _modules(side: Side, entries: list[JsonObject]) -> list[Module]:
    found = side.ask("modules", START_S, points=entries)["modules"]
    return [Module.model_validate(module) for module in found]


def _complaint(failed: JsonObject, overlay: Overlay) -> tuple[str, CompileError | None]:
    """Why a module does not compile, and what the compiler said first, its file as the change names it."""
    if failed["complaint"] is None:
        return without_folders(unbuilt(failed), overlay), None
    found = CompileError.model_validate(failed["complaint"])
    # Names of the user are masked in what a compiler says, so its folders are told by their last part.
    assert overlay.workspace is not None
    for folder in (overlay.package.relative_to(overlay.package.parents[1]), overlay.workspace.name):
        found.file = found.file.rpartition(f"/{folder}/")[2]
    found.file, found.message = clean(found.file), clean(found.message)
    return f"{found.file}:{found.line}: {found.message}", found


EVERY_S = 10.0  # between two lines while compilers run


@contextmanager
def watched(tell: eta.Tell, folders: Sequence[Path], every_s: float = EVERY_S) -> Iterator[None]:
    """Say now and then, for the length of the block, how many files of modules in these folders are compiled."""
    missing = [path for folder in folders for path in objects(folder) if not path.exists()]
    begun = time.monotonic()

    def said() -> None:
        if missing:
            tell(compiled(missing, time.monotonic() - begun))

    with repeatedly(said, every_s):
        yield


def compiled(files: Sequence[Path], elapsed_s: float) -> str:
    """How many of some files are there, and how long the others may take at that pace."""
    done = sum(path.exists() for path in files)
    left = progress.left(elapsed_s, done, len(files) - done)
    rest = "" if left is None else f", about {left:.0f} s left"
    return f"{done} of {len(files)} files compiled, {elapsed_s:.0f} s elapsed{rest}"


# --- on the GPU -------------------------------------------------------------------------------

# Variants whose processes are there at once: each has a CUDA context, and the memory of torch.
TOGETHER = 8


def together(
    target: str | None,
    base: Overlay | None,
    change: Overlay,
    files: Iterable[PurePath],
    held: lock.Held,
    stack: ExitStack,
) -> Process | None:
    """A process that has both FlashInfers, where only their Python differs. files: those that differ; stack: ends it. None where
    there is none: compiled code of two of them does not share a process."""
    if any(file.parts[0] in (DATA, "jit") for file in files) or change.function:
        return None
    environ = {**held.environ, **(own(base) if base else {})}
    side = stack.enter_context(started(target, base.package if base else None, environ, held.locks))
    try:
        words = {"name": "change", "package": str(change.package), "environ": own(change)}
        side.ask("beside", START_S, **words)
    except SideError:
        return None
    return side


@dataclass
class VariantBench:
    """One GPU, the base in two processes, which serve all variants of a command, and each variant in one of its own.

    Those of variants are started some at a time, all at once, before any of them is timed: loading torch and FlashInfer takes
    longer than many a trial. held: the GPU; overlays: of the variants, in the order in which they are asked for.
    """

    target: str
    held: lock.Held
    overlays: Sequence[Overlay]
    limit_s: float
    tell: eta.Tell
    base: Process
    control: Process
    _started: dict[int, tuple[Process, ExitStack]] = field(default_factory=dict, init=False)

    @contextmanager
    def of(self, place: int) -> Iterator[measure.Sides]:
        """The sides of a variant, whose own process ends with the block."""
        if place not in self._started:
            self.start(range(place, min(place + TOGETHER, len(self.overlays))))
        side, stack = self._started.pop(place)
        with stack:
            yield measure.Sides(self.base, side, self.control, self.limit_s, timing_core())

    def start(self, places: range) -> None:
        """Start the processes of some variants. One that fails at that says so again when it is asked."""
        self.tell(f"starting {with_unit(len(places), 'changes')}")
        for place in places:
            stack, overlay = ExitStack(), self.overlays[place]
            environ = {**self.held.environ, **own(overlay)}
            side = stack.enter_context(
                started(self.target, overlay.loaded, environ, self.held.locks, *overlay.words)
            )
            self._started[place] = side, stack
        load_all([self._started[place][0] for place in places])

    def close(self) -> None:
        """End the processes of variants that were not asked for."""
        with ExitStack() as stack:
            for _, other in self._started.values():
                stack.push(other)


@contextmanager
def bench(
    target: str, overlays: Sequence[Overlay], limit_s: float, tell: eta.Tell
) -> Iterator[VariantBench]:
    """A GPU that nobody else uses meanwhile, and the base on it. Raises BaseError where that cannot be started."""
    with lock.gpu_lock() as held, ExitStack() as stack:
        both = [
            stack.enter_context(started(target, None, held.environ, held.locks)) for _ in range(2)
        ]
        found = VariantBench(target, held, overlays, limit_s, tell, *both)
        stack.callback(found.close)
        loading = stack.enter_context(ThreadPoolExecutor(1)).submit(load_all, both)
        found.start(range(min(TOGETHER, len(overlays))))
        with of_base():
            for error in filter(None, loading.result()):
                raise error
        yield found


def load_all(sides: Sequence[Process]) -> list[SideError | None]:
    """Let sides load torch and FlashInfer, and find the GPU, all at once; why one could not."""

    def ask(side: Process) -> SideError | None:
        try:
            side.ask("gpu", START_S)
        except SideError as error:
            return error
        return None

    with ThreadPoolExecutor(max(1, len(sides))) as pool:
        return list(pool.map(ask, sides))
