"""mini-sglang's steps, recorded by examples/mini-sglang/run.py under ``ncuflow step annotate``, against its scheduler's own word.

On an H200 (torch 2.11, FlashInfer 0.7.2.post1), torch's profiler with shapes, three steps of each kind, cut to what is read.
"""

from __future__ import annotations

import re
from statistics import mean
from typing import Any

import pytest
from conftest import ROOT, some

from ncuflow.io import read_json
from ncuflow.step import trace as steps
from ncuflow.step.record import StepGroup

DATA = ROOT / "tests/data/mini-sglang"
TRUTH: dict[str, Any] = read_json(DATA / "truth.json.xz")
KINDS = ("graph", "prefill")
ATTENTION = {"graph": "decode", "prefill": "prefill"}


@pytest.fixture(scope="module")
def groups() -> dict[str, StepGroup]:
    found = {}
    for kind in KINDS:
        (found[kind],) = steps.step(DATA / f"{kind}.json.xz").groups
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_found(groups: dict[str, StepGroup], kind: str) -> None:
    one = groups[kind]
    assert one.steps == len(TRUTH["steps"][kind]) == 3
    assert one.kind == TRUTH["steps"][kind][0]["kind"] and one.replayed == (kind == "graph")
    new = [sum(step["new"]) for step in TRUTH["steps"][kind]]
    assert one.tokens == (min(new), max(new))


@pytest.mark.parametrize("kind", KINDS)
def test_nearly_all_of_the_busy_time_has_a_shape_and_a_roof(groups, kind):
    kernels = groups[kind].kernels
    told = [row for row in kernels if row.shape and row.shape.candidates and row.roof]
    assert sum(row.time_us for row in told) >= 0.95 * sum(row.time_us for row in kernels)


def lengths(params: dict[str, Any], name: str) -> list[int]:
    """Of the sequences of a call, longest first."""
    listed = re.findall(r"(\d+)x(\d+)", params.get("lengths", ""))
    return [int(size) for count, size in listed for _ in range(int(count))] or [
        params[name]
    ] * params["batch"]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_has_the_sequences_that_the_scheduler_launched(groups, kind):
    one, target = groups[kind], ATTENTION[kind]
    step = TRUTH["steps"][kind][one.median_step - 1]
    rows = [row for row in one.kernels if row.family == "attention" and row.shape.candidates]
    assert len(rows) == 1 and rows[0].launches == TRUTH["model"]["num_hidden_layers"]
    (params,) = rows[0].shape.candidates
    assert rows[0].shape.target == target
    source = "the capture of its graph" if kind == "graph" else "a range around the launch"
    assert rows[0].shape.source == source
    heads = (TRUTH["model"]["num_attention_heads"], TRUTH["model"]["num_key_value_heads"])
    of = [params[name] for name in ("qo_heads", "kv_heads", "dtype", "page_size")]
    assert of == [*heads, "bf16", 1]
    name, whole = ("kv_len", step["tokens"]) if target == "decode" else ("seq_len", step["new"])
    told = lengths(params, name)
    assert (params["batch"], params[name]) == (len(whole), round(mean(whole)))
    # A list names at most 16 lengths: of more, the mean of neighbours.
    assert sum(told) == pytest.approx(sum(whole), rel=1e-3)
    assert told[0] <= max(whole) and told[-1] >= min(whole)
    if target == "prefill":
        both = zip(step["tokens"], step["new"], strict=True)
        assert {params["cached"]} == {whole - new for whole, new in both}


@pytest.mark.parametrize("kind", KINDS)
def test_products_have_the_model_s_sizes(groups: dict[str, StepGroup], kind: str) -> None:
    step = TRUTH["steps"][kind][groups[kind].median_step - 1]
    sized = [row for row in some(groups[kind].kernels) if row.shape and row.shape.target == "gemm"]
    found = {(p["m"], p["n"], p["k"]): row.launches for row in sized for p in row.shape.candidates}
    tokens, last = sum(step["new"]), len(step["new"])
    sizes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    assert found == {(tokens, *size): 32 for size in sizes} | {(last, 128256, 4096): 1}


def test_a_padded_replay_says_so(groups: dict[str, StepGroup]) -> None:
    """60 sequences in the graph of 64: the others have one token each."""
    told = [row.shape for row in groups["graph"].kernels if row.shape]
    (shape,) = [one for one in told if one.target == "decode" and one.candidates]
    assert shape.candidates[0]["lengths"].endswith("_4x1")
