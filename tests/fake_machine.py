"""A machine with two GPUs that are none: the live pipeline with its real rules, captures and locks.

The copy of the project gets a kernel target `toy` of plain Python and a device that measures
nothing; `pynvml` is one of `fake_gpus`, `ncu` a program on PATH. Reports are real, with the kernels of a
recorded one under the points' names. What goes wrong, and when, the test says with
`Machine.plan`.
"""

from __future__ import annotations

import json
import lzma
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_gpus
import warm
import yaml
from conftest import COPIED, ROOT, Pipeline, copy_project

# What a run on it is asked for: all that is measured, and the tables of it.
TABLE = "outputs/fake/tables/toy/timing.parquet"
PIPE = "reached"
LIMIT_S = 600

TOOLS = ROOT / "tests/fake_tools"  # ncu, nsys, the target `toy`, and what a run does at its points

# Beside what the device of experiments does, which is none either.
DEVICE = """

class Gpu(Gpu):
    def __init__(self):
        from ncuflow.targets import plans

        if plans.planned("gone", "process"):
            raise RuntimeError("no CUDA device is available to torch")

    def alive(self): return False
    def differences(self, outputs, expected): return [(float(len(outputs)), 0.0)]
    def worst(self, outputs, expected): return {}
    def flush(self): pass
    def clocks(self): return None
    def cold(self, run, n): return Burst([10.0] * n, True, None)
    def hot(self, run, n, group): return Burst([8.0] * n, True, None)
    def steady(self, run, n, group): return Burst([8.0] * n, True, None)
    def floor_us(self): return 2.5

    @contextmanager
    def range(self, name):
        yield
"""

# In place of the device that the ceilings are measured on, and of the question whether torch sees it.
DRIVER = """
from contextlib import nullcontext as Driver
"""
ASK = """
ASK = "print('torch is {\\"gpu\\": true, \\"cuda\\": null}')"
"""

# Two GPUs, other ones on each node of a cluster.
GPUS = [fake_gpus.H200 | {"UUID": f"GPU-{{node}}{name}"} for name in ("aaaa", "bbbb")]


