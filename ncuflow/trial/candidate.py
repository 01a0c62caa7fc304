"""A candidate: a Python function that takes the place of the API that a target calls, by FlashInfer's own `trace_apply`.

FlashInfer finds a replacement by the name of a definition (rmsnorm_h4096), which it works out from the arguments of a call;
the function gets the definition's inputs by keyword and returns its outputs. Nothing is compiled.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from ncuflow.io import CommandError, scratch
from ncuflow.target.contract import Target
from ncuflow.target.launch import Launch, Params

_NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_DUMP, _FOLDER = "FLASHINFER_TRACE_DUMP", "FLASHINFER_TRACE_DUMP_DIR"


def named(change: PurePath) -> str | None:
    """The module:function that a change is; None where it is a file or a folder."""
    text = str(change)
    return text if _NAMED.fullmatch(text) and not Path(change).exists() else None


def check(name: str, installed: Path) -> None:
    """Raises CommandError where the installed FlashInfer has no trace_apply."""
    if not (installed / "trace_apply").is_dir():
        raise CommandError(f"{name}: this FlashInfer has no trace_apply, which a function needs")


class Substitute:
    """Prepares launches of a target whose API is replaced. Raises ImportError or AttributeError where there is no such
    function."""

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        sys.path.append(
            str(Path.cwd())
        )  # behind all else: what is named is the user's, its neighbours need not be
        self.function: Callable[..., Any] = getattr(importlib.import_module(module), function)
        self._names: set[str] = set()

    def prepare(self, target: Target, params: Params, seed: int) -> Launch:
        """A launch that calls the function. Raises RuntimeError where it was not called."""
        from flashinfer import trace_apply

        trace_apply.disable_apply()
        # What the definitions of this launch are called, FlashInfer says where it writes them down.
        with _dumped() as folder:
            target.prepare(params, seed).run()
            self._names |= {path.stem for path in folder.rglob("*.json")}
        if not self._names:
            raise RuntimeError("the target calls no API that trace_apply knows")
        trace_apply.enable_apply(dict.fromkeys(sorted(self._names), self.function))
        launch = target.prepare(params, seed)
        if launch.reset is not None:
            launch.reset()
        launch.run()
        if not any(counts.get("hit") for counts in trace_apply.stats().values()):
            names = ", ".join(sorted(self._names))
            raise RuntimeError(
                f"FlashInfer called its own kernel, and not the function, for {names}"
            )
        return launch


@contextmanager
def _dumped() -> Iterator[Path]:
    """A folder in which FlashInfer writes down each definition that is called for the first time."""
    with scratch() as folder:
        os.environ[_DUMP], os.environ[_FOLDER] = "1", str(folder)
        try:
            yield folder
        finally:
            del os.environ[_DUMP], os.environ[_FOLDER]
