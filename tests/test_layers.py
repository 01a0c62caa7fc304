"""The house: a room knows those below it and none above, and no module imports itself through others."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ncuflow.cli import COMMANDS

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
PACKAGE = Path(__file__).parents[1] / "ncuflow"


class Room(NamedTuple):
    """Folders of the package and modules at its top, with one noun: of a room's one knows those named before it."""

    floor: int
    names: list[str]


@cache
def rooms() -> list[Room]:
    """The rooms as CONTRIBUTING's table has them; those of one floor do not know each other."""
    rows = re.findall(r"^\| (\d+) \| (`.*?`) \|", CONTRIBUTING.read_text(), re.MULTILINE)
    own = [re.findall(r"`ncuflow/([\w/]+?)(?:/|\.py)`", where) for _, where in rows]
    named = [[path.replace("/", ".") for path in paths] for paths in own]
    return [Room(int(floor), names) for (floor, _), names in zip(rows, named, strict=True)]


def place(module: str) -> tuple[int, int, int]:
    """(floor, room, rank in it) of a module by its name below ncuflow."""
    name = module.rpartition(".")[0] or module
    named = [(number, room) for number, room in enumerate(rooms()) if name in room.names]
    found = [(room.floor, number, room.names.index(name)) for number, room in named]
    assert len(found) == 1, f"{module}: {name} is no room, or in two places"
    return found[0]


@cache
def modules() -> dict[str, Path]:
    found = {}
    for folder in (PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_symlink())):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            if parts[0] != "data" and parts[-1] != "__init__":
                found[".".join(parts)] = path
    return found


@cache
def imports(module: str) -> set[str]:
    """The project's modules that a module imports anywhere in it, in functions and for types too."""
    names = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    below = {name.removeprefix("ncuflow.") for name in names if name.startswith("ncuflow.")}
    return below & set(modules())


def test_the_whole_package_is_looked_at():
    assert {"io", "parsers.ncu", "targets.decode", "findings.columns"} <= set(modules())


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_room_knows_those_below_it_and_none_above(module):
    floor, room, rank = place(module)

    def known(other: str) -> bool:
        below, of, before = place(other)
        return before <= rank if of == room else below < floor

    assert [other for other in imports(module) if not known(other)] == []


def test_the_house_is_one_that_a_stranger_keeps_in_mind():
    assert len({room.floor for room in rooms()}) <= 9 and len(rooms()) <= 18


# A string that has a target's name in it outside of the targets, and why.
NAMED = {
    "prefill": "a kind of step, whatever computes it",
    "decode": "the other kind",
    "sampling": "what ends a step, a family of kernels",
    "_gen_batch_prefill_primary_module": "FlashInfer's function, which several targets build modules by",
    "decode.py": "FlashInfer's file, in which it says for which GPUs a backend of several targets is",
    "trtllm_batch_decode_with_kv_cache": "its function there",
    "attention/prefill.cuh": "FlashInfer's header of kernels that several attention targets launch",
    "attention/hopper/prefill_sm90.cuh": "the same of fa3's",
    "attention/cascade.cuh": "the same of the kernel that merges their chunks",
}


def strings(path: Path) -> set[str]:
    """The string literals of a module, its docstrings apart."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    return {node.value for node in found if isinstance(node.value, str)}


def test_what_is_said_of_one_target_stands_in_its_file():
    """What a room has to know of a kernel it asks the target for."""
    targets = {name.removeprefix("targets.") for name in modules() if name.startswith("targets.")}
    # a word that a command or another module is named by is no kernel's alone
    others = {name.rpartition(".")[2] for name in modules() if "targets." not in name}
    targets -= COMMANDS.keys() | others
    assert {"decode", "rmsnorm", "gemm"} <= targets
    name = re.compile(rf"(?<![A-Za-z])({'|'.join(targets)})(?![A-Za-z])")
    found = {
        (module, said)
        for module, path in modules().items()
        if not module.startswith(("targets.", "claims."))
        for said in strings(path)
        if name.search(said) and " " not in said  # else it is prose
    }
    assert {said for _, said in found} == NAMED.keys(), found


def test_no_module_imports_itself_through_others():
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


def test_every_room_has_something_in_it():
    assert {place(module)[1] for module in modules()} == {*range(len(rooms()))}


# Records with the fields of another one, and why they are two.
TWINS = {
    frozenset(names.split()): why
    for names, why in {
        "record.Check model.ReferenceCheck": "read from a capture; a part of results",
        "record.WorkRecord target.contract.Work": "read from a capture; what a target says",
        "race.record.Relative race.rounds.Interval": "read from a record; what the tests of a race compute, often",
    }.items()
}


def records() -> dict[str, tuple[frozenset[str], set[str]]]:
    """The fields of each class that declares or inherits some, and the names of its bases."""
    found = {
        f"{module}.{node.name}": node
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    named = {name.rpartition(".")[2]: node for name, node in found.items()}

    def bases(node: ast.ClassDef) -> set[str]:
        own = {ast.unparse(base).rpartition(".")[2] for base in node.bases} & named.keys()
        return own.union(*(bases(named[base]) for base in own if named[base] is not node))

    def declared(node: ast.ClassDef) -> set[str]:
        fields = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
        return {field.id for field in fields if isinstance(field, ast.Name)}

    above = {name: bases(node) for name, node in found.items()}
    own = {name: declared(node) for name, node in named.items()}
    return {
        name: (frozenset(declared(node).union(*(own[one] for one in above[name]))), above[name])
        for name, node in found.items()
    }


def test_no_two_records_have_the_same_fields():
    """One record per fact: a fact that two rooms know is one record, of the lower room. A class that only adds what it
    does to another one has the fields of that."""
    by_fields: dict[frozenset[str], list[str]] = {}
    every = records()
    for name, (fields, above) in every.items():
        if len(fields) > 1 and all(every_of != fields for every_of in inherited(every, above)):
            by_fields.setdefault(fields, []).append(name)
    assert {"target", "status"} <= every["record.PointRecord"][0]
    found = {frozenset(names) for names in by_fields.values() if len(names) > 1}
    assert found - TWINS.keys() == set()


def inherited(every: dict[str, Any], names: set[str]) -> list[frozenset[str]]:
    return [fields for name, (fields, _) in every.items() if name.rpartition(".")[2] in names]
