"""The comparison on recorded captures: A/A, and slow-downs that were planted in the captures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from compare_data import compare
from conftest import ROOT, filled_once, some

from ncuflow.cli import dispatch
from ncuflow.compare import records
from ncuflow.compare.records import Comparison, Thresholds
from ncuflow.compare.verdict import load
from ncuflow.findings import stored
from ncuflow.io import read_json, write_json
from ncuflow.pages.markdown.comparison import render

RECORDINGS = ROOT / "recordings"
BASE, AGAIN, PLANTED = "h200/0.6.18/baseline", "h200/0.6.18/again", "h200/0.6.18/planted-slow-downs"
# What was planted there, all in one capture: fa2 built to take tiles of 64 query rows, copies after the long norm
# kernels, a host that waits in one norm call. docs/compare.md says how.
H100, H200 = "h100/0.7.2/default", "h200/0.7.2/default"
TILE, COPY, DELAY = "prefill/*", "rmsnorm/*_R16384_*", "rmsnorm/rmsnorm_R128_*"
Compared = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def compared(shared: Path) -> Compared:
    """``compared("h200/0.6.18/baseline", "h200/0.6.18/planted-slow-downs")``: the document, from the evidence on."""

    @cache
    def of(base: str, head: str) -> dict[str, Any]:
        def fill(folder: Path) -> None:
            sides = (load(results_of(name, shared)) for name in (base, head))
            write_json(folder / "compare.json", compare(*sides, Thresholds()))

        place = shared / "-".join(("compared", base, head)).replace("/", "-")
        return read_json(filled_once(place, fill) / "compare.json")

    return of


def results_of(name: str, shared: Path) -> Path:
    """Results of a recording, of the large ones those of a few targets, made once for all workers."""

    def fill(folder: Path) -> None:
        targets = json.loads((RECORDINGS / name / "manifest.json").read_text())["targets"]
        few = (
            {"decode", "prefill", "rmsnorm", "rope"}
            if name in (H100, H200)
            else {*targets} - {"jit"}
        )
        chosen = [one for one in targets if one in few]
        stored.make_results(RECORDINGS / name, chosen, folder)

    return filled_once(shared / f"side-{name.replace('/', '-')}", fill) / "results"


def changed(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {p["id"]: p for p in document["points"] if p["verdict"] in ("slower", "faster")}


def points(document: dict[str, Any], glob: str) -> list[dict[str, Any]]:
    return some(p for p in document["points"] if fnmatchcase(p["id"], glob))


def test_a_recording_against_itself_captured_again_reports_no_change(compared: Compared) -> None:
    document = compared(BASE, AGAIN)
    assert changed(document) == {}
    assert len(document["points"]) >= 10
    assert document["statistics"]["tests"] >= 10


def slowed_by(point: dict[str, Any], kind: str) -> dict[str, Any]:
    """The first cause of a point that is slower, which is of this kind and more than half of the change."""
    row = point["metrics"]["cold_us"]
    assert (point["verdict"], row["verdict"]) == ("slower", "slower"), point["id"]
    first: dict[str, Any] = row["causes"][0]
    assert first["kind"] == kind and first["share_of_delta"] > 0.5, point["id"]
    return first


def test_a_worse_tile_is_found_and_named(compared: Compared) -> None:
    for point in some(points(compared(BASE, PLANTED), "prefill/*_S4096_*")):
        assert "CTA_TILE_Q 64" in slowed_by(point, "template")["head"]
    # It is a gain where it saves the merge kernel.
    (point,) = points(compared(BASE, PLANTED), "prefill/*_S512_*")
    assert point["verdict"] == "faster"
    assert "MergeStates" in point["causes"][0]["what"]


def test_an_injected_host_delay_is_shown_and_not_judged(compared: Compared) -> None:
    """A host that was slow in one of two recordings is no part of a version."""
    document = compared(BASE, PLANTED)
    (point,) = points(document, DELAY)
    row = point["metrics"]["host_us"]
    assert row["verdict"] == "not judged" and row["head"] > 20 * row["base"]
    assert point["metric"] == "cold_us" and row["causes"] == [] and row["p"] is None
    (note,) = [n for n in document["statistics"]["notes"] if "not judged" in n]
    assert point["id"] in note


@pytest.mark.parametrize(
    "sides",
    [
        ("h200/0.6.18/versions", "h200/0.7.2/versions"),
        pytest.param(("h200/0.6.14/gdn", "h200/0.7.2/gdn"), marks=pytest.mark.exhaustive),
    ],
)
def test_no_host_time_of_two_recordings_is_judged(
    compared: Compared, sides: tuple[str, str]
) -> None:
    """plan() of one version takes 76 to 264 µs by recording: "faster" and "slower" of it are the host's."""
    for point in some(compared(*sides)["points"]):
        judged = {m for m, row in point["metrics"].items() if row["verdict"] != "not judged"}
        assert judged <= {"cold_us"}
        assert not [c for c in point["causes"] if c["kind"] in ("plan", "host_launch")]


