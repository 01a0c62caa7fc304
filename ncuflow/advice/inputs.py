"""Inputs that the choices of one shape share: drawn once, and taken by each that draws alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ncuflow.target.launch import Inputs, Tensor

DRAWS = ("normal", "permutation")  # what `Inputs` draws by


@dataclass
class Drawn:
    """Inputs that launches of one shape share. latest: what the one prepared last has of them."""

    tensors: dict[Any, Tensor] = field(default_factory=dict)
    latest: list[Any] = field(default_factory=list)


@contextmanager
def sharing(drawn: Drawn) -> Iterator[None]:
    """Launches that are prepared in the block take, in the place of what is drawn alike, what an earlier one drew."""
    drawn.latest = []
    draws: WeakKeyDictionary[Inputs, int] = WeakKeyDictionary()
    alone = {name: getattr(Inputs, name) for name in DRAWS}
    for name, draw in alone.items():
        setattr(Inputs, name, _once(drawn, draws, draw))
    try:
        yield
    finally:
        for name, draw in alone.items():
            setattr(Inputs, name, draw)


def _once(
    drawn: Drawn, draws: WeakKeyDictionary[Inputs, int], draw: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A draw that is made by the first launch that draws the same in this place."""

    def shared(inputs: Inputs, *what: Any, **how: Any) -> Tensor:
        draws[inputs] = draws.get(inputs, 0) + 1
        key = (draws[inputs], draw.__name__, what, *how.items())
        drawn.latest.append(key)
        if key not in drawn.tensors:
            drawn.tensors[key] = draw(inputs, *what, **how)
        return drawn.tensors[key]

    return shared
