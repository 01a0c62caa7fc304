"""What the inputs of a launch are made of: types of elements, a page table, matrices and caches of 8 and 4 bits.

Matrices of MXFP8 and NVFP4 share a scale in blocks
along a row: they are quantised here, not by FlashInfer, so what a call multiplies is known exactly, and a reference of it
shares no code with the kernels. Scales lie as tensor cores of Blackwell read them, in tiles of 128 rows and 4 columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from ncuflow.target.launch import Inputs, Tensor

DTYPES = {"f16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
ITEMSIZE = {"f16": 2, "bf16": 2}  # of the types that every target takes
FP8 = "fp8"  # a byte: e4m3, a sign, 4 bits of exponent and 3 of mantissa
NVFP4 = "nvfp4"  # half a byte, e2m1, and a scale in e4m3 for each 16 (``fours``)
# As a framework's operators name the types of their tensors.
TORCH_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "f16", "c10::Float8_e4m3fn": FP8}
STEP_BYTES = 256 << 20  # float32 tokens of one step of a reference over pages

# Relative L2 error allowed against the float32 reference. Rounding an output to fp16 (11 bits)
# costs 3e-4 and to bf16 (8 bits) 2e-3; attention rounds its probabilities once more. A dropped KV
# token, a wrong mask or a wrong page costs percents, so these limits sit well between the two.
TOLERANCE = {"f16": 5e-3, "bf16": 2e-2}


TINY = "denormals and -0.0"


def tiny(row: Tensor) -> None:
    """Make elements of a row the least that is not 0, and 0 of the other sign, by turns."""
    import torch

    row.fill_(torch.finfo(row.dtype).smallest_normal / 4)
    row.view(-1)[1::2] = -0.0


def torch_dtype(name: str) -> Any:
    """torch.float16 for "f16", torch.bfloat16 for "bf16", torch.float8_e4m3fn for "fp8"."""
    import torch

    return getattr(torch, DTYPES[name])


def gathered(x: Tensor, index: Any) -> Tensor:
    """Elements of a tensor, which is gathered as bytes where it is of 8 bits, as few operations take them."""
    import torch

    return x.view(torch.uint8)[index].view(x.dtype) if x.dtype.itemsize == 1 else x[index]


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

    @property
    def planned(self) -> tuple[Tensor, Tensor, Tensor]:
        """What plan() takes of it, in order."""
        return self.indptr, self.indices, self.last_page_len

    def steps(self, elements: int) -> Iterator[tuple[slice, int]]:
        """(Sequences of one length, that length): as many as STEP_BYTES hold in float32; elements: of a token."""
        first = 0
        for length, same in groupby(self.lengths):
            end = first + len(list(same))
            step = max(1, STEP_BYTES // (4 * max(1, length) * elements))
            for start in range(first, end, step):
                yield slice(start, min(end, start + step)), length
            first = end

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

        pages = [pages_for(length, self.page_size) for length in self.lengths[:last]]
        chosen = self.indices[sum(pages[:first]) : sum(pages)].long()
        room = pages[first] * self.page_size
        tokens = gathered(cache, chosen).reshape(last - first, room, *cache.shape[2:])
        return gathered(tokens, (slice(None), slice(self.lengths[first])))


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold ``length`` tokens."""
    return -(-length // page_size)


def around(page: int) -> list[int]:
    """Lengths at which a kernel goes wrong: one token, just below, at and above a page."""
    return list(dict.fromkeys((1, max(1, page - 1), page, page + 1)))


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
# by their codes; the bit above them is the sign
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, LARGEST_4)
SCALE_TILE = (128, 4)  # rows and columns of scales
_BIAS = 127  # of e8m0


class Scaled(NamedTuple):
    """Quantised elements, a scale for each block or tile of them, in order, and what both stand for, in float32."""

    elements: Tensor
    scales: Tensor
    values: Tensor


def scaled(x: Tensor, tile: tuple[int, int]) -> Scaled:
    """A matrix [..., rows, k] in fp8, each tile (rows, columns) over its largest element's scale."""
    import torch

    split = x.float().unflatten(-1, (-1, tile[1])).unflatten(-3, (-1, tile[0]))
    scale = (split.abs().amax((-3, -1)) / LARGEST).clamp(min=2.0**-60)
    wide = scale[..., None, :, None]
    elements = (split / wide).to(torch.float8_e4m3fn)
    values = (elements.float() * wide).flatten(-2).flatten(-3, -2)
    return Scaled(elements.flatten(-2).flatten(-3, -2), scale, values)


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


def fours(x: Tensor) -> Scaled:
    """A tensor [..., k] in NVFP4 without a scale of the whole: each block over its largest's scale, rounded to e4m3; two
    e2m1 a byte of ``elements``, the first in the lower bits."""
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
    return Scaled(packed, scale, values.flatten(-2))


def tiled(scales: Tensor) -> Tensor:
    """Scales [rows, blocks] as they lie, flat: padded with zeros to whole tiles; in one, rows 32 apart beside each other."""
    import torch

    rows, columns = scales.shape
    down, across = (-size % part for size, part in zip((rows, columns), SCALE_TILE, strict=True))
    padded = torch.nn.functional.pad(scales, (0, across, 0, down))
    split = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, SCALE_TILE[1]))
    return split.permute(0, 3, 2, 1, 4).flatten()
