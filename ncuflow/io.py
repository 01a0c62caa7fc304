"""Files in and out: what a file is, private copies of compressed ones, atomic writers, and locks by flock, which the kernel
drops with the last process that has the file open.

A system without flock reads reports all the same: there every lock is free.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import lzma
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails
with contextlib.suppress(ImportError):
    import fcntl

LOCKS = "fcntl" in globals()
SHARED, OWN, FREE = 1, 2, 8  # locks, as flock numbers them
T = TypeVar("T")
JsonObject = dict[str, Any]  # as a file or another process has it, or as one is to be written

HEAD = 4096  # bytes of a file that tell what it is
BROKEN = "a truncated or damaged xz archive"
MOST_UNPACKED = 500  # reports compress 40 to 60 times; more is an archive made to fill a disk
NCU_MAGIC = b"NVR\0"
SQLITE_MAGIC = b"SQLite format 3\0"

_MAGIC = (
    (NCU_MAGIC, "ncu-rep", "an Nsight Compute report (.ncu-rep)"),
    (SQLITE_MAGIC, "sqlite", "an SQLite database"),
    (b"NVIDIA Tegra Profiler Report", "nsys-rep", "an Nsight Systems report (.nsys-rep or .qdrep)"),
    (b"version https://git-lfs.github.com/spec/", "lfs", "a git-LFS pointer, not the file itself"),
    (b"\xfd7zXZ\0", "xz", "an xz archive"),
    (b"\x1f\x8b", "gzip", "a gzip archive"),
    (b"PK\x03\x04", "zip", "a zip archive"),
    (b"(\xb5/\xfd", "zstd", "a zstd archive"),
    (b"PAR1", "parquet", "a parquet file"),
    (b"\x7fELF", "elf", "an ELF binary"),
)


SCRATCH = "ncuflow-scratch-"
YOUNG_S = 60.0


def resource(name: str) -> Path:
    """A file or folder of the project's data: workflows, templates, claims, config, recordings."""
    return Path(__file__).parent / "data" / name


class CommandError(Exception):
    """What ends a command: its text is the line that is shown, `code` the exit status."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class UsageError(CommandError):
    """Arguments that do not go together; the command's usage is shown with it."""


class BadInput(CommandError, ValueError):  # noqa: N818
    """A file cannot be read for what it was given as. `path`: the file; `what`: what it is."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        super().__init__(f"{os.fspath(path)}: {what}")
        self.path = os.fspath(path)
        self.what = what

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str]]:
        return type(self), (self.path, self.what)  # a child process may have found it


class MissingFile(BadInput, FileNotFoundError):  # noqa: N818
    """There is no such file."""

    def __init__(self, path: str | os.PathLike[str], what: str = "no such file") -> None:
        super().__init__(path, what)
        self.errno, self.filename = errno.ENOENT, self.path

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


# --- what a file is ---------------------------------------------------------------------------


def sniff(path: str | os.PathLike[str]) -> tuple[str, str]:
    """(kind, words) of a file, from its first bytes.

    Kinds: ncu-rep, sqlite, nsys-rep, lfs, csv, json, html, text, empty, xz, gzip, zip, zstd,
    parquet, elf, binary. Raises BadInput where the path is missing, a folder or unreadable.
    """
    return _kind(_head(Path(path)))


def _kind(head: bytes) -> tuple[str, str]:
    if not head:
        return "empty", "an empty file"
    for magic, kind, words in _MAGIC:
        if head.startswith(magic):
            return kind, words
    if any(magic.startswith(head) for magic, _, _ in _MAGIC[:3]):
        return "binary", f"{len(head)} bytes, too short to be a report"
    return _sniff_text(head)


def _head(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not path.is_dir():
            raise BadInput(path, "not a regular file")  # to read a pipe may wait for ever
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            return b""  # as may what the kernel has under /proc
        with path.open("rb") as file:
            return file.read(HEAD)
    except FileNotFoundError:
        raise MissingFile(path) from None
    except IsADirectoryError:
        raise BadInput(path, "a folder, not a file") from None
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror or error})") from None


def _sniff_text(head: bytes) -> tuple[str, str]:
    text = head.decode("utf-8", "replace")
    if "\0" in text or text.count("\ufffd") > 1:
        return "binary", "a binary file of an unknown kind"
    start = text.lstrip("\ufeff \t\r\n")
    if start[:1] in "{[" and not re.match(r"\[\d+\] \S", start):  # ncu's line of a process
        return "json", "a JSON file"
    if start[:1] == "<":
        return "html", "an HTML or XML file"
    if "==PROF==" in text or text.startswith("==ERROR=="):
        return "csv", "ncu's console or CSV output, not its report"
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].count(",") >= 2 and lines[1].count(",") >= 2:
        return "csv", "a CSV file"
    return "text", "a text file"


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A plain file to read: `path` itself, or a private decompressed copy where it is `.xz`.

    The copy lives in a folder of mode 0700, gone on exit. Raises BadInput on a broken archive.
    """
    source = Path(path)
    if sniff(source)[0] != "xz":
        yield source
        return
    with scratch() as folder:
        target = folder / (source.name.removesuffix(".xz") or "file")
        try:
            with lzma.open(source) as packed, target.open("wb") as plain:
                while chunk := packed.read(1 << 20):
                    plain.write(chunk)
                    if plain.tell() > MOST_UNPACKED * source.stat().st_size + (64 << 20):
                        what = f"an xz archive of more than {MOST_UNPACKED} times its size"
                        raise BadInput(source, what)
        except (lzma.LZMAError, EOFError):
            raise BadInput(source, BROKEN) from None
        yield target


