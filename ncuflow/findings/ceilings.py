"""Ceilings: what a GPU could do at most, from three independent sources; and the machine that they are of.

    ncuflow environment --evidence ROOT [--recording NAME] --out FILE.json      results/environment_info.json

datasheet  NVIDIA's published peak of the part (``gpus.yaml``, with the source of each figure)
counter    the peak that the hardware counters state for one launch, at the clocks of that launch
measured   the highest rate that anything reached on the same machine: a large copy, a large read or a large matrix
           product (``ceilings.json``), or a point itself. What exceeds a ceiling shows that it was none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncuflow.evidence.provenance import environment, load_provenance
from ncuflow.gpu.table import product, table
from ncuflow.io import BadInput, JsonObject, read_as, write_json
from ncuflow.model import Ceilings, MachineInfo, MeasuredPeaks, Measurement
from ncuflow.record import SmClock

DRAM = "dram_gbs"
SOURCES = ("datasheet", "counter", "measured")
# Above the highest of what streamed or multiplied a point's own rate may lie by this; beyond it the rate cannot be.
MEASURED_RATE = 1.10
MOST = 1.25  # of the published peak: clocks above those of the datasheet reach a tenth more


class Figure(BaseModel):
    """A rate and its quartiles."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
    value: Annotated[float, Field(gt=0)]
    q25: Annotated[float, Field(gt=0)]
    q75: Annotated[float, Field(gt=0)]
    sm_mhz: SmClock | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Figure:
        if not self.q25 <= self.value <= self.q75:
            raise ValueError("q25, value and q75 are not in order")
        return self


class MeasuredRate(Figure):
    """What was run, its rate in bursts, and the sustained one."""

    method: str
    sustained: Figure | None = None


class Measured(BaseModel):
    """``ceilings.json``: rates of large copies, reads and matrix products; None where they failed."""

    copy_gbs: MeasuredRate | None = None
    read_gbs: MeasuredRate | None = None
    matmul_tflops: dict[str, MeasuredRate] | None = None
    gpu: str | None = None


def datasheet(device: str | None) -> JsonObject | None:
    """The published peaks of a device name such as ``NVIDIA H200``, with their source; None for an unknown part."""
    name = product(device)
    return table().gpus[name].datasheet.model_dump() if name else None


def load(evidence: Path, device: str | None) -> JsonObject | None:
    """The content of an evidence's ``ceilings.json``, None without one.

    Raises BadInput where it is none, is of another GPU, or is above what the part can do.
    """
    path = evidence / "ceilings.json"
    if not path.exists():
        return None
    found = read_as(path, Measured, "what a GPU reached")
    if found.gpu and device and found.gpu != device:
        raise BadInput(path, f"is of {found.gpu}, but environment.json is of {device}")
    sheet = datasheet(device) or {}
    rates = {"copy_gbs": (found.copy_gbs, "dram_gbs"), "read_gbs": (found.read_gbs, "dram_gbs")}
    published = {"dram_gbs": sheet.get("dram_gbs"), **sheet.get("tflops", {})}
    rates |= {f"matmul {k}": (v, k) for k, v in (found.matmul_tflops or {}).items()}
    for name, (rate, peak) in rates.items():
        if rate and (most := published.get(peak)) and rate.value > MOST * most:
            what = f"{name} {rate.value:g} cannot be: the part is published with {most:g}"
            raise BadInput(path, what)
    return found.model_dump(exclude_unset=True)


def machine(device: str | None, measured: JsonObject | None) -> Ceilings:
    """Ceilings that hold for the whole machine: GB/s and TFLOPS by source, None where unknown.

    ``measured`` is the content of ``ceilings.json`` (copy_gbs, matmul_tflops by dtype) or None. Of each kind of
    rate the highest counts, in bursts or sustained: a copy turns DRAM between reads and writes, a read does not.
    """
    sheet = datasheet(device)
    products = (measured or {}).get("matmul_tflops") or {}
    copy, read = ((measured or {}).get(name) or {} for name in ("copy_gbs", "read_gbs"))
    series = {"copy": copy, "read": read} | {f"matrix product, {k}": v for k, v in products.items()}
    streams = {
        name: best for name, rate in (("copy", copy), ("read", read)) if (best := _best(rate))
    }
    stream = max(streams, key=lambda name: streams[name], default="")
    return {
        "gpu": device,
        "datasheet": {
            "dram_gbs": sheet["dram_gbs"] if sheet else None,
            "tensor_tflops": sheet["tflops"].get("f16") if sheet else None,
            "tflops": sheet["tflops"] if sheet else {},
            "source": sheet["source"] if sheet else None,
        },
        "measured": {
            "dram_gbs": streams.get(stream),
            "read_gbs": read.get("value"),
            "series": {name: found for name, found in series.items() if found.get("value")},
            "tensor_tflops": {dtype: _best(rate) for dtype, rate in products.items()},
            "source": {"copy": copy, "read": read}[stream].get("method") if stream else None,
            "points": {},
        },
    }


