"""One job per GPU: a flock per GPU UUID, which the kernel drops when its holder dies.

    ncuflow lock [--exclusive-host | --seat] [--timeout S] -- COMMAND...

The command sees one GPU (CUDA_VISIBLE_DEVICES=<uuid>) and a private TMPDIR, removed afterwards. With --seat it locks that GPU
itself when it has started, as `ncuflow launch` does.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncuflow.gpu.nvml import VisibleGpu, visible
from ncuflow.io import UsageError
from ncuflow.process import CaptureError, minimal_environment, run_child
from ncuflow.runner.job import QUIET, WAIT

HELD = "NCUFLOW_GPU_LOCK"  # set for children: a capture under the lock does not wait for itself
POLL_S = 0.25
SEATS = 4  # programs per GPU: one measures, the next ones start


@dataclass(frozen=True)
class Place:
    """A file to lock, of a GPU or, without one, of the host; alone, or shared with others that do not measure.

    kept: not given back as soon as it was had.
    """

    path: Path
    gpu: VisibleGpu | None = None
    how: int = fcntl.LOCK_EX
    kept: bool = True


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
def gpu_lock(timeout: float | None = None, exclusive_host: bool = False) -> Iterator[Held]:
    """Hold one visible GPU (the first free one, at which no other program waits), or all of them, for the length of the block.

    Only GPUs of the first visible one's model are taken, because the evidence of a run is filed under that model. With all
    GPUs goes the host, beside which nothing starts. Raises CaptureError if none becomes free within `timeout` seconds.
    """
    gpus = visible()
    wanted = [[Place(_lock_file(gpu), gpu) for gpu in _alike(gpus)]]
    if exclusive_host:
        # All in one fixed order: two exclusive jobs cannot each hold what the other needs.
        ordered = sorted(gpus, key=lambda gpu: gpu.uuid)
        each = [[Place(_lock_file(gpu), gpu)] for gpu in ordered]
        wanted = [[_timed(fcntl.LOCK_SH)], [_quiet(fcntl.LOCK_EX)], *each]
    with _held(gpus, wanted, timeout) as held:
        yield held


@contextmanager
def gpu_seat(timeout: float | None = None, timed: bool = False) -> Iterator[Held]:
    """A visible GPU to start a program for, for the length of the block; the program locks the GPU itself.

    The start of Python, torch and a profiler takes longer than many a batch, and needs no GPU: with a seat it goes on
    while another program is profiled. What is timed is not to be disturbed by a start: those that are timed start
    together and measure one after the other, and a profiler's program begins when none is timed or about to be. Raises
    CaptureError if no seat becomes free within `timeout` seconds.
    """
    gpus = visible()
    quiet = _quiet(fcntl.LOCK_SH)
    alike = _alike(gpus)
    seats = [Place(_lock_file(gpu, f".seat{n}"), gpu) for n in range(SEATS) for gpu in alike]
    # The seat comes first: who waits for one holds up nobody.
    wanted = [seats, [_timed(fcntl.LOCK_SH)]]
    if not timed:
        wanted = [seats, [replace(_timed(fcntl.LOCK_EX), kept=False)], [quiet]]
    with _held(gpus, wanted, timeout) as held:
        if not held.locks:  # a command around this one holds the GPU
            yield held
            return
        own = {WAIT: str(_lock_file(held.gpu))} | ({QUIET: str(quiet.path)} if timed else {})
        yield replace(held, environ={**held.environ, **own})


def _quiet(how: int) -> Place:
    """The host: locked alone by what is timed on it, shared by what starts and what is profiled."""
    return Place(lock_folder() / "host.quiet", how=how)


def _timed(how: int) -> Place:
    """What is timed on this host, or waits for it, shares this one: profilers that came one by one would keep it waiting."""
    return Place(lock_folder() / "host.timed", how=how)


@contextmanager
def _held(
    gpus: Sequence[VisibleGpu],
    wanted: Sequence[Sequence[Place]],
    timeout: float | None,
) -> Iterator[Held]:
    """The first free place of each of these lists, or the GPU that a command around this one holds."""
    outer = next((gpu for gpu in gpus if gpu.uuid == os.environ.get(HELD)), None)
    if outer:
        yield Held(outer)
        return
    deadline = None if timeout is None else time.monotonic() + timeout
    with ExitStack() as stack:
        taken = []
        for choice in wanted:
            with ExitStack() as had:
                taken.append(had.enter_context(_first_free(choice, deadline)))
                if choice[0].kept:
                    stack.enter_context(had.pop_all())
        places = {place.gpu: place for place, _ in taken}
        gpu = next(gpu for gpu in gpus if gpu in places)
        name = f"tmp-{gpu.uuid[-12:]}{places[gpu].path.suffix.removeprefix('.lock')}"
        scratch = str(stack.enter_context(_scratch(name)))
        environ = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "TMPDIR": scratch, HELD: gpu.uuid}
        # Not that of the host: a daemon that a killed profiler left would keep from it whatever is timed.
        yield Held(gpu, environ, tuple(handle for place, handle in taken if place.gpu))


def _alike(gpus: Sequence[VisibleGpu]) -> list[VisibleGpu]:
    """The GPUs of the first one's model; first those that the fewest programs hold, or have a seat at."""
    return sorted((gpu for gpu in gpus if gpu.name == gpus[0].name), key=_taken)


