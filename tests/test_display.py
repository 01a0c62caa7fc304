"""What a run says: a line per step, a result per target, and of a failure its cause, its log and what to do."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ncuflow.flow import display
from ncuflow.gpu import lock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Others(logging.Handler):
    """Where Snakemake's own words go."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(str(record.msg))


class Run:
    """Snakemake, as its log tells of a run; `now` is the clock."""

    def __init__(self, ahead: dict[int, float], out: io.StringIO | None = None) -> None:
        self.now, self.out, self.others = 0.0, out or io.StringIO(), Others()
        self.display = display.Display(
            self.others, self.work, lambda: {number: ("", seconds) for number, seconds in ahead.items()}, self.out,
            lambda: self.now,
        )  # fmt: skip

    def work(self, rule: str, wildcards: dict[str, str]) -> tuple[int, float]:
        points = 4 if "batch" in wildcards else 0
        step = display.STEPS.get(rule)
        return points, step.start_s + step.point_s * points if step else display.QUICK

    def tell(self, text: str = "", level: int = logging.INFO, event: str = "", **more: Any) -> None:
        record = logging.LogRecord("snakemake", level, "", 0, text, None, None)
        record.__dict__.update({"event": event} if event else {}, **more)
        self.display.handle(record)

    def start(self, number: int, rule: str, log: Path, output: str = "", **wildcards: str) -> None:
        self.tell(
            event="job_info", jobid=number, rule_name=rule, wildcards=wildcards, output=[output], log=[str(log)],
        )  # fmt: skip

    def finish(self, number: int, seconds: float) -> None:
        self.now += seconds
        self.tell(event="job_finished", job_id=number)

    def fail(self, number: int, rule: str, log: Path) -> None:
        self.tell(
            "Error in rule", logging.ERROR, "job_error", jobid=number, rule_name=rule, wildcards={}, output=[],
            log=[str(log)],
        )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def begun(ahead: dict[int, float], out: io.StringIO | None = None) -> Run:
    run = Run(ahead, out)
    run.tell(event="workflow_started")
    return run


def test_a_step_has_one_line_with_the_time_that_the_rest_may_take(tmp_path: Path) -> None:
    run = Run({1: 10.0, 2: 10.0, 3: 10.0})
    run.tell("Using profile")
    run.tell(event="workflow_started")
    run.start(1, "time", tmp_path / "log", target="decode", batch="b1")
    run.finish(1, 20.0)
    # 20 s for a third that was expected to take 10: the rest at no more than that pace
    assert run.lines == ["[ 1/3] time decode, 4 points: 20 s, about 30 s left"]
    assert run.others.said == ["Using profile"]  # what comes before the run is Snakemake's
    assert all(line.isprintable() for line in run.lines)


def test_from_ten_seconds_on_the_end_is_told_also_while_a_long_step_runs(tmp_path: Path) -> None:
    expected = {1: 10.0, 2: 60.0, 3: 10.0}
    ends = []
    run = begun(dict(expected))
    for number, seconds in expected.items():
        run.start(number, "tables", tmp_path / "log")
        for _ in range(int(seconds)):
            run.now += 1
            ends += [run.now + (run.display.left() or 0)] * (10 <= run.now < 79)
        run.finish(number, 0)
    assert ends == pytest.approx([80] * 69, rel=0.15)


def test_what_waits_for_a_gpu_has_done_nothing_yet(tmp_path: Path) -> None:
    run, log = Run({1: 10.0}), tmp_path / "log"
    run.tell(event="workflow_started")
    run.start(1, "profile", log, target="rope", batch="b1")
    job = run.display.running[1]
    queued = f"{lock.QUEUES}a GPU: all 1 are locked by other captures\n"
    for said in (None, queued, f"{lock.WAITS}\n"):
        if said:
            log.write_text(said)
        assert job.worked(30.0) == 0
    log.write_text("rope sweep: point 1 of 4\n")
    assert [job.worked(now) for now in (30.0, 32.0)] == [0, 2]
    log.write_text(f"rope sweep: point 1 of 4\n{lock.WAITS}\n")  # for a module
    assert [job.worked(now) for now in (33.0, 60.0)] == [3, 3]
    log.write_text(f"{lock.WAITS}\nrope sweep: point 2 of 4\n")
    assert [job.worked(now) for now in (60.0, 61.0)] == [3, 4]


