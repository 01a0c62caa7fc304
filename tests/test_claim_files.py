"""Claim files: what is read, and what is refused with file, claim and key."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from re._constants import MAX_REPEAT, MAXREPEAT, MIN_REPEAT
from re._parser import SubPattern, parse

import pytest
from claims_data import ROOT, claim, decide, judged, write
from command import ncuflow
from pydantic import BaseModel
from results_data import entry, kernel, results

from ncuflow.claims import files
from ncuflow.claims.files import (
    Applies,
    Citation,
    Claim,
    Decision,
    Published,
    ReasonText,
    Tolerance,
)
from ncuflow.io import BadInput


def test_a_claim_needs_no_code(tmp_path):
    """The documentation's example, written to a folder, appears in the output with a verdict."""
    text = (ROOT / "docs/claims.md").read_text()
    example = re.search(r"```yaml\n(defaults:.*?)```", text, re.DOTALL)
    folder, found = tmp_path / "claims", tmp_path / "results"
    folder.mkdir()
    found.mkdir()
    (folder / "talk.yaml").write_text(example[1])
    rates = {"gbs": 4200.0, "gbs_fraction_datasheet": 0.875, "sol_memory_pct": 95.0}
    point = entry("decode/B128", {"batch": 128, "kv_len": 2048}, **rates)
    (found / "decode_results.json").write_text(json.dumps(results(point)))
    out = tmp_path / "claims.json"
    words = ("--results", found, "--claims", folder, "--out", out)
    assert ncuflow("check", "claims", *words).returncode == 0
    (record,) = json.loads(out.read_text())
    content = json.loads(out.with_name("claims_summary.json").read_text())
    assert record["verdict"] == "confirmed" and record["source"]["document"] == "a talk"
    assert record["reason"] == "4200 GB/s were measured; under ncu memory is 95 % busy."
    others = dict.fromkeys(("refuted", "differs by architecture", "not testable here"), 0)
    assert content["summary"] == {"confirmed": 1, "total": 1} | others


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"aplies": 1}, "aplies"),
        ({"published": {"value": "many", "unit": ""}}, "published.value"),
        ({"decide": {"value": "gbs", "compare": "about"}}, "compare"),
        ({"decide": {"value": "gbs +", "compare": "within"}}, "not an expression"),
        ({"reasons": [{"when": "true", "say": "Here {gbs."}]}, "reasons[0].say: a brace"),
        ({"reasons": [{"when": "false", "say": "Here {gbs +}."}]}, "reasons[0].say: not an expr"),
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
        ({"applies": {"target": "decod"}}, "applies.target: unknown target 'decod'; there are: activation, "),
        ({"applies": {"target": "decod"}, "decide": []}, "applies.target: unknown target 'decod'"),
        ({"decide": JIT | {"select": {"target": "jti"}}}, "decide[0].select.target: unknown target 'jti'"),
        ({"decide": decide("a_gbs", "within", samples={"a": {}, "b": {"target": "rop"}})},
         "decide[0].samples.b.target: unknown target 'rop'"),
        ({"applies": {"target": "jit"}}, "jit has no points; it needs over: jit"),
        ({"decide": decide("gbs", "within", select={"target": "jit"})}, "jit has no points"),
        ({"decide": decide("gbs", "between")}, "compare 'between' needs published.range"),
        ({"published": {"value": None, "unit": ""}}, "compare 'within' needs published.value"),
    ],
)  # fmt: skip
def test_a_claim_that_decides_nothing_names_file_and_claim(tmp_path, changes, message):
    folder = write(tmp_path / "claims", claim(**changes))
    named = re.escape(f"{folder / 'talk.yaml'}: claim 'x'") + "(, |: )" + re.escape(message)
    with pytest.raises(BadInput, match=named):
        files.load(folder)


def test_jit_is_a_target_of_what_is_decided_over_it_or_over_the_source(tmp_path):
    source = {"over": "source", "value": 'reads_variable("A")', "compare": "holds"}
    for how in ([], JIT, source, [JIT, source]):
        folder = write(tmp_path / "claims", claim(applies={"target": "jit"}, decide=how))
        assert files.load(folder)


