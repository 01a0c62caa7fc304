"""The lock of a GPU, and shared slots to start in: flock on files of this user, which the kernel drops with the last process
that has one.

    ncuflow lock [--exclusive-host | --gpus N | --slot] [--timeout S] -- COMMAND...

The command sees one GPU (CUDA_VISIBLE_DEVICES=<uuid>) and a private TMPDIR, removed afterwards. With --slot it locks that GPU
itself when it has started, as `ncuflow launch` does. What a program has locked, by its state:

queued     a ticket of its own in `queue/`. Who came first goes first, of those that wait for the same GPUs; flock itself
           is not fair. What is timed does not wait for profilers that do: many are timed in the time of one that is profiled.
alone      the GPU from the start on, or with --exclusive-host all GPUs and the host
in a slot  one of SLOTS shared slots of a GPU, to start in: that takes longer than many a batch, and needs no GPU
  timed    and `host.timed`, shared, for whose release profilers wait before they start
  profiled and `host.quiet`, shared: nothing on the host is timed meanwhile
starting   (timed) `host.quiet`, shared: beside others that start, and never beside one that measures
measuring  the GPU; what is timed has `host.quiet` alone as well
paused     (profiled) its slot and `host.quiet`, and the GPU no longer
"""

import atexit
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncuflow.gpu import use
from ncuflow.gpu.nvml import VisibleGpu, visible
from ncuflow.io import FREE, OWN, SHARED, UsageError, locked
from ncuflow.process import CaptureError, minimal_environment, run_child

HELD = "NCUFLOW_GPU_LOCK"  # set for children: a capture under the lock does not wait for itself
WAIT = "NCUFLOW_GPU_WAIT"  # the file that a program in a slot locks before it measures
QUIET = "NCUFLOW_HOST_QUIET"  # the one that it locks as well if it is timed
WAITS, BEGINS = "ncuflow: waiting for the GPU", "ncuflow: the GPU is held"  # what it says then
STARTS = "ncuflow: CUDA begins"  # and between the two, where it makes its context before it holds the GPU
QUEUES = "waiting for "  # with what a program begins that says what it waits for before it starts
POLL_S = 0.25
SLOTS = 12  # programs per GPU: one measures, the next ones start
ALONE, TIMED, PROFILED = "alone", "timed", "profiled"


@dataclass(frozen=True)
class LockFile:
    """A file to lock, of a GPU or, without one, of the host. kept: not given back as soon as it was had."""

    name: str
    gpu: VisibleGpu | None = None
    how: int = OWN
    kept: bool = True

    @property
    def path(self) -> Path:
        return lock_folder() / self.name


@dataclass(frozen=True)
class Held:
    """A GPU that is ours, and what a child needs to use it: environment variables, and the locks.

    locks: file descriptors for the child to inherit, so that a program under a profiler keeps the GPU
    locked for as long as it lives, also when the holder is killed.
    """

    gpu: VisibleGpu
    environ: Mapping[str, str] = field(default_factory=dict)
    locks: tuple[int, ...] = ()


def lock_folder() -> Path:
    """The per-user folder of lock files; not below TMPDIR, which may be another one in each job."""
    return own_folder(os.environ.get("NCUFLOW_LOCK_DIR") or f"/tmp/ncuflow-gpu-{os.getuid()}")


def own_folder(path: str | Path) -> Path:
    """A folder that this user alone can write to, made (with mode 0700) where it is not there.

    Raises CaptureError if it is somebody else's, or anybody's.
    """
    folder = Path(path).absolute()  # what it is handed to may run elsewhere, as a compiler does
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or shared:
        what = "not a folder of this user alone; set NCUFLOW_LOCK_DIR and TMPDIR to one"
        raise CaptureError(f"{folder}: {what}")
    return folder


@contextmanager
def gpu_lock(
    timeout: float | None = None, exclusive_host: bool = False, count: int = 1
) -> Iterator[Held]:
    """Hold one visible GPU (the first free one, at which no other program waits), the first ``count`` of them, or all, for the
    length of the block.

    Only GPUs of the first visible one's model are taken, because the evidence of a run is filed under that model. With all
    GPUs goes the host, beside which nothing starts. Raises CaptureError if none becomes free within `timeout` seconds.
    """
    gpus = visible()
    wanted = [[_lock_file(gpu) for gpu in _alike(gpus)]]
    if count > 1:
        if len(_alike(gpus)) < count:
            raise CaptureError(f"needs {count} GPUs of one model, here are {len(_alike(gpus))}")
        wanted = [[_lock_file(gpu)] for gpu in _alike(gpus)[:count]]
    elif exclusive_host:
        each = [[_lock_file(gpu)] for gpu in gpus]
        wanted = [[LockFile("host.timed", how=SHARED)], [LockFile("host.quiet")], *each]
    with _acquired(ALONE, gpus, wanted, timeout, count) as held:
        job = sys.argv[1] if len(sys.argv) > 1 else ALONE
        if held.locks:  # else a command around this one has noted it
            use.note(use.BEGINS, held.gpu.uuid, job)
            atexit.register(use.note, use.ENDS, held.gpu.uuid, job)
        yield held


