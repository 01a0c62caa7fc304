import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper

batch, kv_len, page_size = 32, 2048, 16
qo_heads, kv_heads, head_dim = 32, 8, 128
pages = kv_len // page_size  # of each sequence

half = {"dtype": torch.float16, "device": "cuda"}
ints = {"dtype": torch.int32, "device": "cuda"}
q = torch.randn(batch, qo_heads, head_dim, **half)
k, v = (torch.randn(batch * pages, page_size, kv_heads, head_dim, **half) for _ in range(2))
indptr = torch.arange(batch + 1, **ints) * pages
indices = torch.arange(batch * pages, **ints)
last_page_len = torch.full((batch,), page_size, **ints)

workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
wrapper.plan(  # head_dim and page_size are positional; there is no head_dim_qk here
    indptr,
    indices,
    last_page_len,
    qo_heads,
    kv_heads,
    head_dim,
    page_size,
    pos_encoding_mode="NONE",
    q_data_type=q.dtype,
    kv_data_type=k.dtype,
)
out = torch.empty_like(q)
wrapper.run(q, (k, v), out=out)
assert out.isfinite().all()

import torch
from flashinfer import CUDAGraphBatchDecodeWithPagedKVCacheWrapper

batch, kv_len, page_size = 32, 2048, 16
qo_heads, kv_heads, head_dim = 32, 8, 128
pages = kv_len // page_size

half = {"dtype": torch.float16, "device": "cuda"}
ints = {"dtype": torch.int32, "device": "cuda"}
q = torch.randn(batch, qo_heads, head_dim, **half)
k, v = (torch.randn(batch * pages, page_size, kv_heads, head_dim, **half) for _ in range(2))
out = torch.empty_like(q)
table = (
    torch.arange(batch + 1, **ints) * pages,
    torch.arange(batch * pages, **ints),
    torch.full((batch,), page_size, **ints),
)

workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
buffers = [torch.empty_like(t) for t in table]  # the graph reads these; plan() copies into them
wrapper = CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, *buffers, "NHD", True)


def plan() -> None:
    """Again before each replay if lengths or pages changed; the batch size is the graph's."""
    wrapper.plan(*table, qo_heads, kv_heads, head_dim, page_size, q_data_type=q.dtype)


plan()
side = torch.cuda.Stream()  # warm up outside the capture
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    wrapper.run(q, (k, v), out=out)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    wrapper.run(q, (k, v), out=out)

plan()
graph.replay()
torch.cuda.synchronize()
assert out.isfinite().all()
