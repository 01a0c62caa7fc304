"""FlashInfer's source as the guide cites it, by the index recorded with the evidence; and the commands of that evidence."""

from __future__ import annotations

import ast
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ncuflow.findings.join import is_torchs
from ncuflow.io import read_json, read_yaml, resource
from ncuflow.model import Point
from ncuflow.pages import Context
from ncuflow.parsers.chips import CHIPS
from ncuflow.parsers.registry import counters
from ncuflow.target.contract import known, ordered

PURPOSE: dict[str, str] = read_yaml(resource("templates/guide/variables.yaml"))
ENGINE: Context = read_yaml(resource("templates/guide/engine.yaml"))
# Steps of the code path: the first word of a role in a target's ``api``; the rest tells two apart.
STEPS = {
    "python": "Python API",
    "jit": "JIT generator",
    "binding": "binding",
    "scheduler": "scheduler",
}
WORDS = {"ragged": "ragged KV", "graph": "CUDA graph", "two": "two states"}
MOST_TREE_LINES = 24


def file_and_line(entry: Mapping[str, Any]) -> str:
    """``decode.py:751`` of an entry with file and line."""
    return f"{entry['file']}:{entry['line']}"


def code_path(target: str, index: Any, results: Any) -> Context | None:
    """{steps: [(step, symbol, place)], templates, kernels: [(symbol, place, points)], filter}."""
    entry = ((index or {}).get("targets") or {}).get(target)
    if entry is None:
        return None
    ok = [p for p in (results or {}).get("points", ()) if p["status"] == "ok"]
    launched = launches(ok)
    steps = [(role, e["symbol"], file_and_line(e)) for role, e in entry["api"].items()]
    steps += [(role, None, file) for role, file in entry["files"].items()]
    known = [step for step in steps if step[0].partition("_")[0] in STEPS]
    order = [*STEPS]
    return {
        "steps": [
            (_label(role), symbol, where)
            for role, symbol, where in sorted(
                known, key=lambda step: order.index(step[0].partition("_")[0])
            )
        ],
        "templates": entry["templates"],
        "kernels": [
            *(
                (k["symbol"], file_and_line(k), launched.pop(k["symbol"], 0))
                for k in entry["kernels"]
            ),
            *((name, _found(name, target, index), points) for name, points in launched.items()),
        ],
        "filter": kernel_filter(target, launches(ok)),
    }


def launches(points: Iterable[Point]) -> Counter[str]:
    """At how many points each kernel was launched, torch's own aside."""
    return Counter(
        name
        for point in points
        for name in {k["name"]: None for k in point["kernels"] if not is_torchs(k)}
    )


def _found(kernel: str, target: str, index: Any) -> str | None:
    """Where a kernel is that the code path of its target does not begin with: a header's line, or the file that declares it."""
    for file, functions in ((index or {}).get("functions") or {}).items():
        if line := next((line for line, _, name in functions if name == kernel), None):
            return f"{file}:{line}"
    return known()[target].source.files.get(_plain(kernel)) if target in known() else None


def _plain(kernel: str) -> str:
    """A kernel's name as ncu's option finds it: of the CuTe DSL the class, of cuBLAS's the family."""
    name = kernel.removesuffix(" (CuTe DSL)")
    return "nvjet" if name.startswith("nvjet_") else name


def kernel_filter(target: str, launched: Iterable[str] = ()) -> str | None:
    """ncu's option for the kernels that a target launched and those it declares; None where there is none.

    A name is taken whole, since other kernels' names contain it; of the CuTe DSL and of cuBLAS a part of it is known.
    """
    source = known()[target].source if target in known() else None
    parts = {one: _plain(one) for one in launched if _plain(one) != one}
    whole = [symbol.name for symbol in source.kernels] if source else []
    whole = list(dict.fromkeys([*whole, *(one for one in launched if one not in parts)]))
    files = source.files if source else {}
    within = [
        f"{Path(files[name]).stem}_?{name}" if name in files else name for name in parts.values()
    ]
    found = [f"^({'|'.join(whole)})$"] * bool(whole) + list(dict.fromkeys(within))
    return f'--kernel-name regex:"{"|".join(found)}"' if found else None


def _label(role: str) -> str:
    step, _, rest = role.partition("_")
    return f"{STEPS[step]}, {WORDS.get(rest, rest.replace('_', ' '))}" if rest else STEPS[step]


def generators(index: Any) -> dict[str, str]:
    """Target -> ``jit/attention/modules.py:1000``, where its module is generated, as far as the index says."""
    entries = ((index or {}).get("targets") or {}).items()
    return {
        name: file_and_line(entry["api"]["jit"]) for name, entry in entries if "jit" in entry["api"]
    }


