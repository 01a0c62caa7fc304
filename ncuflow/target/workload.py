"""A case of somebody's workload, as targets read it: a line of FlashInfer's benchmarks, or a definition of its traces.

A target takes the cases that it can measure (``Workload.takes``), and hands back a block of one point. What the
cases of several targets have in common is read here; and the shapes that an operator of a trace or a call of an engine states
of torch's matrix products.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from ncuflow.target.inputs import DTYPES, ITEMSIZE, TORCH_DTYPES
from ncuflow.target.launch import MOST, GpuFacts, Params

Block = dict[str, Any]
ELEMENTS = {DTYPES[ours]: ours for ours in ITEMSIZE}
BACKENDS = ("fa2", "fa3", "auto")
OPEN = "?"  # of a parameter that a call does not tell: any that the target measures
QUANTILES = 16  # of the random lengths of a benchmark: as many as an id can name


class RefusedError(ValueError):
    """Why a case cannot be measured."""


@dataclass(frozen=True)
class Routine:
    """A case of a test list: the benchmark's --routine, and the words of each option."""

    name: str
    options: Mapping[str, Sequence[str]]
    noun: ClassVar[str] = "routine"

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number. Raises RefusedError where an option is none, or is missing without a default."""
        words = self.options.get(name)
        if not words:
            if default is None:
                raise RefusedError(f"--{name} is missing")
            return default
        if len(words) > 1:
            raise RefusedError(f"--{name} has {len(words)} values")
        # Python refuses to read a number of thousands of digits.
        if not str(words[0]).isdecimal() or len(words[0]) > len(str(MOST)):
            raise RefusedError(f"--{name} {words[0]} is no number")
        return int(words[0])

    def numbers(self, **names: str) -> Block:
        """Parameters, each from the option of this name."""
        return {ours: self.number(name) for ours, name in names.items()}

    def only(self, **wanted: int) -> None:
        """Raises RefusedError where an option is given and is another number."""
        for name, value in wanted.items():
            if self.number(name, value) != value:
                raise RefusedError(f"--{name} {self.options[name][0]}: only {value} is measured")

    def dtype(self, name: str) -> str:
        """The type that an option names; bfloat16 without it."""
        given = (self.options.get(name) or ["bfloat16"])[0]
        if given not in ELEMENTS:
            raise RefusedError(f"--{name} {given} is measured by no target")
        return ELEMENTS[given]

    def backend(self, known: Sequence[str] = BACKENDS) -> str:
        """The first of the backends that a target has; FlashInfer's own choice where none is named."""
        given = self.options.get("backends") or ["auto"]
        found = [name for name in given if name in known]
        if not found:
            raise RefusedError(f"backends {', '.join(given)} are measured by no target")
        return found[0]

    def heads(self) -> Block:
        """Query and KV heads."""
        return self.numbers(qo_heads="num_qo_heads", kv_heads="num_kv_heads")

    def attention(self, mean: str) -> Block:
        """Heads and sequences; mean: the parameter that the length is."""
        if self.number("head_dim_qk") != self.number("head_dim_vo"):
            raise RefusedError(
                "heads of keys and values of different sizes are measured by no target"
            )
        return {
            **self.heads(),
            "head_dim": self.number("head_dim_qk"),
            **self.sequences(mean),
        }

    def sequences(self, mean: str) -> Block:
        """Batch, lengths, pages and type that attention's routines have in common."""
        types = self.options.get("q_dtype")
        if self.options.get("kv_dtype", types) != types:
            raise RefusedError("keys of another type than the queries are measured by no target")
        block = self.numbers(batch="batch_size", **{mean: "s_kv"})
        if "random_actual_seq_len" in self.options:
            block["lengths"] = uniform(block["batch"], block[mean])
        if "page_size" in self.options:
            block["page_size"] = self.number("page_size")
        return block | {"dtype": self.dtype("q_dtype")}


