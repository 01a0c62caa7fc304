"""The manifest of a recording: what it says is there, and the check that it is there unchanged.

A recording may be anybody's: its names become paths and words of commands.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from ncuflow.io import BadInput, JsonObject, conforming, digest, read_json
from ncuflow.model import BATCH

FILE = "manifest.json"
SCHEMA = 2
NAMES = {
    "name": re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+"),
    "target": re.compile(r"[a-z0-9_]+"),
    "batch": re.compile(BATCH),
}


def _name(what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not NAMES[what].fullmatch(text):
            raise ValueError(f"{what} {text!r} does not match {NAMES[what].pattern}")
        return text

    return AfterValidator(check)


def _below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or str(path) != text or not text.isprintable():
        raise ValueError(f"file {text!r} is no path inside the recording")
    return text


class File(BaseModel):
    """A file as it was recorded."""

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """targets: target -> batch -> point ids; files: path inside the recording -> what it was;
    provenance: what environment.json says; digest: of all the rest (`sealed`)."""

    version: Literal[2] = Field(2, alias="schema")
    digest: str = ""
    provenance: JsonObject = {}
    name: Annotated[str, _name("name")]
    targets: dict[Annotated[str, _name("target")], dict[Annotated[str, _name("batch")], list[str]]]
    files: dict[Annotated[str, AfterValidator(_below)], File]


def read(folder: Path) -> Manifest:
    """The manifest of a recording. Raises ValueError with one line where it is none, and where its
    files are not the recorded ones."""
    path = folder / FILE
    if not path.exists():
        raise ValueError(f"{folder}: no recording here (no {FILE})")
    try:
        content = read_json(path)
        manifest = conforming(path, content, Manifest, "a manifest")
        if manifest.digest != _digest(content):
            raise BadInput(path, "does not match its own digest")
        for difference in (*differences(folder, manifest), *renamed(folder, manifest)):
            raise ValueError(difference)
    except BadInput as error:
        raise ValueError(str(error)) from None
    return manifest


def sealed(content: Mapping[str, Any]) -> JsonObject:
    """The content of a manifest, with the digest that it is held against when it is read."""
    made = {**content, "schema": SCHEMA}
    return made | {"digest": _digest(made)}


def _digest(content: Mapping[str, Any]) -> str:
    """sha256 of a manifest but for its digest, however it is laid out as text."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def provenance(folder: Path) -> JsonObject:
    """What environment.json says of the machine; empty where there is none. Raises BadInput where it is no JSON."""
    path = folder / "environment.json"
    content = read_json(path) if path.exists() else None
    found = content.get("provenance") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def renamed(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What the manifest says of the machine otherwise than environment.json, a line each."""
    said, found = manifest.provenance, provenance(folder)
    for key in sorted(said.keys() | found.keys()):
        # Whose evidence is recorded was live then.
        if key not in ("tier", "recording") and said.get(key) != found.get(key):
            what = f"{key} {said.get(key)!r}, but environment.json {found.get(key)!r}"
            yield f"{folder / FILE}: says {what}"


def differences(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What of a recording is not as its manifest says, a line each."""
    strange = [path for path in entries(folder).values() if foreign(path)]
    for path in strange:
        yield f"{path}: no file of the recording's own, but a link or a device"
    if strange:  # what they lead to is neither read nor waited for
        return
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path}: missing, though the manifest lists it"
        elif path.stat().st_size != entry.bytes or digest(path) != entry.sha256:
            yield f"{path}: does not match the manifest's sha256"
    for name, path in entries(folder).items():
        if path.is_file() and name not in manifest.files:
            yield f"{path}: not in the manifest"
    for target, batches in manifest.targets.items():
        for batch in batches:
            if not any(name.startswith(f"{target}/{batch}/") for name in manifest.files):
                yield f"{folder / FILE}: lists no file of the batch {target}/{batch}"


def foreign(path: Path) -> bool:
    """Whether what lies there is no file or folder, but a link to one, a pipe or a device."""
    return path.is_symlink() or not (path.is_file() or path.is_dir())


def checksums(folder: Path) -> dict[str, JsonObject]:
    """{path: {sha256, bytes}} of a folder's files, as a manifest has them."""
    return {
        name: {"sha256": digest(path), "bytes": path.stat().st_size}
        for name, path in files(folder).items()
    }


def files(folder: Path) -> dict[str, Path]:
    """Path inside a folder -> file, sorted, without the manifest and hidden files."""
    return {name: path for name, path in entries(folder).items() if path.is_file()}


def entries(folder: Path) -> dict[str, Path]:
    """Path inside a folder -> what lies there, sorted, without the manifest and what is hidden."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: found[name]
        for name in sorted(found)
        if name != FILE and not re.search(r"(^|/)\.", name)
    }