def _best(rate: Mapping[str, Any]) -> float | None:
    figures = (rate.get("value"), (rate.get("sustained") or {}).get("value"))
    return max((value for value in figures if value), default=None)


def raised(machine: Ceilings, rows: Iterable[Measurement]) -> Ceilings:
    """The ceilings of a machine with the rates of points that are above them, and ``points`` that says which those are.

    Where counters saw the work only what they saw counts: bytes that passed DRAM, FLOPs that the tensor cores did.
    """
    measured = machine["measured"]
    peaks = {**measured["tensor_tflops"], DRAM: measured["dram_gbs"]}
    tops, points = dict(peaks), dict[str, str]()
    for row in rows:
        work = {
            DRAM: (row["gbs"], row["bytes_analytic"], row["bytes_dram_counted"]),
            _type(row): (row["tflops"], row["flops_analytic"], row["flops_tensor_counted"]),
        }
        for kind, (rate, analytic, counted) in work.items():
            peak, top = peaks.get(kind), tops.get(kind)
            if not (rate and analytic and peak and top):
                continue
            own = rate if counted is None else rate * min(1.0, counted / analytic)
            if top < own <= MEASURED_RATE * peak:
                tops[kind], points[kind] = own, row["point"]
    dram = tops.pop(DRAM)
    source = f"{points[DRAM]}: its bytes over its time" if DRAM in points else measured["source"]
    reached: MeasuredPeaks = {
        **measured, "dram_gbs": dram, "tensor_tflops": tops, "source": source, "points": points,
    }  # fmt: skip
    return {**machine, "measured": reached}


def passed(found: Ceilings, row: Measurement, rate: str) -> str | None:
    """What the rate (gbs or tflops) of a point that is itself the measured ceiling is more than; None of others."""
    measured, kind = found.get("measured", {}), _type(row) if rate == "tflops" else DRAM
    if measured.get("points", {}).get(kind) != row["point"]:
        return None
    if kind == DRAM:
        return "any copy or read"
    product = measured.get("series", {}).get(f"matrix product, {kind}") or {}
    return (product.get("method") or f"any {kind} matrix product").split(",")[0]


def _type(row: Measurement) -> str:
    return str(row.get("flop_type") or row["dtype"])


def flat_roofs(rows: Iterable[Measurement], source: str) -> dict[str, float]:
    """TFLOPS by type that a source (datasheet or measured) puts over points: a mark's roof is that of what it computed with."""
    tops: dict[str, float] = {}
    for row in rows:
        kind = _type(row)
        unit = "fp32" if kind == "fp32" else "tensor"
        if top := row.get(f"ceiling_{unit}_tflops_{source}"):
            tops[kind] = max(top, tops.get(kind, 0.0))
    return tops


def roofless(rows: Iterable[Measurement]) -> list[str]:
    """The types that points computed with and that nothing tells a roof of."""
    found: dict[str, bool] = {}
    for row in rows:
        if row.get("flops_counted"):
            kind = _type(row)
            unit = "fp32" if kind == "fp32" else "tensor"
            known = any(row.get(f"ceiling_{unit}_tflops_{source}") for source in SOURCES)
            found[kind] = found.get(kind, False) or known
    return sorted(kind for kind, known in found.items() if not known)


# --- what the preflight found, as results/environment_info.json ------------------------------


def environment_info(evidence: Path, recording: str | None) -> MachineInfo:
    """Provenance, preflight findings and ceilings of the machine that made the evidence."""
    provenance = load_provenance(evidence, recording)
    gpu = provenance["gpu"]
    return {
        "schema": 1,
        "provenance": provenance,
        "findings": [
            finding.model_dump(exclude_unset=True) for finding in environment(evidence).findings
        ],
        "ceilings": machine(gpu, load(evidence, gpu)),
    }


def command(*, evidence: Path, out: Path, recording: str | None = None) -> None:
    """The machine of a run: its versions, findings and ceilings."""
    write_json(out, environment_info(evidence, recording))
