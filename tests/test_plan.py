"""The plan of a batch: what it is told on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import ncuflow

from ncuflow.cli import dispatch

POINT = {"id": "decode/x", "target": "decode", "params": {"batch": 1}}


def test_points_are_written_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "points.json"
    assert dispatch(["plan", "--points", json.dumps([POINT]), "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == [POINT]


def test_there_may_be_no_pairs(tmp_path: Path) -> None:
    for pairs in ([], [POINT, POINT]):
        assert dispatch(["plan", "--pairs", json.dumps(pairs), "--out", str(tmp_path / "p")]) == 0
        assert json.loads((tmp_path / "p").read_text()) == pairs


def test_blocks_are_expanded(tmp_path: Path) -> None:
    out = tmp_path / "points.json"
    blocks = ["--target", "decode", "--blocks", '[{"batch": [1, 32]}]']
    assert dispatch(["plan", *blocks, "--out", str(out)]) == 0
    assert [point["params"]["batch"] for point in json.loads(out.read_text())] == [1, 32]


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--blocks", '{"batch": 1}', "not a list of one object or more"),
        ("--blocks", "[3]", "not a list of one object or more"),
        ("--blocks", "[]", "not a list of one object or more"),
        ("--blocks", "[", "not JSON"),
        ("--blocks", "[" * 5000, "nested too deep"),
        ("--blocks", '[{"btach": 1}]', "unknown parameter 'btach'"),
        ("--blocks", '[{"batch": {"a": 1}}]', "parameter 'batch' cannot be"),
        ("--points", "5", "not a list of one object or more"),
        ("--points", "[]", "not a list of one object or more"),
        ("--pairs", '[{"id": "decode/x"}]', "a point without id, target and params"),
        ("--points", '[{"id": "decode/x"}]', "a point without id, target and params"),
        ("--points", json.dumps([POINT | {"params": {"batch": float("nan")}}]), "NaN is not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_bad_usage_and_writes_nothing(tmp_path, capsys, option, text, message):
    target = ["--target", "decode"] if option == "--blocks" else []
    with pytest.raises(SystemExit) as ended:
        dispatch(["plan", *target, option, text, "--out", str(tmp_path / "points.json")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_in_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    done = ncuflow("plan", "--points", json.dumps([POINT]), "--out", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: Is a directory\n")
    assert not list(tmp_path.iterdir())
