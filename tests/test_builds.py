"""Builds: which modules are compiled, what a failure says."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import pytest
from fake_device import made, points_file

from ncuflow.cli import dispatch
from ncuflow.gpu import nvml
from ncuflow.io import BadInput
from ncuflow.run import builds, gpu
from ncuflow.run.builds import WaitForBuild
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import load
from ncuflow.target.source import Build


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
        ("No such file: '/root/a/b.so'", "RuntimeError: No such file: 'b.so'"),
        ("cannot import name 'a' from 'b' (/root/a/b.py)", "RuntimeError: cannot import name 'a' from 'b' (b.py)"),
        ("LIBRARIES=/root/a:/root/b,/root/c", "RuntimeError: LIBRARIES=a:b,c"),
        ("see https://root.org/a/b", "RuntimeError: see https://root.org/a/b"),
        ("9 / 2 and/or x '/'", "RuntimeError: 9 / 2 and/or x '/'"),
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


def quietly(specs: Any, jobs: int = 2) -> list[Any]:
    return builds.build(specs, jobs, lambda line: None)


def test_modules_are_built_once_each_and_a_failure_is_of_one_module() -> None:
    specs = [Spec("norm"), Spec("rope", "ninja: failed"), Spec("page", is_aot=True)]
    target: Any = SimpleNamespace(modules=lambda p: [specs[p["n"] % 3]])
    found = builds.modules(target, made(6))
    assert len(found) == 3
    report = {entry["name"]: entry for entry in quietly(found)}
    statuses = {name: entry["status"] for name, entry in report.items()}
    assert statuses == {"norm": "built", "rope": "error", "page": "prebuilt"}
    assert report["rope"]["reason"] == "RuntimeError: ninja: failed"
    assert [spec.builds for spec in specs] == [1, 1, 0]


class NinjaSpec:
    """A module as FlashInfer compiles one: rules with absolute outputs, run in the module's own folder when it is
    loaded. Its compiler notes each file that it compiles, and its linker what stood compiled by then."""

    def __init__(self, folder: Path, name: str, command: str = "cp $in $out", files: int = 2):
        self.name, self.folder, self.command = name, folder / name, command
        self.sources = [folder / f"{name}{n}.cu" for n in range(files)]
        self.ninja_path = self.folder / "build.ninja"
        self.jit_library_path = self.folder / f"{name}.so"
        self.lock_path = folder / "tmp" / f"{name}.lock"
        self.source = folder / f"{name}.cu"
        self.source.write_text(name)

    def write_ninja(self) -> None:
        self.folder.mkdir(exist_ok=True)
        log = self.folder.parent / "compiled"
        rule = f"rule cc\n  command = echo {self.name} >> {log} && {self.command}"
        rule += " && echo $out: $in > $out.d\n  depfile = $out.d\n  deps = gcc\n"
        rule += f"rule link\n  command = cp {log} $out.before && cp $in $out\n"
        library, made = self.jit_library_path, f"{self.folder}/{self.name}.o"
        built = f"build {made}: cc {self.source}\nbuild {library}: link {made}\ndefault {library}\n"
        self.ninja_path.write_text(rule + built)

    def build(self, verbose: bool, need_lock: bool) -> None:
        with self.locked() if need_lock else nullcontext():
            self.run_ninja()

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.lock_path.parent.mkdir(exist_ok=True)
        with self.lock_path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def run_ninja(self) -> None:
        self.write_ninja()
        command = ["ninja", "-C", str(self.folder), "-f", str(self.ninja_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Ninja build failed.\n{done.stdout}")


def compiled(folder: Path) -> list[str]:
    """The modules that were compiled, in order."""
    return (folder / "compiled").read_text().split()


needs_ninja = pytest.mark.skipif(not shutil.which("ninja"), reason="needs ninja")


@needs_ninja
def test_modules_of_one_graph_are_up_to_date_where_flashinfer_loads_them(tmp_path: Path) -> None:
    done = NinjaSpec(tmp_path, "norm")  # which another build has just finished
    done.folder.mkdir()
    done.jit_library_path.touch()
    builds.together([done], 1, lambda line: None)
    assert not (tmp_path / "compiled").exists()
    shutil.rmtree(done.folder)
    specs = [NinjaSpec(tmp_path, name) for name in ("norm", "rope", "page")]
    said: list[str] = []
    found = builds.build(specs, 2, said.append)
    assert [module["status"] for module in found] == ["built"] * 3
    assert sorted(compiled(tmp_path)) == ["norm", "page", "rope"]
    assert any(line.startswith("[12/12] ") for line in said)  # one graph counts them all
    # a second build, and one of theirs, compile nothing
    builds.build(specs, 2, said.append)
    specs[0].build(False, False)
    assert len(compiled(tmp_path)) == 3
    specs[0].source.write_text("edited")
    builds.build(specs, 2, said.append)
    assert compiled(tmp_path)[3:] == ["norm"]
    assert not list(tmp_path.glob("ncuflow*"))


@needs_ninja
def test_a_build_beside_another_waits_for_the_modules_that_it_needs_alone(tmp_path: Path) -> None:
    """The first one compiles both, `rope` until the second has ended, which needs `norm`."""
    ended = tmp_path / "ended"
    slow = f"until [ -e {ended} ]; do :; done; cp $in $out"
    specs = [NinjaSpec(tmp_path, name) for name in ("norm", "page")]
    specs.append(NinjaSpec(tmp_path, "rope", slow))
    taken = Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(builds.build, specs, 2, lambda line: None, taken.set)
        taken.wait()
        try:
            second = pool.submit(quietly, [NinjaSpec(tmp_path, "norm")]).result(timeout=60)
            assert not first.done()
        finally:
            ended.touch()
    assert [module["status"] for module in (*second, *first.result())] == ["built"] * 4
    assert sorted(compiled(tmp_path)) == ["norm", "page", "rope"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds are for an H200, and their locks lie in the test's folder."""
    monkeypatch.setenv(builds.ARCH_LIST, "9.0a")
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, NinjaSpec]:
    """The modules of two points of rope, by their tokens."""
    found = {512: NinjaSpec(tmp_path, "slow"), 1024: NinjaSpec(tmp_path, "quick")}
    for spec in found.values():
        spec.folder.mkdir()
    generate = Build(generate=lambda p: [found[p["tokens"]]])
    monkeypatch.setattr(load("rope"), "build", generate)
    return found


