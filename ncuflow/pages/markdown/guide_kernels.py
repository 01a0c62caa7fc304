"""Launched kernels: template arguments, launch shapes, split-KV, tensor instructions and tails; FlashInfer's source as the guide
cites it, and the commands of the evidence."""

import ast
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ncuflow.findings import limiter
from ncuflow.findings.join import is_merge, is_torchs, main_kernel, ratio, total
from ncuflow.findings.kernelname import COMPILED_FOR, MERGE, Decoder
from ncuflow.format import si
from ncuflow.gpu.table import device
from ncuflow.io import read_json, read_yaml, resource
from ncuflow.model import Kernel, Point, Results, Row
from ncuflow.pages import Context
from ncuflow.pages.series import MMA_FLOP, spread, tensor_kinds, tensor_peak
from ncuflow.parsers.chips import CHIPS
from ncuflow.parsers.registry import counters
from ncuflow.target.contract import Target, known, ordered

MOST_LAUNCHES = 6
MOST_WAITING = 4
SCHEDULERS = 4  # of an SM
LEAST_ALIKE = 3  # rows that two kernels must share for the second to refer to the first
TYPES = ("DType", "IdType", "HEAD_DIM", "head dimension")  # the id of a point says which
THREADS = ("NUM_THREADS", "threads")  # of a block: the table of launches has them
OFF = {"none", "false", "DefaultAttention (all off)"}  # values that say that there is nothing


def parameter_tables(points: list[Point], names: Decoder, own: Collection[str]) -> list[Context]:
    """A table per kernel: {kernel, instances (how many), example (points), rows (parameter, values, meaning), alike, of}.

    An instance is one set of template arguments, and a parameter's values are those of all that were launched. A mangled
    name has no parameter to read, and no rows. Kernels of FlashInfer, and those of the target's ``own``.
    """
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for point in points:
        for kernel in point["kernels"]:
            demangled = kernel["demangled"] or ""
            decoded = names.decode(demangled)
            if "flashinfer" in demangled or decoded.name in own:
                values = tuple(a.value for a in decoded.arguments)
                found.setdefault(decoded.name, {}).setdefault(values, decoded)
    tables = [_table(name, list(instances.values())) for name, instances in found.items()]
    return [_shortened(table, tables[:at]) for at, table in enumerate(tables)]


def _shortened(table: Context, before: list[Context]) -> Context:
    """A table without the rows of the table above that it is most like: ``alike`` are their parameters, ``of`` that kernel."""
    rows = table["rows"]
    shared = [(sum(row in rows for row in above["rows"]), above) for above in before]
    most, above = max(shared, key=lambda one: one[0], default=(0, None))
    if above is None or most < LEAST_ALIKE:
        return table | {"alike": [], "of": None}
    return table | {
        "rows": [row for row in rows if row not in above["rows"]],
        "alike": [row[0] for row in rows if row in above["rows"]],
        "of": above["kernel"],
    }


def _table(name: str, instances: list[Any]) -> Context:
    values: dict[str, dict[str, None]] = {}
    meanings: dict[str, str | None] = {}
    for decoded in instances:
        for argument in (*decoded.arguments, *decoded.derived):
            if not argument.parameter.startswith((COMPILED_FOR, *TYPES, *THREADS)):
                values.setdefault(argument.parameter, {})[argument.value] = None
                meanings.setdefault(argument.parameter, argument.meaning)
    off = [parameter for parameter, of in values.items() if OFF.issuperset(of)]
    rows = [(name, list(of), meanings[name]) for name, of in values.items() if name not in off]
    return {"kernel": name, "instances": len(instances), "rows": _paired(rows), "off": off}


ParameterRow = tuple[str, list[str], str | None]


