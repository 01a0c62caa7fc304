"""What this GPU reaches: copy bandwidth and matrix rate, to hold kernels against."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ncuflow.runner.gpu import Gpu
from ncuflow.runner.launch import torch_dtype
from ncuflow.runner.timing import REPEATS, quartiles, significant

COPY_BYTES = 4 << 30  # of one buffer: many times any L2 cache
SIZE = 8192  # of the square matrices
WARM_RUNS = 20  # the clocks settle


def measure(device: Gpu, repeats: int = REPEATS) -> dict[str, Any]:
    """ceilings.json: medians with quartiles of a large copy (GB/s) and matmuls (TFLOPS)."""
    return {
        "copy_gbs": _copy(device, repeats),
        "matmul_tflops": {dtype: _matmul(device, dtype, repeats) for dtype in ("f16", "bf16")},
        "gpu": device.facts()["name"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "clocks": device.clocks(),
    }


def _copy(device: Gpu, repeats: int) -> dict[str, Any]:
    import torch

    device.release()
    size = min(COPY_BYTES, device.facts()["memory_bytes"] // 8)
    source = torch.ones(size, dtype=torch.int8, device="cuda")
    copy = torch.empty_like(source)
    times = _times(device, lambda: copy.copy_(source), repeats)
    method = f"device-to-device copy of {size / 2**30:.3g} GiB, bytes read and written"
    return _rate(times, 2 * size / 1e9, method)


def _matmul(device: Gpu, dtype: str, repeats: int) -> dict[str, Any]:
    import torch

    device.release()
    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(a)
    times = _times(device, lambda: torch.mm(a, b, out=out), repeats)
    return _rate(times, 2 * SIZE**3 / 1e12, f"torch.mm of {SIZE}^3, normal random values")


def _times(device: Gpu, run: Callable[[], Any], repeats: int) -> list[float]:
    for _ in range(WARM_RUNS):
        run()
    return device.hot(run, repeats, 1)[0]


def _rate(times: list[float], amount: float, method: str) -> dict[str, Any]:
    """Rate (``amount`` a second) of times in us: {"value", "n", "q25", "q75", "method"}."""
    fast, median, slow = (significant(amount / (us * 1e-6)) for us in quartiles(times))
    return {"value": median, "n": len(times), "q25": slow, "q75": fast, "method": method}
