"""A trace of either tool: its content tells which. What reads one has numpy, which reports do without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ncuflow.io import BadInput, sniff_packed

if TYPE_CHECKING:
    from ncuflow.parsers.timeline import Timeline

NSYS, TORCH = ("sqlite", "nsys-rep"), ("json", "gzip")


def is_trace(path: Path) -> bool:
    """Whether a file may be one."""
    return sniff_packed(path)[0] in NSYS + TORCH


def read(path: Path) -> Timeline:
    """A trace of nsys or of torch's profiler. Raises BadInput for any other file."""
    kind, words = sniff_packed(path)
    if kind in NSYS:
        from ncuflow.parsers import nsys

        return nsys.read_timeline(path)
    if kind in TORCH:
        from ncuflow.parsers import torch_trace

        return torch_trace.read(path)
    hint = ": `ncuflow explain` reads it" if kind == "ncu-rep" else ""
    raise BadInput(path, f"neither an nsys export nor torch's profiler's JSON but {words}{hint}")
