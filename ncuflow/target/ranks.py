"""Several GPUs in one call: a process for each, which launches what the first one launches.

The first rank is the process that measures. Its peers follow a list of commands in memory that all share, each as soon as it
stands there, so that a launch waits for its peers as long as they take to see it: some microseconds, once for a run. Whatever
dies ends all: a kernel whose peers are gone would wait for ever.
"""

import atexit
import importlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from ncuflow.process import python_environment
from ncuflow.target.contract import known

RING = 1 << 12  # commands that a peer may be behind
# Words; from HEAD on: what each rank has done, what it found, and the ring.
ISSUED, STOP, HEAD = 0, 1, 8
RUN, RESET, CHECK, OPEN, CLOSE = range(5)
LOST = 4  # the status that ends a process whose peers are gone
POLL_S, START_S = 0.05, 120.0
# What makes a profiler follow a process: it sees one rank, which is the first.
JOB = "NCUFLOW_GPU_JOB"  # as ncuflow.gpu.use names it
FOLLOWED = ("CUDA_INJECTION64_PATH", "LD_PRELOAD", "NVTX_INJECTION64_PATH")


def counted() -> bool:
    """Whether this process runs under ncu, as the job that it belongs to says."""
    return os.environ.get(JOB, "").startswith("ncu ")


class Member(Protocol):
    """What a rank does of a point."""

    def run(self) -> None: ...
    def reset(self) -> None: ...
    def right(self) -> bool: ...


Opened = Callable[[int, Any], Member]  # (rank, what the first rank says of the point)


class Board:
    """The words that ranks share, of 64 bits each."""

    def __init__(self, path: Path, world: int) -> None:
        size = 8 * (HEAD + 2 * world + RING)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self.words = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self.done, self.found, self.ring = HEAD, HEAD + world, HEAD + 2 * world

    def issue(self, command: int, member: int) -> None:
        """Add a command, once no peer is so far behind that it would overwrite one that is still to be done."""
        n, peers = self.words[ISSUED], range(self.done + 1, self.found)
        while not self.words[STOP] and any(n - self.words[peer] >= RING for peer in peers):
            time.sleep(0)
        self.words[self.ring + n % RING] = member * 8 + command
        self.words[ISSUED] = n + 1


class Peers:
    """The other ranks, as long as the process lives.

    program: "module:function" that makes a rank's ``Opened`` of (rank, world, folder); folder: where ranks may meet;
    on_death: what is done with a line on the rank that died, which ends the process unless given.
    """

    def __init__(
        self, program: str, world: int, on_death: Callable[[str], None] | None = None
    ) -> None:
        self.world, self._on_death = world, on_death or ended
        self.folder = Path(tempfile.mkdtemp(prefix="ncuflow-ranks-"))
        self.board, self._members = Board(self.folder / "board", world), 0
        given = {key: value for key, value in os.environ.items() if key not in FOLLOWED}
        environ = python_environment(given)
        code = "import sys; from ncuflow.target.ranks import follow; follow(*sys.argv[1:])"
        self.processes = []
        for rank in range(1, world):
            words = (program, str(rank), str(world), str(self.folder), str(os.getpid()))
            with (self.folder / f"rank{rank}.log").open("w") as log:
                made = subprocess.Popen(
                    [sys.executable, "-c", code, *words], env=environ, stdout=log, stderr=log
                )
            self.processes.append(made)
        self.watching = Thread(target=self._watch, daemon=True)
        self.watching.start()
        atexit.register(self.close)

    def _watch(self) -> None:
        while not self.board.words[STOP]:
            for rank, process in enumerate(self.processes, 1):
                status = process.poll()
                if status is not None and not self.board.words[STOP]:
                    log = (self.folder / f"rank{rank}.log").read_text(errors="replace").split("\n")
                    last = next((line for line in reversed(log) if line.strip()), "nothing said")
                    self.close()
                    self._on_death(
                        f"error: rank {rank} of {self.world} ended with status {status}: {last}"
                    )
                    return
            time.sleep(POLL_S)

    def open(self, said: Any) -> int:
        """Let each rank open a member, which the caller opens for its own at the same time; its number."""
        self._members += 1
        (self.folder / f"{self._members}.json").write_text(json.dumps(said))
        self.board.issue(OPEN, self._members)
        return self._members

    def go(self, member: int) -> None:
        """Let each rank launch the member once."""
        self.board.issue(RUN, member)

    def ask(self, command: int, member: int) -> list[int]:
        """What each rank found of a command, once all commands before it are done."""
        self.board.issue(command, member)
        self.wait()
        first = self.board.found
        return list(self.board.words[first + 1 : first + self.world])

    def wait(self) -> None:
        """Until every rank has done what it was told."""
        words, ends = self.board.words, time.monotonic() + START_S
        while any(words[self.board.done + rank] < words[ISSUED] for rank in range(1, self.world)):
            if words[STOP] or time.monotonic() > ends:
                raise RuntimeError("a rank does not answer")
            time.sleep(0)

    def close(self) -> None:
        """End every rank."""
        self.board.words[STOP] = 1
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def ended(line: str) -> None:
    """End this process, whose kernels may wait for a rank that is gone, with a line."""
    print(line, file=sys.stderr, flush=True)
    os._exit(LOST)


def follow(program: str, rank: str, world: str, folder: str, parent: str) -> None:
    """Be a rank: do what the board says until it says stop, or nobody is left who could."""
    known()  # where the modules of targets lie
    module, _, name = program.partition(":")
    opened: Opened = getattr(importlib.import_module(module), name)(int(rank), int(world), folder)
    board, me, done, idle = Board(Path(folder) / "board", int(world)), int(rank), 0, 0
    words = board.words
    members: dict[int, Member] = {}
    while not words[STOP]:
        if done == words[ISSUED]:
            idle += 1
            if idle % 1000 == 0 and os.getppid() != int(parent):
                return
            continue
        number, command = divmod(words[board.ring + done % RING], 8)
        if command == RUN:
            members[number].run()
        elif command == RESET:
            members[number].reset()
        elif command == CHECK:
            words[board.found + me] = members[number].right()
        elif command == OPEN:
            said = json.loads((Path(folder) / f"{number}.json").read_text())
            members[number] = opened(me, said)
        else:
            members.pop(number, None)
        done += 1
        words[board.done + me] = done
