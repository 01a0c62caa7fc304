import torch
from flashinfer import merge_state, merge_states

rows, states, heads, head_dim = 1024, 4, 32, 128
v = torch.randn(rows, states, heads, head_dim, dtype=torch.float16, device="cuda")
s = torch.randn(rows, states, heads, dtype=torch.float32, device="cuda")  # log2-sum-exp of each

out, lse = merge_states(v, s)

# Merging is associative: two at a time gives the same state.
va, vb, vc, vd = (part.contiguous() for part in v.unbind(1))
sa, sb, sc, sd = (part.contiguous() for part in s.unbind(1))
left, right = merge_state(va, sa, vb, sb), merge_state(vc, sc, vd, sd)
pairwise, _ = merge_state(*left, *right)
assert torch.allclose(out.float(), pairwise.float(), atol=2e-2)