def test_a_program_takes_its_points_as_their_modules_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: dict[int, NinjaSpec]
) -> None:
    """It begins when the build has looked which modules there are and one of its own stands, and pauses for others."""
    slow, quick = sweep.points(load("rope"), [{"tokens": list(of)}])
    path, order = points_file(tmp_path, [slow.as_dict(), quick.as_dict()]), []
    looks, compiles, begun, paused = (Event() for _ in range(4))

    def wanted(*given: Any) -> list[Any]:
        looks.set()
        compiles.wait()
        return list(of.values())

    def build(specs: Any, jobs: int, log: Any, taken: Any) -> list[Any]:
        with ExitStack() as first, ExitStack() as second:
            for spec, own in zip(specs, (second, first), strict=True):
                assert builds.locked(Path(spec.lock_path), own)
            specs[1].jit_library_path.touch()
            order.append("quick stands")
            taken()
            begun.wait(60)
            first.close()
            assert paused.wait(60)
            order.append("slow stands")
            specs[0].jit_library_path.touch()
        return []

    def pause(until: Any) -> None:
        order.append("it pauses")
        paused.set()
        until()

    def profiled() -> None:
        awaited = WaitForBuild(load("rope"), [slow, quick])
        awaited.begin()
        order.append("it begins")
        begun.set()
        order.append(awaited.first([slow, quick], pause))
        order.append(awaited.first([slow], pause))

    monkeypatch.setattr(builds, "_wanted", wanted)
    monkeypatch.setattr(builds, "build", build)
    words = ["build", "--points", str(path), "--out", str(tmp_path / "build.json")]
    with ThreadPoolExecutor(2) as pool:
        building = pool.submit(dispatch, words)
        looks.wait()
        profiling = pool.submit(profiled)
        assert not compiles.is_set() and not order
        compiles.set()
        profiling.result(60)
        assert building.result() == 0
    assert order == ["quick stands", "it begins", quick, "it pauses", "slow stands", slow]


