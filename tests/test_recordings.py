"""The shipped recordings: what they weigh, what they hold, and that their tables stay what they are."""

import json
import lzma
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import some, some_by_default
from table_digests import FILE, ROOT, of_recording, recordings

from ncuflow.evidence import location, manifest, recording, scrub
from ncuflow.io import NCU_MAGIC, opened, read_json
from ncuflow.parsers import lines, ncu
from ncuflow.static import results as facts

MB = 1_000_000
STATIC = sorted((ROOT / "recordings").rglob(facts.FILE))
SWEEPS = sorted((ROOT / "recordings").rglob("sweep.ncu-rep.xz"))
DEEP = sorted((ROOT / "recordings").rglob("deep.ncu-rep.xz"))
SMALL = min(DEEP, key=lambda path: path.stat().st_size)
TABLES = ("kernels", "metrics", "stalls", "breakdown", "rules", "lines", "problems")


def tracked() -> dict[str, int]:
    """Every file of the repository -> bytes."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = (name for name in listed.stdout.decode().split("\0") if name)
    return {name: (ROOT / name).lstat().st_size for name in paths if (ROOT / name).exists()}


def test_a_clone_is_light():
    files = tracked()
    recorded = sum(size for name, size in files.items() if name.startswith("recordings/"))
    assert recorded <= 16 * MB
    assert sum(files.values()) <= 24 * MB
    assert {name: size for name, size in files.items() if size > 1.5 * MB} == {}


@pytest.mark.parametrize("folder", some_by_default(recordings(), 4), ids=location.name)
def test_the_tables_of_a_recording_are_what_they_were(folder):
    known = json.loads(FILE.read_text())
    for target, digests in some(of_recording(folder).items()):
        assert digests == known[target], target


def test_there_is_a_digest_of_every_recording_and_of_no_other():
    folders = {ROOT / "recordings" / Path(name).parent for name in json.loads(FILE.read_text())}
    assert folders == set(recordings())


def test_no_recorded_sweep_holds_a_compiled_module_and_every_deep_report_does():
    assert SWEEPS and DEEP
    for path in (*SWEEPS, *DEEP):
        data = lzma.decompress(path.read_bytes())
        assert (scrub.without_modules(data) == data) == (path in SWEEPS), path


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """Evidence of a sweep whose report has samples of instructions and the modules of these."""
    batch = tmp_path / "captures/merge_state/b1a2b3c4d"
    batch.mkdir(parents=True)
    (batch / "points.json").write_text("[]")
    shutil.copy(SMALL, batch / "sweep.ncu-rep.xz")
    shutil.copy(SMALL.parents[2] / "environment.json", tmp_path / "captures")
    return tmp_path / "captures"


def rows(report: Path) -> dict[str, object]:
    found = ncu.read(report)
    return {name: getattr(found, name) for name in TABLES}


def test_a_sweep_loses_its_modules_and_no_row(sampled, tmp_path):
    before = rows(sampled / "merge_state/b1a2b3c4d/sweep.ncu-rep.xz")
    recording.record(sampled, tmp_path / "made", "made")
    report = tmp_path / "made/merge_state/b1a2b3c4d/sweep.ncu-rep.xz"
    assert rows(report) == before and any(row["sass"] for row in before["lines"])
    data = lzma.decompress(report.read_bytes())
    assert b"\x7fELF" not in data and data.startswith(NCU_MAGIC)

    recording.record(tmp_path / "made", tmp_path / "again", "again")
    again = tmp_path / "again/merge_state/b1a2b3c4d/sweep.ncu-rep.xz"
    assert rows(again) == before
    assert read_json(lines.listing_path(again)) == read_json(lines.listing_path(report))


def test_modules_are_kept_where_that_is_asked_for(sampled, tmp_path):
    recording.record(sampled, tmp_path / "made", "made", with_modules=True)
    with opened(tmp_path / "made/merge_state/b1a2b3c4d/sweep.ncu-rep.xz") as plain:
        assert plain.read_bytes() == lzma.decompress(SMALL.read_bytes())


@pytest.mark.parametrize("cut", [3, 40, -3])
def test_a_damaged_report_is_not_rewritten(cut):
    with pytest.raises(ValueError):
        scrub.without_modules(lzma.decompress(SMALL.read_bytes())[:cut])


def test_the_purpose_of_every_recording_is_said():
    rows = re.findall(r"(?m)^\| `([^`]+)` \| .", (ROOT / "recordings/README.md").read_text())
    folders = [*recordings(), *(path.parent for path in STATIC)]
    assert sorted(rows) == sorted(str(p.relative_to(ROOT / "recordings")) for p in folders)


def test_a_recording_lies_where_its_manifest_says_that_it_is_of():
    assert recordings() and STATIC
    for folder in recordings():
        found = json.loads((folder / manifest.FILE).read_text())
        origin = found["provenance"]
        place = ROOT / location.recording_folder(origin, folder.name)
        assert (folder, found["name"]) == (place, location.name(folder))
        assert origin["recording"] == found["name"]


def test_static_facts_lie_where_they_say_that_they_are_of():
    assert STATIC
    for path in STATIC:
        found = read_json(path)
        release = location.release(found["flashinfer"])
        assert path.parts[-4:-2] == (found["arch"], release), path
    assert {path.resolve() for path in facts.every_recorded()} == set(STATIC)
