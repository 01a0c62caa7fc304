"""Results that are read again: what is none is one line, in every command that takes them."""

import json
from pathlib import Path

import pytest
from conftest import ROOT
from results_data import completed, entry, kernel, results

from ncuflow.cli import dispatch
from ncuflow.findings import results as made
from ncuflow.findings import sanity, stored
from ncuflow.io import BadInput, read_json, write_text
from ncuflow.model import Results
from ncuflow.parquet import build, schema, write_table
from ncuflow.target.contract import load

GOOD = results(entry("decode/B1", dict(load("decode").parameters)))
POINT = GOOD["points"][0]
DAMAGED = [
    [], {}, "x", None, GOOD | {"points": 3}, GOOD | {"points": [3]}, GOOD | {"deep": None},
    GOOD | {"provenance": []}, GOOD | {"target": 5},
    GOOD | {"points": [POINT | {"status": "fine"}]}, GOOD | {"points": [POINT | {"measurement": []}]},
    GOOD | {"points": [POINT | {"measurement": {"time_cold_us": [1.0]}}]},
]  # fmt: skip

PLACE = {"file": "decode.py", "line": 751}
INDEX = {
    "version": "0.7.2",
    "targets": {"decode": {"api": {"python": PLACE | {"symbol": "flashinfer.decode.X"}}, "files": {}, "templates": [],
                           "kernels": []}},
    "environment": {"MAX_JOBS": [PLACE | {"default": None}]},
    "functions": {"data/include/flashinfer/x.cuh": [[1, 9, "f"]]},
    "signatures": {"X": [{"name": "q", "kind": "positional", "default": None}]},
}  # fmt: skip
MODULE = {"target": "decode", "aot": False, "cold": {"build_s": 9.5}, "cache": {"a.so": 1}}
JIT = {"modules": {"decode": MODULE}, "method": "in fresh processes", "cpu_count": 16}
BAD_INDEX = [
    [], {}, "x", INDEX | {"targets": []}, INDEX | {"targets": {"decode": 3}}, INDEX | {"version": 7},
    INDEX | {"environment": {"MAX_JOBS": []}}, INDEX | {"environment": {"MAX_JOBS": [{}]}},
    INDEX | {"functions": {"x.cuh": [[1, 9]]}}, INDEX | {"functions": {"x.cuh": [[1, "9", "f"]]}},
    INDEX | {"functions": []}, INDEX | {"signatures": {"X": [{}]}}, INDEX | {"signatures": ["X"]},
    INDEX | {"exports": "all"}, INDEX | {"templates": {"K": ["T"]}}, INDEX | {"scheduler": {"f": 1}},
]  # fmt: skip
BAD_JIT = [
    [], {}, "x", JIT | {"modules": []}, JIT | {"modules": {"decode": 3}}, JIT | {"cpu_count": "16"}, JIT | {"method": None},
    JIT | {"environment": ["CC"]}, *({**JIT, "modules": {"decode": MODULE | change}} for change in (
        {"cold": None}, {"cold": {"build_s": "9"}}, {"cold": {"build_s": -1.0}}, {"cold": {"ninja": {"flags": []}}},
        {"cache": ["a.so"]}, {"cache": {"a.so": None}}, {"aot": "no"}, {"target": None}, {"first_launch": 3},
        {"disk": {"memory_hit_s": {"median": 1e-6}}}, {"disk": {"memory_hit_s_samples": [None]}},
    )),
]  # fmt: skip


def written(folder: Path, content: object, name: str = "decode") -> Path:
    folder.mkdir()
    path = folder / f"{name}_results.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    read = stored.results(written(tmp_path / "results", GOOD))
    apart = {"points": [], "provenance": {}, "ceilings": {}}
    assert {key: read[key] for key in GOOD} | apart == GOOD | apart
    assert POINT.items() <= read["points"][0].items()


def test_a_parameter_that_a_file_lacks_had_its_default(tmp_path: Path) -> None:
    older = results(entry("decode/B1", {"batch": 1}))
    (point,) = stored.results(written(tmp_path / "results", older))["points"]
    defaults = load("decode").parameters
    assert point["params"] == {**defaults, "batch": 1} and defaults["batch"] != 1
    unknown = results(entry("none_of_these/B1", {"batch": 1}))
    path = written(tmp_path / "others", unknown, "none_of_these")
    assert stored.results(path)["points"][0]["params"].keys() == {"batch", "dtype"}


