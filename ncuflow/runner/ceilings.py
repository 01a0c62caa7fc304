"""What this GPU reaches: copy and read bandwidth and matrix rate, to hold kernels against.

Each has two figures: in bursts from settled clocks, and sustained, back to back until clocks and power
have settled.

    ncuflow ceilings --out ceilings.json

Hold the GPU's lock while this runs. Without a GPU that torch can use every figure is null, with the reason,
and the status is 3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ncuflow.io import write_json
from ncuflow.runner import timing
from ncuflow.runner.builds import one_line
from ncuflow.runner.gpu import Gpu
from ncuflow.runner.launch import torch_dtype
from ncuflow.runner.timing import REPEATS, significant

BYTES = 4 << 30  # of one buffer: many times any L2 cache
SIZE = 8192  # of the square matrices
UNMEASURED = 3


def measure(device: Gpu, repeats: int = REPEATS) -> dict[str, Any]:
    """ceilings.json: medians with quartiles of a large copy and read (GB/s) and matmuls (TFLOPS)."""
    return {
        "copy_gbs": _copy(device, repeats),
        "read_gbs": _read(device, repeats),
        "matmul_tflops": {dtype: _matmul(device, dtype, repeats) for dtype in ("f16", "bf16")},
        "gpu": device.facts()["name"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "clocks": device.clocks(),
    }


def _copy(device: Gpu, repeats: int) -> dict[str, Any]:
    source = _buffer(device)
    copy = source.clone()
    method = f"device-to-device copy of {source.nbytes / 2**30:.3g} GiB, bytes read and written"
    return _rate(device, lambda: copy.copy_(source), repeats, 2 * source.nbytes / 1e9, method)


def _read(device: Gpu, repeats: int) -> dict[str, Any]:
    import torch

    source = _buffer(device)
    total = torch.empty((), dtype=source.dtype, device=source.device)
    method = f"torch.sum of {source.nbytes / 2**30:.3g} GiB of float32, bytes read"
    return _rate(
        device, lambda: torch.sum(source, dim=0, out=total), repeats, source.nbytes / 1e9, method
    )


def _buffer(device: Gpu) -> Any:
    import torch

    device.release()
    size = min(BYTES, device.facts()["memory_bytes"] // 8)
    return torch.ones(size // 4, dtype=torch.float32, device="cuda")


def _matmul(device: Gpu, dtype: str, repeats: int) -> dict[str, Any]:
    import torch

    device.release()
    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(a)
    method = f"torch.mm of {SIZE}^3, normal random values"
    return _rate(device, lambda: torch.mm(a, b, out=out), repeats, 2 * SIZE**3 / 1e12, method)


def _rate(
    device: Gpu, run: Callable[[], Any], repeats: int, amount: float, method: str
) -> dict[str, Any]:
    """Rate (``amount`` per second) in bursts, with ``sustained`` beside it: {"value", "n", "q25", "q75",
    "sm_mhz", "throttle"} each."""
    bursts, sustained = timing.throughput(device, run, repeats)
    return rate(bursts, amount) | {"method": method, "sustained": rate(sustained, amount)}


def rate(times: dict[str, Any], amount: float) -> dict[str, Any]:
    """The rates of a summary of times in µs; the slow quartile of times is the low one of rates."""
    slow, median, fast = (
        significant(amount / (times[key] * 1e-6)) for key in ("q75", "median", "q25")
    )
    return {"value": median, "n": times["n"], "q25": slow, "q75": fast} | {
        key: times[key] for key in ("sm_mhz", "throttle")
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="bursts of each figure")


def run(args: argparse.Namespace) -> int:
    try:
        device = Gpu()
    except (ImportError, RuntimeError) as error:
        reason = one_line(error)
        print(f"error: {reason}", file=sys.stderr)
        write_json(
            args.out,
            dict.fromkeys(("copy_gbs", "read_gbs", "matmul_tflops"), None) | {"reason": reason},
        )
        return UNMEASURED
    write_json(args.out, measure(device, args.repeats))
    return 0
