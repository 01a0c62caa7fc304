"""cuBLAS by its C interface: the matrix product that others are held against."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, byref, c_char_p, c_float, c_int, c_void_p
from typing import Any

# cublas_api.h and library_types.h
TYPES = {"f16": 2, "bf16": 14}  # CUDA_R_16F, CUDA_R_16BF
OP_N, COMPUTE_32F, GEMM_DEFAULT = 0, 68, -1
GEMM: list[Any] = [
    c_void_p, c_int, c_int, c_int, c_int, c_int,  # handle, both operations, m, n, k
    c_void_p, c_void_p, c_int, c_int, c_void_p, c_int, c_int,  # alpha; A and B with type and leading dimension
    c_void_p, c_void_p, c_int, c_int, c_int, c_int,  # beta; C likewise; compute type, algorithm
]  # fmt: skip


class Cublas:
    """A handle in the current CUDA context, on its default stream.

    Raises ImportError or RuntimeError where there is no cuBLAS, OSError where it cannot be loaded.
    """

    def __init__(self) -> None:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        self._library = CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._library.cublasGetStatusName.argtypes = [c_int]
        self._library.cublasGetStatusName.restype = c_char_p
        self._library.cublasDestroy_v2.argtypes = [c_void_p]
        self._library.cublasGemmEx.argtypes = GEMM
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))

    def __enter__(self) -> Cublas:
        return self

    def __exit__(self, *error: object) -> None:
        self._library.cublasDestroy_v2(self._handle)

    def product(self, a: int, b: int, out: int, size: int, dtype: str) -> Callable[[], None]:
        """A call that multiplies square matrices of this size, which lie at these addresses, in float32."""
        one, zero, kind = c_float(1.0), c_float(0.0), TYPES[dtype]

        def run() -> None:
            self._call(
                "cublasGemmEx", self._handle, OP_N, OP_N, size, size, size,
                byref(one), a, kind, size, b, kind, size, byref(zero), out, kind, size,
                COMPUTE_32F, GEMM_DEFAULT,
            )  # fmt: skip

        return run

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self._library.cublasGetStatusName(status).decode()}")