CLAIM = "claims: [{{id: x, statement: s, source: {{document: d, section: s}}, published: {{value: 1, unit: s}}, {0}}}]"
DECODE = "applies: {target: decode}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Input should be"),
        ("[]", "Input should be"),
        ("claims: 5", "claims: "),
        ("claims: []", "claims: "),
        ("claims: [5]", "claims[0]: "),
        ("claims: [{statement: s}]", "claims[0].id: "),
        ("claims: [{id: x, cases: 5}]", "claims[0].cases: "),
        ("claims: [{id: x, cases: [{statement: s}]}]", "claims[0].cases[0].id: "),
        ("defaults: []\nclaims: [{id: x}]", "defaults: "),
        ("defaults: {applies: 5}\nclaims: [{id: x}]", "claim 'x', "),
        (CLAIM.format("applies: decode"), "claim 'x', applies: "),
        (CLAIM.format("applies: {target: [decode]}"), "claim 'x', applies.target: "),
        (CLAIM.format(f"{DECODE}, decide: gbs"), "claim 'x', decide[0]: "),
        (CLAIM.format(f"{DECODE}, decide: [[gbs]]"), "claim 'x', decide[0]: "),
        (CLAIM.format(f"{DECODE}, reasons: {{when: true}}"), "claim 'x', reasons: "),
        (CLAIM.format(f"{DECODE}, path: talk.yaml"), "claim 'x', path: "),
        (CLAIM.format("applies: {target: decode, where: {a: 1}}"), "where: not an expression"),
        (CLAIM.format("needs: 2026-13-45"), "not YAML (month must be in 1..12"),
        (CLAIM.format("source: {}"), "a key is given twice, line 1"),
        ("claims: [{id: x, statement: !!bool maybe}]", "not YAML ('maybe'"),
        ("claims: [{id: x, ? [a] : b}]", "not YAML ("),
        ("claims: [\0]", "not YAML ("),
        ("claims: &a [*a]", "claims[0]: Input should be"),
        ("claims: " + "[" * 60 + "]" * 60, "claims[0]: Input should be"),
    ],
)
def test_a_file_of_another_shape_is_one_line_and_no_traceback(tmp_path, text, message):
    (tmp_path / "talk.yaml").write_text(text)
    with pytest.raises(BadInput) as raised:
        files.load(tmp_path)
    said = str(raised.value)
    assert said.startswith(f"{tmp_path / 'talk.yaml'}: ") and message in said and "\n" not in said


@pytest.mark.parametrize("number", [True, "4", float("nan"), float("inf"), 10**400])
def test_a_figure_is_a_finite_number(tmp_path, number):
    published = {"value": number, "unit": ""}
    with pytest.raises(BadInput, match=r"published\.value: not a (finite )?number"):
        files.load(write(tmp_path / "claims", claim(published=published)))


def test_what_is_no_text_file_is_one_line(tmp_path):
    (tmp_path / "talk.yaml").write_bytes(b"claims: [\xff\xfe]")
    with pytest.raises(BadInput, match="not YAML"):
        files.load(tmp_path)
    (tmp_path / "talk.yaml").unlink()
    os.mkfifo(tmp_path / "talk.yaml")
    with pytest.raises(BadInput, match="not a file"):
        files.load(tmp_path)


def patterns(node: object) -> Iterator[str]:
    """Texts that expressions of a record search by."""
    if isinstance(node, BaseModel):
        node = dict(node)
    if isinstance(node, list | tuple | dict):
        for value in node.values() if isinstance(node, dict) else node:
            yield from patterns(value)
    elif isinstance(node, str):
        searches = r'(?:matches|count|capture)\(\s*\w+,\s*("(?:[^"\\]|\\.)*")'
        yield from map(ast.literal_eval, re.findall(searches, node))


def nested(parsed: object, inside: bool = False) -> bool:
    """Whether an unlimited repetition stands inside another, in what Python's own parser made of a pattern."""
    if isinstance(parsed, SubPattern):
        return any(nested(part, inside) for part in parsed)
    if not isinstance(parsed, tuple | list):
        return False
    if len(parsed) == 2 and parsed[0] in (MAX_REPEAT, MIN_REPEAT):
        (_, most, repeated) = parsed[1]
        unlimited = most is MAXREPEAT
        return (inside and unlimited) or nested(repeated, inside or unlimited)
    return any(nested(part, inside) for part in parsed)


def test_no_pattern_of_a_shipped_claim_may_take_for_ever_on_a_name_that_somebody_chose():
    assert nested(parse("x(a|b*)+")) and nested(parse("(?:(a+?)|b)*"))
    assert not nested(parse("(?:[^,]*,){6}a*b+"))
    claims = [files.load_file(file) for file in sorted((ROOT / "claims").glob("*.yaml"))]
    shipped = list(patterns(claims))
    assert len(shipped) > 10 and not [p for p in shipped if nested(parse(p))]


def test_every_key_is_documented():
    text = (ROOT / "docs/claims.md").read_text()
    documented = set(re.findall(r"`([a-z]+)`", text))
    models = (Claim, Citation, Published, Applies, Decision, Tolerance, ReasonText)
    keys = {key for model in models for key in model.model_fields} - {"path"}
    assert keys - documented == set()


def test_an_id_is_used_once(tmp_path):
    with pytest.raises(BadInput, match=r"already in talk\.yaml"):
        files.load(write(tmp_path / "claims", claim(), claim()))


def test_a_wrong_name_names_claim_and_name(tmp_path):
    named = re.escape(str(tmp_path / "claims/talk.yaml"))
    with pytest.raises(BadInput, match=rf"^{named}: claim 'x'.*unknown name 'gsb'"):
        judged(tmp_path, decide=decide("gsb", "within"))


@pytest.mark.parametrize(
    "say", ["{gbs:.0q}", "{batch:s}", "{kernel_names:.1f}", "{gbs:999999999}", "{gbs:.999999f}"]
)
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
    assert (small.id, large.id) == ("x-small", "x-large")
    assert small.applies.where == "(heads == 8) and (batch < 9)"
    assert (large.published.value, large.published.unit) == (2, "GB/s")
    assert (small.source.document, small.source.section) == ("a book", "1")
