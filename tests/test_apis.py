"""The generic target: a trace template becomes a launch with its reference, or a line that says why not."""

from __future__ import annotations

import inspect
import json
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ncuflow.cli import dispatch
from ncuflow.io import write_json
from ncuflow.run import listing
from ncuflow.sweep import points as sweep
from ncuflow.target import reference as references
from ncuflow.target.contract import load
from ncuflow.target.launch import NotHereError
from ncuflow.targets import apis


def template(init: Any = None, reference: Any = None, **more: Any) -> Any:
    parts = {"init": init, "reference": reference, "check": lambda a, b: False}
    names = {"name_prefix": "made", "op_type": "made", "inputs": {}, "outputs": {}}
    return SimpleNamespace(**(parts | names | more))


def test_open_axes_get_the_sizes_of_the_point_and_the_others_keep_their_own() -> None:
    def init(*, num_tokens: int, batch_size: int, batch_size_plus_1: int, strange: int,
             hidden: int = 128, device: str = "cuda", **kwargs: Any) -> None: ...  # fmt: skip

    found = apis.sizes(template(init), {"tokens": 100, "batch": 7})
    assert found == {"num_tokens": 100, "batch_size": 7, "batch_size_plus_1": 8, "strange": 4}

    def limited(*, M: int) -> None: ...  # noqa: N803

    made = template(limited, name_prefix="mm_M1_16_K7168_N256")  # an axis with a limit keeps it
    assert apis.sizes(made, {"tokens": 4096, "batch": 1}) == {"M": 16}

    def states(*, batch_size: int, pool_size: int = 8) -> None: ...

    made = template(states, name_prefix="gdn_mtp")  # which are indexed by the sequence
    assert apis.sizes(made, {"tokens": 16, "batch": 64}) == {"batch_size": 64, "pool_size": 64}


def test_the_reference_gets_its_arguments_by_its_own_names() -> None:
    def reference(
        k_cache: Any, kv_indptr: Any, kv_indices: Any, eps: float = 1e-5, **kw: Any
    ) -> None: ...

    cache = SimpleNamespace(param="paged_kv_cache", tuple_idx=0)
    made = template(reference=reference, inputs={"k_cache": cache})
    given = {"paged_kv_cache": ("K", "V"), "indptr": "P", "paged_kv_indices": "I", "other": 1}
    found = references.reference_arguments(made, given)
    assert found == {"k_cache": "K", "kv_indptr": "P", "kv_indices": "I"}
    assert references.reference_arguments(made, given | {"eps": 1e-6})["eps"] == 1e-6
    made = template(reference=lambda x, strange: None)
    with pytest.raises(NotHereError, match="its reference needs strange, which"):
        references.reference_arguments(made, {"x": 1})
    made = template(reference=lambda q, sm_scale: None)  # FlashInfer's, where none is given
    found = references.reference_arguments(made, {"q": SimpleNamespace(shape=(1, 64))})
    assert found["sm_scale"] == 0.125


@pytest.mark.parametrize(
    ("api", "parts", "why"),
    [
        ("rmsnorm", (1, 1), None),
        ("rmsnorm", (None, 1), "its template has no init"),
        ("rmsnorm", (None, None), "its template has no init and no reference"),
        (
            "moe_fp8_block_scale_ds_routing",
            (1, 1),
            "fused MoE: its modules take CPU hours to build",
        ),
        ("trtllm_batch_decode", (1, 1), None),
    ],
)
def test_a_template_says_why_it_cannot_be_measured(api: str, parts: Any, why: str | None) -> None:
    assert apis.Template(api, inspect.getdoc, template(*parts)).absent() == why
    gate = apis.Template(
        "rmsnorm_sigmoid_gate", inspect.getdoc, template(1, 1)
    )  # for Blackwell alone
    assert gate.unable({"compute_capability": "9.0"}) is not None
    assert gate.unable({"compute_capability": "10.0"}) is None


