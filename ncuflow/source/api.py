"""Signatures: the parameters of the calls that claims and guides speak of, read from FlashInfer's source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METHODS = {"__init__": "", "plan": ".plan"}


def signatures(root: Path, symbols: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Call -> parameters, of functions, and of a class as ``X`` (its ``__init__``) and ``X.plan``.

    symbols: {name: file below root}. What a version does not define in that file is left out.
    """
    found = {}
    for name, file in symbols.items():
        for node in _tree(root / file).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                found[name] = parameters(node)
            if isinstance(node, ast.ClassDef) and node.name == name:
                for method in node.body:  # overloads come first, what they are of last
                    if isinstance(method, ast.FunctionDef) and method.name in METHODS:
                        found[name + METHODS[method.name]] = parameters(method)
    return found


def _tree(path: Path) -> ast.Module:
    """A module's syntax tree; an empty one where this version has no such file."""
    return ast.parse(path.read_text("utf-8") if path.exists() else "")


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
