"""Child processes: a minimal environment, streamed output, a time limit for the whole group, the last words of a log; and the
programs of the CUDA toolkit and of the compiler beside it: where they lie, and what they say."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.io import CommandError
from ncuflow.private import SENSITIVE

# Only these reach a profiled program: nsys stores the environment it sees, verbatim.
PASSED = re.compile(
    r"^(PATH|HOME|LANG|LC_ALL|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|MAX_JOBS|CC|CXX|XDG_CACHE_HOME"
    r"|OMP_NUM_THREADS|PYTHON\w*|CUDA_\w+|NVIDIA_\w+|FLASHINFER_\w+|TVM_FFI_\w+|TORCH_CUDA_ARCH_LIST"
    r"|NCUFLOW_\w+|TRITON_CACHE_DIR)$"
)
SITE = ("site-packages", "dist-packages")  # where Python looks anyhow, behind its own library
GRACE_S = 10.0
QUERY_S = 20.0  # that a quick query may take
PR_SET_PDEATHSIG = 1


class CaptureError(CommandError):
    """A capture that cannot go on: the exit status, and the line that is shown."""


@dataclass(frozen=True)
class ProcessExit:
    """How a child ended: exit status (-n for signal n), time limit hit, seconds."""

    returncode: int
    timed_out: bool
    wall_s: float


def minimal_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The allow-listed part of `environ` (default: this process's) without secrets."""
    source = os.environ if environ is None else environ
    return {k: v for k, v in source.items() if PASSED.match(k) and not SENSITIVE.search(k)}


