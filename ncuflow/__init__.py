"""Measured kernel guides for FlashInfer: a pipeline over Nsight Compute and Nsight Systems.

In a notebook `ncuflow.read(report)`, `ncuflow.explain(source)` and `ncuflow.compare(a, b)`: `ncuflow/api.py`, docs/api.md.

In a checkout, ``parsers`` and ``targets`` and the folders below ``data`` are links to the folders
beside this package; an installed copy holds the folders themselves.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncuflow.api import Frames as Frames
    from ncuflow.api import read as read

__version__ = "0.1.0"

# What a notebook asks for, by the module that has it; a package is called as it is.
NOTEBOOK = {
    "Frames": "ncuflow.api",
    "read": "ncuflow.api",
    "compare": "ncuflow.compare",
    "explain": "ncuflow.explain",
}


class CallablePackage(ModuleType):
    """A package that has modules and is called as well: ``called`` of it gives the function, imported when it is asked for."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self.called()(*args, **settings)


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: a command loads what it needs and nothing else."""
    if name not in NOTEBOOK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(NOTEBOOK[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return [*globals(), *NOTEBOOK]
