"""Figures: what their ceilings are those of."""

from __future__ import annotations

from typing import Any

from reporting import figures


def point(seq_len: int, dtype: str, measured: float) -> dict[str, Any]:
    row: dict[str, Any] = {"tflops": 100.0, "time_cold_us": 10.0, "ai_analytic": 200.0}
    row |= {"time_cold_q25_us": 9.0, "time_cold_q75_us": 11.0}
    row |= {f"ceiling_tensor_tflops_{source}": None for source in figures.CEILING_STYLE}
    row["ceiling_tensor_tflops_measured"] = measured
    return {"status": "ok", "params": {"seq_len": seq_len, "dtype": dtype}, "measurement": row}


def test_the_ceilings_of_a_sweep_are_those_of_the_points_drawn() -> None:
    """A single point of another type has no line, and its higher ceiling is not theirs."""
    points = [point(512, "f16", 700.0), point(1024, "f16", 700.0), point(2048, "bf16", 800.0)]
    (axes,) = figures.sweep({"points": points, "target": "prefill"}).axes
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "measured ceiling: 700" in texts
