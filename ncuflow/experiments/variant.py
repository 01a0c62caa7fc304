"""A variant of FlashInfer: a patch, a folder of changed files, another version, or a function in place of an API.

A patch or a folder is laid over a copy of the installed package, which stays as it is. Paths in it may be those of
FlashInfer's repository (include/flashinfer/…, csrc/…, flashinfer/decode.py) or of the installed package
(flashinfer/data/include/…, data/csrc/…). Files of the copy are hard links where the file system has them across, else
copies; those that the change touches are always copies. Folders of `data/` that it leaves alone (CUTLASS, CCCL) are symbolic
links: FlashInfer resolves those to the installed ones, which hold the same. Nothing else may be a symbolic link, or it would
find its way back by `resolve()`.
"""

import difflib
import filecmp
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path, PurePath, PurePosixPath

from ncuflow.format import short
from ncuflow.gpu import nvml
from ncuflow.io import BadInput, CommandError, MissingFile, UsageError, clean
from ncuflow.origin import package_folder
from ncuflow.process import QUERY_S, python_environment, run_child
from ncuflow.run import FATAL

PACKAGE = "flashinfer"
DATA = "data"  # of the package: what the repository has at its top
MOVED = ("include", "csrc")
MOST_NAME = 80  # characters of a path that a complaint quotes
STRIPS = (1, 0, 2)  # a/decode.py as git writes it, decode.py, and a/a/decode.py of two folders
# What git says of a hunk, the line being that of the file as it should be, and of anything else.
_FAILED = re.compile(r"error: patch failed: (.+):(\d+)$")
_SAID = re.compile(r"(?:error|fatal): (.+)$")


@dataclass(frozen=True)
class Patch:
    """A change that was read, and not applied yet.

    files: of the package that it adds, changes or removes, by their paths below it: what the change itself calls them;
    elsewhere: what it has that is no file of the package (tests, documentation), which is left out; strip: of a patch, leading
    folders of its paths (-p).
    """

    path: Path
    files: Mapping[PurePosixPath, str]
    elsewhere: tuple[str, ...] = ()
    strip: int | None = None


def installed_package(without: str) -> Path:
    """The folder of the installed FlashInfer, where there is a GPU as well: who has none need not wait for a compiler to hear of
    it. Raises CommandError that says what is missing, and which command works without."""
    found = package_folder(PACKAGE)
    if found is None:
        raise CommandError(
            f"flashinfer is not installed; {without} works without it and without a GPU", FATAL
        )
    nvml.needed(without)
    return found


def check(path: Path) -> None:
    """Look at a change before anything else is asked for. Raises BadInput where it is nothing that could be tried."""
    if not (named_version(path) or named_function(path) or path.is_dir()):
        _stripped(path)


def read(path: Path, package: Path) -> Patch:
    """The change in a file or folder, held against an installed package.

    Raises BadInput where it is no patch, or changes nothing of the package.
    """
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        found = _change(path, package, [name for name in names if _is_source(name)])
        files = {f: n for f, n in found.files.items() if not same(path / n, package / f)}
        found = replace(found, files=files)
    else:
        found = _patch(path, package)
    if not found.files:
        named = f", but {short(found.elsewhere[0], MOST_NAME)}" if found.elsewhere else ""
        raise BadInput(path, f"changes no file of the installed package {PACKAGE}{named}")
    return found


def apply(change: Patch, package: Path) -> None:
    """Make the change in a copy of the package, a folder named flashinfer. Raises BadInput that names file and hunk."""
    if change.strip is None:
        for file, name in change.files.items():
            target = package / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(change.path / name, target)
        return
    by_folder: dict[str, list[str]] = {}
    for name in change.files.values():
        by_folder.setdefault(_folder(PurePosixPath(name)), []).append(name)
    for folder, names in by_folder.items():
        # git holds the names that it may touch against those behind the folder.
        below = [f"--include={_literal(str(PurePosixPath(folder, name)))}" for name in names]
        _git(change.path, package.parent, f"-p{change.strip}", f"--directory={folder}", *below)


