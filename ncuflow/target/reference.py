"""References of the kernels on the array API: torch tensors on the GPU, NumPy arrays in a test.

Half precision is computed in float32, as the outputs are compared; double precision stays double. A trace template
(``flashinfer.trace``) brings a reference of its own: it names the arguments of it, and the outputs, after those of the call.
"""

import inspect
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ncuflow.target.launch import NotHereError, Tensor

_CHUNK_BYTES = 256 << 20  # float32 scratch of one step


def attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, soft_cap: float = 0.0, window: int = 0
) -> Tensor:
    """Attention of one sequence, head by head.

    q [rows, qo_heads, dim]; k, v [length, kv_heads, dim]; visible [rows] = how many of the first
    KV tokens each row sees, of which a window leaves the last window + 1, 0 all of them, or
    [rows, length] = which, bool; soft_cap c: logits x become c·tanh(x/c), 0 for none.
    Returns [rows, qo_heads, dim]: zeros where a row sees no token.
    """
    xp, q, k, v = _wide(q, k, v)
    out = xp.empty_like(q)
    for place, head, some, scores in _visible(xp, q, k, visible, soft_cap, window):
        found = _softmax(xp, scores) @ v[:, head]
        out[place] = xp.where(some, found, xp.zeros_like(found))
    return out


def attention_sums(
    q: Tensor, k: Tensor, visible: Tensor, soft_cap: float = 0.0, window: int = 0
) -> Tensor:
    """Logarithms to the base 2 of the sums that `attention` divides by, of exp(logit): [rows, qo_heads], minus infinity where a
    row sees no token."""
    xp, q, k = _wide(q, k)
    out = xp.empty_like(q[..., 0])
    for place, _, some, scores in _visible(xp, q, k, visible, soft_cap, window):
        found = _sums(xp, scores)
        out[place] = xp.where(some, found, xp.full_like(found, -math.inf))[..., 0]
    return out


