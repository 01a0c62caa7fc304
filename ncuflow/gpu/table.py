"""The table of GPUs: what is published of each, read from `gpus.yaml`; and what one holds: SMs, registers,
shared memory, and how many blocks of a kernel fit onto an SM at once."""

from __future__ import annotations

from functools import cache
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ncuflow.format import slug
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


RESERVED_SHARED = 1024  # bytes of a block's shared memory that CUDA takes for itself, from 8.0 on
PARTITIONS = 4  # of an SM, the same from 8.0 to 12.0
UNIT_REGISTERS, UNIT_SHARED = 256, 128  # granularity: of a warp's registers, of a block's bytes


class Device(Capability, Chip):
    """A GPU as the rules see it, by the name that the driver gives."""

    gpu: str
    compute_capability: str
    l2_bytes: int
    boost_mhz: int
    sources: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Name of the folder below `outputs` for what is known of it without a run."""
        return f"{slug(self.gpu)}-static"

    def fits(self, threads: int, registers: int, shared: int) -> dict[str, int]:
        """Blocks that an SM holds at once by each of its resources.

        threads: of a block; registers: of a thread; shared: static and dynamic bytes of a block.
        """
        warps = ceil(threads / 32)
        per_warp = UNIT_REGISTERS * ceil(registers * 32 / UNIT_REGISTERS)
        by_registers = PARTITIONS * (self.registers // PARTITIONS // per_warp)
        bytes_of_block = UNIT_SHARED * ceil((shared + RESERVED_SHARED) / UNIT_SHARED)
        return {
            "registers": by_registers // (PARTITIONS * ceil(warps / PARTITIONS)),
            "shared memory": self.shared_sm // bytes_of_block,
            "warps": self.warps // warps,
            "block slots": self.blocks,
        }

    def resident(self, threads: int, registers: int, shared: int) -> int:
        """Blocks that an SM holds at once."""
        return min(self.fits(threads, registers, shared).values())


def shared_of_block(capability: str) -> int | None:
    """Bytes of shared memory that a block may have on a GPU of a compute capability; None for an unknown one."""
    found = table().capabilities.get(capability)
    return found.shared_block if found else None


@cache
def devices() -> dict[str, Device]:
    """The GPUs that launches can be predicted on, by product."""
    found = {}
    for product_name, gpu in table().gpus.items():
        limits = table().capabilities[gpu.compute_capability]
        # of a GPU whose clock under tensor load nobody published, the highest is known from its driver
        mhz = gpu.chip and (gpu.chip.boost_mhz or gpu.chip.fp32_mhz)
        # the rules of launches are those from 8.0 on
        if float(gpu.compute_capability) >= 8 and gpu.chip and gpu.chip.l2_bytes and mhz:
            # of a GPU without other tensor instructions, its rate for fp16 is that of mma.sync
            rate = gpu.chip.ops.get("f16") or limits.mma_flops or limits.ops.get("f16")
            own = {"mma_flops": rate, "boost_mhz": mhz}
            found[product_name] = Device(
                gpu=f"NVIDIA {gpu.names[0]}",
                compute_capability=gpu.compute_capability,
                sources=(gpu.chip.source, limits.source),
                **(limits.model_dump() | gpu.chip.model_dump() | own),
            )
    return found


def device(name: str) -> Device:
    """A GPU by name. Raises ValueError that names the known ones."""
    found = devices().get(product(name) or "")
    if found is None:
        known = ", ".join(one.gpu for one in devices().values())
        raise ValueError(f"no GPU {name!r} in {TABLE.name}; it has {known}")
    return found


def of_architecture(arch: str, name: str | None = None) -> Device:
    """The GPU that is meant: by name, else the first of an architecture such as "80".

    Raises ValueError where there is none, or where the named one is of another architecture.
    """
    capability = f"{arch[:-1]}.{arch[-1:]}"
    found = [one for one in devices().values() if one.compute_capability == capability]
    meant = device(name) if name else next(iter(found), None)
    if meant not in found:
        known = ", ".join(
            sorted({d.compute_capability.replace(".", "") for d in devices().values()})
        )
        raise ValueError(f"arch {arch}: no {name or 'GPU'} of it in {TABLE.name}; it has {known}")
    return meant