@dataclass(frozen=True)
class Definition:
    """A call that FlashInfer traced, by the name of its definition, such as gqa_paged_decode_h32_kv8_d128_ps1.

    kind: that name without its sizes; sizes: axes that stay the same from call to call, as the names of
    definitions abbreviate them; dtype: of its first tensor, as torch calls it; axes: those of this call, as far as they
    are known; indptr: where each sequence's pages begin.
    """

    kind: str
    sizes: Mapping[str, int]
    dtype: Any
    axes: Mapping[str, int]
    indptr: Sequence[int] | None = None
    noun: ClassVar[str] = "definition"

    @property
    def element(self) -> str:
        """The type of the elements. Raises RefusedError for one that no target has."""
        if self.dtype not in ELEMENTS:
            raise RefusedError(f"of {self.dtype}, which no target measures")
        return ELEMENTS[self.dtype]

    def counted(self, **names: str) -> Block:
        """Parameters, each from the axis of this name, where the call has it."""
        return {ours: self.axes[axis] for ours, axis in names.items() if axis in self.axes}

    def sized(self, **names: str) -> Block:
        """Parameters that are never a target's default here, each from the size of this name.

        Raises RefusedError for one that a definition leaves open.
        """
        if lacking := [ours for ours, size in names.items() if size not in self.sizes]:
            what = f"it does not say its {', '.join(lacking)}"
            raise RefusedError(f"{what}, and no definition of its plan() does")
        return {ours: self.sizes[size] for ours, size in names.items()}

    def heads(self) -> Block:
        """Query and KV heads, and their dimension."""
        return self.sized(qo_heads="h", kv_heads="kv", head_dim="d")

    def pages(self, mean: str) -> Block:
        """Batch and lengths of a paged cache: each sequence's own where its indices are known, else the mean."""
        page = self.sizes.get("ps", 1)
        if self.indptr is not None:
            lengths = [max(1, (b - a) * page) for a, b in pairwise(self.indptr)]
            return {"batch": len(lengths), "lengths": listed(lengths), "page_size": page}
        found = {"page_size": page, **self.counted(batch="batch_size")}
        if "batch" in found and "num_kv_indices" in self.axes:
            found[mean] = max(1, round(self.axes["num_kv_indices"] * page / found["batch"]))
        return found

    def prompts(self, mean: str) -> Block:
        """Batch and lengths of a prefill, as far as they are known. Raises RefusedError where keys are more than queries."""
        page, axes = self.sizes.get("ps", 1), self.axes
        found: Block = {"page_size": page} if "ps" in self.sizes else {}
        if "total_q" not in axes or "len_indptr" not in axes:
            return found
        batch = max(axes["len_indptr"] - 1, 1)
        keys = axes.get("total_kv") or axes.get("num_kv_indices", 0) * page
        if abs(keys - axes["total_q"]) > page * batch:
            raise RefusedError("its keys are more than its queries, which no target measures")
        if self.indptr is not None:
            return found | self.pages(mean)
        return found | {"batch": batch, mean: max(1, round(axes["total_q"] / batch))}


Entry = Routine | Definition


@dataclass(frozen=True)
class EngineCall:
    """A call of FlashInfer's by which an engine launches the kernels of a target.

    module, name: where FlashInfer has it, a function or CLASS.METHOD (of torch: what is looked at in the capture of a graph
    alone); plan: the method of that class whose arguments tell the
    shape, "" where those of the call do that ``tells`` names; params: the parameters of a point, of those arguments by name,
    ``self`` among them. It raises RefusedError where no point of the target is such a call.
    """

    module: str
    name: str
    params: Callable[[Block], Block]
    plan: str = ""
    tells: tuple[str, ...] = ()


def element(tensor: Any) -> str:
    """What ncuflow calls the type of a tensor, or a type of torch's. Raises RefusedError for one that no target measures."""
    name = str(getattr(tensor, "dtype", tensor)).removeprefix("torch.")
    if name not in ELEMENTS:
        raise RefusedError(f"{name} is measured by no target")
    return ELEMENTS[name]


