"""A FlashInfer that is none: two modules of C, which the host's compiler makes as FlashInfer's JIT makes its own."""

from flashinfer import trace_apply
from flashinfer.autotuner import autotune_v2  # noqa: F401
from flashinfer.jit import load, spec  # noqa: F401


def twice(library, value):
    """The API that calls a module."""
    return trace_apply.called("twice", library.result, value=value)
