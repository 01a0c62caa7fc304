"""The table of GPUs: what is published of each, read from `gpus.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncuflow.io import conforming, read_yaml

TABLE = Path(__file__).with_name("gpus.yaml")
Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
# Types that a GPU computes with: those of tensor cores, as points call them, and fp32 of CUDA cores.
Type = Literal["f16", "bf16", "tf32", "fp8", "fp4", "int8", "fp32"]


class Entry(BaseModel):
    """A part of the table."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class CitedEntry(Entry):
    """Published numbers, and where."""

    source: Annotated[str, Field(min_length=1)]
    """The publication, with its own figures where these are computed from them."""
    url: Annotated[str, Field(pattern="^https://")] | None = None
    """Where it is; None of what NVIDIA has no page of."""


class Capability(CitedEntry):
    """What all GPUs of a compute capability have in common. A rate that is None is not known, or has no such instruction."""

    shared_sm: Count
    """Bytes of shared memory of an SM."""
    shared_block: Count
    """Bytes of shared memory that a block may have."""
    registers: Count
    """Registers of an SM."""
    warps: Count
    """Warps that an SM holds at once."""
    blocks: Count
    """Blocks that an SM holds at once."""
    fp32_flops: Rate | None = None
    """Dense FLOP of an SM in a cycle, on CUDA cores."""
    mma_flops: Rate | None = None
    """Dense FLOP of an SM in a cycle, by mma.sync in fp16 with fp32 accumulation."""
    wgmma_flops: Rate | None = None
    """As `mma_flops`, by warpgroup instructions."""
    ops: dict[Type, Rate] = {}
    """Dense operations of an SM in a cycle by the fastest instruction of a type, where the rates above do not say it."""


class Chip(CitedEntry):
    """The chip as a product has it."""

    sm_count: Count
    """SMs that are enabled."""
    l2_bytes: Count | None = None
    """Size of the L2 cache."""
    boost_mhz: Count | None = None
    """SM clock that the published tensor peaks are of."""
    fp32_mhz: Count | None = None
    """SM clock that the published fp32 peak is of, where it is another."""
    ops: dict[Type, Rate] = {}
    """As those of the compute capability, where this product has others: GeForce halves fp32 accumulation."""


class Datasheet(CitedEntry):
    """Peak rates of a product."""

    tflops: dict[Type, Rate]
    """Dense TFLOPS (of int8 TOPS) by type, with fp32 accumulation; NVIDIA's sparse figures halved."""
    dram_gbs: Rate
    """DRAM, in decimal GB/s."""
    bus_bits: Count | None = None
    """Width of the memory bus, as the driver reports it."""
    dram_mhz: Count | None = None
    """Memory clock, as the driver reports it; two bits a cycle and wire."""


class Product(Entry):
    """A product."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    """Its whole names as the driver gives them, without "NVIDIA "; the first is the one it is called by."""
    compute_capability: str
    """Such as 9.0; an entry of `capabilities`."""
    datasheet: Datasheet
    """One of three ceilings (datasheet, counter, measured)."""
    chip: Chip | None = None
    """What rules of launches and occupancy need of it; where some of it is None no launch is predicted."""


class GpuTable(Entry):
    """All of it."""

    capabilities: dict[str, Capability]
    """By compute capability."""
    gpus: dict[str, Product]
    """By the product's name."""

    @model_validator(mode="after")
    def _whole(self) -> GpuTable:
        names = [_plain(name) for gpu in self.gpus.values() for name in gpu.names]
        if len(names) != len({*names}):
            raise ValueError("two GPUs have a name in common")
        if missing := {g.compute_capability for g in self.gpus.values()} - {*self.capabilities}:
            raise ValueError(f"no capability {', '.join(sorted(missing))}")
        return self


@cache
def table() -> GpuTable:
    """The content of `gpus.yaml`. Raises BadInput, with the first fault, where it is none."""
    return conforming(TABLE, read_yaml(TABLE), GpuTable, "a table of GPUs")


def product(name: str | None) -> str | None:
    """The product that a device name such as ``NVIDIA H200`` is of; None for one that is not in the table."""
    wanted = _plain(name or "")
    gpus = table().gpus.items()
    return next((key for key, gpu in gpus if wanted in map(_plain, gpu.names)), None)


def capability_of(text: str) -> str:
    """The compute capability of a GPU by words of its name that leave no doubt ("b200", "rtx 5090"); "12.0" is itself.

    Raises ValueError that names the known ones.
    """
    if text in table().capabilities:
        return text
    wanted, gpus = _plain(text), table().gpus.items()
    alike = {
        gpu.compute_capability: None
        for key, gpu in gpus
        if any({*wanted.split()} <= {*_plain(name).split()} for name in (key, *gpu.names))
    }
    if len(alike) != 1:
        known = ", ".join(key for key, _ in gpus)
        raise ValueError(
            f"no GPU {text!r}; there are {known}, and compute capabilities {', '.join(table().capabilities)}"
        )
    return next(iter(alike))


def _plain(name: str) -> str:
    return name.casefold().removeprefix("nvidia ")
