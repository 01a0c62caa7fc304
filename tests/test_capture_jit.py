"""JIT measurements: what is read from a build, how repeats and failures are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import make

from ncuflow.cli import dispatch
from ncuflow.io import UsageError
from ncuflow.process import CaptureError, ProcessExit
from ncuflow.run import jit
from ncuflow.target.contract import jit_modules, known
from ncuflow.target.source import Build

NINJA = """ninja_required_version = 1.3
cuda_home = /usr/local/cuda
common_cflags = -I/home/alice/lib/flashinfer/data/cccl/cub $
    -isystem /home/alice/include/python3.12
cuda_cflags = $common_cflags $
    -gencode=arch=compute_90a,code=sm_90a $
    -O3
ldflags = -shared -L/opt/stub
rule link
  command = $cxx $in $ldflags -o $out

build /w/norm/a.cuda.o: cuda_compile /w/a.cu
build /w/norm/b.cuda.o: cuda_compile /w/b.cu
build /w/norm/norm.so: link /w/norm/a.cuda.o /w/norm/b.cuda.o
"""


def test_ninja_file_gives_steps_and_flags_without_the_machine() -> None:
    found = jit.read_ninja(NINJA)
    assert (found["commands"], found["steps"]) == (3, {"cuda_compile": 2, "link": 1})
    assert found["flags"]["cuda_cflags"][-2:] == ["-gencode=arch=compute_90a,code=sm_90a", "-O3"]
    places = ["-I<flashinfer>/data/cccl/cub", "-isystem", "<…>/python3.12"]
    assert found["flags"]["common_cflags"] == places
    assert found["flags"]["ldflags"] == ["-shared", "-L<…>/stub"]
    assert "alice" not in json.dumps(found)


def test_medians_keep_their_samples_and_missing_stays_missing() -> None:
    times = ((0.1, 3.0), (0.3, 1.0), (0.2, 2.0))
    disks = [{"generation_s": g, "build_and_load_s": b, "memory_hit_s": None} for g, b in times]
    disks[0]["memory_hit_refused"] = "TypeError: x"
    found = jit.summarise([*disks, {"error": "status 1: boom"}])
    assert (found["n"], found["build_and_load_s"], found["generation_s"]) == (3, 2.0, 0.2)
    assert found["build_and_load_s_samples"] == [3.0, 1.0, 2.0]
    assert found["memory_hit_s"] is None and found["memory_hit_refused"] == "TypeError: x"
    assert found["errors"] == ["status 1: boom"]


class Spec:
    """A JitSpec as FlashInfer 0.5 to 0.7 have it, with a prebuilt library or without."""

    def __init__(self, folder: Path, prebuilt: bool) -> None:
        self.name = "norm"
        self.sources = [Path("/x/norm.cu")]
        self.ninja_path = folder / "build.ninja"
        self.jit_library_path = folder / "norm.so"
        self.aot_path = folder / "aot.so"
        self.calls: list[str] = []
        if prebuilt:
            self.aot_path.touch()

    def write_ninja(self) -> None:
        self.calls.append("write_ninja")
        self.ninja_path.write_text(NINJA)

    def build(self, verbose: bool) -> None:
        self.calls.append("build")
        self.jit_library_path.write_bytes(bytes(10))

    def load(self, path: Path) -> None:
        self.calls.append("load")

    def build_and_load(self) -> None:
        self.calls.append("build_and_load")


def probed(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    target, module = jit_modules()["rmsnorm"]
    with monkeypatch.context() as patch:
        patch.setattr(target, "build", Build(generate=lambda p: [spec]))
        return jit.probe_cold(target, module, 1)


def test_cold_build_is_timed_step_by_step_and_a_prebuilt_module_is_no_jit_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(tmp_path, prebuilt=False)
    found = probed(spec, monkeypatch)
    assert spec.calls == ["write_ninja", "build", "load"]
    assert (found["aot"], found["library_bytes"], found["sources"]) == (False, 10, ["norm.cu"])
    assert min(found["generation_s"], found["build_s"], found["load_s"]) >= 0
    spec = Spec(tmp_path, prebuilt=True)
    found = probed(spec, monkeypatch)
    assert spec.calls == ["build_and_load"]
    assert found["aot"] is True and "build_s" not in found and "prebuilt" in found["note"]


def run_jit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, modules: str, answers: dict[str, Any]
) -> tuple[int, list[str], Any]:
    """`ncuflow jit` with every probe process answered from `answers` by step: how it ends, its steps, and what it says of
    each module."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HF_TOKEN", "hf_planted_token_value")
    seen, out = [], tmp_path / "jit.json"

    def fake(command, *, env, timeout, on_line):  # type: ignore[no-untyped-def]
        step, name = command[4], command[5]
        seen.append(step)
        assert "HF_TOKEN" not in env
        assert Path(env["FLASHINFER_WORKSPACE_BASE"]).name == name
        answer = answers.get(f"{step}:{name}", answers.get(step))
        on_line("ninja: noise")
        if answer is not None:
            on_line(jit.MARKER + json.dumps(answer))
        return ProcessExit(0 if answer else 1, False, 0.1)

    monkeypatch.setattr(jit, "run_child", fake)
    words = ["--out", str(out), "--disk-repeats", "2", "--modules", modules]
    status = dispatch(["jit", *words])
    return status, seen, json.loads(out.read_text())["modules"] if out.exists() else None


