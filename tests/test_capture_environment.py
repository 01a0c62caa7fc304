"""Preflight findings, and the tier."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fake_gpus
import pytest
from conftest import ROOT, run_python

from ncuflow import cli
from ncuflow.gpu import nvml
from ncuflow.run import preflight, profiler


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What is known of an H200 of which NVML tells otherwise."""

    def known(**told: Any) -> Any:
        fake_gpus.put(monkeypatch, tmp_path, fake_gpus.H200 | told)
        return nvml.first().facts()

    return known


def test_what_the_driver_tells_of_a_gpu_is_three_findings_and_no_gpu_is_one(facts: Any) -> None:
    (found,) = preflight.gpu_findings(None)
    assert found["status"] == "missing" and "recorded evidence" in found["remedy"]
    gpu, driver, clocks = preflight.gpu_findings(facts())
    assert gpu["found"] == "NVIDIA H200, compute capability 9.0, 140 GiB"
    assert driver["found"] == fake_gpus.DRIVER
    said = "SM 1980 of 1980 MHz, memory 3201 MHz"
    assert (clocks["status"], clocks["found"]) == ("ok", said)
    # Throttling is named, and clocks that are not told are not zero.
    found = preflight.clock_finding(facts(CurrentClocksThrottleReasons=0x44, ClockInfoMEM=None))
    assert found["status"] == "warn" and "memory ? MHz" in found["found"]
    assert "sw power cap, hw thermal slowdown" in found["found"]
    found = preflight.clock_finding(facts(ClockInfoSM=None))
    assert (found["status"], found["found"]) == ("warn", "the driver does not tell")


ADMIN_ONLY = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n"
OPEN = "RmProfilingAdminOnly: 0\n"
FULL, BARE = "CapEff:\t000001ffffffffff\n", "CapEff:\t00000000a80425fb\n"


@pytest.mark.parametrize(
    ("params", "status", "uid", "refused"),
    [
        (OPEN, BARE, 1000, False),
        (ADMIN_ONLY, FULL, 0, False),
        (ADMIN_ONLY, BARE, 0, True),  # root in a container without CAP_SYS_ADMIN
        (ADMIN_ONLY, BARE, 1000, True),
        (ADMIN_ONLY, None, 1000, True),
        (None, FULL, 0, None),
        ("no such key", FULL, 0, None),
    ],
)
def test_counter_permission(
    params: str | None, status: str | None, uid: int, refused: bool | None
) -> None:
    assert profiler.counters_refused(params, status, uid) is refused


def test_refused_counters_name_both_remedies() -> None:
    found = preflight.counter_finding(True)
    assert found["status"] == "fail"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found["remedy"]
    assert "--cap-add=SYS_ADMIN" in found["remedy"]


def test_dcgm_and_other_processes() -> None:
    assert preflight.dcgm_finding("bash\nnv-hostengine\n")["remedy"].count("dcgmi profile --pause")
    assert preflight.dcgm_finding("bash\n")["status"] == "ok"
    assert preflight.process_finding(2)["found"] == "2 compute processes"
    assert preflight.process_finding(0)["status"] == "ok"
    assert preflight.process_finding(None)["found"] == "the driver does not tell"


def test_stale_ncu_lock_of_another_user(tmp_path: Path) -> None:
    lock = tmp_path / "nsight-compute-lock"
    assert preflight.lock_finding(lock, os.getuid())["status"] == "ok"
    lock.touch()
    assert preflight.lock_finding(lock, os.getuid())["status"] == "ok"
    found = preflight.lock_finding(lock, os.getuid() + 1)
    assert found["status"] == "warn" and str(tmp_path) not in json.dumps(found)


def test_jit_cache_tool_chain_and_disk(tmp_path: Path) -> None:
    library = tmp_path / "0.6.18/90a/cached_ops/norm/norm.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(bytes(2 << 20))
    assert preflight.cache_finding(tmp_path, "~/.cache")["found"] == "~/.cache: 1 modules, 2 MiB"
    missing = preflight.installed("ninja", None)
    assert (missing["status"], missing["remedy"]) == ("missing", "pip install ninja")
    assert preflight.installed("g++", "found")["remedy"] is None
    assert preflight.disk_finding(int(1e9))["remedy"] == "reports and the JIT cache want 5 GB"


