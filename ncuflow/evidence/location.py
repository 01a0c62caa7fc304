"""Where a recording lies, ``recordings/<gpu>/<flashinfer>/<what>``, and the name that it has from there.

The folders are for people and for finding: what a recording is of, its manifest says, or its static facts.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ncuflow.evidence import manifest
from ncuflow.format import slug
from ncuflow.io import BadInput, resource

FOLDER = "recordings"
DEFAULT = "default"
# Words of a GPU's name that tell how it is built in, and how large its memory is.
_BUILT = re.compile(r"-(sxm\d*|hbm\d\w*|\d+gb)(?![a-z0-9])")


def name(folder: Path) -> str:
    """What evidence is called by its folder: the path below ``recordings``, joined by dashes; elsewhere its last name.

    name(Path("recordings/h200/0.7.2/default")) is h200-0.7.2-default, name(Path("mine/a100")) is a100.
    """
    path = folder.absolute()
    _, inside, below = path.as_posix().rpartition(f"/{FOLDER}/")
    return below.replace("/", "-") if inside else path.name


def recording_folder(provenance: dict[str, Any], what: str = DEFAULT) -> Path:
    """The folder for a recording of this origin. Raises ValueError where it names no GPU or no FlashInfer,
    or ``what`` is more than a name."""
    made = gpu(str(provenance.get("gpu") or "")), release(str(provenance.get("flashinfer") or ""))
    if not all(made):
        raise ValueError("no GPU or no FlashInfer in environment.json")
    if not re.fullmatch(r"\w[\w.+-]*", what):
        raise ValueError(f"{what!r} is no name of a folder")
    return Path(FOLDER, *made, what)


def gpu(name: str) -> str:
    """A GPU's folder: ``NVIDIA H100 80GB HBM3`` -> ``h100``, ``NVIDIA A100 80GB PCIe`` -> ``a100-pcie``."""
    return _BUILT.sub("", slug(name))


def release(version: str) -> str:
    """The release of a version: ``0.7.2.post1`` -> ``0.7.2``; empty where it is none."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found.group() if found else ""


def numbers(version: str) -> list[int]:
    """A version's release, to sort by: ``0.7.2.post1`` -> ``[0, 7, 2]``."""
    return [int(part) for part in release(version).split(".") if part]


def default() -> Path:
    """The recording that is shown unless another is named: ``default`` of the newest FlashInfer that has one.

    Of several GPUs it is the one with the most memory. Raises ValueError with one line where there is none.
    """
    return matching(f"{FOLDER}/*/*/{DEFAULT}")[-1]


def matching(pattern: str) -> list[Path]:
    """The recordings whose folders match a pattern, the newest FlashInfer last, in this folder or else the project's own.

    Raises ValueError with one line where there is none.
    """
    for path in (Path(pattern), here(Path(pattern))):
        found = _by_version(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if found:
            return found
    raise ValueError(f"{pattern}: no recording matches")


def here(folder: Path) -> Path:
    """The folder, or the project's own in its place where ``recordings/…`` is not in this one."""
    if folder.exists() or folder.parts[:1] != (FOLDER,):
        return folder
    return resource(FOLDER).joinpath(*folder.parts[1:])


def as_given(folder: Path) -> Path:
    """The folder as pages and programs are told it: the project's own recordings from ``recordings`` on, as `here` takes them,
    for where they are installed is of one machine."""
    own = resource(FOLDER)
    return Path(FOLDER, *folder.relative_to(own).parts) if folder.is_relative_to(own) else folder


def _by_version(folders: Iterable[Path]) -> list[Path]:
    def order(folder: Path) -> tuple[list[int], int, str]:
        try:
            found = manifest.provenance(folder)
        except BadInput as error:
            raise ValueError(str(error)) from None
        memory = found.get("memory_bytes")
        version = numbers(str(found.get("flashinfer") or ""))
        return version, memory if isinstance(memory, int) else 0, str(folder)

    return sorted((path for path in folders if (path / manifest.FILE).is_file()), key=order)