def test_a_cap_ends_what_takes_too_long_and_puts_the_handler_back() -> None:
    before, said = signal.getsignal(signal.SIGALRM), "its reference does not end"
    with pytest.raises(NotHereError, match=f"{said} in 1 s"), references.limited(1, said):
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is before and signal.alarm(0) == 0


def test_a_name_that_is_none_is_refused_and_one_of_any_api_is_not() -> None:
    [point] = sweep.points(load("apis"), [{"api": "top_k_varlen", "batch": 2}])
    assert point.id == "apis/top_k_varlen_T1024_B2"
    with pytest.raises(ValueError, match="or such as top_k_varlen"):
        sweep.points(load("apis"), [{"api": "import os"}])


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch, whose calls run on the CPU."""
    found = pytest.importorskip("torch")
    monkeypatch.setattr(found.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(apis, "DEVICE", "cpu")
    return found


def test_a_call_is_run_checked_and_restored(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    def half(x: Any, out: Any = None, factor: float = 0.5) -> None:
        x.mul_(factor)

    def init(*, num_tokens: int, device: str) -> dict[str, Any]:
        return {"x": torch.ones(num_tokens, 4), "workspace": torch.zeros(1 << 10), "dtype": 1}

    def reference(x: Any, dtype: Any, factor: float = 9.0, **kwargs: Any) -> Any:
        assert dtype is torch.bfloat16  # a number would be the index of a GPU
        return x * factor

    made = template(init, reference, outputs={"x": SimpleNamespace(param=None)})
    monkeypatch.setattr(apis, "templates", lambda: {"half": apis.Template("half", half, made)})
    monkeypatch.setattr(apis, "_callable", lambda *a: (lambda x, workspace, dtype: half(x), None))
    launch = apis.prepare({"api": "half", "tokens": 8, "batch": 1})
    assert launch.work is not None and launch.work["flops"] is None
    assert launch.work["bytes"] == 8 * 4 * 4  # in place: once, and no workspace
    launch.run()
    launch.reset()
    launch.run()
    (found,), (expected,) = launch.output(), launch.reference()
    assert torch.equal(found, expected) and found[0, 0] == 0.5
    with pytest.raises(NotHereError, match="no template of that name"):
        apis.prepare({"api": "whole", "tokens": 8, "batch": 1})


def test_an_input_that_a_call_hands_back_is_not_overwritten_before_a_run(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in GDN's MTP, which returns the pool of states that it reads: NaN there would be its input."""

    def init(*, batch_size: int, device: str) -> dict[str, Any]:
        return {"q": torch.ones(batch_size, 4), "pool": torch.full((batch_size, 4), 2.0)}

    def step(q: Any, pool: Any) -> Any:
        return q + pool, pool.view(-1)

    outputs = {"output": SimpleNamespace(param=None), "state": SimpleNamespace(param=None)}
    made = template(init, step, outputs=outputs)
    monkeypatch.setattr(apis, "templates", lambda: {"step": apis.Template("step", step, made)})
    monkeypatch.setattr(apis, "_callable", lambda *a: (step, None))
    launch = apis.prepare({"api": "step", "tokens": 8, "batch": 2})
    assert launch.reset is None
    (buffer,) = launch.buffers()
    assert buffer.shape == (2, 4)
    for one in launch.buffers():
        one.fill_(float("nan"))
    launch.run()
    assert all(torch.equal(a, e) for a, e in zip(launch.output(), launch.reference(), strict=True))


def compared(trace: Any, before: dict[str, Any], now: dict[str, Any], out: Any = None) -> Any:
    return references.Compared(trace, before, now, {"out": out})


def test_an_output_that_no_argument_is_named_after_took_the_place_of_the_input(torch: Any) -> None:
    """As in Gemma's fused norm: the reference gives the first of two tensors that the call writes."""
    like = SimpleNamespace(param=None, dtype_from="input")
    outputs = {"output": like, "residual": like}
    made = template(reference=lambda input, residual: (input + residual) * 3, outputs=outputs)
    before = {"input": torch.ones(4), "residual": torch.full((4,), 2.0)}
    now = {"input": torch.full((4,), 9.0), "residual": torch.full((4,), 3.0)}
    found = compared(made, before, now)
    assert torch.equal(*found.output(), torch.full((4,), 9.0))
    assert torch.equal(*found.reference(), torch.full((4,), 9.0))


