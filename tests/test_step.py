"""Steps of a trace: where they begin, which shapes ran, how far from the roof, why the GPU stood idle, what may be gained."""

import json
import lzma
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, some
from engine_trace import (
    APPEND,
    DECODE,
    GATED,
    GEMM,
    LAYERS,
    MERGE,
    NORM,
    ROPE,
    SAMPLING,
    MadeTrace,
    decode_step,
    prefill_step,
)

from ncuflow.cli import dispatch
from ncuflow.findings import kernelname
from ncuflow.findings.choices import Effect
from ncuflow.io import BadInput, UsageError, read_json
from ncuflow.pages.html import experiments as html
from ncuflow.parsers import nsys, torch_trace
from ncuflow.parsers.timeline import KERNEL, LONGEST_NAME, Launched
from ncuflow.step import detection, reference, shapes, summary
from ncuflow.step import trace as steps
from ncuflow.step.record import KernelOfStep, StepAnswer, StepGroup
from ncuflow.step.reference import Machine, roof
from ncuflow.step.shapes import NOTHING
from ncuflow.step.trace import report, roof_text, times
from ncuflow.target.attention import lengths
from ncuflow.target.contract import known

# One of each kind: the default sweep's on a GPU, and the other targets'.
PLACES = ("h100/0.7.2/default/*/b*", "h200/0.7.2/kernels/*/*")
RECORDED = sorted(path for of in PLACES for path in ROOT.glob(f"recordings/{of}/trace.sqlite.xz"))


def decoded(steps: int, **how: Any) -> MadeTrace:
    """A trace of so many steps of decode."""
    trace = MadeTrace()
    for _ in range(steps):
        decode_step(trace, **how)
    return trace


def decode_answer(tmp_path: Path, *words: Any, **more: Any) -> StepGroup:
    return group(answer(decoded(3), tmp_path, *words, **more), "decode")


def answer(trace: MadeTrace, tmp_path: Path, gpu: str | None = "NVIDIA H100 80GB HBM3", **more: Any) -> StepAnswer:  # fmt: skip
    return steps.step(trace.write(tmp_path / "trace.json.gz", gpu), **more)


def group(found: StepAnswer, kind: str, replayed: bool = False) -> StepGroup:
    (one,) = [one for one in found.groups if (one.kind, one.replayed) == (kind, replayed)]
    return one


def kernel(of: StepGroup, name: str) -> KernelOfStep:
    (one,) = [one for one in of.kernels if one.demangled == name]
    return one


# --- where steps begin ------------------------------------------------------------------------------


def test_steps_are_told_by_the_period_of_the_kernels(tmp_path):
    trace = MadeTrace()
    for number in range(6):
        (prefill_step if number % 3 == 0 else decode_step)(trace)
    found = answer(trace, tmp_path)
    assert found.found_by.startswith(f"{detection.PERIOD} (6 repeats, alike by ")
    assert {(one.kind, one.steps) for one in found.groups} == {("prefill", 2), ("decode", 4)}
    assert group(found, "decode").step_us.median == pytest.approx(LAYERS * 104 + 20 + 5)


@pytest.mark.parametrize(("between", "step_us"), [(0, 34), (2, 42)])
def test_a_step_ends_when_the_host_has_its_tokens(tmp_path, between, step_us):
    """What is sampled is copied to the host, close behind it; the host then takes its time for the next step."""
    trace = MadeTrace()
    for _ in range(4):
        trace.copy(8)
        trace.kernel(NORM, 4, (32, 1, 1), (32, 16, 1), shared=16448)
        trace.kernel(GATED, 3, (32, 1, 1), (256, 1, 1))
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
        for _ in range(between):
            trace.kernel(GATED, 4, (1, 1, 1), (256, 1, 1))
        trace.copy(256, us=6, way="DtoH (Device -> Pageable)")
        trace.at += 500
    assert answer(trace, tmp_path).groups[0].step_us.median == pytest.approx(step_us)


def test_ranges_tell_steps_and_their_kind(tmp_path):
    trace = MadeTrace()
    trace.kernel(NORM, 4, (8, 1, 1), (32, 16, 1))  # before the first step
    for number in range(3):
        begin = trace.at - 10
        decode_step(trace, idle=20)
        trace.range(f"decode step {number}", begin, trace.at - 2)
        trace.at += 40
    found = answer(trace, tmp_path)
    assert found.found_by == detection.RANGES
    assert [(one.kind, one.steps) for one in found.groups] == [("decode", 3)]
    assert sum(one.launches for one in group(found, "decode").kernels) == LAYERS * 6 + 1 + 5


@pytest.mark.parametrize(
    ("label", "kind", "said"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", "prefill",
         {"prompts": 1, "decodes": 0, "tokens": 888, "prompt_tokens": 888, "prompt_squares": 788544}),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)", "decode",
         {"decodes": 32, "tokens": 32, "decodes_kv_tokens": 32785}),
        ("execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)", "mixed",
         {"prompts": 9, "decodes": 37, "tokens": 8192, "prompt_kv_tokens": 8430}),
        ("step[DECODE bs=32]", "decode", {"decodes": 32, "tokens": 32}),
        ("step[EXTEND bs=15 toks=15360]", "prefill", {"prompts": 15, "tokens": 15360}),
    ],
)  # fmt: skip
def test_what_servers_name_their_steps(label, kind, said):
    found = detection.parse_range(label)
    assert said.items() <= found.items()
    span = detection.StepSpan(np.zeros(0, np.int64), label=label, said=found)
    assert detection._labelled(span) == kind


def test_replays_of_a_graph_are_steps(tmp_path):
    trace = MadeTrace()
    for number in range(4):
        trace.call("cudaGraphLaunch", trace.at - 3, 1, 9000 + number)
        decode_step(trace, graph=9000 + number)
        trace.at += 12
    found = answer(trace, tmp_path)
    assert found.found_by == f"{detection.REPLAYS} (4 repeats, alike by 100 %)"
    one = group(found, "decode", replayed=True)
    assert one.steps == 4
    assert one.period_us == pytest.approx(LAYERS * 104 + 20 + 12)
    assert {row.graph for row in one.kernels} == {True}


