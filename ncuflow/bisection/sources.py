"""Where versions come from: wheels of a folder, releases of an index, commits of a checkout, values of an environment variable.

Each is made in a folder of its own, which goes with the search or is kept for the next one, and never in the environment
that this runs in.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ncuflow.bisection.record import Over
from ncuflow.evidence.location import numbers
from ncuflow.experiments.variant import DISTRIBUTION, PACKAGE, downloaded, extract, versions
from ncuflow.io import BadInput, CommandError, UsageError, clean, digest

WHEEL = re.compile(r"flashinfer(?:_python)?-(?P<version>[^-]+)-.*\.whl")
# Of a checkout: what a build links into the package, by its place there.
LINKS = {
    "csrc": "csrc",
    "include": "include",
    "cutlass": "3rdparty/cutlass",
    "spdlog": "3rdparty/spdlog",
}
SITE = "site"  # where a version lies in its folder
CODE = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".cc", ".cpp", ".jinja", ".inc"})


class CannotError(RuntimeError):
    """A version that cannot be had, or cannot run the point: it is passed over."""


@dataclass(frozen=True)
class Placed:
    """A version that is there. package: its FlashInfer, None for the installed one; environ: variables beside the minimal
    environment."""

    package: Path | None
    environ: Mapping[str, str] = field(default_factory=dict)


class VersionSource(Protocol):
    """Versions in their order."""

    over: Over
    versions: list[str]

    def place(self, version: str, folder: Path) -> Placed:
        """The version, below a folder that is empty or has it already. Raises CannotError where it cannot be had."""


class Wheels:
    """Wheels in a folder, by their version."""

    over: Over = "wheels"

    def __init__(self, folder: Path) -> None:
        found = {m["version"]: p for p in folder.glob("*.whl") if (m := WHEEL.fullmatch(p.name))}
        if len(found) < 2:
            raise BadInput(folder, f"{len(found)} wheels of {DISTRIBUTION}, of two at least")
        self._paths = {v: found[v] for v in sorted(found, key=lambda v: (numbers(v), v))}
        self.versions = list(self._paths)

    def place(self, version: str, folder: Path) -> Placed:
        return _placed(folder, lambda site: extract(self._paths[version], site))


class Releases:
    """What pip's index has."""

    over: Over = "releases"

    def __init__(self) -> None:
        """Raises CommandError where pip names none."""
        self.versions = sorted(versions(), key=lambda v: (numbers(v), v))

    def place(self, version: str, folder: Path) -> Placed:
        def download(site: Path) -> None:
            wheel = downloaded(version, folder)
            extract(wheel, site)
            wheel.unlink()

        return _placed(folder, download)


class Commits:
    """Commits of a checkout from one to another, along the first parents."""

    over: Over = "commits"

    def __init__(self, checkout: Path, good: str, bad: str) -> None:
        self._checkout = checkout
        ends = [
            self._git("rev-parse", "--verify", f"{end}^{{commit}}").strip() for end in (good, bad)
        ]
        for first, last in (ends, ends[::-1]):
            listed = self._git(
                "rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{first}..{last}"
            )
            if listed.split():
                self.versions = [first, *listed.split()]
                return
        raise BadInput(
            checkout, clean(f"{good} and {bad}: neither leads to the other by first parents")
        )

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self._checkout), *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["git failed"]
            raise BadInput(self._checkout, clean(said[-1]))
        return done.stdout

    def place(self, version: str, folder: Path) -> Placed:
        def check_out(site: Path) -> None:
            archive = folder / "commit.tar"
            self._git("archive", "--format=tar", f"--output={archive.absolute()}", version)
            with tarfile.open(archive) as packed:
                packed.extractall(site, filter="data")
            archive.unlink()

        placed = _placed(folder, check_out)
        _link(folder / SITE, folder / SITE / PACKAGE, self._checkout)
        return placed

    def files(self, before: str, after: str) -> list[str]:
        """Files that differ between two commits."""
        return [f for f in self._git("diff", "--name-only", before, after).splitlines() if f]


def _link(folder: Path, package: Path, checkout: Path) -> None:
    """Link into the package what a build would put there; submodules, which an archive lacks, are the checkout's."""
    (package / "data").mkdir(exist_ok=True)
    for name, place in LINKS.items():
        link, whole = package / "data" / name, folder / place
        if not (whole.is_dir() and any(whole.iterdir())):
            whole = (checkout / place).absolute()
        if not link.exists() and whole.is_dir():
            link.symlink_to(whole)


class Values:
    """Values of an environment variable, with the installed FlashInfer."""

    over: Over = "environment"

    def __init__(self, text: str) -> None:
        self._name, _, values = text.partition("=")
        self.versions = values.split(",")
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self._name) or len(set(self.versions)) < 2:
            raise UsageError(f"--env {text!r} is not NAME=A,B with two values or more")

    def place(self, version: str, folder: Path) -> Placed:
        return Placed(None, {self._name: version})


def _placed(folder: Path, make: Callable[[Path], None]) -> Placed:
    """The FlashInfer that ``make`` lays into a folder below this one, unless it is there; what it depends on the environment
    has."""
    site = folder / SITE
    if not site.is_dir():
        partial = folder / f"{SITE}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            make(partial)
        except BadInput as error:
            raise CannotError(error.what) from None
        except CommandError as error:
            raise CannotError(str(error)) from None
        if not (partial / PACKAGE / "__init__.py").is_file():
            raise CannotError(f"holds no package {PACKAGE}")
        partial.rename(site)
    return Placed(site / PACKAGE, _own(folder))


def _own(folder: Path) -> dict[str, str]:
    """What a version compiles is nobody else's."""
    return {"FLASHINFER_WORKSPACE_BASE": str(folder / "workspace")}


def differing(before: Path, after: Path) -> list[str]:
    """Files of code that two packages do not have alike, by their place in the package."""
    sides = [_code(package) for package in (before, after)]
    names = sorted({*sides[0], *sides[1]})
    return [name for name in names if sides[0].get(name) != sides[1].get(name)]


def _code(package: Path) -> dict[str, str]:
    found = (path for path in package.rglob("*") if path.suffix in CODE and path.is_file())
    return {path.relative_to(package).as_posix(): digest(path) for path in found}
