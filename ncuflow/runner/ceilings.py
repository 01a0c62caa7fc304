"""What this GPU reaches: copy and read bandwidth and matrix rate, to hold kernels against.

Each has two figures: in bursts from settled clocks, and sustained, back to back until clocks and power
have settled. The bursts of all come first, so that none waits until a GPU has cooled down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ncuflow.record import Launches
from ncuflow.runner import timing
from ncuflow.runner.builds import one_line
from ncuflow.runner.cublas import TYPES, Cublas
from ncuflow.runner.driver import Driver
from ncuflow.runner.timing import significant

BYTES = 4 << 30  # of one buffer: many times any L2 cache
SIZE = 8192  # of the square matrices
# Drawn for a matrix, which repeats them: odd, so that no two of its rows are alike.
VALUES = 2_000_003
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


def load() -> None:
    """Load the libraries that `measure` calls, which takes seconds from a disk. What is missing is left for it to say."""
    with suppress(Exception):
        import numpy as np
        from cuda.bindings import driver, nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        driver.cuDriverGetVersion()
        nvrtc.nvrtcVersion()
        load_nvidia_dynamic_lib("cublas")
        np.random.default_rng()


def measure(device: Driver, repeats: int = REPEATS) -> dict[str, Any]:
    """ceilings.json: medians with quartiles of a large copy and read (GB/s) and matmuls (TFLOPS).

    Without cuBLAS the matmuls are null, with the reason.
    """
    loads, reason = dict(_transfers(device)), {}
    try:
        loads |= _products(device)
    # The first is that of a cuBLAS without one of these functions.
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        reason = {"reason": f"no matrix product: {one_line(error)}"}
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
        "matmul_tflops": found or None,
        "gpu": device.facts()["name"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "clocks": device.clocks(),
    } | reason


def unmeasured(reason: str) -> dict[str, Any]:
    """ceilings.json where there is nothing to measure with."""
    return dict.fromkeys(RATES, None) | {"reason": reason}


def _transfers(device: Driver) -> Iterator[tuple[str, Load]]:
    size = min(BYTES, device.facts()["memory_bytes"] // 8) // 16 * 16
    source, target = device.filled(1.0, size), device.allocate(size)
    gib = f"{size / 2**30:.3g} GiB"
    method = f"device-to-device copy of {gib} by the driver, bytes read and written"
    yield "copy", Load(lambda: device.copy(target, source, size), 2 * size / 1e9, method)
    method = f"read of {gib} of float32 by a kernel of its own, bytes read"
    yield "read", Load(lambda: device.read(source, size), size / 1e9, method)


def _products(device: Driver) -> dict[str, Load]:
    blas = device.stack.enter_context(Cublas())
    method = f"cuBLAS of {SIZE}^3, normal random values"
    found = {}
    for dtype in TYPES:
        a, b = (device.tiled(_normal(dtype, seed), 2 * SIZE**2) for seed in range(2))
        run = blas.product(a, b, device.allocate(2 * SIZE**2), SIZE, dtype)
        run()  # what cuBLAS cannot do it refuses here
        found[dtype] = Load(run, 2 * SIZE**3 / 1e12, method)
    return found


def _normal(dtype: str, seed: int) -> Any:
    """VALUES normal random numbers; bf16, which numpy has not, as its 16 bits."""
    import numpy as np

    values = np.random.default_rng(seed).standard_normal(VALUES, dtype=np.float32)
    if dtype == "f16":
        return values.astype(np.float16)
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def rate(times: Launches, amount: float) -> dict[str, Any]:
    """The rates of a summary of times in µs; the slow quartile of times is the low one of rates."""
    slow, median, fast = (
        significant(amount / (time * 1e-6)) for time in (times.q75, times.median, times.q25)
    )
    found = {"value": median, "n": times.n, "q25": slow, "q75": fast}
    return found | times.model_dump(include={"sm_mhz", "throttle"})
