import flashinfer
import torch

batch, new, kv_heads, head_dim, page_size = 4, 48, 8, 128, 16
half = {"dtype": torch.bfloat16, "device": "cuda"}
key, value = (torch.randn(batch * new, kv_heads, head_dim, **half) for _ in range(2))
pages = batch * new // page_size
cache = tuple(torch.zeros(pages, page_size, kv_heads, head_dim, **half) for _ in range(2))

whole = {"dtype": torch.int32, "device": "cuda"}
indptr = torch.arange(batch + 1, **whole) * (new // page_size)
indices, last_page_len = torch.arange(pages, **whole), torch.full((batch,), page_size, **whole)
token = torch.arange(batch * new, **whole)
flashinfer.append_paged_kv_cache(
    key, value, token // new, token % new, cache, indices, indptr, last_page_len
)
assert torch.equal(cache[0].flatten(0, 1), key)
