"""Kernel targets: what they declare, the work they count, and their float32 references."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from conftest import ROOT, Finished, run_python, some
from flashinfer_source import made_package
from results_data import PROVENANCE, entry, kernel
from results_data import results as made_results

from ncuflow.cli import dispatch
from ncuflow.evidence.points import NO_KERNEL
from ncuflow.expression import evaluate, names, placeholders
from ncuflow.findings.jit import summary
from ncuflow.findings.kernelname import Decoder
from ncuflow.findings.scope import Scope, possible_names
from ncuflow.io import write_json
from ncuflow.pages.markdown import guide as guide_pages
from ncuflow.pages.markdown.guide_kernels import parameter_tables
from ncuflow.pages.markdown.pages import Findings, render
from ncuflow.source import Package
from ncuflow.source import index as source_index
from ncuflow.sweep import points as sweep
from ncuflow.target import reference
from ncuflow.target.attention import plan_info
from ncuflow.target.contract import FOLDERS, Target, jit_modules, known, load
from ncuflow.target.launch import NotHereError, Rules
from ncuflow.target.source import Build, Source
from ncuflow.target.workload import Workload

NAMES = list(known())
H200 = {"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 150_754_820_096}
A100 = {"name": "NVIDIA A100", "compute_capability": "8.0", "memory_bytes": 42_949_672_960}
B200 = {"name": "NVIDIA B200", "compute_capability": "10.0", "memory_bytes": 192_265_846_784}
T4 = {"name": "Tesla T4", "compute_capability": "7.5", "memory_bytes": 15_828_320_256}


def params(target: Target, **changes: Any) -> dict[str, Any]:
    assert changes.keys() <= target.parameters.keys()
    return {**target.parameters, **changes}


def other_values(target: Target, key: str) -> list[Any]:
    """Values of a parameter other than its default."""
    default = target.parameters[key]
    return [v for v in target.choices.get(key, (default * 2,)) if v != default]


# --- what every target declares ---------------------------------------------------------------


def test_an_unknown_target_is_one_error_that_names_the_known() -> None:
    with pytest.raises(ValueError, match="target 'launch'; there are: activation, allreduce"):
        load("launch")


def test_every_module_imports_without_torch_flashinfer_pandas_or_pyarrow() -> None:
    barred = ("torch", "flashinfer", "pandas", "pyarrow", "pynvml")
    code = f"import sys; sys.modules |= dict.fromkeys({barred!r})\n"
    status, said = run_python(f"{code}from ncuflow.target.contract import known; assert known()")
    assert status == 0, said


@pytest.mark.parametrize("name", NAMES)
def test_a_target_has_all_its_parts(name: str) -> None:
    target = load(name)
    assert target.title and target.heading and target.about
    assert all(type(v) in (int, str, bool) for v in target.parameters.values())
    assert target.choices.keys() <= target.parameters.keys()
    assert all(target.parameters[key] in values for key, values in target.choices.items())
    assert target.small.keys() <= target.parameters.keys()
    if name not in (
        "apis",
        "gdn_prefill",
        "recurrent",
    ):  # another function each point; compiled by the CuTe DSL
        assert {"python", "jit", "binding"} <= target.source.api.keys()
        assert target.source.kernels and target.build.jit


@pytest.mark.parametrize("name", NAMES)
def test_an_opportunity_is_tried_by_a_price_or_says_how_and_names_what_is_known(name: str) -> None:
    target = load(name)
    measured = possible_names({"target": name, "points": []})  # type: ignore[typeddict-item]
    for one in target.opportunities:
        assert bool(one.how) != bool(one.choice or one.trial)
        assert not one.choice or one.choice in {choice.key for choice in target.compared}
        for text in filter(None, (one.where, one.bound, *placeholders(one.shown))):
            unknown = {name for name in names(text) if name not in Scope({}, measured)}
            assert not unknown, text
        # nothing is known, nothing is advised
        assert evaluate(one.where, Scope({}, measured)) is None
    conditions = {name for choice in target.compared for name in names(choice.where)}
    assert conditions <= target.parameters.keys()


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_and_safe_in_file_and_range_names(name: str) -> None:
    target = load(name)
    keys = list(target.parameters)
    values = {key: [target.parameters[key], *other_values(target, key)] for key in keys}
    default = target.point_id(target.parameters)
    for key in keys:
        shown = [target.point_id(params(target, **{key: value})) for value in values[key]]
        assert shown.count(default) == 1, key
    seen: dict[str, dict[str, Any]] = {}
    changed = itertools.combinations(keys, min(3, len(keys)))  # all at once would be 10^5
    chosen = [
        dict(zip(names, found, strict=True))
        for names in changed
        for found in itertools.product(*(values[name] for name in names))
    ]
    for p in some(params(target, **one) for one in chosen):
        point = target.point_id(p)
        assert re.fullmatch(rf"{name}/[A-Za-z0-9_]+", point)
        if seen.setdefault(point, p) != p:
            assert unused(name, p, seen[point]), (p, seen[point])


# The limits that a variant of the sampling has.
USED = {
    "top_k": {"top_k"}, "top_k_renorm": {"top_k"}, "select": {"top_k"}, "top_p": {"percent"},
    "top_p_renorm": {"percent"}, "min_p": {"percent"}, "top_k_top_p": {"top_k", "percent"},
}  # fmt: skip


def unused(name: str, a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two parameter sets differ only in one that their variant does not use."""
    differing = {key for key in a if a[key] != b[key]}
    if name == "prefill":
        return a["layout"] == "ragged" and differing == {"page_size"}
    if name == "kv_append":
        return a["variant"] == "mla" and differing <= {"kv_heads", "head_dim"}
    if name == "sampling":
        return differing <= {"top_k", "percent"} - USED.get(a["variant"], set())
    if name == "merge_state":
        return a["variant"] == "merge_state" and differing == {"states"}
    return False


@pytest.mark.parametrize("name", NAMES)
def test_every_sweep_of_the_configuration_expands(name: str) -> None:
    for found in some(planned(name, "sweeps") + planned(name, "deep")):
        moved = [load(name).work(point.params).bytes for point in some(found)]
        assert moved == [None] * len(found) if name == "apis" else min(moved) > 0