@pytest.mark.parametrize("value", ["x", 1.5, True, None, [1]])
def test_a_parameter_of_another_kind_is_one_line(tmp_path: Path, value: object) -> None:
    """In results that are read, and in a recording that results are made of."""
    strange = results(entry("decode/B1", {"batch": value}))
    with pytest.raises(BadInput) as found:
        stored.results(written(tmp_path / "results", strange))
    what = f"decode/B1: parameter 'batch' cannot be {value!r}"
    said = what if value != [1] else "not the results of a target (points[0].params.batch"
    assert f"decode_results.json: {said}" in str(found.value)

    (tmp_path / "environment.json").write_text(json.dumps({"provenance": GOOD["provenance"]}))
    row = dict.fromkeys(schema("timing").names) | {
        "point": "decode/B1", "batch": "b", "report": "r", "run": 0, "target": "decode", "status": "ok",
        "params": json.dumps({"batch": value}), "info": "{}",
    }  # fmt: skip
    write_table(tmp_path / "tables/timing.parquet", build("timing", [row]))
    with pytest.raises(BadInput) as found:
        made.results("decode", tmp_path / "tables", tmp_path, None)
    assert str(found.value).endswith(what)


def test_every_shipped_point_has_parameters_of_its_targets_kinds() -> None:
    for path in ROOT.glob("recordings/*/*/*/points.json"):
        for point in read_json(path):
            load(point["target"]).completed(point["params"])


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
        "check {0}/need.yaml --results {0}/results", "check sanity {0}/results", "trace decode/B1 gbs {0}",
        "export bencher --results {0}/results --out {0}/x", "compare {0}/results {0}/results",
        "static predict --measured {0}/results --on {0}/results --out {0}/x",
        "check claims --results {0}/results --claims {1} --out {0}/x",
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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("source_index.json", content) for content in (*BAD_INDEX, None)),
        *(("jit_analysis.json", content) for content in (*BAD_JIT, None)),
        *(("environment_info.json", content) for content in ([], {}, None)),
        *(("claims.json", content) for content in ({}, [3], None)),
        *(("claims_summary.json", content) for content in ([], {}, None)),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_one_line(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadInput, match=rf"{name}: not [a-z].* \(") as found:
        stored.optional(path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("targets --results {0}/other.json", "not the results of single APIs"),
        ("machine-page --environment {0}/other.json --out {0}/x", "not what is known of a machine"),
        ("pages INDEX --results {0}/results --evidence {0} --out-dir {0}/x", "leaves environment"),
        ("pages jit --results {0}/results --evidence {0} --out-dir {0}/x", "leaves jit_analysis"),
    ],
)
def test_what_a_command_needs_and_does_not_get_is_one_line(tmp_path, command, words):
    written(tmp_path / "results", GOOD)
    (tmp_path / "other.json").write_text('{"a": [1]}')
    with pytest.raises(BadInput, match=words) as found:
        dispatch(command.format(tmp_path).split())
    assert "\n" not in str(found.value) and not (tmp_path / "x").exists()


def test_what_evidence_lacks_is_none_and_what_it_has_is_as_written(tmp_path: Path) -> None:
    index, jit = tmp_path / "source_index.json", tmp_path / "jit_analysis.json"
    assert stored.optional(index) is None
    index.write_text(json.dumps(INDEX))
    jit.write_text(json.dumps(JIT))
    assert (stored.optional(index), stored.optional(jit)) == (INDEX, JIT)


