import torch
from flashinfer import PODWithPagedKVCacheWrapper

batch, heads, kv_heads, dim, page_size = 32, 32, 8, 128, 16
own = 256  # pages of each decoded sequence
half = {"dtype": torch.float16, "device": "cuda"}
whole = {"dtype": torch.int32, "device": "cuda"}
chunk, context = 1024, 4096  # tokens of the prefill in this step, and of its sequence so far
q = torch.randn(chunk, heads, dim, **half)
k, v = (torch.randn(context, kv_heads, dim, **half) for _ in range(2))
decoded = torch.randn(batch, heads, dim, **half)
cache = tuple(torch.randn(batch * own, page_size, kv_heads, dim, **half) for _ in range(2))

workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = PODWithPagedKVCacheWrapper(workspace, "NHD")
wrapper.plan(  # of the decodes alone
    torch.arange(batch + 1, **whole) * own,
    torch.arange(batch * own, **whole),
    torch.full((batch,), page_size, **whole),
    heads, kv_heads, dim, page_size,
    q_data_type=torch.float16,
)  # fmt: skip
prefilled, tokens = wrapper.run(q, k, v, decoded, cache, causal_p=True)
assert prefilled.shape == q.shape and tokens.shape == decoded.shape