def below(root: Path, name: str, within: Path | None = None) -> Path | None:
    """The regular file that a name leads to below a folder, whoever wrote the name; None where there is none, or it leads out.

    within: what links in the folder may lead to (default: the folder itself).
    """
    path = Path(root, name)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    try:
        inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within or root))
        return path if inside and path.is_file() else None
    except (OSError, ValueError):  # a name that no file system takes
        return None


def sniff_packed(path: str | os.PathLike[str]) -> tuple[str, str]:
    """`sniff` of a file, of what is in it where it is `.xz`. Raises BadInput where its beginning is broken."""
    found = sniff(path)
    if found[0] != "xz":
        return found
    try:
        with lzma.open(path) as packed:
            return _kind(packed.read(HEAD))
    except (lzma.LZMAError, EOFError):
        raise BadInput(path, BROKEN) from None


def present(path: Path) -> Path | None:
    """The file of this name, plain or `.xz`; None where there is neither."""
    return next((found for found in (path, Path(f"{path}.xz")) if found.is_file()), None)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A private folder for temporary files, gone on exit; one that a killed process left goes at the next.

    Its lock is held by this process and those that it forks, and by nobody once they are dead.
    """
    _clear_left()
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder, _locked(Path(folder)):
        yield Path(folder)


@cache
def _clear_left() -> None:
    """Remove what killed processes left of temporary folders, once per process. Without locks nobody can tell which those are."""
    if not LOCKS:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            state = folder.lstat()
            old = time.time() - state.st_mtime > YOUNG_S  # a new one may not be locked yet
            if old and state.st_uid == os.getuid():
                with _locked(folder):
                    shutil.rmtree(folder)


def locked(handle: int, how: int = OWN, wait: bool = True) -> bool:
    """Lock an open file, or wait until that can be; without ``wait``, whether nobody had it."""
    if not LOCKS:
        return True
    try:
        fcntl.flock(handle, how if wait else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder or file; BlockingIOError where another process has it."""
    if not LOCKS:
        yield
        return
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not locked(handle, wait=False):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        yield
    finally:
        os.close(handle)


def printable(path: str | os.PathLike[str]) -> str:
    """A file's name as text that can be printed: bytes that are no UTF-8 become "\ufffd"."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))


def clean(text: str) -> str:
    """Text that others wrote, as it may be printed: with "?" for undecodable bytes, for control characters, which a
    terminal would obey, and for marks without a width, which turn or hide what stands beside them. Tabs and line breaks
    stay. Every string of a report goes through here where it is read."""
    if text.isprintable():
        return text
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\t\n" else "?" for c in text)


def inert(value: Any) -> Any:
    """A cell of a CSV file: text that a spreadsheet would take for a formula has an apostrophe before it."""
    signs = ("=", "+", "@", "-", "\t", "\r")
    return f"'{value}" if isinstance(value, str) and value.startswith(signs) else value


def digest(path: str | os.PathLike[str]) -> str:
    """sha256 of a file, as hex."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def refused(error: OSError) -> str:
    """What the system would not do, and with which file; of two (a move), the one moved to."""
    path = error.filename if error.filename2 is None else error.filename2
    what = error.strerror or str(error) or type(error).__name__
    return what if path is None else f"{path}: {what}"


# --- atomic writers ---------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path`, moved over it when the block ends well, removed otherwise.

    It is locked for as long as its writer lives: what a killed one left goes with the next that writes `path`. What the
    system refuses is said of `path`, which was asked for.
    Raises BadInput where `path` is a device or a pipe, IsADirectoryError where it is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        # Moving a file over it would take the device or the pipe away, from everybody on the machine.
        raise BadInput(target, "a device or a pipe, not a file to write")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with _moved_over(target, temporary):
            yield temporary
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), str(target.parent)):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from None