def _paired(rows: list[ParameterRow]) -> list[ParameterRow]:
    """Rows with those of a kernel's two parts, ``X_P`` of prefill and ``X_D`` of decode, as one."""
    of = {name: values for name, values, _ in rows}
    both = {name[:-2] for name in of if {name[:-2] + "_P", name[:-2] + "_D"} <= of.keys()}
    return [
        (f"{name[:-2]} (P, D)", [*values, *of[name[:-2] + "_D"]], meaning)
        if name[:-2] in both
        else (name, values, meaning)
        for name, values, meaning in rows
        if name[:-2] not in both or name.endswith("_P")
    ]


def launches(points: list[Point], gpu: str) -> list[Context]:
    """Launch shapes of the main kernels, one per distinct (kernel, block, registers, shared memory).

    Each: {point, kernel, grid, block, registers, smem, theoretical, achieved, limits}. A launch is given as much shared memory as
    the blocks need that its other resources let onto an SM: it limits them where the whole of it holds no more.
    """
    found: dict[tuple[Any, ...], Context] = {}
    for point in points:
        kernel = main_kernel(point["kernels"])
        if kernel is None:
            continue
        smem = (kernel["smem_static_bytes"] or 0) + (kernel["smem_dynamic_bytes"] or 0)
        key = (kernel["name"], kernel["block"], kernel["registers"], smem)
        metrics = kernel["metrics"]
        limit = limiter.occupancy_limit(metrics)
        row = {
            "point": point["point"],
            "kernel": kernel["name"],
            "grid": kernel["grid"],
            "block": kernel["block"],
            "registers": kernel["registers"],
            "smem": smem,
            "theoretical": metrics.get("theoretical_occupancy_pct"),
            "achieved": metrics.get("achieved_occupancy_pct"),
            "limits": _limits(kernel, limit, gpu) if limit else (),
        }
        found.setdefault(key, row)
    return list(found.values())[:MOST_LAUNCHES]


def waiting(results: Results) -> Context:
    """Why kernels of tensor instructions are latency-bound: {points: how many such points, rows: one of each kernel and launch
    shape, that of the deep profile or the longest}.

    Each row: {point, kernel, warps, eligible (of a scheduler), every, takes (cycles of a scheduler for MMA_FLOP, as they came and
    as the pipe takes them), limit (of blocks on an SM), further (what one block more needs, in words)}.
    """
    held: dict[tuple[Any, ...], list[tuple[Point, Kernel]]] = {}
    for point in results["points"]:
        row, main = point["measurement"], main_kernel(point["kernels"])
        if row["limiter"] == "latency" and main and (main["metrics"].get("tensor_flops") or 0) > 0:
            key = (main["name"], main["block"], main["registers"], row["smem_bytes"])
            held.setdefault(key, []).append((point, main))
    deep = {kernel["point"] for kernel in results["deep"]}
    shown = [
        max(of, key=lambda one: (one[0]["point"] in deep, one[1]["duration_ns"] or 0))
        for of in held.values()
    ]
    gpu = results["provenance"].get("gpu") or ""
    return {
        "points": sum(map(len, held.values())),
        "rows": [_waiting(point, main, gpu) for point, main in shown[:MOST_WAITING]],
    }


def _waiting(point: Point, main: Kernel, gpu: str) -> Context:
    of = main["metrics"].get
    cycles = SCHEDULERS * (of("sm_count") or 0) * (of("sm_cycles_active") or 0)
    limit = limiter.occupancy_limit(main["metrics"])
    return {
        "point": point["point"],
        "kernel": main["name"],
        "warps": of("warps_active_per_scheduler"),
        "eligible": of("warps_eligible"),
        "every": ratio(cycles or None, of("tensor_flops"), MMA_FLOP),
        "takes": ratio(MMA_FLOP * SCHEDULERS, tensor_peak([main])),
        "limit": limit,
        "further": _further(main, limit, gpu) if limit else None,
        "stall": point["measurement"]["top_stall"],
    }


