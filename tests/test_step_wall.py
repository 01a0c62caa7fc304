"""A step's time without the profiler, the table of its parts, and what fits into a line."""

import re

import pytest
from conftest import some
from engine_trace import MadeTrace, decode_step
from test_step_names import b200

from ncuflow.cli import dispatch
from ncuflow.io import BadInput, UsageError
from ncuflow.pages.html import experiments as html
from ncuflow.step import summary
from ncuflow.step import trace as steps
from ncuflow.step.trace import report

__all__ = ["b200"]  # a fixture


def waiting(with_shapes: bool = True) -> MadeTrace:
    """Four steps of 9 us and 300 us of waiting each, of kernels whose shapes are written down or not."""
    trace = MadeTrace()
    for number in range(4):
        begin = trace.at
        for _ in range(3):
            trace.kernel("gemm", 3, (1,), (32,), idle=100, dims=[[2, 4], [4, 8]] if with_shapes else None)  # fmt: skip
        trace.range(f"decode step {number}", begin, trace.at)
    return trace


def test_a_wall_time_says_how_long_the_gpu_idles_without_the_profiler(tmp_path):
    path = waiting().write(tmp_path / "trace.json")
    (plain,) = steps.step(path).groups
    assert (plain.wall_us, plain.idle_us, plain.gaps.host_us) == (None, None, 200)
    found = steps.step(path, walls=["15us"])
    (group,) = found.groups
    assert (group.wall_us, group.idle_us) == (15, 15 - 9)
    assert summary.SLOWED not in found.problems
    said = report(found)
    assert "of 15 µs without the profiler (said by the caller) idle 6 µs" in said
    assert "at most 6 µs waits for the host" in said and "200" not in said
    assert "idles 6 µs" in html.rendered_step(found)


def test_a_trace_without_shapes_says_the_wall_time(tmp_path):
    path = waiting().write(tmp_path / "trace.json")
    other = MadeTrace()
    for number in range(4):
        begin = other.at
        for _ in range(3):
            other.kernel("gemm", 3, (1,), (32,), idle=1)
        other.range(f"decode step {number}", begin, other.at)
    plain = other.write(tmp_path / "plain.json")
    (group,) = steps.step(path, walls=[str(plain)]).groups
    assert (group.wall_us, group.wall_source) == (12, "the steps of plain.json")
    with pytest.raises(BadInput, match="wrote down shapes as well"):
        steps.step(path, walls=[str(path)])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["3h"], "TIME as 240ms"),
        (["1us"], "is no decode step, whose kernels took 9"),
        (["prefill=3ms"], "there are: decode"),
        (["9" * 40 + "ms"], "TIME as 240ms"),
    ],
)
def test_a_time_that_is_no_step_s_is_refused(words, why, tmp_path):
    path = waiting().write(tmp_path / "trace.json")
    with pytest.raises(UsageError, match=why):
        steps.step(path, walls=words)


def test_gains_are_of_the_step_without_the_profiler(tmp_path):
    trace = MadeTrace()
    for _ in range(3):
        decode_step(trace, batch=8, pages=1024, chunks=16, idle=40)
    path, how = trace.write(tmp_path / "t.json", "NVIDIA H200"), {"known": ["page_size=16"]}
    (before,), (after,) = (
        steps.step(path, walls=walls, **how).groups for walls in ([], [f"{240}us"])
    )
    assert before.busy_us < 240 < before.shown_us
    for one, other in zip(some(before.gains), after.gains, strict=True):
        assert other.high_pct == pytest.approx(one.high_pct * before.busy_us / 240, abs=0.02)
        assert other.share_pct > one.share_pct and other.low_pct <= other.high_pct


# --- what is told of a step -------------------------------------------------------------------------


def test_the_parts_of_a_step_come_before_its_kernels(b200):
    text = report(b200)
    parts, kernels = text.index("  part "), text.index("  #  ")
    assert parts < kernels
    (group,) = b200.groups
    assert group.families[0].family == "MoE"
    moe = next(one for one in group.families if one.family == "MoE")
    assert moe.time_us == pytest.approx(36 * (88.4 + 56.5 + 7.0), rel=0.01)
    assert moe.roofed_pct == 100 and moe.roof_pct[0] < moe.roof_pct[1] < 50
    communication = next(one for one in group.families if one.family == "communication")
    assert (communication.roofed_pct, communication.roof_pct) == (0, None)
    page = html.rendered_step(b200)
    assert page.index("has a roof") < page.index("Kernels</h3>")


def test_each_reason_is_one_line_with_what_would_give_a_roof(b200):
    (group,) = b200.groups
    lines = steps.reasons(group)
    assert len(lines) == len({line.split(": ")[1] for line in lines}) == 3
    assert "no trace has it (multimem_all_reduce_kernel)" in lines[0]
    assert any("--known or ncuflow step annotate would give it" in line for line in lines)
    assert any("its window" in line and "; ncuflow step annotate" in line for line in lines)
    page = html.rendered_step(b200)
    assert "the wait for the other GPUs" in page
    shapes = re.findall(r'<td class="shape">(.*?)</td>', page, re.DOTALL)
    reasons = [cell for cell in some(shapes) if "wait for the other" in cell]
    assert all("note" in cell for cell in reasons)


def test_without_a_terminal_no_shape_is_cut(b200, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = report(b200)
    assert "888 tokens × 4 of 128 experts, 1024×3072 each" in text
    assert "rows=888 hidden=2880 variant=fused_add_rmsnorm dtype=bf16" in text
    line = next(line for line in text.splitlines() if "rows=888" in line)
    assert "fused_add_rms_norm" in line  # beside its kernel


@pytest.mark.parametrize("width", [60, 100, 200])
def test_columns_fit_the_terminal_and_shapes_stand_below(b200, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = report(b200)
    table = text[text.index("  part ") : text.index("! ")].splitlines()
    assert max(map(len, table)) <= max(width, 90)  # of parts the columns are few
    kernels = text[text.index("  #  ") : text.index("! ")].splitlines()
    assert max(map(len, kernels)) <= width
    whole = " ".join(text.split())
    assert "rows=888 hidden=2880 variant=fused_add_rmsnorm dtype=bf16" in whole


def test_the_verb_takes_a_wall_time(tmp_path, capsys):
    path = waiting().write(tmp_path / "trace.json")
    assert dispatch(["step", str(path), "--wall", "0.015ms"]) == 0
    assert "without the profiler" in capsys.readouterr().out
