"""Builds of JIT modules: all of a sweep ahead of it, and the watch that none happens during a run.

    ncuflow build --points POINTS.json … --out build.json [--jobs N]

The modules of all points, of whatever targets, that the GPU can run: one ninja graph, N files at once (all cores). Builds
may run beside each other: what both need one of them compiles, and the other waits until that stands. So does a program that
is profiled meanwhile, which waits for its own modules alone.
FLASHINFER_CUDA_ARCH_LIST names architectures in place of the GPU's, and then none is needed. No GPU is held.

exit  0 all built    1 nothing could be    2 bad input    3 some do not compile, and are named"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path, PurePath
from typing import Any

from ncuflow import io
from ncuflow.gpu import lock, nvml
from ncuflow.private import masked, masked_line
from ncuflow.run import FATAL, OK, SOME_FAILED
from ncuflow.run.gpu import cuda_not_begun, load_libraries
from ncuflow.sweep.points import Planned, read_points
from ncuflow.target.contract import Target, load

COMPILERS = frozenset({"ninja", "nvcc"})
NOTED = (".ninja_log", ".ninja_deps")  # of what ninja made, and of what that was made from
NOTE_TRIES, NOTE_S = 50, 0.02
ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
_COMPLAINT = re.compile(r"\b(error|fatal)\b.*:|: (error|fatal)|not found", re.IGNORECASE)


class CompilerWatch:
    """Counts the compilers that this process starts, whichever library starts them.

    FlashInfer calls ninja whenever it loads a module that it built, even one that is up to date:
    the first run of a module counts, the runs after it do not.
    """

    def __init__(self) -> None:
        self.started = 0
        sys.addaudithook(self._hook)  # an audit hook cannot be removed: one watch per process

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and _program(args) in COMPILERS:
            self.started += 1


def one_line(error: Exception) -> str:
    """Type and first line of an error, and what a compiler complained of; no folders, no secrets.

    The rest is advice on debugging, or the command line of a compiler.
    """
    return as_line(type(error).__name__, str(error))


def as_line(kind: str, message: str) -> str:
    """As `one_line`, of an error of another process."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return kind
    complaint = next((line for line in lines[1:] if _COMPLAINT.search(line)), None)
    text = f"{kind}: {lines[0]}" + (f" {complaint}" if complaint else "")
    return masked_line(text)


def _program(args: tuple[Any, ...]) -> str:
    """Name of the program that a subprocess.Popen audit event starts."""
    executable, command = args[:2]
    first = executable or (command if isinstance(command, (str, bytes)) else [*command, ""][0])
    text = first.decode(errors="replace") if isinstance(first, bytes) else str(first)
    return PurePath(text.split(" ")[0]).name


def capabilities(
    environment: Mapping[str, str], devices: Callable[[], Sequence[str]]
) -> Sequence[str]:
    """Compute capabilities that FlashInfer compiles for: those it is told ("9.0a" is 9.0), else the GPUs'."""
    arch_list = environment.get(ARCH_LIST)
    return [word.rstrip("af") for word in arch_list.split()] if arch_list else devices()


def buildable(
    target: Target,
    points: Sequence[Planned],
    capabilities: Sequence[str],
    log: Callable[[str], None],
) -> list[Planned]:
    """The points that one of these GPUs can run; all if none is known.

    A kernel of another architecture (fa3) would not compile, and its point is skipped anyway.
    """
    gpus = [{"compute_capability": capability} for capability in capabilities]
    kept = []
    for point in points:
        reasons = [target.skip(point.params, gpu) for gpu in gpus]
        if reasons and all(reasons):
            log(f"{point.id}: not built: {reasons[0]}")
        else:
            kept.append(point)
    return kept


def modules(
    target: Target, points: Sequence[Planned], unnamed: dict[str, Exception] | None = None
) -> list[Any]:
    """JIT modules (JitSpec) of the points, one per name. unnamed: gets by its id the error of a point whose modules cannot
    be named, whatever its kernel's code raises; it fails when it is prepared. Raises that error without it."""
    found: io.JsonObject = {}
    for point in points:
        try:
            found |= {spec.name: spec for spec in target.modules(point.params)}
        except Exception as error:
            if unnamed is None:
                raise
            unnamed[point.id] = error
    return list(found.values())


def build(
    specs: Sequence[Any],
    jobs: int,
    log: Callable[[str], None],
    taken: Callable[[], object] = lambda: None,
) -> list[io.JsonObject]:
    """Build the modules, ``jobs`` files at once; one that is up to date takes milliseconds.

    taken: is called when no other process would compile them any more. Returns [{"name", "status", "reason"}], status
    "built", "prebuilt" or "error".
    """
    with ExitStack() as held:
        _compiling(held)
        together([spec for spec in specs if is_cold(spec)], jobs, log, taken)
        # What FlashInfer itself says: of a module that stands, that it does; of one that failed, why.
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            return list(pool.map(lambda spec: _build_one(spec, log), specs))


def is_cold(spec: Any) -> bool:
    """Whether a module is one of ninja's that was never built here."""
    if getattr(spec, "is_aot", False) or not hasattr(spec, "write_ninja"):
        return False
    return not Path(spec.jit_library_path).exists()


