"""What FlashInfer has of a kernel: its source, how that is compiled, and the backends that compute a call.

For which GPUs it has a backend FlashInfer declares beside its code: by the decorator `supported_compute_capability`, by the
architectures that a module is generated for (`supported_major_versions`), or by what a function asks of the GPU. It is read
there without importing it, of the FlashInfer that is installed; where none is, or it declares it otherwise, that of 0.7.2 holds.
"""

import ast
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ncuflow.origin import package_version
from ncuflow.target.launch import GpuFacts, Params


class Symbol(NamedTuple):
    """A kernel or function, and its header below ``include/flashinfer``; "" where FlashInfer has none."""

    name: str
    header: str


def symbols(header: str, *names: str) -> tuple[Symbol, ...]:
    """Kernels or functions of one header."""
    return tuple(Symbol(name, header) for name in names)


class Constant(NamedTuple):
    """Where FlashInfer's source has the value of a tunable.

    file: below the package; function: in which it stands, "" where the file has it outside of one; pattern: a regular
    expression that matches there exactly once, the value being its one group.
    """

    file: str
    function: str
    pattern: str


class Tunable(NamedTuple):
    """A constant that FlashInfer's source fixes and that may be another one, with the same result: tile, stages, threads.

    name: as no parameter of the target is called; places: all that hold its value, which change together; values: to try,
    the likeliest first, those that are the source's own being none; where: the points at which it means something, an
    expression over their parameters.
    """

    name: str
    places: tuple[Constant, ...]
    values: tuple[int, ...]
    where: str = "True"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What FlashInfer's source has of a target, and what its headers do not tell of the kernels.

    api        where the code path starts: "python", "jit", "binding" and more of them
    kernels    that the call may launch
    files      of its kernels that no header has: their name -> the file below FlashInfer's package
    functions  host functions that its prose cites
    sources    files of csrc/ that the module is made from
    templates  parameter names, by kernel, that FlashInfer's headers do not tell
    meanings   of its kernels' template parameters; "kernel.parameter" where two kernels disagree
    computed   what headers compute of template arguments: name -> its meaning, and the value from the whole
               numbers among the arguments, by parameter; a KeyError is another kernel
    apart      by kernel, the template parameter by which its instances wait for different things
    tunables   constants of it that may have other values
    """

    api: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[Symbol, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[Symbol, ...] = ()
    sources: tuple[str, ...] = ()
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, tuple[str, Callable[[Mapping[str, int]], int]]] = field(
        default_factory=dict
    )
    apart: Mapping[str, str] = field(default_factory=dict)
    tunables: tuple[Tunable, ...] = ()


@dataclass(frozen=True)
class Jit:
    """A JIT module whose compilation is measured.

    getter: FlashInfer's cached function that returns it, "module:function"; arguments: those of the
    getter, from the parameters; params: where the module needs others than the target's defaults;
    environ: variables without which FlashInfer would take another way.
    """

    name: str
    getter: str
    arguments: Callable[[Params], Sequence[Any]] = lambda p: ()
    params: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


class CuteKernel(NamedTuple):
    """A kernel that FlashInfer writes in CuTe DSL, which no nvcc compiles.

    module: what its facts are filed under; source: what tells it from others there; function:
    FlashInfer's, which compiles it, "module:function"; arguments: its arguments before the SM version.
    """

    module: str
    source: str
    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a target is compiled.

    generate  JIT modules (JitSpec) of a point; that of ``Source.api``, given what the first of ``jit`` is, unless given
    cute      the kernel that FlashInfer has CuTe DSL compile for a point on a compute capability
    jit       modules whose compilation is measured
    early     its points are profiled as their modules stand, while others are compiled, and compared with their references
              then, as nothing is timed beside compilers; they are traced, unchecked, when nobody compiles
    """

    generate: Callable[[Params], list[Any]] | None = None
    cute: Callable[[Params, str], CuteKernel | None] = lambda p, capability: None
    jit: tuple[Jit, ...] = ()
    early: bool = False


CUBINS = "FLASHINFER_CUBIN_DIR"  # the environment variable with FlashInfer's folder of downloaded kernels
DOWNLOAD = "flashinfer download-cubin"
REPOSITORY = "FLASHINFER_CUBINS_REPOSITORY"  # the one with where they are downloaded from
# the one by which FlashInfer fails at once where one is missing
NO_DOWNLOAD = "FLASHINFER_NO_DOWNLOAD"
REACH_S = 5.0  # that the repository may take to answer; FlashInfer itself tries for minutes
_DECLARED = re.compile(rf'"{REPOSITORY}",\s*"([^"]+)"')
_FLAGS = re.compile(r"sm(\d+)(\d)[af]?_nvcc_flags")
_ONLY = {"9.x": "9.0"}  # the one compute capability of its major number


class Declaration(NamedTuple):
    """A function of FlashInfer's that says for which GPUs it is, and its file in the package."""

    function: str
    file: str


