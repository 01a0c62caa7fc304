"""What a live run captures: the sweep's points, its deep points, and the tools that are there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from ncuflow.evidence.manifest import checksums, sealed
from ncuflow.flow import evidence, settings
from ncuflow.flow.settings import Settings
from ncuflow.io import read_yaml, write_json
from ncuflow.run import loss

NAMES = ["rmsnorm", "rope"]
BATCH = "decode/b0a1b2c3d"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two sweeps on a machine with everything; `small` has rmsnorm alone and nothing deep."""
    monkeypatch.setattr(evidence, "names", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(evidence, "tool", lambda name: f"/opt/{name}")
    monkeypatch.setattr(evidence, "counters_refused_here", lambda: False)
    both = {"rmsnorm": [{"rows": [1, 32]}], "rope": [{"tokens": 512}]}
    shipped = settings.validated(read_yaml(ROOT / "config/config.yaml"))
    sweeps = {"small": {"rmsnorm": [{"rows": 32}]}, "whole": both}
    deep = {"whole": {"rmsnorm": [{"rows": 64}]}}
    timing = {**shipped.timing.model_dump(), "pairs": False}
    return changed(shipped, targets=NAMES, sweep="whole", sweeps=sweeps, deep=deep, timing=timing)


def changed(config: Settings, **changes: object) -> Settings:
    return settings.validated({**config.model_dump(), **changes})


def test_deep_points_are_those_of_the_sweep(config: Settings) -> None:
    whole = evidence.live(config)
    assert whole.targets["rmsnorm"]["deep"] == ["rmsnorm/rmsnorm_R64_D4096_f16"]
    assert "deep" not in whole.targets["rope"]
    assert list(whole.targets) == NAMES
    small = evidence.live(changed(config, sweep="small")).targets
    assert list(small) == ["rmsnorm"] and "deep" not in small["rmsnorm"]  # none without points


def test_pairs_lie_with_the_batch_that_has_their_base(config: Settings) -> None:
    timed = {**config.timing.model_dump(), "pairs": True}
    both = {"rmsnorm": [{"pdl": ["auto", "off"], "rows": [1, 32, 64, 4096]}]}
    more = {"sweeps": {"whole": both}, "deep": {}, "batch_size": 2, "timing": timed}
    live = evidence.live(changed(config, **more))
    batches = {batch: set(ids) for batch, ids in live.targets["rmsnorm"].items()}
    assert len(batches) > 1 and "pairs" not in batches
    paired = {batch: live.pairs["rmsnorm", batch] for batch in batches}
    assert sum(map(len, paired.values())) > 0
    for batch, points in paired.items():
        assert {point["id"] for point in points[::2]} <= batches[batch]
        names = {Path(path).name for path in live.files("rmsnorm") if f"/{batch}/" in path}
        assert ({"pairs.json", "pairs.jsonl"} <= names) == bool(points)
    assert not evidence.live(config).pairs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep": "nope"}, r"sweep: there is no sweep 'nope'; sweeps has small, whole"),
        ({"deep": {"rmsnorm": {}}}, r"deep: there is no sweep 'rmsnorm'"),
        (
            {"sweeps": {"whole": {"rope": []}}, "deep": {}},
            r"sweep whole: no points of rmsnorm, rope",
        ),
    ],
)
def test_a_sweep_that_captures_nothing_is_one_clear_line(
    config: Settings, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evidence.live(changed(config, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("refused", "missing", "disabled", "without"),
    [
        (False, "", "", ""),
        (True, "", "", "ncu"),
        (None, "", "", ""),  # the driver does not tell: ncu will
        (False, "ncu", "", "ncu"),
        (False, "nsys", "", "nsys"),
        (False, "", "ncu", "ncu"),
        (False, "", "nsys", "nsys"),
    ],
)
def test_tools_are_those_that_are_there_wanted_and_not_refused(
    config: Settings, monkeypatch: Any, refused: bool | None, missing: str, disabled: str, without: str
) -> None:  # fmt: skip
    monkeypatch.setattr(evidence, "counters_refused_here", lambda: refused)
    monkeypatch.setattr(evidence, "tool", lambda name: None if name == missing else name)
    if disabled:
        config = changed(config, **{disabled: {**config.model_dump()[disabled], "enabled": False}})
    assert evidence.live_tools(config) == {"events", "nsys", "ncu"} - {without}


def test_live_without_a_gpu_needs_the_name_of_the_machine(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "names", list)
    config = changed(config, source="live")
    with pytest.raises(ValueError, match="no NVIDIA GPU is visible"):
        evidence.resolve(config)
    assert evidence.resolve(changed(config, machine="a100")).folder == "a100"


def manifest(folder: Path, name: object, targets: object, **more: object) -> Path:
    content = sealed({"name": name, "targets": targets, "files": checksums(folder), **more})
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    batch = tmp_path / BATCH
    batch.mkdir(parents=True)
    (batch / "timing.jsonl").write_text('{"median": 21.17}\n{"median": 4.25}\n')
    origin = {"gpu": "NVIDIA H200", "flashinfer": "0.6.18"}
    (tmp_path / "environment.json").write_text(json.dumps({"provenance": origin | {"tier": "A"}}))
    says = origin | {"tier": "C", "recording": "x"}
    return manifest(tmp_path, "x", {"decode": {"b0a1b2c3d": ["p"]}}, provenance=says)


def test_a_gpu_that_is_passed_over_is_named_with_what_is_missing(
    config: Settings, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "find_spec", lambda name: None if name == "flashinfer" else name)
    config = changed(config, source="auto", recording=str(recording), targets=["decode"])
    shown = evidence.resolve(config)
    why = "NVIDIA H200 is not measured, for want of flashinfer; pages are of x"
    assert evidence.passed_over(config, shown) == why
    assert evidence.passed_over(changed(config, source="recorded"), shown) is None
    assert evidence.passed_over(config, evidence.live(changed(config, targets=NAMES))) is None
    monkeypatch.setattr(evidence, "names", list)
    assert evidence.passed_over(config, shown) is None


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def origin(recording: Path) -> object:
    return json.loads((recording / "environment.json").read_text())["provenance"]


def resealed(recording: Path, **more: object) -> None:
    """The manifest with something else in it, and the digest of that."""
    content = json.loads((recording / "manifest.json").read_text())
    del content["digest"]
    (recording / "manifest.json").write_text(json.dumps(sealed(content | more)))


def linked(path: Path) -> None:
    """The same content, but elsewhere."""
    path.symlink_to(path.rename(f"{path.parents[2]}-elsewhere"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: edit(r / BATCH / "timing.jsonl", "21.17", "11.17"), "does not match"),
        (lambda r: edit(r / BATCH / "timing.jsonl", '{"median": 4.25}\n', ""), "does not"),
        (lambda r: (r / BATCH / "timing.jsonl").write_text(""), "does not match"),
        (lambda r: edit(r / "environment.json", "0.6.18", "0.6.19"), "environment.json: does not"),
        (lambda r: (r / "environment.json").unlink(), "environment.json: missing"),
        (lambda r: (r / BATCH / "timing.1.jsonl").write_text(""), "not in the manifest"),
        (lambda r: (r / BATCH / "etc").symlink_to("/etc"), "etc: no file of the recording"),
        (lambda r: (r / BATCH / "lost").symlink_to("nowhere"), "lost: no file of the rec"),
        (lambda r: os.mkfifo(r / BATCH / "pipe"), "pipe: no file of the recording's own"),
        (lambda r: linked(r / BATCH / "timing.jsonl"), "jsonl: no file of the recording"),
        (lambda r: edit(r / "manifest.json", "NVIDIA H200", "NVIDIA A100"), "not match its own dig"),
        (lambda r: edit(r / "manifest.json", '"p"', '"q"'), "not match its own digest"),
        (lambda r: edit(r / "manifest.json", '"digest"', '"more"'), "not match its own digest"),
        (lambda r: edit(r / "manifest.json", '"schema": 2', '"schema": 3'), "schema: Input should"),
        (lambda r: resealed(r, provenance={"gpu": "NVIDIA A100", "flashinfer": "0.6.18"}),
         "says gpu 'NVIDIA A100', but environment.json 'NVIDIA H200'"),
        (lambda r: resealed(r, provenance={}), "says flashinfer None, but environment.json '0.6.18'"),
        (lambda r: manifest(r, "x", {"decode": {"b00000000": ["p"]}}, provenance=origin(r)), "lists no file"),
        (lambda r: edit(r / "manifest.json", "environment.json", "../../etc/passwd"), "no path in"),
        (lambda r: edit(r / "manifest.json", "environment.json", "/etc/passwd"), "no path inside"),
        *(
            (lambda r, name=name: edit(r / "manifest.json", "environment.json", name), "no path inside")
            for name in ("decode/../../x", "decode//x", r"de\ncode")
        ),
        (lambda r: edit(r / "manifest.json", '"bytes"', '"size"'), "bytes: Field required"),
        (lambda r: (r / "manifest.json").write_text("[" * 100_000), "nested too deep"),
        (lambda r: (r / "manifest.json").write_text("[]"), "not a manifest"),
    ],
)  # fmt: skip
def test_a_recording_is_what_its_manifest_says_or_is_not_used(
    recording: Path, change: Callable[[Path], None], words: str
) -> None:
    evidence.recorded(recording)
    change(recording)
    with pytest.raises(ValueError, match=words) as caught:
        evidence.recorded(recording)
    assert "\n" not in str(caught.value)


def test_the_path_of_a_recording_has_no_wildcards(recording: Path) -> None:
    odd = recording.rename(f"{recording}{{x}}")
    with pytest.raises(ValueError, match="takes braces in a path for wildcards"):
        evidence.recorded(odd)


DEEP = {"decode": {"deep": []}}


@pytest.mark.parametrize(
    ("name", "targets", "named"),
    [
        ("x$(touch PWNED)", DEEP, r"name 'x\$\(touch PWNED\)' does not match"),
        ("..", DEEP, r"name '\.\.' does"),
        (".", DEEP, r"name '\.' does"),
        ("", DEEP, "name '' does"),
        ("x\n", DEEP, r"name 'x\\n' does"),
        ("x", {"../decode": {"deep": []}}, "target '../decode' does"),
        ("x", {"decode;id": {"deep": []}}, "target 'decode;id' does"),
        ("x", {"decode": {"b1a2b3c4$(id)": []}}, r"batch 'b1a2b3c4\$\(id\)' does"),
        ("x", {"decode": {"b0": []}}, "batch 'b0' does"),
        *((name, targets, "") for name, targets in ((5, {}), ("x", []), ("x", {"decode": ["deep"]}))),
        ("x", {"decode": None}, ""),
    ],
)  # fmt: skip
def test_a_recording_with_odd_names_or_of_other_types_is_none(tmp_path, name, targets, named):
    with pytest.raises(ValueError, match=rf"manifest\.json: not a manifest .*{named}") as caught:
        evidence.recorded(manifest(tmp_path, name, targets))
    assert "\n" not in str(caught.value)


def test_names_that_runs_and_people_give_are_fine(tmp_path: Path) -> None:
    targets = {"merge_state": {"b0a1b2c3d": ["p"], "deep": ["p"]}}
    for batch in targets["merge_state"]:
        (tmp_path / "merge_state" / batch).mkdir(parents=True)
        (tmp_path / "merge_state" / batch / "points.json").write_text("[]")
    found = evidence.recorded(manifest(tmp_path, "h200_0.6.18-again", targets))
    assert (found.recording, found.targets) == ("h200_0.6.18-again", targets)


def test_what_a_failed_capture_said_is_kept_without_paths_of_this_machine(tmp_path: Path) -> None:
    points, log = tmp_path / "points.json", tmp_path / "log"
    write_json(points, [{"id": "rmsnorm/x", "target": "rmsnorm", "params": {}}])
    log.write_text(
        "/opt/venv/bin/python: symbol lookup error: /opt/site/gemm.so: undefined symbol: cuLoad\n"
    )
    loss.command("ncu", "rmsnorm", points=points, out=tmp_path / "sweep.ncu-rep", log=log)
    kept = json.loads((tmp_path / "sweep.loss.json").read_text())["reason"]
    assert kept == "python: symbol lookup error: gemm.so: undefined symbol: cuLoad"
    assert "/opt" not in (tmp_path / "sweep.json").read_text()


def test_a_run_is_told_of_the_failed_captures_of_its_own_targets(tmp_path: Path) -> None:
    names = {"ncu": "sweep", "nsys": "trace"}
    for target, tool in (("decode", "ncu"), ("rope", "ncu"), ("rope", "nsys")):
        place = tmp_path / target / "b1" / f"{names[tool]}.loss.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, {"tool": tool, "target": target, "reason": "it broke"})
    assert loss.messages(tmp_path, ["decode"]) == ["lost: ncu of decode: it broke"]
    assert loss.messages(tmp_path, ["decode", "rope"]) == [
        "lost: ncu of decode, rope: it broke",
        "lost: nsys of rope: it broke",
    ]
