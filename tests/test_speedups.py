"""Pages of changes that are faster on two GPUs: of recorded trials, and of a second record that nobody made."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import hostile
import pytest
import trial_data
from conftest import ROOT, some
from test_trial_outcomes import put

from ncuflow.experiments.record import Trial
from scripts import docs, outcomes, speedups

FOLDER = Path("docs/findings")
EXAMPLES = ROOT / docs.EXAMPLES
FASTER = [one for one in outcomes.examples(EXAMPLES) if one.trial and one.trial.outcome == "faster"]


def on_another(trial: Trial, **changed: object) -> Trial:
    """The same trial on a GPU that it never saw."""
    return trial.model_copy(update={"gpu": "NVIDIA H999", "driver": "999.1", **changed})


def keep(folder: Path, trial: Trial) -> None:
    path = outcomes.kept_in(folder, trial)
    path.write_bytes(lzma.compress(trial.model_dump_json().encode()))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The shipped changes with the records of the GPU that was first."""
    there = tmp_path / "changes"
    shutil.copytree(EXAMPLES, there, ignore=shutil.ignore_patterns("trial-*"))
    return there


def test_the_pages_are_those_of_the_records() -> None:
    made = speedups.pages(EXAMPLES, ROOT / FOLDER)
    there = {path: path.read_text(encoding="utf-8") for path in (ROOT / FOLDER).glob("*")}
    assert there == made, "run python -m scripts.docs"


def test_one_gpu_is_no_finding(examples: Path) -> None:
    assert len(FASTER) >= 4
    assert speedups.pages(examples, FOLDER) == {}
    # nor is the same GPU twice, under another name of its file
    for example in some(FASTER):
        kept = examples / example.name / outcomes.RECORD
        shutil.copy(kept, kept.with_name("trial-again.json.xz"))
    assert speedups.pages(examples, FOLDER) == {}


def slower(trial: Trial) -> dict[str, object]:
    points = [p.model_copy(update={"outcome": "same"}) for p in trial.points]
    return {"points": points, "outcome": "same"}


def wrong(trial: Trial) -> dict[str, object]:
    return {"outcome": "wrong"}


@pytest.mark.parametrize("other", [slower, wrong])
def test_what_a_second_gpu_does_not_confirm_is_no_finding(other, examples):
    trial = FASTER[0].trial
    assert trial is not None
    keep(examples / FASTER[0].name, on_another(trial, **other(trial)))
    assert speedups.pages(examples, FOLDER) == {}


def test_a_page_has_both_gpus_and_says_where_it_does_not_help(tmp_path: Path) -> None:
    faster = [trial_data.point(str, 3, 80.0, "faster"), trial_data.point(str, 4, 100.0, "same")]
    first = trial_data.trial(points=faster, outcome="faster")
    own = put(tmp_path, "quick", "faster", first)
    (own / "change.patch").write_text("--- a/x\n+++ b/x\n")
    more = [trial_data.point(str, 3, 90.0, "faster"), trial_data.point(str, 5, 130.0, "slower")]
    keep(own, on_another(first, points=more, outcome="slower"))
    made = speedups.pages(tmp_path, FOLDER)
    helps, rest = made[FOLDER / "quick.md"].split("\n## Elsewhere\n")
    assert "| NVIDIA H200 | twice/toy_n3 | 100 | 80 | -20.0 % (-20.5 to -19.5) |" in helps
    assert "| NVIDIA H999 | twice/toy_n3 | 100 | 90 | -10.0 % (-10.5 to -9.5) |" in helps
    assert "twice/toy_n4" not in helps and "| NVIDIA H200 | twice/toy_n4 | 100 |" in rest
    assert "| NVIDIA H999 | twice/toy_n5 | 100 | 130 | +30.0 %" in rest
    assert "no other point was tried" not in rest
    (row,) = [line for line in made[FOLDER / "README.md"].splitlines() if line.startswith("| [")]
    assert row == "| [The change quick](quick.md) | −20.0 % | −10.0 % |"


@pytest.mark.parametrize("name", ["quick.md", "README.md"])
def test_nothing_that_a_record_says_is_markup(name, tmp_path, monkeypatch):
    points = [trial_data.point(str, 3, 80.0, "faster"), trial_data.point(str, 4, 100.0, "same")]
    first = trial_data.trial(points=points, outcome="faster")
    for change in ("quick", "quicker", "quickest"):
        own = put(tmp_path, change, "faster", first)
        (own / "change.patch").write_text("--- a/x\n+++ b/x\n")
        keep(own, on_another(first))
    hostile.check(lambda: speedups.pages(tmp_path, FOLDER)[FOLDER / name], monkeypatch)
