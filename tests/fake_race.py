"""The project on a machine with one GPU that is none, whose FlashInfer is none either: experiments in real processes."""

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import fake_gpus
from command import ran
from conftest import ROOT, copy_project

from ncuflow.io import SCRATCH

FAKE = ROOT / "tests/fake_flashinfer"
PARTS = ("targets", "parsers", "ncuflow", "templates", "claims", "config", "workflows")


def make(folder: Path) -> Path:
    """The machine in an empty folder."""
    copy_project(folder, PARTS)
    with (folder / "ncuflow/run/gpu.py").open("a") as device:
        device.write((FAKE / "device.py").read_text())
    (folder / "tmp").mkdir()
    fake_gpus.write(folder, fake_gpus.H200)
    return folder


def run(machine: Path, *words: str, cwd: Any = None, path: str = "", **env: str) -> tuple[int, str]:
    """(exit status, output) of a command there; nothing of it is left. path: of Python, before its own."""
    told = fake_gpus.environment(machine)
    told["PYTHONPATH"] = os.pathsep.join(filter(None, [path, told["PYTHONPATH"]]))
    told |= {
        "NCUFLOW_LOCK_DIR": str(machine / "locks"),
        "NCUFLOW_TARGETS": str(FAKE / "targets"),
        "FLASHINFER_WORKSPACE_BASE": str(machine / "base"),
        "TMPDIR": str(machine / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": None,
    }
    done = ran(*words, cwd=cwd or machine, **told | env)
    assert not list((machine / "tmp").glob(f"{SCRATCH}*"))
    return done.returncode, done.stdout + done.stderr


def ncuflow(machine: Path, *words: str, **how: str) -> tuple[int, str]:
    return run(machine, sys.executable, "-m", "ncuflow", *words, **how)


def recorded(machine: Path, *words: str, **how: str) -> tuple[int, str, Any]:
    """(exit status, output, its record as JSON or None) of a command that writes one."""
    out = machine / "out.json"
    out.unlink(missing_ok=True)
    status, said = ncuflow(machine, *words, "--out", str(out), **how)
    return status, said, json.loads(out.read_text()) if out.exists() else None


def wheel(folder: Path, version: str, files: dict[str, str]) -> None:
    """A wheel of a FlashInfer of these files."""
    info = f"flashinfer_python-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n"
    pure = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = folder / f"flashinfer_python-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in {f"{info}/METADATA": about, f"{info}/WHEEL": pure, f"{info}/RECORD": ""}.items():  # fmt: skip
            packed.writestr(name, text)
        for name, text in files.items():
            packed.writestr(f"flashinfer/{name}", text)
