"""A page table: where the KV cache of each sequence lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ncuflow.runner.launch import Inputs, Tensor


@dataclass
class PageTable:
    """Page table of ``batch`` sequences of equal length, as FlashInfer takes it (int32).

    indptr [batch+1]         first entry of each sequence in ``indices``
    indices [pages]          page numbers; shuffled, as in a server that has run for a while
    last_page_len [batch]    tokens on the last page of each sequence
    """

    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    length: int
    page_size: int

    def gather(self, cache: Tensor, first: int, last: int) -> Tensor:
        """Sequences first..last-1 of a cache [pages, page_size, heads, dim], laid out in order.

        Returns [last-first, length, heads, dim].
        """
        per_sequence = pages_for(self.length, self.page_size)
        chosen = self.indices[first * per_sequence : last * per_sequence].long()
        tokens = cache[chosen].reshape(last - first, -1, *cache.shape[2:])
        return tokens[:, : self.length]


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold ``length`` tokens."""
    return -(-length // page_size)


def page_table(inputs: Inputs, batch: int, length: int, page_size: int) -> PageTable:
    """Page table with shuffled pages."""
    import torch

    per_sequence = pages_for(length, page_size)
    kind: dict[str, Any] = {"dtype": torch.int32, "device": inputs.device}
    indptr = torch.arange(batch + 1, **kind) * per_sequence
    indices = inputs.permutation(batch * per_sequence).to(torch.int32)
    last = torch.full((batch,), (length - 1) % page_size + 1, **kind)
    return PageTable(indptr, indices, last, length, page_size)
