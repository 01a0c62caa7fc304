"""torch's matrix products: the shapes that an operator of a trace or a call of an engine states."""

import math
from collections.abc import Sequence
from functools import partial

from ncuflow.target.inputs import TORCH_DTYPES
from ncuflow.target.launch import Params
from ncuflow.target.workload import Block, EngineCall, RefusedError, element

_PRODUCTS = {"mm": 0, "addmm": 1, "_scaled_mm": 0, "linear": 0, "bmm": 0, "matmul": 0}


def operators(name: str, shapes: Sequence[Sequence[int]], types: Sequence[str]) -> Params | None:
    """Of torch's products, whose left matrix is the input of this place; linear has its weight as [n, k]."""
    called = name.split("::")[-1]
    if not name.startswith("aten::") or called not in _PRODUCTS:
        return None
    first = _PRODUCTS[called]
    if len(shapes) < first + 2:
        return None
    left, right = tuple(shapes[first]), tuple(shapes[first + 1])
    batch = left[0] if called == "bmm" else 1
    if called == "bmm":
        left, right = left[1:], right[1:]
    if len(left) < 2 or len(right) != 2:
        return None
    *rows, k = left
    m = math.prod(rows)
    n = right[0] if called == "linear" else right[1]
    if k not in right:
        return None
    dtype = TORCH_DTYPES.get(types[first]) if len(types) > first else None
    said: Params = {"variant": "bmm" if called == "bmm" else "mm", "m": m, "n": n, "k": k}
    return said | ({"batch": batch} if batch > 1 else {}) | ({"dtype": dtype} if dtype else {})


def _called(name: str, a: Params) -> Block:
    """The point that an engine called of torch's products, by its arguments."""
    tensors = [one for one in a.values() if hasattr(one, "shape")]
    types = [_TYPES.get(element(one), "") for one in tensors]
    found = operators(f"aten::{name}", [tuple(one.shape) for one in tensors], types)
    if found is None:
        raise RefusedError("it multiplies no two matrices")
    return found


_TYPES = {ours: name for name, ours in TORCH_DTYPES.items()}
# of torch, whose shapes a profiler tells, but for those in a graph
_NAMES = {
    "mm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
    "bmm": ("input", "mat2"),
    "matmul": ("input", "other"),
}
CALLS = (
    EngineCall("torch.nn.functional", "linear", partial(_called, "linear"), tells=("input", "weight")),
    *(EngineCall("torch", name, partial(_called, name), tells=tells) for name, tells in _NAMES.items()),
)  # fmt: skip
