"""Steps: parts of one size, the fastest attention, and nothing in the sum that was not measured."""

from typing import Any

import pytest
from conftest import Recorded
from results_data import entry

from ncuflow.findings.steps import LAYERS, Step, steps
from ncuflow.target.contract import StepPart

HEADS = {"qo_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "f16"}


def point(target: str, cold: float, plan: float | None = None, **params: Any) -> dict[str, Any]:
    times = {"time_cold_us": cold, "plan_us": plan, "bytes_analytic": 1}
    return entry(f"{target}/{cold}", {}, **times) | {"params": params}


def of(*points: dict[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for one in points:
        found.setdefault(one["point"].split("/")[0], {"points": []})["points"].append(one)
    return found


DECODE = HEADS | {"batch": 32, "kv_len": 2048}
NORM = {"rows": 32, "hidden": 4096, "dtype": "f16", "variant": "fused_add_rmsnorm"}


def full(step: Step) -> dict[str, float]:
    return {name: time for name, time in step.times.items() if name != "attention"}


def test_the_sum_has_a_plan_a_sampler_and_layers_of_the_rest() -> None:
    attention = StepPart("attention", 32, 32, 32, 8, 128, phase="decode")
    of_layer = {attention: 70.0, StepPart("norm", per_layer=2): 5.0, StepPart("rope"): 7.0}
    step = Step("decode/x", attention, 100.0, of_layer | {StepPart("sampling", per_layer=0): 50.0})
    assert step.total(LAYERS) == 100 + 32 * (70 + 2 * 5 + 7) + 50
    assert step.total(1) == 100 + 87 + 50
    assert Step("decode/x", attention, None, {attention: 70.0}).total(2) == 140


def test_parts_are_points_of_as_many_tokens_and_the_same_heads() -> None:
    rope = HEADS | {"variant": "rope_pos_ids"}
    append = {"variant": "kv", "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}
    (step,) = steps(of(
        point("decode", 90.0, 100.0, **DECODE), point("decode", 70.0, 120.0, **DECODE),
        point("rmsnorm", 5.0, **NORM), point("rmsnorm", 1.0, **NORM | {"rows": 64}),
        point("rmsnorm", 2.0, **NORM | {"variant": "rmsnorm"}), point("rmsnorm", 3.0, **NORM | {"hidden": 8192}),
        point("rope", 7.0, tokens=32, **rope), point("rope", 1.0, tokens=32, **rope | {"kv_heads": 32}),
        point("kv_append", 6.0, batch=32, append_len=1, **append), point("kv_append", 1.0, batch=32, append_len=2, **append),
        point("sampling", 50.0, batch=32, variant="top_p"), point("sampling", 40.0, batch=32, variant="from_logits"),
    ))  # fmt: skip
    assert (step.plan_us, step.times["attention"], step.attention.phase) == (120.0, 70.0, "decode")
    assert full(step) == {"norm": 5.0, "rope": 7.0, "append": 6.0, "sampling": 50.0}


def test_attention_alone_is_no_step_nor_is_a_window_or_an_uneven_batch() -> None:
    norm = point("rmsnorm", 5.0, **NORM)
    assert steps(of(point("decode", 70.0, 100.0, **DECODE))) == []
    for odd in ({"window": 1024}, {"lengths": "zipf"}, {"kv": "fp8"}, {"soft_cap": 30}):
        assert steps(of(norm, point("decode", 70.0, 100.0, **DECODE | odd))) == []
    assert len(steps(of(norm, point("decode", 70.0, 100.0, **DECODE)))) == 1
    prompt = HEADS | {"batch": 1, "seq_len": 32}
    assert steps(of(norm, point("prefill", 70.0, 100.0, **prompt | {"causal": False}))) == []


def test_a_step_of_the_recording_is_the_sum_of_its_points(recorded: Recorded) -> None:
    name = "h200/0.7.2/default"
    found = steps({t: recorded(name, t) for t in ("decode", "prefill", "rmsnorm", "rope")})
    (step,) = [s for s in found if s.point == "decode/B32_L2048_H32_K8_D128_P16_f16_tc"]
    assert step.total() == pytest.approx(326.1 + 32 * (71.01 + 2 * 5.248))


def test_a_part_is_of_the_data_type_of_its_step(recorded: Recorded) -> None:
    """The fused norm of 4 096 rows takes 34.2 µs in bf16 and 34.7 µs in f16, which the attention is of."""
    name = "h200/0.7.2/default"
    found = steps({target: recorded(name, target) for target in ("prefill", "rmsnorm")})
    (step,) = [s for s in found if s.point == "prefill/paged_S4096_B1_H32_K8_D128_f16_auto_c"]
    assert step.times["norm"] == pytest.approx(34.70, abs=0.01)


def test_the_guide_says_which_parts_of_a_step_were_not_measured(finished: Any) -> None:
    guide = (finished.outputs / "reports/kernel-dev-guide.md").read_text()
    section = guide.split("### Budget of a Step")[1].split("\n### ")[0]
    assert "A model of 32 layers" in section and "| sampling | 32 layers |" in section
    (row,) = [line for line in section.splitlines() if "`B32_L2048_H32_K8_D128_P16_f16_tc`" in line]
    assert row.endswith("| 326 µs | 71 µs | 5.25 µs | – | – | – | 2 934 µs |")


def test_a_step_of_flashinfer_has_no_part_of_a_rival() -> None:
    rival = point("rmsnorm", 4.0, **NORM) | {"info": {"rival": "torch 2.11"}}
    (step,) = steps(of(point("decode", 70.0, **DECODE), point("rmsnorm", 5.0, **NORM), rival))
    assert full(step) == {"norm": 5.0}
