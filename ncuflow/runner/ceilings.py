"""What this GPU reaches: copy and read bandwidth and matrix rate, to hold kernels against.

Each has two figures: in bursts from settled clocks, and sustained, back to back until clocks and power
have settled. The bursts of all come first, so that none waits until a GPU has cooled down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ncuflow.runner import timing
from ncuflow.runner.gpu import Gpu
from ncuflow.runner.launch import torch_dtype
from ncuflow.runner.timing import significant

BYTES = 4 << 30  # of one buffer: many times any L2 cache
SIZE = 8192  # of the square matrices
# Samples and bursts of a figure. With 30 samples the quartiles lay within 0.4 % of the median (H100, H200), so half as
# many tell it as well; in one burst alone the first launches would be a third of them.
REPEATS, BURSTS = 15, 3
RATES = ("copy_gbs", "read_gbs", "matmul_tflops")


@dataclass(frozen=True)
class Load:
    """A call that moves or computes ``amount`` (GB or TFLOP)."""

    run: Callable[[], Any]
    amount: float
    method: str


def measure(device: Gpu, repeats: int = REPEATS) -> dict[str, Any]:
    """ceilings.json: medians with quartiles of a large copy and read (GB/s) and matmuls (TFLOPS)."""
    loads = dict(_loads(device))
    bursts = {
        name: timing.bursts(device, load.run, repeats, BURSTS) for name, load in loads.items()
    }
    found = {}
    for name, load in loads.items():
        times, each = bursts[name]
        settled = timing.sustained(device, load.run, each)
        found[name] = rate(times, load.amount) | {
            "method": load.method,
            "sustained": rate(settled, load.amount),
        }
    return {
        "copy_gbs": found.pop("copy"),
        "read_gbs": found.pop("read"),
        "matmul_tflops": found,
        "gpu": device.facts()["name"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "clocks": device.clocks(),
    }


def unmeasured(reason: str) -> dict[str, Any]:
    """ceilings.json where there is nothing to measure with."""
    return dict.fromkeys(RATES, None) | {"reason": reason}


def _loads(device: Gpu) -> Iterator[tuple[str, Load]]:
    import torch

    device.release()
    size = min(BYTES, device.facts()["memory_bytes"] // 8)
    source = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    copy, total = source.clone(), torch.empty((), dtype=source.dtype, device=source.device)
    gib = f"{source.nbytes / 2**30:.3g} GiB"
    method = f"device-to-device copy of {gib}, bytes read and written"
    yield "copy", Load(lambda: copy.copy_(source), 2 * source.nbytes / 1e9, method)
    method = f"torch.sum of {gib} of float32, bytes read"
    yield "read", Load(lambda: torch.sum(source, dim=0, out=total), source.nbytes / 1e9, method)
    for dtype in ("f16", "bf16"):
        yield dtype, _matmul(dtype)


def _matmul(dtype: str) -> Load:
    import torch

    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(a)
    method = f"torch.mm of {SIZE}^3, normal random values"
    return Load(lambda: torch.mm(a, b, out=out), 2 * SIZE**3 / 1e12, method)


def rate(times: dict[str, Any], amount: float) -> dict[str, Any]:
    """The rates of a summary of times in µs; the slow quartile of times is the low one of rates."""
    slow, median, fast = (
        significant(amount / (times[key] * 1e-6)) for key in ("q75", "median", "q25")
    )
    return {"value": median, "n": times["n"], "q25": slow, "q75": fast} | {
        key: times[key] for key in ("sm_mhz", "throttle")
    }