@dataclass(frozen=True)
class Backend:
    """Who computes a call.

    name          as the call is told it
    capabilities  the compute capabilities that FlashInfer 0.7.2 has it for: "10.3", or "10.x" for all of 10;
                  empty where it declares none, and the library behind it decides
    declared      where FlashInfer says so; None where only its prose does
    downloaded    whether its kernels are no source: FlashInfer downloads them
    instead       the Python package that has them as well; "" where there is none
    rival         the Python packages whose call it is, where it is none of FlashInfer's but what a user would pick instead
    """

    name: str
    capabilities: tuple[str, ...] = ()
    declared: Declaration | None = None
    downloaded: bool = False
    instead: str = ""
    rival: tuple[str, ...] = ()

    @property
    def here(self) -> tuple[str, ...]:
        """The compute capabilities that the installed FlashInfer has it for; of 0.7.2 where that does not say it."""
        package = installed()
        read = declared(package, self.declared) if package and self.declared else ()
        return read or self.capabilities

    def refusal(self, gpu: GpuFacts) -> str | None:
        """Why FlashInfer does not have it for a GPU; None if it does."""
        its, has = str(gpu["compute_capability"]), self.here
        if not has or its in has or f"{its.split('.')[0]}.x" in has:
            return None
        return f"{self.name} needs compute capability {_either(has)}, this GPU has {its}"

    def wanting(self) -> str | None:
        """What has to be downloaded before it runs, and the command for that; None where nothing has to."""
        if not self.downloaded or (self.instead and find_spec(self.instead)) or downloads():
            return None
        return (
            f"{self.name}'s kernels are downloaded when it first runs: `{DOWNLOAD}` does that ahead"
        )


def rival(backends: Sequence[Backend], p: Params) -> dict[str, str]:
    """{"rival": its packages with their versions} of a point that FlashInfer does not compute; empty of any other."""
    names = next((one.rival for one in backends if one.rival and one.name in p.values()), ())
    versions = (f"{name} {package_version(name) or 'of unknown version'}" for name in names)
    return {"rival": ", ".join(versions)} if names else {}


def no_backend(backends: Sequence[Backend], name: str, gpu: GpuFacts) -> str | None:
    """Why FlashInfer does not have the backend of this name for a GPU; None if it does, or for a name without an entry."""
    return next((one.refusal(gpu) for one in backends if one.name == name), None)


@cache
def installed() -> Path | None:
    """The folder of the installed FlashInfer, which is not imported; None without."""
    found = find_spec("flashinfer")
    return Path(found.origin).parent if found and found.origin else None


def downloads() -> bool:
    """Whether FlashInfer has its kernels that are downloaded: as a package, or in its folder of them."""
    if CUBINS not in os.environ and find_spec("flashinfer_cubin"):
        return True
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    folder = Path(os.environ.get(CUBINS) or base / ".cache/flashinfer/cubins")
    return any(folder.glob("**/*.cubin"))


def reachable() -> bool:
    """Whether what FlashInfer downloads from answers, or is a folder; also where FlashInfer does not say what it is."""
    place = os.environ.get(REPOSITORY) or (_repository(package) if (package := installed()) else "")
    return _answers(place)


def _repository(package: Path) -> str:
    path = package / "jit/cubin_loader.py"
    found = _DECLARED.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


@cache
def _answers(url: str) -> bool:
    """Whether a connection is made. A name server that is not there may take longer than any limit of a connection."""
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        return True
    if host is None:
        return True
    made = []

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection(
                (host, port or (80 if url.startswith("http:") else 443)), REACH_S
            ).close()
            made.append(True)

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(REACH_S)
    return bool(made)


def offline() -> dict[str, str]:
    """What a process that calls FlashInfer has in its environment, where no kernel can be downloaded: it says so at once."""
    return {} if reachable() else {NO_DOWNLOAD: "1"}


@cache
def declared(package: Path, where: Declaration) -> tuple[str, ...]:
    """The compute capabilities that a function of FlashInfer declares, in order; empty where it has no such function."""
    path = package / where.file
    found = _functions(path).get(where.function) if path.is_file() else None
    told = [*_decorated(found), *_generated(found), *_asked(found)] if found else []
    return tuple(_ONLY.get(one, one) for one in dict.fromkeys(told))


@cache
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    nodes = ast.parse(path.read_bytes()).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _decorated(function: ast.FunctionDef) -> Iterator[str]:
    """@supported_compute_capability([90, 103])"""
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and _called(call) == "supported_compute_capability":
            yield from (f"{n // 10}.{n % 10}" for n in _numbers(call.args[0]))


def _generated(function: ast.FunctionDef) -> Iterator[str]:
    """get_nvcc_flags_list(supported_major_versions=[10, 11]), or the flags of one architecture: sm90a_nvcc_flags"""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and (flags := _FLAGS.fullmatch(node.id)):
            yield ".".join(flags.groups())
        if isinstance(node, ast.keyword) and node.arg == "supported_major_versions":
            yield from (f"{n}.x" for n in _numbers(node.value))


def _asked(function: ast.FunctionDef) -> Iterator[str]:
    """major == 9, or get_compute_capability(device)[0] == 10"""
    for node in ast.walk(function):
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)):
            continue
        of, to = node.left, node.comparators[0]
        major = isinstance(of, ast.Name) and of.id == "major"
        first = (
            isinstance(of, ast.Subscript)
            and isinstance(of.value, ast.Call)
            and _called(of.value) == "get_compute_capability"
        )
        if (major or first) and isinstance(to, ast.Constant) and isinstance(to.value, int):
            yield f"{to.value}.x"


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _numbers(node: ast.expr) -> list[int]:
    if not isinstance(node, ast.List | ast.Tuple):
        return []
    return [n.value for n in node.elts if isinstance(n, ast.Constant) and type(n.value) is int]


def _either(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