def planned(name: str, what: str) -> list[list[sweep.Planned]]:
    """Of every sweep of the configuration, or its deep points."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    blocks = [sweeps[name] for sweeps in config[what].values() if name in sweeps]
    return [sweep.points(load(name), one) for one in blocks]


def points_of(name: str) -> list[sweep.Planned]:
    return [point for one in planned(name, "sweeps") for point in one]


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).written])
def test_a_target_writes_less_than_it_moves(name: str) -> None:
    target = load(name)
    found = points_of(name)
    assert found
    for point in found:
        assert 0 < target.written(point.params) < target.work(point.params).bytes, point.id


@pytest.mark.parametrize("name", ["decode", "merge_state", "prefill", "rmsnorm", "rope"])
def test_what_a_target_does_not_write_passed_dram(name: str, finished: Finished) -> None:
    """By the counters of the recording, which ncu read after it had flushed the caches."""
    with (finished.outputs / f"tables/{name}/measurements.csv").open(encoding="utf-8") as file:
        counted = {row["point"]: row["bytes_dram_counted"] for row in csv.DictReader(file)}
    target = load(name)
    found = [point for point in points_of(name) if counted.get(point.id)]
    assert found and target.written is not None
    for point in found:
        read = target.work(point.params).bytes - target.written(point.params)
        assert float(counted[point.id]) >= read, point.id


# --- work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "flops", "moved"),
    [
        # 4*S^2*D*H = 274.9 GFLOP; q, k, v, o of 4096*32*128 halves
        ("prefill", {"causal": False}, 4 * 4096**2 * 128 * 32, 4 * 4096 * 32 * 128 * 2),
        ("prefill", {}, 2 * 4096**2 * 128 * 32, 4 * 4096 * 32 * 128 * 2),
        ("prefill", {"batch": 3, "kv_heads": 8}, 3 * 137_438_953_472,
         3 * 4096 * (2 * 32 + 2 * 8) * 128 * 2),
        ("decode", {"batch": 128}, 4 * 128 * 2048 * 32 * 128, 4_294_967_296 + 2_097_152),
        ("decode", {"batch": 128, "kv_heads": 8}, 4 * 128 * 2048 * 32 * 128,
         4_294_967_296 // 4 + 2_097_152),
        # of 8 bits: half the cache's bytes; q and o keep theirs
        ("decode", {"batch": 128, "kv": "fp8"}, 4 * 128 * 2048 * 32 * 128, 4_294_967_296 // 2 + 2_097_152),
        # of 4 bits, with a byte for each 16 elements
        ("decode", {"batch": 128, "kv": "nvfp4", "cores": "tensor"}, 4 * 128 * 2048 * 32 * 128,
         4_294_967_296 // 4 * 9 // 8 + 2_097_152),
        ("prefill", {"kv": "nvfp4", "kv_heads": 8}, 2 * 4096**2 * 128 * 32,
         4096 * 128 * 2 * 2 * 32 + 2 * 4096 * 8 * (64 + 8)),
        # a query sees 1024 tokens before its own
        ("decode", {"batch": 1, "window": 1024}, 4 * 1025 * 32 * 128, 2 * (2 * 1025 + 2) * 32 * 128),
        ("decode", {"batch": 1, "kv_len": 100, "window": 1024}, 4 * 100 * 32 * 128, 2 * 202 * 32 * 128),
        ("prefill", {"dtype": "fp8", "backend": "fa3"}, 2 * 4096**2 * 128 * 32, 4096 * 32 * 128 * (3 + 2)),
        ("prefill", {"kv": "fp8", "kv_heads": 8}, 2 * 4096**2 * 128 * 32, 4096 * 128 * (2 * 2 * 32 + 2 * 8)),
        ("prefill", {"window": 1024}, 4 * 128 * 32 * (1025 * 513 + (4096 - 1025) * 1025),
         4 * 4096 * 32 * 128 * 2),
        ("gemm", {"m": 2, "n": 3, "k": 5}, 2 * 30, 2 * (10 + 15 + 6)),
        ("gemm", {"variant": "bmm", "dtype": "fp8", "batch": 7, "m": 2, "n": 3, "k": 5},
         7 * 60, 7 * (10 + 15 + 2 * 6)),
        # activations of 16 bits, a weight of 8, and a scale of 4 bytes for each of its 2 x 3 blocks
        ("gemm", {"variant": "blockscale", "dtype": "fp8", "m": 4, "n": 256, "k": 384},
         2 * 4 * 256 * 384, 2 * 4 * 384 + 256 * 384 + 2 * 4 * 256 + 4 * 6),
        # both in fp8: a scale for 128 elements of a row as well
        ("gemm", {"variant": "groupwise", "dtype": "fp8", "m": 4, "n": 256, "k": 384},
         2 * 4 * 256 * 384, 4 * 384 + 256 * 384 + 2 * 4 * 256 + 4 * (6 + 4 * 3)),
        # a router's product is float32
        ("gemm", {"m": 2, "n": 256, "k": 7168, "backend": "router"}, 4 * 256 * 7168, 2 * 258 * 7168 + 4 * 512),
        # 3 tokens fall on 6 of 8 experts; 16 tokens on all
        ("moe", {"tokens": 3, "hidden": 256, "intermediate": 128}, 6 * 6 * 256 * 128,
         2 * 3 * 6 * 256 * 128 + 6 * 8 + 3 * 256 * 4),
        ("moe", {"tokens": 16, "hidden": 256, "intermediate": 128, "dtype": "fp8"}, 6 * 32 * 256 * 128,
         3 * 8 * 256 * 128 + 4 * 3 * 8 * 2 + 32 * 8 + 16 * 256 * 4),
        ("moe", {"tokens": 16, "hidden": 256, "intermediate": 128, "spread": "one"}, 6 * 32 * 256 * 128,
         2 * 3 * 2 * 256 * 128 + 32 * 8 + 16 * 256 * 4),
        # a byte or half a byte an element, and a byte for 32 or 16 of them
        ("gemm", {"variant": "mm_mxfp8", "dtype": "mxfp8", "m": 2, "n": 128, "k": 256},
         2 * 2 * 128 * 256, 130 * (256 + 8) + 2 * 2 * 128),
        ("gemm", {"variant": "mm_fp4", "dtype": "nvfp4", "m": 2, "n": 128, "k": 256},
         2 * 2 * 128 * 256, 130 * (128 + 16) + 2 * 2 * 128),
        # of three others' a sum each, and 6 of the norm
        ("allreduce", {"ranks": 4, "tokens": 3, "hidden": 8}, 24 * 9, 4 * 24 * 2 + 16),
        # 3 sequences see 16 + 5 tokens each; 16 + 3*5 are kept
        ("cascade", {"batch": 3, "prefix": 16, "kv_len": 5}, 4 * 63 * 32 * 128, 2 * 2 * 128 * (3 * 32 + 31 * 8)),
        # 3 rows of 7 tokens, of whose 21 pairs a causal mask leaves half a square out, and 2 sequences of 5
        ("pod", {"chunk": 3, "context": 7, "batch": 2, "kv_len": 5},
         (4 * (21 - 4.5) + 4 * 10) * 32 * 128, 2 * 2 * 128 * ((3 + 2) * 32 + (7 + 10) * 8)),
        ("rmsnorm", {"rows": 10, "hidden": 64}, 5 * 640, (2 * 640 + 64) * 2),
        ("rmsnorm", {"rows": 10, "hidden": 64, "variant": "fused_add_rmsnorm"}, 6 * 640,
         (4 * 640 + 64) * 2),
        ("rmsnorm", {"rows": 10, "hidden": 64, "variant": "add_then_rmsnorm"}, 6 * 640,
         (5 * 640 + 64) * 2),
        ("rope", {"tokens": 10}, 3 * 40 * 128 * 10, 2 * 40 * 128 * 10 * 2 + 10 * 128 * 4 + 80),
        ("rope", {"tokens": 10, "variant": "rope_pos_ids"}, 3 * 40 * 128 * 10,
         2 * 40 * 128 * 10 * 2 + 40),
        ("merge_state", {"seq_len": 10}, 2 * 4 * 10 * 32 * 128, 5 * 10 * 32 * (256 + 4)),
        ("merge_state", {"seq_len": 10, "variant": "merge_state"}, 2 * 2 * 10 * 32 * 128,
         3 * 10 * 32 * (256 + 4)),
        # MLA: 576 elements of a token are read once, 512 of them are the value too
        ("mla_decode", {"batch": 2, "kv_len": 100, "heads": 16}, 2 * 200 * 16 * 1088,
         2 * (200 * 576 + 2 * 16 * 1088)),
        # 4 queries a sequence see 97 to 100 tokens, which are read once
        ("mla_decode", {"batch": 2, "kv_len": 100, "heads": 16, "q_len": 4}, 2 * 2 * (97 + 98 + 99 + 100) * 16 * 1088,
         2 * (200 * 576 + 8 * 16 * 1088)),
        ("kv_append", {"batch": 2, "append_len": 3}, 0, 2 * 6 * 2 * 8 * 128 * 2 + 6 * 8),
        ("kv_append", {"batch": 2, "append_len": 3, "variant": "mla"}, 0, 2 * 6 * 576 * 2 + 6 * 8),
        ("activation", {"tokens": 5, "hidden": 8}, 40, 3 * 40 * 2),
        ("activation", {"tokens": 5, "hidden": 8, "fused": "off"}, 40, 5 * 40 * 2),
        ("recurrent", {"batch": 2}, 6 * 2 * 32 * 128**2,
         2 * 2 * 32 * 128**2 * 2 + 2 * 2 * (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32)),
        ("gdn_prefill", {"seq_len": 10}, 6 * 10 * 32 * 128**2,
         2 * 2 * 10 * 48 * 128 + 2 * 10 * 32 * 4 + 32 * 128**2 * 4),
        ("sampling", {"batch": 2, "vocab": 10}, 0, 2 * 10 * 4 + 2 * 4),
        ("sampling", {"batch": 2, "vocab": 10, "variant": "softmax"}, 0, 2 * 2 * 10 * 4),
        ("sampling", {"batch": 2, "vocab": 10, "variant": "select", "top_k": 3}, 0, 80 + 2 * 3 * 8),
        ("rmsnorm", {"variant": "rmsnorm_quant", "rows": 3, "hidden": 8}, 6 * 24, 24 * 3 + 16 + 4),
        ("rmsnorm", {"variant": "layernorm", "rows": 3, "hidden": 8}, 8 * 24, 24 * 4 + 64),
        ("rmsnorm", {"variant": "gemma_rmsnorm", "rows": 3, "hidden": 8}, 6 * 24, 2 * (48 + 8)),
    ],
)  # fmt: skip
def test_work_of_known_cases(name: str, changes: dict[str, Any], flops: int, moved: int) -> None:
    target = load(name)
    found = target.work(params(target, **changes))
    assert (found.flops, found.bytes) == (flops, moved)
    assert found.convention


# --- skip -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "gpu", "reason"),
    [
        ("prefill", {}, A100, None),
        ("prefill", {"backend": "fa3"}, H200, None),
        ("prefill", {"backend": "fa3"}, A100, "fa3 needs compute capability 9.0"),
        ("prefill", {"kv_heads": 5}, H200, "not a multiple of 5"),
        ("prefill", {"dtype": "bf16"}, T4, "bf16 needs compute capability 8.0"),
        ("decode", {"kv_heads": 8}, H200, None),
        ("decode", {"qo_heads": 40, "kv_heads": 8}, H200, "no group of 5"),
        ("decode", {"qo_heads": 40, "kv_heads": 8, "cores": "tensor"}, H200, None),
        ("decode", {"batch": 256, "kv_len": 8192}, A100, r"needs 34.1 GiB of the GPU's 40.0 GiB"),
        ("decode", {"batch": 256, "kv_len": 8192}, H200, None),
        ("decode", {"backend": "fa3"}, H200, "a backend is chosen on tensor cores alone"),
        ("decode", {"backend": "fa3", "cores": "tensor"}, A100, "fa3 needs compute capability 9.0"),
        ("decode", {"kv": "fp8", "cores": "tensor"}, H200, None),
        ("decode", {"kv": "fp8", "cores": "tensor", "backend": "fa3"}, H200, "with queries of fp8 alone"),
        ("decode", {"kv": "nvfp4"}, H200, "on tensor cores alone"),
        ("decode", {"kv": "nvfp4", "cores": "tensor"}, A100, None),
        ("decode", {"kv": "nvfp4", "cores": "tensor", "backend": "fa3"}, H200, "fa3 takes no KV cache of NVFP4"),
        ("decode", {"kv": "nvfp4", "cores": "tensor", "backend": "trtllm-gen"}, B200, "values of 8 or 4 bits"),
        ("prefill", {"kv": "nvfp4", "layout": "paged"}, H200, None),
        ("prefill", {"kv": "nvfp4", "layout": "ragged"}, H200, "measured in pages"),
        ("prefill", {"kv": "nvfp4", "layout": "paged", "dtype": "fp8", "backend": "fa3"}, H200, "queries of 16 bits"),
        ("prefill", {"kv": "nvfp4", "layout": "paged", "backend": "cutlass"}, A100, "cutlass needs compute capability"),
        ("prefill", {"dtype": "fp8", "backend": "fa3", "head_dim": 256}, H200, None),
        ("prefill", {"dtype": "fp8", "backend": "auto"}, A100, "queries of fp8 need fa3"),
        ("prefill", {"dtype": "fp8"}, H200, "queries of fp8 need fa3"),
        ("prefill", {"dtype": "fp8", "backend": "fa3", "soft_cap": 30}, H200, "no soft cap"),
        ("prefill", {"kv": "fp8", "backend": "auto"}, H200, None),
        ("prefill", {"kv": "fp8", "backend": "fa3"}, H200, "with queries of fp8 alone"),
        ("prefill", {"window": 1024, "causal": False}, H200, "under a causal mask"),
        ("mla_decode", {"backend": "fa3"}, A100, "fa3 needs compute capability 9.0"),
        ("mla_decode", {}, H200, None),
        ("mla_decode", {"q_len": 8, "kv_len": 7}, H200, "fewer tokens than the 8"),
        ("mla_decode", {"backend": "cutlass"}, H200, "cutlass needs compute capability 10.x"),
        ("mla_decode", {"backend": "trtllm-gen", "q_len": 4}, B200, None),
        ("gdn_prefill", {}, A100, "measured on compute capability 9.0"),
        ("recurrent", {}, A100, "from compute capability 9.0 on, this GPU has 8.0"),
        ("recurrent", {"variant": "kda", "steps": 4}, H200, "kda is measured with one token a sequence"),
        ("recurrent", {"variant": "gdn_kv"}, H200, "gdn_kv takes a state of f32"),
        ("recurrent", {"v_heads": 24}, H200, "24 value heads are not a multiple of 16"),
        ("rmsnorm", {"variant": "layernorm"}, H200, "layernorm takes bf16 alone"),
        ("gemm", {}, H200, None),
        ("gemm", {"variant": "groupwise", "dtype": "fp8", "backend": "torch", "m": 1}, H200, "no product of one row"),
        ("gemm", {"dtype": "fp8"}, H200, "mm multiplies bf16, not fp8"),
        ("gemm", {"backend": "cublas"}, H200, "by cublaslt, cudnn, tinygemm, cutlass, tgv, router, torch, not by cublas"),
        ("gemm", {"batch": 2}, H200, "not a batch of 2"),
        ("gemm", {"variant": "mm_fp4", "dtype": "nvfp4", "backend": "cutlass"}, B200, None),
        ("gemm", {"variant": "mm_fp4", "dtype": "nvfp4", "backend": "cutlass"}, H200, "needs compute capability 10.0,"),
        ("gemm", {"variant": "mm_mxfp8", "dtype": "mxfp8", "backend": "cutlass", "k": 96}, B200, "k a multiple of 128"),
        ("gemm", {"backend": "cutlass"}, H200, "cutlass needs compute capability 10.0, 10.3 or 10.7"),
        ("prefill", {"backend": "cutlass", "layout": "ragged"}, B200, None),
        ("prefill", {"backend": "cutlass"}, B200, "over a ragged KV cache"),
        ("prefill", {"backend": "trtllm-gen", "soft_cap": 30}, B200, "without a soft cap"),
        ("prefill", {"backend": "trtllm-gen", "page_size": 1}, B200, "on pages of 8, 16, 32, 64 tokens"),
        ("prefill", {"backend": "trtllm-gen", "split": "off"}, B200, "settings of fa2"),
        ("decode", {"backend": "trtllm-gen", "cores": "tensor"}, B200, None),
        ("decode", {"backend": "trtllm-gen", "cores": "tensor", "split": "off"}, B200, "split is a setting of fa2"),
        ("decode", {"backend": "fa2", "cores": "tensor", "launch": "graph"}, B200, "CUDA graphs takes no backend"),
        ("gemm", {"backend": "tinygemm"}, A100, "tinygemm needs compute capability 9.0"),
        ("gemm", {"variant": "segment", "backend": "sm80", "batch": 8}, A100, None),
        ("gemm", {"variant": "segment", "backend": "sm90", "batch": 8}, A100, "sm90 needs compute"),
        ("gemm", {"variant": "bmm", "dtype": "fp8", "backend": "cublas"}, A100, "cublas needs compute capability 8.9, 9.0, "),
        ("gemm", {"variant": "blockscale", "dtype": "fp8", "backend": "deepgemm", "n": 200}, H200, "blocks are of 128 elements"),
        ("gemm", {"variant": "groupwise", "dtype": "fp8", "backend": "cutlass"}, H200, "needs compute capability 10.0,"),
        ("gemm", {"variant": "groupwise", "dtype": "fp8", "backend": "trtllm"}, B200, None),
        ("gemm", {"variant": "grouped", "dtype": "fp8", "backend": "cutlass", "batch": 8}, H200, "cutlass needs compute"),
        ("gemm", {"backend": "router"}, H200, "the router's kernels are for weights of 7168 by 128"),
        ("gemm", {"backend": "router", "k": 7168, "n": 256}, H200, "at most 16 rows"),
        ("gemm", {"backend": "router", "k": 7168, "n": 256, "m": 16}, H200, None),
        ("gemm", {"backend": "torch"}, A100, None),
        ("moe", {}, H200, None),
        ("moe", {}, A100, "cutlass needs compute capability 8.9"),
        ("moe", {"dtype": "fp8"}, B200, "CUTLASS's on 9.0 alone"),
        ("moe", {"backend": "trtllm-gen", "dtype": "fp8"}, H200, "trtllm-gen needs compute capability 10.0"),
        ("moe", {"backend": "trtllm-gen", "dtype": "fp8"}, B200, None),
        ("moe", {"backend": "cute-dsl"}, B200, "cute-dsl needs compute capability 9.0"),
        ("moe", {"backend": "mono", "dtype": "fp8"}, H200, "mono_moe has one shape"),
        ("moe", {"backend": "torch", "dtype": "fp8"}, H200, "with weights of bf16, not fp8"),
        ("allreduce", {"variant": "twoshot", "tokens": 2}, H200, "2 are no more than the 2 ranks"),
        ("allreduce", {"variant": "vllm", "tokens": 8192}, H200, "messages up to 8 MiB, not 128"),
        ("allreduce", {"tokens": 8193}, H200, "its workspace is for 8192 tokens"),
        ("allreduce", {}, A100, "auto needs compute capability 9.0"),
        ("allreduce", {"variant": "nccl"}, A100, None),
        ("cascade", {"prefix": 100}, H200, "does not fill its pages of 16"),
        ("cascade", {"kv_heads": 5}, H200, "not a multiple of 5"),
        ("cascade", {"variant": "flat"}, A100, None),
        ("cascade", {"qo_heads": 64}, H200, None),
        ("cascade", {"qo_heads": 128}, H200, "merge takes a block of 2048 threads"),
        ("cascade", {"qo_heads": 128, "variant": "flat"}, H200, None),
        ("pod", {"chunk": 2048}, H200, "1024 tokens does not hold a chunk of 2048"),
        ("pod", {"kv_heads": 5}, H200, "not a multiple of 5"),
        ("pod", {"kv_heads": 1}, H200, "tile has 16 rows, not the 32 query heads"),
        ("pod", {"kv_heads": 1, "variant": "fa2"}, H200, None),
        ("pod", {"variant": "fa3"}, A100, "fa3 needs compute capability 9.0"),
        ("pod", {}, A100, None),
        ("sampling", {}, T4, None),
        ("rope", {"batch": 3}, H200, "do not split into 3"),
        ("rmsnorm", {}, T4, None),
        ("merge_state", {"seq_len": 1 << 22}, H200, "needs"),
        ("decode", {"batch": 4096, "kv_len": 65536}, H200, "needs"),
        ("decode", {"batch": 4096, "kv_len": 65536}, H200 | {"memory_bytes": None}, None),
    ],
)  # fmt: skip
def test_skip(name: str, changes: dict[str, Any], gpu: dict[str, Any], reason: str | None) -> None:
    target = load(name)
    found = target.skip(params(target, **changes), gpu)
    assert found is None if reason is None else re.search(reason, found or "")


# --- after which point nsys records nothing ---------------------------------------------------


class Traced(NamedTuple):
    """A recorded trace of nsys 2023.4: its points in the order of their launches, and those without a kernel."""

    points: list[sweep.Planned]
    lost: set[str]

    @property
    def stop(self) -> sweep.Planned | None:
        """The point from whose first launch on nothing was recorded."""
        after = list(itertools.takewhile(lambda p: p.id in self.lost, reversed(self.points)))
        return after[-1] if after else None


def traces() -> Iterator[Traced]:
    for path in sorted((ROOT / "recordings").rglob("trace.json")):
        files = (path, path.parents[2] / "manifest.json")
        record, manifest = (json.loads(p.read_text()) for p in files)
        if manifest["provenance"]["nsys"].startswith("2023.4"):
            target = load(path.parts[-3])
            planned = {p.id: p for p in sweep.read_points(path.with_name("points.json"), target)}
            lost = {entry["point"] for entry in record["lost"] if NO_KERNEL in entry["reason"]}
            yield Traced([planned[point] for point in record["points"]], lost)


def stops_tracing(point: sweep.Planned) -> bool | None:
    return load(point.target).stops_tracing(point.params)


def recorded() -> list[sweep.Planned]:
    """The points that no recorded trace lacks; by some versions of FlashInfer a choice is not obeyed, and then lost by others."""
    lost = {point for trace in traces() for point in trace.lost}
    return [point for trace in traces() for point in trace.points if point.id not in lost]


def test_what_stopped_a_recorded_trace_is_declared_and_what_is_in_one_is_not() -> None:
    stops = [trace.stop for trace in traces()]
    found = {(p.target, stops_tracing(p)) for p in stops if p is not None}
    assert {("decode", True), ("prefill", True), ("gemm", True)} <= found
    assert {name for name, silent in found if silent is False} == set()
    assert ("mla_decode", "fa3") in {(p.target, p.params.get("backend")) for p in recorded()}
    assert {point.id for point in recorded() if stops_tracing(point)} == set()


@pytest.mark.parametrize("name", NAMES)
def test_fa3_stops_tracing_unless_recorded_traces_hold_it(name: str) -> None:
    """Whichever parameter names it, so that no target forgets it; decode takes it on tensor cores alone."""
    target = load(name)
    cores = {"cores": "tensor"} if "cores" in target.choices else {}
    chosen = [key for key, values in target.choices.items() if "fa3" in tuple(values)]
    held = {key for p in recorded() if p.target == name for key in chosen if p.params[key] == "fa3"}
    set_to = {key: params(target, **cores, **{key: "fa3"}) for key in chosen}
    assert {key for key in chosen if target.stops_tracing(set_to[key])} == {*chosen} - held


# --- what plan() chose ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([64, 0, 0, 0, 0, 0, 0, 0, 0, 1], {"padded_batch_size": 64, "split_kv": True}),
        ([7, 9, 0, 128, *[0] * 9, 1, 0],  # a CUDA graph, not split
         {"padded_batch_size": 7, "cta_tile_q": 128, "split_kv": False}),
        ([*[0] * 8, 1], {"same_schedule_for_all_heads": True}),
        ([1, 2, 3], {}),
        (None, {}),
        (["x"] * 10, {}),
    ],
)  # fmt: skip
def test_plan_info_reads_the_plans_it_knows(values: Any, found: dict[str, Any]) -> None:
    wrapper = SimpleNamespace(_plan_info=values, _backend="fa2")
    assert plan_info(wrapper) == {"backend": "fa2", **found}
    assert plan_info(object()) == {}


# --- the page on adding a target --------------------------------------------------------------


def example(name: str) -> str:
    """The code block of docs/adding-a-target.md after the comment ``name``."""
    text = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert found, name
    return found[1]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a target of a name, in a folder beside the targets of the project."""

    def written(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.setenv(FOLDERS, str(tmp_path))
        monkeypatch.delitem(sys.modules, f"ncuflow.targets.{name}", raising=False)

    return written


@pytest.fixture
def page_append(beside: Callable[[str, str], None]) -> Target:
    """The documented target."""
    beside("page_append", example("file: targets/page_append.py"))
    return load("page_append")


def test_the_documented_target_works(page_append: Target, tmp_path: Path) -> None:
    assert list(known())[-1] == "page_append"
    blocks = yaml.safe_load(example("block: page_append"))["page_append"]
    found = sweep.points(page_append, blocks)
    assert len(found) == len({point.id for point in found}) == 8
    assert found[0].id == "page_append/B1_L1_K8_D128_P16_f16"
    assert page_append.work(found[0].params).bytes == 2 * 2 * 8 * 128 * 2 + 8
    assert page_append.skip(found[0].params, H200) is None
    # The documented way to try it plans the point.
    line = re.search(r"python -m ncuflow plan (.*)", (ROOT / "docs/adding-a-target.md").read_text())
    assert line
    *arguments, _ = shlex.split(line[1])
    assert dispatch(["plan", *arguments, str(tmp_path / "points.json")]) == 0
    (point,) = json.loads((tmp_path / "points.json").read_text())
    assert point["id"] == "page_append/B32_L512_K8_D128_P16_f16"
    assert point["params"]["batch"] == 32


def test_every_part_of_a_target_is_documented() -> None:
    text = (ROOT / "docs/adding-a-target.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    named = re.findall(r"`(\w+)", " ".join(first))
    named += re.findall(r"by `(memory)\(p\)`", text)  # where it is a part of another's row
    parts = [Build, Source, Rules, Workload]
    said = [one.name for part in parts for one in fields(part)]
    own = {one.name for one in fields(Target)} - {part.__name__.lower() for part in parts}
    own |= {"options", "opportunities"}  # files beside its prose
    assert sorted(named) == sorted([*said, *own - {"about", "file"}])  # which reading the file sets
    for part in parts:
        assert f"`{part.__name__.lower()}={part.__name__}(…)`" in text


@pytest.fixture
def documented(page_append: Target, tmp_path: Path) -> Findings:
    """Findings of a run with the documented target: two points, its source index and its JIT module."""
    results, evidence = tmp_path / "results", tmp_path / "evidence"
    points = []
    for page_size, cold in ((16, 20.0), (1, 30.0)):
        p = params(page_append, page_size=page_size)
        moved = float(page_append.work(p).bytes)
        made = kernel("flashinfer::AppendPagedKVCacheKernel")
        made |= {"name": "AppendPagedKVCacheKernel", "point": page_append.point_id(p)}
        rates = {"gbs": moved / cold / 1e3, "gbs_fraction_measured": 0.5, "time_cold_us": cold}
        rates |= {"bytes_analytic": moved, "limiter": "latency"}
        found = entry(page_append.point_id(p), p, [made], **rates)
        points.append(found | {"reason": None, "samples": {}})
    write_json(results / "page_append_results.json", made_results(*points))
    machine = {"provenance": PROVENANCE, "findings": [], "ceilings": {}, "tools": {}}
    write_json(results / "environment_info.json", machine)
    package = Package(made_package(tmp_path / "flashinfer"))
    write_json(evidence / "source_index.json", source_index(package))
    target, module = jit_modules()["page"]
    cold = {"uri": "page_uri", "generation_s": 0.01, "build_s": 30.0, "load_s": 0.002}
    measured = {"target": target.name, "aot": False, "cold": cold, "disk": {}, "first_launch": {}}
    jit = {"modules": {module.name: measured}, "cpu_count": 8, "method": "m", "environment": {}}
    row = summary(module.name, measured)
    write_json(results / "jit_analysis.json", jit | {"provenance": PROVENANCE, "summary": [row]})
    return Findings(results, evidence)


def test_the_documented_target_is_on_every_page_by_its_one_file(documented: Findings) -> None:
    holds = {
        "INDEX": ("| [Append to a paged KV cache](page_append.md) | ",
                  "snakemake -j1 page_append     # append to a paged kv cache alone"),
        "analysis": ("*Not in this evidence: counters.*",),
        "jit": ("| `page` | 30 s | 30 s | 2 000 µs |",),
        "final-report": ("| Page size 16 or 1 (page_append) | 16 | 1 | +50.0 % | 1 |",),
        "kernel-dev-guide": ("\n1. [Append to a paged KV cache](page_append.md)\n2. [JIT",
                             "| page | 10 ms | 30 s | 2 000 µs |"),
        "target": (
            "# Append to a paged KV cache\n",
            "## Algorithm Description\n\nAppend of keys and values to an empty paged KV cache: each",
            "| Python API | `flashinfer.page.append_paged_kv_cache` | `page.py:1` |",
            "| JIT generator | `flashinfer.jit.page.gen_page_module` | `jit/page.py:1` |",
            "| binding | – | `data/csrc/page.cu` |",
            "`data/include/flashinfer/page.cuh:2`, at 2 points |",
            "made from, in `data/csrc`: `page.cu`, `flashinfer_page_binding.cu`.",
            "| Page size 16 or 1 | 16 | 1 | +50.0 % |",
        ),
    }  # fmt: skip
    for name, texts in holds.items():
        page = render(name, documented, *(["page_append"] if name == "target" else []))
        assert [text for text in texts if text not in page] == []
    assert "## Usage" not in page  # no example of its use is written


def test_prose_of_a_target_lies_in_its_folder(documented: Findings, tmp_path: Path) -> None:
    prose = tmp_path / "templates/guide/page_append"
    prose.mkdir(parents=True)
    (prose / "algorithm.md.j2").write_text("Each token goes to {{ t.name }}.\n")
    (prose / "usage.py").write_text("append()\n")
    (prose / "selection.md.j2").write_text("| new tokens | `append` | – |\n")
    page = render("target", documented, "page_append")
    assert "## Algorithm Description\n\nEach token goes to page_append.\n" in page
    assert "## Usage\n\n[page_append.py](../usage/page_append.py) makes the call" in page
    assert guide_pages.example("page_append") == "append()\n"
    guide = render("kernel-dev-guide", documented)
    assert "\n| new tokens | `append` | – |\n\n### Performance" in guide


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TARGET = 1", "TARGET is not a Target named mine"),
        ("import nothing_like_it\nTARGET = None", "ModuleNotFoundError: No module"),
        ((ROOT / "targets/rmsnorm.py").read_text(), "TARGET is not a Target named mine"),
        (
            "from ncuflow.target.contract import Choice, Target\n"
            "C = Choice('k', '', 'n', 1, 2, where='cors == 1')\n"
            "TARGET = Target(name='mine', title='', parameters={'n': 1}, id='{n}', work=None, prepare=None, compared=(C,))",
            "choice k: no parameter 'cors'",
        ),
    ],
)
def test_a_file_that_is_no_target_is_one_clear_error(text, message, beside):
    beside("mine", text)
    with pytest.raises(ValueError, match=rf"mine\.py: {message}"):
        known()


def test_two_targets_of_one_name_are_an_error(tmp_path, monkeypatch):
    shutil.copy(ROOT / "targets/rope.py", tmp_path)
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    with pytest.raises(ValueError, match=r"rope\.py: there is a kernel target rope already"):
        known()


MINE = """
from ncuflow.target.contract import Target, Work
from ncuflow.target.source import Source, Symbol

TARGET = Target(
    name="mine",
    title="A kernel of ours",
    parameters={"n": 4},
    id="n{n}",
    work=lambda p: Work(0, 8 * p["n"], "ours"),
    prepare=lambda p, seed=0: None,
    source=Source(
        kernels=(Symbol("AcmeKernel", ""),),
        templates={"AcmeKernel": ("kTile", "T")},
        meanings={"AcmeKernel.kTile": "elements of a tile"},
    ),
)
"""


def test_a_kernel_that_is_not_flashinfers_needs_no_symbol_of_it(tmp_path, beside):
    beside("mine", MINE)
    mine = load("mine")
    assert mine.modules(mine.parameters) == []
    index = source_index(Package(made_package(tmp_path / "flashinfer")))
    assert index["missing"] == {} and index["targets"]["mine"]["kernels"] == []
    ran = {"demangled": "void acme::AcmeKernel<(int)64, float>()"}
    point = {"point": "mine/n4", "kernels": [ran]}
    (table,) = parameter_tables([point], Decoder(index["templates"]), ["AcmeKernel"])
    assert table["rows"] == [
        ("kTile", ["64"], "elements of a tile"), ("T", ["fp32"], "element type")
    ]  # fmt: skip
    assert parameter_tables([point], Decoder(), []) == []


# --- references against the formulas, in NumPy's double precision ------------------------------

DRAW = np.random.default_rng(0).standard_normal
CLOSE = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13)


def attended(q: Any, k: Any, v: Any) -> Any:
    """One query over its keys: the softmax of scores scaled by 1/sqrt(dim), written as a sum over tokens."""
    weight = [math.exp(sum(q * key) / len(q) ** 0.5) for key in k]
    return sum(w * value for w, value in zip(weight, v, strict=True)) / sum(weight)


@pytest.mark.parametrize(("heads", "dim"), [((4, 2), 16), ((3, 3), 64)])
def test_attention_reference(heads, dim, monkeypatch):
    q, k, v = DRAW((5, heads[0], dim)), DRAW((7, heads[1], dim)), DRAW((7, heads[1], dim))
    visible, group = np.array([1, 2, 3, 5, 7]), heads[0] // heads[1]
    expected = np.array([
        [attended(q[row, h], k[:n, h // group], v[:n, h // group]) for h in range(heads[0])]
        for row, n in enumerate(visible)
    ])  # fmt: skip
    CLOSE(reference.attention(q, k, v, visible), expected)
    CLOSE(reference.decode_attention(q[4:], k[None], v[None]), expected[4:])
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 4 * group * len(k) * 2)  # two rows at a time
    CLOSE(reference.attention(q, k, v, visible), expected)


def test_a_soft_cap_bends_the_logits_of_the_reference() -> None:
    draw = np.random.default_rng(1).standard_normal  # its own, whatever tests drew before
    q, k, v = draw((2, 1, 4)), draw((3, 1, 4)), draw((3, 1, 4))
    logits = np.einsum("rd,ld->rl", q[:, 0], k[:, 0]) / 2
    weights = np.exp(np.tanh(logits))
    expected = weights @ v[:, 0] / weights.sum(axis=1, keepdims=True)
    found = reference.attention(q, k, v, np.array([3, 3]), soft_cap=1)
    CLOSE(found[:, 0], expected)
    assert np.abs(found - reference.attention(q, k, v, np.array([3, 3]))).max() > 0.01
    of_decode = reference.decode_attention(q[:1], k[None], v[None], soft_cap=1)
    CLOSE(of_decode, found[:1])
    sums = np.log2(weights[:1].sum(axis=1, keepdims=True))
    CLOSE(reference.decode_sums(q[:1], k[None], soft_cap=1), sums)
    assert reference.decode_sums(q[:1], k[None, :0]).tolist() == [[-np.inf]]


def test_a_window_leaves_the_last_tokens_of_the_reference() -> None:
    q, k, v = DRAW((3, 1, 4)), DRAW((9, 1, 4)), DRAW((9, 1, 4))
    found = reference.attention(q, k, v, np.array([2, 6, 9]), window=3)
    for row, seen in enumerate((slice(0, 2), slice(2, 6), slice(5, 9))):
        CLOSE(found[row, 0], attended(q[row, 0], k[seen, 0], v[seen, 0]))


def test_a_row_that_sees_no_token_has_zeros_and_a_sum_of_nothing() -> None:
    q, k, v = DRAW((3, 4, 8)), DRAW((9, 2, 8)), DRAW((9, 2, 8))
    mask = np.zeros((3, 9), dtype=bool)
    mask[1, 4] = mask[2] = True
    for seen in (mask, np.array([-4, 0, 9])):
        out, sums = reference.attention(q, k, v, seen), reference.attention_sums(q, k, seen)
        assert not out[0].any() and set(sums[0]) == {-np.inf}
        CLOSE(out[2:], reference.decode_attention(q[2:], k[None], v[None]))
        CLOSE(sums[2:], reference.decode_sums(q[2:], k[None]))
    CLOSE(reference.attention(q, k, v, mask)[1], v[4].repeat(2, axis=0))


@pytest.mark.parametrize(
    ("interleaved", "pairs"), [(False, ((0, 2), (1, 3))), (True, ((0, 1), (2, 3)))]
)
def test_rope_reference_turns_pairs_by_their_angle(interleaved, pairs):
    x, angle = DRAW((3, 2, 4)), DRAW((3, 2))
    found = reference.rope(x, np.cos(angle), np.sin(angle), interleaved)
    for pair, (i, j) in enumerate(pairs):
        turned = (x[..., i] + 1j * x[..., j]) * np.exp(1j * angle[:, None, pair])
        CLOSE(found[..., i] + 1j * found[..., j], turned)


def test_llama31_frequencies_keep_the_fast_and_divide_the_slow_by_eight() -> None:
    plain, scaled = (
        reference.rope_frequencies(np.arange(64.0), 128, 5e5, llama31) for llama31 in (False, True)
    )
    CLOSE(reference.rope_frequencies(np.arange(2.0), 4, 1e4, llama31=False), [1.0, 0.01])
    wavelength = 2 * math.pi / plain
    CLOSE(scaled[wavelength < 2048], plain[wavelength < 2048])
    CLOSE(scaled[wavelength > 8192] * 8, plain[wavelength > 8192])
    between = (wavelength > 2048) & (wavelength < 8192)
    share = (8192 / wavelength[between] - 1) / 3
    CLOSE(scaled[between], plain[between] * (share + (1 - share) / 8))


def test_merged_states_are_the_attention_over_all_segments() -> None:
    scores, values = DRAW(6), DRAW((6, 8))
    parts = (slice(0, 2), slice(2, 3), slice(3, 6))
    weight = np.exp(scores)
    states = [weight[part] @ values[part] / weight[part].sum() for part in parts]
    sums = [np.log2(weight[part].sum()) for part in parts]
    v, s = np.array(states).reshape(1, 3, 1, 8), np.array(sums).reshape(1, 3, 1)
    merged, total = reference.merge_states(v, s)
    CLOSE(merged[0, 0], weight @ values / weight.sum())
    CLOSE(total[0, 0], np.log2(weight.sum()))
    far = reference.merge_states(v, s + 3000)  # log-sums whose exponentials overflow
    np.testing.assert_allclose(far[0], merged, rtol=1e-9)


def test_what_has_no_tokens_is_zeros_in_a_reference() -> None:
    draw = np.random.default_rng(2).standard_normal
    v, s = draw((3, 2, 1, 4)), draw((3, 2, 1))
    s[0], s[1, 0] = -np.inf, -np.inf
    merged, total = reference.merge_states(v, s)
    CLOSE(merged, [0 * v[0, 0], v[1, 1], reference.merge_states(v[2:], s[2:])[0][0]])
    CLOSE(total[:2], [s[0, 0], s[1, 1]])
    q, none = draw((2, 4, 8)), np.zeros((2, 0, 2, 8))
    CLOSE(reference.decode_attention(q, none, none), 0 * q)
    CLOSE(reference.mla_decode(q, q, none[:, :, 0], none[:, :, 0], 1.0), 0 * q)
    for sums in (
        reference.mla_sums(q, q, none[:, :, 0], none[:, :, 0], 1.0),
        reference.decode_sums(q, none),
    ):
        assert (sums == -np.inf).all() and sums.shape == (2, 4)
    assert reference.attention(q[:0], none[0], none[0], np.arange(0)).shape == (0, 4, 8)


def test_rmsnorm_and_softmax_references() -> None:
    half = DRAW((2, 8)).astype(np.float16)  # is referred to single precision
    assert reference.rmsnorm(half, half[0], 1e-6).dtype == np.float32
    found = reference.rmsnorm(np.array([[3.0, 4.0]]), np.array([2.0, 1.0]), 0.5)
    CLOSE(found, [[6 / math.sqrt(13), 4 / math.sqrt(13)]])
    logits = DRAW((2, 9)) * 3
    CLOSE(reference.softmax(logits + 800), np.exp(logits) / np.exp(logits).sum(axis=1)[:, None])


def test_mla_reference_is_attention_whose_key_is_latent_and_position() -> None:
    q, q_pe, latent, position = DRAW((2, 3, 8)), DRAW((2, 3, 4)), DRAW((2, 5, 8)), DRAW((2, 5, 4))
    found = reference.mla_decode(q, q_pe, latent, position, 12**-0.5)
    keys = np.concatenate([latent, position], axis=-1)
    queries = np.concatenate([q, q_pe], axis=-1)
    expected = [[attended(queries[b, h], keys[b], latent[b]) for h in range(3)] for b in range(2)]
    CLOSE(found, expected)


def test_gated_activations_by_their_definitions() -> None:
    gate, up = np.array([-3.0, -0.5, 0.0, 2.0]), DRAW(4)
    CLOSE(reference.gated(gate, up, "silu"), gate / (1 + np.exp(-gate)) * up)
    gelu = gate * [NormalDist().cdf(g) for g in gate] * up
    CLOSE(reference.gated(gate, up, "gelu"), gelu)
    np.testing.assert_allclose(reference.gated(gate, up, "gelu_tanh"), gelu, atol=2e-3)


def test_layernorm_reference_has_the_mean_and_the_spread_of_its_weight_and_bias() -> None:
    found = reference.layernorm(DRAW((4, 64)) * 5 + 9, np.full(64, 3.0), np.full(64, 7.0), 0.0)
    CLOSE(found.mean(axis=1), 7)
    CLOSE(found.std(axis=1), 3)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ((6, 1.0, 0.0), 6),
        ((2, 1.0, 0.0), 2),
        ((6, 0.5, 0.0), 2),  # 0.4, and 0.3 because it begins below a half
        ((6, 0.39, 0.0), 1),
        ((6, 1.0, 0.5), 2),  # 0.3 is more than half of 0.4, 0.15 is not
        ((3, 0.99, 0.1), 3),
    ],
)
def test_the_tokens_that_may_be_drawn(limits: tuple[int, float, float], kept: int) -> None:
    probs = np.array([[0.05, 0.4, 0.02, 0.3, 0.15, 0.08]])
    most = np.sort(probs[0])[::-1][kept - 1]
    assert (reference.likely(probs, *limits) == (probs >= most)).all()


def test_without_slack_the_likeliest_tokens_are_the_fewest_that_reach_the_sum() -> None:
    probs = reference.softmax(3 * DRAW((32, 4096)))
    rows = np.sort(probs, axis=-1)[:, ::-1].cumsum(axis=-1)
    fewest = (rows < 0.9).sum(axis=-1) + 1
    limits = (4096, 0.9, 0.0)
    assert (reference.likely(probs, *limits, slack=0.0).sum(axis=-1) == fewest).all()
    assert (reference.likely(probs, *limits).sum(axis=-1) > fewest).any()


def test_delta_rule_reference_is_a_sum_over_the_tokens_before() -> None:
    q, k, v = DRAW((5, 1, 4)), DRAW((5, 1, 4)), DRAW((5, 2, 3))
    decay, update = 1 / (1 + DRAW((5, 2)) ** 2), 1 / (1 + DRAW((5, 2)) ** 2)
    found, _ = reference.gated_delta_rule(q, k, v, decay, update, 0.5)
    for head in range(2):
        # what a token wrote is its value, less what the tokens before it had left for its key
        written: list[Any] = []
        for t in range(5):
            left = [np.prod(decay[s + 1 : t + 1, head]) * written[s] for s in range(t)]
            held = sum((k[s, 0] @ k[t, 0] * left[s] for s in range(t)), np.zeros(3))
            written.append(update[t, head] * (v[t, head] - held))
            read = sum(q[t, 0] @ k[s, 0] * w for s, w in enumerate([*left, written[t]]))
            CLOSE(found[t, head], 0.5 * read)


def test_delta_rule_reference_goes_on_from_a_state_and_takes_a_decay_of_each_key_element() -> None:
    q, k, v = DRAW((5, 1, 4)), DRAW((5, 1, 4)), DRAW((5, 2, 3))
    decay, update = 1 / (1 + DRAW((5, 2)) ** 2), 1 / (1 + DRAW((5, 2)) ** 2)
    whole, after = reference.gated_delta_rule(q, k, v, decay, update, 0.5)
    _, state = reference.gated_delta_rule(q[:2], k[:2], v[:2], decay[:2], update[:2], 0.5)
    each = np.repeat(decay[2:, :, None], 4, axis=2)  # the same decay, told of each element
    rest, last = reference.gated_delta_rule(q[2:], k[2:], v[2:], each, update[2:], 0.5, state)
    CLOSE(rest, whole[2:])
    CLOSE(last, after)
    each[..., 0] = 0.0  # what the state held for the first element is gone at once
    gone = reference.gated_delta_rule(0 * q[2:], 0 * k[2:], v[2:], each, update[2:], 0.5, state)[1]
    assert not gone[:, 0].any() and gone[:, 1].any()


def test_selective_scan_reference_is_a_sum_over_the_tokens_before() -> None:
    x, step = DRAW((1, 4, 2, 3)), DRAW((1, 4, 2)) ** 2
    a, skip, b, c = -(DRAW((2,)) ** 2), DRAW((2,)), DRAW((1, 4, 1, 5)), DRAW((1, 4, 1, 5))
    before = DRAW((1, 2, 3, 5))
    found, after = reference.selective_scan(x, step, a, b, c, skip, before)
    for head in range(2):
        for t in range(4):
            left = np.exp(a[head] * step[0, : t + 1, head].sum()) * before[0, head]
            for s in range(t + 1):
                kept = np.exp(a[head] * step[0, s + 1 : t + 1, head].sum())
                left = left + kept * step[0, s, head] * np.outer(x[0, s, head], b[0, s, 0])
            CLOSE(found[0, t, head], left @ c[0, t, 0] + skip[head] * x[0, t, head])
        CLOSE(after[0, head], left)


def test_product_reference_scales_each_block_of_the_weight() -> None:
    x, weight, scale = DRAW((2, 3, 4)), DRAW((2, 6, 4)), DRAW((3, 2))
    CLOSE(reference.product(x, weight), np.einsum("bmk,bnk->bmn", x, weight))
    scaled = weight * scale.repeat(2, axis=0).repeat(2, axis=1)
    CLOSE(reference.product(x, weight, scale, 2), np.einsum("bmk,bnk->bmn", x, scaled))


def test_experts_reference_sums_each_tokens_experts_by_their_shares() -> None:
    x, share = DRAW((3, 4)), DRAW((3, 2))
    matrices = [(DRAW((5, 4)), DRAW((5, 4)), DRAW((4, 5))) for _ in range(3)]
    chosen = np.array([[2, 0], [0, 1], [2, 1]])
    found = reference.experts(x, chosen, share, lambda e: matrices[e])
    for token, (given, parts) in enumerate(zip(chosen, share, strict=True)):
        expected = np.zeros(4)
        for expert, part in zip(given, parts, strict=True):
            gate, up, down = matrices[expert]
            inner = (gate @ x[token]) / (1 + np.exp(-gate @ x[token])) * (up @ x[token])
            expected += part * (down @ inner)
        CLOSE(found[token], expected)


@pytest.mark.parametrize("spread", ["even", "zipf", "one"])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 8, 2), (3, 8, 8), (129, 128, 8), (4096, 8, 2)]
)
def test_every_token_has_its_experts_and_none_twice(spread, tokens, experts, top_k):
    sizes = {"tokens": tokens, "experts": experts, "top_k": top_k, "spread": spread}
    target = load("moe")
    module = sys.modules[target.prepare.__module__]
    found = module.counts(params(target, **sizes))
    assert sum(found) == tokens * top_k and len(found) == experts
    assert all(0 <= n <= tokens for n in found)
    if spread == "even":
        assert max(found) - min(found) <= 1
    if spread == "one":
        assert found == [tokens] * top_k + [0] * (experts - top_k)
    if spread == "zipf" and tokens >= experts > top_k:
        assert found == sorted(found, reverse=True) and found[0] > found[-1]


def test_a_flashinfer_without_a_pool_of_states_is_skipped_and_no_error(monkeypatch: Any) -> None:
    """As 0.6.5 is: the call of the point was a TypeError there."""
    module = sys.modules[load("recurrent").prepare.__module__]
    older = SimpleNamespace(gated_delta_rule_decode_pretranspose=lambda q, k, v, state: None)
    for name in ("flashinfer", "torch", "flashinfer.gdn_decode"):
        fake = SimpleNamespace(gdn_decode=older, arange=lambda *_, **_more: None, int32=None)
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(module, "find_spec", lambda _: True)
    p = {"variant": "gdn", "batch": 1, "steps": 1, "state": "bf16"}
    with pytest.raises(NotHereError, match="take no pool"):
        module._delta_call(p, (SimpleNamespace(device="cuda"),) * 8, None)
    (layout,) = [one for one in known()["recurrent"].compared if one.key == "recurrent_layout"]
    assert "in a pool" in layout.title  # the call of keys first takes none


def test_the_price_of_tuning_is_told_where_all_of_it_was_paid(monkeypatch: Any) -> None:
    """Tuned for 4 096 tokens first, a call of 16 finds its tactics made: what it took is no price."""
    tuned = sys.modules[load("moe").prepare.__module__]._tuned
    counts: dict[str, dict[str, int]] = {"done": {}, "last": {}}
    told = SimpleNamespace(tuned_op_successful_configs=counts["done"], tuned_op_total_configs=counts["last"])  # fmt: skip
    tuner = SimpleNamespace(get=lambda: SimpleNamespace(stats=told))
    module = SimpleNamespace(autotune=lambda _: nullcontext(), autotuner=SimpleNamespace(AutoTuner=tuner))  # fmt: skip
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", module.autotuner)
    op = "trtllm::fused_moe::gemm1"

    def call(new: int, sizes: int) -> None:
        counts["done"][op] = counts["done"].get(op, 0) + new
        counts["last"][op] = sizes

    for new, sizes, priced in ((20, 20, True), (3, 5, False), (0, 5, False)):
        p = {"tactics": "tuned", "backend": "cutlass"}
        _, info = tuned(p, partial(call, new=new, sizes=sizes), {}, SimpleNamespace(out=None))  # fmt: skip
        assert info["tactics"] == "tuned" and ("tuning_s" in info) == priced
    counts["done"].clear()

    class Tuner:
        _instance: Any = "a process's"

    module.autotuner.AutoTuner = Tuner
    asked: list[Any] = []
    layer = SimpleNamespace(out=None)
    default, info = tuned({"tactics": "default"}, lambda: asked.append(Tuner._instance), {}, layer)
    default()
    assert info == {} and type(asked[0]) is Tuner and Tuner._instance == "a process's"
    module.autotuner.AutoTuner = tuner
    with pytest.raises(NotHereError, match="could time no tactic"):
        tuned(p, partial(call, new=0, sizes=5), {}, SimpleNamespace(out=None))
    # The counts are CUTLASS's: they tell nothing of the CuTe DSL's tuner, which comes after it.
    _, info = tuned(p | {"backend": "cute-dsl"}, lambda: None, {}, layer)
    assert info == {"tactics": "tuned"}


# --- inputs, where torch is installed -----------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def inputs(torch: Any) -> Any:
    from ncuflow.target.launch import Inputs

    return Inputs("point", device="cpu")


@pytest.mark.parametrize(("length", "page_size", "last"), [(33, 16, 1), (32, 16, 16), (5, 1, 1)])
def test_a_page_table_is_shuffled_complete_and_gathers_in_order(
    torch: Any, inputs: Any, length: int, page_size: int, last: int
) -> None:
    from ncuflow.target.inputs import page_table

    table = page_table(inputs, 3, length, page_size)
    pages = len(table.indices) // 3
    assert pages == math.ceil(length / page_size)
    assert sorted(table.indices.tolist()) == list(range(3 * pages)) != table.indices.tolist()
    assert table.indptr.tolist() == [0, pages, 2 * pages, 3 * pages]
    assert table.last_page_len.tolist() == [last] * 3
    cache = torch.arange(3 * pages * page_size).view(3 * pages, page_size, 1, 1)
    found = table.gather(cache, 1, 3)
    assert found.shape == (2, length, 1, 1)
    places = [divmod(t, page_size) for t in range(length)]
    token = [int(table.indices[pages + page]) * page_size + at for page, at in places]
    assert found[0].flatten().tolist() == token


def test_a_cache_of_8_bits_is_gathered_as_it_is(torch: Any, inputs: Any) -> None:
    from ncuflow.target.inputs import page_table, torch_dtype

    table = page_table(inputs, 2, 5, 2)
    wide = inputs.normal(6, 2, 1, 4, dtype=torch.float16)
    rounded = wide.to(torch_dtype("fp8"))
    found = table.gather(rounded, 0, 2)
    assert found.dtype == torch.float8_e4m3fn
    assert torch.equal(found.float(), table.gather(rounded.float(), 0, 2))
    assert inputs.normal(3, dtype=torch.float8_e4m3fn).dtype == torch.float8_e4m3fn


def test_a_cascade_and_flat_decode_read_the_same_tokens(torch: Any, inputs: Any) -> None:
    from ncuflow.targets import cascade

    p = cascade.TARGET.parameters | {"batch": 3, "prefix": 8, "kv_len": 5, "page_size": 4}
    shared, own = cascade._tables(p, inputs)
    cache = torch.arange(8 * 4).view(8, 4, 1, 1)
    assert sorted([*shared.indices.tolist(), *own.indices.tolist()]) == list(range(8))
    whole = cascade._joined(p, shared, own)
    assert whole.indptr.tolist() == [0, 4, 8, 12] and whole.last_page_len.tolist() == [1, 1, 1]
    prefix = shared.gather(cache, 0, 1).expand(3, -1, 1, 1)
    expected = torch.cat([prefix, own.gather(cache, 0, 3)], dim=1)
    assert torch.equal(whole.gather(cache, 0, 3), expected)


def test_a_chunks_rows_see_the_context_before_them_and_themselves(torch: Any) -> None:
    from ncuflow.targets import pod

    k = torch.zeros(5, 1, 4)
    # with equal scores, the mean of what is seen
    v = torch.arange(5.0).view(5, 1, 1).expand(5, 1, 4)
    found = pod.expected_chunk(torch.zeros(2, 1, 4), k, v)
    assert found[:, 0, 0].tolist() == pytest.approx([1.5, 2.0])


def test_pod_is_planned_by_the_prefill_module_that_decodes_run_apart_from_it(torch, monkeypatch):
    jit = pytest.importorskip("flashinfer.jit")
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    assert jit.gen_pod_module
    pod = load("pod")
    names = {
        v: [m.name for m in pod.modules(params(pod, variant=v))] for v in ("pod", "fa2", "fa3")
    }
    assert names["fa2"] == names["fa3"][:1] == names["pod"][:1]
    assert names["fa3"][1].endswith("sm90") and names["pod"][1].startswith("pod_with_kv_cache")


def test_inputs_depend_on_point_and_seed_alone_and_a_sample_has_the_first_row_and_the_last(
    torch: Any, inputs: Any
) -> None:
    def draw(point: str, seed: int) -> list[float]:
        drawn = type(inputs)(point, seed, "cpu").normal(4, dtype=torch.float32)
        return list(drawn.tolist())

    assert draw("a", 0) == draw("a", 0)
    assert draw("a", 0) != draw("b", 0) != draw("b", 1)
    assert inputs.rows(5, 8).tolist() == [0, 1, 2, 3, 4]
    rows = inputs.rows(1000, 8).tolist()
    assert rows == sorted(set(rows)) and len(rows) <= 8
    assert rows[0] == 0 and rows[-1] == 999


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ("prefill", {"lengths": "lognormal", "batch": 8}),
        ("prefill", {"cached": 2048}),
        ("prefill", {"layout": "paged"}),
        ("prefill", {"dtype": "fp8"}),
        ("prefill", {"soft_cap": 30}),
        ("rmsnorm", {"pdl": "off"}),
        ("rmsnorm", {"variant": "layernorm", "dtype": "bf16"}),
    ],
)
def test_torch_stands_beside_what_it_computes_alike_and_nothing_else(
    target: str, refused: dict[str, Any]
) -> None:
    made, hopper = known()[target], {"compute_capability": "9.0", "memory_bytes": 80 << 30}
    own = {"layout": "ragged", "backend": "torch"} if target == "prefill" else {"norm": "torch"}
    assert made.skip(made.completed({**own, "dtype": "bf16"}), hopper) is None
    assert made.skip(made.completed({**own, **refused}), hopper)
    choice = next(c for c in made.compared if c.other == "torch")
    base = made.completed({**own, "dtype": "bf16", choice.parameter: choice.base})
    assert choice.pairs([base, made.completed({**own, "dtype": "bf16"})]) == [(0, 1)]
