"""What launches are held against: the points and ceilings of a recording; how far from these a launch was, and which point
is most like it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from ncuflow.evidence import location, manifest
from ncuflow.findings import ceilings, locate, stored
from ncuflow.format import with_unit
from ncuflow.gpu.table import product, table
from ncuflow.io import BadInput, scratch
from ncuflow.model import Ceilings, Results
from ncuflow.origin import remedy
from ncuflow.step.record import NearestPoint, RoofOfLaunch
from ncuflow.target.contract import Target
from ncuflow.target.launch import Params

TENSOR = {"attention", "GEMM", "MoE"}  # families whose FLOPs are those of tensor cores
# What these read besides are weights and caches, between whose uses a step reads more than L2 holds; operands of all others the
# kernels before have just written.
COLD = TENSOR


@dataclass
class Reference:
    """What a trace's launches are held against: a recording's points and ceilings. folder: None of none; made: where results
    of a recording are made when they are asked for, a target's at a time."""

    folder: Path | None = None
    made: Path | None = None
    measured: Mapping[str, Any] | None = None
    read: dict[str, Results | None] = field(default_factory=dict)

    def results(self, target: str) -> Results | None:
        """Of a target; None where there are none."""
        if target not in self.read:
            self.read[target] = self._results(target) if self.folder and self.made else None
        return self.read[target]

    @cached_property
    def missing(self) -> str | None:
        """How to install what makes results of a recording; None where it is here."""
        if self.folder is None or not locate.is_recording(self.folder):
            return None
        try:
            import_module("pyarrow")
        except ModuleNotFoundError:
            return remedy("pyarrow")
        return None

    def _results(self, target: str) -> Results | None:
        assert self.folder and self.made
        if locate.is_recording(self.folder):
            if self.missing or target not in manifest.read(self.folder).targets:
                return None
            locate.make_results(self.folder, [target], self.made)
        path = self.made / "results" / f"{target}{stored.SUFFIX}"
        return stored.results(path) if path.is_file() else None

    @property
    def name(self) -> str | None:
        return location.name(self.folder) if self.folder else None


def evidence(gpu: str | None, recording: Path | None, stack: ExitStack) -> Reference:
    """Of the recording that is named, or of the default one of this GPU; nothing without. Raises BadInput where it is none."""
    folder = location.here(recording) if recording else _default(gpu)
    if folder is None:
        return Reference()
    if not locate.is_recording(folder) and not (folder / "results").is_dir():
        raise BadInput(folder, "neither a recording nor a folder of outputs")
    made = stack.enter_context(scratch()) if locate.is_recording(folder) else folder
    measured = ceilings.load(folder, None)
    of = _gpu_of(folder)
    # what another GPU reached is no ceiling of this one
    return Reference(folder, made, measured if of == gpu else None)


def _gpu_of(folder: Path) -> str | None:
    """The GPU that a recording, or outputs, are of."""
    if locate.is_recording(folder):
        return manifest.provenance(folder).get("gpu")
    path = folder / "results" / "environment_info.json"
    found = stored.written(path) if path.is_file() else {}
    return found.get("provenance", {}).get("gpu") if found else None


def _default(gpu: str | None) -> Path | None:
    try:
        found = location.matching(
            f"{location.FOLDER}/{location.gpu(gpu or '')}/*/{location.DEFAULT}"
        )
    except ValueError:
        return None
    return found[-1] if gpu else None


@dataclass(frozen=True)
class CeilingRate:
    """A rate in bytes or FLOP a second, whose it is, and in words."""

    rate: float
    source: str
    words: str


@dataclass(frozen=True)
class Machine:
    """The GPU of a trace, and what is known of it. l2_bytes: 0 of an unknown GPU."""

    found: Ceilings
    l2_bytes: int = 0

    @classmethod
    def of(cls, gpu: str | None, measured: Mapping[str, Any] | None) -> Machine:
        """measured: the content of ``ceilings.json`` of a recording of this GPU."""
        sold = product(gpu)
        chip = table().gpus[sold].chip if sold else None
        l2_bytes = (chip and chip.l2_bytes) or 0
        return cls(ceilings.machine(gpu, dict(measured) if measured else None), l2_bytes)

    @property
    def dram(self) -> CeilingRate | None:
        """Of DRAM: measured, or else published."""
        measured, sheet = self.found["measured"]["dram_gbs"], self.found["datasheet"]["dram_gbs"]
        return _ceiling(measured, sheet, 1e9, "GB/s")

    def flops(self, tensor: bool, dtype: str) -> CeilingRate | None:
        """Of tensor cores for a type, or of CUDA cores in fp32."""
        kind = dtype if tensor else "fp32"
        measured = self.found["measured"]["tensor_tflops"].get(kind) if tensor else None
        return _ceiling(measured, self.found["datasheet"]["tflops"].get(kind), 1e12, "TFLOPS")