def home(path: PurePosixPath, package: Path) -> PurePosixPath | None:
    """Where a path of a change lies below the package; None where that has no such folder, or it leads elsewhere."""
    if path.is_absolute():
        return None
    inside = PurePosixPath(_folder(path), path).relative_to(PACKAGE)
    if ".." in inside.parts or not inside.parts:
        return None
    known = (package / inside).exists() or (
        len(inside.parts) > 1 and (package / inside.parent).is_dir()
    )
    return inside if known else None


def _folder(path: PurePosixPath) -> str:
    """The folder that a path of a change is relative to, seen from where the package lies."""
    first = path.parts[0] if path.parts else ""
    if first == PACKAGE:
        return ""
    return f"{PACKAGE}/{DATA}" if first in MOVED else PACKAGE


def _stripped(path: Path) -> dict[int, list[str]]:
    """The files that a patch names, by the leading folders that its paths may have. Raises BadInput where it is none."""
    if not path.is_file():
        raise MissingFile(path, "no such file or folder")
    if shutil.which("git") is None:
        raise CommandError("a patch is applied by git, which is not installed here")
    found, refused = {}, []
    for strip in STRIPS:
        try:
            found[strip] = _touched(path, strip)
        except BadInput as error:  # a path has no so many folders, or it is no patch at all
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def _patch(path: Path, package: Path) -> Patch:
    found = [_change(path, package, names, strip) for strip, names in _stripped(path).items()]
    # The first of equal ones; a new file tells less than one that is there.
    return max(found, key=lambda c: (sum((package / f).exists() for f in c.files), len(c.files)))


def _change(path: Path, package: Path, names: Iterable[str], strip: int | None = None) -> Patch:
    homes = [(name, home(PurePosixPath(name), package)) for name in names]
    elsewhere = tuple(clean(name) for name, file in homes if file is None)
    return Patch(path, {file: name for name, file in homes if file is not None}, elsewhere, strip)


def _touched(path: Path, strip: int) -> list[str]:
    """The files that a patch names, as git reads it."""
    listed = _git(path, path.absolute().parent, "--numstat", "-z", f"-p{strip}")
    return [entry.split("\t", 2)[2] for entry in "\n".join(listed).split("\0") if "\t" in entry]


def _git(patch: Path, folder: Path, *words: str) -> list[str]:
    """The lines that `git apply` prints in a folder, which is taken for no part of a repository."""
    # Of a repository around the folder git would pass over what lies outside of that.
    env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "GIT_DIR": os.devnull}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    lines: list[str] = []
    command = ["git", "apply", *words, "--", str(patch.absolute())]
    ended = run_child(command, env=env, cwd=folder, timeout=QUERY_S, on_line=lines.append)
    if ended.returncode:
        raise BadInput(patch, _why(lines))
    return lines


def _why(lines: Sequence[str]) -> str:
    """What git complains of, in one line: file and hunk where there is one."""
    for line in lines:
        if found := _FAILED.match(line):
            return clean(f"does not apply to {found[1]}: its hunk at line {found[2]} does not fit")
    said = next((found[1] for line in lines if (found := _SAID.match(line))), "git refused it")
    return clean(f"does not apply: {said}")


def _literal(name: str) -> str:
    """A name as a pattern that it alone matches."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", name)


def _is_source(name: str) -> bool:
    """Whether a folder's file is none of a repository's own, or of Python's caches."""
    return not any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


PREBUILT = f"{DATA}/aot"  # of the package: FlashInfer loads <name>/<name>.so from here, and asks no compiler

MOST_DIFF = 40_000  # characters of a difference that a record keeps


@dataclass(frozen=True)
class Overlay:
    """package: the changed copy; workspace: a base folder for its JIT cache; files: of the package that differ; candidate:
    the function that stands in place of an API, and then the package and the workspace are the base's; whole: it is another
    FlashInfer altogether."""

    package: Path
    workspace: Path | None
    files: frozenset[PurePosixPath]
    function: str = ""
    whole: bool = False

    @property
    def loaded(self) -> Path | None:
        """The package that is loaded in place of the installed one."""
        return None if self.function else self.package

    @property
    def words(self) -> tuple[str, ...]:
        """Of the command of a side, beside what each has."""
        return (f"--function={self.function}",) if self.function else ()


