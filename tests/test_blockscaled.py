"""Matrices in blocks: FlashInfer's own reference reads of them what the target's reference has."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ncuflow.target import reference
from ncuflow.target.inputs import BLOCK_ELEMENTS, E2M1, quantised
from ncuflow.target.launch import Inputs
from ncuflow.targets import gemm

torch = pytest.importorskip("torch")
SIZES = [(64, 128, 256), (200, 160, 384), (128, 256, 128)]  # m, n, k


def matrices(m, n, k, kind):
    torch.manual_seed(m)
    a, w = torch.randn(m, k), torch.randn(n, k) * torch.rand(n, 1) * 10
    return a, w, quantised(a, kind), quantised(w, kind)


def untiled(scales, rows, columns):
    """By the layout's definition: scale (i, j) of a tile lies at 16 * (i % 32) + 4 * (i // 32) + j."""
    across = -(-columns // 4)
    place = [
        512 * ((i // 128) * across + j // 4) + 16 * (i % 32) + 4 * (i % 128 // 32) + j % 4
        for i in range(rows)
        for j in range(columns)
    ]
    return scales[torch.tensor(place)].reshape(rows, columns)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_flashinfer_s_reference_multiplies_the_same(m, n, k):
    templates = pytest.importorskip("flashinfer.trace.templates.gemm")
    if not hasattr(templates, "_mm_mxfp8_reference"):
        pytest.skip("this FlashInfer has no reference of MXFP8")
    *_, a, w = matrices(m, n, k, "mxfp8")
    theirs = templates._mm_mxfp8_reference(a.elements, w.elements.T, a.scales, w.scales)
    ours = reference.product(a.values[None], w.values[None])[0]
    assert torch.linalg.norm(theirs.float() - ours) < 3e-3 * torch.linalg.norm(ours)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_elements_and_scales_stand_for_the_values(m, n, k, kind):
    x, _, blocks, _ = matrices(m, n, k, kind)
    size = BLOCK_ELEMENTS[kind]
    assert torch.equal(decoded(blocks.elements, blocks.scales, kind), blocks.values)
    # a mantissa of 3 bits is off by up to 1/16, one of 1 bit by up to a quarter; scales of 4 bits are rounded as well
    off = torch.linalg.norm(blocks.values / blocks.whole - x) / torch.linalg.norm(x)
    assert 0.01 < off < (0.04 if kind == "mxfp8" else 0.12)
    padded = (-(-m // 128) * 128) * (-(-(k // size) // 4) * 4)
    assert blocks.scales.shape == (padded,) and blocks.scales.dtype == torch.uint8


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_rows_of_zeros_and_of_one_large_element_are_finite(kind):
    x = torch.zeros(128, 128)
    x[1, 5], x[2] = -1e4, 1e-3
    blocks = quantised(x, kind)
    assert blocks.values.isfinite().all() and not blocks.values[0].any()
    assert blocks.values[1, 5] / blocks.whole == pytest.approx(-1e4, rel=0.05)


def decoded(elements, scales, kind):
    """Float32 of a matrix [rows, k] in blocks, as a kernel reads it."""
    if kind == "nvfp4":
        nibbles = torch.stack([elements & 15, elements >> 4], -1).flatten(1).long()
        known = torch.tensor(E2M1)
        values = known[nibbles & 7] * (1 - 2 * (nibbles >> 3))
    else:
        values = elements.float()
    size = BLOCK_ELEMENTS[kind]
    found = untiled(scales.flatten(), values.shape[0], values.shape[1] // size)
    wide = found.view(torch.float8_e4m3fn).float() if kind == "nvfp4" else None
    scale = torch.exp2(found.float() - 127) if wide is None else wide
    return values * scale.repeat_interleave(size, 1)


@pytest.mark.parametrize(("variant", "kind"), [("mm_mxfp8", "mxfp8"), ("mm_fp4", "nvfp4")])
def test_the_call_is_given_what_its_reference_multiplies(monkeypatch, variant, kind):
    def multiply(a, b, a_scales, b_scales, out, out_dtype, backend, alpha=None):
        if kind == "nvfp4":
            assert a_scales.shape == (128, 16) and b_scales.shape == (16, 128)
            b_scales = b_scales.T
        found = decoded(a, a_scales, kind) @ decoded(b.T, b_scales, kind).T
        out.copy_(found * (1 if alpha is None else alpha))

    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(**{variant: multiply}))
    p = {**gemm.TARGET.parameters, "variant": variant, "dtype": kind, "backend": "cutlass"}
    p |= {"m": 64, "n": 128, "k": 256}
    inputs = Inputs("point", device="cpu")
    x, weight = (inputs.normal(1, rows, 256, dtype=torch.bfloat16) for rows in (64, 128))
    out = torch.empty(1, 64, 128, dtype=torch.bfloat16)
    made = gemm._CALLS[variant](p, inputs, x, weight, out)
    made.run()
    expected = reference.product(*made.values)
    assert torch.linalg.norm(out.float() - expected) < 5e-3 * torch.linalg.norm(expected)
    # and that is the product of the matrices, as far as so few bits tell
    off = torch.linalg.norm(reference.product(x, weight) - expected) / torch.linalg.norm(expected)
    assert 0.01 < off < (0.06 if kind == "mxfp8" else 0.2)
