"""Shared fixtures: the checkout, its recordings, and one run of the whole pipeline over them."""

from __future__ import annotations

import compileall
import fcntl
import gc
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import gpu_modules
import pytest
import warm

from ncuflow.evidence import location
from ncuflow.evidence.manifest import checksums, sealed
from ncuflow.findings import stored
from ncuflow.model import Results
from ncuflow.parsers import ncu, nsys

if TYPE_CHECKING:
    import fake_machine

# A shell has what it starts in the background ignore SIGINT, and what these tests start and interrupt would as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
COPIED = (
    "Snakefile", "workflows", "config", "profiles", "targets", "parsers", "ncuflow", "templates", "claims",
    "recordings",
)  # fmt: skip
# The recording that the pages show unless a setting names another.
DEFAULT = ROOT / location.default()
# The folder that all workers of this run of the tests have in common, for what is no fixture.
SHARED: list[Path] = []
T = TypeVar("T")
# Of what holds for any kernel, the two smallest of that recording are enough.
SMALL = ("--config", "source=recorded", 'targets=["merge_state", "rmsnorm"]')
SECRET = "hunter2-planted-secret"
Recorded = Callable[[str, str], Results]
MODULES = pytest.StashKey[gpu_modules.Modules]()


@dataclass(frozen=True)
class Finished:
    """A copy of the project with what the pipeline made of it. Read it; copy it to run anything there."""

    folder: Path

    @property
    def outputs(self) -> Path:
        """The folder of the one machine that the run made pages for."""
        made = (self.folder / "outputs").iterdir()
        (folder,) = (path for path in made if path.name != "this-machine")
        return folder

    def copied(self, folder: Path) -> Pipeline:
        """A copy in a new folder, with Snakemake's records, that may be changed."""
        return Pipeline(shutil.copytree(self.folder, folder, symlinks=True))


class Pipeline(Finished):
    """A copy of the project in which the pipeline can be run without touching the checkout."""

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``snakemake -j1 ARGUMENTS``; a secret stands in the environment all the while."""
        environment = os.environ | {"NCUFLOW_TEST_TOKEN": SECRET, "PYTHONDONTWRITEBYTECODE": "1"}
        done = warm.run("snakemake", "-j1", *arguments, cwd=self.folder, env=environment)
        if check and done.returncode:
            said = f"{done.stdout}\n{done.stderr}"
            pytest.fail(f"{' '.join(arguments)}: status {done.returncode}\n{said}")
        return done

    def planned(self, *arguments: str) -> list[str]:
        """Names of the rules that a dry run would execute, one an entry a job."""
        done = self.run("-n", "--quiet", "host", *arguments)
        begins = ("rule ", "localrule ", "checkpoint ")
        lines = (done.stdout + done.stderr).splitlines()
        return [line.split()[1].rstrip(":") for line in lines if line.startswith(begins)]


def copy_project(folder: Path, names: Sequence[str] = COPIED) -> Pipeline:
    """A working copy of the parts that the pipeline needs, compiled; recordings are linked, being large."""
    for name in names:
        if name == "recordings":
            (folder / name).symlink_to(ROOT / name)
        elif (ROOT / name).is_dir():
            code = filled_once(SHARED[0] / "compiled", compiled)
            shutil.copytree(code / name, folder / name, symlinks=True)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    return Pipeline(folder)


def compiled(folder: Path) -> None:
    """The folders of the project, their code compiled, so that no job of a copy compiles it anew."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if name != "recordings" and (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("ncuflow", "parsers", "targets"):
        compileall.compile_dir(folder / name, quiet=2)


def some(found: Iterable[T]) -> list[T]:
    """All of it, and at least one: a loop over nothing asserts nothing."""
    every = list(found)
    assert every, "nothing to assert anything of"
    return every


def some_by_default(cases: Sequence[T], step: int) -> list[Any]:
    """Cases of a parameter: each `step`-th by default, the others under the marker `exhaustive`."""
    rest = pytest.mark.exhaustive
    return [pytest.param(c, marks=rest) if at % step else c for at, c in enumerate(cases)]


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """What is here stays to the end: no collection of garbage goes through it, of which the code of a trial asks for many."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def modules_ahead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the chosen GPU tests load is compiled before the first; not by workers of xdist, which share a cache."""
    plan = gpu_modules.plan(request.session.items)
    if any(plan.values()) and not hasattr(request.config, "workerinput"):
        folder = tmp_path_factory.mktemp("modules")
        request.config.stash[MODULES] = gpu_modules.build(plan, folder)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if MODULES in config.stash:
        terminalreporter.section("JIT modules of the GPU tests")
        for line in config.stash[MODULES].summary():
            terminalreporter.line(line)


