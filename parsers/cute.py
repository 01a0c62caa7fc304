"""Names of kernels of the CuTe DSL, which are mangled from all that one was compiled for."""

from __future__ import annotations

import re

# Its module, the class of its object, and the tensors and constants that it was compiled for.
MANGLED = re.compile(
    r"kernel_cutlass_[^A-Z]*(?P<kind>[A-Z][A-Za-z0-9]*)_object_at_++(?P<compiled_for>\w+)"
)


def called(name: str) -> str:
    """``RMSNormKernel (CuTe DSL)`` of a mangled name, since a class may be called as the CUDA kernel whose work it does;
    any other name as it is."""
    found = MANGLED.fullmatch(name)
    return f"{found['kind']} (CuTe DSL)" if found else name
