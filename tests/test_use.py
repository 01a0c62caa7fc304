"""Who had a GPU when: what programs note, and what is read of it."""

import json
from pathlib import Path

import pytest
from command import python

from ncuflow.gpu import use


def told(path: Path, *events: tuple[float, int, str, str]) -> Path:
    """A file of events: seconds, process, what, and the GPU."""
    names = ("time", "pid", "event", "gpu")
    found = [dict(zip(names, one, strict=True)) | {"job": f"job {one[1]}"} for one in events]
    path.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    return path


def test_a_program_notes_when_it_loads_waits_holds_and_ends(tmp_path, monkeypatch) -> None:
    lock = tmp_path / "gpu.lock"
    for name, value in {
        "NCUFLOW_GPU_WAIT": str(lock),
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        use.FILE: str(tmp_path / "use.jsonl"),
        use.JOB: "ncu decode sweep",
    }.items():
        monkeypatch.setenv(name, value)
    program = "from ncuflow.gpu import lock; lock.hold(lambda: None, 'trace decode')"
    assert python("-c", program).returncode == 0
    events = [json.loads(line) for line in (tmp_path / "use.jsonl").read_text().splitlines()]
    assert [one["event"] for one in events] == ["loads", "waits", "begins", "ends"]
    assert {(one["gpu"], one["job"]) for one in events} == {("GPU-a", "ncu decode sweep")}
    (held,) = use.read(tmp_path / "use.jsonl")
    assert held.loads <= held.waits <= held.begins <= held.ends


def test_what_cannot_be_noted_ends_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(use.FILE, str(tmp_path / "none/use.jsonl"))
    use.note(use.BEGINS, "GPU-a", "x")
    assert use.read(tmp_path / "none/use.jsonl") == []


def test_a_killed_program_had_the_gpu_until_the_next_began(tmp_path: Path) -> None:
    path = told(
        tmp_path / "use.jsonl",
        (1.0, 7, "waits", "a"), (2.0, 7, "begins", "a"), (3.0, 9, "begins", "b"),
        (5.0, 8, "begins", "a"), (6.0, 8, "ends", "a"), (9.0, 9, "ends", "b"),
    )  # fmt: skip
    path.write_text(path.read_text() + '{"time": 10')  # cut short
    found = [(one.job, one.waits, one.begins, one.ends) for one in use.read(path)]
    assert found == [("job 7", 1.0, 2.0, 5.0), ("job 9", None, 3.0, 9.0), ("job 8", None, 5.0, 6.0)]


def test_a_program_that_paused_had_the_gpu_twice(tmp_path: Path) -> None:
    path = told(
        tmp_path / "use.jsonl",
        (0.0, 7, "loads", "a"), (4.0, 7, "waits", "a"), (5.0, 7, "begins", "a"), (6.0, 7, "ready", "a"),
        (9.0, 7, "ends", "a"), (9.0, 7, "waits", "a"), (9.5, 8, "begins", "a"), (12.0, 8, "ends", "a"),
        (14.0, 7, "begins", "a"), (17.0, 7, "done", "a"), (18.0, 7, "ends", "a"),
    )  # fmt: skip
    first, _, second = use.read(path)
    assert (first.loads, first.waits, first.begins, first.ready, first.ends) == (0, 4, 5, 6, 9)
    assert (second.loads, second.waits, second.begins, second.done, second.ends) == (None, 9, 14, 17, 18)  # fmt: skip


@pytest.mark.parametrize(
    ("since", "until", "expected"), [(0.0, 10.0, 0.5), (2.0, 6.0, 0.75), (20.0, 30.0, None)]
)
def test_the_share_of_a_span(tmp_path, since, until, expected):
    path = told(
        tmp_path / "use.jsonl",
        (1.0, 1, "begins", "a"), (3.0, 1, "ends", "a"), (4.0, 2, "begins", "a"), (7.0, 2, "ends", "a"),
    )  # fmt: skip
    assert use.share(use.read(path), since, until) == expected


def test_gpus_that_nobody_had_do_not_count(tmp_path: Path) -> None:
    path = told(
        tmp_path / "use.jsonl",
        (0.0, 1, "begins", "a"), (4.0, 1, "ends", "a"), (0.0, 2, "begins", "b"), (2.0, 2, "ends", "b"),
    )  # fmt: skip
    assert use.share(use.read(path), 0.0, 4.0) == 0.75
    assert use.share(use.read(path), 2.5, 4.0) == 1.0
