"""`ncuflow try` from end to end: real processes, patches, builds and pipes; FlashInfer and the GPU are none."""

import difflib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_race
import pytest
from fake_race import FAKE

from ncuflow.cli import dispatch
from ncuflow.experiments import record
from ncuflow.experiments.record import EXIT, Trial, Trials
from ncuflow.io import CommandError, digest
from ncuflow.race.record import WORST
from ncuflow.record import Strict

HEADER = "include/flashinfer/toy.cuh"
pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++") and shutil.which("git")),
    reason="needs ninja, git and a compiler",
)


@dataclass(frozen=True)
class Machine:
    """The project on a machine with one GPU that is none."""

    folder: Path

    @property
    def package(self) -> Path:
        return self.folder / "site/flashinfer"

    def patch(self, old: str, new: str, name: str = HEADER, file: str = "change.patch") -> Path:
        """A patch that replaces a text of a file, as FlashInfer's repository names it."""
        root = self.package / "data" if name == HEADER else self.package.parent
        text = (root / name).read_text()
        assert old in text
        lines = (t.splitlines(True) for t in (text, text.replace(old, new, 1)))
        path = self.folder / file
        path.write_text("".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}")))
        return path

    def tried(
        self, change: Path | Sequence[Path], *words: str
    ) -> tuple[int, str, dict[str, Any] | None]:
        """(exit status, output, record or None) of a trial."""
        out = self.folder / "out.json"
        out.unlink(missing_ok=True)
        changes = [str(path) for path in ([change] if isinstance(change, Path) else change)]
        status, said = self.ran("try", *changes, "--target", "twice", "--json", str(out), *words)
        return status, said, json.loads(out.read_text()) if out.exists() else None

    def ran(self, *words: str) -> tuple[int, str]:
        """(exit status, output) of a command; checks that it left the package as it was, and nothing else."""
        before = self.state()
        found = fake_race.ncuflow(self.folder, *words, path=str(self.package.parent))
        assert self.state() == before
        return found

    def state(self) -> dict[str, str]:
        files = (path for path in self.package.rglob("*") if path.is_file())
        return {str(path.relative_to(self.package)): digest(path) for path in files}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield made_machine(tmp_path_factory.mktemp("machine"))


def made_machine(folder: Path) -> Machine:
    """The machine in an empty folder."""
    fake_race.make(folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FAKE / "flashinfer", folder / "site/flashinfer", ignore=ignored)
    return Machine(folder)


BOTH = '[{"module": ["toy", "plain"], "n": [3, 4]}]'


def test_a_comment_is_the_same_and_compiles_what_reads_it_alone(machine: Machine) -> None:
    patch = machine.patch("// What", "// Well, what")
    status, said, found = machine.tried(patch, "--blocks", BOTH)
    assert status == 0 and found is not None, said
    trial = Trial.model_validate(found)
    assert (trial.outcome, trial.flashinfer, trial.gpu) == ("same", "0.0.1", "NVIDIA H200")
    assert {m.name: (m.compiled, m.why) for m in trial.modules} == {
        "toy": (True, "it reads data/include/flashinfer/toy.cuh"),
        "plain": (False, None),
    }
    assert [point.outcome for point in trial.points] == ["same"] * 4
    toy, plain = (next(m for m in trial.modules if m.name == name) for name in ("toy", "plain"))
    assert toy.files and toy.compile_s is not None and not plain.files and plain.compile_s is None
    assert re.search(r"toy.cuh.*; compiled in \d+ s \(\S+\.o \d+ s", said)
    assert "change.patch is code, and runs as the user" in said
    assert re.search(r"twice/plain_n4: 6 rounds: .*, \d+ s elapsed, about \d+ s left\n", said)
    assert "change.patch at twice: same" in said and "6 of 6 inputs right" in said


@pytest.mark.exhaustive
def test_an_effect_is_what_the_user_says(machine):
    status, said, found = machine.tried(
        machine.patch("return 100.0", "return 105.0"), "--effect", "10%"
    )
    assert status == 0 and found["outcome"] == "same", said