def functions(index: Any) -> set[str]:
    """Names of the C++ functions of the FlashInfer that was measured: a version may lack one; empty without an index."""
    return {name for found in ((index or {}).get("functions") or {}).values() for *_, name in found}


def environment(index: Any) -> list[Context]:
    """Variables that matter to a kernel developer: {name, purpose, place, default}."""
    reads = (index or {}).get("environment") or {}
    return [
        {
            "name": name,
            "purpose": purpose,
            "place": file_and_line(first := min(reads[name], key=_by_relevance)),
            "default": next((r["default"] for r in reads[name] if _says(r, first["file"])), None),
        }
        for name, purpose in PURPOSE.items()
        if reads.get(name)
    ]


def _says(read: Mapping[str, Any], file: str) -> bool:
    """Whether a read in a file states a default as a value: a name in the source is none to a reader."""
    if not read["default"] or read["file"] != file:
        return False
    try:
        ast.literal_eval(read["default"])
    except ValueError:
        return False
    return True


def _by_relevance(read: Mapping[str, Any]) -> tuple[int, str, bool, int]:
    """What builds and decides the JIT comes before tools that only print a variable, and in one file a read that states a
    default before one that only asks whether the variable is set."""
    core = ("jit/cpp_ext", "jit/core", "jit/env", "compilation_context", "api_logging", "norm/")
    rank = next((n for n, name in enumerate(core) if read["file"].startswith(name)), len(core))
    return rank, read["file"], read["default"] is None, read["line"]


def other_variables(index: Any) -> int:
    """How many further variables this FlashInfer reads."""
    return len(set((index or {}).get("environment") or {}) - set(PURPOSE))


def jit(found: Any) -> Context | None:
    """JIT measurements for the guide: rows of latencies, and the cache of the first module."""
    if not found or not found.get("modules"):
        return None
    built = [m for m in found["modules"].values() if m.get("cache")]
    smallest = min(built, key=lambda m: len(m["cache"]), default=None)
    return {
        "rows": found["summary"],
        "method": found.get("method"),
        "cpu_count": found.get("cpu_count"),
        "aot": any(m.get("aot") for m in found["modules"].values()),
        "tree": tree(smallest["cache"]) if smallest else None,
        "flags": _flags(built),
    }


def _flags(built: list[Context]) -> str | None:
    """nvcc flags of the first built module, as its build.ninja has them."""
    for module in built:
        flags = ((module["cold"].get("ninja") or {}).get("flags") or {}).get("cuda_cflags")
        if flags:
            return " ".join(word for word in flags if not word.startswith(("-I", "-isystem", "$")))
    return None


def tree(files: dict[str, int]) -> list[tuple[str, int | None]]:
    """(drawn line, bytes or None for a folder) of a cache, folders before their files."""
    lines: list[tuple[str, int | None]] = []
    seen: set[PurePosixPath] = set()
    for name, size in sorted(files.items()):
        path = PurePosixPath(name)
        for parent in [*reversed(path.parents)][1:]:
            if parent not in seen:
                seen.add(parent)
                lines.append((f"{'  ' * (len(parent.parts) - 1)}{parent.name}/", None))
        lines.append((f"{'  ' * (len(path.parts) - 1)}{path.name}", size))
    return lines[:MOST_TREE_LINES]


TOOLS = {"trace": "timeline", "sweep": "counters", "deep": "deep"}


def commands(root: Path) -> dict[str, str | None]:
    """timeline, counters, deep -> the command line that ran, None where none was recorded."""
    out: dict[str, str | None] = dict.fromkeys(TOOLS.values())
    for tool, name in TOOLS.items():
        records = sorted(root.glob(f"*/*/{tool}.json"))
        first = ordered({path.parts[-3] for path in records})  # of several, as pages are in order
        records.sort(key=lambda path: first.index(path.parts[-3]))
        commands = [command for path in records if (command := _command(path))]
        if commands:
            out[name] = " ".join(_word(word) for word in commands[0])
    return out


def _word(word: str) -> str:
    """A word as a shell takes it; the registry's hundred counters as what prints them."""
    names = set(word.split(","))
    chip = max(CHIPS, key=lambda known: len(names.intersection(counters(known))))
    if len(names) > 1 and len(names.intersection(counters(chip))) > len(names) / 2:
        return f'"$(python -m ncuflow static counters {chip})"'
    return shlex.quote(word)


def _command(path: Path) -> list[str] | None:
    record: Any = read_json(path)
    command = record.get("command")
    return [str(word) for word in command] if command else None