V_STRIDES = "prefill/paged_S4096_*"


def test_the_clock_that_ncu_ran_at_is_no_cause_of_a_timed_change(compared: Compared) -> None:
    """Its launches ran at 1.79 GHz on both sides; another replay pass of one counted 1.92. The timing run's clock was 1.93."""
    shared = 0
    for point in some(points(compared("h200/0.6.14/versions", "h200/0.6.18/versions"), V_STRIDES)):
        (cause,) = [c for c in point["causes"] if c["kind"] == "execution"]
        assert point["verdict"] == "slower" and "GHz" not in cause["evidence"]
        assert not [fact for fact in cause["facts"] if fact["kind"] == "clock"]
        if cause["share_of_delta"] is None:  # ncu's launches differ by more than the timed ones
            assert cause["delta_us"] > point["head"] - point["base"] > 0
            continue
        shared += 1
        assert 0.7 < cause["share_of_delta"] < 1.1
        for part in cause["parts"]:
            if part["what"] == "SM clock":
                assert (part["base"], part["head"]) == pytest.approx((1.93e9,) * 2, rel=0.01)
                assert abs(part["delta_us"]) < 5
        grown = [p["what"] for p in cause["parts"] if p["delta_us"] > 20]
        assert grown == ["instructions", "short_scoreboard"]
    assert shared == 1


EVIDENCE = [
    ("h200/0.6.14/versions", "h200/0.6.18/versions"),
    ("h200/0.6.18/versions", "h200/0.7.2/versions"),
    (BASE, PLANTED),
    (H100, H200),
]


@pytest.mark.parametrize("sides", EVIDENCE, ids=lambda sides: "-".join(sides))
def test_causes_add_up_to_the_timed_change_and_none_is_more_than_it(
    compared: Compared, sides: tuple[str, str]
) -> None:
    for point in some(changed(compared(*sides)).values()):
        explained = sum(cause["delta_us"] or 0 for cause in point["causes"])
        delta = point["head"] - point["base"]
        assert explained + point["unexplained"] == pytest.approx(delta)
        assert point["remainder"]
        shares = [c["share_of_delta"] for c in point["causes"] if c["share_of_delta"] is not None]
        assert sum(shares) == 0 or sum(shares) == pytest.approx(explained / delta)
        assert -0.01 <= sum(shares) <= 1.2


def in_a_row(compared: Compared, folder: Path, *sides: str) -> list[Comparison]:
    for number, pair in enumerate(pairwise(sides)):
        write_json(folder / f"{number}.json", compared(*pair))
    return [records.read(folder / f"{number}.json") for number in range(len(sides) - 1)]


def test_a_slow_version_is_joined_with_the_one_that_took_it_back(
    compared: Compared, tmp_path: Path
) -> None:
    versions = (f"h200/{version}/versions" for version in ("0.6.14", "0.6.18", "0.7.2"))
    found = in_a_row(compared, tmp_path, *versions)
    (shift,) = records.shifts(found)
    assert (shift.target, shift.step, shift.back, len(shift.points)) == ("prefill", 0, 1, 2)
    text = render(found, [None, None])
    (told,) = [line for line in text.splitlines() if line.startswith("- **prefill**")]
    assert "step 1 (h200-0.6.14-versions → h200-0.6.18-versions): 2 points, +5.6 to +6.2 %" in told
    assert "instructions +6.2 %" in told
    assert "Step 2 (h200-0.6.18-versions → h200-0.7.2-versions) took it back" in told
    assert "SAME_KV_STRIDES absent" in told and "SAME_KV_STRIDES true" in told