@pytest.mark.parametrize(
    ("gpus", "ncu", "packages", "refused", "tier"),
    [
        (None, True, True, False, "C"),
        ([], True, True, False, "C"),
        ([fake_gpus.H200], True, False, False, "C"),
        ([fake_gpus.H200], False, True, False, "B"),
        ([fake_gpus.H200], True, True, True, "B"),
        ([fake_gpus.H200], True, True, False, "A"),
    ],
)
def test_tier(  # type: ignore[no-untyped-def]
    gpus, ncu, packages, refused, tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ncu:
        (tmp_path / "ncu").touch(0o755)
    if gpus is None:
        fake_gpus.no_driver(monkeypatch, tmp_path)
    else:
        fake_gpus.put(monkeypatch, tmp_path, *gpus)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("NCUFLOW_NCU", raising=False)
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: packages or None)
    monkeypatch.setattr(profiler, "counters_refused", lambda *given: refused)
    gpu = nvml.first().facts()
    found, why = profiler.tier_reason(gpu)
    assert found == tier and why
    assert profiler.tier_reason(gpu, counters=False)[0] == ("C" if tier == "C" else "B")


def test_preflight_anywhere_names_no_machine(tmp_path: Path) -> None:
    out = tmp_path / "environment.json"
    secret = {**os.environ, "HF_TOKEN": "hf_planted_token_value", "HOME": "/home/alice"}
    command = [sys.executable, "-m", "ncuflow", "preflight", "--out", str(out), "--recorded"]
    subprocess.run(command, cwd=ROOT, env=secret, check=True)
    text = out.read_text()
    result = json.loads(text)
    assert result["tier"] == result["provenance"]["tier"] == "C"
    assert not [row for row in result["findings"] if row["status"] != "ok" and not row["remedy"]]
    assert "hf_planted" not in text and "/home/alice" not in text and str(ROOT) not in text
    checks = {row["check"] for row in result["findings"]}
    assert {"gpu", "ncu", "nsys", "jit cache", "disk"} <= checks


@pytest.mark.parametrize(
    ("base", "shown"),
    [
        (None, "~/.cache/flashinfer"),
        ("{home}/.cache/ncuflow", "~/.cache/ncuflow/.cache/flashinfer"),
        ("/scratch/alice", "$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer"),
    ],
)
def test_the_jit_cache_is_named_as_its_owner_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str | None, shown: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    if base:
        monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", base.format(home=tmp_path))
    assert preflight.cache_place()[1] == shown


def test_the_tier_needs_no_heavy_import() -> None:
    heavy = {"torch", "flashinfer", "numpy", "pyarrow", "pandas"}
    code = f"import sys, ncuflow.run.profiler as m; m.tier_reason(None); sys.exit(bool({heavy} & {{*sys.modules}}))"
    assert run_python(code) == (0, "")


TORCH = """
from types import SimpleNamespace
GPU, CUDA = True, "13.0"
def __getattr__(name):
    return SimpleNamespace(is_available=lambda: GPU) if name == "cuda" else SimpleNamespace(cuda=CUDA)
"""
ASK = preflight.ASK
SEES = """print('torch is {"gpu": true, "cuda": "13.0"}')"""


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU; the list has what was asked of it and of the measurement, in order."""
    asked: list[str] = fake_gpus.put(monkeypatch, tmp_path, fake_gpus.H200).ASKED

    def measure(device: None) -> dict[str, Any]:
        asked.append("measured")
        return {"copy_gbs": 1}

    monkeypatch.setattr(profiler, "tier_reason", lambda gpu, counters: ("A", "as it is"))
    monkeypatch.setattr(preflight, "package_version", lambda *names: "2.15.0")
    monkeypatch.setattr(preflight, "ASK", SEES)
    monkeypatch.setattr(preflight, "Driver", nullcontext)
    monkeypatch.setattr(preflight.ceilings, "measure", measure)
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return asked


def looked(folder: Path) -> dict[str, Any]:
    """The ceilings that a preflight leaves beside its findings."""
    words = ["--out", str(folder / "environment.json"), "--ceilings", str(folder / "ceilings.json")]
    with pytest.raises(SystemExit) as ended:
        cli.main(["preflight", *words])
    assert ended.value.code == 0 and (folder / "environment.json").exists()
    return json.loads((folder / "ceilings.json").read_text())


def test_the_gpu_is_asked_who_uses_it_before_it_is_measured(
    one_gpu: list[str], tmp_path: Path
) -> None:
    assert looked(tmp_path) == {"copy_gbs": 1}
    assert one_gpu.index("ComputeRunningProcesses") < one_gpu.index("measured")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa", "the one whose lock is held"


def found_of_torch(folder: Path) -> tuple[str, str]:
    """Status and words of the preflight's row about torch."""
    looked(folder)
    rows = json.loads((folder / "environment.json").read_text())["findings"]
    (row,) = [row for row in rows if row["check"] == "torch"]
    assert (row["remedy"] is None) == (row["status"] == "ok")
    return row["status"], row["found"]


