"""A made trace of an engine, as torch's profiler writes one: steps of known kinds, shapes and gaps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GPU = "NVIDIA H100 80GB HBM3"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __half>(__half*, __half*, __half*, unsigned int, float)"
GATED = "void flashinfer::activation::act_and_mul_kernel<__half, &silu, 8u>(__half*, __half const*, int)"
APPEND = "void flashinfer::AppendPagedKVCacheKernel<128u, 8u, __half, int>(flashinfer::paged_kv_t<__half, int>)"
DECODE = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 1u, 8u, 16u, 4u, 2u, "
    "flashinfer::DefaultAttention<false, false, false, false>, Params>(Params)"
)
ROPE = "void flashinfer::BatchQKApplyRotaryPosIdsHeadParallelismKernel<false, 128u, 8u, 16u, __half, int>(__half*, __half*)"
MERGE = "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u, __half, __half, int>(__half*)"
PREFILL = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<true, flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u, 2u, "
    "8u, 8u, 4u, 1u, (flashinfer::PosEncodingMode)0, __half, __half, __half, float, int, "
    "flashinfer::DefaultAttention<false, false, false, false>, true>, PagedParams>(PagedParams)"
)
SAMPLING = "void flashinfer::sampling::TopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)1>(float*)"
GEMM = "nvjet_hsh_128x256_64x4_1x2_h_bz_TNN"
LAYERS = 2


class MadeTrace:
    """Kernels one after another, ``late_us`` after the host asked for each; us of their starts."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.at = 1000.0
        self.number = 0

    def kernel(
        self, name: str, us: float, grid: tuple[int, ...], block: tuple[int, ...], *, idle: float = 0, shared: int = 0,
        dims: list[list[int]] | None = None, stream: int = 7, correlation: int | None = None, op: str = "aten::mm",
        types: list[str] | None = None,
    ) -> MadeTrace:  # fmt: skip
        """One kernel, ``idle`` us after what ran before it: the host asks for it as late as that."""
        self.number += 1
        number = self.number if correlation is None else correlation
        start = self.at + idle
        call = start - 5 if not idle else start - 1
        args: dict[str, Any] = {
            "External id": self.number, "device": 0, "stream": stream, "correlation": number,
            "registers per thread": 64, "shared memory": shared, "grid": list(grid), "block": list(block),
        }  # fmt: skip
        if correlation is not None:
            args["graph node id"] = self.number
        self._add("kernel", name, start, us, 0, stream, args)
        if dims:
            shapes = {"External id": self.number, "Input Dims": dims}
            shapes["Input type"] = types or ["c10::Half"] * 2
            self._add("cpu_op", op, call - 1, 0.5, 10, 10, shapes)
        if correlation is None:
            self.call("cudaLaunchKernel", call, 0.5, number)
        self.at = start + us
        return self

    def copy(self, size: int, us: float = 1.0, way: str = "HtoD (Pageable -> Device)") -> MadeTrace:
        """From the host, or to it."""
        self.number += 1
        args = {"device": 0, "stream": 7, "correlation": self.number, "bytes": size}
        self._add("gpu_memcpy", f"Memcpy {way}", self.at, us, 0, 7, args)
        self.call("cudaMemcpyAsync", self.at - 5, 0.5, self.number)
        self.at += us
        return self

    def call(self, name: str, start: float, us: float, correlation: int) -> None:
        self._add("cuda_runtime", name, start, us, 10, 10, {"correlation": correlation})

    def range(
        self, name: str, start: float, end: float, kind: str = "user_annotation"
    ) -> MadeTrace:
        self._add(kind, name, start, end - start, 10, 10, {})
        return self

    def _add(
        self, category: str, name: str, start: float, us: float, pid: int, tid: int, args: dict[str, Any]
    ) -> None:  # fmt: skip
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": us, "args": args}
        )  # fmt: skip

    def write(self, path: Path, gpu: str | None = GPU) -> Path:
        devices = [{"id": 0, "name": gpu, "numSms": 132}] if gpu else []
        content = {"schemaVersion": 1, "deviceProperties": devices, "traceName": "x"}
        text = json.dumps(content | {"traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def decode_step(
    trace: MadeTrace, *, batch: int = 32, pages: int = 4096, chunks: int = 4, idle: float = 0, graph: int | None = None
) -> None:  # fmt: skip
    """A step of decode of so many sequences in so many chunks each, whose caches have so many pages of 16 together."""
    if graph is None:
        for size in (8 * batch, 4 * (batch + 1), 4 * pages, 4 * batch, 4 * (batch + 1)):
            trace.copy(size)
    layers(trace, batch, DECODE, (chunks * batch, 8, 1), (16, 4, 2), 9216, idle=idle, graph=graph)


def prefill_step(trace: MadeTrace, *, tokens: int = 2048, idle: float = 0) -> None:
    layers(trace, tokens, PREFILL, (64, 1, 8), (32, 4, 1), 65536, idle=idle)


def layers(
    trace: MadeTrace, tokens: int, attention: str, grid: tuple[int, ...], block: tuple[int, ...], shared: int,
    *, idle: float = 0, graph: int | None = None,
) -> None:  # fmt: skip
    of = {"correlation": graph}
    for _ in range(LAYERS):
        trace.kernel(NORM, 4, (tokens, 1, 1), (32, 16, 1), idle=idle, shared=16448, **of)
        trace.kernel(GEMM, 30, (48, 2, 1), (384, 1, 1), dims=[[tokens, 4096], [4096, 6144]], **of)
        trace.kernel(APPEND, 3, (132, 1, 1), (16, 8, 1), **of)
        trace.kernel(attention, 60, grid, block, shared=shared, **of)
        if attention == DECODE:
            trace.kernel(MERGE, 2, (1056, 1, 1), (16, 8, 1), shared=8704, **of)
        trace.kernel(GATED, 5, (tokens, 1, 1), (256, 1, 1), **of)
    trace.kernel(SAMPLING, 20, (min(tokens, 32), 1, 1), (1024, 1, 1), **of)
