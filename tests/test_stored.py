"""Results that are read again: what is none is one line, in every command that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT
from results_data import entry, results

from ncuflow.cli import dispatch
from ncuflow.findings import stored
from ncuflow.io import BadInput

GOOD = results(entry("decode/B1", {}))
POINT = GOOD["points"][0]
DAMAGED = [
    [], {}, "x", None, GOOD | {"points": 3}, GOOD | {"points": [3]}, GOOD | {"deep": None},
    GOOD | {"provenance": []}, GOOD | {"target": 5},
    GOOD | {"points": [POINT | {"status": "fine"}]}, GOOD | {"points": [POINT | {"measurement": []}]},
    GOOD | {"points": [POINT | {"measurement": {"time_cold_us": [1.0]}}]},
]  # fmt: skip


def written(folder: Path, content: object, name: str = "decode") -> Path:
    folder.mkdir()
    path = folder / f"{name}_results.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert stored.results(written(tmp_path / "results", GOOD)) == GOOD


@pytest.mark.parametrize("content", DAMAGED)
def test_what_is_no_results_is_one_line(tmp_path: Path, content: object) -> None:
    with pytest.raises(BadInput, match=r"_results\.json: not the results of a target \(") as found:
        stored.results(written(tmp_path / "results", content))
    assert "\n" not in str(found.value)


def test_a_file_holds_the_target_that_its_name_says(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"rope_results\.json: has the results of decode"):
        stored.results(written(tmp_path / "results", GOOD, "rope"))


@pytest.mark.parametrize(
    "command",
    [
        "require {0}/need.yaml --results {0}/results", "sanity {0}/results", "trace decode/B1 gbs {0}",
        "export bencher --results {0}/results --out {0}/x", "compare {0}/results {0}/results",
        "predict --measured {0}/results --on {0}/results --out {0}/x",
        "claims --results {0}/results --claims {1} --out {0}/x",
        "hotlines --results {0}/results/decode_results.json --evidence {0} --out {0}/x",
        "pages target --target decode --results {0}/results --evidence {0} --out-dir {0}/x",
        "report {0} --evidence {0} --out {0}/x",
    ],
)  # fmt: skip
def test_no_command_takes_what_is_no_results(tmp_path: Path, command: str) -> None:
    written(tmp_path / "results", {"points": [{"point": "decode/B1"}]})
    (tmp_path / "need.yaml").write_text('[{points: ["*"], hold: "gbs > 1"}]')
    with pytest.raises(BadInput, match=r"decode_results\.json: not the results of a target"):
        dispatch(command.format(tmp_path, ROOT / "claims").split())
    assert not (tmp_path / "x").exists()
