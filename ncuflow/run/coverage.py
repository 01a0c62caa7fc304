"""FlashInfer's API by what of it is measured: each call, its area, the target that has it, whether engines call it.

The list is FlashInfer's own: the functions that it marks with ``flashinfer_api``, read from its source without importing it.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ncuflow.target.contract import Target, known

MARK = "flashinfer_api"
OTHER = "other"


class Offered(NamedTuple):
    """A call of FlashInfer's. name: below the package; area: of those that the target of all calls names; target: that measures
    it, "" for none; called: whether engines are known to call it."""

    name: str
    area: str
    target: str
    called: bool


def offered(package: Path) -> list[Offered]:
    """Every call, the areas in their order, and in each those without a target first, called ones before others."""
    measured, called = _known()
    found = [
        Offered(name, area(name), measured.get(_key(name), ""), _key(name) in called)
        for name in sorted(set(_marked(package)))
    ]
    order = [*_areas(), OTHER]
    return sorted(found, key=lambda one: (order.index(one.area), one.target != "", not one.called))


def area(name: str) -> str:
    """Of a call, by the folders and the file that have it."""
    parts = name.split(".")[:-1]
    for label, starts in _areas().items():
        if any(part.startswith(starts) for part in parts):
            return label
    return OTHER


def _areas() -> Mapping[str, tuple[str, ...]]:
    return next((one.workload.areas for one in known().values() if one.generic), {})


def _marked(package: Path) -> Iterator[str]:
    """ "gemm.gemm_base.mm_bf16", "decode.Wrapper.run": functions with the mark, by their place below the package."""
    for path in sorted(package.rglob("*.py")):
        below = path.relative_to(package)
        text = path.read_text(encoding="utf-8", errors="replace")
        if below.parts[0] in ("jit", "trace", "testing", "data") or f"@{MARK}" not in text:
            continue
        module = ".".join(below.with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(text).body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            named = (one for one in inner if isinstance(one, ast.FunctionDef))
            if any(_is_mark(by) for one in named for by in one.decorator_list):
                yield f"{module}.{getattr(node, 'name', '')}"


def _is_mark(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(named, ast.Name) and named.id == MARK


def _key(name: str) -> tuple[str, str]:
    """What tells a call wherever it is imported from: the package's part that has it, and its class or its function."""
    parts = name.split(".")
    return parts[0], next((part for part in parts[1:] if part[:1].isupper()), parts[-1])


def _known() -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """(the target that measures a call, those that engines are known to call)."""
    measured: dict[tuple[str, str], str] = {}
    called = set()
    for target in known().values():
        for name in _names(target):
            measured.setdefault(_key(name), target.name)
        called |= {
            _key(f"{one.module}.{one.name}".removeprefix("flashinfer."))
            for one in target.workload.calls
        }
    return measured, called


def _names(target: Target) -> Iterator[str]:
    own = [value for key, value in target.source.api.items() if key.startswith("python")]
    own += [f"{one.module}.{one.name}" for one in target.workload.calls]
    yield from (name.removeprefix("flashinfer.") for name in own if name.startswith("flashinfer."))
