import torch
from flashinfer import silu_and_mul

x = torch.randn(4096, 2 * 14336, dtype=torch.bfloat16, device="cuda")
out = torch.empty(4096, 14336, dtype=torch.bfloat16, device="cuda")
silu_and_mul(x, out=out)
gate, up = x.float().split(14336, dim=-1)
assert torch.allclose(out.float(), torch.nn.functional.silu(gate) * up, atol=5e-2, rtol=2e-2)
