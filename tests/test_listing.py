"""Listings: what they hold is what NVIDIA's reader says, and they serve their own report alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, some_by_default

from ncuflow.evidence import recording
from ncuflow.io import BadInput, read_json, write_json
from ncuflow.parsers import lines, ncu, reader
from ncuflow.process import CaptureError

REPORTS = sorted((ROOT / "recordings").rglob("deep.ncu-rep.xz"))
SMALL = ROOT / "recordings/h200/0.7.2/default/merge_state/deep/deep.ncu-rep.xz"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A report with its listing, to change."""
    for path in (SMALL, lines.listing_path(SMALL)):
        shutil.copy(path, tmp_path)
    return tmp_path / SMALL.name


def edited(report: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = read_json(lines.listing_path(report))
    edit(content)
    write_json(lines.listing_path(report), content)


def made_of(report: Path) -> Any:
    """In a child, as the disassembler leaves a thread behind, and a process with threads should not fork."""
    ((_, made),) = reader.in_children(lines.listing_of, [report])
    return made


def mark(content: dict[str, Any]) -> None:
    for kernel in content["kernels"]:
        for instruction in kernel["instructions"]:
            instruction[1:] = ["MARKED R0", "marked.cuh", 1]


@pytest.mark.parametrize("report", some_by_default(REPORTS, 6), ids=lambda path: path.parts[-3])
def test_a_recorded_listing_is_what_the_reader_says(report: Path, tmp_path: Path) -> None:
    stored = read_json(lines.listing_path(report))
    made = json.loads(json.dumps(made_of(report)))
    assert stored | {"reader": None} == made | {"reader": None}
    alone = shutil.copy(report, tmp_path)
    assert ncu.read(report).lines == ncu.read(alone).lines


def test_every_recorded_deep_report_has_a_listing() -> None:
    assert REPORTS
    assert [path for path in REPORTS if not lines.listing_path(path).exists()] == []


def test_a_listing_is_read_in_place_of_the_disassembler(copied: Path) -> None:
    edited(copied, mark)
    rows = ncu.read(copied).lines
    assert {(r["file"], r["line"]) for r in rows} == {("marked.cuh", 1)}
    # as without a listing: SASS only where enough samples are
    assert {r["sass"] for r in rows} == {"MARKED R0", None}
    assert {r["opcode"] for r in rows} == {"MARKED", None}


def test_a_listing_of_another_report_is_left_alone(copied: Path) -> None:
    edited(copied, lambda content: (mark(content), content.update(sha256="0" * 64)))
    assert ncu.read(copied).lines == ncu.read(SMALL).lines


def test_an_instruction_that_the_listing_lacks_is_disassembled(copied: Path) -> None:
    edited(copied, lambda content: content["kernels"][0]["instructions"].clear())
    assert ncu.read(copied).lines == ncu.read(SMALL).lines


@pytest.mark.parametrize("text", ["{", "[]", '{"sha256": 1', '{"kernels": []}'])
def test_a_damaged_listing_is_named(copied: Path, text: str) -> None:
    lines.listing_path(copied).write_text(text)
    with pytest.raises(BadInput, match=r"deep\.listing\.json"):
        ncu.read(copied)


def test_an_instruction_of_the_wrong_shape_is_named(copied: Path) -> None:
    edited(copied, lambda content: content["kernels"][0]["instructions"].insert(0, [1, "NOP"]))
    with pytest.raises(BadInput, match=r"deep\.listing\.json\.xz: not the listing of a report"):
        ncu.read(copied)


def test_recording_makes_the_listing_anew(copied: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "captures"
    batch = evidence / "merge_state/deep"
    batch.mkdir(parents=True)
    edited(copied, mark)
    (batch / "points.json").write_text("[]")
    shutil.copy(SMALL.parents[2] / "environment.json", evidence)
    for path in (copied, lines.listing_path(copied)):
        path.replace(batch / path.name)
    manifest = recording.record(evidence, tmp_path / "made", "made")
    made = tmp_path / "made/merge_state/deep" / lines.listing_path(SMALL).name
    assert read_json(made) == read_json(lines.listing_path(SMALL))
    assert "merge_state/deep/deep.listing.json.xz" in manifest["files"]


def test_a_listing_that_names_something_private_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "planted_token_value")
    source = ["NOP", "planted_token_value/norm.cuh", 1]
    made = {"kernels": [{"kernel": 0, "function": "f", "instructions": [[0, *source]]}]}
    monkeypatch.setattr(lines, "listing_of", lambda report: made)
    batch = tmp_path / "captures/merge_state/deep"
    batch.mkdir(parents=True)
    (batch / "points.json").write_text("[]")
    shutil.copy(SMALL.parents[2] / "environment.json", tmp_path / "captures")
    shutil.copy(SMALL, batch)
    with pytest.raises(CaptureError, match="names the value of HF_TOKEN as a source"):
        recording.record(tmp_path / "captures", tmp_path / "made", "made")
    assert not (tmp_path / "made").exists()


def test_a_report_without_samples_has_no_listing() -> None:
    sweep = next(SMALL.parents[1].glob("b*/sweep.ncu-rep.xz"))
    assert made_of(sweep) is None
