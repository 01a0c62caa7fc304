import torch
from flashinfer import fused_add_rmsnorm, rmsnorm

rows, hidden, eps = 4096, 4096, 1e-6
x, residual = (torch.randn(rows, hidden, dtype=torch.float16, device="cuda") for _ in range(2))
weight = torch.randn(hidden, dtype=torch.float16, device="cuda")

y = rmsnorm(x, weight, eps)
total = x.float() + residual.float()

fused_add_rmsnorm(x, residual, weight, eps)  # in place: residual += x, then x = rmsnorm(residual)
assert y.isfinite().all()
assert torch.allclose(residual.float(), total, atol=1e-2)
