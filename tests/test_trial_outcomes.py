"""Recorded trials of the shipped changes: a page of each and a table of all, made of the records."""

import json
import lzma
import re
from pathlib import Path
from typing import Any

import hostile
import pytest
import trial_data
from conftest import ROOT

from ncuflow.experiments.record import Trial, Trials
from ncuflow.io import BadInput
from scripts import docs, outcomes


def put(folder: Path, name: str, expected: str, trial: Trial | None) -> Path:
    """A change in a folder of changes."""
    own = folder / name
    own.mkdir(parents=True)
    told: dict[str, Any] = {"target": "twice", "blocks": [{"n": [3, 4]}], "expected": expected}
    (own / "try.json").write_text(json.dumps(told))
    (own / "README.md").write_text(f"# The change {name}\n\nWords.\n")
    if trial is not None:
        packed = lzma.compress(trial.model_dump_json().encode())
        (own / outcomes.RECORD).write_bytes(packed)
    return own


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    put(tmp_path, "slow", "slower", trial_data.trial())
    put(tmp_path, "later", "faster", None)
    put(tmp_path, "bad", "faster", trial_data.wrong())
    return tmp_path


def test_docs_writes_and_checks_them(changes, monkeypatch, capsys):
    monkeypatch.setattr(docs, "EXAMPLES", changes)
    monkeypatch.setattr(docs, "FOLDER", changes / "none")
    monkeypatch.setattr(docs, "schemas", dict)
    assert docs.run(check=True) == 1
    assert "slow/page.md is out of date: run python -m scripts.docs" in capsys.readouterr().err
    assert docs.run(check=False) == 0 and docs.run(check=True) == 0
    assert (changes / "slow" / "page.md").is_file() and not (changes / "later/page.md").exists()


def test_a_page_has_what_was_expected_and_what_came(changes: Path) -> None:
    made = outcomes.pages(changes)
    slow, bad = (made[changes / name / "page.md"] for name in ("slow", "bad"))
    assert slow.startswith("# The change slow\n\nExpected: **slower**. Came: **slower**.\n")
    assert "NVIDIA H200 · FlashInfer 0.7.2" in slow
    row = "| twice/toy_n3 | 100 | 110 | +10.0 % (+9.5 to +10.5) | +0.0 % (-0.1 to +0.1) | 9 | slower |"
    assert "| base, µs | change, µs |" in slow and row in slow and "+10 µs long_scoreboard" in slow
    assert "- `ToyKernel`: registers 40 to 48, +4 LDL -2 MOV" in slow
    again = (
        "ncuflow try examples/changes/slow/change.patch --target twice --blocks '[{\"n\": [3, 4]}]'"
    )
    assert again in slow
    assert "Expected: **faster**. Came: **wrong**, which is not as expected." in bad
    assert "not run on a GPU" in outcomes.page(
        outcomes.examples(changes)[0], trial_data.trial(gpu=None)
    )
    assert "0 of 1 inputs are right." in bad and "## Is it faster?" not in bad


def test_the_table_counts_what_came_as_expected(changes: Path) -> None:
    table = outcomes.pages(changes)[changes / "README.md"]
    assert "1 of 2 came as expected: NVIDIA H200, FlashInfer 0.7.2." in table
    rows = [line for line in table.splitlines() if line.startswith("| [")]
    assert rows == [
        "| [The change bad](bad/page.md) | twice | faster | wrong | – |",
        "| [The change later](later/README.md) | twice | faster | – | – |",
        "| [The change slow](slow/page.md) | twice | slower | slower | 0.0 % to +10.0 % |",
    ]


def test_several_trials_in_one_record_are_refused(tmp_path: Path) -> None:
    own = put(tmp_path, "slow", "slower", None)
    record = Trials(trials=[trial_data.trial(), trial_data.trial()])
    (own / outcomes.RECORD).write_bytes(lzma.compress(record.model_dump_json().encode()))
    with pytest.raises(BadInput, match="several trials"):
        outcomes.pages(tmp_path)


@pytest.mark.parametrize("name", ["slow", "bad", "table"])
def test_nothing_that_a_record_says_is_markup(name, changes, monkeypatch):
    path = changes / "README.md" if name == "table" else changes / name / "page.md"
    hostile.check(lambda: outcomes.pages(changes)[path], monkeypatch)


SPILL = next(one for one in outcomes.examples(ROOT / docs.EXAMPLES) if one.name == "decode-spill")


def test_of_kernels_that_differ_a_page_has_those_that_the_points_launch() -> None:
    assert SPILL.trial is not None and len(SPILL.trial.modules[0].kernels) == 14
    text = outcomes.page(SPILL, SPILL.trial)
    listed = [line for line in text.splitlines() if line.startswith("- `")]
    # groups of four query heads and of one, in half precision and two stages
    traits = [re.sub(r".*\)0, |, flashinfer::Def.*", "", line) for line in listed]
    assert traits == ["2, 1, 8, 16, 4, 2", "2, 4, 8, 16, 1, 8"]
    assert "Of the 12 other kernels whose code differs its points launch none." in text
