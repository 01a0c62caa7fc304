"""A run: which points are measured, what its records say, and how it ends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import targets
from parsers.files import BadInput
from targets import builds, ceilings, faults, gpu, sweep, timing
from targets import run as running
from targets.launch import Launch
from targets.progress import Progress
from targets.run import Run, read_points, run_points
from targets.sweep import Point

NAN = float("nan")


class Device:
    """A device whose tensors are numbers; it writes down what it was asked to do."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.answers = True
        self.unwritten = False
        self.states: list[dict[str, Any] | None] = []  # answers of clocks(), the last one for good

    def facts(self) -> dict[str, Any]:
        return {"name": "fake", "compute_capability": "9.0", "memory_bytes": 1 << 34}

    def synchronize(self) -> None: ...

    def alive(self) -> bool:
        return self.answers

    def release(self) -> None:
        self.log.append("release")

    def peak_memory(self) -> int:
        return 1234

    def poison(self, launch: Launch) -> None:
        self.log.append("poison")

    def written(self, launch: Launch) -> bool:
        return not self.unwritten

    def differences(
        self, outputs: tuple[float, ...], expected: tuple[float, ...]
    ) -> list[tuple[float, float]]:
        pairs = zip(outputs, expected, strict=True)
        return [(abs(o - e) / abs(e), abs(o - e)) for o, e in pairs]

    def flush(self) -> None:
        self.log.append("flush")

    def cold(self, run: Callable[[], None], n: int) -> timing.Series:
        self.log.append(f"cold {n}")
        run()
        return [10.0 + i for i in range(n)], True

    def hot(self, run: Callable[[], None], n: int, group: int) -> timing.Series:
        self.log.append(f"hot {n} x {group}")
        run()
        return [5.0] * n, False

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.log.append(f"<{name}")
        yield
        self.log.append(f"{name}>")

    @contextmanager
    def profiled(self) -> Iterator[None]:
        self.log.append("start")
        yield
        self.log.append("stop")

    def clocks(self) -> dict[str, Any] | None:
        if not self.states:
            return None
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def fake_target(device: Device, **kinds: Any) -> Any:
    """A target of points {"n": 1}, ...; ``kinds`` maps p<n> to what its launch does.

    A kind is a number (the output; the reference is 2), "skip", an exception to raise, or a
    function to call.
    """

    def skip(p: dict[str, Any], facts: dict[str, Any]) -> str | None:
        return "not here" if kinds.get(f"p{p['n']}") == "skip" else None

    def prepare(p: dict[str, Any], seed: int = 0) -> Launch:
        kind = kinds.get(f"p{p['n']}", 2.0)

        def run() -> None:
            device.log.append("run")
            if isinstance(kind, BaseException):
                raise kind
            if callable(kind):
                kind()

        return Launch(
            run=run,
            output=lambda: (2.0 if callable(kind) else kind,),
            reference=lambda: (2.0,),
            tolerance=0.01,
            buffers=lambda: (),
            plan=lambda: device.log.append("plan"),
            reset=lambda: device.log.append("reset"),
            info={"split_kv": False, "seed": seed},
        )

    return SimpleNamespace(
        NAME="fake",
        PARAMETERS={"n": 1},
        CHOICES={},
        point_id=lambda p: f"fake/p{p['n']}",
        skip=skip,
        work=lambda p: {"flops": 1, "bytes": 2, "convention": "none"},
        prepare=prepare,
    )


def made(n: int) -> list[Point]:
    return [Point(f"fake/p{i}", "fake", {"n": i}) for i in range(1, n + 1)]


