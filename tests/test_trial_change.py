"""A change: read from a patch or a folder, made in an overlay, and the installed package stays as it is."""

import difflib
import re
import shutil
from pathlib import Path, PurePosixPath

import pytest
from flashinfer_source import flashinfer_package

from ncuflow.experiments import variant
from ncuflow.experiments.variant import MOST_DIFF, Overlay, difference, lay
from ncuflow.io import BadInput, CommandError, digest

HEADER, SOURCE, CODE = "data/include/flashinfer/a.cuh", "data/csrc/b.cu", "decode.py"
TEXT = "".join(f"line {n}\n" for n in range(1, 21))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small installed package."""
    root = tmp_path / "site/flashinfer"
    for name in (HEADER, SOURCE, CODE, "data/cutlass/include/c.h", "jit/env.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(TEXT)
    return root


def hunk(name: str, old: str = TEXT, line: int = 10, to: str = "changed") -> str:
    """A patch of one line of a file."""
    new = old.replace(f"line {line}\n", f"{to}\n")
    sides = old.splitlines(True), new.splitlines(True)
    return "".join(difflib.unified_diff(*sides, f"a/{name}", f"b/{name}"))


SAME = f"--- a/{CODE}\n+++ b/{CODE}\n@@ -1,3 +1,3 @@\n line 1\n-line 2\n+line 2\n line 3\n"
PLACE = "/opt/flashinfer/include/flashinfer/a.cuh"
ABSOLUTE = f"--- {PLACE}\n+++ {PLACE}\n@@ -1 +1 @@\n-a\n+b\n"


def state(folder: Path) -> dict[str, tuple[str, int, float]]:
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    stats = [(p, p.stat()) for p in found]
    return {str(p.relative_to(folder)): (digest(p), s.st_mode, s.st_mtime) for p, s in stats}


def laid(package: Path, text: str, folder: Path) -> Overlay:
    patch = folder / "x.patch"
    patch.write_text(text)
    (folder / "over").mkdir()
    return lay(variant.read(patch, package), package, folder / "over")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("include/flashinfer/a.cuh", HEADER),
        ("csrc/b.cu", SOURCE),
        ("flashinfer/decode.py", CODE),
        (f"flashinfer/{HEADER}", HEADER),
        (SOURCE, SOURCE),
        (CODE, CODE),
    ],
)
@pytest.mark.parametrize("prefix", ["a/", "", "a/a/"])
def test_a_patch_names_files_as_repository_or_package_do(package, tmp_path, name, file, prefix):
    text = hunk(name).replace("--- a/", f"--- {prefix}").replace("+++ b/", f"+++ {prefix}")
    before = state(package)
    overlay = laid(package, text, tmp_path)
    assert overlay.files == {PurePosixPath(file)}
    assert (overlay.package / file).read_text() == TEXT.replace("line 10\n", "changed\n")
    others = {HEADER, SOURCE, CODE} - {file}
    assert all((overlay.package / other).read_text() == TEXT for other in others)
    assert state(package) == before


def test_one_patch_may_change_files_of_several_folders_and_others(package, tmp_path):
    text = hunk("include/flashinfer/a.cuh") + hunk("tests/x.py") + hunk("flashinfer/decode.py")
    overlay = laid(package, text, tmp_path)
    assert overlay.files == {PurePosixPath(HEADER), PurePosixPath(CODE)}
    assert variant.read(tmp_path / "x.patch", package).elsewhere == ("tests/x.py",)


def test_a_file_that_a_patch_renames_or_removes_counts_as_changed(package, tmp_path):
    old, new = "include/flashinfer/a.cuh", "include/flashinfer/new.cuh"
    text = f"diff --git a/{old} b/{new}\nsimilarity index 100%\n"
    text += f"rename from {old}\nrename to {new}\n"
    overlay = laid(package, text, tmp_path)
    assert overlay.files == {PurePosixPath(HEADER), PurePosixPath(HEADER).with_name("new.cuh")}
    assert not (overlay.package / HEADER).exists() and (package / HEADER).exists()


def test_a_folder_is_laid_over_and_what_is_the_same_is_no_change(package, tmp_path):
    given = tmp_path / "given"
    more = {"include/flashinfer/a.cuh": "other", "include/flashinfer/more.cuh": "more"}
    for name, text in (more | {"csrc/b.cu": TEXT, "README.md": "x", ".git/HEAD": "x"}).items():
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_text(text)
    before = state(package)
    found = variant.read(given, package)
    assert found.elsewhere == ("README.md",)
    (tmp_path / "over").mkdir()
    overlay = lay(found, package, tmp_path / "over")
    more = PurePosixPath(HEADER).with_name("more.cuh")
    assert overlay.files == {PurePosixPath(HEADER), more}
    assert (overlay.package / HEADER).read_text() == "other"
    assert (overlay.package / more).read_text() == "more"
    assert state(package) == before


def test_nothing_that_flashinfer_resolves_leads_back_unless_it_is_the_same(package, tmp_path):
    (package / "data/aot/norm").mkdir(parents=True)
    overlay = laid(package, hunk("include/flashinfer/a.cuh"), tmp_path)
    linked = {p for p in overlay.package.rglob("*") if p.is_symlink()}
    assert linked == {overlay.package / "data/cutlass", overlay.package / "data/csrc"}
    assert Path(overlay.package / "data/cutlass").samefile(package / "data/cutlass")
    assert not (overlay.package / "data/aot").exists()  # prebuilt of another source
    assert not Path(overlay.package / HEADER).samefile(package / HEADER)


def test_what_a_change_writes_to_is_no_link(package, tmp_path, monkeypatch):
    def write_in_place(change: object, package: Path) -> None:
        (package / CODE).write_text("written")

    monkeypatch.setattr("ncuflow.experiments.variant.apply", write_in_place)
    overlay = laid(package, hunk("flashinfer/decode.py"), tmp_path)
    assert (overlay.package / "jit/env.py").samefile(package / "jit/env.py")
    assert (package / CODE).read_text() == TEXT


def test_across_file_systems_files_are_copied(package, tmp_path, monkeypatch):
    def refuse(*names: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("ncuflow.experiments.variant.os.link", refuse)
    overlay = laid(package, hunk("flashinfer/decode.py"), tmp_path)
    assert (overlay.package / "jit/env.py").read_text() == TEXT
    assert not Path(overlay.package / "jit/env.py").samefile(package / "jit/env.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (hunk("include/flashinfer/a.cuh", TEXT.replace("line 9\n", "line nine\n")),
         "does not apply to flashinfer/data/include/flashinfer/a.cuh: its hunk at line 7 does not fit"),
        ("no patch", "does not apply: No valid patches in input"),
        (hunk(CODE)[:-30], "does not apply: corrupt patch at line"),
        (hunk("tests/x.py"), "changes no file of the installed package flashinfer"),
        (hunk("../../etc/passwd"), "changes no file of the installed package flashinfer"),
        (ABSOLUTE, "changes no file of the installed package flashinfer, but"),
        (SAME, "leaves all files of flashinfer as they are"),
        (f"{SAME}{SAME.replace(CODE, SOURCE)}", "leaves all files of flashinfer as they are"),
    ],
)  # fmt: skip
def test_what_does_not_apply_is_one_line_with_file_and_hunk(package, tmp_path, text, said):
    before = state(package)
    with pytest.raises(BadInput) as refused:
        laid(package, text, tmp_path)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value.code == 2
    assert state(package) == before


def test_a_folder_around_it_that_is_a_repository_plays_no_part(package, tmp_path):
    """git would take paths for those of the repository, and pass over what lies outside of the current folder."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (tmp_path / ".git" / name).mkdir()
    overlay = laid(package, hunk("flashinfer/decode.py"), tmp_path)
    assert "changed" in (overlay.package / CODE).read_text()


