"""A sweep of what somebody runs: FlashInfer's benchmark lists, trace workloads, and what a server called.

    ncuflow workload FILE… --name mine --out mine.json       then: snakemake --configfile mine.json -- all

FILE is one of:
  a test list of FlashInfer's benchmarks    one command line per case (--routine …)
  a workload file of FlashInfer-Trace       JSON lines of {"definition", "workload": {"uuid", "axes", "inputs"}}
  a folder that FLASHINFER_TRACE_DUMP=1 left, or a definition of it

What no target measures is refused by name, on stderr, as is a file of a folder that is no definition, such as one that
a killed server left half-written; what is left is written. Exit status 2 where nothing is. The same case twice is one.
A file holds at most 64 MB, a line 16 384 characters, and all files together 10 000 different cases.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NoReturn

from ncuflow.io import BadInput, UsageError, clean, sniff, write_json
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import load

Block = dict[str, Any]
Case = tuple[str, Block, str]  # target, a block of one point, and its id
DTYPES = {"float16": "f16", "bfloat16": "bf16"}
# Axes of a definition that stay the same from call to call, as the names of definitions abbreviate them.
CONSTANTS = {"num_qo_heads": "h", "num_kv_heads": "kv", "head_dim": "d", "page_size": "ps"}
CONSTANTS |= {"hidden_size": "h", "vocab_size": "v"}
HEADS = {"h": "qo_heads", "kv": "kv_heads", "d": "head_dim"}
PUBLISHED = "bfloat16"  # the type of the definitions that are published, which do not say it
QUOTED = re.compile(r"[\"'\\#]")  # what makes more of a line than its words
LONGEST_NAME = 250
LONGEST_LINE = 1 << 14  # characters; a case of a test list has some hundred
MOST_BYTES = 64_000_000
MOST_CASES = 10_000  # that differ: to capture so many takes a night
GATED = {"silu_and_mul": "silu", "gelu_and_mul": "gelu", "gelu_tanh_and_mul": "gelu_tanh"}
QUANTILES = 16  # of the random lengths of a benchmark: as many as an id can name
NORMS = (
    "rmsnorm",
    "fused_add_rmsnorm",
    "gemma_rmsnorm",
    "gemma_fused_add_rmsnorm",
    "rmsnorm_quant",
)
SAMPLERS = {
    "sampling_from_logits": "from_logits",
    "sampling_from_probs": "from_probs",
    "top_k_sampling_from_probs": "top_k",
    "top_p_sampling_from_probs": "top_p",
    "min_p_sampling_from_probs": "min_p",
    "top_k_top_p_sampling_from_probs": "top_k_top_p",
    "top_k_renorm_probs": "top_k_renorm",
    "top_p_renorm_probs": "top_p_renorm",
    "softmax": "softmax",
    "top_k": "select",
}
DEFINED_ROPES = {
    "rope": "rope",
    "rope_pos_ids": "rope_pos_ids",
    "rope_cos_sin_cache": "cos_sin_cache",
    "llama31_rope": "llama31",
    "llama31_rope_pos_ids": "llama31_pos_ids",
}
ROPES = {
    "apply_rope": "rope",
    "apply_rope_pos_ids": "rope_pos_ids",
    "apply_rope_with_cos_sin_cache": "cos_sin_cache",
    "apply_llama31_rope": "llama31",
    "apply_llama31_rope_pos_ids": "llama31_pos_ids",
}


class RefusedError(ValueError):
    """Why a case cannot be measured."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--name", default="mine", help="of the sweep")
    parser.add_argument("--out", type=Path, required=True, help="a configuration with that sweep")


def run(args: argparse.Namespace) -> None:
    """Raises BadInput for a file that is none of the kinds, or holds nothing that can be measured."""
    if not re.fullmatch(r"\w+", args.name):
        raise UsageError(f"--name {args.name!r} is not a word")
    blocks, refused, count = read(args.files)
    for line in refused:
        print(f"refused: {line}", file=sys.stderr)
    if not blocks:
        raise BadInput(args.files[0], "holds no case that can be measured")
    write_json(args.out, {"sweep": args.name, "sweeps": {args.name: blocks}})
    print(f"{args.out}: {count} points of {', '.join(blocks)}; {len(refused)} refused")