def ran(
    device: Device, mode: str = "time", n: int = 1, planted: str = "", **kinds: Any
) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, records) of a run over n points."""
    records: list[dict[str, Any]] = []
    run = Run(device, fake_target(device, **kinds), mode, seed=7)
    run.faults = faults.parse({faults.VARIABLE: planted})
    status = run_points(run, made(n), records.append)
    for record in records:
        json.dumps(record, allow_nan=False)
    return status, records


# --- statuses ---------------------------------------------------------------------------------


def test_a_right_point_is_timed_and_its_record_is_complete() -> None:
    status, (record,) = ran(Device())
    assert status == 0
    assert record["point"] == "fake/p1" and record["target"] == "fake"
    assert record["params"] == {"n": 1}
    assert (record["status"], record["reason"]) == ("ok", None)
    assert record["check"] == {"rel_l2": 0.0, "max_abs": 0.0, "tolerance": 0.01}
    assert record["work"] == {"flops": 1, "bytes": 2, "convention": "none"}
    assert record["info"] == {"split_kv": False, "seed": 7}
    assert record["peak_memory_bytes"] == 1234
    assert record["clocks"] is None
    assert record["timing"].keys() == {"cold", "hot", "host", "plan"}


@pytest.mark.parametrize("mode", ["time", "trace", "check"])
def test_a_wrong_point_is_refused_and_the_next_one_follows(mode: str) -> None:
    device = Device()
    status, (wrong, right) = ran(device, mode, n=2, p1=2.5)
    assert status == 3
    assert wrong["status"] == "wrong" and wrong["timing"] is None
    assert wrong["reason"] == "relative L2 error 0.25 is above 0.01"
    assert wrong["check"]["rel_l2"] == 0.25 and wrong["check"]["max_abs"] == 0.5
    assert right["status"] == "ok"
    first = device.log[: device.log.index("release")]
    assert not {"start", "flush", "cold 3"} & set(first)


@pytest.mark.parametrize("output", [NAN, float("inf")])
def test_an_output_that_is_not_finite_never_passes(output: float) -> None:
    status, (record,) = ran(Device(), p1=output)
    assert (status, record["status"]) == (3, "wrong")
    assert record["reason"] == "the output is not finite everywhere"
    assert record["check"]["rel_l2"] is None and record["check"]["max_abs"] is None


def test_an_output_that_was_not_written_everywhere_is_wrong() -> None:
    device = Device()
    device.unwritten = True
    _, (record,) = ran(device)
    assert record["status"] == "wrong" and record["timing"] is None


def test_a_skipped_point_keeps_its_reason_and_is_no_failure() -> None:
    device = Device()
    status, (record,) = ran(device, p1="skip")
    assert status == 0 and device.log == []
    assert (record["status"], record["reason"]) == ("skipped", "not here")


def test_an_error_is_of_one_point_and_its_reason_one_line() -> None:
    error = RuntimeError("no kernel image\nCompile with TORCH_USE_CUDA_DSA")
    status, (bad, good) = ran(Device(), n=2, p1=error)
    assert status == 3
    assert (bad["status"], bad["reason"]) == ("error", "RuntimeError: no kernel image")
    assert good["status"] == "ok"


def test_a_lost_gpu_is_named_once_and_the_rest_is_lost() -> None:
    device = Device()
    device.answers = False
    status, records = ran(device, n=4, p2=RuntimeError("illegal memory access"))
    assert status == 4
    assert [r["status"] for r in records] == ["ok", "error", "lost", "lost"]
    why = "the GPU was lost at fake/p2: RuntimeError: illegal memory access"
    assert records[3]["reason"] == why
    assert records[3]["work"]["flops"] == 1 and records[3]["timing"] is None


def test_a_compiler_after_the_warm_up_is_an_error() -> None:
    device, watch = Device(), SimpleNamespace(started=3)
    run = Run(device, fake_target(device), "time", watch=watch)
    records: list[dict[str, Any]] = []
    device.cold = lambda run, n: (setattr(watch, "started", 4), ([1.0] * n, True))[1]  # type: ignore
    assert run_points(run, made(1), records.append) == 3
    assert records[0]["status"] == "error" and records[0]["timing"] is None
    assert "ninja or nvcc ran after the warm-up" in records[0]["reason"]


# --- order ------------------------------------------------------------------------------------


def test_the_checked_run_is_warm_poisoned_and_restored_first() -> None:
    device = Device()
    ran(device, "check")
    assert device.log == ["run", "run", "poison", "reset", "run", "release"]


def test_inputs_are_restored_before_each_timed_series() -> None:
    device = Device()
    ran(device)
    series = [entry for entry in device.log[5:] if entry.split()[0] in ("reset", "cold", "hot")]
    assert series == ["reset", "cold 3", "reset", "cold 30", "reset", "hot 30 x 8", *["reset"] * 2]


def test_trace_opens_the_profiler_around_the_launches_only() -> None:
    device = Device()
    run = Run(device, fake_target(device), "trace", repeats=2)
    run_points(run, made(1), lambda record: None)
    traced = device.log[device.log.index("start") :]
    launch = ["flush", "<fake/p1", "run", "fake/p1>"]
    plan = ["<plan:fake/p1", "plan", "plan:fake/p1>"]
    assert traced == ["start", *plan, *launch, *launch, "stop", "release"]


def test_trace_without_flush_leaves_the_cache_alone() -> None:
    device = Device()
    run = Run(device, fake_target(device), "trace", repeats=1, flush=False)
    run_points(run, made(1), lambda record: None)
    assert "flush" not in device.log and "<fake/p1" in device.log


def test_an_unchecked_trace_runs_no_reference_and_still_warms_up_and_restores() -> None:
    device = Device()
    run = Run(device, fake_target(device, p1=2.5), "trace", repeats=1, checked=False)
    records: list[dict[str, Any]] = []
    assert run_points(run, made(1), records.append) == 0
    assert device.log[: device.log.index("start")] == ["run", "run", "reset"]
    assert records[0]["check"] is None


# --- timing -----------------------------------------------------------------------------------


def test_a_summary_has_quartiles_and_says_how_many() -> None:
    found = timing.summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found["median"], found["q25"], found["q75"], found["n"]) == (3.0, 2.0, 4.0, 5)
    assert found["unit"] == "us" and found["samples"] == [4.0, 1.0, 3.0, 2.0, 5.0]


def test_samples_are_kept_to_fifty_and_four_digits() -> None:
    found = timing.summary([894.5123] * 60)
    assert found["samples"] == [894.5] * 50 and found["n"] == 60


def test_no_samples_are_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no samples"):
        timing.summary([])


@given(st.integers(1, 1000), st.floats(1, 1e7), st.floats(1, 1e9))
def test_repetitions_are_never_fewer_than_five(wanted: int, budget: float, each: float) -> None:
    n = timing.repetitions(wanted, budget, each)
    assert 5 <= n <= max(5, wanted)
    assert n == 5 or n * each <= budget


@pytest.mark.parametrize(
    ("each", "cold", "hot"),
    [(2e3, "cold 30", "hot 10 x 8"), (2e4, "cold 8", "hot 8 x 1"), (9e5, "cold 5", "hot 5 x 1")],
)
def test_a_slow_launch_is_repeated_less_and_grouped_less(each: float, cold: str, hot: str) -> None:
    device = Device()
    device.cold = lambda run, n: (device.log.append(f"cold {n}"), ([each] * n, True))[1]  # type: ignore
    ran(device)
    assert cold in device.log and hot in device.log


def test_whether_the_host_kept_ahead_is_recorded() -> None:
    _, (record,) = ran(Device())
    assert record["timing"]["cold"]["queued"] is True
    assert record["timing"]["hot"]["queued"] is False


def state(*throttle: str) -> dict[str, Any]:
    return {"sm_mhz": 1500, "mem_mhz": 2600, "throttle": list(throttle)}


@pytest.mark.parametrize(
    ("after", "retakes"),
    [
        ([state()], 0),
        ([state("sw_power_cap", "gpu_idle", "applications_clocks_setting")], 0),
        ([state("hw_thermal_slowdown")] * 9, 2),
        ([state("sw_thermal_slowdown"), state(), state()], 1),
    ],
)
def test_a_throttled_series_is_retaken_twice_at_most(after: list[Any], retakes: int) -> None:
    device = Device()
    device.states = [state(), *after]
    _, (record,) = ran(device)
    assert record["clocks"]["retakes"] == retakes
    assert sum(entry == "cold 30" for entry in device.log) == retakes + 1


def test_throttle_reasons_are_named_and_unknown_bits_kept() -> None:
    assert gpu.throttle_reasons(0) == []
    assert gpu.throttle_reasons(0x24) == ["sw_power_cap", "sw_thermal_slowdown"]
    assert gpu.throttle_reasons(0x400) == ["reason_0x400"]


def test_a_rate_has_its_quartiles_the_right_way_round() -> None:
    found = ceilings._rate([1.0, 2.0, 4.0, 5.0, 8.0], 1e-3, "m")
    assert found == {"value": 250.0, "n": 5, "q25": 200.0, "q75": 500.0, "method": "m"}


# --- planted faults ---------------------------------------------------------------------------


def test_a_planted_wrong_output_is_refused() -> None:
    status, records = ran(Device(), n=2, planted="wrong:fake/p1")
    assert status == 3
    assert [r["status"] for r in records] == ["wrong", "ok"]


def test_a_planted_delay_spins_after_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.2, 0.4, 0.6])
    monkeypatch.setattr(faults.time, "perf_counter", lambda: next(clock))
    device = Device()
    launch = fake_target(device).prepare({"n": 1})
    faults.apply(launch, "fake/p1", faults.parse({faults.VARIABLE: "delay:fake/*:500000"})).run()
    assert device.log == ["run"] and next(clock, None) is None


def test_a_planted_copy_copies_what_the_launch_wrote() -> None:
    class Buffer:
        copies = 0

        def clone(self) -> Buffer:
            return self

        def copy_(self, other: Buffer) -> None:
            Buffer.copies += 1

    launch = fake_target(Device()).prepare({"n": 1})
    launch.buffers = lambda: (Buffer(), Buffer())
    faulty = faults.apply(launch, "fake/p1", faults.parse({faults.VARIABLE: "copy:*"}))
    faulty.run()
    faulty.run()
    assert Buffer.copies == 4


@pytest.mark.parametrize("text", ["slow:*", "wrong", "wrong:", "delay:*", "delay:*:much"])
def test_a_fault_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="NCUFLOW_FAULT"):
        faults.parse({faults.VARIABLE: text})


def test_several_faults_and_none() -> None:
    assert faults.parse({}) == []
    found = faults.parse({faults.VARIABLE: "wrong:a/*;delay:b:20"})
    assert found == [faults.Fault("wrong", "a/*"), faults.Fault("delay", "b", 20.0)]


# --- files ------------------------------------------------------------------------------------


def points_file(folder: Path, entries: Any) -> Path:
    path = folder / "points.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), "utf-8")
    return path


def test_points_are_read_and_completed_by_the_defaults(tmp_path: Path) -> None:
    path = points_file(tmp_path, [{"id": "fake/p1", "target": "fake", "params": {}}])
    assert read_points(path, fake_target(Device())) == made(1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "not JSON"),
        ([], "not a list of points"),
        ({"id": "x"}, "not a list of points"),
        ([{"id": "fake/p1"}], "without id, target and params"),
        ([{"id": "fake/p1", "target": "other", "params": {}}], "a point of other, not fake"),
        ([{"id": "fake/p1", "target": "fake", "params": {"m": 1}}], "unknown parameter 'm'"),
        ([{"id": "fake/p1", "target": "fake", "params": {"n": [1, 2]}}], "several values"),
        ([{"id": "fake/p1", "target": "fake", "params": {"n": 2}}], "are those of fake/p2"),
    ],
)
def test_a_bad_points_file_is_named(tmp_path: Path, entries: Any, message: str) -> None:
    path = points_file(tmp_path, entries)
    with pytest.raises(BadInput, match=message) as caught:
        read_points(path, fake_target(Device()))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Path]]:
    """(exit status, OUT) of the command line on two points of a fake target and device."""

    def call(*arguments: str, out: str = "out.jsonl", **kinds: Any) -> tuple[int, Path]:
        device = Device()
        monkeypatch.setattr(gpu, "Gpu", lambda: device)
        monkeypatch.setattr(running.targets, "load", lambda name: fake_target(device, **kinds))
        monkeypatch.setattr(builds, "CompilerWatch", lambda: SimpleNamespace(started=0))
        path = points_file(tmp_path, [point.as_dict() for point in made(2)])
        files = ["--points", str(path), "--out", str(tmp_path / out)]
        return running.main(["fake", *files, *arguments]), tmp_path / out

    return call


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_command_writes_one_record_a_point(
    command: Callable[..., tuple[int, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = command("--mode", "time")
    assert status == 0
    assert [record["point"] for record in lines(out)] == ["fake/p1", "fake/p2"]
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.jsonl", "points.json"]
    assert "[1/2] fake/p1: ok" in capsys.readouterr().err


class Cut(BaseException):
    """As KeyboardInterrupt: no error of the point."""


def test_a_run_that_is_cut_off_leaves_no_output_but_what_it_had(
    command: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    with pytest.raises(Cut):
        command("--mode", "check", p2=Cut())
    assert not (tmp_path / "out.jsonl").exists()
    assert [r["point"] for r in lines(tmp_path / "out.jsonl.partial")] == ["fake/p1"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("trace", "ok"), ("time", "wrong"), ("check", "wrong")]
)
def test_only_a_trace_can_go_unchecked(
    command: Callable[..., tuple[int, Path]], mode: str, expected: str
) -> None:
    _, out = command("--mode", mode, "--unchecked", p1=2.5)
    assert lines(out)[0]["status"] == expected


def test_records_can_be_followed_while_the_run_goes_on(
    command: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    seen: list[str] = []
    partial = tmp_path / "out.jsonl.partial"
    command("--mode", "check", p2=lambda: seen.extend(r["point"] for r in lines(partial)))
    assert set(seen) == {"fake/p1"}


def test_a_lost_gpu_still_writes_all_records(
    command: Callable[..., tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "alive", lambda self: False)
    status, out = command("--mode", "time", p1=RuntimeError("sticky"))
    assert status == 4
    assert [record["status"] for record in lines(out)] == ["error", "lost"]


def test_faults_come_from_the_environment(
    command: Callable[..., tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCUFLOW_FAULT", "wrong:*p2")
    status, out = command("--mode", "check")
    assert (status, [r["status"] for r in lines(out)]) == (3, ["ok", "wrong"])


def test_no_gpu_is_fatal_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> None:
        raise RuntimeError("no CUDA device is available to torch")

    monkeypatch.setattr(gpu, "Gpu", none)
    entry = {"id": "rmsnorm/rmsnorm_R4096_D4096_f16", "target": "rmsnorm", "params": {}}
    path, out = points_file(tmp_path, [entry]), tmp_path / "out.jsonl"
    assert running.main(["rmsnorm", "--points", str(path), "--out", str(out)]) == 1
    assert capsys.readouterr().err == "error: RuntimeError: no CUDA device is available to torch\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "--points", "p", "--out", "o"], "error: unknown kernel target 'nope'"),
        (["decode", "--out", "o"], "--points is needed"),
        (["decode", "--points", "none.json", "--out", "o"], "error: none.json: no such file"),
        (["decode", "--points", "p", "--out", "o", "--repeats", "0"], "--repeats must be"),
    ],
)
def test_bad_usage_exits_2_and_writes_nothing(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    root = Path(__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import runpy; "
    code += f"sys.argv[1:] = {arguments!r}; runpy.run_module('targets.run', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_profiler_hooked_into_the_exit_runs() -> None:
    """A profiler that is inside the process writes its last buffers there."""
    code = "import atexit, runpy, sys; atexit.register(print, 'hooked'); "
    code += "sys.argv[1:] = ['decode', '--points', 'none.json', '--out', 'o']; "
    code += "runpy.run_module('targets.run', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "hooked\n")


# --- progress ---------------------------------------------------------------------------------


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    stream, clock = io.StringIO(), iter([0.0, 10.0, 20.0])
    progress = Progress(4, stream, lambda: next(clock))
    progress.done("a/1", "ok", None)
    progress.done("a/2", "wrong", "off by 1")
    assert stream.getvalue() == (
        "[1/4] a/1: ok, 10 s elapsed, about 30 s left\n"
        "[2/4] a/2: wrong (off by 1), 20 s elapsed, about 20 s left\n"
    )


def test_progress_rewrites_its_line_on_a_terminal_but_keeps_what_failed() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(3, stream, lambda: 0.0)
    for status, reason in (("ok", None), ("error", "no"), ("ok", None)):
        progress.done("a", status, reason)
    parts = stream.getvalue().split("\r\x1b[K")
    assert [part.endswith("\n") for part in parts] == [False, False, True, True]


# --- builds -----------------------------------------------------------------------------------


def test_the_watch_counts_compilers_that_any_library_starts() -> None:
    watch = builds.CompilerWatch()
    for program in (["ninja", "-v"], "/usr/local/cuda/bin/nvcc -c x.cu", [b"/bin/ninja"]):
        sys.audit("subprocess.Popen", None, program, None, None)
    sys.audit("subprocess.Popen", "/opt/bin/ninja", ["x"], None, None)
    assert watch.started == 4
    for other in (["nvidia-smi"], "git ninja", [], [Path("a")]):
        sys.audit("subprocess.Popen", None, other, None, None)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert watch.started == 4


NINJA = """Ninja build failed. Ninja output:
ninja: Entering directory `/home/someone/.cache'
FAILED: norm.cuda.o
/usr/local/cuda/bin/nvcc -c /home/someone/norm.cu
/home/someone/site/include/norm.cuh(7): error: identifier "x" is undefined
ninja: build stopped: subcommand failed."""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "RuntimeError"),
        ("CUDA error: misaligned address\nSet CUDA_LAUNCH_BLOCKING",
         "RuntimeError: CUDA error: misaligned address"),
        (NINJA, "RuntimeError: Ninja build failed. Ninja output: "
         'norm.cuh(7): error: identifier "x" is undefined'),
        ("cannot read /root/a/b.so", "RuntimeError: cannot read b.so"),
        ("9 / 2 and/or x", "RuntimeError: 9 / 2 and/or x"),
    ],
)  # fmt: skip
def test_the_reason_of_an_error_is_one_line_without_folders(text: str, line: str) -> None:
    assert builds.one_line(RuntimeError(text)) == line


class Spec:
    """A JIT module: built with FlashInfer's arguments, or failing."""

    def __init__(self, name: str, error: str | None = None, is_aot: bool = False) -> None:
        self.name, self.error, self.is_aot = name, error, is_aot
        self.builds = 0

    def build(self, verbose: bool, need_lock: bool) -> None:
        self.builds += 1
        if self.error is not None:
            raise RuntimeError(self.error)


def test_modules_are_built_once_each_and_a_failure_is_of_one_module() -> None:
    specs = [Spec("norm"), Spec("rope", "ninja: failed"), Spec("page", is_aot=True)]
    target: Any = SimpleNamespace(modules=lambda p: [specs[p["n"] % 3]])
    found = builds.modules(target, made(6))
    assert len(found) == 3
    report = {entry["name"]: entry for entry in builds.build(found, lambda line: None)}
    assert {name: entry["status"] for name, entry in report.items()} == {
        "norm": "built",
        "rope": "error",
        "page": "prebuilt",
    }
    assert report["rope"]["reason"] == "RuntimeError: ninja: failed"
    assert [spec.builds for spec in specs] == [1, 1, 0]
    assert all(entry["seconds"] >= 0 for entry in report.values())


def test_build_mode_writes_its_report_and_tells_failure(tmp_path: Path) -> None:
    target: Any = SimpleNamespace(NAME="fake", modules=lambda p: [Spec("norm", "no nvcc")])
    assert running.build(target, made(1), tmp_path / "build.json") == 3
    target.modules = lambda p: [Spec("norm")]
    assert running.build(target, made(1), tmp_path / "build.json") == 0
    assert json.loads((tmp_path / "build.json").read_text("utf-8"))["target"] == "fake"


PREFILL = targets.load("prefill")
BOTH = sweep.points(PREFILL, [{"backend": ["fa2", "fa3"]}])


def test_the_arch_list_stands_in_for_the_gpus() -> None:
    told = {"FLASHINFER_CUDA_ARCH_LIST": "8.0 9.0a 12.0f"}
    assert builds.capabilities(told, lambda: pytest.fail("asked")) == ["8.0", "9.0", "12.0"]
    assert builds.capabilities({}, lambda: ["8.6"]) == ["8.6"]


@pytest.mark.parametrize(
    ("capabilities", "backends"),
    [
        (["8.0"], ["fa2"]),
        (["9.0"], ["fa2", "fa3"]),
        (["8.0", "9.0"], ["fa2", "fa3"]),
        ([], ["fa2", "fa3"]),
    ],
)
def test_what_none_of_the_gpus_can_run_is_not_built(
    capabilities: list[str], backends: list[str]
) -> None:
    said: list[str] = []
    kept = builds.buildable(PREFILL, BOTH, capabilities, said.append)
    assert [point.params["backend"] for point in kept] == backends
    assert len(said) == 2 - len(backends)
    assert all(line.endswith("fa3 needs compute capability 9.0, this GPU has 8.0") for line in said)


def test_build_mode_with_an_arch_list_asks_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "8.0")
    monkeypatch.setattr(gpu, "Gpu", lambda: pytest.fail("asked"))
    monkeypatch.setattr(gpu, "capabilities", lambda: pytest.fail("asked"))
    monkeypatch.setattr(PREFILL, "modules", lambda p: [Spec(p["backend"])])
    path, out = points_file(tmp_path, [p.as_dict() for p in BOTH]), tmp_path / "build.json"
    files = ["--points", str(path), "--out", str(out)]
    assert running.main(["prefill", "--mode", "build", *files]) == 0
    assert [module["name"] for module in json.loads(out.read_text("utf-8"))["modules"]] == ["fa2"]
