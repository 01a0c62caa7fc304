"""From a cell back to its metric: every number of the recorded pages has evidence under it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from conftest import some

from ncuflow.findings.derivation import found, line, steps
from ncuflow.io import BadInput

EVIDENCE = (".ncu-rep", "timing.jsonl", "trace.sqlite", "ceilings.json", "gpus.yaml", "[point")


def trace(outputs: Path, point: str, column: str) -> list[str]:
    return [*map(line, steps(outputs, point, column))]


def cells(outputs):
    for path in sorted((outputs / "results").glob("*_results.json")):
        for point in json.loads(path.read_text())["points"]:
            for column, value in point["measurement"].items():
                if isinstance(value, float):
                    yield point["point"], column


def test_random_cells_end_at_evidence(finished, every):
    number = 20 if every else 6
    chosen = random.Random(20260109).sample(list(cells(finished.outputs)), number)
    for point, column in some(chosen):
        text = "\n".join(trace(finished.outputs, point, column))
        assert any(end in text for end in EVIDENCE), text


def test_a_rate_is_traced_to_the_metric_it_was_counted_with(finished):
    point = next(p for p, c in cells(finished.outputs) if c == "dram_gbs_counted")
    text = "\n".join(trace(finished.outputs, point, "dram_gbs_counted"))
    assert "dram_bytes_read (dram__bytes_read.sum)" in text
    assert "gpu__time_duration.sum" in text


@pytest.mark.parametrize(
    ("point", "column", "named"),
    [
        ("decode/none", "gbs", "decode/none"),
        ("nowhere/x", "gbs", "nowhere"),
        ("decode/x", "gbps", "decode/x"),
    ],
)
def test_what_is_not_there_is_named(finished, point, column, named):
    with pytest.raises(BadInput, match=named):
        found(point, column, finished.outputs)


@pytest.mark.parametrize(
    "point", ["sweep.ncu-rep#²", "sweep.ncu-rep#abc", "sweep.ncu-rep#", "nowhere/x"]
)
@pytest.mark.parametrize("column", ["duration_ns", "gbs"])
def test_what_is_neither_a_point_nor_a_launch_is_named_alone(point, column):
    with pytest.raises(BadInput, match=rf"^{point}: neither a point .* nor REPORT#INDEX"):
        found(point, column)


@pytest.mark.parametrize("digits", [13, 5000])
def test_an_index_longer_than_any_report_is_one_line(digits):
    with pytest.raises(BadInput, match=rf"no launch has an index of {digits} digits"):
        found("sweep.ncu-rep#" + "9" * digits, "duration_ns")


def test_a_name_that_is_none_gets_those_that_are_like_it(finished):
    """On one line, not all that there are."""
    with pytest.raises(BadInput) as error:
        found("rmsnorm/rmsnorm_R1_D4096_f16", "busiest_per_cent", finished.outputs)
    assert "busiest_pct" in str(error.value) and len(str(error.value)) < 300