def test_of_several_points_the_first_to_stand_comes_first_and_what_is_timed_waits_for_all(
    of: dict[int, NinjaSpec],
) -> None:
    slow, quick = points = sweep.points(load("rope"), [{"tokens": list(of)}])
    waits = Event()

    def pause(until: Any) -> None:
        waits.set()
        until()

    with ExitStack() as one, ExitStack() as other, ThreadPoolExecutor(2) as pool:
        assert builds.locked(Path(of[512].lock_path), one)
        assert builds.locked(Path(of[1024].lock_path), other)
        awaited = WaitForBuild(load("rope"), points)
        timed = WaitForBuild(load("rope"), points, together=True)
        beginning, all_begun = pool.submit(awaited.begin), pool.submit(timed.begin)
        of[1024].jit_library_path.touch()
        beginning.result(60)
        assert awaited.first(points, pause) == quick and not waits.is_set()
        assert not all_begun.done()
        last = pool.submit(awaited.first, [slow], pause)
        assert waits.wait(60) and not last.done()
        of[512].jit_library_path.touch()
        assert last.result(60) == slow
        all_begun.result(60)


@pytest.mark.parametrize("compiling", [builds.build, builds.together])
def test_what_is_traced_waits_until_nobody_compiles_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiling: Any
) -> None:
    """Its own modules stand; what compiles belongs to others, to two at a time: a sweep's build, and the graph of a trial."""
    monkeypatch.setattr(load("rope"), "build", Build(generate=lambda p: []))
    monkeypatch.setattr(builds.shutil, "which", lambda name: name)
    points = sweep.points(load("rope"), [{}])
    begun, ends = Barrier(3), Event()

    def compiles(specs: Any, *more: Any) -> None:
        begun.wait(60)
        assert ends.wait(60)
        specs[0].jit_library_path.touch()

    monkeypatch.setattr(builds, "_compile", compiles)
    monkeypatch.setattr(builds, "_build_one", lambda spec, log: {})
    specs = [NinjaSpec(tmp_path, name) for name in ("norm", "page")]
    for spec in specs:
        spec.folder.mkdir()
    with ThreadPoolExecutor(3) as pool:
        beside = [pool.submit(compiling, [spec], 1, lambda line: None) for spec in specs]
        begun.wait(60)
        WaitForBuild(load("rope"), points).begin()
        tracing = pool.submit(WaitForBuild(load("rope"), points, after_builds=True).begin)
        with pytest.raises(TimeoutError):
            tracing.result(0.5)
        ends.set()
        tracing.result(60)
        for build in beside:
            build.result(60)


@needs_ninja
def test_compilers_of_a_killed_build_are_waited_for_too(tmp_path: Path) -> None:
    """They have its lock: what they compile is compiled to its end."""
    held = tmp_path / "held"
    quietly([NinjaSpec(tmp_path, "norm", f"readlink /proc/self/fd/* > {held}; cp $in $out")])
    assert str(builds.compiles()) in held.read_text().splitlines()


@needs_ninja
def test_two_ninjas_beside_each_other_note_in_folders_of_their_own(tmp_path: Path) -> None:
    with ExitStack() as one, ExitStack() as other:
        places = [builds._notes(tmp_path, held) for held in (one, other)]
    assert places == [tmp_path, tmp_path / ".ncuflow-1"]
    with ExitStack() as later:
        assert builds._notes(tmp_path, later) == tmp_path


@needs_ninja
def test_what_the_gpu_can_begin_with_comes_first_and_then_what_compiles_longest(
    tmp_path: Path,
) -> None:
    files = {"decode": 3, "prefill": 10, "norm": 2, "mla_sm90": 3, "prefill_sm90": 10, "rope": 2}
    files |= {"pod": 18, "sampling": 3}
    specs = [NinjaSpec(tmp_path, name, files=count) for name, count in files.items()]
    found, order = quietly(specs, 1), compiled(tmp_path)
    small = ["decode", "sampling", "norm", "rope"]
    assert order == [*small, "prefill_sm90", "mla_sm90", "pod", "prefill"]
    before = [(tmp_path / name / f"{name}.so.before").read_text().split() for name in small]
    assert max(before, key=len) == small  # they stand before another is begun
    assert [module["name"] for module in found] == list(files)


