"""The sides of a race: worker processes, which do what lines on a pipe ask for; the core that all are timed on in turns, and
what is known of its clock; and two FlashInfers in one process, of which `import flashinfer` finds one at a time.

Each request has a limit: a side that does not answer in time, or ends,
is stopped with all that it started, and costs that side alone.
"""

import gc
import importlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Protocol

from ncuflow.io import JsonObject, clean, scratch
from ncuflow.process import die_with_parent, python_environment
from ncuflow.race.record import HostState
from ncuflow.run.builds import as_line
from ncuflow.target.source import offline

LAST_WORDS = 4096  # bytes of what a side printed that are looked at for why it ended
PATIENCE_S = 10.0  # to end by itself when nothing more is asked


class SideError(RuntimeError):
    """A request failed; the side goes on."""


class LostError(SideError):
    """A side is of no use any more: it hung, ended, or broke its CUDA context."""


class BaseError(RuntimeError):
    """What is installed cannot be measured: nothing can be said of a variant of it."""


@contextmanager
def of_base() -> Iterator[None]:
    """What fails in the block is the base. Raises BaseError."""
    try:
        yield
    except SideError as error:
        raise BaseError(f"the base: {error}") from None


class Side(Protocol):
    """What a race asks of a side."""

    def ask(self, do: str, limit_s: float, **words: Any) -> JsonObject:
        """The answer to a request. Raises SideError or LostError with why there is none."""


def burst(side: Side, limit_s: float, **words: Any) -> tuple[float, bool]:
    """(µs of a launch, whether the clocks were held down): of the median of a burst. Raises SideError where it took none."""
    answer = side.ask("burst", limit_s, **words)
    time_us = float(median(answer["times"]))
    if time_us <= 0:
        raise SideError(f"a launch took {time_us:g} µs: it cannot have run")
    return time_us, bool(answer["throttled"])


