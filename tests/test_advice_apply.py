"""The module that an advice is applied by: imported as a server imports it."""

import ast
import importlib.util
import json
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import some

from ncuflow.experiments import choices, recorded
from ncuflow.experiments.advice import python_module
from ncuflow.experiments.record import Advice, AdvisedChoice, AdvisedShape
from ncuflow.io import BadInput, CommandError
from ncuflow.race.record import Relative
from ncuflow.sweep.points import points
from ncuflow.target.contract import load

DECODE = load("decode")


def shape(batch: int, kv_len: int, **take: Any) -> AdvisedShape:
    """A shape at which decode's choice of these settings is advised."""
    (point,) = points(DECODE, [{"batch": batch, "kv_len": kv_len, "kv_heads": 8}])
    (default,) = choices.shapes(DECODE, [point])
    chosen = {**default.params, **take}
    told = (
        [(chosen, len(take), "best")]
        if not take
        else [(default.params, 0, "slower"), (chosen, len(take), "best")]
    )
    found = [
        AdvisedChoice(
            point=DECODE.point_id(params), settings=choices.settings(DECODE, params), asked=DECODE.asked(params),
            departs=departs, fate=fate,
        )
        for params, departs, fate in told
    ]  # fmt: skip
    return AdvisedShape(
        target="decode", shape=default.id, params=default.params, outcome="winner", best=[found[-1].point],
        advised=found[-1].point, regret=Relative(estimate=0.3, low=0.25, high=0.35), in_turns=True, choices=found,
    )  # fmt: skip


@pytest.fixture
def advice() -> Advice:
    tensor = {"cores": "tensor", "backend": "fa2"}
    return Advice(
        tier="B", recording=None, gpu="NVIDIA H100", versions={"FlashInfer": "0.7.2"}, date="2026-11-23T00:00:00Z",
        metric="time_cold_us", effect=0.02, alpha=0.05,
        shapes=[shape(1, 1024), shape(16, 1024, **tensor), shape(64, 4096, **tensor, split="off")],
    )  # fmt: skip


@pytest.fixture
def module(advice: Advice, tmp_path: Path) -> ModuleType:
    path = tmp_path / "advised.py"
    path.write_text(python_module(advice, {"decode": DECODE}), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("advised", path)
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
def test_outside_of_what_was_measured_it_is_the_default_and_said_once(module, target, asked, why):
    with pytest.warns(UserWarning, match=why):
        assert module.choose(target, asked) == {"settings": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.choose(target, asked) == {"settings": {}}
    assert why in module.explain(target, asked)


HOSTILE = '"""\n__import__("os").system("id")\n\'\'\'\\\u2028 {gpu} %s \ud800' + "x" * 200


def test_what_a_record_says_is_a_literal_of_the_module_and_never_code(advice: Advice) -> None:
    tame = python_module(advice, {"decode": DECODE})
    for one in advice.shapes:
        chosen = one.choice(one.advised)
        assert chosen is not None
        chosen.settings, chosen.asked = {HOSTILE: HOSTILE}, {HOSTILE: {HOSTILE: HOSTILE}}
        one.shape, one.regret = HOSTILE, None
        one.params = dict.fromkeys(one.params, HOSTILE)
    said = {"gpu": HOSTILE, "date": HOSTILE, "recording": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    hostile = python_module(advice.model_copy(update=said), {"decode": DECODE})
    for statement, same in some(zip(ast.parse(hostile).body, ast.parse(tame).body, strict=True)):
        if isinstance(same, ast.Assign) and ast.unparse(same.targets[0]) != "_told":
            assert isinstance(statement, ast.Assign)
            assert ast.unparse(statement.targets) == ast.unparse(same.targets[0])
            ast.literal_eval(statement.value)
        else:
            assert ast.unparse(statement) == ast.unparse(same)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu", "H100\n"),
        ("date", '2026-11-23"""'),
        ("recording", "a\u2028b"),
        ("versions", {"torch": "x" * 501}),
    ],
)
def test_a_record_whose_names_are_no_names_is_refused(advice, field, value, tmp_path):
    path = tmp_path / "advice.json"
    path.write_text(json.dumps(advice.model_dump(mode="json") | {field: value}))
    with pytest.raises(BadInput, match=field):
        recorded.read(path)


def test_a_shape_without_its_parameters_is_one_line(advice: Advice) -> None:
    advice.shapes[0].params = {}
    with pytest.raises(CommandError, match="lacks its choice, or a parameter"):
        python_module(advice, {"decode": DECODE})