@pytest.mark.parametrize(
    "names",
    [
        "a",
        "iigsgn",  # one pass, whose inputs two kernels alike make
        "igignigm",  # three fills, before kernels that have nothing in common
        "abcxabcx",  # twice the same
    ],
)
def test_a_trace_without_a_period_is_shown_whole(names, tmp_path):
    trace = MadeTrace()
    for place, name in enumerate(names):
        unlike = f"_{place}" * (names == "igignigm" and name != "i")
        trace.kernel(f"kernel_{name}{unlike}", 4, (8, 1, 1), (32, 16, 1), idle=1)
    found = answer(trace, tmp_path)
    assert (found.found_by, len(found.groups), found.groups[0].steps) == (detection.WHOLE, 1, 1)
    assert sum(row.launches for row in found.groups[0].kernels) == len(names)
    for said in (report(found), html.rendered_step(found)):
        assert "no steps told" in said and "1 step" not in said


def test_repeats_without_a_mark_may_be_layers_and_it_is_said(tmp_path):
    trace = MadeTrace()
    for _ in range(4):
        for name in "abc":
            trace.kernel(f"kernel_{name}", 4, (8, 1, 1), (32, 16, 1))
    found = answer(trace, tmp_path)
    assert found.found_by == f"{detection.PERIOD} (4 repeats, alike by 100 %: {detection.LAYERS})"


