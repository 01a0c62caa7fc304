import torch
from flashinfer import rmsnorm

x = torch.randn(4096, 4096, dtype=torch.float16, device="cuda")
weight = torch.ones(4096, dtype=torch.float16, device="cuda")
l2 = torch.zeros(
    torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.int16, device="cuda"
)
events = [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(20)]

rmsnorm(x, weight)  # the first call compiles
torch.cuda._sleep(100_000_000)  # launches queue up behind it
for begin, end in events:
    l2.zero_()  # twice the cache: the inputs are in DRAM
    begin.record()
    rmsnorm(x, weight)
    end.record()
torch.cuda.synchronize()
us = sorted(1000 * begin.elapsed_time(end) for begin, end in events)[10]
print(f"{us:.1f} µs, {2 * x.nbytes / us / 1000:.0f} GB/s")