def _ceiling(
    measured: float | None, sheet: float | None, unit: float, word: str
) -> CeilingRate | None:
    value = measured or sheet
    if not value:
        return None
    return CeilingRate(
        value * unit, "measured" if measured else "datasheet", with_unit(round(value, 1), word)
    )


def roof(
    target: Target,
    candidates: Sequence[Params],
    us: float,
    family: str,
    machine: Machine,
    alone: bool = False,
) -> RoofOfLaunch | None:
    """Of a call that took so long; None without a ceiling, or where the target cannot count its work. alone: from a cold L2; in a
    step as much as L2 holds of the operands that other kernels wrote may never come from DRAM."""
    works = []
    for params in candidates:
        try:
            whole = target.completed(params)
            works.append((target.work(whole), str(whole.get("dtype", "f16"))))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return None
    dram = machine.dram
    if not works or dram is None or us <= 0:
        return None
    percents, ceiling, bound = [], dram, "DRAM"
    tensor = family in TENSOR and not any(p.get("cores") == "cuda" for p in candidates)
    for work, dtype in works:
        peak = machine.flops(tensor, dtype)
        least = work.bytes / dram.rate
        computing = work.flops / peak.rate if peak else 0.0
        if peak and computing > least:
            ceiling, bound = peak, "tensor cores" if tensor else "CUDA cores"
        warm = 0 if alone or family in COLD else machine.l2_bytes
        percents += [
            max(moved / dram.rate, computing) / (us * 1e-6) * 100
            for moved in (max(0, work.bytes - warm), work.bytes)
        ]
    counted, flops = [w.bytes for w, _ in works], [w.flops for w, _ in works]
    return RoofOfLaunch.model_validate(
        {
            "bytes": (min(counted), max(counted)),
            "flops": (min(flops), max(flops)),
            "bound": bound,
            "ceiling": ceiling.words,
            "ceiling_source": ceiling.source,
            "percent": (round(min(percents), 1), round(max(percents), 1)),
        }
    )


def nearest(
    target: Target,
    params: Params,
    us: float,
    family: str,
    machine: Machine,
    results: Results | None,
    whole: bool,
) -> NearestPoint | None:
    """The measured point that differs least: in as few parameters, and these by as small a factor.

    whole: whether the parameters are all that the shape has; a point is of the same shape only then.
    """
    points = [p for p in results["points"] if p["status"] == "ok"] if results else []
    if not points:
        return None
    best = min(points, key=lambda point: distance(params, point["params"]))
    other = differing(params, best["params"])
    time = best["measurement"]["time_cold_us"]
    alone = roof(target, [best["params"]], time, family, machine, alone=True) if time else None
    same = whole and not other
    return NearestPoint(
        point=best["point"],
        differs=other,
        time_us=time,
        percent=alone.percent[0] if alone else None,
        slower=round(us / time, 3) if same and time else None,
    )


# Parameters that change what is computed less than how: of two points they are compared last.
_HOW = {"launch", "pdl", "page_size", "norm", "inplace", "logit_std", "percent", "top_k", "lengths"}


def distance(params: Params, other: Mapping[str, Any]) -> tuple[int, float, int]:
    """(parameters of what that differ, the factors between its numbers, parameters of how that differ)."""
    what = factors = how = 0.0
    for name, value in params.items():
        theirs = other.get(name)
        if theirs == value:
            continue
        if name in _HOW:
            how += 1
        elif _number(value) and _number(theirs) and value and theirs:
            factors += abs(math.log2(value / theirs))
        else:
            what += 1
    return int(what), factors, int(how)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def differing(params: Params, other: Mapping[str, Any]) -> Params:
    """The other's parameters where they are not these."""
    return {name: other.get(name) for name, value in params.items() if other.get(name) != value}