def test_of_several_changes_the_fastest_comes_first_and_a_broken_one_costs_itself(machine):
    new = {"slow": "110.0", "broken": "missing", "fast": "80.0", "hangs": "1", "nothing": "0.0"}
    texts = {name: f"return {value}" for name, value in new.items()}
    texts["hangs"] = 'for (;;) asm volatile(""); return 1'
    patches = [machine.patch("return 100.0", of, file=f"{n}.patch") for n, of in texts.items()]
    status, said, found = machine.tried(patches, "--limit", "3")
    assert status == 0 and found is not None, said
    trials = Trials.model_validate(found).trials
    assert [(trial.change.name, trial.outcome) for trial in trials] == [
        ("fast.patch", "faster"),
        ("slow.patch", "slower"),
        ("nothing.patch", "error"),
        ("hangs.patch", "lost"),
        ("broken.patch", "not compiled"),
    ]
    assert "compiling 5 modules of 5 changes" in said
    error = trials[-1].compile_error
    assert trials[-1].points == [] and "missing" in error.message
    assert (error.file, error.line) == ("data/include/flashinfer/toy.cuh", 7)
    assert "data/include/flashinfer/toy.cuh:7: " in said
    assert str(machine.folder) not in said.partition("\nwrote ")[0] + json.dumps(found)
    assert "nothing.patch at twice: error" in said
    assert "a launch took 0 µs: it cannot have run" in said
    rows = [line.split() for line in said[said.index("\nrank") :].splitlines()[2:5]]
    ranks = [" ".join(row[:2]) for row in rows]
    assert ranks == ["1 fast.patch", "2 slow.patch", "– nothing.patch"]


def test_one_change_that_does_not_apply_ends_several_before_any_is_tried(machine: Machine) -> None:
    good = machine.patch("return 100.0", "return 90.0", file="good.patch")
    bad = machine.patch("return 100.0", "return 80.0", file="bad.patch")
    bad.write_text(bad.read_text().replace("-  return 100.0", "-  return 101.0"))
    status, said, found = machine.tried([good, bad])
    assert status == 2 and found is None and "good.patch at twice" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert "data/include/flashinfer/toy.cuh: its hunk at line 4 does not fit" in said


@pytest.mark.exhaustive
def test_a_function_takes_the_place_of_an_api_beside_a_patch(machine: Machine) -> None:
    (machine.folder / "mine.py").write_text(
        "def twice(value):\n    return 2 * value\n\ndef thrice(value):\n    return 3 * value\n"
    )
    fast = machine.patch("return 100.0", "return 80.0", file="fast.patch")
    status, said, found = machine.tried([Path("mine:twice"), fast, Path("mine:thrice")])
    assert status == 0 and found is not None, said
    trials = {trial.change.name: trial for trial in Trials.model_validate(found).trials}
    outcomes = {name: trial.outcome for name, trial in trials.items()}
    assert outcomes == {"fast.patch": "faster", "mine:twice": "same", "mine:thrice": "wrong"}
    assert trials["mine:twice"].modules == [] and trials["mine:twice"].change.files == []
    assert "mine:twice is code, and runs as the user" in said
    assert "compiling 1 module of the change" in said


def test_without_flashinfer_nothing_can_be_run(tmp_path, monkeypatch):
    monkeypatch.setattr("ncuflow.experiments.variant.package_folder", lambda name: None)
    with pytest.raises(CommandError, match="flashinfer is not installed") as ended:
        dispatch(["try", str(tmp_path), "--target", "rmsnorm"])
    assert ended.value.code == 1


def test_every_outcome_has_a_rank_and_a_status() -> None:
    assert set(EXIT) == {*WORST, "not compiled"}


def test_every_field_of_the_record_says_what_it_holds() -> None:
    kinds = [kind for kind in vars(record).values() if isinstance(kind, type)]
    models = [kind for kind in kinds if issubclass(kind, Strict) and kind.model_fields]
    assert Trial in models
    fields = [
        (model, name, field) for model in models for name, field in model.model_fields.items()
    ]
    assert [(model, name) for model, name, field in fields if not field.description] == []
