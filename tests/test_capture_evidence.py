"""What a live run captures: the sweep's points, its deep points, and the tools that are there."""

from __future__ import annotations

from typing import Any

import pytest

from capture import evidence

NAMES = ["rmsnorm", "rope"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two sweeps on a machine with everything; `small` has rmsnorm alone and nothing deep."""
    monkeypatch.setattr(evidence, "gpu_names", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(evidence, "tool", lambda name: f"/opt/{name}")
    monkeypatch.setattr(evidence, "counters_refused_here", lambda: False)
    both = {"rmsnorm": [{"rows": [1, 32]}], "rope": [{"tokens": 512}]}
    return {
        "sweep": "whole",
        "sweeps": {"small": {"rmsnorm": [{"rows": 32}]}, "whole": both},
        "deep": {"whole": {"rmsnorm": [{"rows": 64}]}},
        "jit": {},
        "batch_size": 64,
        "outputs": "outputs",
        "timing": {"runs": 1},
        "ncu": {"enabled": True},
        "nsys": {"enabled": True},
    }


def test_deep_points_are_those_of_the_sweep(config: dict[str, Any]) -> None:
    whole = evidence.live(config, NAMES)
    assert whole.targets["rmsnorm"]["deep"] == ["rmsnorm/rmsnorm_R64_D4096_f16"]
    assert "deep" not in whole.targets["rope"]
    small = evidence.live({**config, "sweep": "small"}, NAMES)
    assert [
        batch for batches in small.targets.values() for batch in batches if batch == "deep"
    ] == []


def test_a_target_without_points_is_left_out(config: dict[str, Any]) -> None:
    assert list(evidence.live(config, NAMES).targets) == NAMES
    assert list(evidence.live({**config, "sweep": "small"}, NAMES).targets) == ["rmsnorm"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep": "nope"}, r"sweep: there is no sweep nope; sweeps has small, whole"),
        ({"deep": {"rmsnorm": {}}}, r"deep: there is no sweep rmsnorm"),
        ({"jit": {"all": ["rope"]}}, r"jit: there is no sweep all"),
        (
            {"sweeps": {"whole": {"rope": []}}, "deep": {}},
            r"sweep whole: no points of rmsnorm, rope",
        ),
    ],
)
def test_a_sweep_that_captures_nothing_is_one_clear_line(
    config: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evidence.live({**config, **change}, NAMES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("refused", "missing", "disabled", "expected"),
    [
        (False, "", "", {"events", "nsys", "ncu"}),
        (True, "", "", {"events", "nsys"}),
        (None, "", "", {"events", "nsys", "ncu"}),  # the driver does not tell: ncu will
        (False, "ncu", "", {"events", "nsys"}),
        (False, "nsys", "", {"events", "ncu"}),
        (False, "", "ncu", {"events", "nsys"}),
        (False, "", "nsys", {"events", "ncu"}),
    ],
)
def test_tools_are_those_that_are_there_wanted_and_not_refused(
    config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    refused: bool | None,
    missing: str,
    disabled: str,
    expected: set[str],
) -> None:
    monkeypatch.setattr(evidence, "counters_refused_here", lambda: refused)
    monkeypatch.setattr(evidence, "tool", lambda name: None if name == missing else name)
    if disabled:
        config[disabled] = {"enabled": False}
    assert evidence.live_tools(config) == expected


def test_live_without_a_gpu_needs_the_name_of_the_machine(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "gpu_names", list)
    config["source"] = "live"
    with pytest.raises(ValueError, match="no NVIDIA GPU is visible"):
        evidence.resolve(config, NAMES)
    assert evidence.resolve({**config, "machine": "a100"}, NAMES).machine == "a100"
