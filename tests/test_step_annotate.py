"""Ranges around FlashInfer's calls: a stand-in of FlashInfer and of torch, in processes of their own."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, some
from flashinfer_source import flashinfer_package

from ncuflow.io import read_json
from ncuflow.step import annotate
from ncuflow.step.shapes import of_range
from ncuflow.sweep.points import read_points
from ncuflow.target import attention
from ncuflow.target.contract import known, load
from ncuflow.target.workload import OPEN, RefusedError

# Enough of torch that a call can be in a range: what was pushed is printed, and so is what was called in it.
TORCH = """
from threading import get_ident
from types import SimpleNamespace as N
depth, profiling, tool = [], False, True
def push(text):
    depth.append(text)
    print("push", text)
    return len(depth) - 1 if tool else -2
def pop(): depth.pop()
capturing, aside = set(), False  # threads; whether they launch to other streams
everywhere = False  # whether a profiler records all threads, of which none says that it does
class CUDAGraph:
    def capture_begin(self): capturing.add(get_ident()); print("capture")
    def capture_end(self): capturing.remove(get_ident()); print("captured")
    def replay(self): print("replay")
def mm(input, mat2): print("mm"); return input
cuda = N(
    nvtx=N(range_push=push, range_pop=pop), CUDAGraph=CUDAGraph,
    is_current_stream_capturing=lambda: not aside and get_ident() in capturing,
)
compiler = N(is_compiling=lambda: False)
def _run_on_profiler_start(): global profiling; profiling = True
def _run_on_profiler_stop(): global profiling; profiling = False
profiler = N(_run_on_profiler_start=_run_on_profiler_start, _run_on_profiler_stop=_run_on_profiler_stop)
autograd = N(
    _profiler_enabled=lambda: profiling and not everywhere, profiler=profiler,
    _record_function_with_args_enter=lambda text: print("record", text), _record_function_with_args_exit=lambda record: None,
)
def record(wanted): profiler._run_on_profiler_start() if wanted else profiler._run_on_profiler_stop()
class Tensor:
    def __init__(self, shape, dtype="torch.float16", values=()):
        self.shape, self.dtype, self.values = tuple(shape), dtype, list(values)
    is_cpu = True
    def clone(self): return Tensor(self.shape, self.dtype, self.values)
    def tolist(self):
        assert self.is_cpu or not capturing, "a sync in a capture"
        return self.values
    def numel(self):
        n = 1
        for one in self.shape: n *= one
        return n
    def __getitem__(self, at): return Tensor(self.shape[1:], self.dtype)
"""
DECODE = """
class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(self, use_tensor_cores=False): self._use_tensor_cores = use_tensor_cores
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *more, **kwargs):
        print("plan")
        self._plan_info = [1]
        return "planned"
    begin_forward = plan
    def run(self, q, cache): print("run"); return q
    forward = run
