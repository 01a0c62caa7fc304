"""The changes in examples/changes: each says what it is to be tried at, and what comes of it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import some
from flashinfer_source import flashinfer_package

from ncuflow.experiments.record import EXIT
from ncuflow.experiments.variant import lay, read
from ncuflow.sweep.points import points
from ncuflow.target.contract import known, load

FOLDER = Path(__file__).parents[1] / "examples/changes"
EXAMPLES = sorted(path for path in FOLDER.iterdir() if path.is_dir())
VERSION = "0.7.2.post1"  # that the patches are of


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_where_to_try_it_and_what_comes_of_it(example: Path) -> None:
    assert {path.name for path in example.iterdir()} >= {"change.patch", "README.md", "try.json"}
    told = json.loads((example / "try.json").read_text())
    assert told.keys() - {"elsewhere"} == {"target", "blocks", "expected"}
    # what is faster is tried as well where it need not be
    assert ("elsewhere" in told) == (told["expected"] == "faster")
    target = load(told["target"])
    hopper = {"compute_capability": "9.0", "memory_bytes": 80 << 30}
    for point in some(points(target, told["blocks"] + told.get("elsewhere", []))):
        assert target.skip(point.params, hopper) is None
    assert told["expected"] in EXIT
    readme = (example / "README.md").read_text()
    said = re.search(r"\*\*Expected: ([a-z ]+)\*\*", readme)
    assert said is None or said[1] == told["expected"]
    assert readme.count("\n") <= 15


def test_an_advised_change_that_names_an_example_is_of_its_target() -> None:
    found = [(o.trial, t) for t, e in known().items() for o in e.opportunities if o.trial]
    for name, target in some(found):
        assert json.loads((FOLDER / name / "try.json").read_text())["target"] == target


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_a_patch_applies_to_the_version_that_it_is_of(example: Path, tmp_path: Path) -> None:
    package = flashinfer_package()
    meta = (package / "_build_meta.py").read_text()
    if VERSION not in meta or shutil.which("git") is None:
        pytest.skip(f"needs git and the source of FlashInfer {VERSION}")
    change = read(example / "change.patch", package)
    part = (
        tmp_path / "part" / package.name
    )  # all that git looks at, as links to all others take a second
    for file in change.files:
        (part / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / file, part / file)
    overlay = lay(change, part, tmp_path)
    assert overlay.files == set(change.files) and not change.elsewhere
    for file in some(change.files):
        assert (overlay.package / file).read_bytes() != (package / file).read_bytes()
