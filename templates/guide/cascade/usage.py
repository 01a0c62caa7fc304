import torch
from flashinfer import MultiLevelCascadeAttentionWrapper

batch, heads, kv_heads, dim, page_size = 64, 32, 8, 128, 16
prefix, own = 512, 32  # pages that all share, and pages of each sequence
half = {"dtype": torch.float16, "device": "cuda"}
whole = {"dtype": torch.int32, "device": "cuda"}
q = torch.randn(batch, heads, dim, **half)
pages = prefix + batch * own
cache = tuple(torch.randn(pages, page_size, kv_heads, dim, **half) for _ in range(2))

workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = MultiLevelCascadeAttentionWrapper(2, workspace, "NHD")
rows = torch.arange(batch + 1, **whole)
wrapper.plan(
    [rows[[0, -1]], rows],  # the prefix's level has all queries in one segment
    [torch.tensor([0, prefix], **whole), rows * own],
    [torch.arange(prefix, **whole), torch.arange(prefix, pages, **whole)],
    [torch.tensor([page_size], **whole), torch.full((batch,), page_size, **whole)],
    heads, kv_heads, dim, page_size,
    q_data_type=torch.float16,
)  # fmt: skip
assert wrapper.run(q, cache).shape == (batch, heads, dim)