"""
NORM = """
def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None): print("rmsnorm"); return input
def gemma_rmsnorm(input, weight): return rmsnorm(weight, None)
"""
ENGINE = """
import torch, flashinfer
from flashinfer import rmsnorm
T = torch.Tensor
w = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper()
pages, last = T([4], values=[0, 2, 4, 5]), T([3], values=[8, 8, 16])
assert w.begin_forward(pages, None, last, 32, 8, 128, 16, q_data_type="float16") == "planned"
assert w.run("q", None) == "q"
w.forward("q", None)
graph = torch.cuda.CUDAGraph()
graph.capture_begin()
w.run("captured", None)
graph.capture_end()
torch.record(True)
w.run("profiled", None)
torch.record(False)
w.plan(T([2], values=[0, 2]), None, T([1], values=[8]), 32, 8, 128, 16, pos_encoding_mode="ROPE_LLAMA")
w.run("refused", None)
w.plan(pages, None, last, 32, 8, 128, 16)
w._plan_info = [1]  # planned again by a function of the engine's, for other lengths
w.run("replanned", None)
x = T([128, 4096], "torch.bfloat16")
assert rmsnorm(x, T([4096])) is x
rmsnorm(x, T([4096]), eps=1e-5)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with a stand-in of torch and of FlashInfer, an engine, and a sitecustomize of its own."""
    files = {
        "torch.py": TORCH,
        "flashinfer/__init__.py": "from . import decode\nfrom .norm import rmsnorm as rmsnorm\n",
        "flashinfer/decode.py": DECODE,
        "flashinfer/norm/__init__.py": NORM,
        "sitecustomize.py": "print('own site')",
        "engine.py": ENGINE,
    }
    for name, text in files.items():
        path = tmp_path / "engine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "engine"


def annotated(engine: Path, *options: str, program: str = "engine.py") -> SimpleNamespace:
    command = [sys.executable, "-m", "ncuflow", "annotate", *options, "--", sys.executable, program]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{engine}:{ROOT}"}
    done = subprocess.run(command, cwd=engine, env=env, capture_output=True, text=True, timeout=120)
    return SimpleNamespace(code=done.returncode, said=done.stdout.splitlines(), told=done.stderr)


def ranges(done: SimpleNamespace) -> list[str]:
    """What was pushed or recorded, without what asks whether anything takes it."""
    told = [line for line in done.said if line.startswith(("push", "record"))]
    assert told.pop(0) == "push ncuflow annotate"
    return told


def test_each_call_is_in_a_range_that_step_reads(engine: Path, tmp_path: Path) -> None:
    done = annotated(engine, "--workload", str(tmp_path / "called"))
    assert done.code == 0, done.told
    decode = "decode(batch=3, kv_len=21, lengths=2x24_1x16, qo_heads=32, kv_heads=8, head_dim=128, dtype=f16, "
    pushed = ranges(done)
    assert [one.partition(" ")[2][: len(decode)] for one in pushed[:3]] == [decode] * 3
    assert [one.split()[0] for one in pushed] == ["push", "push", "record", "push", "push"]
    assert pushed[3:] == ["push rmsnorm(variant=rmsnorm, rows=128, hidden=4096, dtype=bf16)"] * 2
    shape = of_range(pushed[0])
    assert shape and shape.target is load("decode")
    (params,) = shape.candidates
    assert params["page_size"] == 16 and params["cores"] == "cuda" and params["window"] == 0
    assert done.said.count("run") == 6 and done.said.count("own site") >= 1
    assert (
        "5 calls in ranges (decode 1 shapes, rmsnorm 1 shapes); wrapped: decode, gemm, rmsnorm"
        in done.told
    )
    assert (
        "without a range, calls of 1 shape: BatchDecodeWithPagedKVCacheWrapper.run: positions"
        in done.told
    )
    # what advise and try take
    for name, count in (("decode", 3), ("rmsnorm", 2)):
        path = tmp_path / "called" / f"{name}.json"
        (point,) = read_points(path, load(name))
        assert [one["count"] for one in read_json(path)] == [count] and point.target == name


def test_what_is_captured_is_in_ranges_where_that_is_asked_for(engine: Path) -> None:
    done = annotated(engine, "--graphs")
    assert sum(line.startswith("push decode") for line in done.said) == 3


IDLE = """
import inspect
import torch
torch.tool = False
import flashinfer
from flashinfer import rmsnorm
T, W = torch.Tensor, flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
w, x = W(), T([64, 4096])
held, graph = w.run, torch.cuda.CUDAGraph()
plan = lambda pages: w.plan(T([2], values=[0, pages]), None, T([1], values=[8]), 32, 8, 128, 16)
own = [one.__code__ for one in (rmsnorm, W.run, torch.cuda.CUDAGraph.replay)]
assert not any(hasattr(one, "__wrapped__") for one in (rmsnorm, W.run, torch.cuda.CUDAGraph.replay))
assert all(one.co_filename != "<string>" for one in own)
def calls():
    assert rmsnorm(x, None) is x and held("q", None) == "q"