@contextmanager
def gpu_slot(timeout: float | None = None, timed: bool = False) -> Iterator[Held]:
    """A visible GPU to start a program for, for the length of the block; the program locks the GPU itself, by `hold`.

    Raises CaptureError if no slot becomes free within `timeout` seconds.
    """
    gpus = visible()
    slots = [_lock_file(gpu, f".slot{n}") for n in range(SLOTS) for gpu in _alike(gpus)]
    quiet = LockFile("host.quiet", how=SHARED)
    # The slot comes first: who waits for one holds up nobody.
    wanted = [slots, [LockFile("host.timed", kept=False)], [quiet]]
    if timed:
        wanted = [slots, [LockFile("host.timed", how=SHARED)]]
    with _acquired(TIMED if timed else PROFILED, gpus, wanted, timeout) as held:
        own = {WAIT: str(_lock_file(held.gpu).path)} | ({QUIET: str(quiet.path)} if timed else {})
        # Without locks a command around this one holds the GPU.
        yield Held(held.gpu, {**held.environ, **own}, held.locks) if held.locks else held


@dataclass(frozen=True)
class Turn:
    """The turn of a program at its GPU. lock: the file that says whose it is."""

    gpu: str
    job: str
    lock: int

    def begin(self, ready: Callable[[], None]) -> None:
        """Wait until what others make is ready, and then for the GPU."""
        use.note(use.WAITS, self.gpu, self.job)
        print(WAITS, file=sys.stderr, flush=True)
        ready()
        locked(self.lock)
        print(BEGINS, file=sys.stderr, flush=True)
        use.note(use.BEGINS, self.gpu, self.job)

    def pause(self, until: Callable[[], None]) -> None:
        """Leave the GPU, on which this program has nothing running, to others until what they make is ready."""
        use.note(use.ENDS, self.gpu, self.job)
        locked(self.lock, FREE)
        self.begin(until)


def hold(
    load: Callable[[], None], job: str = "", ready: Callable[[], None] = lambda: None
) -> Callable[[Callable[[], None]], None]:
    """In a program in a slot: load what takes seconds and needs no GPU, and then wait for this process's GPU.

    job: what it is going to do, for the file that tells who had the GPU. ready: waits for what others make for it.
    Returns what waits for something further, and leaves the GPU to others meanwhile (`Turn.pause`).
    """
    if WAIT not in os.environ:
        return lambda until: until()
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    quiet = _opened(os.environ[QUIET]) if QUIET in os.environ else None
    if quiet is not None:
        locked(quiet, SHARED)
    use.note(use.LOADS, gpu, job)
    load()
    turn = Turn(gpu, job, _opened(os.environ[WAIT]))

    def prepared() -> None:
        ready()
        if quiet is not None:
            locked(quiet)

    turn.begin(prepared)
    atexit.register(use.note, use.ENDS, gpu, job)
    return turn.pause


@contextmanager
def _acquired(
    state: str,
    gpus: Sequence[VisibleGpu],
    wanted: Sequence[Sequence[LockFile]],
    timeout: float | None,
    count: int = 1,
) -> Iterator[Held]:
    """The first free place of each of these lists, or the GPU that a command around this one holds. The program sees the first
    ``count`` of its GPUs."""
    outer = next((gpu for gpu in gpus if gpu.uuid == os.environ.get(HELD)), None)
    if outer:
        yield Held(outer)
        return
    deadline = None if timeout is None else time.monotonic() + timeout
    uuids = {place.gpu.uuid for choice in wanted for place in choice if place.gpu}
    with ExitStack() as stack:
        taken = []
        with _queued(state, uuids) as is_next:
            for choice in wanted:
                with ExitStack() as had:
                    taken.append(had.enter_context(_first_free(choice, is_next, deadline)))
                    if choice[0].kept:
                        stack.enter_context(had.pop_all())
        places = {place.gpu: place for place, _ in taken}
        seen = [gpu for gpu in gpus if gpu in places][:count]
        gpu = seen[0]
        name = f"tmp-{gpu.uuid[-12:]}{places[gpu].path.suffix.removeprefix('.lock')}"
        scratch = str(stack.enter_context(_scratch(name)))
        devices = ",".join(one.uuid for one in seen)
        environ = {"CUDA_VISIBLE_DEVICES": devices, "TMPDIR": scratch, HELD: gpu.uuid}
        # Not that of the host: a daemon that a killed profiler left would keep from it whatever is timed.
        yield Held(gpu, environ, tuple(handle for place, handle in taken if place.gpu))