def test_of_a_long_run_the_end_that_was_expected_outweighs_its_first_seconds(tmp_path):
    """In these the jobs that plan it run, which count as nothing."""
    run = begun({1: 300.0})
    run.now += 5.0
    run.start(1, "tables", tmp_path / "log")
    run.now += 5.0
    assert run.now + (run.display.left() or 0) == pytest.approx(305, rel=0.15)


def test_what_is_long_says_that_it_begins_where_nothing_is_rewritten(tmp_path: Path) -> None:
    run = begun({1: 13.0})
    run.start(1, "build", tmp_path / "log")
    run.start(2, "profile", tmp_path / "log", target="rope", batch="b1")
    assert run.lines == ["[ 1/1] build modules begins"]


def test_a_terminal_shows_what_the_running_step_is_at_in_one_line(tmp_path: Path) -> None:
    run = begun({1: 13.0}, Terminal())
    log = tmp_path / "log"
    log.write_text("rope sweep: point 2 of 4, 7 k\n")
    run.start(1, "profile", log, target="rope", batch="b1")
    run.display.ended = True  # of the clock that repaints
    (line,) = run.out.getvalue().split("\r\x1b[K")[1:]
    assert "profile (ncu) rope: rope sweep: point 2 of 4, 7 k" in line
    assert line.endswith(" left") and "\n" not in line and len(line) < 80


def test_a_failure_ends_the_run_with_cause_log_and_what_to_do(tmp_path: Path) -> None:
    run = Run({1: 13.0, 2: 1.0})
    log = tmp_path / "profile.log"
    log.write_text(
        "warm up\nerror: the driver refuses counters (ERR_NVGPUCTRPERM): run as root\nx\n"
    )
    run.tell(event="workflow_started")
    run.start(1, "profile", log, target="rope", batch="b1")
    run.tell("RuleException:\nCalledProcessError in file", logging.ERROR)
    run.fail(1, "profile", log)
    run.start(2, "tables", log, output="outputs/x/reports/INDEX.md", target="decode")
    run.tell(event="progress", done=1, total=2)
    run.finish(2, 1.0)
    run.tell("Exiting because a job execution failed. Look above", logging.ERROR)
    run.display.end()
    run.tell("Complete log(s): x")
    assert run.lines[-4:] == [
        "failed: profile (ncu) rope: the driver refuses counters (ERR_NVGPUCTRPERM): run as root",
        f"  log: {log}",
        f"  do: {display.REMEDIES['ERR_NVGPUCTRPERM']}",
        "2 of 2 steps in 1.0 s: outputs/x/reports/INDEX.md",
    ]
    assert run.others.said == []


def test_a_step_without_a_log_has_said_itself_why_it_failed() -> None:
    run = begun({1: 1.0})
    what = {"jobid": 1, "rule_name": "compare_gate", "wildcards": {}, "output": [], "log": []}
    run.tell("Error in rule", logging.ERROR, "job_error", **what)
    run.display.end()
    assert run.lines == ["failed: compare_gate, as it says above"]


def test_a_second_try_is_told_and_is_no_failure(tmp_path: Path) -> None:
    run, log = Run({1: 13.0}), tmp_path / "log"
    log.write_text("error: the GPU was lost\n")
    run.tell(event="workflow_started")
    run.start(1, "time", log, target="rope", batch="b1")
    run.fail(1, "time", log)
    run.tell("Trying to restart job 1.")
    run.display.end()
    assert run.lines[-1] == "once more: time rope: the GPU was lost"


