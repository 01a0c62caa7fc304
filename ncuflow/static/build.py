"""Static facts of a sweep's kernels: its JIT modules compiled for an architecture, without a GPU.

Each source of each module is compiled by the command that FlashInfer's own build has for it, to a
cubin alone: no host code, nothing linked.
"""

import importlib
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ncuflow import process
from ncuflow.gpu.table import RESERVED_SHARED, shared_of_block
from ncuflow.io import JsonObject, UsageError, read_json, replacing, scratch, write_text
from ncuflow.model import Params
from ncuflow.origin import flashinfer_version, now, package_version
from ncuflow.parsers import sass
from ncuflow.private import masked
from ncuflow.process import CaptureError, python_environment, run_child
from ncuflow.run import builds
from ncuflow.static.results import FILE
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import Target, load
from ncuflow.target.source import CuteKernel

TOOLS = ("nvcc", "cuobjdump", "nvdisasm")
# Masks that no point of a sweep has: compiled after all that some point launches.
LAST = re.compile(r"_mask_[23]\.cu$")
FIRST = re.compile(r"sm90")  # the longest compilations
_OUTPUT = re.compile(r"-c (?P<source>\S+) -o \S+")
_DEPENDENCIES = re.compile(r"--generate-dependencies-with-compile -MF \S+ ")
_ARCH = re.compile(r"(?:code=|--arch )(sm_\w+)")


@dataclass(frozen=True)
class CompileJob:
    """A source of a module, and the command for it: nvcc's as FlashInfer writes it, or of CuTe DSL."""

    module: str
    source: str
    command: str
    cute: bool = False

    @property
    def arch(self) -> str:
        """E.g. sm_90a."""
        found = _ARCH.search(self.command)
        return found[1] if found else "unknown"

    def to(self, cubin: Path) -> list[str]:
        """The command that leaves a cubin alone: no host code, nothing linked."""
        if self.cute:
            return shlex.split(f"{self.command} --out {cubin}")
        plain = _DEPENDENCIES.sub("", self.command)
        return shlex.split(_OUTPUT.sub(rf"-cubin -Xptxas -v \g<source> -o {cubin}", plain))


def jobs(arch: str, blocks: Mapping[str, Sequence[sweep.Block]]) -> list[CompileJob]:
    """The CUDA sources of the modules that the points of `blocks` (by target) load, those first that matter most.

    Points that a GPU of this compute capability ("8.0") cannot run have none. Sets FlashInfer's list of
    architectures, which it reads once a process. Raises CaptureError where FlashInfer is not installed.
    """
    os.environ[builds.ARCH_LIST] = arch
    if not shutil.which("nvcc"):  # FlashInfer looks for it there
        os.environ.setdefault("CUDA_HOME", str(Path(process.cuda_tool("nvcc")).parent.parent))
    try:
        importlib.import_module("flashinfer")
    except ImportError as error:
        raise CaptureError(f"flashinfer cannot be imported: {error}") from None
    gpu = [arch.rstrip("af")]
    found: dict[tuple[str, str], CompileJob] = {}
    for name, of_target in blocks.items():
        target = load(name)
        points = builds.buildable(target, sweep.points(target, of_target), gpu, lambda line: None)
        for spec in builds.modules(target, points):
            spec.write_ninja()
            found |= {
                (job.module, job.source): job for job in _commands(spec.name, spec.ninja_path)
            }
        for kernel, command in cute_commands(target, arch, [point.params for point in points]):
            found[kernel.module, kernel.source] = CompileJob(
                kernel.module, kernel.source, command, cute=True
            )
    return sorted(
        found.values(),
        key=lambda j: (bool(LAST.search(j.source)), not FIRST.search(j.module + j.source)),
    )


def _commands(module: str, ninja: Path) -> Iterable[CompileJob]:
    query = ["ninja", "-f", str(ninja), "-t", "compdb", "cuda_compile"]
    said = subprocess.run(query, capture_output=True, text=True, check=True, cwd=ninja.parent)
    for entry in json.loads(said.stdout):
        yield CompileJob(module, Path(entry["file"]).name, entry["command"])


