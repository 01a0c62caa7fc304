"""Sides of a capture that are held against each other: in turns, each as often as the others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_capture import Side, in_turns, side


def test_each_side_has_its_turn_in_every_round_and_one_that_fails_has_no_median(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    def runs(label: str, walls: Iterator[float | None]) -> Callable[..., Side]:
        def run(points: Any, folder: Path, timing: Path) -> Side:
            order.append(label)
            wall = next(walls)
            if wall is None:
                raise subprocess.CalledProcessError(1, [label], "first\nno ncu here")
            assert not any(folder.iterdir())
            return side(wall, [wall])

        return run

    sides = {"batch": [3.0, 1.0, 2.0], "bare": [5.0, None], "other": [9.0, 8.0, 1.0]}
    calls = {label: runs(label, iter(walls)) for label, walls in sides.items()}
    found, failed = in_turns(calls, 3, [], tmp_path, tmp_path / "timing.jsonl")
    assert order == ["batch", "bare", "other", "bare", "other", "batch", "other", "batch"]
    assert {label: one["wall_s"] for label, one in found.items()} == {"batch": 2.0, "other": 8.0}
    assert found["batch"]["walls_s"] == [3.0, 1.0, 2.0]
    assert found["batch"]["duration_ns"] == [2.0]
    assert failed == {"bare": "first / no ncu here"}
