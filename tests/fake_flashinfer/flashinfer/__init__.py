"""A FlashInfer that is none: two modules of C, which the host's compiler makes as FlashInfer's JIT makes its own."""

from flashinfer.jit import load, spec  # noqa: F401
