"""Recordings: what is stored, what is refused, what verification finds."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from conftest import some_by_default

from ncuflow.cli import dispatch, ended
from ncuflow.evidence import recording
from ncuflow.evidence.manifest import checksums, sealed
from ncuflow.io import BadInput
from ncuflow.private import find_secret, patterns
from ncuflow.process import CaptureError

TOKEN = "hf_planted_token_value"


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = tmp_path / "captures"
    batch = folder / "decode" / "b1a2b3c4d"
    batch.mkdir(parents=True)
    (batch / "points.json").write_text('[{"id": "decode/B1", "target": "decode", "params": {}}]')
    (batch / "timing.jsonl").write_text('{"point": "decode/B1", "status": "ok"}\n')
    (batch / "trace.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    (batch / "sweep.ncu-rep").touch()  # where no point was good
    (batch / "sweep.json").write_text(json.dumps({"command": ["ncu", "--nvtx"], "lost": []}))
    origin = {"tier": "A", "gpu": "NVIDIA H200", "date": "2026-11-20T00:00:00Z", "recording": None}
    origin |= {"driver": "580.1", "flashinfer": "0.7.2"}
    (folder / "environment.json").write_text(json.dumps({"provenance": origin}))
    (folder / "logs").mkdir()
    (folder / "logs" / "x.log").write_text(TOKEN)
    return folder


def test_a_recording_holds_the_evidence_and_a_manifest(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "recordings" / "h200"
    assert dispatch(["record", str(evidence), str(target)]) == 0
    manifest = json.loads((target / "manifest.json").read_text())
    assert (manifest["schema"], manifest["name"]) == (2, "h200")
    assert manifest["provenance"]["tier"] == "C" and manifest["provenance"]["recording"] == "h200"
    assert manifest["date"] == "2026-11-20T00:00:00Z"
    assert manifest["targets"] == {"decode": {"b1a2b3c4d": ["decode/B1"]}}
    assert "--nvtx" not in str(manifest)  # a command is said once, in its capture's record
    files = ("points.json", "sweep.json", "timing.jsonl.xz", "trace.sqlite.xz")
    assert sorted(manifest["files"]) == [*(f"{BATCH}/{name}" for name in files), "environment.json"]
    stored = lzma.decompress((target / "decode/b1a2b3c4d/trace.sqlite.xz").read_bytes())
    assert stored == (evidence / "decode/b1a2b3c4d/trace.sqlite").read_bytes()
    assert dispatch(["record", "--verify", str(target)]) == 0
    assert [path.name for path in target.parent.iterdir()] == ["h200"]
    assert target.stat().st_mode & 0o777 == target.parent.stat().st_mode & 0o777


def test_a_recording_lies_and_is_called_by_its_gpu_and_version_unless_told(
    evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert dispatch(["record", str(evidence)]) == 0
    manifest = json.loads((tmp_path / "recordings/h200/0.7.2/default/manifest.json").read_text())
    assert manifest["name"] == "h200-0.7.2-default"
    (evidence / "environment.json").write_text('{"provenance": {"gpu": "NVIDIA H200"}}')
    with pytest.raises(SystemExit, match="2"):
        dispatch(["record", str(evidence)])
    said = "captures: no GPU or no FlashInfer in environment.json: give RECORDING_DIR"
    assert said in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"none: no folder of captures$"):
        dispatch(["record", str(tmp_path / "none")])


BATCH = "decode/b1a2b3c4d"
NOT_ITS_OWN = r"no file of the evidence's own, but a link"


def refused(evidence: Path, message: str, name: str | None = None) -> None:
    """Nothing is recorded, for this reason."""
    target = evidence.parent / "recordings/r"
    with pytest.raises(CaptureError, match=message):
        if name:
            recording.record(evidence, target, name)
        dispatch(["record", str(evidence), str(target)])
    assert not target.exists() and not [*evidence.parent.glob("recordings/*")]


def linked(path: Path, to: str) -> None:
    path.symlink_to(to)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: (e / BATCH / "timing.jsonl").write_text('{"point": "decode/B1", "status": "failed"}\n'),
         "captures: no point has a good result"),
        (lambda e: (e / "environment.json").write_text('{"provenance": {"gpu": "NVIDIA H200"}}'),
         r"environment\.json: does not say driver, flashinfer"),
        (lambda e: linked(e / "decode/passwd", "/etc/passwd"), NOT_ITS_OWN),
        (lambda e: linked(e / BATCH / "a.listing.json", "/etc/passwd"), NOT_ITS_OWN),
        (lambda e: linked(e / "prefill", "decode"), NOT_ITS_OWN),
        (lambda e: linked(e / "lost", "nowhere"), NOT_ITS_OWN),
        (lambda e: os.mkfifo(e / "decode/pipe"), NOT_ITS_OWN),
        (lambda e: shutil.copytree(e / BATCH, e / "decode/b5e6f7a8"),
         "batches b1a2b3c4d, b5e6f7a8 of decode share the point decode/B1; remove the folder"),
    ],
)  # fmt: skip
def test_what_is_no_evidence_is_refused_and_nothing_is_written(
    evidence: Path, change: Callable[[Path], None], message: str
) -> None:
    change(evidence)
    refused(evidence, message)


def test_a_deep_batch_may_have_the_points_of_another_and_a_name_is_one_that_runs_read(
    evidence: Path, tmp_path: Path
) -> None:
    shutil.copytree(evidence / BATCH, evidence / "decode/deep")
    refused(evidence, "name 'my run' does not match", "my run")
    with pytest.raises(CaptureError, match=r"no evidence in it .*<machine>/captures"):
        recording.record(tmp_path, tmp_path / "recordings/h200", "h200")
    # A link that is no evidence is fine, and a linked folder of it.
    linked(evidence / "logs/latest.log", "x.log")
    linked(tmp_path / "elsewhere", str(evidence))
    made = recording.record(tmp_path / "elsewhere", tmp_path / "recordings/h200", "h200")
    assert not any("log" in name for name in made["files"])


@pytest.mark.parametrize("name", ["trace.sqlite", "timing.jsonl", "points.json"])
def test_a_secret_in_any_file_is_refused_and_nothing_is_written(evidence: Path, name: str) -> None:
    path = evidence / BATCH / name
    path.write_bytes(path.read_bytes().replace(b"B1", TOKEN.encode()) + TOKEN.encode())
    refused(evidence, f"{name}: holds the value of HF_TOKEN")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda path: 19, "embeds 19 source files"),
        (lambda path: os._exit(1), r"deep\.ncu-rep: its child was killed, or NVIDIA's reader"),
    ],
)
def test_a_report_with_source_files_or_that_crashes_the_reader_is_refused(
    evidence: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], int], message: str
) -> None:
    (evidence / BATCH / "deep.ncu-rep").write_bytes(b"x")
    monkeypatch.setattr(recording, "embedded_sources", read)
    refused(evidence, message)


@pytest.mark.parametrize("pack", [False, True])
def test_a_report_that_names_its_host_is_refused(evidence: Path, pack: bool) -> None:
    host = b"\x2a\x0calice-laptop"
    system = b"\x22" + bytes([len(host)]) + host
    session = b"\x1a" + bytes([len(system)]) + system
    data = b"NVR\0" + bytes([len(session), 0, 0, 0]) + session
    report = evidence / BATCH / f"sweep.ncu-rep{'.xz' if pack else ''}"
    report.write_bytes(lzma.compress(data) if pack else data)
    refused(evidence, "names its host")


def test_an_existing_recording_is_not_written_over(evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/kept").write_text("x")
    with pytest.raises(CaptureError, match="not empty"):
        recording.record(evidence, tmp_path / "r", "r")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["kept"]


def resealed(folder: Path) -> None:
    """A recording that somebody changed, manifest and all."""
    path = folder / "manifest.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(sealed(stored | {"files": checksums(folder)})))


def unsigned(folder: Path) -> None:
    stored = json.loads((folder / "manifest.json").read_text())
    stored["provenance"]["driver"] = None
    (folder / "manifest.json").write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: (r / "ceilings.json").write_text(f'["{TOKEN}"]'), "ceilings.json: holds the value"),
        (unsigned, "does not say driver"),
        (lambda r: (r / BATCH / "timing.jsonl.xz").write_bytes(lzma.compress(b'{"status": "wrong"}')),
         "no point has a good result"),
    ],
)  # fmt: skip
def test_a_recording_of_somebody_is_judged(
    evidence: Path, tmp_path: Path, capsys, change, message
) -> None:  # type: ignore[no-untyped-def]
    recording.record(evidence, tmp_path / "r", "r")
    assert recording.judge(tmp_path / "r") == "NVIDIA H200, FlashInfer 0.7.2: points 1 ok"
    change(tmp_path / "r")
    resealed(tmp_path / "r")
    with pytest.raises(CaptureError, match=message):
        recording.judge(tmp_path / "r")


GPU = ("NVIDIA H200", "NVIDIA A100-SXM4-40GB")
FLASHINFER = ("0.7.2", "0.9.0")


def says(evidence: Path, name: str, **origin: str) -> None:
    """Let a capture say what it was made with."""
    record = json.dumps({"point": "decode/B1", "status": "ok", "origin": origin}) + "\n"
    if name.endswith(".xz"):
        (evidence / BATCH / "timing.jsonl").unlink()
        (evidence / BATCH / name).write_bytes(lzma.compress(record.encode()))
    else:
        (evidence / BATCH / name).write_text(record)


def renamed(folder: Path, names: Iterable[str], old: str, new: str) -> None:
    for name in names:
        (folder / name).write_text((folder / name).read_text().replace(old, new))


CAPTURED = ["timing.jsonl", "timing.1.jsonl", "pairs.jsonl", "sweep.json", "timing.jsonl.xz"]


@pytest.mark.parametrize("name", some_by_default(CAPTURED, 2))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (GPU, r"is of NVIDIA H200, but environment\.json is of NVIDIA A100-SXM4-40GB"),
        (FLASHINFER, r"environment\.json is of FlashInfer 0\.9\.0, but its captures of 0\.7\.2$"),
    ],
)
def test_what_another_machine_captured_is_not_recorded_and_does_not_pass_for_this_ones(
    evidence: Path, tmp_path: Path, name: str, change: tuple[str, str], message: str
) -> None:
    says(evidence, name, gpu="NVIDIA H200", flashinfer="0.7.2", driver="580.1")
    recording.record(evidence, tmp_path / "r", "r")
    assert recording.judge(tmp_path / "r")
    renamed(tmp_path / "r", ["manifest.json", "environment.json"], *change)
    resealed(tmp_path / "r")
    recording.verify(tmp_path / "r")
    with pytest.raises(CaptureError, match=message):
        recording.judge(tmp_path / "r")
    renamed(evidence, ["environment.json"], *change)
    with pytest.raises(CaptureError, match=message):
        recording.record(evidence, tmp_path / "other/r", "r")
    assert list((tmp_path / "other").iterdir()) == []


def test_captures_of_several_versions_and_of_a_slice_of_the_gpu_are_of_one_machine(
    evidence: Path, tmp_path: Path
) -> None:
    says(evidence, "timing.jsonl", gpu="NVIDIA H200", flashinfer="0.6.18")
    says(evidence, "timing.1.jsonl", gpu="NVIDIA H200 MIG 1g.18gb", flashinfer="0.7.2")
    recording.record(evidence, tmp_path / "r", "r")
    assert recording.judge(tmp_path / "r").startswith("NVIDIA H200, FlashInfer 0.7.2: ")


def test_a_shipped_recording_whose_manifest_names_another_gpu_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(__file__).parents[1] / "recordings/h200/0.6.14/gdn"
    folder = shutil.copytree(shipped, tmp_path / "r")
    renamed(folder, ["manifest.json"], *GPU)
    assert ended(lambda: dispatch(["record", "--verify", str(folder)])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}/manifest.json: ")


def test_names_match_as_whole_words_and_common_ones_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ncuflow.private._user", lambda: "alice")
    known = patterns({"HOME": "/home/alice"})
    assert find_secret(b"path=/home/alice/x", known) in ("the user name", "the home folder")
    assert find_secret(b"malice and alices", known) is None
    monkeypatch.setattr("ncuflow.private._user", lambda: "root")
    assert find_secret(b"/root and root", patterns({"HOME": "/root"})) is None


def test_pairs_that_an_earlier_version_left_beside_those_of_batches_are_refused(
    evidence: Path, tmp_path: Path
) -> None:
    batch = evidence / BATCH
    (batch / "pairs.json").write_text("[]", encoding="utf-8")
    recording.record(evidence, tmp_path / "h200", "h200")
    shutil.copytree(batch, evidence / "decode/pairs")
    (evidence / "decode/pairs/pairs.json").unlink()
    refused(evidence, "decode/pairs is left from an earlier version")
