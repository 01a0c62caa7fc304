"""What the inputs of a launch are made of: lengths of sequences, a page table, matrices and caches of 8 and 4 bits.

Sequences of a batch are all of one length, or uneven as on a server. Matrices of MXFP8 and NVFP4 share a scale in blocks
along a row: they are quantised here, not by FlashInfer, so what a call multiplies is known exactly, and a reference of it
shares no code with the kernels. Scales lie as tensor cores of Blackwell read them, in tiles of 128 rows and 4 columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Any, NamedTuple

from ncuflow.target.launch import NVFP4, Inputs, Params, Tensor, Written

SIGMA = 1.0  # of the log-normal lengths: one sequence in six has more than 1.6 times the mean
LENGTHS = Written(
    ("even", "lognormal", "zipf"),
    r"[1-9]\d*x(0|[1-9]\d*)(_[1-9]\d*x(0|[1-9]\d*))*",
    "1x32768_31x512",
)


def lengths(p: Params, mean: str) -> list[int]:
    """Tokens of each sequence, at least one; of a list as it says, none as well.

    ``p["lengths"]``: "even", all of the parameter that ``mean`` names; "lognormal" and "zipf", the
    quantiles of that distribution, longest first, with the same sum; or a list such as
    1x32768_31x512, one sequence of 32768 tokens and 31 of 512.
    """
    kind, batch = p["lengths"], p["batch"]
    if kind == "even":
        return [p[mean]] * batch
    if kind == "zipf":
        return _scaled([1 / rank for rank in range(1, batch + 1)], p[mean])
    if kind == "lognormal":
        normal = NormalDist(sigma=SIGMA)
        shares = [(batch - i - 0.5) / batch for i in range(batch)]
        return _scaled([math.exp(normal.inv_cdf(share)) for share in shares], p[mean])
    parts = [tuple(map(int, part.split("x"))) for part in kind.split("_")]
    return [length for count, length in parts for _ in range(count)]


def length_label(p: Params, mean: str) -> str:
    """The lengths in a point's id: "2048" where all are alike, "2048_zipf", or the list."""
    if p["lengths"] == "even":
        return str(p[mean])
    return p["lengths"] if listed(p) else f"{p[mean]}_{p['lengths']}"


def listed(p: Params) -> bool:
    """Whether the lengths are a list, and the mean has no meaning."""
    return re.match(r"\d", p["lengths"]) is not None


def length_refusal(p: Params) -> str | None:
    """Why the lengths cannot be those of the batch; None if they can."""
    found = lengths(p, "batch")  # of a list alone is the number known
    if listed(p) and len(found) != p["batch"]:
        return f"lengths {p['lengths']} are those of {len(found)} sequences, not of {p['batch']}"
    if listed(p) and not any(found):
        return f"lengths {p['lengths']} leave no sequence a token"
    return None


def length_edges(p: Params, mean: str) -> list[Params]:
    """Lengths at which a kernel goes wrong, in place of a point's: one token, just below, at and above a page, all of
    these in one batch, sequences without a token between and behind others, and an uneven one."""
    page = p["page_size"]
    found = list(dict.fromkeys((1, max(1, page - 1), page, page + 1)))
    each = [{mean: length, "lengths": "even"} for length in found]
    mixed = "_".join(f"1x{length}" for length in found)
    return [
        *each,
        {"batch": len(found), "lengths": mixed},
        {"batch": 5, "lengths": f"1x0_1x{page + 1}_2x0_1x1"},
        {"batch": 2, "lengths": f"1x{page}_1x0"},
        {"lengths": "zipf"},
    ]


def _scaled(weights: Sequence[float], mean: int) -> list[int]:
    """Whole numbers from 1 in proportion to the weights, whose sum is exactly that of the mean."""
    total = mean * len(weights)
    spare = total - len(weights)
    exact = [1 + spare * weight / sum(weights) for weight in weights]
    found = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in by_rest[: total - sum(found)]:
        found[i] += 1
    return found


@dataclass
class PageTable:
    """Page table of ``batch`` sequences, as FlashInfer takes it (int32).

    indptr [batch+1]         first entry of each sequence in ``indices``
    indices [pages]          page numbers; shuffled, as in a server that has run for a while
    last_page_len [batch]    tokens on the last page of each sequence, 0 of one that has no page
    lengths                  tokens of each sequence
    """

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    lengths: list[int]
    page_size: int

    def first(self) -> tuple[Tensor, Tensor]:
        """(page, place on it) of the first token of each sequence that has one."""
        starts, _ = self._held()
        return self.indices[starts].long(), starts * 0

    def last(self) -> tuple[Tensor, Tensor]:
        """(page, place on it) of the last token of each sequence that has one."""
        _, ends = self._held()
        some = self.last_page_len[self.last_page_len > 0]
        return self.indices[ends].long(), some.long() - 1

    def behind(self) -> tuple[Tensor, Tensor]:
        """(page, place on it) of all that no token takes of the pages that sequences end on."""
        import torch

        pages, places = self.last()
        token = torch.arange(self.page_size, device=places.device)
        rows, free = (token > places[:, None]).nonzero(as_tuple=True)
        return pages[rows], free

    def _held(self) -> tuple[Tensor, Tensor]:
        """First and last entry in ``indices`` of each sequence that has pages."""
        some = self.indptr[1:] > self.indptr[:-1]
        return self.indptr[:-1][some].long(), self.indptr[1:][some].long() - 1

    def gather(self, cache: Tensor, first: int, last: int) -> Tensor:
        """Sequences first..last-1, of one length, of a cache [pages, page_size, …], laid out in order.

        Returns [last-first, length, …].
        """
        import torch

        pages = [pages_for(length, self.page_size) for length in self.lengths[:last]]
        chosen = self.indices[sum(pages[:first]) : sum(pages)].long()
        # few operations take types of 8 bits: they are gathered as plain bytes
        plain = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
        room = pages[first] * self.page_size
        tokens = plain[chosen].reshape(last - first, room, *cache.shape[2:])
        return tokens[:, : self.lengths[first]].view(cache.dtype)


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold ``length`` tokens."""
    return -(-length // page_size)


def page_table(
    inputs: Inputs, batch: int, length: int | Sequence[int], page_size: int
) -> PageTable:
    """Page table with shuffled pages: of one length for all sequences, or of each one's own."""
    import torch

    lengths = [length] * batch if isinstance(length, int) else list(length)
    kind: dict[str, Any] = {"dtype": torch.int32, "device": inputs.device}
    pages = [pages_for(length, page_size) for length in lengths]
    indptr = torch.tensor([0, *accumulate(pages)], **kind)
    indices = inputs.permutation(sum(pages)).to(torch.int32)
    last = torch.tensor([(n - 1) % page_size + 1 if n else 0 for n in lengths], **kind)
    return PageTable(indptr, indices, last, lengths, page_size)


MXFP8 = "mxfp8"
BLOCK_ELEMENTS = {MXFP8: 32, NVFP4: 16}  # elements that share a scale
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
SCALE_TILE = (128, 4)  # rows and columns of scales
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

    blocks = x.unflatten(-1, (-1, BLOCK_ELEMENTS[MXFP8]))
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

    blocks = x.float().unflatten(-1, (-1, BLOCK_ELEMENTS[NVFP4]))
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
    down, across = (-size % part for size, part in zip((rows, columns), SCALE_TILE, strict=True))
    padded = torch.nn.functional.pad(scales, (0, across, 0, down))
    split = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, SCALE_TILE[1]))
    return split.permute(0, 3, 2, 1, 4).flatten()