ANSWERS = {
    "cold": {"aot": False, "build_s": 10.0},
    "disk": {"build_and_load_s": 0.01},
    "first": {"first_launch_s": 1e-3},
}


def test_every_step_is_a_process_of_its_own_and_a_module_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_jit(monkeypatch, tmp_path, "rope", {}) == (1, ["cold"], None)  # all fail
    status, steps, modules = run_jit(monkeypatch, tmp_path, "decode", ANSWERS)
    assert (status, steps) == (0, ["cold", "disk", "disk", "first"])
    assert (modules["decode"]["cold"]["build_s"], modules["decode"]["disk"]["n"]) == (10.0, 2)
    answers = {**ANSWERS, "cold:rope": None}
    status, _, modules = run_jit(monkeypatch, tmp_path, "rope,decode", answers)
    assert status == 3 and modules["rope"]["cold"] == {"error": "status 1: ninja: noise"}
    assert "disk" not in modules["rope"] and "disk" in modules["decode"]


STUB = """
import pathlib, sys
words = sys.argv[1:]
pathlib.Path(words[words.index("--out") + 1]).write_text(" ".join(words))
sys.exit(int(pathlib.Path("plan/jit-status").read_text()))
"""


def test_the_rule_compiles_what_the_setting_names_and_lets_named_failures_stand(
    tmp_path: Path,
) -> None:
    machine = make(tmp_path)
    machine.configure(lambda c: c.update(jit=["rope", "merge"]))
    (tmp_path / "ncuflow/run/jit.py").write_text(STUB)
    status, out = tmp_path / "plan/jit-status", "outputs/fake/captures/jit/jit_analysis.json"
    status.write_text("1")
    assert machine.run(out).returncode != 0
    assert not (tmp_path / out).exists()
    status.write_text("3")
    done = machine.run(out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / out).read_text().startswith("jit --ignore-aot --modules rope,merge ")


def test_a_used_workspace_is_no_cold_build(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(CaptureError, match="not cold"):
        jit.fresh(tmp_path)


def test_unknown_modules_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown module"):
        jit.module_names("decode,nope")
    assert jit.module_names("decode, rope") == ["decode", "rope"]


def test_every_module_belongs_to_one_target_and_is_launched_small() -> None:
    declared = [module.name for target in known().values() for module in target.build.jit]
    assert sorted(declared) == sorted(jit_modules())  # no two of one name
    for target, module in jit_modules().values():
        chosen = jit.params(target, module)
        assert chosen.keys() == target.parameters.keys()
        assert target.work(chosen).bytes < target.work(target.parameters).bytes


def test_environment_is_shown_without_paths() -> None:
    env = {"CUDA_HOME": "/home/alice/cuda", "MAX_JOBS": "4", "HOME": "/home/alice", "PATH": "/bin"}
    assert jit.shown_environment(env) == {"CUDA_HOME": "<…>/cuda", "MAX_JOBS": "4"}
