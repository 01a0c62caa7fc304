"""Advice that was measured on a GPU and is kept: what it says holds, a page and a module are made of it, docs tell it."""

import json
from pathlib import Path

import pytest
from command import ncuflow
from conftest import ROOT, some

from ncuflow.cli import dispatch
from ncuflow.experiments import recorded
from ncuflow.experiments.record import Advice
from ncuflow.io import BadInput
from ncuflow.target.contract import load
from scripts import archive

FOLDERS = sorted(path.parent for path in (ROOT / archive.FOLDER).glob("*/advice.json.xz"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kept_advice_is_of_one_gpu_and_of_shapes_that_were_raced(folder: Path) -> None:
    advice = recorded.read(folder / "advice.json.xz")
    assert advice.gpu and advice.versions["FlashInfer"] and advice.tier == "C"
    for shape in some(advice.shapes):
        assert shape.in_turns and shape.outcome != "none" and shape.advised in shape.best
        assert shape.choices[0].point == shape.shape
        target = load(shape.target)
        for one in some(shape.choices):
            params = target.completed({**shape.params, **one.settings})
            assert target.point_id(params) == one.point
            assert (one.fate in ("best", "slower", "undecided")) == (one.time_us is not None)
            # Who leaves is slower for sure by more than the default differs from itself.
            if one.fate == "slower":
                assert one.behind is not None and one.behind.low >= advice.effect / 2


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_documentation_says_what_was_measured(folder: Path) -> None:
    said = (ROOT / "docs/advise.md").read_text()
    advice = recorded.read(folder / "advice.json.xz")
    assert f"Measured on an {advice.gpu} (" in said and advice.date in said
    assert all(shape.shape in said for shape in some(advice.shapes))


def test_a_written_advice_makes_a_page_and_a_module(tmp_path: Path) -> None:
    advice = FOLDERS[0] / "advice.json.xz"
    page, module, out = tmp_path / "a.html", tmp_path / "a.py", tmp_path / "a.json"
    words = ["advise", "--recorded", str(advice), "--html", str(page)]
    words += ["--apply", "python", str(module)]
    assert dispatch([*words, "--target", "decode", "--out", str(out)]) == 0
    written = Advice.model_validate(json.loads(out.read_text()))
    assert {shape.target for shape in written.shapes} == {"decode"}
    assert all(shape.shape in page.read_text() for shape in some(written.shapes))
    assert "def choose(" in module.read_text()


def test_a_written_advice_has_what_was_free_settled(tmp_path):
    words = ["advise", "--recorded", str(FOLDERS[0] / "advice.json.xz")]
    assert "settled" in ncuflow(*words, "--also", "page_size=1").stderr
    (tmp_path / "x.json").write_text('{"shapes": []}')
    with pytest.raises(BadInput, match="not an advice"):
        dispatch(["advise", "--recorded", str(tmp_path / "x.json")])
