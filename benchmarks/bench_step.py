"""How long a trace of a size takes to be read and summarised, and the memory that it takes.

python benchmarks/bench_step.py [--mb 1000] [--format torch|nsys] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from ncuflow.parsers import show
from ncuflow.step import trace

KERNELS = (
    "RMSNormKernel",
    "nvjet_hsh_128x256",
    "BatchDecodeWithPagedKVCacheKernel",
    "act_and_mul_kernel",
)
STACK = 12  # events of Python's stacks for each kernel, as the profiler writes them
PER_STEP = 4 * len(KERNELS) + 1


def of_kernel(number: int) -> list[dict[str, Any]]:
    """What the profiler writes of a kernel: itself, its call, its operator with shapes, and the stack around it."""
    at, host = 12.5 * number, {"pid": 1, "tid": 1, "ph": "X"}
    last = number % PER_STEP == 0
    name = "TopPSamplingFromProbKernel" if last else KERNELS[number % len(KERNELS)]
    args = {"External id": number, "device": 0, "stream": 7, "correlation": number}
    args |= {"registers per thread": 64, "shared memory": 0}
    shapes = {"External id": number, "Input Dims": [[32, 4096], [4096, 6144]]}
    where = "vllm/model_executor/layers/linear.py"
    return [
        {"ph": "X", "cat": "kernel", "name": f"void flashinfer::{name}<8u, __half>(void*)", "pid": 0, "tid": 7,
         "ts": at, "dur": 10.0, "args": {**args, "grid": [132, 1, 1], "block": [128, 1, 1]}},
        {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at - 7, "dur": 5.0, "args": shapes},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at - 6, "dur": 4.0,
         "args": {"correlation": number}},
        *({**host, "cat": "python_function", "name": f"{where}({n}): forward", "ts": at - 8, "dur": 9.0,
           "args": {"Python id": n, "Python parent id": n - 1}} for n in range(STACK)),
    ]  # fmt: skip


def torch_trace(path: Path, size: int) -> None:
    """A made trace of torch's profiler of so many bytes."""
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < size:
            kernels = range(number + 1, number + PER_STEP + 1)
            events = [event for one in kernels for event in of_kernel(one)]
            number += PER_STEP
            text = ",\n".join(map(json.dumps, events))
            written += file.write(text if written == 0 else ",\n" + text)
        file.write("]}")


def nsys_trace(path: Path, size: int) -> None:
    """A made export of nsys of about so many bytes."""
    database = sqlite3.connect(path)
    kernel, runtime = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
    database.executescript(f"""
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, cuDevice INTEGER, name TEXT);
        CREATE TABLE {kernel} (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
          globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
          blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER,
          dynamicSharedMemory INTEGER, graphNodeId INTEGER);
        CREATE TABLE {runtime} (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
    """)
    names = [*KERNELS, "TopPSamplingFromProbKernel"]
    texts = [(n, f"void flashinfer::{name}<8u, __half>(void*)") for n, name in enumerate(names)]
    texts.append((99, "cudaLaunchKernel_v7000"))
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", texts)
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100 80GB HBM3')")
    count = size // 130
    pid = 281525711011840

    def of(number: int) -> int:
        return len(KERNELS) if number % PER_STEP == 0 else number % len(KERNELS)

    database.executemany(f"INSERT INTO {kernel} VALUES ({','.join('?' * 18)})", (
        (n * 12500, n * 12500 + 10000, 0, 7, n, pid, of(n), of(n), 132, 1, 1, 128, 1, 1, 64, 0, 0, None)
        for n in range(1, count + 1)))  # fmt: skip
    database.executemany(f"INSERT INTO {runtime} VALUES (?, ?, ?, ?, 99)", (
        (n * 12500 - 6000, n * 12500 - 2000, pid + 1, n) for n in range(1, count + 1)))  # fmt: skip
    database.commit()
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--format", choices=("torch", "nsys"), default="torch")
    parser.add_argument("--folder", type=Path, help="for the trace; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / ("trace.json" if args.format == "torch" else "trace.sqlite")
        (torch_trace if args.format == "torch" else nsys_trace)(path, args.mb * 1_000_000)
        size, began, spent = path.stat().st_size, time.perf_counter(), time.process_time()
        timeline = show.read_trace(path)
        read = time.perf_counter() - began
        found = trace.step(path)
        seconds = time.perf_counter() - began - read
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{size / 1e6:.0f} MB, {len(timeline.operations)} operations: read in {read:.1f} s, read and summarised in "
            f"{seconds:.1f} s ({time.process_time() - spent:.1f} s of a core for both), "
            f"{sum(g.steps for g in found.groups)} steps, {peak:.0f} MB at most"
        )


if __name__ == "__main__":
    main()
