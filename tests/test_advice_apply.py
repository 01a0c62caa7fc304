"""The module that an advice is applied by: imported as a server imports it."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncuflow.advice import apply, options
from ncuflow.advice.record import Advice, AdvisedChoice, AdvisedShape
from ncuflow.sweep.points import points
from ncuflow.target.contract import load
from ncuflow.trial.record import Relative

DECODE = load("decode")


def shape(batch: int, kv_len: int, **take: Any) -> AdvisedShape:
    """A shape at which decode's choice of these settings is advised."""
    (point,) = points(DECODE, [{"batch": batch, "kv_len": kv_len, "kv_heads": 8}])
    (default,) = options.shapes(DECODE, [point])
    chosen = {**default.params, **take}
    found = [
        AdvisedChoice(
            point=DECODE.point_id(params),
            settings=options.settings(DECODE, params),
            asked=DECODE.asked(params),
            departs=len(take) if params is chosen else 0,
            fate="best" if params is chosen else "slower",
        )
        for params in ([default.params, chosen] if take else [chosen])
    ]
    return AdvisedShape(
        target="decode", shape=default.id, params=default.params, outcome="winner", best=[found[-1].point],
        advised=found[-1].point, regret=Relative(estimate=0.3, low=0.25, high=0.35), in_turns=True, choices=found,
    )  # fmt: skip


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    tensor = {"cores": "tensor", "backend": "fa2"}
    advice = Advice(
        tier="B", recording=None, gpu="NVIDIA H100", versions={"FlashInfer": "0.7.2"}, date="2026-11-23T00:00:00Z",
        metric="time_cold_us", effect=0.02, alpha=0.05,
        shapes=[shape(1, 1024), shape(16, 1024, **tensor), shape(64, 4096, **tensor, split="off")],
    )  # fmt: skip
    path = tmp_path / "advised.py"
    path.write_text(apply.module(advice, {"decode": DECODE}), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("advised", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_measured_shape_has_the_arguments_of_flashinfers_api(module: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = module.choose("decode", {"batch": 64, "kv_len": 4096, "kv_heads": 8})
    assert found["wrapper"] == {"use_tensor_cores": True, "backend": "fa2"}
    assert found["plan"] == {"disable_split_kv": True}
    assert found["settings"]["split"] == "off"
    assert module.choose("decode", {"batch": 1, "kv_len": 1024})["wrapper"] == {
        "use_tensor_cores": False
    }


def test_a_size_between_has_those_of_the_nearest_one(module: ModuleType) -> None:
    found = module.choose("decode", {"batch": 14, "kv_len": 1500})
    assert found["wrapper"]["use_tensor_cores"] and found["plan"] == {}
    assert "B16_L1024" in module.explain("decode", {"batch": 14, "kv_len": 1500})


@pytest.mark.parametrize(
    ("target", "asked", "why"),
    [
        ("decode", {"batch": 128, "kv_len": 2048}, "batch = 128 is outside of 1 to 64"),
        ("decode", {"batch": 8, "kv_len": 512}, "kv_len = 512 is outside of 1024 to 4096"),
        ("decode", {"batch": 8, "kv_len": 2048, "kv_heads": 4}, "nothing of this kind"),
        ("decode", {"batch": 8, "kv_len": 2048, "dtype": "bf16"}, "nothing of this kind"),
        ("decode", {"batch": 8}, "kv_len is not given"),
        ("decode", {"batches": 8}, "'batches' is no parameter"),
        ("prefill", {"batch": 8}, "prefill: not measured"),
    ],
)
def test_outside_of_what_was_measured_it_is_the_default_and_said_once(
    module: ModuleType, target: str, asked: dict[str, Any], why: str
) -> None:
    with pytest.warns(UserWarning, match=why):
        assert module.choose(target, asked) == {"settings": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.choose(target, asked) == {"settings": {}}
    assert why in module.explain(target, asked)
