import torch
from flashinfer.gdn_prefill import chunk_gated_delta_rule

tokens, qk_heads, v_heads, dim = 8192, 16, 32, 128
half, full = {"dtype": torch.bfloat16, "device": "cuda"}, {"device": "cuda"}
q, k = (torch.randn(tokens, qk_heads, dim, **full) for _ in range(2))
q, k = ((t / t.norm(dim=-1, keepdim=True)).bfloat16() for t in (q, k))  # keys of length one
v = torch.randn(tokens, v_heads, dim, **half)
forget, update = torch.rand(tokens, v_heads, **full), torch.rand(tokens, v_heads, **full)
starts = torch.tensor([0, tokens], dtype=torch.int64, device="cuda")
state = torch.empty(1, v_heads, dim, dim, **full)
out, state = chunk_gated_delta_rule(
    q, k, v, forget, update, output_final_state=True, cu_seqlens=starts, output_state=state
)
assert out.isfinite().all() and state.shape == (1, v_heads, dim, dim)
