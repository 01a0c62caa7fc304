"""The JIT: what was measured of each module, as ``results/jit_analysis.json``.

ncuflow jit-results --evidence ROOT [--recording NAME] --out FILE.json
"""

from functools import cache
from pathlib import Path

from ncuflow.evidence.provenance import load_provenance
from ncuflow.findings import stored
from ncuflow.io import JsonObject, read_yaml, write_json

ELSEWHERE = Path(__file__).with_name("jit_elsewhere.yaml")


def summary(name: str, module: JsonObject) -> JsonObject:
    """One row per module. Times in seconds; None where a step was not measured or failed."""
    cold, disk, first = (module.get(step) or {} for step in ("cold", "disk", "first_launch"))
    parts = [cold.get(f"{part}_s") for part in ("generation", "write_ninja", "build", "load")]
    known = [part for part in parts if part is not None]
    cache = module.get("cache") or {}
    return {
        "module": name,
        "target": module["target"],
        "uri": cold.get("uri"),
        "aot": module["aot"],
        "error": cold.get("error"),
        "generation_s": cold.get("generation_s"),
        "build_s": cold.get("build_s"),
        "load_s": cold.get("load_s"),
        "cold_s": sum(known) if cold.get("build_s") is not None else None,
        "disk_hit_s": disk.get("build_and_load_s"),
        "memory_hit_s": disk.get("memory_hit_s"),
        "first_launch_s": first.get("first_launch_s"),
        "later_launch_s": first.get("later_launch_s"),
        "library_bytes": cold.get("library_bytes"),
        "cache_files": len(cache) or None,
        "cache_bytes": sum(cache.values()) if cache else None,
    }


def jit_analysis(evidence: Path, recording: str | None) -> JsonObject:
    """The recording's measurement with its provenance and one summary row per module."""
    measured: JsonObject = stored.written(evidence / "jit" / "jit_analysis.json")
    rows = [summary(name, module) for name, module in measured["modules"].items()]
    own = {
        key: measured[key] for key in ("gpu", "flashinfer", "torch", "date") if measured.get(key)
    }
    return measured | {"provenance": load_provenance(evidence, recording) | own, "summary": rows}


@cache
def elsewhere() -> JsonObject:
    """What evidence without a measurement of its own tells: another one's, which says whose it is, and where it lies (report)."""
    measured: JsonObject = read_yaml(ELSEWHERE)
    return measured | {"summary": [summary(*module) for module in measured["modules"].items()]}


def command(*, evidence: Path, out: Path, recording: str | None = None) -> None:
    """What the pages say of compilation."""
    write_json(out, jit_analysis(evidence, recording))
