"""A hidden folder beside the result, so that moving out of it is atomic."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """A fresh folder inside `folder`; removed at the end, with whatever was not moved out.

    What a killed run left of the same name goes first: of one result there is one maker at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{glob.escape(name)}.*"):
        shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