def lay(change: Patch, installed: Path, folder: Path) -> Overlay:
    """The overlay of a change in an empty folder. Raises BadInput where the change does not apply, or changes nothing."""
    package = folder / "lib" / PACKAGE
    _link(installed, package, PurePosixPath(), frozenset(change.files))
    before = _files(package)
    apply(change, package)
    # A patch that renames a file says its new name alone.
    named = frozenset(change.files) | (before - _files(package))
    files = frozenset(file for file in named if not same(installed / file, package / file))
    if not files:
        raise BadInput(change.path, f"leaves all files of {PACKAGE} as they are")
    (folder / "jit").mkdir()
    return Overlay(package, folder / "jit", files)


def same(one: Path, other: Path) -> bool:
    """Whether two files are there and hold the same bytes, as links to one file do."""
    there = one.is_file() and other.is_file()
    return there and (one.samefile(other) or filecmp.cmp(one, other, shallow=False))


def difference(overlay: Overlay, installed: Path) -> str | None:
    """What an overlay changes, as a unified diff of its files; cut at MOST_DIFF characters, with how many lines follow. None
    of what is no change of the installed package."""
    if overlay.whole or overlay.function:
        return None
    lines = [
        line
        for file in sorted(overlay.files)
        for line in _of_file(file, installed, overlay.package)
    ]
    room = list(
        takewhile(lambda end: end <= MOST_DIFF, accumulate(len(line) + 1 for line in lines))
    )
    left = len(lines) - len(room)
    kept = [*lines[: len(room)], *([f"… {left} more lines"] if left else [])]
    return "".join(f"{line}\n" for line in kept)


def _of_file(file: PurePosixPath, base: Path, change: Path) -> Iterator[str]:
    before, after = _lines(base / file), _lines(change / file)
    names = [
        os.devnull if lines is None else f"{side}/{file}"
        for side, lines in (("a", before), ("b", after))
    ]
    found = difflib.unified_diff(before or [], after or [], names[0], names[1], lineterm="")
    return (line.rstrip("\r\n") for line in found)


def _lines(path: Path) -> list[str] | None:
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else None


