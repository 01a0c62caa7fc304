"""Every kernel target's modules compile for sm_80, an architecture that no GPU here has to have.

    python -m pytest -m nvcc tests/test_nvcc.py     # up to ten minutes on two cores

Needs nvcc (CUDA_HOME, PATH or /usr/local/cuda), torch of any build and FlashInfer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import python
from conftest import ROOT

from ncuflow.io import read_json
from ncuflow.static.results import FILE, Facts
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import known, load

pytestmark = pytest.mark.nvcc
SWEEP = yaml.safe_load((ROOT / "config/config.yaml").read_text())["sweeps"]["default"]
PACKAGES = ("torch", "flashinfer", "ninja")


def cuda_home() -> Path | None:
    """The toolkit's folder; a wrapper of nvcc on PATH may lie elsewhere."""
    named = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc")
    places = [named, "/usr/local/cuda", found and Path(found).resolve().parents[1]]
    return next((Path(p) for p in places if p and (Path(p) / "include/cuda.h").exists()), None)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A fresh workspace and sm_80; what a toolkit without a driver may lack is filled in."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    home = cuda_home()
    if missing or home is None:
        pytest.skip(f"not here: {', '.join([*missing, *([] if home else ['nvcc'])])}")
    # the driver's library is linked, never called: an empty one does
    empty = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(tmp_path / "libcuda.so")]
    subprocess.run(empty, check=True)
    # cuBLAS's headers come with pip's packages, if not with the toolkit
    headers = [p for root in site.getsitepackages() for p in Path(root).glob("nvidia/cu*/include")]
    return os.environ | {
        "CUDA_HOME": str(home),
        "CPATH": ":".join(map(str, headers)) if not (home / "include/cublasLt.h").exists() else "",
        "LIBRARY_PATH": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{home / 'bin'}:{os.environ['PATH']}",
        "MAX_JOBS": os.environ.get("MAX_JOBS", "2"),
        "FLASHINFER_CUDA_ARCH_LIST": "8.0",
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "workspace"),
        "FLASHINFER_JIT_LINEINFO": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize("name", sorted(known()))
def test_modules_of_the_default_sweep_compile_for_sm_80(name, tmp_path, environment):
    points, out = tmp_path / "points.json", tmp_path / "build.json"
    found = sweep.points(load(name), SWEEP[name])
    points.write_text(json.dumps([point.as_dict() for point in found]))
    words = ("build", "--points", points, "--out", out, "--jobs", environment["MAX_JOBS"])
    done = python("-m", "ncuflow", *words, **environment)
    assert done.returncode == 0, done.stderr
    modules = json.loads(out.read_text())["modules"]
    if any(module["status"] == "prebuilt" for module in modules):
        pytest.skip("prebuilt modules are installed: nothing is compiled")
    assert modules and all(module["status"] == "built" for module in modules)
    ninja = "".join(p.read_text() for p in (tmp_path / "workspace").rglob("build.ninja"))
    assert "compute_80" in ninja and "compute_90" not in ninja


@pytest.mark.parametrize("arch", ["8.9", "10.0a", "12.0a"])
def test_two_small_modules_are_read_for_other_architectures(arch, tmp_path, environment):
    words = ("static", "--arch", arch, "--out", tmp_path, "--targets", "merge_state,rmsnorm")
    done = python("-m", "ncuflow", *words, "--jobs", environment["MAX_JOBS"], **environment)
    assert done.returncode == 0, done.stderr
    facts = Facts(read_json(tmp_path / FILE))
    built = {module["module"] for module in facts.modules() if module["kernels"]}
    assert built - {"norm_cute_dsl"} == {"cascade", "norm"}
    kernel = facts.kernels["flashinfer::norm::RMSNormKernel<8, __half>"]
    assert 16 < kernel["registers"] < 64 and kernel["spill_store_bytes"] == 0
