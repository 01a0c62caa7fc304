"""NVIDIA's own report reader, the package ncu-report; in child processes, as it never frees what it read and uses one core."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar


def load(report: Path) -> Any:
    """The IContext of a report. Raises ImportError without the package.

    The reader finds the units of counters in a library beside it, but not below a folder whose name
    is not ASCII: there it loads in silence and every unit is empty. It is therefore shown its own
    folder under another name.
    """
    import ncu_report

    folder = Path(ncu_report.__file__).parent
    if not str(folder).isascii():
        # Open for as long as the process: the library is loaded anew for each report.
        ncu_report.__file__ = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/__init__.py"
    try:
        str(report).encode()
    except UnicodeEncodeError:  # a name that is no UTF-8 would not reach the reader
        return ncu_report.load_report(f"/proc/self/fd/{os.open(report, os.O_RDONLY)}")
    return ncu_report.load_report(str(report))


def actions(context: Any, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Any]]:
    """(index, action) of kernels first ≤ index < last; the others are not even parsed."""
    before = 0
    for number in range(context.num_ranges()):
        found = context.range_by_idx(number)
        count = found.num_actions()
        until = before + count if last is None else min(before + count, last)
        for index in range(max(first, before), until):
            yield index, found.action_by_idx(index - before)
        before += count


Task = TypeVar("Task")
Result = TypeVar("Result")
AT_ONCE = min(
    4, os.cpu_count() or 1
)  # more would help one job on a large machine, and hurt many jobs on it


class ChildDied(Exception):  # noqa: N818
    """A child ended without a result: killed, or a crash below Python. `task`: what it was at."""

    def __init__(self, task: Any) -> None:
        super().__init__("a child process died")
        self.task = task


def in_children(
    work: Callable[[Task], Result], tasks: Iterable[Task], at_once: int = AT_ONCE
) -> Iterator[tuple[Task, Result]]:
    """(task, work(task)) in the order of the tasks, each done in a forked child of its own.

    The next task is taken from `tasks` while the children work. What `work` raises is raised here;
    ChildDied where a child ended without a word. Where processes do not fork (Windows), this one does all.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        yield from ((task, work(task)) for task in tasks)
        return
    running: deque[tuple[Task, Any, Connection]] = deque()
    try:
        for task in tasks:
            if len(running) >= at_once:
                yield _next(running)
            running.append((task, *_start(work, task)))
        while running:
            yield _next(running)
    finally:
        for _, child, connection in running:
            connection.close()
            child.kill()
            child.join()


def _start(work: Callable[[Task], Result], task: Task) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("fork")  # the task need not be pickled, nor modules read
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, work, task), daemon=True)
    child.start()
    theirs.close()
    return child, ours


def _child(connection: Connection, work: Callable[[Task], Result], task: Task) -> None:
    outcome: Any
    gc.disable()  # a child lives for one task; a collection would copy the pages that it shares
    try:
        outcome = (work(task), None)
    except Exception as error:  # the parent raises it
        outcome = (None, error)
    connection.send(outcome)
    connection.close()


def _next(running: deque[tuple[Task, Any, Connection]]) -> tuple[Task, Any]:
    task, child, connection = running[0]
    try:
        result, error = connection.recv()
    except EOFError:
        raise ChildDied(task) from None
    running.popleft()
    connection.close()
    child.join()
    if error is not None:
        raise error
    return task, result
