"""What a GPU holds: SMs, registers, shared memory, and how many blocks of a kernel fit onto an SM at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import yaml

DEVICES = Path(__file__).with_name("devices.yaml")
RESERVED_SHARED = 1024  # bytes of a block's shared memory that CUDA takes for itself, from 8.0 on
REGISTERS, PARTITIONS = 65536, 4  # of an SM, the same from 8.0 to 12.0
UNIT_REGISTERS, UNIT_SHARED = 256, 128  # granularity: of a warp's registers, of a block's bytes


@dataclass(frozen=True)
class Device:
    """A GPU as the occupancy rules see it; memory sizes in bytes, rates as published."""

    gpu: str
    compute_capability: str
    sm_count: int
    l2_bytes: int
    boost_mhz: int
    shared_sm: int
    shared_block: int
    warps: int
    blocks: int
    sources: tuple[str, ...]

    def fits(self, threads: int, registers: int, shared: int) -> dict[str, int]:
        """Blocks that an SM holds at once by each of its resources.

        threads: of a block; registers: of a thread; shared: static and dynamic bytes of a block.
        """
        warps = ceil(threads / 32)
        per_warp = UNIT_REGISTERS * ceil(registers * 32 / UNIT_REGISTERS)
        by_registers = PARTITIONS * (REGISTERS // PARTITIONS // per_warp)
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


@cache
def devices() -> dict[str, Device]:
    """The GPUs of `devices.yaml`, by the name that the driver gives."""
    content: dict[str, Any] = yaml.safe_load(DEVICES.read_text("utf-8"))
    capabilities, gpus = content["capabilities"], content["gpus"]
    return {
        name: Device(
            gpu=name,
            sources=(entry.pop("source"), capabilities[entry["compute_capability"]]["source"]),
            **entry,
            **{k: v for k, v in capabilities[entry["compute_capability"]].items() if k != "source"},
        )
        for name, entry in gpus.items()
    }


def device(name: str) -> Device:
    """A GPU by name. Raises ValueError that names the known ones."""
    found = devices().get(name)
    if found is None:
        raise ValueError(f"no GPU {name!r} in {DEVICES.name}; it has {', '.join(devices())}")
    return found