@pytest.mark.parametrize(
    "command",
    [
        "check claims --results {0}/results --claims {1} --source-index {0}/named.json --out {0}/x",
        "check claims --results {0}/results --claims {1} --out {0}/x",
        "hotlines --results {0}/results/decode_results.json --evidence {0} --out {0}/x",
        "jit-results --evidence {0} --out {0}/x",
        "pages target --target decode --results {0}/results --evidence {0} --out-dir {0}/x",
        "pages jit --results {0}/results --evidence {0} --out-dir {0}/x",
        "report {0} --evidence {0} --out {0}/x",
    ],
)
def test_no_command_takes_an_index_or_a_jit_measurement_that_is_none(tmp_path, command):
    written(tmp_path / "results", GOOD)
    (tmp_path / "jit").mkdir()
    for name in ("source_index", "jit/jit_analysis", "results/jit_analysis", "named"):
        (tmp_path / f"{name}.json").write_text('{"targets": 3, "modules": 3}')
    with pytest.raises(BadInput, match=r"\.json: not (an index|what was measured)"):
        dispatch(command.format(tmp_path, ROOT / "claims").split())
    assert not (tmp_path / "x").exists()


IMPOSSIBLE = [
    {"time_cold_us": -5.0, "gbs": -7.5}, {"time_cold_us": 5e300}, {"sol_memory_pct": 117.0, "busiest_pct": -7.5},
    {"registers": 16_000}, {"bytes_dram_counted": -5.0}, {"time_cold_us": "5"}, {"busiest_unit": 5, "limiter": 5},
    {"time_cold_us": 4.0, "time_cold_q25_us": 5.5, "time_cold_q75_us": 6.5},
]  # fmt: skip


@pytest.mark.parametrize("columns", IMPOSSIBLE)
def test_an_impossible_number_is_null_with_what_is_computed_from_it(tmp_path, capsys, columns):
    path = written(tmp_path / "results", results(entry("decode/B1", {}, **columns)))
    row = stored.results(path)["points"][0]["measurement"]
    assert row[next(iter(columns))] is None and sanity.check(stored.results(path)) == []
    (said,) = capsys.readouterr().err.splitlines()
    assert "taken as missing (`ncuflow check sanity`): decode/B1: " in said
    raw = stored.results(path, struck=False)["points"][0]["measurement"]
    assert columns.items() <= raw.items()
    assert sanity.check({"points": [entry("decode/B1", {}, **columns)], "deep": []})


def test_a_sample_and_a_count_of_a_launch_that_cannot_be_are_struck(tmp_path: Path) -> None:
    launch = kernel("Main", {"dram_bytes_read": -1.0}) | {"registers": -3, "point": "decode/B1"}
    bad = entry("decode/B1", {}, [launch], time_cold_us=5.0, gbs=2.0)
    bad |= {"samples": {"cold_us": [5.0, -5.0]}, "runs": {"cold_us": [[5.0]], "hot_us": [[4.0]]}}
    deep = [launch | {"lines": [], "registers": -3}]
    content = completed(results(bad) | {"deep": deep}, Results)
    found = stored.results(written(tmp_path / "results", content))
    (point,), (deep,) = found["points"], found["deep"]
    assert "cold_us" not in point["samples"] and point["runs"] == {"hot_us": [[4.0]]}
    assert point["measurement"]["time_cold_us"] is None and point["measurement"]["gbs"] is None
    assert point["kernels"][0]["registers"] is None is deep["registers"]
    assert point["kernels"][0]["metrics"]["dram_bytes_read"] is None


def test_a_file_without_bytes_is_not_read() -> None:
    """Of what the kernel has under /proc some waits for ever."""
    with pytest.raises(BadInput, match="an empty file"):
        read_json("/proc/self/status")


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path: Path) -> None:
    write_text(tmp_path / "x.html", json.loads('"a\\ud800b"'))
    assert (tmp_path / "x.html").read_bytes() == b"a?b"


def test_what_a_run_read_once_is_given_to_one_and_read_again_where_it_changed(
    tmp_path, monkeypatch
):
    path = written(tmp_path / "results", GOOD)
    own = stored.results(path)
    stored.share(["--results", str(tmp_path), str(tmp_path / "none_results.json")])
    with monkeypatch.context() as patch:
        patch.setattr(stored, "read_json", None)
        kept = stored.results(path)
    assert kept == own
    kept["points"].clear()
    assert stored.results(path) == own, "who changes it does so alone"
    stored.share([str(path)])
    path.write_text(json.dumps(GOOD | {"deep": [], "warnings": [], "points": []}), encoding="utf-8")
    assert stored.results(path)["points"] == []
    path.write_text("{", encoding="utf-8")
    stored.share([str(path)])
    with pytest.raises(BadInput):
        stored.results(path)