@contextmanager
def _queued(state: str, uuids: set[str]) -> Iterator[Callable[[], bool]]:
    """A ticket for one of these GPUs, for the length of the block; whether it is its turn."""
    queue = own_folder(lock_folder() / "queue")
    ticket = queue / f"{time.time_ns():020}-{os.getpid()}.{state}"
    # Its name comes last: who sees a ticket that is not locked takes its owner for dead.
    draft = queue / f".{ticket.name}"
    draft.write_text(" ".join(uuids), encoding="ascii")
    handle = _opened(draft)
    locked(handle)
    draft.rename(ticket)
    try:
        yield lambda: not any(_is_before(other, ticket, uuids) for other in queue.glob("[!.]*"))
    finally:
        ticket.unlink(missing_ok=True)
        os.close(handle)


def _is_before(other: Path, ticket: Path, uuids: set[str]) -> bool:
    """Whether a ticket waits for another. That of a process that died goes."""
    passed = ticket.suffix == f".{TIMED}" and other.suffix == f".{PROFILED}"
    if passed or other.name >= ticket.name:
        return False
    try:
        if uuids.isdisjoint(other.read_text(encoding="ascii", errors="replace").split()):
            return False
    except FileNotFoundError:  # it was its turn
        return False
    dead = _locked(LockFile(f"queue/{other.name}", how=SHARED))
    if dead:
        other.unlink(missing_ok=True)
        os.close(dead[1])
    return not dead


def _alike(gpus: Sequence[VisibleGpu]) -> list[VisibleGpu]:
    """The GPUs of the first one's model; first those that the fewest programs hold, or have a slot at."""
    return sorted((gpu for gpu in gpus if gpu.name == gpus[0].name), key=_taken)


def _taken(gpu: VisibleGpu) -> int:
    """How many locks of a GPU, its slots among them, somebody has."""
    parts = ["", *map(".slot{}".format, range(SLOTS))]
    found = [_locked(replace(_lock_file(gpu, part), how=SHARED)) for part in parts]
    for _, handle in filter(None, found):
        os.close(handle)
    return found.count(None)


def _lock_file(gpu: VisibleGpu, part: str = "") -> LockFile:
    return LockFile(f"{gpu.uuid}.lock{part}", gpu)


@contextmanager
def _first_free(
    places: Sequence[LockFile], is_next: Callable[[], bool], deadline: float | None
) -> Iterator[tuple[LockFile, int]]:
    """The first of these places that is free, and the handle of its file, when it is our turn."""
    waiting = False
    while not is_next() or not (found := next(filter(None, map(_locked, places)), None)):
        count = len({place.gpu for place in places})
        what = f"GPU of {count}" if places[0].gpu else "quiet host"
        if deadline is not None and time.monotonic() >= deadline:
            raise CaptureError(f"no {what} became free in time")
        if not waiting:
            whose = f"a GPU: all {count} are" if places[0].gpu else "the host: it is"
            print(f"{QUEUES}{whose} locked by other captures", file=sys.stderr, flush=True)
            waiting = True
        time.sleep(POLL_S)
    try:
        yield found
    finally:
        # Closing would leave it to whoever inherited the file, a profiler's daemon for one.
        locked(found[1], FREE)
        os.close(found[1])


def _locked(place: LockFile) -> tuple[LockFile, int] | None:
    """The place with the handle of its file; None where somebody else has it."""
    handle = _opened(place.path)
    if locked(handle, place.how, wait=False):
        return place, handle
    os.close(handle)
    return None


def _opened(path: str | Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    """A fresh TMPDIR. We hold the lock that it belongs to, so what a killed holder left there can go."""
    base = Path(tempfile.gettempdir()) / f"ncuflow-gpu-{os.getuid()}"
    folder = own_folder(os.environ.get("NCUFLOW_LOCK_DIR") or base)
    scratch = folder / name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def command(
    *words: str,
    exclusive_host: bool = False,
    gpus: int = 1,
    slot: bool = False,
    timeout: float | None = None,
) -> int:
    """Run a command with one GPU locked, or several; its exit status is ours (128 + n for signal n).

    Args:
        words: -- COMMAND…
        exclusive_host: hold every visible GPU
        gpus: how many the command takes
        slot: the command times, and locks the GPU when it has started
        timeout: seconds to wait for a free GPU
    """
    if exclusive_host + slot + (gpus > 1) > 1:
        raise UsageError("--exclusive-host, --gpus and --slot do not go together")
    if not words:
        raise UsageError("no command given after --")
    own = gpu_slot(timeout, timed=True) if slot else None
    with own or gpu_lock(timeout, exclusive_host, gpus) as held:
        env = {**minimal_environment(), **held.environ}
        outcome = run_child([*words], env=env, capture=False, inherited=held.locks)
    return outcome.returncode if outcome.returncode >= 0 else 128 - outcome.returncode
