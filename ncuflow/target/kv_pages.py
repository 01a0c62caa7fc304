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
