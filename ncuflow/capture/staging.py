"""A hidden folder beside the result, so that moving out of it is atomic."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """A fresh folder inside `folder`; removed at the end, with whatever was not moved out."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
