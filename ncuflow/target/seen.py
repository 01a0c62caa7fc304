"""A launch as a trace shows it, to tell its shape from: the launch rules read backwards.

A target's ``Rules.shapes`` yields every set of parameters that launches so, of those parameters that count; what the launch
does not say it may know from elsewhere (``Seen.told``), and raises UnsaidError where nothing does. Nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ncuflow.target.launch import Params

Between = tuple[int, int]  # the least and the most that it may be
ENDLESS = re.compile(r"\d{13}")  # no size of anything
ITEMS = {"__half": "f16", "half_t": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "bfloat16_t": "bf16"}  # fmt: skip


class UnsaidError(ValueError):
    """Raised where neither the launch nor what is known besides says a shape: why. params: what it does say."""

    def __init__(self, why: str, params: Params | None = None) -> None:
        super().__init__(why)
        self.params = params or {}


class PartError(UnsaidError):
    """Raised of a kernel that finishes the call of the kernel before it: its time is part of that one's."""


@dataclass(frozen=True)
class Seen:
    """A kernel's launch. kernel: its name without namespaces and arguments; argument: its template arguments by parameter;
    shared: bytes of dynamic shared memory, None where the trace does not say it; graph: whether a graph replayed it.

    known: by name, what is known of the step and the model from elsewhere: tokens (of the step), decodes (sequences that get a
    token), decodes_kv_tokens (of their caches, all together), prompts, prompt_tokens, prompt_kv_tokens, prompt_squares (of
    their lengths, summed), hidden, intermediate,
    vocab, qo_heads, kv_heads, head_dim, page_size. ``used``: the names that were asked for and known.
    """

    kernel: str
    argument: Callable[[str], str | None]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int | None = None
    name: str = ""
    graph: bool = False
    known: Mapping[str, Between] = field(default_factory=dict)
    used: set[str] = field(default_factory=set, compare=False)

    def number(self, parameter: str) -> int:
        """A template argument that is a number. Raises UnsaidError where there is none."""
        text = self.argument(parameter) or ""
        if not text.isdecimal() or ENDLESS.search(text):
            raise UnsaidError(f"its name has no template argument {parameter}")
        return int(text)

    def told(self, name: str) -> Between | None:
        """What is known besides the launch."""
        found = self.known.get(name)
        if found is not None:
            self.used.add(name)
        return found

    def sure(self, name: str) -> int | None:
        """The same where it is one number."""
        found = self.told(name)
        return found[0] if found and found[0] == found[1] else None

    def attention(self) -> dict[str, str]:
        """{"kv": "fp8"} where the kernel's name says that its cache has 8 bits. Raises UnsaidError where it has a window,
        whose length it does not say."""
        if "sliding_window" in (self.argument("AttentionVariant") or ""):
            raise UnsaidError("its window is not in the launch")
        return {"kv": "fp8"} if "fp8" in (self.argument("DTypeKV") or "") else {}

    @property
    def dtype(self) -> dict[str, str]:
        """{"dtype": …} where the kernel's name says it."""
        found = {ours for theirs, ours in ITEMS.items() if theirs in self.name}
        return {"dtype": found.pop()} if len(found) == 1 else {}
