"""Static facts that were stored: kernels by the names that launches have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ncuflow.evidence import location
from ncuflow.findings.kernelname import canonical
from ncuflow.io import JsonObject, UsageError, read_json, read_yaml, resource
from ncuflow.sweep import points as sweep

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