def together(
    specs: Sequence[Any],
    jobs: int,
    log: Callable[[str], None],
    taken: Callable[[], object] = lambda: None,
) -> None:
    """Compile modules in one ninja graph, and go on past a file that does not compile.

    FlashInfer starts ninja in the module's own folder when it loads one: it finds there what this ninja noted of
    its files, and takes them for what they are. A module is compiled under FlashInfer's own lock of it, for as long
    as that takes; one that another process compiles is left to that one.
    """
    if shutil.which("ninja") is None:
        return
    with ExitStack() as held:
        kept = _compiling(held)
        locks = {spec.name: held.enter_context(ExitStack()) for spec in specs}
        ours = [
            spec
            for spec in sorted(specs, key=_turn)
            if locked(Path(spec.lock_path), locks[spec.name])
        ]
        ours = [spec for spec in ours if is_cold(spec)]  # the other one may just have finished it
        taken()
        if ours:
            notes = _notes(Path(ours[0].ninja_path).parent.parent, held)
            _compile(ours, jobs, log, notes, locks, kept)


def _compile(
    specs: Sequence[Any],
    jobs: int,
    log: Callable[[str], None],
    notes: Path,
    locks: Mapping[str, ExitStack],
    kept: int,
) -> None:
    """Run ninja, and give each module free when it stands. kept: a lock that its compilers keep when this process is killed."""
    for spec in specs:
        spec.write_ninja()
    graph = notes / f"ncuflow.{os.getpid()}.ninja"
    io.write_text(graph, "".join(f"{line}\n" for line in _graph(specs, notes)))
    folder = Path(specs[0].ninja_path).parent.parent
    command = ["ninja", "-C", str(folder), "-f", str(graph), "-k", "0", "-j", str(jobs)]
    left = list(specs)
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, errors="replace", pass_fds=[kept]
        ) as ninja:
            for line in ninja.stdout or ():
                log(masked(line.rstrip()))
                said = line if line.startswith("[") else ""
                for spec in [one for one in left if _library(one) in said]:
                    left.remove(spec)
                    _give_free(spec, notes, locks)
    finally:
        graph.unlink()
    for spec in left:
        if Path(spec.jit_library_path).exists():
            _give_free(spec, notes, locks)


def _graph(specs: Sequence[Any], notes: Path) -> Iterator[str]:
    """Lines of the ninja file of all modules.

    Ninja begins with what is furthest from the end of its graph, and so, from 1.12 on, links no module while a file of any
    is left to compile. Two steps that do nothing, after a module that comes first, put it further from the end than all others.
    """
    yield f"builddir = {notes}"
    yield from (f"subninja {spec.ninja_path}" for spec in specs)
    yield from ("rule nothing", "  command = :")
    for spec in specs:
        if _is_small(spec):
            place = notes / f"{spec.name}.stands"
            yield f"build {place}: nothing {spec.jit_library_path}"
            yield f"build {place}.now: nothing {place}"
            yield f"default {place}.now"


def _give_free(spec: Any, notes: Path, locks: Mapping[str, ExitStack]) -> None:
    for _ in range(NOTE_TRIES):  # ninja notes what it made after it has told of it
        if _library(spec) in (notes / ".ninja_log").read_text("utf-8", "replace"):
            break
        time.sleep(NOTE_S)
    for noted in filter(Path.exists, (notes / name for name in NOTED)):
        shutil.copy(noted, Path(spec.ninja_path).parent)
    locks[spec.name].close()


def _library(spec: Any) -> str:
    """The library as ninja names it."""
    return str(Path(spec.jit_library_path).resolve())


def _notes(folder: Path, held: ExitStack) -> Path:
    """A folder that no other ninja notes in what it did: that of the modules, else one in it."""
    places = (folder / f".ncuflow-{number}" if number else folder for number in count())
    return next(place for place in places if locked(place, held, folder=True))