def test_an_interrupted_run_names_no_failure(tmp_path: Path) -> None:
    run = begun({1: 13.0})
    run.start(1, "build", tmp_path / "none")
    run.tell("Terminating processes on user request, this might take some time.")
    run.fail(1, "build", tmp_path / "none")
    run.display.end()
    assert "same command goes on" in run.lines[-1]


def test_warnings_of_snakemake_are_passed_on_during_a_run() -> None:
    run = begun({})
    run.tell("a file vanished", logging.WARNING)
    run.tell("Select jobs to execute...")
    assert run.others.said == ["a file vanished"] and run.lines == []


def test_a_finished_target_says_what_it_comes_to(tmp_path: Path) -> None:
    rates = {"tflops": 1.6, "tflops_fraction_measured": 0.002}
    rates |= {"gbs": 4460.0, "gbs_fraction_measured": 1.04}
    bound = {"limiter": "dram", "draw": None, "verdict": "bound"}
    bound |= {"busiest_unit": "dram", "busiest_pct": 92.0, "second_unit": "l2"}
    theirs = {"name": "k", "demangled": "void at::native::k", "duration_ns": 1.0}
    points = [
        {"status": "ok", "measurement": {**rates, **bound}},
        {"status": "ok", "measurement": {**rates, "gbs_fraction_measured": 0.5}},
        {"status": "wrong", "measurement": dict.fromkeys(rates)},
    ]
    other = {**rates, "gbs": 9999.0, "gbs_fraction_measured": 2.0}
    points.append({"status": "ok", "measurement": other, "kernels": [theirs]})
    (tmp_path / "results").mkdir()
    found = tmp_path / "results/decode_results.json"
    found.write_text(json.dumps({"target": "decode", "points": points}))
    page = tmp_path / "reports/decode.md"
    (line,) = display.headlines("target_page", [str(page)])
    said = "decode: 3 of 4 points, up to 4 460 GB/s (104 % of the measured ceiling), bound by DRAM (92 % of its peak)"
    assert line == f"  → {said}: {page}".replace("4 460", display.form.number(4460.0))


def test_a_machine_says_what_it_lacks_and_what_helps(tmp_path: Path) -> None:
    ceilings = {"measured": {"dram_gbs": None, "tensor_tflops": {}}}
    torch = {"check": "torch", "status": "missing", "found": "not found"}
    rows = [{"check": "gpu", "status": "ok", "found": "x", "remedy": None}]
    rows.append(torch | {"remedy": "pip install torch"})
    info = {"provenance": {"gpu": None, "tier": "C"}, "ceilings": ceilings, "findings": rows}
    first, second = display.machine_headlines(tmp_path / "environment.md", info)
    assert first.startswith("  → no GPU, tier C: ")
    assert second == "    missing: torch: not found; pip install torch"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (99.4, "99 s"),
        (200.0, "3 min 20 s"),
        (3599.7, "60 min 0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert display.duration(seconds) == text


def test_a_log_that_is_not_there_or_empty_gives_no_cause(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("none", "empty"):
        assert display.cause([str(tmp_path / name)]) == "it ended without a word"


def test_the_end_says_how_much_of_the_measuring_somebody_had_the_gpu(tmp_path, monkeypatch):
    run = begun({1: 40.0})
    wall = [1000.0]
    monkeypatch.setattr(display.time, "time", lambda: wall[0])
    run.display.gpu_use = tmp_path / "gpu-use.jsonl"
    run.start(1, "build", tmp_path / "log")
    wall[0] = 1100.0
    run.finish(1, 100)
    wall[0] = 1140.0
    events = [(1050.0, "begins"), (1070.0, "ends"), (1110.0, "begins"), (1140.0, "ends")]
    told = [{"time": t, "pid": 1, "event": event, "gpu": "a", "job": "x"} for t, event in events]
    run.display.gpu_use.write_text("".join(json.dumps(one) + "\n" for one in told))
    run.display.end()
    assert "  a GPU was held for 75 % of 40 s of measuring: " in run.out.getvalue()
