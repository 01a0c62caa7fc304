"""Records that are read again, with each kind of field in turn something that it cannot be: one line, or nothing printed of it.

The default run takes of each field the values of one in a few; all of them carry the marker ``exhaustive``.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, some
from results_data import completed, entry, kernel, results
from trial_data import as_is, trial

from ncuflow.cli import dispatch
from ncuflow.compare import records
from ncuflow.compare.records import Comparison, Named, PointChange, Statistics, Thresholds
from ncuflow.experiments import bisection
from ncuflow.experiments.bisection import BisectStep
from ncuflow.findings.statistics import SLOWER, Floor
from ncuflow.io import CommandError, dump_json, read_json
from ncuflow.model import Results
from ncuflow.target.contract import load

MARK = "@@"
VALUES = ("-5e5", "-555555", "1" + "0" * 400, "1e999", "NaN", "5.55555e300", '"x"', "[1]", "null", '{"a": {}}', "0",
          "true", "[" * 9999 + "]" * 9999)  # fmt: skip
PRINTED = re.compile(r"555555|5\.55555e\+?300|-500000|0{22}|\b(nan|inf|infinity)\b", re.IGNORECASE)
EVERY = 41  # of the cases of a record one so many is tried in the default run


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, of a list those of its first entry."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:1]) if isinstance(value, list) else inner
    for key, one in inner:
        yield from places(one, (*path, key))


def put(content: Any, path: tuple[Any, ...], text: str) -> str:
    """The record as JSON with this text in the place of a field."""
    if not path:
        return text
    made = json.loads(json.dumps(content))
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = MARK
    return json.dumps(made).replace(f'"{MARK}"', text)


def a_results() -> Any:
    counted = {"warp_latency_per_issue": 10.2, "sm_throughput_pct": 50.0}
    launch = kernel("Main", counted, long_scoreboard=6.0, wait=4.0)
    launch |= {"grid": "1,2,3", "block": "128,1,1", "registers": 40, "point": "decode/B1"}
    part = {"parent": "sm_throughput_pct", "counter": "c", "unit": "dram", "pct": 40.0}
    rule = {"rule": "r", "section": "s", "message": "m", "type": "ok"}
    rule |= {"speedup_pct": 1.0, "speedup_type": "local"}
    launch |= {"breakdown": [part], "rules": [rule]}
    line = {"pc": 0, "sass": "LDG", "opcode": "LDG", "file": "include/flashinfer/x.cuh", "line": 3, "function": "f",
            "samples": 5, "samples_not_issued": 1, "reason": "wait"}  # fmt: skip
    row = {"time_cold_us": 100.0, "time_cold_q25_us": 99.0, "time_cold_q75_us": 101.0, "bytes_analytic": 1e8, "gbs": 1000.0,
           "verdict": "bound", "busiest_unit": "dram", "busiest_pct": 90.0, "ceiling_dram_gbs_measured": 4000.0,
           "top_stall": "wait", "top_stall_share": 0.4, "grid_size": 6, "registers": 40, "architecture": "sm_90"}  # fmt: skip
    point = entry("decode/B1", dict(load("decode").parameters), [launch], **row)
    times = [99.0, 100.0, 101.0]
    point |= {"samples": {"cold_us": times}, "runs": {"cold_us": [times]}}
    floor = {"floor": 0.01, "n": 3, "points": 2, "how": "x", "by_time": [[0.0, 0.01]]}
    more = {"deep": [launch | {"lines": [line]}], "noise": {"time_cold_us": floor}}
    return completed(results(point) | more, Results)


def a_comparison() -> Any:
    row = {"base": 10.0, "head": 12.0, "relative": 0.2, "low": 0.1, "high": 0.3, "p": 1e-9, "floor": 0.01, "basis": "runs",
           "runs": (3, 3), "samples": (9, 9), "q": 1e-9, "verdict": SLOWER}  # fmt: skip
    cause = records.Cause("code", "Main", "a", "b", 2.0, "ncu", 1.0)
    change = records.MetricChange(**row, causes=[cause], unexplained=0.0)
    of = {"id": "decode/B1", "target": "decode", "metric": "cold_us"}
    point = PointChange(**vars(change), **of, metrics={"cold_us": change})
    side = Named("a", {"gpu": "NVIDIA H200"})
    statistics = Statistics(1, {"cold_us": Floor(0.01, 3, "repeats")}, ["n"])
    return asdict(Comparison(side, side, [], Thresholds(), statistics, [point], [], []))


def an_advice() -> Any:
    advice = read_json(ROOT / "examples/advice/h200/advice.json.xz")
    shape = advice["shapes"][0]
    kept = [one for one in shape["choices"] if one["point"] in (shape["shape"], shape["advised"])]
    return advice | {"shapes": [shape | {"choices": kept}], "rules": []}


def a_step() -> Any:
    change = {"estimate": 0.1, "low": 0.05, "high": 0.2}
    times = {"base_us": 1.0, "head_us": 1.1, "change": change}
    return BisectStep(base="1", head="2", belongs="after", **times).model_dump()


# Of each kind of record a valid one, the file that it stands in, and the commands that read it.
KINDS: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    "results": (a_results, "results/decode_results.json", [
        "explain decode/B1 --outputs {0}", "explain decode/B1 --outputs {0} --json", "trace decode/B1 gbs {0}",
        "trace decode/B1 stall_wait {0}", "require {0}/need.yaml --results {0}/results",
        "export bencher --results {0}/results --out {0}/x", "export benchmark-action --results {0}/results --out {0}/x",
        "compare {0}/results {0}/results", "compare {0}/results {0}/results --json", "advise --recorded {0}",
    ]),
    "comparison": (a_comparison, "compare.json", [
        "gate {0}/compare.json", "gate {0}/compare.json --json",
        "export junit --results {0}/good --comparison {0}/compare.json --out {0}/x",
    ]),
    "advice": (an_advice, "advice.json", [
        "advise --recorded {0}/advice.json", "advise --recorded {0}/advice.json --html {0}/x.html --apply python {0}/x.py",
    ]),
    "trial": (lambda: trial(as_is).model_dump(mode="json"), "try.json", ["trial-page {0}/try.json --out {0}/x.html"]),
}  # fmt: skip


@cache
def cases(kind: str) -> list[tuple[str, tuple[Any, ...]]]:
    content = KINDS[kind][0]()
    return [(text, path) for path in places(content) for text in VALUES]


def tried(
    folder: Path, kind: str, case: tuple[str, tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command answers a hostile record, or says one line; neither has the value."""
    made, name, commands = KINDS[kind]
    text, path = case
    (folder / name).write_text(put(made(), path, text), encoding="utf-8")
    for command in commands:
        try:
            dispatch(command.format(folder).split())
        except CommandError as error:
            assert "\n" not in str(error), (command, path)
        printed = capsys.readouterr().out
        told = "limit" in path or "settings" in path
        assert told or not PRINTED.search(printed), (command, path, text[:20])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("results", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "decode_results.json").write_text(dump_json(a_results()))
    (tmp_path / "need.yaml").write_text('[{points: ["*"], hold: "gbs > 1 and registers < 200"}]')
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_are_read_as_they_are(folder, kind, capsys):
    made, name, commands = KINDS[kind]
    (folder / name).write_text(dump_json(made()))
    for command in commands:
        assert dispatch(command.format(folder).split()) in (None, 0, 1, 3), command
    assert "taken as missing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        *((kind, EVERY * (5 if kind == "results" else 1)) for kind in KINDS),
        *(pytest.param(kind, 1, marks=pytest.mark.exhaustive) for kind in KINDS),
    ],
)
def test_a_hostile_field_of_a_record_is_one_line_or_not_printed(folder, kind, every, capsys):
    for case in some(cases(kind)[::every]):
        tried(folder, kind, case, capsys)


def test_a_hostile_step_of_a_journal_is_one_line(tmp_path: Path) -> None:
    def unmeasured(base: str, head: str) -> BisectStep:
        raise AssertionError("nothing is measured")

    path, question = tmp_path / "journal", {"point": "decode/B1"}
    for place in places(a_step()):
        for text in VALUES:
            path.write_text(f"{json.dumps(question)}\n{put(a_step(), place, text)}\n")
            try:
                bisection.journaled(unmeasured, path, question)
            except CommandError as error:
                assert "\n" not in str(error)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="not a journal"):
        bisection.journaled(unmeasured, path, question)