@pytest.mark.parametrize(
    ("limits", "right", "wrong"),
    [
        ({}, 3, 4),
        ({"min_p": 0.5}, 1, 2),
        ({"top_k": [2]}, 1, 2),
        ({"top_p": [0.5]}, 1, 2),
        ({}, 0, -1),
        ({}, 0, 5),
    ],
)
def test_a_sampled_token_is_right_where_it_may_be_drawn(
    torch: Any, limits: dict[str, Any], right: int, wrong: int
) -> None:
    probs = torch.tensor([[0.4, 0.3, 0.15, 0.15, 0.0]] * 2)
    given = {name: torch.tensor(v * 2) if isinstance(v, list) else v for name, v in limits.items()}
    made = template(outputs={"samples": SimpleNamespace(param=None)})
    for source in ({"probs": probs}, {"logits": probs.log()}):
        tokens = torch.tensor([right, wrong], dtype=torch.int32)
        found = compared(made, source | given, {}, tokens)
        assert (found.output()[0].item(), found.reference()[0].item()) == (0.5, 1.0)


@pytest.mark.parametrize(
    "api", ["top_k_page_table_transform", "top_k_ragged_transform", "top_k_varlen"]
)
def test_places_that_are_selected_are_right_in_any_order_and_of_equal_values_either(
    torch: Any, api: str
) -> None:
    pytest.importorskip("flashinfer.trace")
    one = apis.templates()[api]
    made = one.trace.init(device="cpu", **apis.sizes(one.trace, {"tokens": 64, "batch": 3}))
    given = one.trace.reference(**made)  # an input for each row, or this ends in an IndexError

    def error(places: Any) -> float:
        before = references.defaults(one.function) | made
        found = references.Compared(one.trace, before, made, {"out": places}, apis.CHOSEN[api])
        [actual], [expected] = found.output(), found.reference()
        return float((actual - expected).norm() / expected.norm())

    assert error(given.flip(-1)) == 0
    assert error(given.clone().fill_(int(given[0, 0]))) > 0.5
    if (
        api == "top_k_varlen"
    ):  # bf16 has equals among 8192: the last that is taken has one that is not
        made["logits"][:] = 1
        assert error(torch.arange(1024, dtype=torch.int32).expand(3, -1)) == 0


def test_experts_that_a_token_is_routed_to_are_right_in_any_order(torch: Any) -> None:
    pytest.importorskip("flashinfer.trace")
    one = apis.templates()["fused_topk_deepseek"]
    made = one.trace.init(device="cpu", num_tokens=64)
    before = references.cloned(made)
    one.trace.reference(**made)  # into the tensors that it is given, as the call does

    def errors(**written: Any) -> list[float]:
        chosen = apis.CHOSEN["fused_topk_deepseek"]
        found = references.Compared(one.trace, before, made | written, {"out": None}, chosen)
        pairs = zip(found.output(), found.reference(), strict=True)
        return [float((a - e).norm() / e.norm()) for a, e in pairs]

    values, places = made["topk_values"], made["topk_indices"]
    assert errors(topk_values=values.flip(-1), topk_indices=places.flip(-1)) == [0, 0]
    assert errors(topk_indices=places * 0)[1] > 0.5


def test_inputs_get_the_strides_that_the_call_asks_for(torch: Any) -> None:
    made = apis.LAYOUTS["bmm_fp8"]({"A": 1, "B": torch.rand(2, 3, 5)})
    assert made["B"].shape == (2, 3, 5) and made["B"].stride() == (15, 1, 3)
    plain = {"A": torch.rand(6, 7), "D": torch.rand(6), "dt_bias": torch.rand(6)}
    made = apis.LAYOUTS["selective_state_update"](plain | {"dt": torch.rand(4, 6)})
    assert made["dt"].shape == (4, 1, 6) and made["dt"].stride()[1:] == (1, 0)
    assert made["A"].shape == (1, 6, 7) and made["A"].stride() == (1, 0, 0)
    assert made["D"].shape == made["dt_bias"].shape == (1, 6)
    assert made["D"].stride() == made["dt_bias"].stride() == (1, 0)
    assert apis._moved(made, []) == 4 * (1 + 1 + 1 + 4)  # what is broadcast counts once


