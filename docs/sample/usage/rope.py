import torch
from flashinfer import (
    apply_llama31_rope_pos_ids_inplace,
    apply_rope_pos_ids_inplace,
    apply_rope_with_cos_sin_cache_inplace,
)

tokens, qo_heads, kv_heads, head_dim = 4096, 32, 8, 128
half = {"dtype": torch.float16, "device": "cuda"}
q = torch.randn(tokens, qo_heads, head_dim, **half)
k = torch.randn(tokens, kv_heads, head_dim, **half)
positions = torch.arange(tokens, device="cuda")

# Cached: a float32 row of cosines, then sines, for each position; q and k are 2-D here.
rates = 1e4 ** (-torch.arange(0, head_dim, 2, device="cuda") / head_dim)
angles = torch.outer(positions.float(), rates)
cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
cached = q.clone()
apply_rope_with_cos_sin_cache_inplace(
    positions, cached.view(tokens, -1), k.clone().view(tokens, -1), head_dim, cache, is_neox=True
)

# On the fly: the kernel computes sines and cosines itself.
on_the_fly = q.clone()
apply_rope_pos_ids_inplace(on_the_fly, k.clone(), positions.int(), interleave=False)
assert torch.allclose(cached, on_the_fly, atol=2e-2)

# Llama 3.1 and later: frequencies rescaled for long contexts.
apply_llama31_rope_pos_ids_inplace(q, k, positions.int(), rope_scale=8.0, rope_theta=5e5)
assert q.isfinite().all()