def read(files: list[Path]) -> tuple[dict[str, list[Block]], list[str], int]:
    """(sweep by target, a line for each refused case, points) of all files. Raises BadInput for more than MOST_CASES."""
    blocks: dict[str, list[Block]] = {}
    points: set[str] = set()
    refused = []
    for number, made in enumerate(cases(files)):
        if number == MOST_CASES:
            raise BadInput(files[0], f"more than {MOST_CASES} different cases in all")
        try:
            target, block, point = made()
        except ValueError as error:
            refused.append(str(error))
            continue
        if point not in points:
            points.add(point)
            blocks.setdefault(target, []).append(block)
    return blocks, refused, len(points)


def cases(files: list[Path]) -> Iterator[Callable[[], Case]]:
    """What each case of the files asks for; calling one raises RefusedError where no target measures it."""
    definitions = []
    for path in files:
        if path.is_dir():
            for one in _definitions(path):
                try:
                    definitions.append(_definition_of(one))
                except BadInput as error:
                    yield partial(_refuse, str(error))
        elif path.suffix == ".json":
            definitions.append(_definition_of(path))
        else:
            yield from _cases_of_lines(path)
    for name, given in _planned(definitions):
        yield _named(name, _of_definition, given)


def _definitions(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.json"))
    if not found:
        raise BadInput(folder, "a folder without a definition (*.json)")
    if len(found) > MOST_CASES:
        raise BadInput(folder, f"{len(found)} definitions, of at most {MOST_CASES}")
    return found


def _cases_of_lines(path: Path) -> Iterator[Callable[[], Case]]:
    """The cases of a file, each that differs from those before it."""
    seen: set[Any] = set()
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if len(text) > LONGEST_LINE:
            what = (
                f"line {number} has {len(text)} characters, more than a case has ({LONGEST_LINE})"
            )
            raise BadInput(path, what)
        if text.startswith("{"):
            name, axes, source = _workload(path, number, text)
            if _is_new((name, json.dumps([axes, source], sort_keys=True)), seen):
                given = {
                    "sizes": _parts(name)[1],
                    "dtype": PUBLISHED,
                    "indptr": _indptr(path, source),
                }
                yield _named(name, _of_definition, axes | given)
        elif text.startswith("--"):
            if _is_new(text, seen):
                options = _options(path, number, text)
                what = f"{path.name} line {number}, {options['routine']}"
                yield _named(what, _of_routine, options)
        else:
            raise BadInput(path, f"line {number} is neither a case of a test list nor a workload")


def _is_new(case: Any, seen: set[Any]) -> bool:
    new = case not in seen
    seen.add(case)
    return new


def _lines(path: Path) -> list[str]:
    sniff(path)  # refuses what is no file, such as a pipe, which would be waited for
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise BadInput(path, f"{size / 1e6:.0f} MB, of at most {MOST_BYTES / 1e6:.0f}")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [clean(line) for line in text.splitlines()]


def _named(
    name: str, read: Callable[[str, Mapping[str, Any]], tuple[str, Block]], given: Mapping[str, Any]
) -> Callable[[], Case]:
    def made() -> Case:
        try:
            target, block = read(name, given)
            (point,) = sweep.points(load(target), [block])
        except ValueError as error:
            _refuse(f"{name}: {error}")
        return target, block, point.id

    return made


def _refuse(why: str) -> NoReturn:
    raise RefusedError(re.sub(r"\s", " ", clean(why))) from None  # what JSON escapes is among it


# --- a benchmark's command line ----------------------------------------------------------------


def _options(path: Path, number: int, line: str) -> dict[str, Any]:
    """{"routine": …, option: its words} of a command line."""
    try:
        words = shlex.split(line, comments=True) if QUOTED.search(line) else line.split()
    except ValueError as error:
        raise BadInput(path, f"line {number}: {error}") from None
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.match(r"-{1,2}[a-z]", word):
            name = word.lstrip("-").replace("-", "_")
            found[name] = []
        else:
            found.setdefault(name, []).append(word)
    if not found.get("routine"):
        raise BadInput(path, f"line {number} names no --routine")
    return found | {"routine": found["routine"][0]}


def _of_routine(name: str, options: Mapping[str, Any]) -> tuple[str, Block]:
    routine = options["routine"]
    if routine == "BatchDecodeWithPagedKVCacheWrapper":
        _only(options, s_qo=1)
        return "decode", _attention(options, "kv_len", "s_kv") | _decode_backend(options)
    if routine.startswith("BatchPrefillWith"):
        if _number(options, "s_qo") != _number(options, "s_kv"):
            raise RefusedError("queries and keys of different lengths are measured by no target")
        block = _attention(options, "seq_len", "s_kv") | {"causal": "causal" in options}
        block["layout"] = "paged" if "Paged" in routine else "ragged"
        return "prefill", block | {"backend": _first(options, ("fa2", "fa3", "auto"))}
    if routine == "BatchMLAPagedAttentionWrapper":
        _only(options, s_qo=1, head_dim_ckv=512, head_dim_kpe=64)
        block = {"heads": _number(options, "num_qo_heads"), **_shape(options, "kv_len", "s_kv")}
        return "mla_decode", block | {"backend": _first(options, ("fa2", "fa3", "auto"))}
    if routine in NORMS:
        rows = _number(options, "batch_size") * _number(options, "num_heads", 1)
        block = {"variant": routine, "rows": rows, "hidden": _number(options, "hidden_size")}
        return "rmsnorm", block | {"dtype": _dtype(options, "input_dtype")}
    if routine in SAMPLERS:
        block = {"batch": _number(options, "batch_size"), "vocab": _number(options, "vocab_size")}
        return "sampling", {"variant": SAMPLERS[routine], **block, **_limits(options)}
    if routine.removesuffix("_inplace") in ROPES:
        batch = _number(options, "batch_size")
        return "rope", {
            "variant": ROPES[routine.removesuffix("_inplace")],
            "inplace": routine.endswith("_inplace"),
            "tokens": batch * _number(options, "seq_len"),
            "batch": batch,
            **_heads_of(options),
            "head_dim": _number(options, "head_dim"),
            "dtype": _dtype(options, "input_dtype"),
            "style": "interleaved" if "interleave" in options else "neox",
        }
    if routine == "chunk_gated_delta_rule":
        _only(options, head_size=128, num_k_heads=_number(options, "num_q_heads"))
        heads = {
            "q_heads": _number(options, "num_q_heads"),
            "v_heads": _number(options, "num_v_heads"),
        }
        return "gdn_prefill", {
            "batch": _number(options, "batch_size"), "seq_len": _number(options, "s_qo"), **heads,
        }  # fmt: skip
    raise RefusedError("no target measures this routine")


def _attention(options: Mapping[str, Any], mean: str, given: str) -> Block:
    if _number(options, "head_dim_qk") != _number(options, "head_dim_vo"):
        raise RefusedError("heads of keys and values of different sizes are measured by no target")
    return {
        **_heads_of(options),
        "head_dim": _number(options, "head_dim_qk"),
        **_shape(options, mean, given),
    }


def _heads_of(options: Mapping[str, Any]) -> Block:
    return {ours: _number(options, f"num_{ours}") for ours in ("qo_heads", "kv_heads")}


def _shape(options: Mapping[str, Any], mean: str, given: str) -> Block:
    """Batch, lengths, pages and type that attention's routines have in common."""
    if options.get("kv_dtype", options.get("q_dtype")) != options.get("q_dtype"):
        raise RefusedError("keys of another type than the queries are measured by no target")
    block: Block = {"batch": _number(options, "batch_size"), mean: _number(options, given)}
    if "random_actual_seq_len" in options:
        block["lengths"] = _uniform(block["batch"], block[mean])
    if "page_size" in options:
        block["page_size"] = _number(options, "page_size")
    return block | {"dtype": _dtype(options, "q_dtype")}


def _decode_backend(options: Mapping[str, Any]) -> Block:
    chosen = _first(options, ("fa2", "fa2_tc", "fa3", "auto"))
    if chosen == "fa2":
        return {"cores": "cuda"}
    return {"cores": "tensor", "backend": {"fa2_tc": "fa2"}.get(chosen, chosen)}


def _limits(options: Mapping[str, Any]) -> Block:
    percent = options.get("top_p") or options.get("min_p")
    found = {"percent": round(float(percent[0]) * 100)} if percent else {}
    return found | ({"top_k": _number(options, "top_k")} if "top_k" in options else {})


def _number(options: Mapping[str, Any], name: str, default: int | None = None) -> int:
    words = options.get(name)
    if not words and default is not None:
        return default
    if words and len(words) > 1:
        raise RefusedError(f"--{name} has {len(words)} values")
    # Python refuses to read a number of thousands of digits.
    if not words or not str(words[0]).isdecimal() or len(words[0]) > len(str(sweep.MOST)):
        raise RefusedError(
            f"--{name} is missing" if not words else f"--{name} {words[0]} is no number"
        )
    return int(words[0])


def _only(options: Mapping[str, Any], **wanted: int) -> None:
    for name, value in wanted.items():
        if _number(options, name, value) != value:
            raise RefusedError(f"--{name} {options[name][0]}: only {value} is measured")


def _dtype(options: Mapping[str, Any], name: str) -> str:
    given = (options.get(name) or ["bfloat16"])[0]
    if given not in DTYPES:
        raise RefusedError(f"--{name} {given} is measured by no target")
    return DTYPES[given]


def _first(options: Mapping[str, Any], known: tuple[str, ...]) -> str:
    """The first of the backends that a target has; FlashInfer's own choice where none is named."""
    given: list[str] = options.get("backends") or ["auto"]
    found = [name for name in given if name in known]
    if not found:
        raise RefusedError(f"backends {', '.join(given)} are measured by no target")
    return found[0]


def _uniform(batch: int, longest: int) -> str:
    """The benchmark's random lengths, uniform up to ``longest``: their quantiles, as a list."""
    groups = min(batch, QUANTILES)
    sizes = [batch // groups + (i < batch % groups) for i in range(groups)]
    return "_".join(
        f"{size}x{max(1, round(longest * (groups - i) / groups))}" for i, size in enumerate(sizes)
    )


# --- FlashInfer-Trace --------------------------------------------------------------------------


def _workload(path: Path, number: int, line: str) -> tuple[str, dict[str, Any], Any]:
    """(definition, axes, what says where each sequence's pages begin) of a line."""
    try:
        found = json.loads(line)
        workload = found["workload"]
        name, axes, inputs = found["definition"], workload["axes"], workload.get("inputs") or {}
        whole = all(type(value) is int and value > 0 for value in axes.values())
        source = inputs.get("kv_indptr")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(path, f"line {number} is no workload: definition, workload, axes") from None
    if not whole:
        raise BadInput(path, f"line {number}: an axis that is no number from 1")
    if not _is_name(name):
        raise BadInput(path, f"line {number}: a definition without a name")
    return name, axes, source


def _is_name(found: Any) -> bool:
    """Whether this is the name of a definition, which is that of a file."""
    return isinstance(found, str) and len(found) <= LONGEST_NAME


def _indptr(path: Path, source: Any) -> list[int] | None:
    """Where each sequence's pages begin, from the safetensors file that an input names; None without it."""
    if not isinstance(source, dict) or source.get("type") != "safetensors":
        return None
    folder = next(
        (f for f in path.absolute().parents if (f / str(source.get("path"))).is_file()), None
    )
    if folder is None:
        return None
    file = folder / source["path"]
    data = file.read_bytes()
    try:
        (size,) = struct.unpack("<Q", data[:8])
        tensor = json.loads(data[8 : 8 + size])[source["tensor_key"]]
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        kind = {"I32": "i", "I64": "q"}[tensor["dtype"]]
        values = [one for (one,) in struct.iter_unpack(f"<{kind}", data[begin:end])]
    except (ValueError, KeyError, TypeError, RecursionError, struct.error):
        raise BadInput(file, "not the indices of a workload") from None
    if len(values) < 2 or values[0] != 0 or any(b < a for a, b in pairwise(values)):
        raise BadInput(file, "indices that do not begin at 0 or that fall")
    return values


def _definition_of(path: Path) -> tuple[str, dict[str, Any]]:
    """(name, {"sizes": constant axes, "dtype": type of the first tensor}) of a definition."""
    try:
        found = json.loads("\n".join(_lines(path)))
        axes, inputs = found.get("axes") or {}, (found.get("inputs") or {}).values()
        values = {axis: one.get("value") for axis, one in axes.items()}
        dtypes = [str(one["dtype"]) for one in inputs if one.get("shape")]
        name = found["name"]
        if not _is_name(name):
            raise ValueError(name)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(path, "no definition: a JSON object with a name") from None
    sizes = {CONSTANTS[a]: v for a, v in values.items() if a in CONSTANTS and type(v) is int}
    return name, {
        "sizes": _parts(name)[1] | sizes,
        "dtype": dtypes[0] if dtypes else PUBLISHED,
    }


def _planned(found: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls among the definitions of a folder, each with what the definition of its plan() alone tells: the cache's
    heads and pages. A call that was planned in several ways is as many cases."""
    plans: dict[str, list[dict[str, int]]] = {}
    for name, given in found:
        plans.setdefault(_parts(name)[0], []).append(given["sizes"])
    for name, given in found:
        kind, own = _parts(name)[0], given["sizes"]
        if kind.endswith("_plan"):
            continue
        of_it = [
            sizes
            for sizes in plans.get(f"{kind}_plan", [])
            if all(sizes.get(k, v) == v for k, v in own.items())
        ]
        for sizes in of_it or [{}]:
            yield name, given | {"sizes": {**sizes, **own}}


def _of_definition(name: str, axes: Mapping[str, Any]) -> tuple[str, Block]:
    """The target and the point of a definition, by its name, such as gqa_paged_decode_h32_kv8_d128_ps1."""
    kind, sizes = _parts(name)[0], axes["sizes"]
    indptr = axes.get("indptr")
    if kind == "gqa_paged_decode":
        block = {**_sized(sizes, HEADS), "cores": "tensor", "dtype": _element(axes)}
        return "decode", block | _pages(axes, sizes, indptr, "kv_len")
    if kind == "mla_paged_decode":
        if (sizes.get("ckv", 512), sizes.get("kpe", 64)) != (512, 64):
            raise RefusedError("only heads of 512 and 64 are measured")
        block = {**_sized(sizes, {"h": "heads"}), "dtype": _element(axes)}
        return "mla_decode", block | _pages(axes, sizes, indptr, "kv_len")
    if kind.startswith(("gqa_paged_prefill", "gqa_ragged")):
        block = {
            **_sized(sizes, HEADS),
            "layout": kind.split("_")[1],
            "backend": "auto",
            "dtype": _element(axes),
        }
        block["causal"] = "prefill" not in kind or "causal" in kind or kind == "gqa_paged_prefill"
        return "prefill", block | _prefill(axes, sizes, indptr)
    if kind in NORMS and "h" in sizes:
        rows = {"rows": axes["batch_size"]} if "batch_size" in axes else {}
        return "rmsnorm", {"variant": kind, "hidden": sizes["h"], "dtype": _element(axes), **rows}
    if kind in GATED and "h" in sizes:  # its input holds both halves
        rows = {"tokens": axes["num_tokens"]} if "num_tokens" in axes else {}
        return "activation", {
            "variant": GATED[kind],
            "hidden": sizes["h"] // 2,
            "dtype": _element(axes),
            **rows,
        }
    if (rope := kind.removesuffix("_inplace")) in DEFINED_ROPES and {"q", "k", "d"} <= sizes.keys():
        heads = {"qo_heads": sizes["q"], "kv_heads": sizes["k"], "head_dim": sizes["d"]}
        rows = {"tokens": axes["nnz"]} if "nnz" in axes else {}
        block = {"variant": DEFINED_ROPES[rope], "inplace": rope != kind, "dtype": _element(axes)}
        return "rope", block | heads | rows
    sampler = SAMPLERS.get(kind) or SAMPLERS.get(f"{kind}_from_probs")
    if sampler and ("v" in sizes or "batch_size" in axes):
        vocab = {"vocab": sizes["v"]} if "v" in sizes else {}
        batch = {"batch": axes["batch_size"]} if "batch_size" in axes else {}
        return "sampling", {"variant": sampler, **vocab, **batch}
    if kind.startswith("gemm"):
        raise RefusedError("no target measures this definition")
    counts = {"tokens": ("num_tokens", "nnz", "M", "seq_len"), "batch": ("batch_size",)}
    given = {k: axes[a] for k, names in counts.items() for a in names if a in axes}
    return "apis", {"api": kind, **given}


def _element(given: Mapping[str, Any]) -> str:
    """The type of the elements. Raises RefusedError for one that no target has."""
    found = given["dtype"]
    if found not in DTYPES:
        raise RefusedError(f"of {found}, which no target measures")
    return DTYPES[found]


def _parts(name: str) -> tuple[str, dict[str, int]]:
    """("gqa_paged_decode", {"h": 32, "kv": 8}) of gqa_paged_decode_h32_kv8."""
    sizes = {}
    while match := re.fullmatch(r"(\w+?)_([a-z]+)(\d+)", name):
        name, sizes[match[2]] = match[1], int(match[3])
    return name, sizes


def _sized(sizes: Mapping[str, int], names: Mapping[str, str]) -> Block:
    """The parameters that are never a target's default here. Raises RefusedError for one that a definition leaves open."""
    if lacking := [ours for theirs, ours in names.items() if theirs not in sizes]:
        what = f"it does not say its {', '.join(lacking)}"
        raise RefusedError(f"{what}, and no definition of its plan() does")
    return {ours: sizes[theirs] for theirs, ours in names.items()}


def _pages(
    axes: Mapping[str, Any], sizes: Mapping[str, int], indptr: list[int] | None, mean: str
) -> Block:
    """Batch and lengths of a paged cache: each sequence's own where its indices are known, else the mean."""
    page = sizes.get("ps", 1)
    if indptr is not None:
        lengths = [max(1, (b - a) * page) for a, b in pairwise(indptr)]
        return {"batch": len(lengths), "lengths": _listed(lengths), "page_size": page}
    found: Block = {"page_size": page}
    if "batch_size" in axes:
        found["batch"] = axes["batch_size"]
        if "num_kv_indices" in axes:
            found[mean] = max(1, round(axes["num_kv_indices"] * page / axes["batch_size"]))
    return found


def _listed(lengths: list[int]) -> str:
    """The lengths as a list that an id can hold: neighbours are averaged where there are too many."""
    ordered = sorted(lengths, reverse=True)
    if len(set(ordered)) > QUANTILES:
        bounds = [len(ordered) * i // QUANTILES for i in range(QUANTILES + 1)]
        parts = [ordered[a:b] for a, b in pairwise(bounds) if b > a]
        ordered = [round(sum(part) / len(part)) for part in parts for _ in part]
    return "_".join(f"{len(list(same))}x{length}" for length, same in groupby(ordered))


def _prefill(axes: Mapping[str, Any], sizes: Mapping[str, int], indptr: list[int] | None) -> Block:
    page = sizes.get("ps", 1)
    found: Block = {"page_size": page} if "ps" in sizes else {}
    if "total_q" not in axes or "len_indptr" not in axes:
        return found
    batch, keys = (
        axes["len_indptr"] - 1,
        axes.get("total_kv") or axes.get("num_kv_indices", 0) * page,
    )
    if abs(keys - axes["total_q"]) > page * max(batch, 1):
        raise RefusedError("its keys are more than its queries, which no target measures")
    if indptr is not None:
        return found | _pages(axes, sizes, indptr, "seq_len")
    return found | {
        "batch": max(batch, 1),
        "seq_len": max(1, round(axes["total_q"] / max(batch, 1))),
    }