@pytest.mark.parametrize("lengths", [[100, 200], [100, 200, 400], [5, 7, 11, 13], [3]])
def test_a_median_lies_between_its_quartiles(lengths, tmp_path):
    trace = MadeTrace()
    for us in lengths:
        begin = trace.at
        for name in "abc":
            trace.kernel(f"kernel_{name}", us, (8, 1, 1), (32, 1, 1), idle=1)
        trace.range("ProfilerStep#1", begin, trace.at)
        trace.at += 50
    (of,) = answer(trace, tmp_path).groups
    times = of.step_us
    assert times.least <= times.q25 <= times.median <= times.q75 <= times.most
    assert times.median == pytest.approx(3 * np.median(lengths) + 2)
    assert of.shown_us == 3 * sorted(lengths)[(len(lengths) - 1) // 2] + 2


def of_devices(path: Path, *devices: int | None, stream: int | None = 7) -> Path:
    """Three kernels of a GPU each, 10 us longer than the one's before."""
    trace = MadeTrace()
    for number, device in enumerate(devices):
        for _ in range(3):
            trace.kernel(f"kernel_{number}", 10 * (number + 1), (8, 1, 1), (32, 1, 1), idle=5)
            args = trace.events[-2]["args"]
            args |= {"device": device, "stream": stream}
    return trace.write(path)


def test_of_several_gpus_it_is_said_which_is_shown(tmp_path):
    path = of_devices(tmp_path / "trace.json", 0, 1, 3)
    found = steps.step(path)
    assert (found.device, found.devices) == (3, 3)
    assert found.problems[0].startswith("GPU 3 is shown, and 2 others ran something: --device 0")
    other = steps.step(path, device=1)
    assert {row.name for row in other.groups[0].kernels} == {"kernel_1"}
    with pytest.raises(BadInput, match="nothing ran on GPU 2, of 0, 1, 3"):
        steps.step(path, device=2)
    alone = steps.step(of_devices(tmp_path / "one.json", 0))
    assert (alone.device, alone.devices) == (0, 1)
    assert not any("shown" in problem for problem in alone.problems)


def test_what_does_not_say_its_gpu_leaves_no_gap_known(tmp_path, capsys):
    path = of_devices(tmp_path / "trace.json", 0, 1, None)
    found = steps.step(path, device=1)
    assert found.groups[0].gaps is None
    assert any("3 operations without a GPU" in problem for problem in found.problems)
    assert dispatch(["step", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert "waits for the host" not in capsys.readouterr().out
    one = steps.step(of_devices(tmp_path / "one.json", 0, None))  # it can only be this one
    assert one.groups[0].gaps.count == 5
    unsaid = steps.step(of_devices(tmp_path / "stream.json", 0, stream=None)).groups[0]
    assert (unsaid.overlapped_us, unsaid.dependent_us) == (None, None)


def test_a_page_of_many_names_is_bounded_and_says_so(tmp_path, monkeypatch):
    trace = MadeTrace()
    for number in range(30):
        trace.kernel(f"kernel_{number}{'x' * 5000}", 1 + number, (8, 1, 1), (32, 1, 1))
    page = tmp_path / "page.html"
    monkeypatch.setattr(html, "MOST_ROWS", 10)
    path = trace.write(tmp_path / "trace.json")
    assert dispatch(["step", str(path), "--html", str(page)]) == 0
    text = page.read_text()
    assert text.count('<td class="name"><code') == 10
    assert "kernel_29" in text and "kernel_3x" not in text
    assert "20 rows of the least time are left out here" in text
    assert "x" * 2000 not in text
    assert ">isolated<" not in text  # of none of them is a point measured


def test_names_of_megabytes_are_cut_before_they_are_searched(tmp_path):
    long = MadeTrace().kernel("prefill " * 200_000, 5, (8, 1, 1), (32, 1, 1))
    long.range(f"decode step {'1' * 1_000_000}", 1, 2)
    found = torch_trace.read(long.write(tmp_path / "trace.json"))
    texts = [found.kinds[0].name, *found.texts]
    assert max(map(len, texts)) == LONGEST_NAME + 1
    assert kernelname.family("x" * kernelname.TELLING + "gemm") == kernelname.OTHER


@pytest.mark.parametrize(
    ("text", "name", "dims"),
    [
        ("aten::mm, op_id = 3, sizes = [[32, 4096], [4096, 6144]]", "aten::mm", ((32, 4096), (4096, 6144))),
        ("aten::cat, seq = 4, sizes = [[], [2, 3]], input_op_ids = [[1]]", "aten::cat", ((), (2, 3))),
        ("aten::add, sizes = []", None, ()),
        ("sizes = [[8]]", None, ()),
        ("aten::add, sizes = [[8], [", None, ()),
    ],
)  # fmt: skip
def test_sizes_that_a_range_states_are_read(text, name, dims):
    found = shapes.sized(text)
    assert (found and found.name, found.dims if found else ()) == (name, dims)


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "9" * 5000])
def test_a_size_without_bounds_is_no_shape(number, tmp_path):
    label = f"execute_context_1({number}_1)_generation_0(0)"
    assert not {*detection.parse_range(label).values()} & {int("9" * 400)}
    range_of = f"decode(batch=32, kv_len={number})"
    stated = shapes.of_range(range_of)
    trace = MadeTrace().kernel(DECODE, 60, (128, 8, 1), (16, 4, 2), idle=5, shared=9216)
    trace.range(range_of, 1000, 1010).range(label, 999, 2000)
    assert answer(trace, tmp_path).groups[0].kernels[0].roof is None
    assert stated is None or not number.isdecimal()
    sizes = f"aten::mm, seq = 1, sizes = [[{number}, 8], [8, 8]]"
    assert shapes.sized(sizes) is None or "e" in number
    folder = tmp_path / "dump"
    folder.mkdir()
    axes = {"page_size": {"value": 1 << 40}}
    (folder / "a.json").write_text(json.dumps({"name": "gqa_paged_decode_h32", "axes": axes}))
    assert shapes.of_dump(folder).values == {}
    name = f"flashinfer::norm::RMSNormKernel<{number}u, __half>"
    shapes.of_launch(Launched(KERNEL, name, (8, 1, 1), (32, 16, 1)), NOTHING, ())


def test_graphs_traced_as_a_whole_say_how_to_record_them(tmp_path):
    from test_parsers_nsys import Export

    export = Export()
    for number in range(3):
        at = 1000 * number
        export.call(at, at + 50, number + 1, name=5)
        export.add("GRAPH_TRACE", start=at + 100, end=at + 900, deviceId=0, streamId=7, correlationId=number + 1, graphId=4,
                   globalPid=281525711011840)  # fmt: skip
    found = steps.step(export.write(tmp_path / "whole.sqlite"))
    assert summary.NODE in found.problems
    assert "--cuda-graph-trace=node" in summary.NODE


# --- shapes -----------------------------------------------------------------------------------------


def test_shapes_are_told_or_refused(tmp_path):
    found = answer(
        decoded(4), tmp_path, known=["page_size=16", "intermediate=14336", "vocab=128256"]
    )
    one = group(found, "decode")
    assert one.tokens == (32, 32)
    norm = kernel(one, NORM).shape
    fused = {"variant": "fused_add_rmsnorm", "rows": 32, "dtype": "f16"}
    assert norm.candidates == [{**fused, "norm": "cuda", "hidden": 4096}]
    product = kernel(one, GEMM).shape
    assert product.candidates == [{"variant": "mm", "m": 32, "n": 6144, "k": 4096, "dtype": "f16"}]
    assert product.source == "the shapes of aten::mm"
    sampled = {"variant": "top_p", "batch": 32, "vocab": 128256}
    assert kernel(one, SAMPLING).shape.candidates == [sampled]
    attention = kernel(one, DECODE).shape
    assert [p["kv_len"] for p in attention.candidates] == [2033, 2048]
    assert {p["batch"] for p in attention.candidates} == {32}
    assert "the page table that plan() copied" in attention.source
    assert kernel(one, MERGE).shape.refusal == "it finishes the call before it"
    assert found.shape_pct == 100


def test_without_its_page_table_a_decode_has_no_length(tmp_path):
    shape = kernel(decode_answer(tmp_path), DECODE).shape
    assert shape.candidates == []
    heads = {"kv_heads": 8, "qo_heads": 32, "head_dim": 128}
    assert shape.certain == {**heads, "cores": "cuda", "batch": 32}
    assert "every length of the cache" in shape.refusal


def test_a_range_around_a_launch_states_its_shape(tmp_path):
    trace = decoded(3)
    calls = [e for e in trace.events if e["cat"] == "cuda_runtime"]
    by_correlation = {e["args"]["correlation"]: e["ts"] for e in calls}
    for event in [e for e in trace.events if e["name"] == DECODE]:
        at = by_correlation[event["args"]["correlation"]]
        heads = "qo_heads=32, kv_heads=8, head_dim=128, page_size=16"
        trace.range(f"decode(batch=32, kv_len=777, {heads}, dtype=f16)", at - 0.1, at + 1)
    shape = kernel(group(answer(trace, tmp_path), "decode"), DECODE).shape
    assert shape.candidates[0]["kv_len"] == 777
    assert shape.source == "a range around the launch"


def test_a_dump_says_what_launches_do_not(tmp_path):
    folder = tmp_path / "dump"
    folder.mkdir()
    axes = {"hidden_size": {"type": "const", "value": 28672}, "num_tokens": {"type": "var"}}
    (folder / "a.json").write_text(json.dumps({"name": "silu_and_mul_h28672", "axes": axes}))
    paged = {"name": "gqa_paged_decode_h32", "axes": {"page_size": {"value": 16}}}
    (folder / "b.json").write_text(json.dumps(paged))
    (folder / "killed.json").write_text('{"name": "gqa')
    found = shapes.of_dump(folder)
    assert found.values == {"intermediate": (14336, 14336), "page_size": (16, 16)}
    other = {"name": "append_paged_kv", "axes": {"page_size": {"value": 1}}}
    (folder / "c.json").write_text(json.dumps(other))
    assert "page_size" not in shapes.of_dump(folder).values  # two caches: no one size
    with pytest.raises(BadInput, match="without a definition"):
        shapes.of_dump(tmp_path / "none")


@pytest.fixture(scope="module")
def recorded_launches() -> list[tuple[str, dict[str, Any], Any, Any, bool]]:
    """(target, true parameters, launch, hosts, of a graph) of every kind of launch that recordings have by their points."""
    return list(launches_of_recordings())


def launches_of_recordings() -> Iterator[tuple[str, dict[str, Any], Any, Any, bool]]:
    for path in some(RECORDED):
        points = {point["id"]: point for point in read_json(path.parent / "points.json")}
        timeline = nsys.read_timeline(path)
        hosts = summary.Summary(timeline, NOTHING, reference.Reference()).hosts
        rows, ranges = timeline.rows, timeline.ranges.arrays()
        order = np.argsort(ranges["start"])
        starts, ends, names = (ranges[name][order] for name in ("start", "end", "name"))
        seen = set()
        for call, what, graph in zip(rows["call"], rows["what"], rows["graph"], strict=True):
            place = int(np.searchsorted(starts, call, "right")) - 1
            name = timeline.texts[names[place]] if place >= 0 and ends[place] >= call else ""
            if name in points and (name, what) not in seen:
                seen.add((name, what))
                one, target = timeline.kinds[what], name.split("/")[0]
                params = known()[target].completed(points[name]["params"])
                yield target, params, one, hosts, graph >= 0


def truth(target: str, p: dict[str, Any]) -> dict[str, int]:
    """What would be known of a step around a point."""
    tokens = {"rmsnorm": "rows", "rope": "tokens"}.get(target)
    found = {name: p[name] for name in ("qo_heads", "kv_heads", "page_size", "vocab") if name in p}
    found |= {"tokens": p[tokens]} if tokens else {}
    match target:
        case "rmsnorm":
            return found | {"hidden": p["hidden"]}
        case "activation":
            return {"intermediate": p["hidden"]}
        case "kv_append":
            return {"tokens": p["batch"] * p["append_len"]}
        case "decode":
            return found | {"decodes": p["batch"], "decodes_kv_tokens": p["batch"] * p["kv_len"]}
        case "prefill":
            own = lengths(p, "seq_len")
            read = sum(own) + p["cached"] * sum(1 for length in own if length)
            found |= {"prompts": p["batch"], "prompt_tokens": sum(own), "prompt_kv_tokens": read}
            return found | {"prompt_squares": sum(length**2 for length in own)}
    return found


def agrees(candidate: dict[str, Any], p: dict[str, Any]) -> bool:
    """Whether a candidate is the point; an append's tokens may be any sequences', a norm is CUDA's however it was asked for."""
    if "append_len" in candidate and candidate["batch"] * candidate["append_len"] != p["batch"] * p["append_len"]:  # fmt: skip
        return False
    apart = {"norm", "batch", "append_len"} if "append_len" in candidate else {"norm"}
    return all(value == p[name] for name, value in candidate.items() if name not in apart)


@pytest.mark.parametrize("with_facts", [False, True], ids=["launch", "launch and step"])
def test_every_shape_of_a_recorded_launch_is_right_or_refused(with_facts, recorded_launches):
    told: dict[str, int] = {}
    for target, p, one, hosts, graph in some(recorded_launches):
        if one.kind != "kernel" or not kernelname.targets_of(kernelname.bare(one.name)):
            continue
        facts = NOTHING.joined(truth(target, p), "the truth") if with_facts else NOTHING
        found = shapes.of_launch(one, facts, hosts, graph)
        if found.candidates:
            told[target] = told.get(target, 0) + 1
            right = [c for c in found.candidates if agrees(c, p)]
            assert right, (target, p, one, found.candidates)
            if with_facts:  # all that launches so moves as many bytes
                of = found.target
                works = {of.work(of.completed(c)).bytes for c in found.candidates}
                assert works == {known()[target].work(p).bytes}, (p, found.candidates)
    always = {"rmsnorm", "rope"}
    more = {"decode", "prefill", "activation", "kv_append", "sampling"}
    assert told.keys() >= (always | more if with_facts else always)


@pytest.mark.parametrize(
    ("said", "kv_heads"),
    [
        ({}, {1, 2, 4, 5, 8, 10, 20}),
        ({"kv_heads": 8}, {8}),
        ({"qo_heads": 32}, {8}),
        ({"kv_heads": 6}, {1, 2, 4, 5, 8, 10, 20}),  # of another attention: no 34 queries share 6
    ],
)
def test_heads_that_attention_says_are_those_that_are_rotated(said, kv_heads):
    rotated = Launched(KERNEL, ROPE, grid=(256, 40, 1), block=(16, 8, 1))
    found = shapes.of_launch(rotated, NOTHING.joined(said, "the step's other launches"), ())
    assert {one["kv_heads"] for one in found.candidates} == kv_heads
    assert {one["qo_heads"] + one["kv_heads"] for one in found.candidates} == {40}


def test_heads_of_a_prefill_whose_lengths_nobody_knows_are_those_that_are_rotated(tmp_path):
    """Of seven numbers of heads that 40 may be, the attention's: its own shape is refused, its KV heads are in its grid."""
    trace = MadeTrace()
    for _ in range(3):
        trace.kernel(ROPE, 4, (256, 40, 1), (16, 8, 1))
        prefill_step(trace)
    of = answer(trace, tmp_path).groups[0]
    attention = next(one for one in of.kernels if "Prefill" in one.name)
    assert attention.shape.candidates == [] and attention.shape.certain["kv_heads"] == 8
    rotated = {(one["qo_heads"], one["kv_heads"]) for one in kernel(of, ROPE).shape.candidates}
    assert rotated == {(32, 8)}


def test_rules_that_launch_otherwise_refuse_a_shape(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        trace.kernel(NORM, 4, (32, 1, 1), (32, 7, 1), shared=16448)
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
    shape = kernel(answer(trace, tmp_path).groups[0], NORM).shape
    assert shape.candidates == []
    assert "launch rules" in shape.refusal


# --- roofs, gaps, gains -----------------------------------------------------------------------------


def test_the_distance_to_the_roof_is_of_the_targets_count(tmp_path):
    one = kernel(decode_answer(tmp_path, known=["page_size=16"]), DECODE)
    work = known()["decode"].work(known()["decode"].completed(one.shape.candidates[1]))
    assert one.roof.bytes[1] == work.bytes
    assert one.roof.ceiling_source == "measured"
    rate = float(one.roof.ceiling.removesuffix(" GB/s")) * 1e9
    # of the call: 60 us of attention, and 2 us that merge its chunks
    assert one.roof.percent[1] == pytest.approx(100 * work.bytes / rate / 62e-6, rel=0.01)
    assert one.nearest.point == "decode/B32_L2048_H32_K8_D128_P16_f16_cc"


def test_what_is_above_a_ceiling_has_no_distance_to_it(recorded_engine):
    """A product of the recorded prefill reaches more than the product that the ceiling was measured with."""
    launches = [one for group in recorded_engine.groups for one in group.kernels if one.roof]
    above = [one for one in launches if one.roof.percent[0] > 100]
    below = [one for one in launches if one.roof.percent[0] <= 100]
    assert {roof_text(one) for one in some(above)} == {f"> 100 % {one.roof.bound}" for one in above}
    assert not any("> 100" in roof_text(one) for one in some(below))


def test_the_parts_of_the_median_step_add_up_to_it(tmp_path):
    trace = MadeTrace()
    for idle in (10, 40, 20, 90):
        for name in (NORM, GATED, SAMPLING):
            trace.kernel(name, 5, (32, 1, 1), (32, 16, 1), idle=idle)
    (of,) = answer(trace, tmp_path, gpu=None).groups
    assert of.steps == 4
    assert of.shown_us == of.busy_us + of.gaps.host_us == 15 + 2 * 20
    assert (of.step_us.q25, of.step_us.median, of.step_us.q75) == (50, 15 + 2 * 30, 120)


def test_what_l2_may_hold_is_no_distance_to_dram(recorded_engine):
    """Operands that the kernels before wrote, as far as L2 holds them; not weights and caches, nor a launch alone."""
    rows = [
        one for group in recorded_engine.groups for one in group.kernels
        if one.roof and one.roof.bound == "DRAM" and len(one.shape.candidates) == 1
    ]  # fmt: skip
    l2_bytes = 50 << 20
    for one in some(rows):
        low, high = one.roof.percent
        warm = 0 if one.family in ("GEMM", "attention") else l2_bytes
        least = max(0, one.roof.bytes[0] - warm) / one.roof.bytes[0] * high
        computing = 10  # % that FLOPs of CUDA cores may take, which nothing spares
        assert least - 0.2 <= low <= max(least + 0.2, computing), one.name
    assert {"≤ 8 % DRAM"} <= {roof_text(one) for one in rows if one.family == "norm"}
    assert "from L2" in {roof_text(one) for one in rows if one.family == "activation"}
    target = known()["rmsnorm"]
    machine = Machine.of("NVIDIA H100 80GB HBM3", None)
    params = target.completed({"rows": 32, "hidden": 4096})
    alone, warm = (roof(target, [params], 3.0, "norm", machine, alone=own) for own in (True, False))
    assert alone.percent[0] == alone.percent[1] == warm.percent[1] > 5 > 1 > warm.percent[0]


def test_a_launch_that_was_held_up_is_told_from_the_others(recorded_engine):
    """A row's time is a sum; the distance to the roof is the median launch's."""
    rows = {
        text: one
        for of in recorded_engine.groups
        for text, one in zip(times(of.kernels)[1][1], of.kernels, strict=True)
    }
    held_up = [text for text, one in rows.items() if one.longest_us > 7 * one.each_us]
    assert [" to " in text for text in some(held_up)] == [True] * len(held_up)
    alike = [text for text, one in rows.items() if one.longest_us < 1.1 * one.each_us]
    assert not any(" to " in text for text in some(alike))


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_of_a_step_fits_the_terminal_and_has_one_unit_a_column(
    recorded_engine, width, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = report(recorded_engine).splitlines()
    assert max(len(line) for line in lines[2:]) <= 2 * width  # a problem may take two lines
    at = next(number for number, line in enumerate(lines) if line.startswith("  #"))
    heads, *rows = lines[at : at + 3]
    assert re.match(r"  # +share +(ms|µs) +n +each, (ms|µs) ", heads)
    assert all(len(row) <= width and not re.search(r"\d (ms|µs|s) ", row) for row in rows)


def test_a_distance_is_the_median_launch_s_of_all_steps_of_a_kind(tmp_path):
    trace = MadeTrace()
    for gated, sampled in ((10, 20), (100, 20), (10, 200)):
        trace.kernel(NORM, 4, (32, 1, 1), (32, 16, 1), shared=16448)
        trace.kernel(GATED, gated, (32, 1, 1), (256, 1, 1))
        trace.kernel(SAMPLING, sampled, (32, 1, 1), (1024, 1, 1))
    (of,) = answer(trace, tmp_path).groups
    assert (of.step_us.median, of.median_step) == (124, 2)
    assert (kernel(of, GATED).each_us, kernel(of, GATED).time_us) == (10, 100)


def test_a_launch_without_a_shape_is_held_against_no_point():
    found = steps.step(
        ENGINE / "trace.json.xz", known=MODEL, recording=ROOT / "recordings/h100/0.7.2/default"
    )
    rows = [one for group in found.groups for one in group.kernels if one.shape]
    assert any(one.shape.candidates and one.nearest for one in rows)
    refused = [one for one in rows if one.shape.refusal and not one.shape.candidates]
    assert not any(one.nearest for one in some(refused))


def test_an_unknown_gpu_has_no_roof_and_says_so(tmp_path):
    trace = MadeTrace()
    decode_step(trace)
    found = answer(trace, tmp_path, gpu="NVIDIA X1")
    assert all(one.roof is None for one in found.groups[0].kernels)
    assert any("table of GPUs" in problem for problem in found.problems)
    assert found.recording is None


def test_gaps_are_of_the_host_or_of_a_wait(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        for idle in (0, 50, 30):
            before = trace.at
            if idle == 30:
                trace.call("cudaStreamSynchronize", before - 2, 10, 0)
            trace.kernel(NORM, 4, (32, 1, 1), (32, 16, 1), idle=idle, shared=16448)
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
    one = answer(trace, tmp_path).groups[0]
    assert (one.gaps.host_us, one.gaps.sync_us, one.gaps.count) == (50, 30, 2)
    assert one.gaps.longest_us == 50
    assert one.busy_us == pytest.approx(32)
    assert one.step_us.median == pytest.approx(112)


@pytest.mark.parametrize(("waits", "first"), [(False, 0.0), (True, 10.0)])
def test_what_a_shorter_kernel_brings_ends_where_the_host_is_late(tmp_path, waits, first):
    """Of four kernels, the second begins after the host was late, and the others right behind, asked for 4.5 us before."""
    trace = MadeTrace()
    for _ in range(3):
        trace.kernel(NORM, 20, (32, 1, 1), (32, 16, 1), idle=100, shared=16448)
        if waits:  # then the host's call comes the sooner the kernel ends
            trace.call("cudaStreamSynchronize", trace.at - 2, 10, 0)
        trace.kernel(GATED, 20, (32, 1, 1), (256, 1, 1), idle=50)
        trace.kernel(APPEND, 20, (132, 1, 1), (16, 8, 1))
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
    timeline = torch_trace.read(trace.write(tmp_path / "trace.json.gz"))
    step = detection.found(timeline, 0)[0][1]
    assert len(step.rows) == 4
    slack = detection.slack(timeline, step)
    saved = np.array([[10.0, 0, 0, 0], [0, 10.0, 0, 0], [0, 3.0, 0, 0], [0, 0, 0, 8.0]])
    assert [slack.gained(row) for row in saved] == pytest.approx([first, 4.5, 3.0, 8.0])


def test_a_host_that_waits_for_the_step_s_tokens_holds_nothing_up(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        trace.kernel(NORM, 20, (32, 1, 1), (32, 16, 1), idle=100, shared=16448)
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
        trace.at += 2
        trace.copy(128, way="DtoH (Device -> Pageable)")
        # The call for it came as early as the sampling's, and back when the tokens were there.
        trace.events[-1] |= {"ts": trace.at - 25, "dur": 26}
    timeline = torch_trace.read(trace.write(tmp_path / "trace.json.gz"))
    step = detection.found(timeline, 0)[0][1]
    assert len(step.rows) == 3
    assert detection.slack(timeline, step).gained(np.array([4.0, 0, 0])) == 4.0
    assert detection.gaps(timeline, step).host_us == 0


def test_a_graph_s_kernels_wait_for_each_other_alone(tmp_path):
    trace = MadeTrace()
    for number in range(3):
        decode_step(trace, graph=1000 + number)
        trace.call("cudaGraphLaunch", trace.at - 300, 290, 1000 + number)
        trace.at += 50
    timeline = torch_trace.read(trace.write(tmp_path / "trace.json.gz"))
    (step, *_), _ = detection.found(timeline, 0)
    assert detection.slack(timeline, step).gained(np.full(len(step.rows), 1.0)) == len(step.rows)


def test_what_runs_at_once_is_counted_once(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        begin = trace.at
        trace.kernel(NORM, 10, (32, 1, 1), (32, 16, 1), shared=16448)
        trace.at = begin + 6
        trace.kernel("ncclDevKernel_AllReduce_Sum_bf16", 10, (8, 1, 1), (512, 1, 1), stream=9)
        trace.kernel(SAMPLING, 20, (32, 1, 1), (1024, 1, 1))
    one = answer(trace, tmp_path).groups[0]
    assert (one.step_us.median, one.overlapped_us) == (36, 4)
    assert one.exposed_communication_us == 6
    assert sum(row.time_us for row in one.kernels) == pytest.approx(36)
    assert {row.family for row in one.families} == {"norm", "communication", "sampling"}


def test_plan_is_of_the_host(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        plan = "/x/flashinfer/decode.py(1834): plan"
        trace.range(plan, trace.at, trace.at + 33, "python_function")
        decode_step(trace)
    assert group(answer(trace, tmp_path), "decode").plan_us == pytest.approx(33)


def test_a_gain_is_what_was_measured_and_never_more_than_the_share(tmp_path):
    trace = decoded(3, batch=8, pages=1024, chunks=16)
    one = group(answer(trace, tmp_path, "NVIDIA H200", known=["page_size=16"]), "decode")
    shares = {row.name: row.share for row in one.kernels}
    for row in some(one.gains):
        assert 0 < row.low_pct <= row.high_pct <= row.share_pct
        (roof,) = {k.roof.percent[0] for k in one.kernels if k.name == row.kernel and k.roof}
        assert row.high_pct <= row.share_pct * (1 - min(roof, 100) / 100) + 0.01
        assert row.share_pct <= sum(shares.values())
    assert [row.high_pct for row in one.gains] == sorted((row.high_pct for row in one.gains), reverse=True)  # fmt: skip
    cores = next(row for row in one.gains if row.choice == "cores_grouped")
    assert cores.pairs[:2] == ["decode/B8_L2048_H32_K8_D128_P16_f16_cc", "decode/B8_L2048_H32_K8_D128_P16_f16_tc"]  # fmt: skip
    assert cores.change == "cuda → tensor"
    assert cores.high_pct < cores.share_pct / 2  # no pair gained as much


def test_a_gain_that_lengths_decide_is_none_of_a_launch_that_does_not_tell_them(tmp_path):
    """32 sequences of one length gain by tensor cores, and as many tokens in uneven ones lose."""
    one = decode_answer(tmp_path, "NVIDIA H200", known=["page_size=16"])
    assert [row for row in one.kernels if "BatchDecode" in row.name]
    assert "cores_grouped" not in {row.choice for row in one.gains}


def test_a_saving_is_of_the_side_that_a_launch_is_on():
    price = Effect("time_cold_us", "a", "b", (), 100, 80, -0.2, low=-0.25, high=-0.1)
    assert reference.saving(price, base=True) == pytest.approx((0.1, 0.25))
    low, high = reference.saving(price, base=False)
    assert (low, high) == pytest.approx((-1 / 3, -1 / 9))


def test_a_gain_lies_between_a_host_as_slow_and_a_gpu_never_idle():
    calls = reference.CallsOfStep("K", 30.0, 100.0, 60.0, lambda saved: min(2.0, 30.0 * saved))
    assert calls.saves((0.1, 0.2), {}) == (2.0, 10.0)
    assert calls.saves((0.1, 0.9), {}) == (2.0, 30.0)  # never more than its share
    assert calls.saves((-0.1, -0.05), {}) == (-3.0, -1.5)


def test_a_gain_is_never_above_what_the_calls_take_over_the_roof_of_the_other_choice():
    """Decode on tensor cores reads the bytes that it reads on CUDA cores: at 70 % of that roof 30 % is left to gain."""
    asked: list[dict[str, object]] = []
    roof = asked.append  # the parameters that are changed are those of the other choice
    calls = replace(HALF, roofed=lambda changed: roof(changed) or 0.7)
    with ExitStack() as stack:
        results = reference.evidence(None, ROOT / "recordings/h200/0.7.2/default", stack).results("decode")  # fmt: skip
    params = {"batch": 64, "kv_len": 2048, "qo_heads": 64, "kv_heads": 8, "cores": "cuda", "lengths": "even"}  # fmt: skip
    free, held = (
        next(g for g in reference.of_recording(known()["decode"], params, of, results) if g.choice == "cores_grouped")
        for of in (HALF, calls)
    )  # fmt: skip
    assert free.high_pct > 15 and held.high_pct == pytest.approx(15)
    assert held.low_pct <= held.high_pct and {"cores": "tensor"} in asked


HALF = reference.CallsOfStep("K", 50.0, 100.0, 100.0, lambda saved: 50.0 * saved)


def test_a_pair_saves_between_its_cold_and_its_sustained_times():
    """fa3, FlashInfer's choice on an H200, at 4096 and 8192 tokens: 41 % less of cold launches, 34 % where the power limit
    has set in."""
    with ExitStack() as stack:
        results = reference.evidence(None, ROOT / "recordings/h200/0.7.2/default", stack).results("prefill")  # fmt: skip
    sizes = {"seq_len": 8192, "batch": 1, "qo_heads": 32, "kv_heads": 8, "head_dim": 128, "layout": "paged"}  # fmt: skip
    points = {point["point"]: point["measurement"]["time_sustained_us"] for point in results["points"]}  # fmt: skip
    names = "prefill/paged_S{}_B1_H32_K8_D128_f16_{}_c"
    fa2, fa3 = ([points[names.format(n, of)] for n in (4096, 8192)] for of in ("fa2", "auto"))
    settled = [1 - after / before for before, after in zip(fa2, fa3, strict=True)]
    assert min(settled) == pytest.approx(0.335, abs=0.001)
    for backend, low, high in (("fa2", min(settled), 0.416), ("auto", -0.713, 1 - 1 / (1 - min(settled)))):  # fmt: skip
        params = {**sizes, "backend": backend}
        rows = reference.of_recording(known()["prefill"], params, HALF, results)
        (found,) = [row for row in rows if row.choice == "prefill_auto"]
        assert found.low_pct == pytest.approx(50 * low, abs=0.6)
        assert found.high_pct == pytest.approx(50 * high, abs=0.8)


def test_an_advice_is_read_by_its_record(tmp_path):
    params = {"batch": 32, "kv_len": 2048, "qo_heads": 32, "kv_heads": 8, "head_dim": 128}
    shape = {
        "target": "decode", "shape": "decode/default", "params": params, "advised": "decode/better",
        "regret": {"estimate": 0.25, "low": 0.2, "high": 0.3}, "in_turns": True,
    }  # fmt: skip
    path = tmp_path / "advice.json"
    path.write_text(json.dumps({"command": "advise", "gpu": "G", "shapes": [shape]}))
    found = list(reference.of_advice(reference.read_advice(path), known()["decode"], params, HALF))
    assert [(row.change, row.low_pct, row.high_pct) for row in found] == [
        ("decode/default → decode/better", pytest.approx(8.33), pytest.approx(11.54))
    ]
    held = replace(HALF, roofed=lambda changed: 0.9)  # 10 % of its time is above the roof
    (row,) = reference.of_advice(reference.read_advice(path), known()["decode"], params, held)
    assert row.low_pct == row.high_pct == pytest.approx(50 * 0.1)
    other = {**params, "kv_heads": 32, "batch": 1}
    assert (
        list(reference.of_advice(reference.read_advice(path), known()["decode"], other, HALF)) == []
    )
    path.write_text("{}")
    with pytest.raises(BadInput, match="ncuflow advise"):
        reference.read_advice(path)


# --- families ---------------------------------------------------------------------------------------


SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, at::native::(anonymous namespace)::"


@pytest.mark.parametrize(
    ("name", "family", "owner"),
    [
        (NORM, "norm", "FlashInfer"),
        (DECODE, "attention", "FlashInfer"),
        (SAMPLING, "sampling", "FlashInfer"),
        (GEMM, "GEMM", "cuBLAS"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", "NCCL"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "RoPE", "vLLM"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(x)", "append", "vLLM"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2", "MoE", "TensorRT-LLM"),
        ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)", "copy", "torch"),
        (f"{SOFTMAX}SoftMaxForwardEpilogue>(float*, float const*, int)", "elementwise", "torch"),
        (f"{SOFTMAX}LogSoftMaxForwardEpilogue>(float*, float const*, int)", "sampling", "torch"),
        ("acme_secret", "other", None),
    ],
)  # fmt: skip
def test_a_kernels_family_and_whose_it_is(name, family, owner):
    assert (kernelname.family(name), kernelname.owner(name)) == (family, owner)


def test_every_kernel_of_a_target_has_a_family():
    for target in some(known().values()):
        for symbol in target.source.kernels if not target.generic else ():
            if symbol.header:
                assert kernelname.family(symbol.name) != kernelname.OTHER, symbol.name


# --- the verb ---------------------------------------------------------------------------------------


def test_the_screen_and_the_page_say_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "132")
    trace = decoded(3)
    path, page = trace.write(tmp_path / "a<b>.json"), tmp_path / "page.html"
    assert dispatch(["step", str(path), "--known", "page_size=16", "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "decode: 3 steps, 32 tokens" in said
    assert max(map(len, said[: said.index("! ")].splitlines())) <= 132
    text = page.read_text()
    assert "a&lt;b&gt;.json" in text and "a<b>" not in text
    assert text.count("<script") == 1
    assert "BatchDecodeWithPagedKVCacheKernel" in text and "BatchDecodeWith" in said


def test_what_is_asked_wrong_is_refused(tmp_path):
    with pytest.raises(UsageError, match="NAME=NUMBER"):
        steps.parse_known(["pages=16"])
    with pytest.raises(UsageError, match="NAME=NUMBER"):
        steps.parse_known(["tokens=" + "9" * 5000])
    with pytest.raises(BadInput, match="no such file"):
        steps.step(tmp_path / "none.json")
    csv = tmp_path / "a.csv"
    csv.write_text("a,b,c\n1,2,3\n")
    with pytest.raises(BadInput, match="neither an nsys export"):
        steps.step(csv)
    with pytest.raises(BadInput):
        torch_trace.read(csv)


# --- an engine that was recorded on a GPU, whose launches are known --------------------------------------

ENGINE = ROOT / "tests/data/engine"  # examples/engine/engine.py, three steps of each kind of it
MODEL = ["page_size=16", "hidden=4096", "intermediate=14336", "vocab=128256", "qo_heads=32"]


@pytest.fixture(scope="module")
def recorded_engine() -> StepAnswer:
    return steps.step(ENGINE / "trace.json.xz", known=MODEL)


@pytest.fixture(scope="module")
def engine_truth() -> dict[str, Any]:
    return read_json(ENGINE / "known.json.xz")


def test_the_recorded_steps_are_all_found(recorded_engine, engine_truth):
    wanted = {(step["kind"], step["graph"]) for step in engine_truth["steps"]}
    assert {(one.kind, one.replayed) for one in recorded_engine.groups} == wanted
    assert [one.steps for one in recorded_engine.groups] == [3, 3, 3, 3]
    tokens = {(one.kind, one.tokens) for one in recorded_engine.groups}
    assert recorded_engine.family_pct >= 95 and recorded_engine.shape_pct >= 90
    assert ">isolated<" in html.rendered_step(recorded_engine)
    assert tokens == {("prefill", (2048, 2048)), ("decode", (32, 32)), ("mixed", (543, 543))}


def alike(told: dict[str, Any], p: dict[str, Any]) -> bool:
    """Whether a call may be what is told of it: an append's tokens may be any sequences'."""
    apart = {name: told.get(name, 1) for name in ("batch", "append_len")}
    tokens = apart["batch"] * apart["append_len"]
    same = all(p.get(name, value) == value for name, value in told.items() if name not in apart)
    return same and tokens == p.get("batch", apart["batch"]) * p.get(
        "append_len", apart["append_len"]
    )


def test_every_shape_of_the_recorded_engine_is_right_or_refused(recorded_engine, engine_truth):
    told = set()
    for of in some(recorded_engine.groups):
        own = [
            s for s in engine_truth["steps"] if (s["kind"], s["graph"]) == (of.kind, of.replayed)
        ]
        calls = [call for step in own for call in step["calls"]]
        for row in some(of.kernels):
            if row.shape is None or not row.shape.candidates:
                assert row.shape is None or row.shape.refusal or row.shape.operands
                continue
            known_params = [c["params"] for c in calls if c["target"] == row.shape.target]
            told.add((of.kind, of.replayed, row.shape.target))
            lengths = [c.get("kv_len") for c in row.shape.candidates]
            for candidate in row.shape.candidates:
                rest = {k: v for k, v in candidate.items() if k not in ("kv_len", "norm")}
                assert any(alike(rest, p) for p in known_params), (of.kind, row.name, candidate)
            if None not in lengths:
                assert any(min(lengths) <= p["kv_len"] <= max(lengths) for p in known_params)
    eager = {("decode", False, name) for name in ("decode", "gemm", "rope", "kv_append")}
    assert eager | {("mixed", False, "rmsnorm"), ("decode", True, "rope")} <= told


def test_distances_to_the_roof_are_those_of_the_launch_alone(recorded_engine, engine_truth):
    """In a step between a cold L2 and a warm one, to 5 points; of what reads weights, launches beyond 30 us, for alone they
    wait up to 10 us for the L2 that was emptied by writing."""
    compared = []
    for of in some(recorded_engine.groups):
        for call in engine_truth["alone"].get(of.kind, []) if not of.replayed else ():
            for name, took in call["kernels_us"].items():
                for row in (r for r in of.kernels if r.demangled == name and r.roof):
                    low, high = row.roof.percent
                    sizes = row.shape.candidates[0]
                    own = {k: v for k, v in call["params"].items() if k in ("m", "n", "k")}
                    if own.items() - sizes.items() or (low == high and row.each_us <= 30):
                        continue
                    cold, hot = (high * row.each_us / took[state] for state in ("cold", "hot"))
                    assert low - 5 <= max(cold, hot), (name, cold, hot)
                    assert cold - 5 <= high, (name, cold, hot)
                    compared.append(name)
    assert len(compared) >= 20


def test_a_change_that_was_made_gained_what_was_predicted(recorded_engine, engine_truth):
    """RoPE from the cache of sines in place of positions: of the time of its own steps, in turns."""
    of = group(recorded_engine, "prefill")
    times = engine_truth["turns"]["rope"]["times"]["prefill"]
    base, changed = (np.median(times[side]) for side in ("base", "changed"))
    saved_pct = 100 * (1 - changed / base)
    row = next(one for one in of.kernels if "ApplyRotary" in one.name)
    measured_share = 100 * row.time_us / base
    (found,) = [one for one in of.gains if one.choice == "rope_cache"]
    scale = measured_share / found.share_pct
    spread = 100 * 1.25 * np.std(times["base"]) / np.sqrt(len(times["base"])) / base
    assert found.low_pct * scale - 2 * spread <= saved_pct <= found.high_pct * scale + 2 * spread
    assert found.high_pct <= found.share_pct


def test_steps_of_an_nsys_trace_with_a_graph_s_nodes_are_told(tmp_path):
    """The engine on an H200 under nsys 2024.2.3, --cuda-graph-trace=node: six steps of each kind."""
    path = tmp_path / "nsys-node.sqlite"
    path.write_bytes(lzma.decompress((ENGINE / "nsys-node.sqlite.xz").read_bytes()))
    found = steps.step(path, known=MODEL)
    assert [(one.kind, one.replayed, one.steps) for one in found.groups] == [
        ("prefill", False, 6), ("decode", False, 6), ("mixed", False, 6), ("decode", True, 6)
    ]  # fmt: skip
    assert found.family_pct >= 95
    assert found.shape_pct >= 90
    # The nodes of a graph are kernels of their own, as they are without one.
    decode = [one for one in found.groups if one.kind == "decode"]
    names = [{row.name for row in one.kernels if row.family == "GEMM"} for one in decode]
    assert len(names) == 2 and names[0] == names[1] != set()


@pytest.mark.parametrize("with_shapes", [True, False])
def test_waits_for_a_host_that_the_profiler_slowed_are_at_most_so_long(tmp_path, with_shapes):
    trace = MadeTrace()
    for _ in range(4):
        trace.kernel(
            "gemm", 9, (1,), (32,), idle=300, dims=[[2, 4], [4, 8]] if with_shapes else None
        )
    found = steps.step(trace.write(tmp_path / "trace.json"))
    assert found.host_slowed is with_shapes is (summary.SLOWED in found.problems)
    assert ("at most" in report(found)) is with_shapes
