"""Another FlashInfer as a change: a version that pip downloads, a wheel, or a folder with the package in it.

flashinfer==0.7.1    flashinfer@wheel.whl    flashinfer@folder
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ncuflow.io import BadInput, CommandError, UsageError, clean
from ncuflow.process import python_environment, run_child
from ncuflow.trial.change import PACKAGE
from ncuflow.trial.overlay import PREBUILT, Overlay, hard_link

DISTRIBUTION = "flashinfer-python"
_VERSION = re.compile(r"flashinfer==([0-9][0-9A-Za-z.!+]*)")
_PLACE = re.compile(r"flashinfer@(.+)")
DOWNLOAD_S, LISTED_S = 600.0, 120.0


def named(change: Path) -> str | None:
    """The version, wheel or folder that a change is, as it was given; None where it is a patch or a function."""
    text = os.fspath(change)
    found = _VERSION.fullmatch(text) or _PLACE.fullmatch(text)
    if found is None and text.startswith("flashinfer=="):
        raise UsageError(f"{clean(text)}: not a version, such as flashinfer==0.7.1")
    return text if found else None


def lay(name: str, installed: Path, folder: Path) -> Overlay:
    """The other FlashInfer in an empty folder. Raises BadInput where there is none, CommandError where pip has none."""
    package = folder / "lib" / PACKAGE
    version = _VERSION.fullmatch(name)
    source = downloaded(version[1], folder) if version else Path(name.partition("@")[2])
    if source.is_dir():
        inner = source if (source / "__init__.py").is_file() else source / PACKAGE
        ignored = shutil.ignore_patterns("__pycache__")
        if (inner / "__init__.py").is_file():
            shutil.copytree(inner, package, copy_function=_copied, ignore=ignored)
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
        raise CommandError(clean(f"pip names no version of {DISTRIBUTION}: {_said(lines)}"))
    return [version.strip() for version in listed[1].split(",")]


def downloaded(version: str, folder: Path) -> Path:
    """The wheel of a version, into a folder, and nothing that it needs: that is what is installed here. Raises CommandError
    where pip has none."""
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    good, lines = _pip([*words, f"{DISTRIBUTION}=={version}"], DOWNLOAD_S, folder)
    wheels = sorted(folder.glob("*.whl"))
    if not (good and wheels):
        raise CommandError(clean(f"flashinfer=={version}: {_said([*lines, 'pip has no wheel'])}"))
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


def _said(lines: Sequence[str]) -> str:
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


def _copied(source: str, target: str) -> str:
    if not hard_link(Path(source), Path(target)):
        shutil.copy2(source, target)
    return target


def _differ(installed: Path, other: Path) -> Iterator[PurePosixPath]:
    """Files that one has and the other has not, or that hold something else."""
    both = [{*_below(package)} for package in (installed, other)]
    yield from both[0] ^ both[1]
    for file in both[0] & both[1]:
        if not filecmp.cmp(installed / file, other / file, shallow=False):
            yield file


def _below(package: Path) -> Iterator[PurePosixPath]:
    for folder, names, files in os.walk(package, followlinks=True):
        here = PurePosixPath(folder).relative_to(package)
        names[:] = [n for n in names if n != "__pycache__" and str(here / n) != PREBUILT]
        yield from (here / name for name in files)