def build(job: CompileJob, out: Path, deadline: float) -> JsonObject:
    """One source compiled and read: {module, source, status, reason, seconds, kernels}.

    status: built, error, or "not compiled" after `deadline` (of time.monotonic). kernels: mangled name
    -> what `sass` reads, with the demangled name.
    """
    result: JsonObject = {
        "module": job.module,
        "source": job.source,
        "status": "not compiled",
        "reason": "the time limit was reached",
        "seconds": None,
        "kernels": {},
    }
    left = deadline - time.monotonic()
    if left <= 0:
        return result
    with scratch() as folder:
        cubin = folder / "out.cubin"
        said: list[str] = []
        env = python_environment(os.environ)
        ended = run_child(job.to(cubin), env=env, timeout=left, on_line=said.append, cwd=folder)
        result["seconds"] = round(ended.wall_s, 1)
        if ended.timed_out:
            return result
        if ended.returncode or not cubin.exists():
            complaints = (line for line in said if re.search(r"\b(error|fatal)\b", line))
            complaint = masked(next(complaints, "no output").strip())
            reason = re.sub(r"(/[^\s/:]+)*/(?=[^\s/])", "", complaint)
            return result | {"status": "error", "reason": reason}
        usage = process.cuda_output("cuobjdump", "-res-usage", str(cubin))
        write_text(out / "usage" / job.arch / f"{job.module}.{job.source}.txt", usage)
        found = read(
            job.arch, usage, process.cuda_output("cuobjdump", "-sass", str(cubin)), "\n".join(said)
        )
    return result | {"status": "built", "reason": None, "kernels": found}


def read(arch: str, usage: str, listing: str, compiled: str) -> dict[str, JsonObject]:
    """The kernels of a cubin, by mangled name, of what the three tools say of it.

    From sm_90 on the compiler counts what CUDA reserves into the shared memory of a kernel that uses any; here
    it is not counted.
    """
    code, resources, spills = sass.kernels(listing), sass.resources(usage), sass.spills(compiled)
    names = [name for name in code if name in resources]
    if int(re.sub(r"\D", "", arch)) >= 90:
        for name in names:
            shared = resources[name]["shared_bytes"]
            resources[name]["shared_bytes"] = max(0, shared - RESERVED_SHARED)
    shown = process.demangled(names)
    return {
        name: {
            "name": shown[name],
            **resources[name],
            **spills.get(name, _unspilled(resources[name])),
            **code[name],
        }
        for name in names
    }


def _unspilled(resources: Mapping[str, int]) -> dict[str, int | None]:
    """Of a kernel whose compiler says nothing of spills: without a stack there are none, else that is unknown."""
    none = None if resources["stack_bytes"] else 0
    return {"spill_store_bytes": none, "spill_load_bytes": none, "barriers": None}


def facts(
    arch: str, results: Sequence[Mapping[str, Any]], todo: Sequence[CompileJob]
) -> JsonObject:
    """What is stored: origin, sources with their status, and every kernel once a module."""
    kernels: dict[tuple[str, str], JsonObject] = {}
    for result in results:
        for mangled, kernel in result["kernels"].items():
            module = result["module"]
            kernels.setdefault((module, mangled), {"module": module, "mangled": mangled, **kernel})
    return {
        **origin(arch, todo),
        "flags": {job.module: _flags(job.command) for job in todo if not job.cute},
        "sources": [{k: v for k, v in result.items() if k != "kernels"} for result in results],
        "kernels": list(kernels.values()),
    }


def origin(arch: str, todo: Sequence[CompileJob]) -> JsonObject:
    """What was compiled for which architecture, with what, and when."""
    return {
        "schema": 1,
        "tier": "S",
        "date": now(),
        "compute_capability": arch.rstrip("af"),
        "arch": todo[0].arch if todo else None,
        "flashinfer": flashinfer_version(),
        "cute_dsl": package_version("nvidia-cutlass-dsl"),
        "tools": {name: _version(name) for name in TOOLS},
    }


def stored(path: Path, today: Mapping[str, Any]) -> JsonObject | None:
    """What an earlier run left, None where none did. Raises UsageError where it was made with something else."""
    if not path.exists():
        return None
    found: JsonObject = read_json(path)
    for key in ("arch", "flashinfer", "tools"):
        if found.get(key) != today[key]:
            said = f"{path} has facts of {key} {found.get(key)}, this is {today[key]}"
            raise UsageError(f"{said}: another --out keeps both")
    return found


def merged(earlier: Mapping[str, Any] | None, new: Mapping[str, Any]) -> JsonObject:
    """The facts of two runs: of a source that both name, those of the run that built it."""
    if earlier is None:
        return dict(new)
    sources = {_key(s): s for s in earlier["sources"]}
    sources |= {_key(s): s for s in new["sources"] if not _built(sources.get(_key(s)))}
    kernels = {(k["module"], k["mangled"]): k for k in [*new["kernels"], *earlier["kernels"]]}
    return {
        **new,
        "flags": earlier["flags"] | new["flags"],
        "sources": list(sources.values()),
        "kernels": list(kernels.values()),
    }


def _key(source: Mapping[str, Any]) -> tuple[str, str]:
    return source["module"], source["source"]


def _built(source: Mapping[str, Any] | None) -> bool:
    return source is not None and source["status"] == "built"


def _version(name: str) -> str | None:
    found = re.search(r"V(\d+\.\d+\.\d+)", process.cuda_output(name, "--version"))
    return found[1] if found else None