def _taken(gpu: VisibleGpu) -> int:
    """How many locks of a GPU, its seats among them, somebody has."""
    parts = ["", *map(".seat{}".format, range(SEATS))]
    found = [_locked(Place(_lock_file(gpu, part), gpu, fcntl.LOCK_SH)) for part in parts]
    for _, handle in filter(None, found):
        os.close(handle)
    return found.count(None)


def _lock_file(gpu: VisibleGpu, part: str = "") -> Path:
    return lock_folder() / f"{gpu.uuid}.lock{part}"


@contextmanager
def _first_free(places: Sequence[Place], deadline: float | None) -> Iterator[tuple[Place, int]]:
    """The first of these places that is free, and the handle of its file."""
    waiting = False
    while not (found := next(filter(None, map(_locked, places)), None)):
        count = len({place.gpu for place in places})
        what = f"GPU of {count}" if places[0].gpu else "quiet host"
        if deadline is not None and time.monotonic() >= deadline:
            raise CaptureError(f"no {what} became free in time")
        if not waiting:
            whose = f"a GPU: all {count} are" if places[0].gpu else "the host: it is"
            print(f"waiting for {whose} locked by other captures", file=sys.stderr)
            waiting = True
        time.sleep(POLL_S)
    try:
        yield found
    finally:
        # Closing would leave it to whoever inherited the file, a profiler's daemon for one.
        fcntl.flock(found[1], fcntl.LOCK_UN)
        os.close(found[1])


def _locked(place: Place) -> tuple[Place, int] | None:
    """The place with the handle of its file; None where somebody else has it."""
    handle = os.open(place.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, place.how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return place, handle


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


def configure(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--exclusive-host", action="store_true", help="hold every visible GPU")
    how.add_argument(
        "--seat",
        action="store_true",
        help="the command times, and locks the GPU when it has started",
    )
    parser.add_argument("--timeout", type=float, help="seconds to wait for a free GPU")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND...")


def run(args: argparse.Namespace) -> int:
    """Run a command with one GPU locked; its exit status is ours (128 + n for signal n)."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command given after --")
    seat = gpu_seat(args.timeout, timed=True) if args.seat else None
    with seat or gpu_lock(args.timeout, args.exclusive_host) as held:
        env = {**minimal_environment(), **held.environ}
        outcome = run_child(command, env=env, capture=False, inherited=held.locks)
    return outcome.returncode if outcome.returncode >= 0 else 128 - outcome.returncode