@contextlib.contextmanager
def _moved_over(target: Path, temporary: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp") if LOCKS else ():
        with contextlib.suppress(OSError), _locked(left):
            left.unlink()
    try:
        with _made_locked(temporary) if LOCKS else contextlib.nullcontext():
            yield
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _made_locked(temporary: Path) -> Iterator[None]:
    """A file that is there and locked for the length of the block. Before it is locked another writer may take it for one
    that was left, and remove it: then it is made once more."""
    while True:
        handle = os.open(temporary, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            with contextlib.suppress(OSError):  # not every file system has locks
                locked(handle)
            if temporary.exists():
                yield
                return
        finally:
            os.close(handle)


def not_over(out: str | os.PathLike[str] | None, *read: str | os.PathLike[str] | None) -> None:
    """Raises BadInput where what is to be written is a file that is read: it would be gone."""
    # Of links in a circle Path.resolve() raises RuntimeError; to read one is refused in a line.
    places = {os.path.realpath(one) for one in read if one is not None}
    if out is not None and os.path.realpath(out) in places:
        raise BadInput(out, "is one of the files to read")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text atomically."""
    with replacing(path) as temporary:
        # JSON can name half a surrogate pair, which no file can hold.
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def dump_json(value: Any, levels: int | None = None) -> str:
    """Strict JSON text (no NaN, no infinity): keys as given, indented, a final newline.

    `levels`: what lies deeper is a line each; Python writes that four times as fast.
    """
    if levels is None:
        return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return _shallow(value, levels, "\n") + "\n"


def _shallow(value: Any, levels: int, newline: str) -> str:
    if not levels or not value or not isinstance(value, dict | list):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner = newline + " "
    if isinstance(value, list):
        parts = [_shallow(item, levels - 1, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{newline}]"
    parts = [f"{json.dumps(key)}: {_shallow(value[key], levels - 1, inner)}" for key in value]
    return f"{{{inner}{f',{inner}'.join(parts)}{newline}}}"


def write_json(path: str | os.PathLike[str], value: Any, levels: int | None = None) -> None:
    """Write strict JSON (`dump_json`) atomically; ValueError on NaN or infinity."""
    write_text(path, dump_json(value, levels))


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file, plain or `.xz`; BadInput where it is not strict JSON."""
    with opened(path) as plain:
        if not plain.stat().st_size:  # what the kernel has under /proc may wait for ever
            raise BadInput(path, "not JSON (an empty file)")
        try:
            return parsed(plain.read_bytes().decode("utf-8"))
        except ValueError as error:
            raise BadInput(path, f"not JSON ({error})") from None


def read_as(path: str | os.PathLike[str], kind: type[T], what: str) -> T:
    """The content of a JSON file, plain or `.xz`, as a pydantic model; BadInput where it is not `what` the model says."""
    return conforming(path, read_json(path), kind, what)


def conforming(
    path: str | os.PathLike[str], content: Any, kind: type[T], what: str, strict: bool | None = None
) -> T:
    """What a file holds as a pydantic model. BadInput says that it is not `what`, with the first place where it is not.

    strict: text is no number, of records that do not say so themselves."""
    from pydantic import ValidationError

    try:
        found: T = checker(cast(Hashable, kind)).validate_python(content, strict=strict)
    except ValidationError as error:
        text = clean(f"not {what} ({fault(error)})")
        raise BadInput(path, re.sub(r"\s", " ", text)) from None  # names may hold line breaks
    return found


@cache  # it takes longer to make one than to use it
def checker(kind: Any) -> TypeAdapter[Any]:
    """What checks that a value is of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def fault(error: ValidationError) -> str:
    """The first thing that is wrong with a record, behind the place where it is: "points[0].id: Field required"."""
    first, place = first_fault(error)
    said = first.get("ctx", {}).get("error") or first["msg"]
    if first["type"] == "extra_forbidden":
        said = "no such key"
    if first["type"] == "string_pattern_mismatch":
        said = f"{first['input'][:100]!r}: {said}"
    return f"{place}: {str(said)[:300]}".removeprefix(": ")


def first_fault(error: ValidationError) -> tuple[ErrorDetails, str]:
    """The first thing that is wrong with a record, a key that is none before all others, and the place where it is."""
    faults = error.errors(include_url=False)
    first = min(faults, key=lambda one: one["type"] != "extra_forbidden")
    place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
    return first, place.removeprefix(".")


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The value of one of the project's own YAML files, by the parser in C where PyYAML has it; BadInput where it is none."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(path, f"not YAML ({' '.join(str(error).split())[:300]})") from None


def parsed(text: str) -> Any:
    """The value of strict JSON whose numbers can be computed with: no NaN, no infinity, no integer of more than 64 bits.

    Raises ValueError for anything else, and for what is nested too deep.
    """
    try:
        return json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, parse_int=_of_64_bits
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not -math.inf < (value := float(text)) < math.inf:
        raise ValueError(f"{text[:20]} is beyond what a number can be")
    return value


def _of_64_bits(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) >> 64:
        raise ValueError(f"{text[:20]}… is an integer of more than 64 bits")
    return value


class StatusLine:
    """What a command is at, which the terminal shows where it takes long."""

    at = ""

    def clear(self) -> None:
        """Take the line away, before what is printed."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


status_line = StatusLine()


@contextlib.contextmanager
def repeatedly(say: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call ``say`` each time that so many seconds have passed, for the length of the block, in a thread of its own."""
    ended = threading.Event()

    def wait() -> None:
        while not ended.wait(seconds):
            say()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def emit(text: str, out: str | os.PathLike[str] | None) -> None:
    """Text to the file `out` (atomically) or to standard output."""
    if out is None:
        status_line.clear()
        sys.stdout.write(text)
    else:
        write_text(out, text)
