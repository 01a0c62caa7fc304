"""Claim files: what is read, and what is refused with file, claim and key."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from claims_data import ROOT, claim, decide, judged, write
from results_data import entry, kernel, results

from ncuflow.claims import files
from ncuflow.io import BadInput


def test_a_claim_needs_no_code(tmp_path):
    """The documentation's example, written to a folder, appears in the output with a verdict."""
    example = re.search(
        r"```yaml\n(defaults:.*?)```", (ROOT / "docs/claims.md").read_text(), re.DOTALL
    )
    folder, found = tmp_path / "claims", tmp_path / "results"
    folder.mkdir()
    found.mkdir()
    (folder / "talk.yaml").write_text(example[1])
    point = entry(
        "decode/B128", {"batch": 128, "kv_len": 2048}, gbs=4200.0, gbs_fraction_datasheet=0.875,
        sol_memory_pct=95.0,
    )  # fmt: skip
    (found / "decode_results.json").write_text(json.dumps(results(point)))
    out = tmp_path / "claims.json"
    command = [
        "-m",
        "ncuflow.claims.audit",
        "--results",
        str(found),
        "--claims",
        str(folder),
        "--out",
        str(out),
    ]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    (record,) = json.loads(out.read_text())
    content = json.loads(out.with_name("claims_summary.json").read_text())
    assert record["verdict"] == "confirmed" and record["source"]["document"] == "a talk"
    assert record["reason"] == "4200 GB/s were measured; under ncu memory is 95 % busy."
    assert content["summary"] == {
        "confirmed": 1, "refuted": 0, "differs by architecture": 0, "not testable here": 0,
        "total": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"aplies": 1}, "aplies"),
        ({"published": {"value": "many", "unit": ""}}, "published.value"),
        ({"decide": {"value": "gbs", "compare": "about"}}, "compare"),
        ({"decide": {"value": "gbs +", "compare": "within"}}, "not an expression"),
        ({"id": "Not An Id"}, "id"),
    ],
)
def test_an_error_in_a_file_names_file_claim_and_key(tmp_path, broken, message):
    with pytest.raises(BadInput) as raised:
        files.load(write(tmp_path / "claims", claim(), claim(**({"id": "y"} | broken))))
    assert "talk.yaml" in str(raised.value) and message in str(raised.value)
    assert broken.get("id", "y") in str(raised.value)


JIT = {"over": "jit", "value": "cold_build_s", "compare": "at least"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"applies": {"target": "decod"}}, "unknown target 'decod'; there are: decode, "),
        ({"applies": {"target": "decod"}, "decide": []}, "unknown target 'decod'"),
        ({"decide": JIT | {"select": {"target": "jti"}}}, "unknown target 'jti'"),
        (
            {"decide": decide("a_gbs", "within", samples={"a": {}, "b": {"target": "rop"}})},
            "unknown target 'rop'",
        ),
        ({"applies": {"target": "jit"}}, "jit has no points; it needs over: jit"),
        ({"decide": decide("gbs", "within", select={"target": "jit"})}, "jit has no points"),
    ],
)
def test_a_target_that_decides_nothing_names_file_and_claim(tmp_path, changes, message):
    folder = write(tmp_path / "claims", claim(**changes))
    with pytest.raises(BadInput, match=f"{folder / 'talk.yaml'}: claim 'x': {message}"):
        files.load(folder)


def test_jit_is_a_target_of_what_is_decided_over_it_or_over_the_source(tmp_path):
    source = {"over": "source", "value": 'reads_variable("A")', "compare": "holds"}
    for how in ([], JIT, source, [JIT, source]):
        folder = write(tmp_path / "claims", claim(applies={"target": "jit"}, decide=how))
        assert files.load(folder)


def test_an_id_is_used_once(tmp_path):
    with pytest.raises(BadInput, match=r"already in talk\.yaml"):
        files.load(write(tmp_path / "claims", claim(), claim()))


def test_a_wrong_name_names_claim_and_name(tmp_path):
    named = re.escape(str(tmp_path / "claims/talk.yaml"))
    with pytest.raises(BadInput, match=rf"^{named}: claim 'x'.*unknown name 'gsb'"):
        judged(tmp_path, decide=decide("gsb", "within"))


@pytest.mark.parametrize("say", ["{gbs:.0q}", "{batch:s}", "{kernel_names:.1f}"])
def test_a_wrong_format_names_claim_and_placeholder(tmp_path, say):
    point = entry("decode/B1", {"batch": 1}, [kernel()], gbs=4000.0)
    named = re.escape(f"{tmp_path / 'claims/talk.yaml'}: claim 'x': {say}: ")
    with pytest.raises(BadInput, match=named):
        judged(tmp_path, point, reasons=[{"when": True, "say": f"At {say}."}])


def test_cases_and_defaults_are_laid_over(tmp_path):
    cases = [
        {"id": "small", "statement": "Small.", "applies": {"where": "batch < 9"}},
        {"id": "large", "statement": "Large.", "published": {"value": 2}},
    ]
    base = claim(applies={"target": "decode", "where": "heads == 8"}, cases=cases)
    del base["source"]["document"]
    folder = write(tmp_path / "claims", base, defaults={"source": {"document": "a book"}})
    small, large = files.load(folder)
    assert (small["id"], large["id"]) == ("x-small", "x-large")
    assert small["applies"]["where"] == "(heads == 8) and (batch < 9)"
    assert large["published"] == {"value": 2, "unit": "GB/s"}
    assert small["source"] == {"document": "a book", "section": "1"}
