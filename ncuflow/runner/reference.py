"""References of the kernels on the array API: torch tensors on the GPU, NumPy arrays in a test.

Half precision is computed in float32, as the outputs are compared; double precision stays double.
"""

from __future__ import annotations

import math
from typing import Any

from ncuflow.runner.launch import Tensor

_CHUNK_BYTES = 256 << 20  # float32 scratch of one step


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, soft_cap: float = 0.0) -> Tensor:
    """Attention of one sequence, head by head.

    q [rows, qo_heads, dim]; k, v [length, kv_heads, dim]; visible [rows] = how many of the first
    KV tokens each row sees; soft_cap c: logits x become c·tanh(x/c), 0 for none. Returns
    [rows, qo_heads, dim].
    """
    xp, q, k, v = _wide(q, k, v)
    rows, qo_heads, dim = q.shape
    length, kv_heads, _ = k.shape
    group = qo_heads // kv_heads
    token = xp.arange(length, device=visible.device)
    out = xp.empty_like(q)
    step = max(1, _CHUNK_BYTES // (4 * group * length))
    for head in range(kv_heads):
        heads = slice(head * group, (head + 1) * group)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            scores = q[part, heads] @ k[:, head].T / math.sqrt(dim)
            if soft_cap:
                scores = soft_cap * xp.tanh(scores / soft_cap)
            seen = token < visible[part, None, None]
            out[part, heads] = _softmax(xp, xp.where(seen, scores, -math.inf)) @ v[:, head]
    return out


def decode_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query row per sequence over all of its KV tokens.

    q [batch, qo_heads, dim]; k, v [batch, length, kv_heads, dim]. Returns the shape of q.
    """
    xp, q, k, v = _wide(q, k, v)
    batch, qo_heads, dim = q.shape
    kv_heads = k.shape[2]
    grouped = xp.reshape(q, (batch, kv_heads, qo_heads // kv_heads, dim))
    keys = xp.permute_dims(k, (0, 2, 3, 1))  # [batch, kv_heads, dim, length]
    weights = _softmax(xp, grouped @ keys / math.sqrt(dim))
    return xp.reshape(weights @ xp.permute_dims(v, (0, 2, 1, 3)), q.shape)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    xp, x, weight = _wide(x, weight)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


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
    sum to base 2.
    """
    xp, v, s = _wide(v, s)
    most = xp.max(s, axis=1, keepdims=True)
    weight = 2.0 ** (s - most)
    total = xp.sum(weight, axis=1, keepdims=True)
    merged = xp.sum(v * (weight / total)[..., None], axis=1)
    return merged, (most + xp.log2(total))[:, 0]


def _softmax(xp: Any, scores: Tensor) -> Tensor:
    """Over the last dimension."""
    weight = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return weight / xp.sum(weight, axis=-1, keepdims=True)


def _wide(*arrays: Tensor) -> tuple[Any, ...]:
    """The arrays' namespace, and they themselves: float64 as they are, the rest in float32."""
    from array_api_compat import array_namespace

    xp = array_namespace(*arrays)
    return xp, *(a if a.dtype == xp.float64 else xp.astype(a, xp.float32) for a in arrays)
