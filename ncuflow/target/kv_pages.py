"""A page table: where the KV cache of each sequence lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ncuflow.target.launch import Inputs, Tensor


@dataclass
class PageTable:
    """Page table of ``batch`` sequences, as FlashInfer takes it (int32).

    indptr [batch+1]         first entry of each sequence in ``indices``
    indices [pages]          page numbers; shuffled, as in a server that has run for a while
    last_page_len [batch]    tokens on the last page of each sequence
    lengths                  tokens of each sequence
    """

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    lengths: list[int]
    page_size: int

    def gather(self, cache: Tensor, first: int, last: int) -> Tensor:
        """Sequences first..last-1, of one length, of a cache [pages, page_size, …], laid out in order.

        Returns [last-first, length, …].
        """
        import torch

        pages = [pages_for(length, self.page_size) for length in self.lengths[:last]]
        chosen = self.indices[sum(pages[:first]) : sum(pages)].long()
        # few operations take types of 8 bits: they are gathered as plain bytes
        plain = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
        tokens = plain[chosen].reshape(last - first, -1, *cache.shape[2:])
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
    last = torch.tensor([(length - 1) % page_size + 1 for length in lengths], **kind)
    return PageTable(indptr, indices, last, lengths, page_size)
