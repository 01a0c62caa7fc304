"""Shapes of the nodes of a CUDA graph: of the calls in its capture, or of an eager launch that is alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, some
from engine_trace import DECODE as DECODES
from engine_trace import GEMM, LAYERS, MadeTrace, decode_step, layers
from engine_trace import NORM as NORMS

from ncuflow.parsers import torch_trace
from ncuflow.parsers.timeline import KERNEL, Launched
from ncuflow.step import trace as steps
from ncuflow.step.record import KernelOfStep, StepAnswer
from ncuflow.step.shapes import UNEQUAL, Ranges, nodes, of_range

# Annotated calls on an H200 (torch 2.11, FlashInfer 0.7.2.post1), torch's profiler, cut to what is read.
RECORDED = ROOT / "tests/data/annotate"

# As the hook writes it: a norm, a product, an append, attention and an activation a layer, then a draw.
NORM = "rmsnorm(variant=fused_add_rmsnorm, rows=32, hidden=4096, dtype=f16)"
PRODUCTS = [f"gemm(variant=mm, m=32, n={n}, k=4096, dtype=f16)" for n in (6144, 28672)]
DECODE = "decode(batch=32, kv_len=777, qo_heads=32, kv_heads=8, head_dim=128, page_size=16, dtype=f16, cores=cuda)"
DRAW = "sampling(variant=top_p, batch=32, vocab=128256)"
WHOLE = f"replay of abcadcf; a {NORM}; b {PRODUCTS[0]}; c {DECODE}; d {PRODUCTS[1]}; f {DRAW}"


def replayed(tmp_path: Path, text: str, eager: int = 0) -> StepAnswer:
    """Three replays in a range of this text, behind so many eager steps whose products the profiler saw."""
    trace = MadeTrace()
    for _ in range(eager):
        decode_step(trace)
    for number in range(3):
        begin = trace.at
        trace.call("cudaGraphLaunch", begin - 5, 3, 9000 + number)
        trace.range(text, begin - 6, begin - 1)
        decode_step(trace, graph=9000 + number)
        trace.copy(128, way="DtoH (Device -> Pageable)")
    for event in trace.events:  # the profiler has no operator of a replay
        if event["args"].get("graph node id"):
            event["args"].pop("External id")
    return steps.step(trace.write(tmp_path / "trace.json"))


def rows(found: StepAnswer) -> list[KernelOfStep]:
    return next(one for one in found.groups if one.replayed).kernels


def test_each_node_has_the_shape_of_its_call_in_the_capture(tmp_path: Path) -> None:
    told = {row.name: row.shape for row in rows(replayed(tmp_path, WHOLE))}
    decode = told["BatchDecodeWithPagedKVCacheKernel"]
    assert decode.source == "the capture of its graph"
    assert [one["kv_len"] for one in decode.candidates] == [777]
    merge = told["PersistentVariableLengthMergeStatesKernel"]
    assert not merge.candidates and "finishes" in merge.refusal
    assert told["TopPSamplingFromProbKernel"].candidates[0]["vocab"] == 128256
    products = [row.shape for row in rows(replayed(tmp_path, WHOLE)) if row.family == "GEMM"]
    assert LAYERS == 2 and [one.source for one in products] == ["the capture of its graph"] * 2
    assert {one.candidates[0]["n"] for one in some(products)} == {6144, 28672}


def test_products_that_are_not_as_many_as_were_captured_have_no_shape(tmp_path: Path) -> None:
    """Three products of two shapes were captured, and two run: which is which is not told. What all calls agree in is."""
    text = WHOLE.replace("abcadcf", "abcadcdf")
    found = {row.name: row.shape for row in rows(replayed(tmp_path, text))}
    (product,) = [row for row in rows(replayed(tmp_path, text)) if row.family == "GEMM"]
    assert product.shape is None or not product.shape.candidates
    assert found["BatchDecodeWithPagedKVCacheKernel"].candidates


def nodes_of(text: str, *names: str) -> list[str]:
    return [*nodes(text, [Launched(KERNEL, name, (8, 1, 1), (128, 1, 1)) for name in names])]


def test_the_one_product_that_is_told_is_not_that_of_every_kernel(tmp_path: Path) -> None:
    """The layers' products go by another library, and lm_head alone by torch's: two kernels run, of one call."""
    text = WHOLE.replace("abcadcf", "acabcf")
    (row,) = [row for row in rows(replayed(tmp_path, text)) if row.family == "GEMM"]
    assert not row.shape.candidates and row.shape.refusal == UNEQUAL and row.roof is None


@pytest.mark.parametrize(
    "name",
    [
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u>(float*, int*)",
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 4, 8, 8, false, 4, 8, false>(int4 const*)",
        "_w8a8_block_fp8_matmul",
        "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT",
    ],
)
def test_a_product_of_16_bits_is_no_kernel_s_of_fewer(name: str) -> None:
    text = f"replay of b; b {PRODUCTS[0]}"
    assert nodes_of(text, name, GEMM) == ["", PRODUCTS[0]]


def test_a_wrapper_whose_plan_is_not_told_keeps_its_kernels() -> None:
    """Of two wrappers in turns one is told: its kernels alone have its shape, and none where its calls are not as many."""
    text = f"replay of bcbc; c {DECODE}"
    assert nodes_of(text, *[DECODES] * 4) == ["", DECODE] * 2
    assert nodes_of(text, *[DECODES] * 2) == [UNEQUAL] * 2
    assert nodes_of(f"replay of c; c {DECODE}", *[DECODES] * 2) == [UNEQUAL] * 2


@pytest.mark.parametrize(("cap", "value"), [("50.0", 50), ("0", 0)])
def test_a_soft_cap_with_a_point_is_a_number(tmp_path: Path, cap: str, value: int) -> None:
    text = WHOLE.replace("cores=cuda", f"cores=cuda, soft_cap={cap}")
    shape = of_range(text.partition("c ")[2].partition(";")[0])
    assert shape and shape.candidates[0]["soft_cap"] == value
    assert type(shape.candidates[0]["soft_cap"]) is type(value)
    (row,) = [row for row in rows(replayed(tmp_path, text)) if "BatchDecode" in row.name]
    assert row.roof is not None


@pytest.mark.parametrize("of", ["tid", "pid"])
def test_ranges_of_another_thread_are_not_those_of_a_launch(of: str, tmp_path: Path) -> None:
    """The ranges of a thread's steps and of its call, and within them the ranges of another thread's, which launches too."""
    trace = MadeTrace()
    mine, others = (NORM.replace("rows=32", f"rows={rows}") for rows in (8, 1))
    for number in range(3):
        begin = trace.at - 10
        for _ in range(4):
            trace.kernel(NORMS, 90, (8, 1, 1), (32, 16, 1), shared=16448)
        trace.range(f"decode step {number}", begin, trace.at).range(mine, begin + 1, trace.at)
        for name in ("prefill step", others):
            trace.range(name, begin + 2, trace.at - 1)
            trace.events[-1][of] = 11
        trace.at += 500
    trace.kernel(NORMS, 90, (1, 1, 1), (32, 16, 1), shared=16448)
    trace.events[-1][of] = 11  # of the other thread, its call
    (found,) = steps.step(trace.write(tmp_path / "trace.json")).groups
    assert (found.kind, found.steps) == ("decode", 3)
    (row,) = found.kernels
    assert [one["rows"] for one in row.shape.candidates] == [8]


def test_a_launch_that_would_be_of_less_than_one_element_has_no_shape(tmp_path: Path) -> None:
    trace = MadeTrace()
    for _ in range(4):
        trace.kernel(NORMS, 9, (8, 1, 1), (32, 16, 1), shared=0)
    (found,) = steps.step(trace.write(tmp_path / "trace.json")).groups
    assert not found.kernels[0].shape.candidates and "no shape so" in found.kernels[0].shape.refusal


def test_a_graph_without_its_capture_has_the_products_of_eager_launches(tmp_path: Path) -> None:
    found = replayed(tmp_path, "another range", eager=3)
    (product,) = [row for row in rows(found) if row.family == "GEMM"]
    assert product.shape.source == "an eager launch of the same kernel and grid"
    assert [(one["m"], one["n"], one["k"]) for one in product.shape.candidates] == [
        (32, 6144, 4096)
    ]
    attention = next(row for row in rows(found) if "BatchDecode" in row.name)
    assert not any("eager" in row.shape.source for row in rows(found) if row.family == "attention")
    assert not any(one.get("kv_len") == 777 for one in attention.shape.candidates)


DAMAGED = (
    "replay of ",
    "replay of abc",
    "replay of ab; a ; b nothing(x=1)",
    "replay of é; é decode()",
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_range_of_a_replay_states_nothing(tmp_path: Path, text: str) -> None:
    assert not any(
        "capture" in (row.shape.source if row.shape else "")
        for row in rows(replayed(tmp_path, text))
    )


def test_a_replay_s_range_is_no_step_of_its_own(tmp_path: Path) -> None:
    """Its text has the words of one, "decode(batch=…": steps are told by what they draw."""
    trace = MadeTrace()
    for number in range(3):
        begin = trace.at
        trace.call("cudaGraphLaunch", begin - 5, 3, 9000 + number)
        trace.range(WHOLE, begin - 6, begin - 1)
        decode_step(trace, graph=9000 + number)
        layers(trace, 32, "void attention()", (1, 1, 1), (32, 1, 1), 0)
    found = steps.step(trace.write(tmp_path / "trace.json"))
    assert "ranges" not in found.found_by


def test_a_call_of_experts_is_held_against_the_roof_as_a_whole(tmp_path: Path) -> None:
    """Its products have no names of their own. How tokens fall on experts no call tells: the roof is between the two ends."""
    trace = MadeTrace()
    text = "moe(tokens=16, experts=8, top_k=2, hidden=4096, intermediate=14336, dtype=bf16, spread=?, backend=cutlass)"
    parts = ("cub::DeviceRadixSort", "expandInputRowsKernel", GEMM, "doGatedActivationKernel", GEMM)
    for number in range(3):
        trace.at += 50
        trace.kernel(NORMS, 4, (16, 1, 1), (32, 16, 1), shared=16448)
        begin = trace.at
        for name in parts:
            trace.kernel(name, 200, (132, 1, 1), (384, 1, 1))
        trace.range(text, begin - 6, trace.at - 202)
        trace.kernel(GEMM, 30, (48, 2, 1), (384, 1, 1))
        trace.range(f"decode step {number}", begin - 12, trace.at)
    (group,) = steps.step(trace.write(tmp_path / "trace.json")).groups
    first, *rest = sorted(
        (row for row in group.kernels if row.time_us > 100), key=lambda row: row.roof is None
    )
    assert [row.shape.refusal for row in rest] == ["it finishes the call before it"] * 3
    assert {one["spread"] for one in first.shape.candidates} == {"even", "zipf", "one"}
    # weights of two or of all eight experts, in the 1000 us of the whole call
    low, high = first.roof.bytes
    assert low == pytest.approx(high / 4, rel=0.02) and high > 8 * 3 * 4096 * 14336 * 2
    assert first.roof.percent[1] == pytest.approx(high / 1000e-6 / 3.35e12 * 100, rel=0.2)
    (other,) = [row for row in group.kernels if row.time_us < 100 and row.family == "GEMM"]
    assert other.shape is None or not other.shape.candidates


def test_a_call_of_experts_has_one_roof_and_a_draw_in_two_calls_two_shapes() -> None:
    (group,) = steps.step(RECORDED / "experts.json.xz").groups
    told = {row.name: row for row in group.kernels}
    first = told["fusedBuildExpertMapsSortFirstTokenKernel"]
    assert first.shape.target == "moe" and first.roof is not None
    assert {
        (one["tokens"], one["experts"], one["intermediate"]) for one in first.shape.candidates
    } == {(64, 8, 2048)}
    rest = [
        told[name].shape.refusal
        for name in ("device_kernel", "doActivationKernel", "finalizeMoeRoutingKernel")
    ]
    assert all("finishes" in why for why in rest)
    names = ("RadixTopKRenormProbKernel_MultiCTA", "TopPSamplingFromProbKernel")
    assert [told[name].shape.candidates[0]["variant"] for name in names] == [
        "top_k_renorm",
        "top_p",
    ]


def test_a_graph_has_no_call_of_a_thread_that_did_not_capture_it() -> None:
    (group,) = steps.step(RECORDED / "capture.json.xz").groups
    (row,) = group.kernels
    assert row.launches == 6 and row.shape.source == "the capture of its graph"
    assert [one["rows"] for one in row.shape.candidates] == [8]


def test_launches_of_two_threads_at_once_keep_their_shapes_apart() -> None:
    """The profiler recorded the ranges of one; the other launched while they were open."""
    timeline = torch_trace.read(RECORDED / "threads.json.xz")
    rows, ranges = timeline.rows, timeline.ranges.arrays()
    within = (ranges["start"] <= rows["call"][:, None]) & (rows["call"][:, None] <= ranges["end"])
    mine = np.isin(rows["thread"], ranges["thread"])
    stated = [text.partition(",")[0] for text, _ in Ranges(timeline).of(np.arange(len(mine)))]
    assert {*mine.tolist()} == {True, False} and within[~mine].any()
    assert stated == ["decode(batch=4" if own else "" for own in mine]