def cached_tokens(indptr: Any, last_page_len: Any, page_size: int) -> list[int]:
    """Tokens of each sequence in a paged cache, by tensors of plan()."""
    begins, last = indptr.tolist(), last_page_len.tolist()
    each = zip(begins, begins[1:], last, strict=False)
    return [(end - begin - 1) * page_size + left if end > begin else 0 for begin, end, left in each]


def of_lengths(lengths: Sequence[int], mean: str) -> Block:
    """Batch and lengths of sequences; mean: the parameter of their mean. Raises RefusedError where there are none."""
    if not any(lengths):
        raise RefusedError("it has no tokens")
    found = {"batch": len(lengths), mean: max(1, round(sum(lengths) / len(lengths)))}
    return found | ({"lengths": listed(lengths)} if len(set(lengths)) > 1 else {})


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What of somebody's workload a target measures.

    takes   a block of one point, of a case that it measures; None of any other
    calls   those of FlashInfer's by which an engine launches it
    listed  of a target that stands for many APIs: (name, function, why it cannot be tried) of each, where this is
            the GPU; it takes what no other target does
    areas   of such a target: how FlashInfer's folders and files begin, by area
    """

    takes: Callable[[Entry], Block | None] = lambda entry: None
    calls: tuple[EngineCall, ...] = ()
    listed: Callable[[GpuFacts | None], Iterator[tuple[str, str, str | None]]] | None = None
    areas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def uniform(batch: int, longest: int) -> str:
    """The benchmark's random lengths, uniform up to ``longest``: their quantiles, as a list."""
    groups = min(batch, QUANTILES)
    sizes = [batch // groups + (i < batch % groups) for i in range(groups)]
    return "_".join(
        f"{size}x{max(1, round(longest * (groups - i) / groups))}" for i, size in enumerate(sizes)
    )


def listed(lengths: Sequence[int]) -> str:
    """The lengths as a list that an id can hold: neighbours are averaged where there are too many."""
    ordered = sorted(lengths, reverse=True)
    sizes: Counter[int] = Counter(ordered)
    if len(sizes) > QUANTILES:
        bounds = [len(ordered) * i // QUANTILES for i in range(QUANTILES + 1)]
        sizes = Counter()
        for a, b in pairwise(bounds):
            sizes[round(sum(ordered[a:b]) / (b - a))] += b - a
    return "_".join(f"{count}x{length}" for length, count in sizes.items())


# --- torch's matrix products ----------------------------------------------------------------------

_PRODUCTS = {"mm": 0, "addmm": 1, "_scaled_mm": 0, "linear": 0, "bmm": 0, "matmul": 0}


def products(name: str, shapes: Sequence[Sequence[int]], types: Sequence[str]) -> Params | None:
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


def _product(name: str, a: Params) -> Block:
    """The point that an engine called of torch's products, by its arguments."""
    tensors = [one for one in a.values() if hasattr(one, "shape")]
    types = [_TYPES.get(element(one), "") for one in tensors]
    found = products(f"aten::{name}", [tuple(one.shape) for one in tensors], types)
    if found is None:
        raise RefusedError("it multiplies no two matrices")
    return found


_TYPES = {ours: name for name, ours in TORCH_DTYPES.items()}
# of torch, whose shapes a profiler tells, but for those in a graph
_PRODUCT_TELLS = {
    "mm": ("input", "mat2"),
    "addmm": ("input", "mat1", "mat2"),
    "bmm": ("input", "mat2"),
    "matmul": ("input", "other"),
}
PRODUCT_CALLS = (
    EngineCall("torch.nn.functional", "linear", partial(_product, "linear"), tells=("input", "weight")),
    *(EngineCall("torch", name, partial(_product, name), tells=tells) for name, tells in _PRODUCT_TELLS.items()),
)  # fmt: skip