plan(1)
graph.capture_begin()
calls()
graph.capture_end()
plan(2)
calls()
graph.replay()
print("begins")
torch.record(True)
calls()
graph.replay()
assert str(inspect.signature(rmsnorm)) == "(input, weight, eps=1e-06, *, out=None)"
torch.record(False)
print("ended")
calls()
graph.replay()
assert own == [one.__code__ for one in (rmsnorm, W.run, torch.cuda.CUDAGraph.replay)]
assert not any(hasattr(one, "__wrapped__") for one in (rmsnorm, W.run, torch.cuda.CUDAGraph.replay))
"""

HEAD = """
import gc, os, sys, threading, weakref
import torch
torch.tool = False
if "early" in sys.argv: torch.record(True)
import flashinfer
from flashinfer import rmsnorm
T, W = torch.Tensor, flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
class G(T): is_cpu = False
w, x, graph = W(), T([64, 4096]), torch.cuda.CUDAGraph()
idle = lambda: rmsnorm.__code__.co_filename != "<string>"
def plan(pages, of=T, **more):
    w.plan(pages, None, of([1], values=[8]), 32, 8, 128, 16, **more)
"""
CASES = {  # what an engine does, and the ranges that it has of it
    "a plan on the GPU is not read in a capture": ("""
        plan(G([2], values=[0, 2]), G)
        graph.capture_begin()
        w.run("q", None)
        plan(G([2], values=[0, 3]), G)
        w.run("q", None)
        graph.capture_end()
        torch.record(True)
        plan(G([2], values=[0, 4]), G)
        graph.replay()
        """, ["kv_len=56"]),
    "a wrapper is gone before its capture ends": ("""
        plan(T([2], values=[0, 2]))
        graph.capture_begin()
        w.run("q", None)
        rmsnorm(x, None)
        del w
        gc.collect()
        graph.capture_end()
        assert not torch.capturing
        torch.record(True)
        graph.replay()
        """, ["replay of ab; b rmsnorm"]),
    "a capture of which nothing can be said ends": ("""
        graph.capture_begin()
        rmsnorm(x, None)
        sys.modules["ncuflow.step.annotate"].Captured.add = lambda *_: 1 / 0
        graph.capture_end()
        assert not torch.capturing and idle()
        """, []),
    "a replay of which nothing can be said runs": ("""
        graph.capture_begin()
        rmsnorm(x, None)
        graph.capture_end()
        sys.modules["ncuflow.step.annotate"].Captured.text = lambda *_: 1 / 0
        torch.record(True)
        graph.replay()
        print("went on")
        """, []),
    "FlashInfer is imported while torch's profiler records": ("""
        rmsnorm(x, None)
        torch.record(False)
        assert idle()
        rmsnorm(x, None)
        torch.record(False)
        torch.record(True)
        rmsnorm(x, None)
        torch.record(False)
        assert idle()
        """, ["rmsnorm", "rmsnorm"]),
    "what plan() was told is not held": ("""
        mask, pages = G([1 << 30]), T([2], values=[0, 2])
        held = [weakref.ref(one) for one in (mask, pages)]
        plan(pages, custom_mask=mask)
        w.run("q", None)
        del mask, pages
        gc.collect()
        assert [one() for one in held] == [None, None]
        torch.record(True)
        w.run("q", None)
        """, ["kv_len=24"]),
    "lengths are those that were planned": ("""
        for of in (T, G):
            pages = of([2], values=[0, 2])
            plan(pages, of)
            pages.values[1] = 200
            torch.record(True)
            w.run("q", None)
            torch.record(False)
        """, ["kv_len=24"]),
    "a method is called by keywords": ("""
        torch.record(True)
        W.plan(self=w, indptr=T([2], values=[0, 2]), indices=None, last_page_len=T([1], values=[8]), num_qo_heads=32,
            num_kv_heads=8, head_dim=128, page_size=16)
        W.run(self=w, q="q", cache=None)
        torch.cuda.CUDAGraph.replay(self=graph)
        """, ["kv_len=24"]),
    "another thread calls in a capture": ("""
        go, second = threading.Barrier(2), torch.cuda.CUDAGraph()
        def other(own):
            if own: own.capture_begin(), go.wait(), go.wait()
            flashinfer.norm.gemma_rmsnorm(x, x)
            torch.mm(x, x)
            if own: own.capture_end()
        threads = [threading.Thread(target=other, args=[own]) for own in (second, None)]
        threads[0].start(), go.wait()
        graph.capture_begin()
        rmsnorm(x, None)
        go.wait(), threads[0].join()
        threads[1].start(), threads[1].join()
        torch.aside = True
        other(None)
        torch.aside = False
        graph.capture_end()
        torch.record(True)
        graph.replay()
        second.replay()
        """, ["replay of a; a rmsnorm(variant=rmsnorm", "replay of ab; a rmsnorm(variant=gemma"]),
    "a profiler records all threads": ("""
        torch.everywhere = True
        torch.record(True)
        thread = threading.Thread(target=rmsnorm, args=[x, None])
        thread.start(), thread.join()
        torch.record(False)
        rmsnorm(x, None)
        """, ["rmsnorm"]),
    "a call calls another": ("""
        torch.record(True)
        flashinfer.norm.gemma_rmsnorm(T([8, 4096]), x)
        flashinfer.norm.gemma_rmsnorm(T([8, 4096], "torch.float64"), x)
        try: flashinfer.norm.gemma_rmsnorm(x)
        except TypeError: rmsnorm(x, None)
        graph.capture_begin()
        flashinfer.norm.gemma_rmsnorm(T([8, 4096]), x)
        graph.capture_end()
        graph.replay()
        """, ["gemma_rmsnorm, rows=8", "variant=rmsnorm, rows=64", "gemma_rmsnorm, rows=64", "variant=rmsnorm",
        "replay of a; a rmsnorm(variant=gemma"]),
    "a shape is a list": ("""
        torch.record(True)
        x.shape = [64, 4096]
        rmsnorm(x, None)
        """, ["rows=64"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_engine_is_not_disturbed(engine: Path, case: str) -> None:
    program, wanted = CASES[case]
    (engine / "engine.py").write_text(HEAD + textwrap.dedent(program))
    if "is imported while" in case:
        (engine / "engine.py").write_text(
            f"import sys; sys.argv += ['early']\n{HEAD}{textwrap.dedent(program)}"
        )
    done = annotated(engine)
    assert done.code == 0, done.told
    told = ranges(done)
    assert len(told) == len(wanted) and all(map(str.__contains__, told, wanted)), told
    assert done.said.count("went on") == ("a replay" in case)
    calls = {"another thread calls in a capture": 5, "a call calls another": 5}
    assert case not in calls or f"{calls[case]} calls in ranges" in done.told


def test_calls_are_what_they_were_while_nothing_records(engine: Path) -> None:
    """Whoever holds them: a name of the engine's, a bound method. What was planned before has its shape."""
    (engine / "flashinfer/norm/__init__.py").write_text(
        "def made(scale):\n"
        "    def rmsnorm(input, weight, eps=1e-6, *, out=None):\n"
        "        assert scale == eps * 1e6 and out is None\n"
        "        return input\n"
        "    return rmsnorm\n"
        "rmsnorm = made(1.0)\n"
    )
    (engine / "engine.py").write_text(IDLE)
    done = annotated(engine)
    assert done.code == 0, done.told
    told = ranges(done)
    assert [one.split("(")[0] for one in told] == [
        "record rmsnorm", "record decode", "record replay of ab; a rmsnorm"
    ]  # fmt: skip
    assert "kv_len=24" in told[1] and "kv_len=24" in told[2]
    assert done.said.index("begins") < done.said.index(told[0])
    assert done.said.index(told[-1]) < done.said.index("ended")
    assert "4 calls in ranges" in done.told


