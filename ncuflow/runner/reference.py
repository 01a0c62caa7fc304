"""Float32 references of the kernels, in plain torch."""

from __future__ import annotations

import math

from ncuflow.runner.launch import Tensor

_CHUNK_BYTES = 256 << 20  # float32 scratch of one step


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Attention of one sequence, head by head.

    q [rows, qo_heads, dim]; k, v [length, kv_heads, dim]; visible [rows] = how many of the first
    KV tokens each row sees. Returns float32 [rows, qo_heads, dim].
    """
    import torch

    rows, qo_heads, dim = q.shape
    length, kv_heads, _ = k.shape
    group = qo_heads // kv_heads
    hidden = torch.arange(length, device=q.device) >= visible[:, None, None]  # [rows, 1, length]
    out = torch.empty(rows, qo_heads, dim, dtype=torch.float32, device=q.device)
    step = max(1, _CHUNK_BYTES // (4 * group * length))
    for head in range(kv_heads):
        heads = slice(head * group, (head + 1) * group)
        keys, values = k[:, head].float(), v[:, head].float()
        for first in range(0, rows, step):
            part = slice(first, first + step)
            scores = q[part, heads].float() @ keys.T / math.sqrt(dim)
            scores.masked_fill_(hidden[part], -math.inf)
            out[part, heads] = scores.softmax(-1) @ values
    return out


def decode_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query row a sequence over all of its KV tokens.

    q [batch, qo_heads, dim]; k, v [batch, length, kv_heads, dim]. Returns float32 like q.
    """
    batch, qo_heads, dim = q.shape
    kv_heads = k.shape[2]
    grouped = q.float().view(batch, kv_heads, qo_heads // kv_heads, dim)
    keys = k.float().permute(0, 2, 3, 1)  # [batch, kv_heads, dim, length]
    weights = (grouped @ keys / math.sqrt(dim)).softmax(-1)
    return (weights @ v.float().transpose(1, 2)).reshape(batch, qo_heads, dim)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, float32."""
    x = x.float()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()


def rope_frequencies(dim: int, theta: float, llama31: bool) -> Tensor:
    """Angle per position of each rotated pair, float64 [dim/2].

    Llama 3.1 scales the low frequencies by 1/8 and blends between wavelengths of 8192/4 and 8192/1
    tokens (FlashInfer's defaults: rope_scale 8, low 1, high 4, old context 8192).
    """
    import torch

    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if not llama31:
        return frequency
    scale, low, high, context = 8.0, 1.0, 4.0, 8192.0
    smooth = (context * frequency / (2 * math.pi) - low) / (high - low)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequency / scale + smooth * frequency


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate pairs of x [tokens, heads, dim] by cos, sin [tokens, dim/2]; float32.

    A pair is (2i, 2i+1) if interleaved, else (i, i + dim/2), the "neox" layout.
    """
    import torch

    x = x.float()
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    half = x.shape[-1] // 2
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x[..., :half], x[..., half:]
    rotated = (a * cos - b * sin, b * cos + a * sin)
    return torch.stack(rotated, -1).flatten(-2) if interleaved else torch.cat(rotated, -1)


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention states: v [rows, n, heads, dim], s [rows, n, heads] (log2-sum-exp2).

    Returns v [rows, heads, dim] and s [rows, heads], float32. FlashInfer keeps the logarithm of
    the softmax sum to base 2.
    """
    import torch

    merged = torch.logsumexp(s.float() * math.log(2), dim=1) / math.log(2)
    weight = torch.exp2(s.float() - merged[:, None])
    return (v.float() * weight[..., None]).sum(1), merged
