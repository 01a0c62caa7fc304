"""The scheduler's split-KV rule, and a launched grid beside it."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_data import launched

from ncuflow.findings.kernelname import Decoder
from ncuflow.pages.markdown.guide_kernels import split_rows
from ncuflow.target.contract import load


def split(batch, pages, page_size, kv_heads, queries=1):
    """A decode, or a prefill with tiles of 128 rows."""
    name, length = ("prefill", "seq_len") if queries > 1 else ("decode", "kv_len")
    heads = {"qo_heads": kv_heads, "kv_heads": kv_heads, "page_size": page_size}
    p = load(name).completed({"batch": batch, length: pages * page_size, **heads})
    return load(name).rules.splits(p, "", lambda parameter: "128")


@pytest.mark.parametrize(
    ("given", "slots", "expected"),
    [
        ((1, 128, 16, 32), 792, 16),  # H200, decode batch 1: 16 chunks were launched
        ((8, 128, 16, 32), 792, 3),
        ((32, 128, 16, 32), 792, 1),  # the unsplit grid fills the GPU
        ((1, 2048, 16, 8), 264, 33),  # tensor cores
        ((1, 32, 16, 32, 512), 264, 2),  # fa2 prefill of 512 tokens
        ((1, 8, 16, 1), 10_000, 1),  # 128 tokens are the smallest chunk
    ],
)
def test_what_was_launched_on_an_h200(given, slots, expected):
    assert split(*given).chunks(slots) == expected


@given(
    batch=st.integers(1, 64),
    pages=st.integers(1, 4096),
    heads=st.sampled_from([1, 4, 8, 32]),
    slots=st.integers(1, 4096),
)
def test_a_split_grid_fits_and_a_smaller_chunk_would_not(batch, pages, heads, slots):
    n = split(batch, pages, 16, heads).chunks(slots)
    assert n >= 1
    if n > 1:
        assert batch * n * heads <= slots
        chunk = ceil(pages / n)
        while chunk > 8 and ceil(pages / (chunk - 1)) == n:
            chunk -= 1
        if chunk > 8:  # 128 tokens of 16 a page
            assert batch * ceil(pages / (chunk - 1)) * heads > slots


LIMITS = {"occupancy_limit_registers": 8.0, "occupancy_limit_shared_mem": 6.0}


def kernel(name, grid, duration):
    return launched(name, grid_size=grid, duration_ns=duration, metrics=LIMITS)


PARAMS = {
    "batch": 1,
    "kv_len": 2048,
    "qo_heads": 32,
    "kv_heads": 32,
    "page_size": 16,
    "launch": "eager",
}
DECODE = "BatchDecodeWithPagedKVCacheKernel"


def row(params, *kernels, target="decode"):
    points = [{"point": "decode/x", "params": params, "kernels": list(kernels), "info": {}}]
    return split_rows(load(target), points, 132, Decoder())


def test_a_row_holds_the_launched_grid_against_the_rule():
    merge = kernel("PersistentVariableLengthMergeStatesKernel", 1000, 3000.0)
    (found,) = row(PARAMS, kernel(DECODE, 512, 1000.0), merge)
    assert (found["slots"], found["launched"], found["rule"]) == (792, 16, 16)
    assert found["kernel"] == DECODE  # though the merge took longer
    assert (found["merge_us"], found["merge_share"]) == (3.0, 0.75)


def test_a_graph_has_a_padded_grid_and_no_prediction():
    (found,) = row(PARAMS | {"launch": "graph"}, kernel(DECODE, 768, 1000.0))
    assert (found["rule"], found["padded"], found["merge_us"]) == (None, True, None)


def test_a_graph_whose_grid_fills_the_gpu_is_whole():
    (found,) = row(PARAMS | {"launch": "graph", "batch": 32}, kernel(DECODE, 1024, 1000.0))
    assert (found["rule"], found["padded"], found["launched"]) == (1, False, 1)


def test_fa3_and_other_kernels_have_no_row():
    assert row(PARAMS | {"backend": "fa3"}, kernel("PrefillWithKVCacheKernel", 132, 1.0)) == []
    assert row({"rows": 4096}, kernel("RMSNormKernel", 4096, 1.0), target="rmsnorm") == []
    assert row(PARAMS) == []


def test_the_scheduler_of_prefill_takes_an_sm_to_hold_two_blocks():
    params = {**load("prefill").parameters, "seq_len": 512, "batch": 2}
    main = kernel("BatchPrefillWithPagedKVCacheKernel", 264, 1.0)
    (found,) = row(params, main, target="prefill")
    assert found["slots"] == 2 * 132  # though six fit