def test_without_git_a_patch_is_one_clear_line(package, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandError, match="by git, which is not installed here"):
        laid(package, hunk(CODE), tmp_path)


def test_the_patch_of_the_documentation_applies_to_flashinfer(tmp_path: Path) -> None:
    real = flashinfer_package()
    text = (Path(__file__).parents[1] / "docs/try.md").read_text(encoding="utf-8")
    found = re.search(r"```diff\n(.*?)```", text, re.DOTALL)
    assert found
    overlay = laid(real, found[1], tmp_path)
    (file,) = overlay.files
    assert str(file) in text
    assert "__nanosleep" in (overlay.package / file).read_text()
    assert "__nanosleep" not in (real / file).read_text()


def test_a_difference_is_that_of_the_files_and_not_the_text_of_the_patch(package, tmp_path):
    added = "--- /dev/null\n+++ b/include/flashinfer/new.cuh\n@@ -0,0 +1 @@\n+one\n"
    text = f"A word of the author.\n{hunk('csrc/b.cu')}{added}"
    overlay = laid(package, text, tmp_path)
    found = difference(overlay, package)
    assert found == hunk(SOURCE) + added.replace("include/", "data/include/")
    assert "author" not in found


def test_a_long_difference_is_cut_and_says_how_much_is_left(package: Path, tmp_path: Path) -> None:
    overlay = laid(package, hunk("csrc/b.cu"), tmp_path)
    lines = [f"{n} {'x' * 90}" for n in range(1000)]
    (overlay.package / SOURCE).write_text("\n".join(lines))
    found = difference(overlay, package)
    kept = [line for line in found.splitlines() if line[1:] in lines]
    assert 300 < len(kept) < 500 and len(found) <= MOST_DIFF + 30
    assert found.splitlines()[-1] == f"… {1000 - len(kept)} more lines"


def test_neither_file_nor_folder(package: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file or folder"):
        variant.read(tmp_path / "none", package)


@pytest.mark.parametrize(
    "name", ["../x.py", "flashinfer/../../x.py", "include/../../x.cuh", "/x.py"]
)
def test_a_path_that_leads_out_of_the_package_has_no_place_in_it(package: Path, name: str) -> None:
    assert variant.home(PurePosixPath(name), package) is None
