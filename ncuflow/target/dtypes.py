"""The types of elements: their names here and in torch, their sizes, and how exact a kernel of them is."""

from __future__ import annotations

from typing import Any

DTYPES = {"f16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
ITEMSIZE = {"f16": 2, "bf16": 2}  # of the types that every target takes
FP8 = "fp8"  # a byte: e4m3, a sign, 4 bits of exponent and 3 of mantissa
NVFP4 = "nvfp4"  # half a byte, e2m1, and a scale in e4m3 for each 16 (`blockscaled.py`)
KV = ("same", FP8, NVFP4)  # what a KV cache holds: elements of the queries' type, of 8 or of 4 bits

# Relative L2 error allowed against the float32 reference. Rounding an output to fp16 (11 bits)
# costs 3e-4 and to bf16 (8 bits) 2e-3; attention rounds its probabilities once more. A dropped KV
# token, a wrong mask or a wrong page costs percents, so these limits sit well between the two.
TOLERANCE = {"f16": 5e-3, "bf16": 2e-2}


def torch_dtype(name: str) -> Any:
    """torch.float16 for "f16", torch.bfloat16 for "bf16", torch.float8_e4m3fn for "fp8"."""
    import torch

    return getattr(torch, DTYPES[name])