def _flags(command: str) -> list[str]:
    """nvcc's flags without folders: they name the machine and change no code."""
    words = shlex.split(_OUTPUT.sub("", _DEPENDENCIES.sub("", command)))[1:]
    return [w for w in words if w.startswith("-") and "/" not in w and w not in ("-isystem",)]


def save(path: Path, content: Mapping[str, Any]) -> None:
    """JSON, one kernel per line, as `.xz`, atomically."""
    head = json.dumps({k: v for k, v in content.items() if k != "kernels"}, allow_nan=False)
    lines = ",\n".join(json.dumps(kernel, allow_nan=False) for kernel in content["kernels"])
    with (
        replacing(path) as temporary,
        lzma.open(temporary, "wt", encoding="utf-8", preset=6) as stream,
    ):
        stream.write(f'{head[:-1]}, "kernels": [\n{lines}\n]}}\n')


def compile_all(
    arch: str,
    out: Path,
    blocks: Mapping[str, Sequence[sweep.Block]],
    only: str = "",
    workers: int | None = None,
    limit_s: float = 86400.0,
) -> bool:
    """Whether all sources compiled that were not there yet; what the tools say of them is in the folder `out`. only: the sources
    whose MODULE/SOURCE the pattern finds; workers: compilers at once."""
    deadline = time.monotonic() + limit_s
    for name in TOOLS:
        process.cuda_tool(name)
    todo = [job for job in jobs(arch, blocks) if re.search(only, f"{job.module}/{job.source}")]
    file = out / FILE
    earlier = stored(file, origin(arch, todo))
    done = {_key(s) for s in (earlier or {"sources": []})["sources"] if _built(s)}
    results: list[JsonObject] = []
    left = [job for job in todo if (job.module, job.source) not in done]
    with ThreadPoolExecutor(max(1, workers or os.cpu_count() or 1)) as pool:
        try:
            for result in pool.map(lambda job: build(job, out, deadline), left):
                results.append(_report(result))
        finally:  # an interrupted run keeps what it has
            pool.shutdown(cancel_futures=True)
            save(file, merged(earlier, facts(arch, results, todo)))
    return all(_built(result) for result in results)


def _report(result: JsonObject) -> JsonObject:
    what = result["reason"] or f"{len(result['kernels'])} kernels in {result['seconds']} s"
    print(f"static: {result['module']} {result['source']}: {what}", file=sys.stderr, flush=True)
    return result


# --- kernels of CuTe DSL, which no nvcc compiles ------------------------------------------------


def cute_commands(
    target: Target, arch: str, points: Sequence[Params]
) -> Iterator[tuple[CuteKernel, str]]:
    """(kernel, command) of what CuTe DSL compiles for points of a target, each once; none where it is not installed."""
    if find_spec("cutlass") is None:
        return
    wanted = {kernel: None for p in points if (kernel := target.build.cute(p, arch.rstrip("af")))}
    for kernel in wanted:
        arguments = shlex.quote(json.dumps(kernel.arguments))
        words = f"--arch sm_{arch.replace('.', '')} --function {kernel.function} --arguments {arguments}"
        yield kernel, f"{sys.executable} -m ncuflow static-cute {words}"


def static_cute(*, arch: str, function: str, arguments: str, out: Path) -> None:
    """A cubin of a kernel that FlashInfer writes in CuTe DSL, compiled for a GPU that is not there.

    CuTe DSL compiles in the process that launches, once for each size; what FlashInfer asks the GPU for there (its shared memory)
    is answered from `gpus.yaml`. A process compiles one kernel: the architecture is read once, at the import.

    Args:
        arch: such as sm_80 or sm_90a
        function: that compiles it: module:function
        arguments: its own, as JSON
        out: the cubin
    """
    capability = re.sub(r"sm_(\d+)(\d)[af]?$", r"\1.\2", arch)
    shared = shared_of_block(capability)
    if shared is None:
        raise CaptureError(f"{arch}: gpus.yaml has no limits of compute capability {capability}")
    with scratch() as folder:
        os.environ |= {
            "CUTE_DSL_ARCH": arch,
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_DUMP_DIR": str(folder),
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        }
        _compile_cute(function, json.loads(arguments), int(10 * float(capability)), shared)
        made = list(folder.glob("*.cubin"))
        if len(made) != 1:
            raise CaptureError(f"CuTe DSL left {len(made)} cubins, not one")
        with replacing(out) as temporary:
            shutil.copyfile(made[0], temporary)


def _compile_cute(name: str, arguments: Sequence[Any], sm_version: int, shared: int) -> None:
    import torch

    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    torch.cuda.get_device_properties = lambda *which: properties
    torch.cuda.current_device = lambda: 0
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(*arguments, sm_version)