def _launch(kernel: Kernel) -> tuple[int, int, int]:
    """Threads of a block, registers of a thread, bytes of shared memory."""
    shared = (kernel["smem_static_bytes"] or 0) + (kernel["smem_dynamic_bytes"] or 0)
    return kernel["block_size"] or 0, kernel["registers"] or 0, shared


def _fits(gpu: str) -> Callable[[int, int, int], Mapping[str, int]] | None:
    """How many blocks of a launch an SM holds by each resource; None of a GPU whose rules are not known."""
    try:
        return device(gpu).fits
    except ValueError:
        return None


def _limits(kernel: Kernel, limit: limiter.OccupancyLimit, gpu: str) -> tuple[str, ...]:
    """What lets no more blocks onto an SM."""
    holds = _fits(gpu)
    now = holds(*_launch(kernel)) if holds else {}
    own = tuple(name for name in limit.resources if now.get(name, 0) <= limit.blocks)
    return own or limit.resources


def _further(main: Kernel, limit: limiter.OccupancyLimit, gpu: str) -> str | None:
    """What of its launch one block more on an SM needs otherwise; None where the GPU's rules do not say what it holds now."""
    (threads, registers, shared), holds = _launch(main), _fits(gpu)
    if holds is None:
        return None
    more, now = limit.blocks + 1, holds(threads, registers, shared)
    if min(now.values()) != limit.blocks:
        return None
    fewer = next(
        (r for r in range(registers, 0, -1) if holds(threads, r, shared)["registers"] >= more), 0
    )
    less = next(
        (
            s
            for s in range(shared - shared % 128, -1, -128)
            if holds(threads, 1, s)["shared memory"] >= more
        ),
        0,
    )
    needs = {
        "registers": f"registers {registers} → {fewer}",
        "shared memory": f"shared memory {si(shared, 'B')} → {si(less, 'B')}",
    }
    said = [needs.get(name, f"more {name}") for name, n in now.items() if n < more]
    places = limit.blocks * (main["metrics"].get("sm_count") or 0)
    if (main["grid_size"] or 0) <= places:  # every block of the grid has its place already
        said.append("more blocks")
    return ", ".join(said)


def calls(points: Sequence[Point]) -> Context | None:
    """All kernels of the call that launches most of them, of several where those beside the main one take most: {point, rows:
    {kernel, share, limited}}."""
    many = [p for p in points if len(p["kernels"]) > 1 and p["measurement"]["time_ncu_us"]]
    if not many:
        return None
    point = max(many, key=lambda p: (len(p["kernels"]), -(p["measurement"]["main_pct"] or 100)))
    spent = total(kernel["duration_ns"] for kernel in point["kernels"])
    return {
        "point": point["point"],
        "rows": [
            {
                "kernel": kernel["name"],
                "share": ratio(kernel["duration_ns"], spent),
                "limited": limiter.words(_judged(kernel)),
            }
            for kernel in point["kernels"]
        ],
    }


def _judged(kernel: Kernel) -> Row:
    found = limiter.judge(kernel["breakdown"], kernel["metrics"], kernel["grid_size"])
    return limiter.columns(found, kernel["metrics"].get("waves"))


MOST_SPLIT = 6


def split_rows(
    target: Target, points: list[Point], sm_count: int | None, names: Decoder
) -> list[Context]:
    """One row per point of an attention sweep that a splitting scheduler planned.

    launched: blocks per sequence, query tile and KV head (1: not split); rule: chunks predicted,
    None where a CUDA graph pads the split grid; merge_us and merge_share: of the merge kernel.
    """
    found = [row for point in points if (row := _split(target, point, sm_count, names))]
    return spread(found, MOST_SPLIT)


