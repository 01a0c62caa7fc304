"""What commands say with --json: every verb's real output is what its shipped schema says, and bounded by --limit."""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trial_data
from command import ncuflow
from conftest import ROOT, some

from ncuflow.cli import PARTS, USER, dispatch
from ncuflow.findings import derivation, stored
from scripts import docs

pytestmark = pytest.mark.usefixtures("read_once")

RECORDING = ROOT / "recordings/h200/0.7.2/default"
DEEP = RECORDING / "decode/deep/deep.ncu-rep.xz"
TRACE = next((RECORDING / "decode").glob("b*/trace.sqlite.xz"))
POINT = "decode/B32_L2048_H32_K8_D128_P16_f16_cc"
FA3 = ("0.5.3/decode", "0.6.1/decode")  # before and while decode's `auto` took it
TENSOR = "decode/B16_L2048_H32_K8_D128_P16_f16_tc"
# what needs a GPU: `test_a_trial_is_what_its_schema_says`
GPU_LESS = ("try",)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of decode, of two recordings, and a comparison that has a slow-down."""
    folder = tmp_path_factory.mktemp("outputs")
    stored.make_results(RECORDING, ["decode"], folder)
    stored.make_results(ROOT / "recordings/h100/0.7.2/default", ["decode"], folder / "h100")
    sides = [ROOT / f"recordings/h200/0.6.18/{name}" for name in ("baseline", "planted-slow-downs")]
    words = [*map(str, sides), "--format", "json", "--out", str(folder / "compare.json")]
    assert dispatch(["compare", *words]) == 0
    wrong = folder / "wrong"
    shutil.copytree(folder / "results", wrong)
    found = json.loads((wrong / "decode_results.json").read_text())
    found["points"][0]["measurement"] |= {"time_cold_us": -1.0, "busiest_pct": 130.0}
    (wrong / "decode_results.json").write_text(json.dumps(found))
    (folder / "gate.yaml").write_text('- {points: "decode/*", hold: "of_roof >= 0.6"}\n')
    (folder / "tuned.json").write_text('{"key": ["Runner", 0]}')
    (folder / "list.txt").write_text("--routine BatchDecodeWithPagedKVCacheWrapper --nothing 1\n")
    shutil.copytree(ROOT / "claims", folder / "claims")
    (folder / "upgrade.json").write_text(trial_data.upgraded().model_dump_json())
    return folder


def said(name: str, outputs: Path) -> list[list[str]]:
    """Words of a verb, without its name and --json; several where it answers in several ways."""
    results, out = str(outputs / "results"), str(outputs / "out.json")
    old, new = (ROOT / f"recordings/h200/{version}/versions" for version in ("0.5.3", "0.6.1"))
    sides = [str(next((side / "prefill").glob("b*/sweep*"))) for side in (old, new)]
    words: dict[str, list[list[str]]] = {
        "show": [[str(DEEP)], [str(TRACE)]],
        "explain": [[str(DEEP)], [str(TRACE)], [POINT, "--outputs", str(outputs)]],
        "compare": [sides, [str(old), str(new)]],
        "advise": [
            ["--recorded", results],
            ["--audit", str(outputs / "tuned.json"), str(outputs / "tuned.json")],
        ],
        "upgrade": [["--again", str(outputs / "upgrade.json")]],
        "upgrade bisect": [
            ["--recorded", *(str(ROOT / f"recordings/h200/{v}") for v in FA3), "--point", TENSOR]
        ],
        "step": [[str(TRACE), "--recording", str(outputs)]],
        "trace": [[f"{DEEP}#0", "busiest_pct"], [POINT, "gbs_fraction_counter", str(outputs)]],
        "check claims": [
            ["--results", results, "--claims", str(outputs / "claims"), "--targets", "decode"]
        ],
        "check": [
            [str(outputs / "gate.yaml"), "--results", results],
            [str(outputs / "compare.json"), "--threshold", "0.01"],
        ],
        "check sanity": [[results], [str(outputs / "wrong")]],
        "preflight": [["--recorded"]],
        "targets": [[]],
        "workload": [[str(workload(outputs)), "--out", out]],
        "static predict": [["--measured", results, "--on", str(outputs / "h100/results")]],
        "static counters": [["gh100"]],
    }
    return words[name]


def workload(outputs: Path) -> Path:
    """A list of two cases, of which no target measures the second."""
    lines = [
        {"definition": definition, "workload": {"uuid": "u", "axes": axes, "inputs": {}}}
        for definition, axes in (("fused_add_rmsnorm_h5120", {"batch_size": 64}), ("acme_call", {"n": 9}))
    ]  # fmt: skip
    path = outputs / "cases.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def schema(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"ncuflow/schemas/{name.split()[-1]}.json").read_text())


# What people call and has no answer to --json, and why.
SILENT = {
    "run": "Snakemake's to say",
    "export": "it writes a file of another tool's format",
    "export script": "it writes a file of Python",
    "step annotate": "what it runs answers",
    "view": "it writes a page",
    "mcp": "it answers over a protocol of its own",
    "record": "it writes a folder with its own manifest",
    "static": "it writes files",
}
ANSWERING = [name for name in USER | PARTS if name not in SILENT]
Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Asked:
    def ask(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        dispatch([*words, "--json"])
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert isinstance(found, dict)
        return found

    return ask


def test_every_verb_answers_or_says_why_not() -> None:
    shipped = {path.stem for path in (ROOT / "ncuflow/schemas").glob("*.json")}
    assert shipped == docs.ANSWERS.keys() == {name.split()[-1] for name in ANSWERING}


@pytest.mark.parametrize("name", [name for name in ANSWERING if name not in GPU_LESS])
def test_the_answer_of_a_verb_is_what_its_schema_says(name, outputs, asked):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    for words in some(said(name, outputs)):
        whole = asked(*name.split(), *words)
        jsonschema.validate(whole, schema(name))
        assert whole["command"] == name.split()[-1]
        assert (whole["schema_version"], whole["left_out"]) == (1, 0)
        brief = asked(*name.split(), *words, "--limit", "1")
        jsonschema.validate(brief, schema(name))
        assert brief["left_out"] == sum(len(rows) - 1 for rows in cut(whole, brief))
        shorter = [key for key in whole if key in ROWS and whole[key] and brief[key] != whole[key]]
        assert all(len(brief[key]) == 1 for key in shorter)


ROWS = (
    "kernels", "launches", "summary", "ranges", "stalls", "lines", "suggestions", "points", "steps", "claims", "cases",
    "violations", "findings", "targets", "refused", "counters", "shapes", "groups", "families", "gains", "problems",
)  # fmt: skip


def cut(whole: dict[str, Any], brief: dict[str, Any]) -> Iterator[list[Any]]:
    """The tables of an answer of which a brief one has less, and of the rows that it has, theirs."""
    for key, rows in whole.items():
        if key in ROWS and isinstance(rows, list):
            if len(rows) > len(brief[key]):
                yield rows
            for one, other in zip(rows, brief[key], strict=False):
                if isinstance(one, dict):
                    yield from cut(one, other)


def test_a_trial_is_what_its_schema_says() -> None:
    found = trial_data.trial()
    jsonschema.validate(found.model_dump(mode="json"), schema("try"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found.model_dump() | {"outcome": "fine"}, schema("try"))


def test_an_answer_ends_as_the_command_does(outputs: Path, capsys) -> None:
    right, wrong = said("check sanity", outputs)
    ends = [(["check", *words], 1) for words in said("check", outputs)]
    for words, status in (
        *ends,
        (["check", "sanity", *right], 0),
        (["check", "sanity", *wrong], 3),
    ):
        assert dispatch(words) == dispatch([*words, "--json"]) == status


def test_a_number_of_a_table_is_found_by_its_row_and_its_column(asked: Asked) -> None:
    whole = asked("show", str(DEEP))
    row = whole["kernels"][1]
    for key in ("duration_ns", "dram_throughput_pct", "warp_latency_per_issue"):
        column = whole["columns"][f"metrics.{key}"]
        (point,) = shlex.split(row["trace"])
        step = derivation.found(point, column["metric"])[1]
        assert (step.value, step.unit) == (row["metrics"][key], column["unit"])
        assert column["tier"] == "C"
    (first,) = shlex.split(asked("show", str(TRACE), "--limit", "1")["launches"][0]["trace"])
    assert derivation.found(first, "duration_ns")[1].value is not None


def test_what_is_not_known_is_null(asked: Asked, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    text = (
        '"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","add",""\n"1","mul","5.5"\n'
    )
    path.write_text(text, encoding="utf-8")
    unknown, known = asked("show", str(path))["kernels"]
    assert unknown["duration_ns"] is None and known["duration_ns"] == 5500
    assert unknown["throughput"]["dram"] is None and unknown["grid"] is None


def test_a_limit_is_a_count():
    assert "'-1' is no count" in ncuflow("show", DEEP, "--json", "--limit=-1").stderr