GRAPH = """
import torch, flashinfer
from flashinfer import rmsnorm
T = torch.Tensor
w = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper()
plan = lambda pages: w.plan(T([2], values=[0, pages]), None, T([1], values=[16]), 32, 8, 128, 16)
x, weight = T([1, 4096], "torch.bfloat16"), T([4096, 6144], "torch.bfloat16")
torch.mm(x, weight)
plan(1)
graph = torch.cuda.CUDAGraph()
graph.capture_begin()
for _ in range(2):
    rmsnorm(x, weight)
    torch.mm(x, weight)
    w.run("captured", None)
graph.capture_end()
torch.mm(x, weight)
plan(8)
graph.replay()
plan(9)
torch.record(True)
graph.replay()
torch.record(False)
w._plan_info = [1]  # planned by a function of the engine's
graph.replay()
"""


def replayed(text: str) -> list[str]:
    """The ranges of the calls that a replay repeats, in order."""
    order, *parts = text.removeprefix(annotate.REPLAY).split("; ")
    known = {part[:1]: part[2:] for part in parts}
    return [known[letter] for letter in order if letter in known]


def test_a_replay_says_what_was_captured_and_planned_since(engine: Path, tmp_path: Path) -> None:
    (engine / "engine.py").write_text(GRAPH)
    done = annotated(engine, "--workload", str(tmp_path / "called"))
    assert done.code == 0, done.told
    told = ranges(done)
    assert [one.partition(";")[0] for one in told] == [
        "push replay of abcabc", "record replay of abcabc", "push replay of abcabc"
    ]  # fmt: skip
    assert done.said.count("mm") == 4 and done.said.count("replay") == 3
    told = [replayed(one.partition(" ")[2]) for one in told]
    norm = "rmsnorm(variant=rmsnorm, rows=1, hidden=4096, dtype=bf16)"
    product = "gemm(variant=mm, m=1, n=6144, k=4096, dtype=bf16)"
    assert told[0][:2] == [norm, product] and told[0][:3] == told[0][3:]
    assert ["kv_len=128" in told[0][2], "kv_len=144" in told[1][2]] == [True, True]
    assert told[2] == [norm, product] * 2  # of what is planned elsewhere nothing is told
    counts = {
        path.stem: [row["count"] for row in read_json(path)]
        for path in (tmp_path / "called").iterdir()
    }
    assert counts == {"rmsnorm": [6], "gemm": [6], "decode": [2, 2]}