@needs_ninja
def test_a_module_that_does_not_compile_does_not_keep_the_others(tmp_path: Path) -> None:
    failing = NinjaSpec(tmp_path, "norm", "echo x.cuh: error: no boost; false")
    specs = [failing, *(NinjaSpec(tmp_path, name) for name in ("rope", "page"))]
    found = {module["name"]: module for module in quietly(specs, 1)}
    assert [module["status"] for module in found.values()] == ["error", "built", "built"]
    assert "x.cuh: error: no boost" in found["norm"]["reason"]


def built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **generate: Any
) -> tuple[int, list[Any]]:
    """How a build of a point of each of these targets ends, and its modules; as the targets' code names them."""
    paths = []
    for name, modules in generate.items():
        monkeypatch.setattr(load(name), "build", Build(generate=modules))
        (folder / name).mkdir()
        (point,) = sweep.points(load(name), [{}])
        paths.append(str(points_file(folder / name, [point.as_dict()])))
    out = folder / "build.json"
    status = dispatch(["build", "--points", *paths, "--out", str(out), *more])
    written = json.loads(out.read_text("utf-8"))
    assert written["jobs"] == 3 or not more
    return status, written["modules"]


def test_the_modules_of_all_targets_are_one_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what does not name its modules, or does not compile, does not keep the others, and is told."""
    names = {"rmsnorm": lambda p: [Spec("norm")], "rope": lambda p: [Spec("rope", "no nvcc")]}
    names["decode"] = lambda p: 1 // 0
    status, modules = built(tmp_path, monkeypatch, "--jobs", "3", **names)
    assert status == 3
    assert [(m["name"], m["status"]) for m in modules] == [("norm", "built"), ("rope", "error")]
    said = capsys.readouterr().err
    assert "rope: RuntimeError: no nvcc" in said and "not built: ZeroDivisionError" in said


@pytest.mark.parametrize("text", ["[]", "{}", '[{"id": "x"}]', "[3]"])
def test_a_file_that_is_no_plan_is_named(tmp_path: Path, text: str) -> None:
    path, out = tmp_path / "points.json", tmp_path / "build.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"points\.json: not a list of points"):
        dispatch(["build", "--points", str(path), "--out", str(out)])
    assert not out.exists()


PREFILL = load("prefill")
BOTH = sweep.points(PREFILL, [{"backend": ["fa2", "fa3"]}])


def test_the_arch_list_stands_in_for_the_gpus() -> None:
    told = {builds.ARCH_LIST: "8.0 9.0a 12.0f"}
    assert builds.capabilities(told, lambda: pytest.fail("asked")) == ["8.0", "9.0", "12.0"]
    assert builds.capabilities({}, lambda: ["8.6"]) == ["8.6"]


@pytest.mark.parametrize("capabilities", [["8.0"], ["9.0"], ["8.0", "9.0"], []])
def test_what_none_of_the_gpus_can_run_is_not_built(capabilities: list[str]) -> None:
    said: list[str] = []
    kept = builds.buildable(PREFILL, BOTH, capabilities, said.append)
    without = capabilities == ["8.0"]
    assert [point.params["backend"] for point in kept] == ["fa2"] + ["fa3"] * (not without)
    assert len(said) == without
    assert all(line.endswith("fa3 needs compute capability 9.0, this GPU has 8.0") for line in said)


def test_with_an_arch_list_a_build_is_not_for_the_gpu_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(builds.ARCH_LIST, "8.0")
    monkeypatch.setattr(gpu, "Gpu", lambda: pytest.fail("asked"))
    monkeypatch.setattr(nvml, "capabilities", lambda: ["9.0"])
    monkeypatch.setattr(PREFILL, "build", Build(generate=lambda p: [Spec(p["backend"])]))
    path, out = points_file(tmp_path, [p.as_dict() for p in BOTH]), tmp_path / "build.json"
    files = ["--points", str(path), "--out", str(out)]
    assert dispatch(["build", *files]) == 0
    assert [module["name"] for module in json.loads(out.read_text("utf-8"))["modules"]] == ["fa2"]
