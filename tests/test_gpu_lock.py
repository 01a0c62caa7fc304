"""Turns at a GPU, with real processes and GPUs that are none."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command import ncuflow
from conftest import ROOT
from fake_gpus import no_driver, put

from ncuflow.evidence.points import staging
from ncuflow.gpu import lock
from ncuflow.gpu.lock import BEGINS, QUIET, WAIT, WAITS
from ncuflow.gpu.nvml import VisibleGpu
from ncuflow.process import CaptureError

GPUS = [
    VisibleGpu(0, "GPU-aaaa0000-1", "NVIDIA H200"),
    VisibleGpu(1, "GPU-bbbb1111-2", "NVIDIA H200"),
]
HOLD = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $TMPDIR"; read line; test -d "$TMPDIR"']


Child = subprocess.Popen[str]


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def make(count: int) -> None:
        told = [{"UUID": gpu.uuid, "Name": gpu.name} for gpu in GPUS[:count]]
        put(monkeypatch, tmp_path, *told)

    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("NCUFLOW_GPU_LOCK", raising=False)
    return make


@pytest.fixture
def gpu(fake_gpus):
    fake_gpus(1)


@pytest.fixture
def gpus(fake_gpus):
    fake_gpus(2)


@pytest.fixture
def python() -> Iterator[Callable[..., Child]]:
    """Begins a process of Python, which ends with the test."""
    running: list[Child] = []

    def begin(*words: str) -> Child:
        pipe, command = subprocess.PIPE, [sys.executable, *words]
        child = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        running.append(child)
        return child

    yield begin
    for child in running:
        child.kill()
        child.communicate()


@pytest.fixture
def start(python) -> Callable[..., Child]:
    return lambda *words: python("-m", "ncuflow", "lock", *words)


def free(path: Path, how: int = fcntl.LOCK_EX) -> bool:
    """Whether a file can be locked this way now."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def quiet(how: int) -> bool:
    """Whether the host can be locked this way now."""
    return free(lock.lock_folder() / "host.quiet", how)


def refused(why: str | None = None, wait_s: float = 0, **how: bool) -> None:
    """Nobody gets a slot now."""
    with pytest.raises(CaptureError, match=why), lock.gpu_slot(wait_s, **how):
        pass


def tried(*words: str) -> tuple[int, str]:
    """(exit status, errors) of a command that asks for a GPU and does not wait, in this process."""
    done = ncuflow("lock", *words, "--timeout", "0", "--", "true")
    return done.returncode, done.stderr


def first_line(child: Child) -> str:
    return child.stdout.readline().strip()


def finish(child: Child) -> tuple[int, str]:
    _, errors = child.communicate("go\n", timeout=60)
    return child.returncode, errors


def test_second_job_is_kept_out_until_the_first_ends(gpu, start):
    holder = start("--", *HOLD)
    assert first_line(holder).startswith(GPUS[0].uuid)
    assert tried() == (2, "error: no GPU of 1 became free in time\n")
    assert finish(holder)[0] == 0
    assert tried()[0] == 0


def test_two_jobs_get_different_gpus_and_private_temporary_folders(gpus, start):
    one, two = start("--", *HOLD), start("--", *HOLD)
    (gpu1, tmp1), (gpu2, tmp2) = first_line(one).split(), first_line(two).split()
    assert {gpu1, gpu2} == {gpu.uuid for gpu in GPUS}
    assert tmp1 != tmp2
    assert Path(tmp1).stat().st_mode & 0o777 == 0o700
    assert finish(one)[0] == finish(two)[0] == 0
    assert not Path(tmp1).exists() and not Path(tmp2).exists()


def test_kill_9_leaves_no_stale_lock_and_no_child(gpu, start):
    holder = start("--", "sh", "-c", "echo $$; read line")
    child = int(first_line(holder))
    pidfd = os.pidfd_open(child)  # readable when the command, not a child of ours, ends
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert select.select([pidfd], [], [], 30)[0], "the command outlived its lock"
    assert tried()[0] == 0