def locked(path: Path, held: ExitStack, folder: bool = False, wait: bool = False) -> bool:
    """Whether nobody has the lock of a file or folder, which `held` has then. Those of modules are FlashInfer's own."""
    (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
    free = io.locked(handle, wait=wait)
    if free:
        held.callback(os.close, handle)
    else:
        os.close(handle)
    return free


def _turn(spec: Any) -> tuple[bool, bool, bool, int]:
    """Small modules come first: they are few files, and no GPU has work until one of them stands. Of the others, what is begun
    last is waited for: so the files of Hopper's kernels (CUTLASS) come next, and those of a module that has one for each pair
    of masks (POD), each of which takes five times as long as others. Those with a file for a type or a mask each come last."""
    files = len(spec.sources)
    return not _is_small(spec), not _is_hopper(spec), files < 16, -files


def _is_small(spec: Any) -> bool:
    """Whether all of a module is in a file or two, and an interface (norm, rope: up to a minute; sampling: three)."""
    return len(spec.sources) <= 3 and not _is_hopper(spec)


def _is_hopper(spec: Any) -> bool:
    return str(spec.name).endswith("_sm90")


def begins() -> Path:
    """What a build locks until it has taken its modules."""
    return lock.own_folder(lock.lock_folder()) / "build"


def compiles() -> Path:
    """What all that compile modules share a lock of meanwhile."""
    return lock.own_folder(lock.lock_folder()) / "compiles"


def _compiling(held: ExitStack) -> int:
    """The handle of that lock, which `held` has as well."""
    handle = os.open(compiles(), os.O_RDWR | os.O_CREAT, 0o600)
    held.callback(os.close, handle)
    io.locked(handle, io.SHARED)
    return handle


def _build_one(spec: Any, log: Callable[[str], None]) -> io.JsonObject:
    status, reason = "built", None
    try:
        if getattr(spec, "is_aot", False):
            status = "prebuilt"
        else:
            spec.build(verbose=False, need_lock=True)
    except Exception as error:
        status, reason = "error", one_line(error)
        log(f"{spec.name}: {error}")
    return {"name": spec.name, "status": status, "reason": reason}


def _wanted(paths: Sequence[Path], log: Callable[[str], None]) -> list[Any]:
    """The modules of the points of all files, one per name."""
    known = capabilities(os.environ, nvml.capabilities)
    found: io.JsonObject = {}
    unnamed: dict[str, Exception] = {}
    for path in paths:
        entries = io.read_json(path)
        try:
            target = load(entries[0]["target"])
        except (LookupError, TypeError):
            raise io.BadInput(path, "not a list of points") from None
        except ValueError as error:
            raise io.UsageError(str(error)) from None
        wanted = buildable(target, read_points(path, target), known, log)
        found |= {spec.name: spec for spec in modules(target, wanted, unnamed)}
    if unnamed and not found:
        raise io.CommandError(one_line(next(iter(unnamed.values()))), FATAL)
    for point, why in unnamed.items():
        log(f"{point}: not built: {one_line(why)}")
    return list(found.values())


def command(*, points: list[Path], out: Path, jobs: int | None = None) -> int:
    """Build the modules of points.

    Args:
        points: points.json files
        out: build.json
        jobs: files compiled at once (default: one per core)
    """
    start = time.perf_counter()
    workers = jobs or len(os.sched_getaffinity(0))

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        with ExitStack() as first:
            locked(begins(), first, wait=True)
            load_libraries()
            with cuda_not_begun():
                found = build(_wanted(points, log), workers, log, first.close)
    except (ImportError, RuntimeError) as error:
        raise io.CommandError(one_line(error), FATAL) from None
    seconds = round(time.perf_counter() - start, 3)
    io.write_json(out, {"modules": found, "jobs": workers, "seconds": seconds})
    failed = [module for module in found if module["status"] == "error"]
    for module in failed:
        log(f"{module['name']}: {module['reason']}")
    return SOME_FAILED if failed else OK


POLL_S = 0.1


def build_begun() -> None:
    """Wait until a build that is about to begin compiles: it loads the same libraries, and all others wait for it."""
    with ExitStack() as held:
        locked(begins(), held, wait=True)


def nobody_compiles(wait: bool = False) -> bool:
    """Whether no build of this user compiles anything; with ``wait``, when that is so."""
    with ExitStack() as held:
        return locked(compiles(), held, wait=wait)


class WaitForBuild:
    """The modules of a target's points that another process compiles, or is about to.

    A program that is profiled meanwhile takes the points in the order in which their modules stand, and holds no GPU while
    none does. together: it begins when those of all points stand.
    """

    def __init__(
        self,
        target: Target,
        points: Sequence[Planned],
        together: bool = False,
        after_builds: bool = False,
    ) -> None:
        self._target, self._points = target, points
        self._together, self._after_builds = together or after_builds, after_builds
        self._of: dict[str, list[Any]] = {}

    def begin(self) -> None:
        """Wait until those of one point stand, or of all."""
        known = capabilities(os.environ, nvml.capabilities)
        able = buildable(self._target, self._points, known, lambda line: None)
        self._of = {point.id: modules(self._target, [point], {}) for point in able}
        build_begun()
        self._wait(all if self._together else any, self._points)
        if self._after_builds:
            nobody_compiles(wait=True)

    def stand(self, point: Planned) -> bool:
        """Whether nobody compiles a module of the point. One that nobody compiles may be cold."""
        return not any(is_cold(spec) and _is_compiled(spec) for spec in self._of.get(point.id, ()))

    def first(
        self, points: Sequence[Planned], pause: Callable[[Callable[[], None]], None]
    ) -> Planned:
        """The first of these points whose modules stand, when those of one do."""
        while not (standing := [point for point in points if self.stand(point)]):
            pause(lambda: self._wait(any, points))
        return standing[0]

    def _wait(self, which: Callable[[Iterable[bool]], bool], points: Sequence[Planned]) -> None:
        while not which(map(self.stand, points)):
            time.sleep(POLL_S)


def _is_compiled(spec: Any) -> bool:
    """Whether a process is compiling a module now."""
    with ExitStack() as held:
        return not locked(Path(spec.lock_path), held)
