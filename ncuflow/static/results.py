"""Static facts that were stored, kernels by the names that launches have; and results of a GPU that was not there: the points of
a sweep with what is known without a run.

    ncuflow static-results --facts static.json.xz --gpu 'NVIDIA A100-SXM4-80GB' --out FOLDER
                           [--blocks '{"decode": [{"batch": 1}]}']

Tier S. The files have the layout of measured results, so that claims and pages read both: launches and
their occupancy stand where counters would, and what only a run can tell is None.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ncuflow.evidence import location
from ncuflow.evidence.provenance import whole
from ncuflow.findings import ceilings
from ncuflow.findings.join import Joined
from ncuflow.findings.kernelname import canonical
from ncuflow.findings.results import point_of
from ncuflow.gpu.table import Device, device
from ncuflow.io import JsonObject, UsageError, read_json, read_yaml, resource, write_json
from ncuflow.model import Kernel, KernelRow, Provenance, Results, Row, TimingRow
from ncuflow.parsers.demangled import cute_name
from ncuflow.record import PointRecord, places
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import Target, load
from ncuflow.target.launch import TYPES, Host, LaunchConfig, LaunchRule, NoRuleError

FILE = "static.json.xz"
# What a folder of facts is called: those of the kernels of a sweep, and single modules, to say where they build.
SWEEP, MODULES = "static", "modules"


@dataclass(frozen=True)
class Facts:
    """What `ncuflow static` wrote for an architecture."""

    content: JsonObject

    @cached_property
    def kernels(self) -> dict[str, JsonObject]:
        """Facts of each kernel by canonical name; of one that several modules hold, the first."""
        return self.of_type(None)

    def of_type(self, dtype: str | None) -> dict[str, JsonObject]:
        """The same from modules of a data type (f16) and those of all types: the names of attention kernels
        do not tell theirs."""
        found: dict[str, JsonObject] = {}
        for kernel in self.content["kernels"]:
            typed = "_dtype_q_" in kernel["module"]
            if dtype is None or not typed or f"_dtype_q_{dtype}_" in kernel["module"]:
                found.setdefault(canonical(kernel["name"]), kernel)
        return found

    def modules(self) -> Iterator[JsonObject]:
        """Each module: its sources, how many of them were built, why not, and its kernels in short."""
        for name in dict.fromkeys(source["module"] for source in self.content["sources"]):
            sources = [s for s in self.content["sources"] if s["module"] == name]
            kernels = [k for k in self.content["kernels"] if k["module"] == name]
            registers = [kernel["registers"] for kernel in kernels]
            yield {
                "module": name,
                "arch": self.content["arch"],
                "sources": len(sources),
                "built": sum(source["status"] == "built" for source in sources),
                "reasons": sorted({s["reason"] for s in sources if s["reason"]}),
                "kernels": len(kernels),
                "registers": (min(registers), max(registers)) if registers else None,
                "spilling": sum((kernel.get("spill_store_bytes") or 0) > 0 for kernel in kernels),
            }


def every_recorded() -> list[Path]:
    """The recorded facts of all architectures, those of a sweep before single modules, the newest FlashInfer last."""
    return [path for what in (SWEEP, MODULES) for path in _recorded("sm_*", what)]


def _recorded(arch: str, what: str) -> list[Path]:
    """By their folders, for the files take a tenth of a second to read: a test holds the ones against the others."""
    found = resource(location.FOLDER).glob(f"{arch}/*/{what}/{FILE}")
    return sorted(found, key=lambda path: (location.numbers(path.parts[-3]), path))


def recorded(compute_capability: str) -> Path | None:
    """The recorded facts for a compute capability such as "8.0", of the newest FlashInfer; None without."""
    found = _recorded(f"sm_{compute_capability.replace('.', '')}*", SWEEP)
    return found[-1] if found else None


def stored(compute_capability: str) -> Facts:
    """The recorded facts. Raises ValueError where there are none."""
    path = recorded(compute_capability)
    if path is None:
        raise ValueError(
            f"no static facts are recorded for compute capability {compute_capability}"
        )
    return Facts(read_json(path))


def swept_blocks(text: str | None) -> Mapping[str, Sequence[sweep.Block]]:
    """Blocks of a sweep by target: of JSON, or of the default sweep. Raises UsageError for what is no JSON."""
    try:
        found: Mapping[str, Sequence[sweep.Block]] = json.loads(text) if text else default_blocks()
    except ValueError as error:
        raise UsageError(f"--blocks: not JSON ({error})") from None
    return found


def default_blocks() -> Mapping[str, Sequence[sweep.Block]]:
    """The default sweep of the project's settings, by target."""
    settings = read_yaml(resource("config") / "config.yaml")
    found: Mapping[str, Sequence[sweep.Block]] = settings["sweeps"]["default"]
    return found


# --- results of a sweep that was not run ----------------------------------------------------------

Compiled = Mapping[str, Mapping[str, Any]]  # facts of kernels by canonical name
TORCH = "a kernel of PyTorch"  # it is not in FlashInfer's modules
_NUMBER = re.compile(r"(?<=[<,(] )\d+\b|(?<=<)\d+\b")


def provenance(facts: Facts, gpu: Device) -> Provenance:
    """Tier S: the GPU as published, the versions that compiled."""
    compiled = {
        "tier": "S",
        "cuda": facts.content["tools"]["nvcc"],
        "date": facts.content["date"],
        "flashinfer": facts.content["flashinfer"],
    }
    return whole(vars(gpu) | compiled)


