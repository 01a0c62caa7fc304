"""Ceilings: what a GPU could do at most, from three independent sources.

datasheet  NVIDIA's published peak of the part (``datasheets.yaml``, with the source of each figure)
counter    the peak that the hardware counters state for one launch, at the clocks of that launch
measured   a large copy and a large matrix product timed on the same machine (``ceilings.json``)
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ncuflow.model import Ceilings

DATASHEETS = Path(__file__).with_name("datasheets.yaml")
SOURCES = ("datasheet", "counter", "measured")


@cache
def datasheets() -> tuple[dict[str, Any], ...]:
    """All datasheet entries, in the order in which they are matched."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(yaml.load(DATASHEETS.read_text("utf-8"), Loader=loader))


def datasheet(device: str | None) -> dict[str, Any] | None:
    """The datasheet entry of a device name such as ``NVIDIA H200``; None for an unknown part."""
    if not device:
        return None
    for entry in datasheets():
        if re.fullmatch(rf"(NVIDIA )?({entry['match']})", device, re.IGNORECASE):
            return entry
    return None


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
