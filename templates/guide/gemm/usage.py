import torch
from flashinfer.gemm import bmm_fp8, mm_bf16

x = torch.randn(64, 4096, dtype=torch.bfloat16, device="cuda")
weight = torch.randn(8192, 4096, dtype=torch.bfloat16, device="cuda")
product = mm_bf16(x, weight.T, backend="cublaslt")  # the weight is passed as [K, N], column major
assert torch.allclose(product.float(), x.float() @ weight.float().T, atol=2.0, rtol=2e-2)

scale = torch.ones((), device="cuda")  # what a tensor was divided by before it was rounded
rounded, rounded_weight = (t.to(torch.float8_e4m3fn)[None] for t in (x, weight))
product = bmm_fp8(rounded, rounded_weight.transpose(-2, -1), scale, scale, torch.bfloat16)
assert product.shape == (1, 64, 8192)
