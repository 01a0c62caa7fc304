"""A KV cache of NVFP4: what the kernel is given is what its reference reads, and what FlashInfer quantises to."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import pytest

from ncuflow.target import attention, inputs
from ncuflow.target.inputs import NVFP4
from ncuflow.target.launch import Inputs
from ncuflow.targets import decode, prefill

torch = pytest.importorskip("torch")


def stands_for(elements, scales):
    """Float32 of elements [..., k / 2] and scales [..., k / 16], as the format defines them."""
    nibbles = torch.stack([elements & 15, elements >> 4], -1).flatten(-2).long()
    known = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return known[nibbles & 7] * (1 - 2 * (nibbles >> 3)) * scales.float().repeat_interleave(16, -1)


def test_a_cache_is_what_its_bytes_and_scales_stand_for():
    p = decode.TARGET.parameters | {"kv": NVFP4}
    found = attention.cache(p, Inputs("point", device="cpu"), 3, 16, 2, 128)
    assert (found.held.shape, found.held.dtype) == ((3, 16, 2, 64), torch.uint8)
    assert (found.scales.shape, found.scales.dtype) == ((3, 16, 2, 8), torch.float8_e4m3fn)
    assert torch.equal(stands_for(found.held, found.scales), found.values.float())
    plain = attention.cache(p | {"kv": "same"}, Inputs("point", device="cpu"), 3, 16, 2, 128)
    assert plain.held is plain.values and attention.scale_factors(plain, plain) == {}
    x = Inputs("point", device="cpu").normal(3, 16, 2, 128, dtype=torch.float32)
    off = torch.linalg.norm(found.values.float() - x) / torch.linalg.norm(x)
    assert 0.05 < off < 0.12, "a mantissa of one bit"


def test_flashinfer_quantises_to_the_same():
    templates = pytest.importorskip("flashinfer.trace.templates.quantize")
    if not hasattr(templates, "_nvfp4_kv_quantize_reference"):
        pytest.skip("this FlashInfer has no reference of NVFP4 caches")
    torch.manual_seed(1)
    x = torch.randn(512, 128, dtype=torch.bfloat16)
    ours = inputs.fours(x)
    elements, scales = templates._nvfp4_kv_quantize_reference(x, torch.ones(1))
    theirs = stands_for(elements.view(torch.uint8), scales.view(torch.float8_e4m3fn).view(512, 8))
    assert torch.linalg.norm(theirs - ours.values) < 2e-2 * torch.linalg.norm(ours.values)


class Wrapper:
    """FlashInfer's wrapper of one sequence after the other, over what the bytes of the cache stand for."""

    def __init__(self, workspace, layout, **options):
        assert layout == "NHD"

    def plan(self, *given, q_data_type, kv_data_type, causal=False, **settings):
        assert kv_data_type == torch.uint8
        self.causal = causal
        self.rows = given[0] if len(given) == 8 and given[1].dim() == 1 and causal else None
        self.pages, self.indices, self.last = given[1:4] if self.rows is not None else given[:3]

    def run(self, q, caches, *, out, kv_cache_sf, **settings):
        k, v = (stands_for(*both) for both in zip(caches, kv_cache_sf, strict=True))
        for at, tokens in enumerate(self.tokens(k.shape[1])):
            rows = (
                slice(at, at + 1) if self.rows is None else slice(*self.rows[at : at + 2].tolist())
            )
            out[rows] = self.attended(
                q[rows].float(), k.flatten(0, 1)[tokens], v.flatten(0, 1)[tokens]
            )

    def tokens(self, size):
        for at, last in enumerate(self.last.tolist()):
            pages = self.indices[int(self.pages[at]) : int(self.pages[at + 1])].long()
            every = (pages[:, None] * size + torch.arange(size)).flatten()
            yield every[: (len(pages) - 1) * size + last]

    def attended(self, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        if self.causal:
            mask = torch.ones(scores.shape[1:]).tril(scores.shape[2] - scores.shape[1])
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(torch.float16)


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        (decode, {"batch": 3, "kv_len": 70, "qo_heads": 8, "kv_heads": 2, "cores": "tensor"}),
        (prefill, {"batch": 2, "seq_len": 40, "qo_heads": 8, "kv_heads": 2, "layout": "paged", "backend": "fa2"}),
    ],
)  # fmt: skip
def test_the_call_is_given_what_its_reference_attends_to(monkeypatch, target, changes):
    names = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(**dict.fromkeys(names, Wrapper)))
    monkeypatch.setattr(target, "Inputs", partial(Inputs, device="cpu"))
    monkeypatch.setattr(target, "plan_info", lambda wrapper: {})
    p = target.TARGET.parameters | changes | {"kv": NVFP4}
    launch = target.prepare(p)
    launch.run()
    (output,), (expected,) = launch.output(), launch.reference()
    off = torch.linalg.norm(output.float() - expected.float()) / torch.linalg.norm(expected.float())
    assert off < launch.tolerance
    assert target.TARGET.point_id(p).rpartition("_")[2] == "kv4"
