"""Matrices of 8 and of 4 bits whose elements share a scale in blocks along a row: MXFP8 and NVFP4.

They are quantised here, not by FlashInfer: what a call multiplies is then known exactly, and a reference of it shares
no code with the kernels. Scales lie as tensor cores of Blackwell read them, in tiles of 128 rows and 4 columns.
"""

from __future__ import annotations

from typing import NamedTuple

from ncuflow.target.dtypes import NVFP4
from ncuflow.target.launch import Tensor

MXFP8 = "mxfp8"
BLOCK = {MXFP8: 32, NVFP4: 16}  # elements that share a scale
BITS = {MXFP8: 8, NVFP4: 4}  # of an element
LARGEST, LARGEST_4 = 448.0, 6.0  # of e4m3 and of e2m1
E2M1 = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    LARGEST_4,
)  # by their codes; the bit above them is the sign
TILE = (128, 4)  # rows and columns of scales
_BIAS = 127  # of e8m0


class Blocks(NamedTuple):
    """A matrix [rows, k] in blocks.

    elements: e4m3 [rows, k], or two e2m1 a byte [rows, k / 2], the first in the lower bits; scales: uint8, of e8m0 (MXFP8) or
    e4m3 (NVFP4), in tiles, flat; values: what they stand for, float32 [rows, k], still to be divided by whole; whole: of all
    elements, a float32 scalar.
    """

    elements: Tensor
    scales: Tensor
    values: Tensor
    whole: Tensor


def quantised(x: Tensor, kind: str) -> Blocks:
    """A matrix [rows, k] in blocks; k is a multiple of a tile of them."""
    return _mxfp8(x.float()) if kind == MXFP8 else _nvfp4(x.float())


def _mxfp8(x: Tensor) -> Blocks:
    """Each block over the least power of two that leaves it within e4m3."""
    import torch

    blocks = x.unflatten(-1, (-1, BLOCK[MXFP8]))
    peak = blocks.abs().amax(-1).clamp(min=2.0**-100)
    exponent = torch.ceil(torch.log2(peak / LARGEST))
    scale = torch.exp2(exponent)
    elements = (blocks / scale[..., None]).to(torch.float8_e4m3fn)
    values = elements.float() * scale[..., None]
    code = (exponent + _BIAS).to(torch.uint8)
    return Blocks(elements.flatten(-2), tiled(code), values.flatten(-2), x.new_ones(()))


def _nvfp4(x: Tensor) -> Blocks:
    """All elements times what takes the largest to 6 * 448, each block over its largest's scale, rounded to e4m3."""
    import torch

    whole = LARGEST * LARGEST_4 / x.abs().amax()
    found = fours(x * whole)
    return Blocks(found.elements, tiled(found.scales.view(torch.uint8)), found.values, whole)


class Fours(NamedTuple):
    """A tensor [..., k] in NVFP4 without a scale of the whole.

    elements: uint8 [..., k / 2], two e2m1 a byte, the first in the lower bits; scales: e4m3 [..., k / 16], in order;
    values: what they stand for, float32 [..., k].
    """

    elements: Tensor
    scales: Tensor
    values: Tensor


def fours(x: Tensor) -> Fours:
    """Each block over its largest's scale, rounded to e4m3."""
    import torch

    blocks = x.float().unflatten(-1, (-1, BLOCK[NVFP4]))
    scale = (blocks.abs().amax(-1) / LARGEST_4).clamp(max=LARGEST).to(torch.float8_e4m3fn)
    wide = scale.float()[..., None].clamp(min=2.0**-9)  # the least of e4m3
    known = torch.tensor(E2M1, device=x.device)
    code = torch.bucketize((blocks / wide).abs().contiguous(), (known[1:] + known[:-1]) / 2)
    sign = blocks < 0
    values = torch.where(sign, -known[code], known[code]) * scale.float()[..., None]
    nibbles = (code + 8 * sign).to(torch.uint8).flatten(-2)
    packed = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    return Fours(packed, scale, values.flatten(-2))


def tiled(scales: Tensor) -> Tensor:
    """Scales [rows, blocks] as they lie, flat: padded with zeros to whole tiles; in one, rows 32 apart beside each other."""
    import torch

    rows, columns = scales.shape
    down, across = (-size % part for size, part in zip((rows, columns), TILE, strict=True))
    padded = torch.nn.functional.pad(scales, (0, across, 0, down))
    split = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, TILE[1]))
    return split.permute(0, 3, 2, 1, 4).flatten()
