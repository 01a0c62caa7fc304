"""Signatures: the parameters of the calls that claims and guides speak of, read from FlashInfer's source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

CALLS = {  # name -> (file, class, method)
    "BatchDecodeWithPagedKVCacheWrapper": ("decode.py", "__init__"),
    "BatchDecodeWithPagedKVCacheWrapper.plan": ("decode.py", "plan"),
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper": ("decode.py", "__init__"),
    "BatchPrefillWithPagedKVCacheWrapper": ("prefill.py", "__init__"),
    "BatchPrefillWithPagedKVCacheWrapper.plan": ("prefill.py", "plan"),
}


def signatures(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Call -> parameters; a call that this version does not have is left out."""
    found = {}
    for call, (file, method) in CALLS.items():
        for node in _tree(root / file).body:
            if isinstance(node, ast.ClassDef) and node.name == call.partition(".")[0]:
                methods = [
                    m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == method
                ]
                if methods:
                    found[call] = parameters(methods[-1])  # overloads come first
    return found


def _tree(path: Path) -> ast.Module:
    """A module's syntax tree; an empty one where this version has no such file."""
    return ast.parse(path.read_text() if path.exists() else "")


def parameters(node: ast.FunctionDef) -> list[dict[str, Any]]:
    """[{"name", "kind": positional | keyword | var_positional | var_keyword, "default": source or None}]."""
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    missing = len(positional) - len(spec.defaults)
    defaults = [None] * missing + [ast.unparse(default) for default in spec.defaults]
    out = [_row(p, "positional", d) for p, d in zip(positional, defaults, strict=True)]
    if spec.vararg:
        out.append(_row(spec.vararg, "var_positional", None))
    for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        out.append(_row(parameter, "keyword", None if default is None else ast.unparse(default)))
    if spec.kwarg:
        out.append(_row(spec.kwarg, "var_keyword", None))
    return [row for row in out if row["name"] != "self"]


def _row(parameter: ast.arg, kind: str, default: str | None) -> dict[str, Any]:
    return {"name": parameter.arg, "kind": kind, "default": default}


def exports(root: Path) -> list[str]:
    """Names that the package's ``__init__.py`` imports or defines."""
    tree = _tree(root / "__init__.py")
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return sorted(names | defined)