def test_a_setting_that_one_side_lacks_is_the_cause_and_the_call_stands_beside(
    compared: Compared, tmp_path: Path
) -> None:
    """Context parallelism of a later FlashInfer: a kernel 40 % shorter, and a call of half a millisecond."""
    found = in_a_row(compared, tmp_path, *(f"h200/{v}/gdn" for v in ("0.6.12", "0.6.14", "0.7.2")))
    lines = [x for x in render(found, [None] * 2).splitlines() if x.startswith("- **gdn_prefill**")]
    (told,) = [line for line in lines if "-39.7 %" in line]
    assert "Why: cp auto, which the first side does not know: with cp off it takes 36" in told
    assert "84 % of the change" in told and "The launching call on the host: 18 → 527 µs" in told


def test_the_version_whose_auto_was_fa3_is_joined_with_the_one_that_left_it(
    compared: Compared, tmp_path: Path
) -> None:
    sides = ("h200/0.5.3/decode", "h200/0.6.1/decode", "h200/0.7.2/decode")
    found = in_a_row(compared, tmp_path, *sides)
    back = {name: shift.back for shift in records.shifts(found) for name in shift.points}
    assert all((step == 1) != name.endswith("_fa3") for name, step in some(back.items()))
    told = [line for line in render(found, [None, None]).splitlines() if ") took it back" in line]
    assert told and all("attention/hopper/prefill_sm90.cuh" in line for line in told)
    assert all("plan(): backend auto → fa3" in line for line in told)


def test_gqa_decode_on_another_gpu_follows_what_limits_it(compared: Compared) -> None:
    """On tensor cores DRAM limits it on both and it takes 30 % less; on CUDA cores 8 %, as instructions hold it up."""
    document = compared(H100, H200)
    for cores, change, head in (("tc", -0.30, "DRAM"), ("cc", -0.08, "instruction issue")):
        (point,) = points(document, f"decode/B128_L2048_H32_K8_D128_P16_f16_{cores}")
        assert point["relative"] == pytest.approx(change, abs=0.01)
        (cause,) = [c for c in point["causes"] if c["share_of_delta"] and c["share_of_delta"] > 0.5]
        assert cause["base"].startswith("DRAM") and cause["head"].startswith(head)
        first = cause["parts"][0]
        assert (first["kind"], first["base"], first["head"]) == ("DRAM bandwidth", 3350e9, 4800e9)
        reached = {p["kind"]: p["delta_us"] for p in cause["parts"]}["DRAM share"]
        assert (reached > 90) == (cores == "cc") and (reached < 5) == (cores == "tc")
    rates = ("DRAM bandwidth", "SM clock", "SMs")
    for point in changed(document).values():
        for cause in point["causes"]:
            kinds = [part["kind"] in rates for part in cause["parts"]]
            assert kinds == sorted(kinds, reverse=True), point["id"]
    groups = {(g["limiter"], g["then"]): g for g in document["gpus"]["groups"]}
    both = groups["bound by DRAM", "bound by DRAM"]
    assert both["expected"] == pytest.approx(3350 / 4800) == pytest.approx(both["median"], rel=0.03)


def test_an_injected_copy_is_found_in_the_trace(compared: Compared) -> None:
    for point in some(points(compared(BASE, PLANTED), COPY)):
        first = slowed_by(point, "copy_added")
        assert first["what"] == "memcpy Device-to-Device"
        assert first["base"] == 0 and first["head"] >= 1
        causes = point["metrics"]["cold_us"]["causes"]
        assert not [c for c in causes if c["kind"].startswith("kernel_")]


def test_nothing_is_called_changed_that_nobody_planted(compared: Compared) -> None:
    touched = (TILE, COPY)
    found = changed(compared(BASE, PLANTED))
    assert [p for p in found if not any(fnmatchcase(p, glob) for glob in touched)] == []


def test_the_gate_prints_what_its_page_shows(
    compared: Compared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "compare.json", compared(BASE, PLANTED))
    assert dispatch(["check", str(tmp_path / "compare.json")]) == 1
    printed = capsys.readouterr().out.splitlines()
    text = (ROOT / "docs/ci.md").read_text()
    shown = re.search(r"and\s+names it:\n\n```\n(.*?)\n```", text, re.DOTALL)
    for line in shown[1].splitlines():
        assert line in printed or line == "…"
