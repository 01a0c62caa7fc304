"""Where the guide's tests find FlashInfer's source; a helper, not a test."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def flashinfer_package() -> Path:
    """A FlashInfer package's folder: $NCUFLOW_FLASHINFER, else the installed one; skips without."""
    named = os.environ.get("NCUFLOW_FLASHINFER")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.origin:
        pytest.skip("no FlashInfer source; name one with NCUFLOW_FLASHINFER")
    return Path(spec.origin).parent
