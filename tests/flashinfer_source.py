"""FlashInfer's source for tests: where the real one is, and a package of a few lines; no tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from ncuflow import source as sourceindex
from ncuflow.target.contract import known


def flashinfer_package() -> Path:
    """A FlashInfer package's folder: $NCUFLOW_FLASHINFER, else the installed one; skips without."""
    named = os.environ.get("NCUFLOW_FLASHINFER")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.origin:
        pytest.skip("no FlashInfer source; name one with NCUFLOW_FLASHINFER")
    return Path(spec.origin).parent


def made_package(root: Path) -> Path:
    """A package in the folder ``root`` with just what the targets declare."""
    files: dict[str, dict[str, None]] = {
        "jit/__init__.py": {}
    }  # lines as keys: each once, in order
    files["decode.py"] = {"import os": None, 'X = os.environ.get("MAX_JOBS", "1")': None}
    for target in known().values():
        for value in target.source.api.values():
            if value.startswith("flashinfer."):
                module, symbol = value.rsplit(".", 1)
                file = "/".join(module.split(".")[1:]) + ".py"
                files.setdefault(file, {})[f"def {symbol}(): ..."] = None
            else:
                files.setdefault(f"data/{value}", {})
        for file in target.source.sources:
            files[f"{sourceindex.CSRC}/{file}"] = {}
        for symbol, header in filter(lambda kernel: kernel.header, target.source.kernels):
            lines = files.setdefault(f"{sourceindex.INCLUDE}/{header}", {})
            lines[f"void {symbol}(float x) {{ }}"] = None  # no kernel
            lines[f"__global__ void {symbol}(int n) {{ }}"] = None
        for symbol, header in target.source.functions:
            lines = files.setdefault(f"{sourceindex.INCLUDE}/{header}", {})
            lines[f"inline auto {symbol}(int n) {{ }}"] = None
    for file, content in files.items():
        write(root / file, "\n".join(content) + "\n")
    (root / "_build_meta.py").write_text('__version__ = "9.9.9"\n')
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