def _split(target: Target, point: Point, sm_count: int | None, names: Decoder) -> Context | None:
    merge = [k for k in point["kernels"] if k["name"].startswith(MERGE)]
    main = main_kernel([k for k in point["kernels"] if not k["name"].startswith(MERGE)])
    if main is None or sm_count is None or not main["grid_size"]:
        return None
    decoded = names.decode(main["demangled"] or main["name"])
    split = target.rules.splits(target.completed(point["params"]), decoded.name, decoded.value)
    limit = limiter.occupancy_limit(main["metrics"])
    fits = limit.blocks if limit else None
    if split is None or not (sm_blocks := split.sm_blocks or fits):
        return None
    slots = sm_blocks * sm_count
    padded = split.padded and split.blocks < slots
    merge_ns = sum(k["duration_ns"] or 0 for k in merge) if merge else None
    return {
        "point": point["point"],
        "params": point["params"],
        "kernel": main["name"],
        "grid": main["grid_size"],
        "slots": slots,
        "launched": main["grid_size"] / split.blocks,
        "rule": None if padded else split.chunks(slots),
        "padded": padded,
        "plan": point["info"],
        "merge_us": merge_ns / 1e3 if merge_ns is not None else None,
        "merge_share": ratio(merge_ns, total((merge_ns, main["duration_ns"]))),
    }


def instructions(results: Results) -> list[Context]:
    """A row per tensor instruction, the slowest first: {name, kernels, peak, points, reached, at}.

    name: of its SASS, None where no deep profile has it; peak: FLOP per clock and SM; reached: the highest rate in
    TFLOPS that was counted of it, at that point.
    """
    kinds = tensor_kinds([results])
    found: dict[str, list[Point]] = {}
    for point in results["points"]:
        if point["status"] == "ok" and point["point"] in kinds:
            found.setdefault(kinds[point["point"]], []).append(point)
    rows = [_instruction(name, points) for name, points in found.items()]
    return sorted(rows, key=lambda row: row["peak"])


def _instruction(name: str, points: list[Point]) -> Context:
    best = max(points, key=lambda p: p["measurement"]["tensor_tflops_counted"] or 0)
    peaks = [peak for p in points if (peak := tensor_peak(p["kernels"]))]
    return {
        "name": name if name.isupper() else None,  # else no deep profile has its opcode
        "kernels": sorted({k["name"] for p in points for k in p["kernels"] if not is_merge(k)}),
        "peak": max(peaks),
        "points": len(points),
        "reached": best["measurement"]["tensor_tflops_counted"],
        "at": best["point"],
    }


def tails(points: Sequence[Point], axis: str) -> list[Context]:
    """Launch and tail along the axis: {label, values: [(value, per cent of the time)]} of lines under a causal mask.

    A line per backend that ran, the longest; a point whose merge takes longer than its attention is left out.
    """
    causal = [p for p in points if p["params"].get("causal") and not _merges(p)]
    if len({_ran(p) for p in causal}) < 2:
        return []
    longest: dict[str, list[Point]] = {}
    for line in limiter.lines_along(causal, axis):
        backends = {_ran(p) for p in line}
        if len(line) >= limiter.FEWEST_JUDGED and len(backends) == 1:
            longest.setdefault(backends.pop(), line)
    return [
        {"label": backend, "values": [_tail(p, axis) for p in longest[backend]]}
        for backend in sorted(longest)
    ]


def _ran(point: Point) -> str:
    """The backend of a point, of ``auto`` what FlashInfer chose."""
    return str(point["info"].get("backend") or point["params"].get("backend"))


def _merges(point: Point) -> bool:
    return point["measurement"]["tail_pct"] is None or any(map(is_merge, point["kernels"]))


def _tail(point: Point, axis: str) -> tuple[Any, float]:
    return point["params"][axis], float(point["measurement"]["tail_pct"])


# --- FlashInfer's source, by the index recorded with the evidence; the commands of that evidence ------

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
    launched = launch_counts(ok)
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
        "filter": kernel_filter(target, launch_counts(ok)),
    }


def launch_counts(points: Iterable[Point]) -> Counter[str]:
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