def results(target: Target, blocks: Sequence[sweep.Block], facts: Facts, gpu: Device) -> Results:
    """All that is known of a target's points without a run."""
    origin, machine = provenance(facts, gpu), ceilings.machine(gpu.gpu, None)
    version = tuple(map(int, facts.content["flashinfer"].split(".")[:2]))
    compiled = {dtype: facts.of_type(dtype) for dtype in TYPES}
    points = []
    assert target.rules.launches
    for point in sweep.points(target, blocks):
        timing, known = _timing(target, point, gpu), compiled[point.params["dtype"]]
        host = Host(gpu, cast(tuple[int, int], version), _registers(known))
        found, lost = (
            _kernels(target.rules.launches, point, host, gpu, known)
            if timing["status"] == "ok"
            else ([], [])
        )
        joined = Joined(timing, point.params, found, [], machine, origin, lost)
        points.append(point_of(joined, []))
    return {
        "schema": 1, "target": target.name, "provenance": origin, "ceilings": machine,
        "points": points, "deep": [], "pairs": [], "noise": {}, "warnings": [],
    }  # fmt: skip


def _registers(compiled: Compiled) -> Callable[[str], int]:
    return lambda name: int(compiled[name]["registers"])


def _timing(target: Target, point: sweep.Planned, gpu: Device) -> TimingRow:
    """The record of a point that was not timed: its work, and whether the GPU can run it."""
    work = target.work(point.params)
    why = target.skip(point.params, {"compute_capability": gpu.compute_capability})
    row: TimingRow = dict.fromkeys(place.column for place in places(PointRecord))
    row |= {"point": point.id, "target": target.name, "params": json.dumps(point.params), "run": 0}
    row |= {"flops": work.flops, "bytes": work.bytes, "convention": work.convention}
    return row | {"status": "skipped" if why else "ok", "reason": why}


def _kernels(
    rule: LaunchRule, point: sweep.Planned, host: Host, gpu: Device, compiled: Compiled
) -> tuple[list[Kernel], list[str]]:
    """(the launches of a point as kernels of a report, what could not be known)."""
    try:
        found = list(rule(point.params, host))
    except NoRuleError as unknown:
        return [], [unknown.args[0]]
    except KeyError as missing:
        return [], [f"not compiled: {missing.args[0]}"]
    return [
        _kernel(point.id, at, launch, gpu, compiled) if launch else _unknown(point.id, at)
        for at, launch in enumerate(found)
    ], []


def _kernel(point: str, at: int, launch: LaunchConfig, gpu: Device, compiled: Compiled) -> Kernel:
    row = _unknown(point, at)
    known = compiled.get(launch.kernel)
    registers = known["registers"] if known else None
    static = known["shared_bytes"] if known else None
    row |= {  # type: ignore[assignment]
        "name": cute_name(launch.kernel.split("<")[0].split("::")[-1]),
        "demangled": _demangled(launch.kernel),
        "grid": ",".join(map(str, launch.grid)),
        "block": ",".join(map(str, launch.block)),
        "grid_size": launch.blocks,
        "block_size": launch.threads,
        "registers": registers,
        "smem_static_bytes": static,
        "smem_dynamic_bytes": launch.shared,
        "metrics": {}
        if registers is None or static is None
        else _metrics(launch, registers, static, gpu),
    }
    return row


def _demangled(kernel: str) -> str:
    """A name as ncu writes it: CuTe DSL's kernels are no C++ functions and have nothing to demangle."""
    return "void " + _NUMBER.sub(r"(unsigned int)\g<0>", kernel) if "::" in kernel else kernel


def _metrics(
    launch: LaunchConfig, registers: int, static: int, gpu: Device
) -> dict[str, float | None]:
    """What ncu computes of a launch by the same rules, by registry key."""
    fits = gpu.fits(launch.threads, registers, static + launch.shared)
    resident = min(fits.values())
    warps = -(-launch.threads // 32)
    return {
        "registers": registers,
        "occupancy_limit_registers": fits["registers"],
        "occupancy_limit_shared_mem": fits["shared memory"],
        "occupancy_limit_warps": fits["warps"],
        "occupancy_limit_blocks": fits["block slots"],
        "theoretical_occupancy_pct": 100 * resident * warps / gpu.warps,
        "waves": launch.blocks / (resident * gpu.sm_count),
        "smem_static": static,
        "smem_dynamic": launch.shared,
    }


def _unknown(point: str, at: int) -> Kernel:
    """A kernel of which nothing is known yet."""
    row: Row = dict.fromkeys(KernelRow.__annotations__)
    row |= {"name": TORCH, "point": point, "kernel": at, "report": "static", "batch": "static"}
    return cast(Kernel, row | {"metrics": {}, "stalls": [], "breakdown": [], "rules": []})


def command(*, facts: Path, gpu: str, out: Path, blocks: str | None = None) -> None:
    """Results of a GPU that was not there.

    Args:
        facts: what `ncuflow static` wrote
        gpu: a name of ncuflow/gpu/gpus.yaml
        out: folder of *_results.json
        blocks: blocks of a sweep by target, as JSON
    """
    compiled = Facts(read_json(facts))
    swept = swept_blocks(blocks)
    try:
        there, targets = device(gpu), [load(name) for name in swept]
    except ValueError as error:
        raise UsageError(str(error)) from None
    capability = compiled.content["compute_capability"]
    if there.compute_capability != capability:
        raise UsageError(f"{facts} is of {capability}, {gpu} has {there.compute_capability}")
    for target in targets:
        if target.rules.launches:
            found = results(target, swept[target.name], compiled, there)
            write_json(out / f"{target.name}_results.json", found, levels=3)
    machine = {
        "schema": 1,
        "provenance": provenance(compiled, there),
        "findings": [],
        "ceilings": ceilings.machine(there.gpu, None),
    }
    write_json(out / "environment_info.json", machine)