def test_exclusive_host_waits_for_every_gpu(gpus, start):
    holder = start("--", *HOLD)
    first_line(holder)
    assert tried("--exclusive-host")[0] == 2
    finish(holder)
    exclusive = start("--exclusive-host", "--", *HOLD)
    first_line(exclusive)
    assert tried()[0] == 2
    assert finish(exclusive)[0] == 0


def test_a_command_of_two_gpus_sees_both_and_waits_for_both(gpus, start):
    holder = start("--", *HOLD)
    first_line(holder)
    assert tried("--gpus", "2")[0] == 2
    finish(holder)
    both = start("--gpus", "2", "--", *HOLD)
    assert first_line(both).split()[0] == ",".join(gpu.uuid for gpu in GPUS)
    assert tried()[0] == 2
    assert finish(both)[0] == 0
    assert tried("--gpus", "3") == (2, "error: needs 3 GPUs of one model, here are 2\n")
    assert tried("--gpus", "2", "--slot")[0] == 2


def test_a_capture_under_the_lock_does_not_wait_for_itself(gpu, start):
    inner = [sys.executable, "-m", "ncuflow", "lock", "--timeout", "0", "--", "true"]
    assert finish(start("--", *inner))[0] == 0


def test_a_lock_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    made = lock.own_folder(tmp_path / "new")
    assert made.stat().st_mode & 0o777 == 0o700
    (tmp_path / "mine").mkdir(mode=0o755)
    assert lock.own_folder(tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    everybody = tmp_path / "everybody"
    everybody.mkdir()
    everybody.chmod(0o1777)
    with pytest.raises(CaptureError, match="everybody: not a folder of this user alone"):
        lock.own_folder(everybody)
    assert everybody.stat().st_mode & 0o7777 == 0o1777


def test_what_a_killed_capture_left_goes_with_the_next(tmp_path: Path) -> None:
    for name in (".sweep.abc", ".deep.abc", "sweep.1"):
        (tmp_path / name).mkdir()
    with staging(tmp_path, "sweep") as stage:
        assert {path.name for path in tmp_path.iterdir()} == {".deep.abc", "sweep.1", stage.name}
    assert {path.name for path in tmp_path.iterdir()} == {".deep.abc", "sweep.1"}


def test_the_command_sees_the_profilers_environment(gpu, start, monkeypatch):
    monkeypatch.setenv("MYAPP_PW", "correct-horse")
    monkeypatch.setenv("FLASHINFER_JIT_LINEINFO", "1")
    asked = 'test -z "$MYAPP_PW" && test "$FLASHINFER_JIT_LINEINFO" = 1'
    assert finish(start("--", "sh", "-c", asked))[0] == 0


def test_status_of_the_command_is_ours(gpu, start):
    assert finish(start("--", "sh", "-c", "exit 7"))[0] == 7
    assert finish(start("--", "sh", "-c", "kill -9 $$"))[0] == 137


def test_no_driver_is_one_clear_line(monkeypatch, tmp_path):
    no_driver(monkeypatch, tmp_path)
    assert tried() == (2, "error: no NVIDIA driver: NVML Shared Library Not Found\n")


def test_what_a_profiler_started_keeps_the_gpu_when_the_holder_is_killed(gpu, start):
    # the shell is the profiler; the program is its child, which no signal reaches
    holder = start("--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!; wait")
    program = int(first_line(holder))
    holder.kill()
    holder.wait()
    assert tried()[0] != 0
    os.kill(program, signal.SIGKILL)
    assert finish(start("--timeout", "10", "--", "true"))[0] == 0


def test_what_outlives_a_holder_that_ended_well_does_not_keep_the_gpu(gpu, start):
    holder = start("--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
    daemon = int(first_line(holder))
    assert finish(holder)[0] == 0
    assert tried()[0] == 0
    os.kill(daemon, signal.SIGKILL)


def test_another_model_is_not_taken_for_the_first(fake_gpus, start, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "GPUS", [GPUS[0], VisibleGpu(1, GPUS[1].uuid, "NVIDIA A100")]
    )
    fake_gpus(2)
    first = start("--", *HOLD)
    assert first_line(first).startswith(GPUS[0].uuid)
    assert tried()[0] != 0


def test_a_gpu_has_seats_and_each_a_temporary_folder(gpu: Callable[[int], None]) -> None:
    with ExitStack() as stack:
        slots = [stack.enter_context(lock.gpu_slot(0)) for _ in range(lock.SLOTS)]
        assert len({slot.gpu for slot in slots}) == 1
        assert len({slot.environ["TMPDIR"] for slot in slots}) == lock.SLOTS
        assert len({slot.environ[WAIT] for slot in slots}) == 1
        refused("no GPU of 1 became free in time")
        with lock.gpu_lock(0):  # a slot does not keep the GPU from what measures now
            pass
    with lock.gpu_slot(0):
        pass


def test_a_gpu_that_nobody_has_comes_before_one_that_is_held_or_waited_for(gpus):
    with lock.gpu_lock(0) as held, lock.gpu_slot(0) as slot:
        assert {held.gpu, slot.gpu} == set(GPUS)
    with lock.gpu_slot(0) as slot, lock.gpu_lock(0) as held:
        assert {held.gpu, slot.gpu} == set(GPUS)
        with lock.gpu_lock(0) as last:  # whose program may not have begun
            assert last.gpu == slot.gpu


def test_a_seat_under_the_lock_does_not_wait_for_it(gpu, monkeypatch):
    with lock.gpu_lock(0) as held:
        for name, value in held.environ.items():
            monkeypatch.setenv(name, value)
        with lock.gpu_slot(0) as inner:
            assert WAIT not in inner.environ


def test_a_program_with_a_seat_waits_for_the_one_before_it(
    gpu, start, python, tmp_path, monkeypatch
):
    done = tmp_path / "done"
    holder = start("--", "sh", "-c", f'echo held; read line; touch "{done}"')
    assert first_line(holder) == "held"
    with lock.gpu_slot(0) as held:
        monkeypatch.setenv(WAIT, held.environ[WAIT])
        says = "import os; from ncuflow.gpu.lock import hold; hold(lambda: None)"
        waiter = python("-c", f"{says}; print(os.path.exists({str(done)!r}))")
        assert finish(holder)[0] == 0
        assert waiter.communicate() == ("True\n", f"{WAITS}\n{BEGINS}\n")


def test_a_program_that_pauses_leaves_the_gpu_to_others(tmp_path, monkeypatch, capfd):
    file = tmp_path / "gpu.lock"
    monkeypatch.setenv(WAIT, str(file))
    pause = lock.hold(lambda: None)
    found = [free(file)]
    pause(lambda: found.append(free(file)))
    found.append(free(file))
    assert found == [False, True, False]
    assert capfd.readouterr().err == f"{WAITS}\n{BEGINS}\n" * 2


# --- what is timed ----------------------------------------------------------------------------

TIMED = """
import sys
sys.path.insert(0, sys.argv[1])
from ncuflow.gpu.lock import hold
from ncuflow.run.gpu import load_libraries
hold(load_libraries)
print("measures", flush=True)
sys.stdin.readline()
"""
PATIENCE_S = 0.8  # in which a program that nothing holds back would have gone on


@pytest.fixture
def timed(gpu, start, tmp_path):
    """Begins a timed program with a slot, which says "starts" while it imports torch, and then "measures"."""
    (tmp_path / "torch.py").write_text('print("starts", flush=True)\n')
    (tmp_path / "flashinfer.py").write_text("")
    return lambda: start("--slot", "--", sys.executable, "-c", TIMED, str(tmp_path))


def says_nothing(child: Child) -> bool:
    return not select.select([child.stdout], [], [], PATIENCE_S)[0]


@pytest.mark.parametrize("measures", [True, False])
def test_what_is_timed_starts_beside_one_that_starts_and_not_beside_one_that_measures(
    timed, measures
):
    with (lock.lock_folder() / "host.quiet").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX if measures else fcntl.LOCK_SH)
        child = timed()
        assert measures or first_line(child) == "starts"
        assert says_nothing(child)
    said = ["starts", "measures"][not measures :]
    assert [first_line(child) for _ in said] == said
    assert not quiet(fcntl.LOCK_SH)
    assert finish(child)[0] == 0


def test_a_profiler_is_not_beside_what_is_timed(gpu: Callable[[int], None]) -> None:
    begun = threading.Event()

    def profile() -> None:
        with lock.gpu_slot(10):
            begun.set()

    with (lock.lock_folder() / "host.quiet").open("a") as measured:
        fcntl.flock(measured, fcntl.LOCK_EX)
        profiler = threading.Thread(target=profile)
        profiler.start()
        assert not begun.wait(PATIENCE_S)
        fcntl.flock(measured, fcntl.LOCK_UN)
        assert begun.wait(10)
        profiler.join()
        with lock.gpu_slot(0), lock.gpu_slot(0), pytest.raises(BlockingIOError):
            fcntl.flock(measured, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with lock.gpu_slot(0, timed=True) as held:
            assert held.environ[QUIET] == measured.name
            fcntl.flock(measured, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_profiler_does_not_come_before_what_waits_to_be_timed(timed):
    with lock.gpu_slot(0):
        child = timed()
        assert first_line(child) == "starts"  # and waits until that profiler has ended
        refused("no quiet host became free")
    assert first_line(child) == "measures"
    assert finish(child)[0] == 0
    with lock.gpu_slot(0):
        pass


# --- who waits ------------------------------------------------------------------------------

SEAT = """
import sys
from ncuflow.gpu.lock import gpu_slot
with gpu_slot():
    print("in a slot", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def profiler(python) -> Callable[[], Child]:
    """Begins a program that takes a profiler's slot, says "in a slot", and keeps it until it is told to end."""
    return lambda: python("-c", SEAT)


def waits(child: Child) -> None:
    """Return when a child has said that it waits for its turn."""
    assert child.stderr.readline().startswith("waiting for ")


def test_what_is_to_be_timed_has_its_turn_before_profilers_that_came_later(timed, profiler):
    slots = [ExitStack() for _ in range(lock.SLOTS)]
    for slot in slots:
        slot.enter_context(lock.gpu_slot(0))
    child = timed()
    waits(child)
    later = profiler()
    waits(later)
    slots.pop().close()
    refused()  # the slot that is free now is the child's
    assert first_line(child) == "starts"
    for slot in slots:
        slot.close()
    assert first_line(child) == "measures" and says_nothing(later)
    assert finish(child)[0] == 0
    assert first_line(later) == "in a slot"


def test_one_with_a_gpu_to_itself_has_its_turn_before_seats_that_came_later(gpu, start):
    with lock.gpu_lock(0):
        child = start("--", *HOLD)
        waits(child)
        for is_timed in (False, True):
            refused(timed=is_timed)
    assert first_line(child)
    with lock.gpu_slot(0):
        pass
    assert finish(child)[0] == 0


def test_a_killed_waiter_blocks_nobody(timed: Callable[[], Child]) -> None:
    with ExitStack() as stack:
        for _ in range(lock.SLOTS):
            stack.enter_context(lock.gpu_slot(0))
        child = timed()
        waits(child)
        child.kill()
        child.wait()
        assert list((lock.lock_folder() / "queue").iterdir())  # its ticket is there
    with lock.gpu_slot(0):
        pass
    assert not list((lock.lock_folder() / "queue").iterdir())


def test_what_is_no_ticket_in_the_queue_holds_up_nobody(gpu: Callable[[int], None]) -> None:
    queue = lock.own_folder(lock.lock_folder() / "queue")
    (queue / f"{0:020}-1.{lock.ALONE}").write_bytes("GPU-é".encode())
    (queue / f"{1:020}-1.{lock.ALONE}").write_bytes(b"\xff" + GPUS[0].uuid.encode())
    with lock.gpu_lock(0) as held:
        assert held.gpu == GPUS[0]


def test_what_is_timed_does_not_wait_for_a_profiler_that_waits(gpu, profiler):
    with lock.gpu_slot(0, timed=True):
        waiting = profiler()
        waits(waiting)
        with lock.gpu_slot(0, timed=True):
            pass
        with pytest.raises(CaptureError), lock.gpu_lock(0):  # whose turn is after it
            pass
    assert first_line(waiting) == "in a slot"


def test_who_waits_for_another_gpu_is_not_waited_for(gpus, start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with lock.gpu_lock(0):
        waits(start("--", "true"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        with lock.gpu_lock(0) as held:
            assert held.gpu == GPUS[1]


def test_a_profiler_waits_no_longer_for_what_is_timed_than_it_may(gpu, capsys):
    with (lock.lock_folder() / "host.quiet").open("a") as measured:
        fcntl.flock(measured, fcntl.LOCK_EX)
        refused("no quiet host became free", 0.01)
        assert "waiting for the host: it is locked by other captures" in capsys.readouterr().err
        with lock.gpu_slot(0, timed=True), lock.gpu_slot(0, timed=True):  # its slot went back
            pass


def test_one_with_all_gpus_is_not_beside_a_start_on_the_host(gpus, start):
    with lock.gpu_slot(0):
        assert tried("--exclusive-host") == (2, "error: no quiet host became free in time\n")
    inner = [sys.executable, "-m", "ncuflow", "lock", "--exclusive-host", "--timeout", "0", "--"]
    exclusive = start("--exclusive-host", "--", *inner, *HOLD)  # nor does it wait for itself
    first_line(exclusive)
    assert not quiet(fcntl.LOCK_SH)
    assert finish(exclusive)[0] == 0 and quiet(fcntl.LOCK_EX)


def test_two_that_are_timed_and_killed_leave_the_host_to_a_third(timed):
    one = timed()
    assert [first_line(one), first_line(one)] == ["starts", "measures"]
    two = timed()
    assert says_nothing(two) and not quiet(fcntl.LOCK_SH)
    two.kill()  # while it waits
    two.wait()
    one.kill()
    one.wait()
    three = timed()
    assert [first_line(three), first_line(three)] == ["starts", "measures"]
    assert finish(three)[0] == 0


def test_what_outlives_a_timed_run_does_not_keep_the_host(timed, start, tmp_path):
    left = 'import subprocess; print(subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL).pid)'
    child = start("--slot", "--", sys.executable, "-c", f"{TIMED}\n{left}", str(tmp_path))
    assert [first_line(child), first_line(child)] == ["starts", "measures"]
    child.stdin.write("go\n")
    child.stdin.flush()
    daemon = int(first_line(child))
    assert child.wait(60) == 0 and quiet(fcntl.LOCK_EX)
    os.kill(daemon, signal.SIGKILL)


PROFILER = """
from ncuflow.gpu.lock import gpu_slot
from ncuflow.process import run_child
with gpu_slot(0) as held:
    command = ["sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!; wait"]
    run_child(command, on_line=lambda line: print(line, flush=True), inherited=held.locks)
"""


def test_what_a_killed_profiler_leaves_keeps_its_seat_and_not_the_host(gpu, python):
    profiler = python("-c", PROFILER)
    program = int(first_line(profiler))
    profiler.kill()
    profiler.communicate()
    assert quiet(fcntl.LOCK_EX)
    with ExitStack() as stack:
        for _ in range(lock.SLOTS - 1):
            stack.enter_context(lock.gpu_slot(0))
        refused()
    os.kill(program, signal.SIGKILL)


def test_a_relative_folder_of_locks_is_one_place_for_all(gpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", "locks")
    with lock.gpu_slot(0, timed=True) as held:
        for name in (WAIT, QUIET, "TMPDIR"):
            assert Path(held.environ[name]).parent == tmp_path / "locks"
