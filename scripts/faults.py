"""Do the tests notice? One fault of tests/planted_faults.yaml at a time, in a copy of the checkout, under the tests it names.

`scripts/plant-faults` tries all, `scripts/plant-faults WORD …` those whose name or function has one of the words;
`--write` keeps in the list which were caught.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "planted_faults.yaml"
SEARCHED = ("ncuflow", "targets", "parsers")


@dataclass(frozen=True)
class Place:
    """A function, and where its text is in its file."""

    path: Path
    start: int
    end: int


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from functions(node, f"{prefix}{node.name}.")


def index(root: Path) -> dict[str, list[Place]]:
    """Where each function is, by its qualified name."""
    found: dict[str, list[Place]] = {}
    for path in sorted(path for folder in SEARCHED for path in (root / folder).rglob("*.py")):
        if path.resolve() != path.absolute():
            continue  # ncuflow/targets and ncuflow/parsers are links to those beside it
        text = path.read_text(encoding="utf-8")
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for name, node in functions(ast.parse(text)):
            place = Place(path, starts[node.lineno - 1], starts[node.end_lineno or node.lineno])
            found.setdefault(name, []).append(place)
    return found


def places(known: dict[str, list[Place]], fault: dict[str, Any]) -> list[tuple[Path, int]]:
    """Each file and offset where the old text is in a function of that name; of a list in order it is one."""
    found = []
    for place in known.get(fault["function"], ()):
        text = place.path.read_text(encoding="utf-8")[place.start : place.end]
        found += [
            (place.path, place.start + hit.start())
            for hit in re.finditer(re.escape(fault["old"]), text)
        ]
    return found


def caught(copy: Path, known: dict[str, list[Place]], fault: dict[str, Any]) -> str | None:
    """The test that fails with the fault in its place, or None."""
    ((path, at),) = places(known, fault)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:at] + fault["new"] + whole[at + len(fault["old"]) :], encoding="utf-8")
    try:
        for name in fault["tests"]:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                f"tests/test_{name}.py",
            ]
            done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 5):
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
                return failed[1] if failed else f"tests/test_{name}.py"
        return None
    finally:
        path.write_text(whole, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="of names or functions; default: all")
    parser.add_argument("--write", action="store_true", help="keep in the list which were caught")
    args = parser.parse_args()
    faults = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    chosen = [
        f
        for f in faults
        if not args.words or any(w in f"{f['fault']} {f['function']}" for w in args.words)
    ]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(
            ".git", ".venv", "outputs", "__pycache__", ".snakemake", ".*_cache", "node_modules"
        )
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        known = index(copy)
        for fault in chosen:
            test = caught(copy, known, fault)
            fault["caught"] = test is not None
            print(
                f"{'caught' if test else 'MISSED'}  {fault['function']}: {fault['fault']}  {test or ''}",
                flush=True,
            )
    missed = [fault["fault"] for fault in chosen if not fault["caught"]]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    if args.write:
        kept(faults)
    return bool(missed)


def kept(faults: list[dict[str, Any]]) -> None:
    """The list with what was found, its other lines as they are."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("  caught: ")]
    ends = [at for at, line in enumerate(lines) if line.startswith("  tests: ")]
    for at, fault in reversed(list(zip(ends, faults, strict=True))):
        if "caught" in fault:
            lines.insert(at + 1, f"  caught: {str(fault['caught']).lower()}")
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")
