"""The choices of a shape: every legal combination that means something, FlashInfer's default first."""

import pytest
from conftest import some

from ncuflow.experiments import choices
from ncuflow.race.worker import Drawn, sharing
from ncuflow.sweep.points import Planned, points
from ncuflow.target.contract import known, load
from ncuflow.target.launch import Inputs

H100 = {"compute_capability": "9.0", "memory_bytes": 80 << 30}
FREE = [name for name, target in known().items() if target.free(target.parameters)]


def shape(name: str, **block: object) -> Planned:
    target = load(name)
    (found,) = choices.shapes(target, points(target, [block]))
    return found


def told(name: str, **block: object) -> dict[str, str | None]:
    """Why each choice of a shape cannot run on an H100, None where it can, by how it departs from the default."""
    target, own = load(name), shape(name, **block)
    found = choices.choices(target, own)
    return {
        " ".join(f"{n}={one.params[n]}" for n, v in own.params.items() if one.params[n] != v)
        or "default": target.skip(one.params, H100)
        for one in found
    }


def test_points_that_differ_in_what_is_free_are_one_shape() -> None:
    decode = load("decode")
    blocks = [{"cores": ["cuda", "tensor"]}, {"cores": "tensor", "backend": "fa3"}, {"batch": 1}]
    found = choices.shapes(decode, points(decode, blocks))
    assert [one.params["batch"] for one in found] == [32, 1]
    assert {one.params["backend"] for one in found} == {"auto"}


def test_decode_is_tried_on_both_cores_with_every_backend_that_the_gpu_has() -> None:
    found = told("decode", kv_heads=8)
    legal = [how for how, why in found.items() if why is None]
    assert legal[0] == "default"
    assert {"launch=graph", "cores=tensor", "cores=tensor backend=fa3", "cores=tensor split=off"} < {*legal}  # fmt: skip
    # On CUDA cores the flag is ignored, so it is no choice there.
    assert "split=off" not in found
    assert found["cores=tensor backend=trtllm-gen"] == (
        "trtllm-gen needs compute capability 10.x, this GPU has 9.0"
    )


def test_prefill_is_held_against_what_flashinfer_chooses() -> None:
    found = told("prefill")
    assert next(iter(found)) == "default" and shape("prefill").params["backend"] == "auto"
    assert found["backend=fa2 split=16"] is None
    assert found["backend=fa3 split=16"] == "split and qk are settings of fa2"


def test_a_further_parameter_is_free_where_it_is_asked_for() -> None:
    target, also = load("decode"), {"page_size": [1, 32]}
    own = choices.shapes(target, points(target, [{"page_size": [16, 1]}]), also)
    assert len(own) == 1
    found = choices.choices(target, own[0], also)
    assert {one.params["page_size"] for one in found} == {16, 1, 32}
    with pytest.raises(ValueError, match="cannot be 0"):
        choices.known_to([target], {"page_size": [0]})


@pytest.mark.parametrize("name", FREE)
def test_flashinfer_is_asked_for_each_choice_by_arguments_of_its_own(name: str) -> None:
    target, own = load(name), shape(name)
    runnable = [one for one in choices.choices(target, own) if not target.skip(one.params, H100)]
    asked: dict[str, str] = {}
    for one in some(runnable):
        # A replay of a graph is another wrapper, and takes the same arguments.
        if one.params.get("launch", "eager") == "eager":
            arguments = str(target.asked(one.params))
            assert asked.setdefault(arguments, one.id) == one.id
    assert len(asked) > 1


def test_what_the_autotuner_keeps_is_the_call_of_a_product() -> None:
    gemm = load("gemm")
    shapes = [[64, 4096], [4096, 2048], [0], [0], [64, 2048], [1]]
    found = gemm.tuned("bf16_gemm", "CublasltBf16GemmRunner", shapes)
    assert found == {
        "variant": "mm", "backend": "cublaslt", "dtype": "bf16", "m": 64, "n": 2048, "k": 4096, "batch": 1,
    }  # fmt: skip
    assert gemm.tuned("bf16_gemm", "NobodysRunner", shapes) is None
    assert gemm.tuned("moe", "CublasltBf16GemmRunner", shapes) is None


def test_launches_of_a_shape_share_the_inputs_that_they_draw_alike() -> None:
    torch = pytest.importorskip("torch")

    def drawn(point: str, pages: int) -> list[object]:
        inputs = Inputs(point, device="cpu")
        normal = [inputs.normal(4, dtype=torch.float32) for _ in range(2)]
        return [*normal, inputs.permutation(pages)]

    shared, keys = Drawn(), []
    found = []
    for point, pages in (("a", 5), ("b", 5), ("c", 7)):
        with sharing(shared):
            found.append(drawn(point, pages))
        keys.append(list(shared.latest))
    first, second, third = found
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert keys[0] == keys[1] != keys[2]
    assert third[0] is first[0] and third[2] is not first[2]
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], drawn("a", 5)[0]) and drawn("b", 5)[0] is not second[0]


def test_choices_are_one_call_where_plan_says_that_it_chose_the_same() -> None:
    chosen = {name: {"cores": "tensor", "backend": name} for name in ("auto", "fa2", "fa3")}
    chosen["cuda"] = {"cores": "cuda", "backend": "auto"}
    info = {name: {"backend": "fa2", "split_kv": True} for name in ("auto", "fa2", "cuda")}
    info["fa3"] = {"backend": "fa3"}
    assert choices.same_calls(chosen, info) == {"fa2": ("auto", {"backend": "fa2"})}
    split = {**info, "fa2": {"backend": "fa2", "split_kv": False}}
    assert choices.same_calls(chosen, split) == {}
    assert choices.same_calls(chosen, {}) == {}
    # A choice beside itself, as a race is tried with: both are timed.
    assert choices.same_calls({"a": chosen["fa2"], "b": chosen["fa2"]}, {}) == {}
