import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper, MLAPlanMetadata

batch, heads, page_size, pages = 32, 128, 64, 32
half = {"dtype": torch.bfloat16, "device": "cuda"}
whole = {"dtype": torch.int32, "device": "cuda"}
# Of each the first 512 elements are the latent part, 64 the position.
q = torch.randn(batch, heads, 512 + 64, **half)
cache = torch.randn(batch * pages, page_size, 512 + 64, **half)

wrapper = BatchMLAPagedAttentionWrapper(torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"))
rows, first_page = torch.arange(batch + 1, **whole), torch.arange(batch + 1, **whole) * pages
lengths = torch.full((batch,), pages * page_size, **whole)
indices = torch.arange(batch * pages, **whole)
# That of the head before its projection was absorbed: 128 elements and 64 of position.
scale = (128 + 64) ** -0.5
wrapper.plan(
    metadata=MLAPlanMetadata.csr(rows, first_page, indices, lengths),
    num_heads=heads,
    head_dim_ckv=512,
    head_dim_kpe=64,
    page_size=page_size,
    causal=False,
    sm_scale=scale,
    q_data_type=q.dtype,
    kv_data_type=q.dtype,
)
assert wrapper.run(query=q, kv_cache=cache).shape == (batch, heads, 512)