@dataclass(frozen=True)
class Machine:
    """The project on the fake machine. `folder` is the working copy."""

    folder: Path

    @property
    def captures(self) -> Path:
        return self.folder / "outputs/fake/captures/toy"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | fake_gpus.environment(self.folder) | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "NCUFLOW_LOCK_DIR": str(self.folder / "locks"),
            "NCUFLOW_TEST_PLAN": str(self.folder / "plan"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def copied(self, folder: Path) -> Machine:
        """A copy in a new folder, with all that was measured."""
        shutil.copytree(self.folder, folder, symlinks=True, ignore=shutil.ignore_patterns(PIPE))
        os.mkfifo(folder / "plan" / PIPE)
        return Machine(folder)

    def plan(self, what: str, point: str = "", once: bool = False) -> None:
        """Let `what` happen at a point: gate (stop there until it is killed), break (the
        CUDA context of its process), lose (the GPU dies), wrong (the result is); or, without a point,
        hang-ncu, refuse-ncu (from the first batch on), unfit-ncu, unfit-nsys (no report of anything). `once`: the
        first time only."""
        self._planned(what, point).write_text("once" if once else "always")

    def forget(self, what: str, point: str = "") -> None:
        """Undo `plan`."""
        self._planned(what, point).unlink()

    def _planned(self, what: str, point: str) -> Path:
        return self.folder / "plan" / (f"{what}-{point.replace('/', '-')}" if point else what)

    def wait_at_gate(self, run: subprocess.Popen[str]) -> int:
        """The process of a run that stands at the gate, as soon as one does; that the run ends before is an error."""
        reached = os.open(self.folder / "plan" / PIPE, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(reached) as pipe, os.fdopen(os.pidfd_open(run.pid)) as ended:
            if pipe in select.select([pipe, ended], [], [], LIMIT_S)[0]:
                os.set_blocking(reached, True)
                return int(pipe.read())
        logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
        raise AssertionError(f"status {run.poll()} before its gate\n{logs}")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "-j1", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake in the background, its output in `run.log`."""
        with (self.folder / "run.log").open("w") as log:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=self.environment, stdout=log,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip

    def install(self, package: str, version: str) -> None:
        """A package of that name and version, which holds nothing, in place of an earlier one."""
        for folder in self.folder.glob(f"{package}-*.dist-info"):
            shutil.rmtree(folder)
        folder = self.folder / f"{package}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run("snakemake", "-j1", *arguments, cwd=self.folder, env=self.environment)

    def configure(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Let `change` edit the configuration in place."""
        path = self.folder / "config/config.yaml"
        config = yaml.safe_load(path.read_text())
        change(config)
        path.write_text(yaml.safe_dump(config))

    def records(self) -> dict[str, dict[str, object]]:
        """Timing records of all batches by point."""
        texts = [path.read_text() for path in sorted(self.captures.glob("b*/timing.jsonl"))]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        return {record["point"]: record for record in lines}

    def table(self, name: str) -> list[dict[str, object]]:
        import pyarrow.parquet

        path = self.folder / f"outputs/fake/tables/toy/{name}.parquet"
        return pyarrow.parquet.read_table(path).to_pylist()


def make(folder: Path, points: int = 7, batch_size: int = 4) -> Machine:
    """The fake machine in `folder`: a sweep of `points` points, batches of about `batch_size`: of 7, two."""
    project: Pipeline = copy_project(folder, [name for name in COPIED if name != "recordings"])
    for name in ("toy", "plans"):
        shutil.copy(TOOLS / f"{name}.py", project.folder / "targets")
    ceilings = json.loads((ROOT / "recordings/h200/0.7.2/default/ceilings.json").read_text())
    measure = f"\n\ndef measure(device):\n    return {ceilings!r}\n"
    device = (ROOT / "tests/fake_flashinfer/device.py").read_text() + DEVICE
    for name, text in {"gpu": device, "ceilings": DRIVER + measure, "probes": ASK}.items():
        with (project.folder / f"ncuflow/run/{name}.py").open("a") as module:
            module.write(text)  # in place of the real one
    plan = project.folder / "plan"
    plan.mkdir()
    os.mkfifo(plan / PIPE)
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    config |= {"source": "live", "machine": "fake", "targets": ["toy"], "sweep": "default"}
    config |= {"sweeps": {"default": {"toy": [{"n": list(range(1, points + 1))}]}}, "deep": {}}
    config["batch_size"] = batch_size
    config["nsys"]["enabled"] = False
    (project.folder / "config/config.yaml").write_text(yaml.safe_dump(config))
    fake_gpus.write(folder, *GPUS)
    program(folder, "ncu")
    return Machine(folder)


def index_source(machine: Machine) -> None:
    """Give the machine an index of FlashInfer's source, which it has not, so that it can make all pages."""
    recorded = ROOT / "recordings/h200/0.7.2/default/source_index.json.xz"
    index = machine.captures.parent / "source_index.json"
    index.parent.mkdir(parents=True)
    index.write_bytes(lzma.decompress(recorded.read_bytes()))


def trace_as_well(machine: Machine, early: bool) -> None:
    """Give the machine an nsys. early: its points are profiled and traced beside the build."""
    program(machine.folder, "nsys")
    machine.configure(lambda config: config["nsys"].update(enabled=True))
    toy = machine.folder / "targets/toy.py"
    toy.write_text(toy.read_text().replace("p: [])", f"p: [], early={early})"))


def program(folder: Path, name: str) -> None:
    """A tool on PATH."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    run = f"import runpy\nrunpy.run_path({str(TOOLS / name) + '.py'!r}, run_name='__main__')\n"
    path.write_text(f"#!{sys.executable}\n{run}")
    path.chmod(0o755)
