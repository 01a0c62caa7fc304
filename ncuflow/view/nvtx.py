"""The tree of NVTX ranges that launches stood in, ranges of one name together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ncuflow.view.model import NvtxNode

MOST_NODES = 500  # of a level: a program may name each of its steps anew


def tree(launches: Iterable[tuple[Sequence[str], str | None, float | None]]) -> list[NvtxNode]:
    """The ranges of (names of ranges from the outermost on, what ran, its ns) with what ran within them.

    The longest first; empty where nothing stood in a range. A time that is not known adds none.
    """
    return _level([(list(names), kernel or "–", ns) for names, kernel, ns in launches])


def _level(rows: list[tuple[list[str], str, float | None]]) -> list[NvtxNode]:
    found: dict[str, list[tuple[list[str], str, float | None]]] = {}
    for (first, *rest), kernel, ns in (row for row in rows if row[0]):
        found.setdefault(first, []).append((rest, kernel, ns))
    nodes = [_node(name, below) for name, below in found.items()]
    nodes.sort(key=lambda node: -node.total_ns)
    return nodes[:MOST_NODES]


def _node(name: str, below: list[tuple[list[str], str, float | None]]) -> NvtxNode:
    kernels: dict[str, float] = {}
    for _, kernel, ns in below:
        kernels[kernel] = kernels.get(kernel, 0.0) + (ns or 0.0)
    ordered = dict(sorted(kernels.items(), key=lambda item: -item[1]))
    node = NvtxNode(name, len(below), sum(ordered.values()), ordered)
    return replace(node, children=_level(below))
