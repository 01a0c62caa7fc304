import torch

torch.cuda.memory._record_memory_history()
workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")  # instead: your engine's step
print(f"{torch.cuda.max_memory_allocated() / 1e6:.0f} MB at most")
torch.cuda.memory._dump_snapshot("/tmp/memory.pickle")  # open it at pytorch.org/memory_viz
torch.cuda.memory._record_memory_history(enabled=None)