def _link(source: Path, target: Path, at: PurePosixPath, touched: Set[PurePosixPath]) -> None:
    """Copy a folder of the package, `at` below it."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        here = at / entry.name
        if entry.name == "__pycache__" or str(here) == PREBUILT:
            continue
        alone = at == PurePosixPath(DATA) and not any(f.is_relative_to(here) for f in touched)
        if entry.is_dir() and alone:
            (target / entry.name).symlink_to(entry.resolve(), target_is_directory=True)
        elif entry.is_dir():
            _link(entry, target / entry.name, here, touched)
        elif here in touched:
            shutil.copy2(entry, target / entry.name)
        else:
            _linked(entry, target / entry.name)


def _linked(source: str | Path, target: str | Path) -> str | Path:
    """A hard link, or a copy where none can be made: across file systems, or of another user's file."""
    try:
        os.link(Path(source).resolve(), target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _files(package: Path) -> frozenset[PurePosixPath]:
    """Files of an overlay, but not those behind its symbolic links."""
    return frozenset(
        PurePosixPath(folder, name).relative_to(package)
        for folder, _, names in os.walk(package)
        for name in names
    )


DISTRIBUTION = "flashinfer-python"
_VERSION = re.compile(r"flashinfer==([0-9][0-9A-Za-z.!+]*)")
_PLACE = re.compile(r"flashinfer@(.+)")
DOWNLOAD_S, LISTED_S = 600.0, 120.0


def named_version(change: Path) -> str | None:
    """The version, wheel or folder that a change is, as it was given; None where it is a patch or a function."""
    text = os.fspath(change)
    found = _VERSION.fullmatch(text) or _PLACE.fullmatch(text)
    if found is None and text.startswith("flashinfer=="):
        raise UsageError(f"{clean(text)}: not a version, such as flashinfer==0.7.1")
    return text if found else None


def lay_version(name: str, installed: Path, folder: Path) -> Overlay:
    """The other FlashInfer in an empty folder. Raises BadInput where there is none, CommandError where pip has none."""
    package = folder / "lib" / PACKAGE
    version = _VERSION.fullmatch(name)
    source = downloaded(version[1], folder) if version else Path(name.partition("@")[2])
    if source.is_dir():
        inner = source if (source / "__init__.py").is_file() else source / PACKAGE
        ignored = shutil.ignore_patterns("__pycache__")
        if (inner / "__init__.py").is_file():
            shutil.copytree(inner, package, copy_function=_linked, ignore=ignored)
    else:
        extract(source, package.parent)
    if not (package / "__init__.py").is_file():
        raise BadInput(source, f"holds no package {PACKAGE}")
    shutil.rmtree(package / PREBUILT, ignore_errors=True)
    (folder / "jit").mkdir()
    return Overlay(package, folder / "jit", frozenset(_differ(installed, package)), whole=True)


def versions() -> list[str]:
    """The versions that pip's index has. Raises CommandError where it names none."""
    lines = _pip(["index", "versions", DISTRIBUTION], LISTED_S)[1]
    listed = next((m for line in lines if (m := re.match(r"Available versions: (.*)", line))), None)
    if listed is None:
        raise CommandError(clean(f"pip names no version of {DISTRIBUTION}: {_complaint(lines)}"))
    return [version.strip() for version in listed[1].split(",")]


def downloaded(version: str, folder: Path) -> Path:
    """The wheel of a version, into a folder, and nothing that it needs: that is what is installed here. Raises CommandError
    where pip has none."""
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    good, lines = _pip([*words, f"{DISTRIBUTION}=={version}"], DOWNLOAD_S, folder)
    wheels = sorted(folder.glob("*.whl"))
    if not (good and wheels):
        raise CommandError(
            clean(f"flashinfer=={version}: {_complaint([*lines, 'pip has no wheel'])}")
        )
    return wheels[0]


def _pip(words: Sequence[str], limit_s: float, cwd: Path | None = None) -> tuple[bool, list[str]]:
    """(whether pip did it, what it said)."""
    lines: list[str] = []
    command = [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "--no-input"]
    env = python_environment(os.environ)
    ended = run_child(command, env=env, timeout=limit_s, on_line=lines.append, cwd=cwd)
    if ended.returncode and ended.timed_out:
        lines = [f"pip did not end within {limit_s:g} s"]
    return not ended.returncode, lines


def _complaint(lines: Sequence[str]) -> str:
    """The first error among lines, else the last one."""
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "")


def extract(wheel: Path, folder: Path) -> None:
    """The package of a wheel below a folder, and nothing beside it. Raises BadInput where it is no wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            # Names that lead out of the folder lose what does (zipfile.extract).
            archive.extractall(
                folder, [name for name in archive.namelist() if name.startswith(f"{PACKAGE}/")]
            )
    except FileNotFoundError:
        raise BadInput(wheel, "no such wheel or folder") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(wheel, clean(f"not a wheel: {error}")) from None


def _differ(installed: Path, other: Path) -> Iterator[PurePosixPath]:
    """Files that one has and the other has not, or that hold something else."""
    both = [{*_below(package)} for package in (installed, other)]
    yield from both[0] ^ both[1]
    for file in both[0] & both[1]:
        if not same(installed / file, other / file):
            yield file


def _below(package: Path) -> Iterator[PurePosixPath]:
    for folder, names, files in os.walk(package, followlinks=True):
        here = PurePosixPath(folder).relative_to(package)
        names[:] = [n for n in names if n != "__pycache__" and str(here / n) != PREBUILT]
        yield from (here / name for name in files)


_NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def named_function(change: PurePath) -> str | None:
    """The module:function that a change is; None where it is a file or a folder."""
    text = str(change)
    return text if _NAMED.fullmatch(text) and not Path(change).exists() else None


def check_function(name: str, installed: Path) -> None:
    """Raises CommandError where the installed FlashInfer has no trace_apply."""
    if not (installed / "trace_apply").is_dir():
        raise CommandError(f"{name}: this FlashInfer has no trace_apply, which a function needs")