ENDS = {  # how a process ends, of which a parent may have seen nothing
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "left": "os._exit(3)",
    "forked": "os.fork() or (call(), os._exit(0)); os.wait(); raise SystemExit(3)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_workload_outlives_a_process_that_is_ended(
    engine: Path, tmp_path: Path, end: str
) -> None:
    """A killed one has what was called until a second ago: here it ends when its workload is there."""
    (engine / "engine.py").write_text(
        textwrap.dedent(f"""
        import json, os, signal
        import torch, flashinfer
        folder = json.loads(os.environ["NCUFLOW_ANNOTATE"])["folder"]
        call = lambda: flashinfer.rmsnorm(torch.Tensor([64, 4096]), None)
        call()
        if {end!r} == "killed":
            while not any(name.endswith(".json") for name in os.listdir(folder)): pass
        {ENDS[end]}
        """)
    )
    done = annotated(engine, "--workload", str(tmp_path / "called"))
    assert done.code == {"killed": 137}.get(end, 3), done.told
    (row,) = read_json(tmp_path / "called" / "rmsnorm.json")
    assert row["count"] == (2 if end == "forked" else 1)


def test_an_engine_runs_whatever_becomes_of_its_ranges(engine: Path) -> None:
    (engine / "flashinfer/norm/__init__.py").write_text("def rmsnorm(other): return other\n")
    (engine / "engine.py").write_text(
        "import flashinfer; print(flashinfer.rmsnorm(1)); raise SystemExit(7)"
    )
    done = annotated(engine)
    assert done.code == 7 and "1" in done.said
    assert "without a range, calls of 1 shape: rmsnorm: KeyError: 'input'" in done.told
    (engine / "torch.py").write_text(
        TORCH.replace("_with_args_", "_by_another_name_")
    )  # a later torch's
    done = annotated(engine)
    assert done.code == 7 and "1" in done.said
    assert "ncuflow annotate: flashinfer.norm: AttributeError" in done.told
    (engine / "yaml.py").write_text("raise ImportError('no yaml here')")
    done = annotated(engine)
    assert done.code != 0  # ncuflow itself has none


