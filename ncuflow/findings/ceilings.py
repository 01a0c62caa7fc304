"""Ceilings: what a GPU could do at most, from three independent sources.

datasheet  NVIDIA's published peak of the part (``gpus.yaml``, with the source of each figure)
counter    the peak that the hardware counters state for one launch, at the clocks of that launch
measured   a large copy and a large matrix product timed on the same machine (``ceilings.json``)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncuflow.gpu.table import product, table
from ncuflow.io import BadInput, read_as
from ncuflow.model import Ceilings

MOST = 1.25  # of the published peak: clocks above those of the datasheet reach a tenth more


class Figure(BaseModel):
    """A rate and its quartiles."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
    value: Annotated[float, Field(gt=0)]
    q25: Annotated[float, Field(gt=0)]
    q75: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _in_order(self) -> Figure:
        if not self.q25 <= self.value <= self.q75:
            raise ValueError("q25, value and q75 are not in order")
        return self


class Rate(Figure):
    """What was run, its rate in bursts, and the sustained one."""

    method: str
    sustained: Figure | None = None


class Measured(BaseModel):
    """``ceilings.json``: rates of large copies, reads and matrix products; None where they failed."""

    copy_gbs: Rate | None = None
    read_gbs: Rate | None = None
    matmul_tflops: dict[str, Rate] | None = None
    gpu: str | None = None


def datasheet(device: str | None) -> dict[str, Any] | None:
    """The published peaks of a device name such as ``NVIDIA H200``, with their source; None for an unknown part."""
    name = product(device)
    return table().gpus[name].datasheet.model_dump() if name else None


def load(evidence: Path, device: str | None) -> dict[str, Any] | None:
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
    rates |= {f"matmul {k}": (v, "tensor_tflops") for k, v in (found.matmul_tflops or {}).items()}
    for name, (rate, peak) in rates.items():
        if rate and peak in sheet and rate.value > MOST * sheet[peak]:
            what = f"{name} {rate.value:g} cannot be: the part is published with {sheet[peak]:g}"
            raise BadInput(path, what)
    return found.model_dump(exclude_unset=True)


def machine(device: str | None, measured: dict[str, Any] | None) -> Ceilings:
    """Ceilings that hold for the whole machine: GB/s and TFLOPS by source, None where unknown.

    ``measured`` is the content of ``ceilings.json`` (copy_gbs, matmul_tflops by dtype) or None.
    """
    sheet = datasheet(device)
    products = (measured or {}).get("matmul_tflops") or {}
    copy, read = ((measured or {}).get(name) or {} for name in ("copy_gbs", "read_gbs"))
    series = {"copy": copy, "read": read} | {f"matrix product, {k}": v for k, v in products.items()}
    return {
        "gpu": device,
        "datasheet": {
            "dram_gbs": sheet["dram_gbs"] if sheet else None,
            "tensor_tflops": sheet["tensor_tflops"] if sheet else None,
            "source": sheet["source"] if sheet else None,
        },
        "measured": {
            "dram_gbs": copy.get("value"),
            "read_gbs": read.get("value"),
            "series": {name: found for name, found in series.items() if found.get("value")},
            "tensor_tflops": {dtype: rate.get("value") for dtype, rate in products.items()},
            "source": copy.get("method"),
        },
    }