def python_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environ` (default: the minimal one) for a Python that runs this code: it takes no module from the folder that it
    works in, which may hold what anybody sent."""
    found = dict(minimal_environment() if environ is None else environ)
    home = Path(__file__).parents[1]
    own = [] if home.name in SITE else [str(home)]  # a checkout runs its own code
    paths = [*own, *filter(None, found.get("PYTHONPATH", "").split(os.pathsep))]
    return (
        found | {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
    )


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    cwd: Path | None = None,
    capture: bool = True,
    inherited: Sequence[int] = (),
    waited: Callable[[], float] = lambda: 0.0,
    meanwhile: Callable[[], object] = lambda: None,
) -> ProcessExit:
    """Run `command` in its own process group, hand each line of its output to `on_line`.

    inherited: file descriptors that it and its children keep open. waited: seconds that do not count so far, because the
    program waited for its turn. meanwhile: is called when it has begun, before the time limit is
    watched. At `timeout` seconds, or when this process is interrupted or `meanwhile` fails, the whole group is ended.
    Raises CaptureError if the program does not exist.
    """
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            list(command),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if capture else None,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            start_new_session=capture,
            pass_fds=inherited,
            preexec_fn=die_with_parent,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CaptureError(f"{command[0]}: {error.strerror}") from error
    reader = threading.Thread(target=_pump, args=(child, on_line), daemon=True)
    reader.start()
    timed_out = False
    try:
        meanwhile()
        while timeout is not None and child.poll() is None:
            left = timeout + waited() - (time.monotonic() - started)
            if left <= 0:
                raise subprocess.TimeoutExpired(child.args, timeout)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(left)
        child.wait()
    except subprocess.TimeoutExpired:
        timed_out = True
        end_group(child, group=capture)
    except BaseException:
        end_group(child, group=capture)
        raise
    reader.join(GRACE_S)
    return ProcessExit(child.returncode, timed_out, time.monotonic() - started - waited())


def run_in_place(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `command` on this process's terminal until it ends by itself; its exit status (-n for signal n).

    A signal that would end this process is sent on to it each time, but for the SIGINT of a terminal, which it has from there.
    Raises CaptureError if the program does not exist.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def send(sign: int, _frame: object = None) -> None:
        if sign == signal.SIGINT and _in_foreground():
            return
        if child is None:
            early.append(sign)
        else:
            child.send_signal(sign)

    kept = {}
    for sign in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):
        # Under nohup SIGHUP is ignored; handlers belong to the main thread.
        main = threading.current_thread() is threading.main_thread()
        if main and sign is not None and signal.getsignal(sign) is not signal.SIG_IGN:
            kept[sign] = signal.signal(sign, send)
    try:
        child = subprocess.Popen([*command], env=dict(env), preexec_fn=die_with_parent)
        for sign in early:
            child.send_signal(sign)
        return child.wait()
    except OSError as error:
        raise CaptureError(f"{command[0]}: {error.strerror}") from error
    finally:
        for sign, handler in kept.items():
            signal.signal(sign, handler)


def _in_foreground() -> bool:
    """Whether Ctrl-C of this process's terminal reaches its group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def end_group(child: subprocess.Popen[str], group: bool = True) -> None:
    """Interrupt, terminate, kill the child (and its group); a profiler may yet save its report."""
    if not hasattr(os, "killpg"):  # Windows, where nothing is captured
        child.kill()
        child.wait()
        return
    for sign, patience in (
        (signal.SIGINT, GRACE_S),
        (signal.SIGTERM, GRACE_S / 2),
        (signal.SIGKILL, None),
    ):
        _signal(child, sign, group)
        try:
            child.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    if group:
        _signal(child, signal.SIGKILL, group)  # what the leader left behind


def output_of(command: Sequence[str]) -> str | None:
    """Standard output of a quick query, or None if the program is missing, fails or hangs."""
    lines: list[str] = []
    try:
        outcome = run_child(command, timeout=QUERY_S, on_line=lines.append)
    except CaptureError:
        return None
    return "\n".join(lines) if outcome.returncode == 0 and not outcome.timed_out else None


def last_line(logs: Iterable[str | Path], beginning: str = "") -> str:
    """The last line that says something in the last kilobytes of a job's log."""
    for log in logs:
        try:
            with Path(log).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 8192))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            continue
        lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        for line in reversed(lines):
            if line.startswith(beginning):
                return "".join(c for c in line if c.isprintable())
    return ""


def cause(logs: Sequence[str | Path]) -> str:
    """Why a job failed, as its log says it last."""
    said = last_line(logs, "error:").removeprefix("error:").strip()
    return said or last_line(logs) or "it ended without a word"


def scrub_command(command: Iterable[str], root: Path | None = None) -> list[str]:
    """A command for the record: programs by name, paths relative to `root` (default: here)."""
    base = (root or Path.cwd()).resolve()
    return [_scrub_word(word, base) for word in command]


def _scrub_word(word: str, base: Path) -> str:
    if word in (sys.executable, os.path.realpath(sys.executable)):
        return "python"
    head, equals, tail = word.partition("=")
    if equals and tail.startswith("/"):
        return f"{head}={_scrub_word(tail, base)}"
    if not word.startswith("/"):
        return word
    path = Path(word)
    return str(path.relative_to(base)) if path.is_relative_to(base) else path.name


def _pump(child: subprocess.Popen[str], on_line: Callable[[str], None]) -> None:
    for line in child.stdout or ():
        on_line(line.rstrip("\n"))


def _signal(child: subprocess.Popen[str], sign: signal.Signals, group: bool) -> None:
    try:
        if group:
            os.killpg(child.pid, sign)
        else:
            child.send_signal(sign)
    except (ProcessLookupError, PermissionError):
        pass


def _found_prctl() -> Any:
    """Linux's; other systems have none. Found beforehand: another thread may be loading torch, and holds what a look-up in
    the child would wait for."""
    try:
        return ctypes.CDLL(None).prctl
    except (AttributeError, OSError, TypeError):
        return None


_prctl = _found_prctl()


def _die_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# In a child before its program: if the parent is killed its GPU lock goes, and the child must not use the GPU.
die_with_parent = _die_with_parent if _prctl else None


def cuda_tool(name: str) -> str:
    """A program of the CUDA toolkit: on the PATH, in $CUDA_HOME, or of the extra `static`.

    Raises CaptureError with the remedy where it is nowhere.
    """
    folders = [os.environ.get("PATH", "")]
    folders += [f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    folders += [f"{folder}/nvidia/cu13/bin" for folder in sys.path]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise CaptureError(
            f"{name}: not found; `pip install '.[static]'` in a checkout of ncuflow brings it"
        )
    return found


def cuda_output(name: str, *arguments: str) -> str:
    """What a program of the toolkit prints. Raises CaptureError where it is not there, or fails."""
    done = subprocess.run(
        [cuda_tool(name), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        complaint = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise CaptureError(f"{name}: {complaint[-1]}")
    return done.stdout


def demangled(names: Iterable[str]) -> dict[str, str]:
    """Names as C++ has them, by the mangled ones. Raises CaptureError without c++filt."""
    mangled = list(names)
    try:
        shown = subprocess.run(
            ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise CaptureError(f"c++filt: {error}") from None
    return dict(zip(mangled, shown.stdout.split("\n"), strict=False))
