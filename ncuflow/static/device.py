"""What a GPU holds: SMs, registers, shared memory, and how many blocks of a kernel fit onto an SM at once."""

from __future__ import annotations

from functools import cache
from math import ceil

from ncuflow.format import slug
from ncuflow.gpu.table import TABLE, Capability, Chip, product, table

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
