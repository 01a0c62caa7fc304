import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper

batch, seq_len, page_size = 2, 512, 16
qo_heads, kv_heads, head_dim = 32, 8, 128
pages = seq_len // page_size  # of each sequence

half = {"dtype": torch.float16, "device": "cuda"}
ints = {"dtype": torch.int32, "device": "cuda"}
q = torch.randn(batch * seq_len, qo_heads, head_dim, **half)
k, v = (torch.randn(batch * pages, page_size, kv_heads, head_dim, **half) for _ in range(2))
qo_indptr = torch.arange(batch + 1, **ints) * seq_len
kv_indptr = torch.arange(batch + 1, **ints) * pages
kv_indices = torch.arange(batch * pages, **ints)
last_page_len = torch.full((batch,), page_size, **ints)

workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
wrapper.plan(  # on the host, once for all layers of a step
    qo_indptr,
    kv_indptr,
    kv_indices,
    last_page_len,
    qo_heads,
    kv_heads,
    head_dim,
    page_size,
    causal=True,
    q_data_type=q.dtype,
    kv_data_type=k.dtype,
)
out = torch.empty_like(q)
wrapper.run(q, (k, v), out=out)  # without out= a fill kernel runs first
assert out.isfinite().all()