class Process:
    """A side that is a process of its own."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], inherited: Sequence[int], log: Path
    ) -> None:
        self._log = log
        self._buffer = b""
        self._answers, theirs = os.pipe()
        try:
            with log.open("wb") as output:
                self._child = subprocess.Popen(
                    [*command, f"--answers={theirs}"],
                    env=dict(env),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(theirs, *inherited),
                    preexec_fn=die_with_parent,
                )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(theirs)

    def ask(self, do: str, limit_s: float, **words: Any) -> JsonObject:
        request = json.dumps({"do": do, **words}) + "\n"
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(request.encode())
            self._child.stdin.flush()
        except (OSError, ValueError):
            raise LostError(self._ended()) from None
        answer: JsonObject = json.loads(self._line(time.monotonic() + limit_s, limit_s))
        if "error" in answer:
            raise (SideError if answer["alive"] else LostError)(answer["error"])
        return answer

    def _line(self, until: float, limit_s: float) -> bytes:
        """The next line of the answers, at most at a time of the monotonic clock."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self.stop()
                    raise LostError(f"did not end within {limit_s:g} s, and was stopped")
                part = os.read(self._answers, 1 << 16)
                if not part:
                    raise LostError(self._ended())
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self) -> str:
        """Why the process ended, in one line."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(PATIENCE_S)
        code = self._child.returncode
        self.stop()
        how = f"signal {-code}" if code and code < 0 else f"status {code}"
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LAST_WORDS))
            said = log.read().decode("utf-8", "replace").strip().splitlines()
        return as_line(f"its process ended with {how}", said[-1] if said else "")

    def stop(self) -> None:
        """End the process, with all that it started, at once: a kernel that hangs answers no signal but this."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        """Let the process end by itself, and end what is left of it."""
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(PATIENCE_S)
        self.stop()
        os.close(self._answers)


def program(
    target: str | None, package: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command of a side, and the whole of its environment; of ``environ`` what comes beside the minimal one."""
    command = [sys.executable, "-m", "ncuflow", "worker", *filter(None, [target])]
    env = python_environment() | offline() | dict(environ or {})
    if package is not None:
        command.append(f"--package={package}")
        path = [str(package.parent), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(path)
    return command, env


@contextmanager
def started(
    target: str | None,
    package: Path | None = None,
    environ: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
    *words: str,
) -> Iterator[Process]:
    """A side for the length of the block: the FlashInfer in ``package``, or the installed one.

    environ: variables beside the minimal environment; inherited: locks, which it keeps for as long as it lives; words:
    of its command, beside these.
    """
    command, env = program(target, package, environ)
    with scratch() as folder:
        side = Process([*command, *words], env, inherited, folder / "log")
        try:
            yield side
        finally:
            side.close()


START_S = 300.0  # to load torch and FlashInfer


class GaveUpError(RuntimeError):
    """The GPU is lost for good: nothing more can be timed."""


@dataclass
class Session:
    """What a race runs on. start: makes a process, anew after one was lost; limit_s: of one request; budget_s: of the rounds of
    one shape, after which its race is decided as it stands; lost: what hung or broke a process, and is not tried again."""

    start: Callable[[], Side]
    limit_s: float
    budget_s: float
    facts: JsonObject = field(default_factory=dict)
    driver: str | None = None
    restarts: int = 0
    lost: dict[tuple[str, str], str] = field(default_factory=dict)  # target and settings: where
    _side: Side | None = None

    def ask(self, do: str, limit_s: float | None = None, **words: Any) -> JsonObject:
        """As a side's; after a LostError the next request starts another process."""
        if self._side is None:
            self._side = self.start()
            try:  # what loads libraries is no part of what was asked for
                self._side.ask("gpu", START_S)
            except SideError as error:
                raise GaveUpError(str(error)) from None
        try:
            return self._side.ask(do, limit_s or self.limit_s, **words)
        except LostError:
            self._side = None
            self.restarts += 1
            raise


class SharedSide:
    """The base of several variants: asked by one thread at a time, and about each point once."""

    def __init__(self, side: Side) -> None:
        self._side, self._lock = side, threading.Lock()
        self._known: dict[tuple[str, str], JsonObject] = {}

    def ask(self, do: str, limit_s: float, **words: Any) -> JsonObject:
        asked = do, str(words)
        with self._lock:
            if asked not in self._known:
                self._known[asked] = self._side.ask(do, limit_s, **words)
            return self._known[asked]


CPU = Path("/sys/devices/system/cpu")
INFO = Path("/proc/cpuinfo")


def timing_core() -> int:
    """The core that calls are timed on: the last of those that this process may run on, the first being busiest with others'
    interrupts."""
    return max(os.sched_getaffinity(0))


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """The calling thread, on one core and without garbage collection for the length of the block."""
    before, collecting = os.sched_getaffinity(0), gc.isenabled()
    os.sched_setaffinity(0, {core})
    gc.disable()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if collecting:
            gc.enable()


def host_state(core: int) -> HostState:
    """What the system says of a core and its clock."""
    folder = CPU / f"cpu{core}" / "cpufreq"
    khz = _text(folder / "scaling_cur_freq")
    blocks = re.split(r"\n\s*\n", _text(INFO) or "")
    own = next((b for b in blocks if re.search(rf"^processor\s*: {core}$", b, re.M)), "")
    model, mhz = (re.search(rf"^{name}\s*: (.+)$", own, re.M) for name in ("model name", "cpu MHz"))
    return HostState(
        core=core,
        cpu=clean(model[1]) if model else None,
        governor=_text(folder / "scaling_governor"),
        mhz=round(int(khz) / 1e3) if khz else round(float(mhz[1])) if mhz else None,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


class Packages:
    """FlashInfers in one interpreter. Of these `import flashinfer` finds one at a time, with all that it has loaded."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        self._loaded: dict[Path | None, dict[str, ModuleType]] = {}
        self._now: Path | None = None  # None: that of the process

    def add(self, name: str, folder: Path, environ: Mapping[str, str]) -> str:
        """Load another one, which launches of this name are of; where it lies. Raises what that raises."""
        before = dict(os.environ)
        _imported()  # that of the process, before another is found in its place
        self._folders[name] = folder
        with self.of(name):
            os.environ.update(environ)
            sys.path.insert(0, str(folder.parent))
            try:
                return _imported()
            finally:
                sys.path.remove(str(folder.parent))
                os.environ.clear()
                os.environ.update(before)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """That of a launch, for the length of the block."""
        before = self._now
        self._take(self._folders.get(name))
        try:
            yield
        finally:
            self._take(before)

    def _take(self, folder: Path | None) -> None:
        if folder != self._now:
            names = [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]
            self._loaded[self._now] = {name: sys.modules.pop(name) for name in names}
            sys.modules.update(self._loaded.get(folder, {}))
            self._now = folder


def _imported() -> str:
    """Import FlashInfer, with where it compiles, which its environment says; its file."""
    with suppress(ModuleNotFoundError):
        importlib.import_module("flashinfer.jit.env")
    return str(importlib.import_module("flashinfer").__file__)
