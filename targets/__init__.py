"""Kernel targets: one short module a target.

A kernel target is a module in this folder that defines ``NAME``. It says what it launches and how
much work that is; it knows nothing of profilers or files (``docs/adding-a-target.md``).
Importing a target needs neither torch nor FlashInfer: they are imported by the functions that run.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

_DEFINES_NAME = re.compile(r"^NAME\s*(:.*)?=", re.MULTILINE)


def names() -> list[str]:
    """Names of the kernel targets, sorted. Modules are read, not imported."""
    found = {
        path.stem
        for folder in __path__
        for path in Path(folder).glob("*.py")
        if _DEFINES_NAME.search(path.read_text(encoding="utf-8"))
    }
    return sorted(found)


def load(name: str) -> ModuleType:
    """The module of a kernel target.

    Raises ValueError that names the known targets if ``name`` is not one of them.
    """
    if name not in names():
        raise ValueError(f"unknown kernel target {name!r}; there are: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
