"""The reference of a trace template: what it gives for a call's arguments, and a call's outputs held against it.

A template (``flashinfer.trace``) names the arguments of its reference, and the outputs, after those of the call.
"""

from __future__ import annotations

import inspect
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ncuflow.target import reference
from ncuflow.target.launch import NotHereError, Tensor

SECONDS = 20  # that a reference may take


class Compared:
    """What a run gave, against what the template's reference gives for the same inputs.

    before: the arguments as they were before the first run, default values among them; arguments: those that the runs
    are given; last: {"out": what the last run returned}; chosen: what is compared of a tensor of places that a call
    selects, of ``before`` and the tensor.
    """

    def __init__(
        self,
        trace: Any,
        before: dict[str, Any],
        arguments: dict[str, Any],
        last: dict[str, Any],
        chosen: Callable[[Mapping[str, Any], Tensor], Tensor] | None = None,
    ) -> None:
        self.trace, self.last, self.arguments = trace, last, arguments
        self.before, self.chosen = before, chosen
        self.expected: list[Tensor] = []

    def actual(self) -> list[Tensor]:
        """The tensors that the run returned; where it returned none, those that it says it writes."""
        out = self.last["out"]
        return tensors(out) if out is not None else self._written(self.arguments)

    def _written(self, arguments: Mapping[str, Any]) -> list[Tensor]:
        """The arguments that the outputs are written to; one that no argument is named after takes the place of that
        whose type it has."""
        named = [(n, d) for n, d in self.trace.outputs.items() if hasattr(d, "param")]
        names = [
            d.param or (n if n in arguments else str(getattr(d, "dtype_from", "")))
            for n, d in named
        ]
        return [t for name in names for t in tensors(arguments.get(name))]

    def output(self) -> tuple[Tensor, ...]:
        """What the run gave, in float32; of whole numbers the share that is right.

        Of the tensors that the run wrote, those that the reference gives; of sampled tokens, which are drawn, the share
        that may be drawn.
        """
        import torch

        if "samples" in self.trace.outputs:
            self.expected = [torch.ones(1)]
            return (torch.tensor([drawable(self.before, self.actual()[0])]),)
        inputs = cloned(self.before)
        with limited(SECONDS, "its reference does not end"):
            given = self.trace.reference(**reference_arguments(self.trace, inputs))
            torch.cuda.synchronize()
        actual = self.actual()
        expected = tensors(given) if given is not None else self._written(inputs)
        if given is not None and self.last["out"] is None:
            actual = actual[: len(expected)]
        if not actual or len(expected) < len(actual):
            raise NotHereError("its reference gives other outputs than the call")
        pairs = [(a, e.reshape(a.shape)) for a, e in zip(actual, expected, strict=False)]
        agreed = self._agreed(expected[: len(actual)], actual)
        if chosen := self.chosen:
            pairs = [(chosen(self.before, a), chosen(self.before, e)) for a, e in pairs]
        found = [_comparable(a, e, agreed) for a, e in pairs]
        self.expected = [e for _, e in found]
        return tuple(a for a, _ in found)

    def reference(self) -> tuple[Tensor, ...]:
        """What ``output`` is held against."""
        return tuple(self.expected)

    def _agreed(self, expected: list[Tensor], actual: list[Tensor]) -> bool:
        """Whether the template's own check is satisfied."""
        single = len(actual) == 1
        try:
            return bool(self.trace.check(*((x[0] if single else x) for x in (expected, actual))))
        except Exception:  # some checks take more than the outputs
            return False


def drawable(given: Mapping[str, Any], samples: Tensor) -> float:
    """The share of sampled tokens that have a probability above zero after the call's filters."""
    import torch

    probs = given.get("probs")
    probs = torch.softmax(given["logits"].float(), dim=-1) if probs is None else probs.float()
    limits = {"top_k": probs.shape[-1], "top_p": 1.0, "min_p": 0.0}
    for name in limits.keys() & given.keys():
        one = given[name]
        limits[name] = one.reshape(-1, 1) if isinstance(one, torch.Tensor) else one
    allowed = reference.likely(probs, **limits) & (probs > 0)
    token = samples.long().reshape(-1, 1)
    inside = (token >= 0) & (token < probs.shape[-1])
    found = allowed.gather(1, token.clamp(0, probs.shape[-1] - 1)) & inside
    return float(found.float().mean())


def reference_arguments(trace: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the template's reference, by its own names. Raises NotHereError for one that nothing names."""
    named = dict(given)
    for name, descriptor in trace.inputs.items():
        value = given.get(getattr(descriptor, "param", None) or name)
        index = getattr(descriptor, "tuple_idx", None)
        if value is not None:
            named[name] = (
                value[index] if index is not None and isinstance(value, (tuple, list)) else value
            )
    found = {}
    for name, one in inspect.signature(trace.reference).parameters.items():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        alias = next(
            (a for a in (name, name.removeprefix("kv_"), f"paged_{name}") if a in named), None
        )
        if alias is not None:
            found[name] = named[alias]
        if found.get(name) is None and name in ("sm_scale", "scale") and "q" in named:
            found[name] = 1 / math.sqrt(
                named["q"].shape[-1]
            )  # FlashInfer's own, where none is given
        elif alias is None and one.default is one.empty:
            raise NotHereError(f"its reference needs {name}, which its inputs do not name")
    return found


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """What a call leaves out: the function's own default values."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default not in (one.empty, None)}


def _comparable(actual: Tensor, expected: Tensor, agreed: bool) -> tuple[Tensor, Tensor]:
    """Both in float32; of whole numbers the share that is equal, 1 where the template's check agrees."""
    import torch

    if not actual.is_floating_point():
        share = 1.0 if agreed else (actual == expected).float().mean().item()
        return torch.tensor([share]), torch.ones(1)
    a, e = actual.float(), expected.float()
    same = ~torch.isfinite(e) & (a == e)  # a mask of minus infinity
    return torch.where(same, 0.0, a), torch.where(same, 0.0, e)


@contextmanager
def limited(seconds: int, what: str) -> Iterator[None]:
    """Raise NotHereError where what is done inside takes longer than ``seconds``."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise NotHereError(f"{what} in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value
    return (
        [t for one in inner for t in tensors(one)]
        if isinstance(value, (list, tuple, Mapping))
        else []
    )


def cloned(value: Any) -> Any:
    """The value, with a copy of each tensor in its lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: cloned(one) for key, one in value.items()}
    return type(value)(cloned(one) for one in value) if type(value) in (list, tuple) else value
