"""Work in child processes, and the reports that are read by them part by part."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ncuflow.io import BadInput
from ncuflow.parsers import ncu, reader

RECORDINGS = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"


def sweep_of(target: str) -> Path:
    return min(RECORDINGS.glob(f"{target}/b*/sweep.ncu-rep.xz"))


def large(_: object) -> bytes:
    """More than a pipe holds: the child lives until its result is taken."""
    return bytes(1 << 20)


def crash(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_the_order_of_the_tasks_and_from_other_processes() -> None:
    found = list(reader.in_children(lambda n: (n * n, os.getpid()), range(9), at_once=3))
    assert [(task, result[0]) for task, result in found] == [(n, n * n) for n in range(9)]
    processes = {result[1] for _, result in found}
    assert len(processes) == 9 and os.getpid() not in processes


def test_no_more_children_than_allowed_and_none_left() -> None:
    taken = []

    def tasks() -> Any:
        for number in range(6):
            taken.append(len(multiprocessing.active_children()))
            yield number

    assert len(list(reader.in_children(large, tasks(), at_once=2))) == 6
    assert max(taken) == 2
    assert multiprocessing.active_children() == []


def test_what_a_child_raises_is_raised_and_the_others_are_gone() -> None:
    def work(number: int) -> bytes:
        if number == 0:
            raise BadInput("x.ncu-rep", f"bad {number}")
        return large(number)

    with pytest.raises(BadInput, match=r"^x\.ncu-rep: bad 0$"):
        list(reader.in_children(work, range(4), at_once=2))
    assert multiprocessing.active_children() == []


def test_a_report_in_parts_is_the_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    path = sweep_of("rmsnorm")
    whole = ncu.read(path)
    monkeypatch.setattr(ncu, "PART", 4)
    assert asdict(ncu.read(path)) == asdict(whole)
    assert [kernel["kernel"] for kernel in whole.kernels] == list(range(len(whole.kernels)))


def test_reports_come_in_the_order_asked_for() -> None:
    paths = [sweep_of("rope"), sweep_of("merge_state"), sweep_of("rope")]
    found = list(ncu.read_all(ncu.Request(path) for path in paths))
    assert [report.file for report in found] == [str(path) for path in paths]
    assert found[0].metrics == found[2].metrics != found[1].metrics


def test_a_crash_of_the_reader_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "_read_part", crash)
    with pytest.raises(BadInput, match="crashes on"):
        ncu.read(sweep_of("merge_state"))
