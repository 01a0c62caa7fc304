import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper

batch, heads, page_size, pages = 32, 128, 64, 32
half = {"dtype": torch.bfloat16, "device": "cuda"}
whole = {"dtype": torch.int32, "device": "cuda"}
q, q_pe = torch.randn(batch, heads, 512, **half), torch.randn(batch, heads, 64, **half)
latent = torch.randn(batch * pages, page_size, 512, **half)
position = torch.randn(batch * pages, page_size, 64, **half)

wrapper = BatchMLAPagedAttentionWrapper(torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"))
rows, first_page = torch.arange(batch + 1, **whole), torch.arange(batch + 1, **whole) * pages
lengths = torch.full((batch,), pages * page_size, **whole)
indices = torch.arange(batch * pages, **whole)
# The scale is that of the head before its projection was absorbed: 128 elements and 64 of position.
sizes = (heads, 512, 64, page_size)
wrapper.plan(rows, first_page, indices, lengths, *sizes, False, 192**-0.5, q.dtype, q.dtype)
assert wrapper.run(q, q_pe, latent, position).shape == (batch, heads, 512)