@pytest.mark.parametrize("gone", ["stderr", "folder"])
def test_a_process_leaves_whatever_it_cannot_tell(engine: Path, tmp_path: Path, gone: str) -> None:
    (engine / "engine.py").write_text(
        textwrap.dedent(f"""
        import json, os, shutil
        import torch, flashinfer
        flashinfer.rmsnorm(torch.Tensor([64, 4096]), None)
        if {gone!r} == "stderr": os.close(2)
        else: shutil.rmtree(json.loads(os.environ["NCUFLOW_ANNOTATE"])["folder"])
        try: os._exit(3)
        finally: os.kill(os.getpid(), 9)
        """)
    )
    assert annotated(engine, "--workload", str(tmp_path / "called")).code == 3


def test_what_was_forgotten_is_counted_when_it_is_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(annotate, "MOST_SHAPES", 4)
    process, called = annotate.Annotations(None, False), (3, 2, 1, 1, 1, 0, 100)
    shapes = [annotate.Shape(str(n), "rmsnorm", {}) for n in range(5)]
    shapes += [annotate.Shape("0", "rmsnorm", {}), shapes[2]]  # of another function's memory
    for shape, n in zip(shapes, called, strict=True):
        for _ in range(n):
            process.count(shape)
    counts = {name: one.count for name, one in process.shapes.items()}
    assert counts == {"0": 3, "1": 2, "4": 1, "2": 100} and process.left_out == 2


def test_what_is_no_point_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = '[["rmsnorm", {"rows": 8}, 3], ["rmsnorm", {"rows": 0}, 5], ["decode", {"cores": "none"}, 2]]'
    (tmp_path / "1.json").write_text(rows)
    (row,) = annotate.workload(tmp_path)["rmsnorm"]
    assert row["count"] == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "7 calls are not in the workload: rmsnorm: " in line and "(5); decode: " in line


def test_a_workload_of_another_run_is_not_taken_for_this_one(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "rmsnorm.json").write_text("mine")
    done = annotated(engine, "--workload", str(tmp_path))
    assert done.code == 2 and "rmsnorm.json is of another run" in done.told
    assert "run" not in done.said and (tmp_path / "rmsnorm.json").read_text() == "mine"


