"""What FlashInfer's autotuner keeps: one file of JSON, or a folder with a file for each choice.

A folder (`autotune_v2`) is v2/<environment>/{manifest.json,entries/*.json}, an entry {"key", "runner", "tactic", …}; a file
(`autotune(cache=…)`) maps keys to [runner, tactic, …] beside what begins with an underscore.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ncuflow.answer import Answer
from ncuflow.io import BadInput, clean, read_json
from ncuflow.record import Strict

DTYPE = re.compile(r"torch\.\w+")


@dataclass(frozen=True)
class StoredTactic:
    """A choice of the tuner's. operation, runner, shapes: of its key, shapes None where it cannot be read; environment: what
    the store says of where it was tuned."""

    key: str
    runner: str
    tactic: Any
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> tuple[str, list[list[int]]] | None:
        """(operation, shapes of its tensors); None of a key of another form."""
        try:
            found = ast.literal_eval(DTYPE.sub(lambda dtype: repr(dtype[0]), self.key))
            operation, _, shapes = found[:3]
            return str(operation), [[int(size) for size in shape] for shape in shapes]
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None


def read(path: Path) -> list[StoredTactic]:
    """All choices of a store, by key. Raises BadInput where it is none."""
    found = list(_folder(path) if path.is_dir() else _file(path))
    if not found:
        raise BadInput(
            path, "no store of FlashInfer's autotuner: neither entries/*.json nor a file of choices"
        )
    return sorted(found, key=lambda entry: (entry.environment, entry.key))


def _folder(folder: Path) -> Iterator[StoredTactic]:
    for path in sorted(folder.rglob("entries/*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not {"key", "runner", "tactic"} <= content.keys():
            raise BadInput(path, "not an entry of FlashInfer's autotuner")
        manifest = path.parents[1] / "manifest.json"
        about = read_json(manifest) if manifest.is_file() else {}
        yield _entry(content["key"], content["runner"], content["tactic"], about)


def _file(path: Path) -> Iterator[StoredTactic]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise BadInput(path, "not a file of FlashInfer's autotuner")
    about = content.get("_metadata") or {}
    for key, value in content.items():
        if key.startswith("_"):
            continue
        if not isinstance(value, list) or len(value) < 2:
            raise BadInput(path, f"{clean(key)}: not [runner, tactic]")
        yield _entry(key, value[0], value[1], about)


def _entry(key: Any, runner: Any, tactic: Any, about: Any) -> StoredTactic:
    known = about if isinstance(about, dict) else {}
    environment = tuple(sorted((clean(str(k)), clean(str(v))) for k, v in known.items()))
    return StoredTactic(clean(str(key)), clean(str(runner)), tactic, environment)


class TacticDifference(Strict):
    """A key under which two stores keep something else."""

    key: str
    """the tuner's"""
    first: str
    """runner and tactic of the first store"""
    second: str
    """of the second"""


class StoreComparison(Answer):
    """Two stores of FlashInfer's autotuner against each other."""

    command: Literal["advise"] = "advise"
    """the command that answers"""
    same: int
    """keys under which both keep the same choice"""
    different: list[TacticDifference]
    """keys under which they do not"""
    only_first: list[str]
    """keys of the first alone"""
    only_second: list[str]
    """keys of the second alone"""
    environments: dict[str, list[str]] = Field(default_factory=dict)
    """what the stores say of where they were tuned, where they differ: the first's values, then the second's"""


def compare(first: list[StoredTactic], second: list[StoredTactic]) -> StoreComparison:
    """What two stores do not agree in."""
    sides = [{entry.key: entry for entry in side} for side in (first, second)]
    both = [key for key in sides[0] if key in sides[1]]
    told = [[said(side[key]) for key in both] for side in sides]
    unlike = [
        TacticDifference(key=k, first=a, second=b)
        for k, a, b in zip(both, *told, strict=True)
        if a != b
    ]
    return StoreComparison(
        same=len(both) - len(unlike),
        different=unlike,
        only_first=[key for key in sides[0] if key not in sides[1]],
        only_second=[key for key in sides[1] if key not in sides[0]],
        environments=_environments(first, second),
    )


def said(entry: StoredTactic) -> str:
    return f"{entry.runner} {entry.tactic}"


def _environments(first: list[StoredTactic], second: list[StoredTactic]) -> dict[str, list[str]]:
    found = []
    for side in (first, second):
        values: dict[str, set[str]] = {}
        for entry in side:
            for key, value in entry.environment:
                values.setdefault(key, set()).add(value)
        found.append({key: ", ".join(sorted(some)) for key, some in values.items()})
    names = sorted({*found[0], *found[1]})
    both = {name: [side.get(name, "not said") for side in found] for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def comparison_screen(found: StoreComparison) -> str:
    """What a comparison of two stores says."""
    total = found.same + len(found.different)
    lines = [f"{len(found.different)} of {total} choices differ"]
    lines += [f"  {one.key}: {one.first}, {one.second}" for one in found.different]
    for which, keys in (("first", found.only_first), ("second", found.only_second)):
        lines += [f"the {which} store alone: {key}" for key in keys]
    lines += [f"{name}: {a}; {b}" for name, (a, b) in found.environments.items()]
    return "\n".join(lines) + "\n"