def asks(monkeypatch: pytest.MonkeyPatch, folder: Path, modules: dict[str, str]) -> None:
    """Torch is asked, and is of these modules."""
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(preflight, "ASK", ASK)


@pytest.mark.parametrize(
    ("torch", "status", "words"),
    [
        ("", "ok", "2.15.0"),
        ("print('a line without an end', end='')", "ok", "2.15.0"),
        ("GPU = False", "fail", "2.15.0, sees no GPU: built for CUDA 13.0, driver too old?"),
        ("GPU, CUDA = False, None", "fail", "2.15.0, sees no GPU: built without CUDA"),
        ("raise OSError('libcudart.so.13\\nadvice')", "fail", "2.15.0, cannot be loaded: OSError: libcudart.so.13"),
        ("import os; print('bye'); os._exit(3)", "fail", "2.15.0, cannot be loaded: its process ended with status 3"),
        ("import time; time.sleep(60)", "warn", "2.15.0, not loaded within 1 s"),
    ],
)  # fmt: skip
def test_whether_torch_loads_and_sees_the_gpu_is_found(
    one_gpu: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, status: str, words: str
) -> None:  # fmt: skip
    asks(monkeypatch, tmp_path / "modules", {"torch.py": f"{TORCH}{torch}"})
    if status == "warn":
        monkeypatch.setattr(preflight, "LIMIT_S", 1.0)
        monkeypatch.setattr(preflight, "LIMIT_S", 1.0)
    assert found_of_torch(tmp_path) == (status, words)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("driver", "starts", "asked"),
    [(13020, 0, False), (12080, 0, True), (13020, 803, True), (None, 0, True)],
)
def test_torch_is_imported_only_where_its_libraries_tell_nothing_good(
    one_gpu: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: int | None, starts: int, asked: bool
) -> None:  # fmt: skip
    package = tmp_path / "modules/torch"
    (package / "lib").mkdir(parents=True)
    modules = {
        "torch/__init__.py": "raise OSError('imported')",
        "torch/version.py": "cuda = '13.0'",
    }
    asks(monkeypatch, package.parent, modules)
    code = f"int cuDriverGetVersion(int *version) {{ *version = {driver or 13000}; return 0; }}"
    code += f"int cuInit(unsigned flags) {{ return {starts}; }}"
    libraries = [tmp_path / "libcuda.so.1"] + [package / "lib/libtorch_python.so"] * bool(driver)
    for library in libraries:
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=code, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    failed = ("fail", "2.15.0, cannot be loaded: OSError: imported")
    assert found_of_torch(tmp_path) == (failed if asked else ("ok", "2.15.0"))


def test_torch_is_asked_while_the_gpu_is_measured(
    one_gpu: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    ask = f"from pathlib import Path\nPath({str(begun)!r}).touch()\n{SEES}"

    def measure(device: None) -> dict[str, Any]:
        until = time.monotonic() + 10
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert begun.exists()
        return {"copy_gbs": 1}

    monkeypatch.setattr(preflight, "ASK", ask)
    monkeypatch.setattr(preflight.ceilings, "measure", measure)
    assert found_of_torch(tmp_path) == ("ok", "2.15.0")


@pytest.mark.parametrize("error", [ImportError("No module"), RuntimeError("lost"), OSError("lib")])
def test_what_cannot_be_measured_has_no_ceilings_and_says_why(
    one_gpu: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(preflight, "Driver", fails)
    found = looked(tmp_path)
    assert found.pop("reason") == f"{type(error).__name__}: {error}"
    assert found == {"copy_gbs": None, "read_gbs": None, "matmul_tflops": None}
    last = json.loads((tmp_path / "environment.json").read_text())["findings"][-1]
    assert (last["check"], last["status"]) == ("ceilings", "warn") and str(error) in last["found"]


def test_without_a_gpu_torch_is_not_even_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.no_driver(monkeypatch, tmp_path)
    monkeypatch.setattr(preflight, "TorchCheck", lambda: pytest.fail("torch is asked"))
    monkeypatch.setattr(preflight, "Driver", lambda: pytest.fail("a GPU is asked for"))
    assert looked(tmp_path)["reason"] == "no GPU is visible"
    rows = json.loads((tmp_path / "environment.json").read_text())["findings"]
    assert "ceilings" not in {row["check"] for row in rows}, "the missing GPU is a row of its own"