def _hears() -> None:
    """SIGHUP as in a terminal: tests that run under nohup leave it ignored to what they begin."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("sign", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_sent_on_and_the_workload_is_there(
    engine: Path, tmp_path: Path, sign: str
) -> None:
    """Once: an engine that is told to end a second time ends at once. It takes its time."""
    (engine / "engine.py").write_text(
        textwrap.dedent(f"""
        import os, signal
        import torch, flashinfer
        def call(): flashinfer.rmsnorm(torch.Tensor([64, 4096]), None)
        call()
        told = []
        signal.signal(signal.{sign}, lambda *_: told.append(1))
        os.kill(os.getppid(), signal.{sign})
        while not told: pass
        assert not signal.sigtimedwait([signal.SIGUSR1], 0.2) and told == [1]
        call()
        raise SystemExit(5)
        """)
    )
    command = [sys.executable, "-m", "ncuflow", "annotate", "--workload", str(tmp_path / "called")]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{engine}:{ROOT}"}
    done = subprocess.run(
        [*command, "--", sys.executable, "engine.py"], preexec_fn=_hears,
        cwd=engine, env=env, capture_output=True, text=True, timeout=60, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    (row,) = read_json(tmp_path / "called" / "rmsnorm.json")
    assert row["count"] == 2


def test_a_terminals_interrupt_is_not_sent_again() -> None:
    """The group of a terminal has it from there: here the command has none, and ends as it likes."""
    command = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.sigtimedwait([signal.SIGINT], 0.2); exit(6)"
    program = (
        "import sys; from ncuflow import process; process._in_foreground = lambda: True;"
        f"exit(process.run_in_place([sys.executable, '-c', {command!r}], {{}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 6, done.stderr


def test_an_engine_finds_nothing_of_ncuflows_folder(tmp_path: Path) -> None:
    """It has ncuflow where its Python has none, and neither tests nor scripts."""
    annotate.environment(tmp_path, None, False)
    program = (
        "import sys; before = [*sys.path]; __file__ = sys.argv[1]; exec(open(__file__).read())\n"
        "import ncuflow; assert sys.path == before; print(ncuflow.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "sitecustomize.py")],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == f"{ROOT / 'ncuflow/__init__.py'}\n" and not done.stderr


def test_no_command_is_one_line(engine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ncuflow", "step", "annotate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "no command given after --" in done.stderr


def test_the_calls_are_those_of_flashinfer() -> None:
    """Each declared call is where it is said to be, and its plan() has the arguments that are read."""
    package = flashinfer_package()
    declared = [call for target in known().values() for call in target.workload.calls]
    for call in some(call for call in declared if not call.module.startswith("torch")):
        file = package.joinpath(*call.module.split(".")[1:])
        source = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()
        owner, _, method = call.name.rpartition(".")
        if owner:
            source = source.split(f"class {owner}")[1]
        wanted = [method, call.plan] if call.plan else [method]
        assert [name for name in wanted if f"def {name}(" not in source] == [], call


def test_every_kernel_of_a_step_has_a_call_that_is_wrapped() -> None:
    parts = [t for t in known().values() if t.part(t.parameters) is not None]
    unstated = {t.name for t in some(parts) if not t.workload.calls}
    assert unstated <= {"pod", "cascade"}


def test_points_of_calls_are_points_of_their_targets() -> None:
    class T:
        def __init__(self, *shape: int, values: Any = (), of: str = "torch.bfloat16") -> None:
            self.shape, self.dtype, self.values = shape, of, list(values)

        def __getitem__(self, _: int) -> T:
            return T(*self.shape[1:])

        def numel(self) -> int:
            return math.prod(self.shape)

        def tolist(self) -> list[int]:
            return self.values

    found = {}
    eight = "torch.float8_e4m3fn"
    arguments = {
        "append_paged_kv_cache": {"append_key": T(64, 8, 128), "kv_indptr": T(33), "paged_kv_cache": T(9, 2, 16, 8, 128)},
        "apply_rope_with_cos_sin_cache_inplace": {"query": T(64, 4096), "key": T(64, 1024), "head_size": 128},
        "apply_rope_pos_ids": {"q": T(64, 32, 128), "k": T(64, 8, 128), "interleave": True},
        "silu_and_mul": {"input": T(64, 28672)},
        "top_p_sampling_from_probs": {"probs": T(64, 128256), "top_p": 0.9},
        "top_k_top_p_sampling_from_probs": {
            "probs": T(64, 128256), "top_k": 40, "top_p": 0.9, "filter_apply_order": "joint",
        },
        "merge_state": {"v_a": T(64, 32, 128)},
        "merge_states": {"v": T(64, 4, 32, 128)},
        "linear": {"input": T(2, 32, 4096), "weight": T(6144, 4096)},
        "mm_bf16": {"a": T(64, 4096), "b": T(4096, 6144), "backend": "cudnn"},
        "cutlass_fused_moe": {
            "input": T(64, 4096), "token_selected_experts": T(64, 2), "fc1_expert_weights": T(8, 28672, 4096), "ep_size": 1,
            "activation_type": 3,
        },
        "mono_moe": {
            "activations_in": T(4, 2048), "router_logits": T(4, 256), "expert_weights_up": T(256, 1024, 2048, of=eight),
            "top_k": 8,
        },
        "trtllm_fp8_block_scale_routed_moe": {
            "hidden_states": T(16, 7168), "topk_ids": (T(16, 8), T(16, 8)), "gemm1_weights": T(256, 4096, 7168, of=eight),
            "num_experts": 256, "local_num_experts": 256, "top_k": 8, "activation_type": 3,
        },
        "BatchMLAPagedAttentionWrapper.run": {
            "self": SimpleNamespace(_backend="fa3"), "qo_indptr": T(3, values=[0, 1, 2]), "kv_len_arr": T(2, values=[512, 512]),
            "num_heads": 16, "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": 64, "q_data_type": "torch.bfloat16",
        },
    }  # fmt: skip
    for target in known().values():
        for call in target.workload.calls:
            if call.name in arguments:
                made = {k: v for k, v in call.params(arguments[call.name]).items() if v != OPEN}
                found[call.name] = target.point_id(target.completed(made)).partition("/")[2]
    assert found == {
        "append_paged_kv_cache": "kv_B32_L2_K8_D128_P16_bf16",
        "apply_rope_with_cos_sin_cache_inplace": "cos_sin_cache_inplace_T64_H32_K8_D128_bf16_neox",
        "apply_rope_pos_ids": "rope_pos_ids_T64_H32_K8_D128_bf16_interleaved",
        "silu_and_mul": "silu_T64_D14336_bf16",
        "top_p_sampling_from_probs": "top_p_B64_V128256_t90_s3",
        "top_k_top_p_sampling_from_probs": "top_k_top_p_B64_V128256_k40_t90_s3",
        "merge_state": "merge_state_S64_H32_D128_bf16",
        "merge_states": "merge_states_n4_S64_H32_D128_bf16",
        "linear": "mm_cublaslt_M64_N6144_K4096_bf16",
        "mm_bf16": "mm_cudnn_M64_N6144_K4096_bf16",
        "cutlass_fused_moe": "cutlass_T64_E8k2_H4096_I14336_bf16_even",
        "mono_moe": "mono_T4_E256k8_H2048_I512_fp8_even",
        "trtllm_fp8_block_scale_routed_moe": "trtllm_gen_T16_E256k8_H7168_I2048_fp8_even",
        "BatchMLAPagedAttentionWrapper.run": "B2_L512_H16_P64_bf16_fa3",
    }


@pytest.mark.parametrize(
    ("said", "why"), [({"ep_size": 4}, "several GPUs"), ({"activation_type": 6}, "SwiGLU")]
)
def test_experts_that_no_target_measures_are_refused(said: dict[str, int], why: str) -> None:
    tensor = SimpleNamespace(shape=(64, 4096), dtype="torch.bfloat16")
    weights = SimpleNamespace(shape=(8, 28672, 4096), dtype="torch.bfloat16")
    given = {"input": tensor, "token_selected_experts": tensor, "fc1_expert_weights": weights}
    (call,) = [one for one in load("moe").workload.calls if one.name == "cutlass_fused_moe"]
    with pytest.raises(RefusedError, match=why):
        call.params(given | said)


def test_a_draw_by_top_k_first_is_two_calls() -> None:
    calls = {one.name: one for one in load("sampling").workload.calls}
    call = calls["top_k_top_p_sampling_from_probs"]
    assert "filter_apply_order" in call.tells
    with pytest.raises(RefusedError, match="two calls"):
        call.params({"probs": SimpleNamespace(shape=(64, 128256)), "top_k": 40, "top_p": 0.9})


PLANNED = {"num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128, "pos_encoding_mode": "NONE"}


def test_what_plan_leaves_open_is_read_as_flashinfer_reads_it() -> None:
    said = {"q_data_type": None, "kv_data_type": None, "data_type": "bfloat16"}
    found = attention.called(PLANNED | said | {"logits_soft_cap": 30.0}, "head_dim")
    assert (found["dtype"], found["window"], str(found["soft_cap"])) == ("bf16", 0, "30")
    assert attention.called(PLANNED | {"window_left": 127}, "head_dim")["window"] == 127
    with pytest.raises(RefusedError, match="own token"):
        attention.called(PLANNED | {"window_left": 0}, "head_dim")
    with pytest.raises(RefusedError, match="a cache of bf16 under queries of f16"):
        attention.called(PLANNED | said | {"q_data_type": "float16"}, "head_dim")
    with pytest.raises(RefusedError, match="no whole number"):
        attention.called(PLANNED | {"logits_soft_cap": 30.5}, "head_dim")
