"""Measured kernel guides for FlashInfer: a pipeline over Nsight Compute and Nsight Systems.

In a notebook `ncuflow.read(report)`, `explain(source)`, `compare(a, b)`, `step(trace)`, `view(report)` and `advise(recording)`:
`ncuflow/api.py`, docs/api.md.

In a checkout, ``parsers`` and ``targets`` and the folders below ``data`` are links to the folders
beside this package; an installed copy holds the folders themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncuflow.api import Frames as Frames
    from ncuflow.api import advise as advise
    from ncuflow.api import read as read
    from ncuflow.io import BadInput as BadInput

__version__ = "0.1.0"

# What a notebook asks for, by the module that has it; of these some are packages of that name, which are called as they are.
NOTEBOOK = {
    "Frames": "ncuflow.api",
    "read": "ncuflow.api",
    "advise": "ncuflow.api",
    "BadInput": "ncuflow.io",
    **dict.fromkeys(("compare", "explain", "step", "view"), ""),
}


class CallablePackage(ModuleType):
    """A package that has modules and is called as well: that is the function of its name in `ncuflow/api.py`, whose signature it
    shows."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, imported when it is asked for."""
        function: Callable[..., Any] = vars(import_module("ncuflow.api"))[
            self.__name__.rpartition(".")[2]
        ]
        return function

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self.__wrapped__(*args, **settings)


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: a command loads what it needs and nothing else."""
    if name not in NOTEBOOK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not NOTEBOOK[name]:
        return import_module(f"ncuflow.{name}")
    return getattr(import_module(NOTEBOOK[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *NOTEBOOK]