def _visible(
    xp: Any, q: Tensor, k: Tensor, visible: Tensor, soft_cap: float, window: int
) -> Iterator[tuple[Any, int, Tensor, Tensor]]:
    """(place in [rows, qo_heads], its KV head, [rows, 1, 1] whether a row sees anything, its logits [rows, heads, length], minus
    infinity for what it does not see where it sees anything), in steps that fit into memory."""
    rows, qo_heads, dim = q.shape
    length, kv_heads, _ = k.shape
    group = qo_heads // kv_heads
    token = xp.arange(length, device=visible.device)
    step = max(1, _CHUNK_BYTES // (4 * group * max(1, length)))
    for head in range(kv_heads):
        heads = slice(head * group, (head + 1) * group)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            scores = _capped(xp, q[part, heads] @ k[:, head].T / math.sqrt(dim), soft_cap)
            rows_see = visible[part, None]
            seen = rows_see if visible.ndim == 2 else token < rows_see[..., None]
            if window:
                seen = seen & (token >= rows_see[..., None] - 1 - window)
            some = xp.any(seen, axis=-1, keepdims=True)
            yield (part, heads), head, some, xp.where(seen | ~some, scores, -math.inf)


def decode_attention(q: Tensor, k: Tensor, v: Tensor, soft_cap: float = 0.0) -> Tensor:
    """Attention of one query row per sequence over all of its KV tokens.

    q [batch, qo_heads, dim]; k, v [batch, length, kv_heads, dim]; soft_cap as in ``attention``.
    Returns the shape of q: zeros where there is no token.
    """
    xp, q, k, v = _wide(q, k, v)
    if not k.shape[1]:
        return xp.zeros_like(q)
    weights = _softmax(xp, _decode_scores(xp, q, k, soft_cap))
    return xp.reshape(weights @ xp.permute_dims(v, (0, 2, 1, 3)), q.shape)


def decode_sums(q: Tensor, k: Tensor, soft_cap: float = 0.0) -> Tensor:
    """Logarithms to the base 2 of the sums that `decode_attention` divides by, of exp(logit): [batch, qo_heads], minus infinity
    where there is no token."""
    xp, q, k = _wide(q, k)
    if not k.shape[1]:
        return xp.zeros_like(q[..., 0]) - math.inf
    return xp.reshape(_sums(xp, _decode_scores(xp, q, k, soft_cap)), q.shape[:-1])


def _sums(xp: Any, scores: Tensor) -> Tensor:
    """Logarithms to the base 2 of the sums of exp(logit) over the last axis, which stays."""
    most = xp.max(scores, axis=-1, keepdims=True)
    sums = xp.log(xp.sum(xp.exp(scores - most), axis=-1, keepdims=True)) + most
    return sums / math.log(2)


def _decode_scores(xp: Any, q: Tensor, k: Tensor, soft_cap: float) -> Tensor:
    """Logits [batch, kv_heads, queries of a group, length]."""
    batch, qo_heads, dim = q.shape
    kv_heads = k.shape[2]
    grouped = xp.reshape(q, (batch, kv_heads, qo_heads // kv_heads, dim))
    keys = xp.permute_dims(k, (0, 2, 3, 1))  # [batch, kv_heads, dim, length]
    return _capped(xp, grouped @ keys / math.sqrt(dim), soft_cap)


def mla_decode(q: Tensor, q_pe: Tensor, latent: Tensor, position: Tensor, scale: float) -> Tensor:
    """Latent attention of one query row per sequence over all of its tokens; the latent is the value.

    q [batch, heads, latent], q_pe [batch, heads, position]; latent and position [batch, length, their
    elements]. Returns the shape of q: zeros where there is no token.
    """
    xp, q, q_pe, latent, position = _wide(q, q_pe, latent, position)
    if not latent.shape[1]:
        return xp.zeros_like(q)
    return _softmax(xp, _mla_scores(xp, q, q_pe, latent, position, scale)) @ latent


def mla_sums(q: Tensor, q_pe: Tensor, latent: Tensor, position: Tensor, scale: float) -> Tensor:
    """Logarithms to the base 2 of what `mla_decode` divides by: [batch, heads], minus infinity where there is no token."""
    xp, q, q_pe, latent, position = _wide(q, q_pe, latent, position)
    if not latent.shape[1]:
        return xp.zeros_like(q[..., 0]) - math.inf
    return _sums(xp, _mla_scores(xp, q, q_pe, latent, position, scale))[..., 0]


def _mla_scores(
    xp: Any, q: Tensor, q_pe: Tensor, latent: Tensor, position: Tensor, scale: float
) -> Tensor:
    """Logits [batch, heads, length]."""
    turned = (xp.permute_dims(of, (0, 2, 1)) for of in (latent, position))
    scores = sum(of @ keys for of, keys in zip((q, q_pe), turned, strict=True))
    return scores * scale


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up, element by element; "silu", "gelu" (by erf) or "gelu_tanh"."""
    xp, gate, up = _wide(gate, up)
    if activation == "silu":
        share = 1 / (1 + xp.exp(-gate))
    elif activation == "gelu_tanh":
        share = (1 + xp.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    else:
        share = _normal(xp, gate)
    return gate * share * up


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    update: Tensor,
    scale: float,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear attention by the gated delta rule, token by token from a state, an empty one unless given.

    q, k [tokens, heads, dim]; v [tokens, value heads, dim], a multiple of the heads, neighbours of which
    share a head; decay [tokens, value heads], or of each element of a key [tokens, value heads, dim]; update [tokens, value
    heads]; state [value heads, dim of keys, dim of values]. Heads may be those of many sequences of as many tokens, one
    sequence after the other. Returns the output in the shape of v, and the state after it.
    """
    xp, q, k, v, decay, update = _wide(q, k, v, decay, update)
    q, k = (xp.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
    shape = (v.shape[1], q.shape[2], v.shape[2])
    now = xp.zeros(shape, dtype=v.dtype, device=v.device) if state is None else _wide(state)[1]
    out = xp.empty_like(v)
    for t in range(v.shape[0]):
        now = xp.reshape(decay[t], (shape[0], -1, 1)) * now
        held = (k[t, :, None] @ now)[:, 0]
        now = now + k[t, :, :, None] * (update[t, :, None] * (v[t] - held))[:, None]
        out[t] = scale * (q[t, :, None] @ now)[:, 0]
    return out, now


def selective_scan(
    x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """A state space model with inputs that choose what it keeps (Mamba 2), token by token.

    x [sequences, tokens, heads, dim]; step [sequences, tokens, heads], positive; a, skip [heads]; b, c [sequences, tokens,
    groups, states], of which neighbouring heads share one; state [sequences, heads, dim, states]. Returns the output in the
    shape of x, and the state after it.
    """
    xp, x, step, a, b, c, skip, state = _wide(x, step, a, b, c, skip, state)
    b, c = (xp.repeat(one, x.shape[2] // one.shape[2], axis=2) for one in (b, c))
    out = xp.empty_like(x)
    for t in range(x.shape[1]):
        kept = xp.exp(step[:, t] * a)[..., None, None] * state
        state = kept + (step[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        out[:, t] = xp.sum(state * c[:, t, :, None], axis=-1) + skip[:, None] * x[:, t]
    return out, state


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension."""
    xp, x, weight, bias = _wide(x, weight, bias)
    x = x - xp.mean(x, axis=-1, keepdims=True)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps) * weight + bias


def softmax(logits: Tensor) -> Tensor:
    """exp(x) / sum(exp(x)) over the last dimension."""
    xp, logits = _wide(logits)
    return _softmax(xp, logits)


def likely(probs: Tensor, top_k: int, top_p: float, min_p: float, slack: float = 1e-4) -> Tensor:
    """Which tokens of each row [batch, vocab] may be drawn, bool.

    The top_k likeliest; those that, likeliest first, come before a sum of top_p; those of at least
    min_p times the likeliest. A token at the limit to within ``slack`` counts: sums round.
    """
    xp, probs = _wide(probs)
    ordered = xp.flip(xp.sort(probs, axis=-1), axis=-1)
    before = xp.cumulative_sum(ordered, axis=-1) - ordered
    count = xp.sum(xp.astype(before < top_p + slack, xp.int64), axis=-1, keepdims=True)
    place = xp.clip(count - 1, 0, top_k - 1)
    least = xp.take_along_axis(ordered, place, axis=-1)
    least = xp.where(least > min_p * ordered[..., :1], least, min_p * ordered[..., :1])
    return probs >= least * (1 - slack)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    xp, x, weight = _wide(x, weight)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def product(x: Tensor, weight: Tensor, scale: Tensor | None = None, block: int = 1) -> Tensor:
    """x [batch, m, k] times weight [batch, n, k], transposed: [batch, m, n].

    scale [n / block, k / block]: what each block of the weight is to be multiplied by.
    """
    xp, x, weight = _wide(x, weight)
    if scale is not None:
        weight = scaled(weight, scale, block)
    return x @ xp.permute_dims(weight, (0, 2, 1))


def scaled(matrix: Tensor, scale: Tensor, block: int) -> Tensor:
    """A matrix [..., n, k], each block of it times its scale [n / block, k / block]."""
    xp, matrix = _wide(matrix)
    return matrix * xp.repeat(xp.repeat(scale, block, axis=0), block, axis=1)


def experts(
    x: Tensor,
    chosen: Tensor,
    share: Tensor,
    matrices: Callable[[int], tuple[Tensor, ...]],
) -> Tensor:
    """Tokens x [n, hidden] through their experts ``chosen`` [n, k], each result times its share [n, k], summed.

    matrices: gate and up [inner, hidden] and down [hidden, inner] of an expert. No token has an expert twice.
    """
    xp, x, share = _wide(x, share)
    out = xp.zeros_like(x)
    for expert in range(int(xp.max(chosen)) + 1):
        rows, places = xp.nonzero(chosen == expert)
        if rows.shape[0]:
            gate, up, down = matrices(expert)
            inner = gated(x[rows] @ gate.T, x[rows] @ up.T, "silu")
            out[rows] += share[rows, places][:, None] * (inner @ down.T)
    return out


def rope_frequencies(index: Tensor, dim: int, theta: float, llama31: bool) -> Tensor:
    """Angle per position of the rotated pairs ``index`` (of dim/2), float64 like index.

    Llama 3.1 scales the low frequencies by 1/8 and blends between wavelengths of 8192/4 and 8192/1
    tokens (FlashInfer's defaults: rope_scale 8, low 1, high 4, old context 8192).
    """
    xp, index = _wide(index)
    frequency = theta ** (-2 * index / dim)
    if not llama31:
        return frequency
    scale, low, high, context = 8.0, 1.0, 4.0, 8192.0
    smooth = xp.clip((context * frequency / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * frequency / scale + smooth * frequency


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate pairs of x [tokens, heads, dim] by cos, sin [tokens, dim/2].

    A pair is (2i, 2i+1) if interleaved, else (i, i + dim/2), the "neox" layout.
    """
    xp, x, cos, sin = _wide(x, cos, sin)
    cos, sin, half = cos[:, None], sin[:, None], x.shape[-1] // 2
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x[..., :half], x[..., half:]
    rotated = [a * cos - b * sin, b * cos + a * sin]
    return xp.reshape(xp.stack(rotated, axis=-1 if interleaved else -2), x.shape)


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention states: v [rows, n, heads, dim], s [rows, n, heads] (log2-sum-exp2).

    Returns v [rows, heads, dim] and s [rows, heads]. FlashInfer keeps the logarithm of the softmax
    sum to base 2; that of a state of no tokens is minus infinity, and nothing but such states merges to zeros.
    """
    xp, v, s = _wide(v, s)
    most = xp.max(s, axis=1, keepdims=True)
    shift = xp.where(xp.isfinite(most), most, xp.zeros_like(most))
    weight = 2.0 ** (s - shift)
    total = xp.sum(weight, axis=1, keepdims=True)
    some = xp.where(total > 0, total, xp.ones_like(total))
    merged = xp.sum(v * (weight / some)[..., None], axis=1)
    return merged, xp.where(total > 0, shift + xp.log2(some), most)[:, 0]


def _normal(xp: Any, x: Tensor) -> Tensor:
    """Cumulative normal distribution. The array API has no erf: torch's own, NumPy's by math.erf."""
    if hasattr(xp, "erf"):
        return (1 + xp.erf(x / math.sqrt(2))) / 2
    flat = [math.erf(value / math.sqrt(2)) for value in xp.reshape(x, (-1,))]
    return xp.reshape((1 + xp.asarray(flat, dtype=x.dtype)) / 2, x.shape)


def _capped(xp: Any, scores: Tensor, cap: float) -> Tensor:
    return cap * xp.tanh(scores / cap) if cap else scores


def _softmax(xp: Any, scores: Tensor) -> Tensor:
    """Over the last dimension."""
    weight = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return weight / xp.sum(weight, axis=-1, keepdims=True)


def _wide(*arrays: Tensor) -> tuple[Any, ...]:
    """The arrays' namespace, and they themselves: float64 as they are, the rest in float32."""
    from array_api_compat import array_namespace

    xp = array_namespace(*arrays)
    return xp, *(a if a.dtype == xp.float64 else xp.astype(a, xp.float32) for a in arrays)


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
    allowed = likely(probs, **limits) & (probs > 0)
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
            # FlashInfer's own, where none is given
            found[name] = 1 / math.sqrt(named["q"].shape[-1])
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