def test_an_api_is_compiled_ahead_by_its_own_name_or_its_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    jit = ModuleType("flashinfer.jit.page")
    jit.gen_page_module = lambda: "page"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.jit.page", jit)
    norm = ModuleType("flashinfer.jit.norm")  # of a version without gen_norm_module
    monkeypatch.setitem(sys.modules, "flashinfer.jit.norm", norm)

    def one(name: str, module: str) -> apis.Template:
        def function() -> None: ...

        function.__module__ = f"flashinfer.{module}"
        return apis.Template(name, function, template(1, 1))

    found = {"append": one("append", "page"), "layernorm_quant": one("layernorm_quant", "norm")}
    found["silu_and_mul_of_another_kind"] = one("silu_and_mul_of_another_kind", "activation")
    monkeypatch.setattr(apis, "templates", lambda: found)
    made = {name: apis.modules({"api": name}) for name in found}
    assert made == {"append": ["page"], "layernorm_quant": [], "silu_and_mul_of_another_kind": []}


def test_mla_is_compiled_ahead_for_the_backend_that_flashinfer_chooses(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit = ModuleType("flashinfer.jit.attention")
    jit.gen_batch_mla_module = lambda chosen, *rest: chosen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.jit.attention", jit)
    one = apis.Template("mla_paged_decode", inspect.getdoc, template(1, 1))
    monkeypatch.setattr(apis, "templates", lambda: {one.api: one})
    for archs, backend in (("8.0", "fa2"), ("9.0a", "fa3")):
        monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", archs)
        assert apis.modules({"api": one.api}) == [backend]


def test_the_list_says_what_runs_here_and_why_the_rest_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def only_blackwell() -> None: ...

    only_blackwell.is_compute_capability_supported = lambda cc: cc >= 100  # type: ignore[attr-defined]
    made = {name: apis.Template(name, inspect.getdoc, template(1, 1)) for name in ("here", "wrong")}
    made["elsewhere"] = apis.Template("elsewhere", only_blackwell, template(1, 1))
    made["bare"] = apis.Template("bare", inspect.getdoc, template(1))
    monkeypatch.setattr(inspect, "only_blackwell", only_blackwell, raising=False)
    monkeypatch.setattr(only_blackwell, "__module__", "inspect")
    monkeypatch.setattr(only_blackwell, "__qualname__", "only_blackwell")
    monkeypatch.setattr(apis, "templates", lambda: made)
    monkeypatch.setattr(listing, "gpu", lambda: ({"compute_capability": "8.0"}, ""))
    point = {"params": {"api": "wrong"}, "status": "wrong", "reason": "off by half", "info": {}}
    write_json(tmp_path / "r.json", {"points": [point]})
    assert dispatch(["targets", "--results", str(tmp_path / "r.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[:-1]}
    assert said["prefill"] == "ready Prefill attention"
    assert said["gdn_prefill"].startswith("not here measured on compute capability 9.0")
    assert said["here"] == "ready inspect.getdoc"
    assert said["elsewhere"] == "not here FlashInfer has it for other GPUs than 8.0"
    assert said["bare"] == "not here its template has no reference"
    assert said["wrong"] == "not here off by half"
    ready = sum(words.startswith("ready") for words in said.values())
    assert lines[-1] == f"{ready} of {len(said)} can be measured here"


def test_the_list_without_a_gpu_and_without_flashinfer_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> None:
        raise ImportError("No module named 'flashinfer'")

    monkeypatch.setattr(apis, "templates", absent)
    monkeypatch.setattr(listing, "gpu", lambda: (None, "no GPU here"))
    assert dispatch(["targets", "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert rows["decode"]["what"] == "no GPU here"
    assert rows["apis"]["what"] == "FlashInfer is not installed"