def filled_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """`folder`, new and filled by the first process that asks for it, while others wait; where that failed, by the next."""
    whole = folder.with_name(f"{folder.name}.whole")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run of the tests have in common."""
    own = tmp_path_factory.getbasetemp()
    SHARED[:] = [own.parent if hasattr(request.config, "workerinput") else own]
    return SHARED[0]


@pytest.fixture(scope="session")
def finished(shared: Path) -> Finished:
    """The project after ``snakemake -j1 all`` on recorded evidence, once for all workers."""

    def fill(folder: Path) -> None:
        # Whoever needs it waits, so that a core is free.
        copy_project(folder).run("all", "-j2", "--config", "source=recorded")

    return Finished(filled_once(shared / "finished", fill))


@pytest.fixture(scope="session")
def small(shared: Path) -> Finished:
    """The project after ``snakemake -j1 all`` on recorded evidence of two kernels, once for all workers."""

    def fill(folder: Path) -> None:
        copy_project(folder).run("all", *SMALL)

    return Finished(filled_once(shared / "small", fill))


@pytest.fixture(scope="module")
def made(small: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project that has run."""
    return small.copied(tmp_path_factory.mktemp("made") / "p").folder


@pytest.fixture(scope="session", autouse=True)
def results_once(shared: Path) -> Iterator[Callable[[Path, str], Path]]:
    """The folder with the results of a target of a shipped recording, made once for all workers, also where code asks for it."""
    make = stored.make_results

    def kept(recording: Path, target: str) -> Path:
        name = "-".join(recording.resolve().relative_to(ROOT / "recordings").parts)
        return filled_once(shared / f"{name}-{target}", lambda to: make(recording, [target], to))

    def once(recording: Path, targets: Iterable[str] | None, outputs: Path) -> None:
        chosen = [] if targets is None else list(targets)
        shipped = recording.resolve().is_relative_to(ROOT / "recordings")
        if shipped and chosen and all((recording / one).is_dir() for one in chosen):
            for target in chosen:
                shutil.copytree(kept(recording, target), outputs, dirs_exist_ok=True)
        else:
            make(recording, targets and chosen, outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "make_results", once)
        yield kept


@pytest.fixture(scope="session")
def recorded(results_once: Callable[[Path, str], Path]) -> Recorded:
    """The results of a target of any recording."""

    def results(recording: str, target: str) -> Results:
        made = results_once(ROOT / "recordings" / recording, target)
        return stored.results(made / f"results/{target}_results.json")

    return results


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Of reports and traces that the tests of a module read again and again each is read once; who asks gets a copy."""

    def kept(read: Callable[..., T]) -> Callable[..., T]:
        made: dict[bytes, bytes] = {}

        def once(path: str | Path, *more: Any, **how: Any) -> T:
            place = Path(path).absolute()
            stat = place.stat() if place.exists() else None
            key = pickle.dumps((str(path), str(place), stat and stat.st_mtime_ns, more, how))
            if key not in made:
                made[key] = pickle.dumps(read(path, *more, **how))
            return pickle.loads(made[key])

        return once

    with pytest.MonkeyPatch.context() as patch:
        for tool in (ncu, nsys):
            patch.setattr(tool, "read", kept(tool.read))
        yield


@pytest.fixture(scope="session")
def undisturbed(shared: Path) -> fake_machine.Machine:
    """A sweep on the fake machine where nothing went wrong, as far as its tables, once for all workers; to be read."""
    from fake_machine import TABLE, Machine, make

    def fill(folder: Path) -> None:
        done = make(folder).run(TABLE)
        assert done.returncode == 0, done.stdout + done.stderr

    return Machine(filled_once(shared / "undisturbed", fill))


@pytest.fixture(params=some_by_default([False, True], 2), ids=["slice", "every"])
def every(request: pytest.FixtureRequest) -> bool:
    """Whether a test goes through every case, as `scripts/check-all` asks, or through those that stand for the others."""
    return bool(request.param)


@pytest.fixture
def project(tmp_path: Path) -> Pipeline:
    """A fresh copy of the project, to be changed by the test."""
    return copy_project(tmp_path)


@pytest.fixture
def two_sides(project: Pipeline) -> Pipeline:
    """The project with recordings/one and recordings/two: one target of the shipped recording."""
    source = ROOT / "recordings/h200/0.7.2/default"
    if not (source / "merge_state").exists():
        pytest.skip("the shipped recording has no merge_state")
    (project.folder / "recordings").unlink()
    for name in ("one", "two"):
        folder = project.folder / "recordings" / name
        shutil.copytree(source / "merge_state", folder / "merge_state")
        for file in ("environment.json", "ceilings.json", "source_index.json.xz"):
            shutil.copy(source / file, folder)
        manifest = json.loads((source / "manifest.json").read_text())
        manifest["targets"] = {"merge_state": manifest["targets"]["merge_state"]}
        manifest["files"] = checksums(folder)
        (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return project


def run_python(code: str, stdout: int | IO[str] = subprocess.PIPE) -> tuple[int, str]:
    """(exit status, stderr) of a Python process of its own."""
    env = os.environ | {"PYTHONUNBUFFERED": ""}  # a flush that fails leaves its text
    to = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, **to)
    return done.returncode, done.stderr
