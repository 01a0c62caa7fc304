"""Kernel names: the template arguments of a demangled name, decoded to named parameters.

A demangled name is what the profiler recorded, so it says what was launched, not what a default
was. The parameter lists below are those of the ``template <…>`` lines in FlashInfer's headers; a
template that is not here, or that has more arguments than its list, is decoded by position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_ROPE = "interleave head_dim vec_size bdx DType IdType"
_MERGE = "vec_size bdx bdy num_smem_stages DTypeIn DTypeO"
# template -> its parameters, in order (include/flashinfer of 0.6.18)
_TEMPLATES = {
    "BatchDecodeWithPagedKVCacheKernel": "POS_ENCODING_MODE num_stages_smem tile_size_per_bdx"
    " vec_size bdx bdy bdz AttentionVariant Params",
    "BatchPrefillWithPagedKVCacheKernel": "KTraits Params",
    "BatchPrefillWithRaggedKVCacheKernel": "KTraits Params",
    "KernelTraits": "MASK_MODE CTA_TILE_Q NUM_MMA_Q NUM_MMA_KV NUM_MMA_D_QK NUM_MMA_D_VO"
    " NUM_WARPS_Q NUM_WARPS_KV POS_ENCODING_MODE DTypeQ DTypeKV DTypeO DTypeQKAccum IdType"
    " AttentionVariant",
    "DefaultAttention": "use_custom_mask use_sliding_window use_logits_soft_cap use_alibi",
    "PrefillWithKVCacheKernel": "CollectiveMainloop CollectiveEpilogue Ktraits"
    " LEFT_SLIDING_WINDOW CAUSAL TileScheduler MULTIITEMSCORING",
    "AttentionKernelTraits": "USE_TMA_LOAD_KV HEAD_DIM_QK HEAD_DIM_VO CTA_Q CTA_KV NUM_STAGES"
    " DTypeQ DTypeKV DTypeO IdType AttentionVariant",
    "PersistentVariableLengthMergeStatesKernel": _MERGE + " IdType",
    "MergeStatesLargeNumIndexSetsKernel": _MERGE,
    "MergeStatesKernel": "vec_size DTypeIn DTypeO",
    "MergeStateKernel": "vec_size DTypeIn DTypeO",
    "MergeStateInPlaceKernel": "vec_size DType",
    "RMSNormKernel": "VEC_SIZE T",
    "FusedAddRMSNormKernel": "VEC_SIZE T",
    "QKRMSNormKernel": "VEC_SIZE T",
    "BatchQKApplyRotaryKernel": _ROPE,
    "BatchQKApplyRotaryPosIdsKernel": _ROPE,
    "BatchQKApplyRotaryPosIdsHeadParallelismKernel": _ROPE,
    "BatchQKApplyRotaryPosIdsCosSinCacheKernel": _ROPE,
    "BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel": _ROPE,
}
TEMPLATES = {name: tuple(parameters.split()) for name, parameters in _TEMPLATES.items()}
# Those of 0.7.2 that have more; told apart by their number.
LATER = {
    ("BatchPrefillWithPagedKVCacheKernel", 3): ("SAME_KV_STRIDES", "KTraits", "Params"),
    ("KernelTraits", 16): (*TEMPLATES["KernelTraits"], "ENABLE_FP4_REPACK"),
}
# What a parameter means; where two templates disagree, the entry "template.parameter" wins.
MEANINGS = {
    "POS_ENCODING_MODE": "positions encoded inside the kernel",
    "num_stages_smem": "K/V tiles in flight in shared memory",
    "tile_size_per_bdx": "KV tokens of a tile for each row of bdx threads",
    "vec_size": "elements a thread loads at once",
    "VEC_SIZE": "elements a thread loads at once",
    "bdx": "threads along the head dimension",
    "bdy": "rows of threads",
    "BatchDecodeWithPagedKVCacheKernel.bdy": "rows of threads: a query head of the group each",
    "bdz": "groups of rows that share the KV tokens of a tile",
    "AttentionVariant": "compiled variant: mask, window, soft cap, ALiBi",
    "MASK_MODE": "mask compiled in",
    "CTA_TILE_Q": "query rows a block (heads of a GQA group are packed into rows)",
    "SAME_KV_STRIDES": "K and V have the same strides: one set of offsets serves both",
    "ENABLE_FP4_REPACK": "staging buffer for 4-bit K and V",
    "NUM_MMA_Q": "16-row tensor-core tiles of Q a warp",
    "NUM_MMA_KV": "16-token tensor-core tiles of KV a warp and step",
    "NUM_MMA_D_QK": "16-element tiles of the head dimension of Q and K",
    "NUM_MMA_D_VO": "16-element tiles of the head dimension of V and O",
    "NUM_WARPS_Q": "warps that split the query rows",
    "NUM_WARPS_KV": "warps that split the KV tokens",
    "DTypeQ": "query type",
    "DTypeKV": "key and value type",
    "DTypeO": "output type",
    "DTypeQKAccum": "type in which QKᵀ is accumulated",
    "DTypeIn": "type of the partial outputs",
    "IdType": "index type",
    "DType": "element type",
    "T": "element type",
    "CollectiveMainloop": "main loop: Sparse… reads pages, the plain one a contiguous KV",
    "USE_TMA_LOAD_KV": "K and V by TMA; false: a producer warpgroup gathers them with cp.async",
    "HEAD_DIM_QK": "head dimension of Q and K",
    "HEAD_DIM_VO": "head dimension of V and O",
    "CTA_Q": "query rows a block",
    "CTA_KV": "KV tokens a step",
    "NUM_STAGES": "K/V tiles in flight in shared memory",
    "LEFT_SLIDING_WINDOW": "sliding window",
    "CAUSAL": "causal mask",
    "TileScheduler": "how blocks get their tiles",
    "MULTIITEMSCORING": "multi-item scoring mask",
    "num_smem_stages": "partial outputs in flight in shared memory",
    "interleave": "pairs (0, 1), (2, 3)…; false: NeoX halves",
    "head_dim": "head dimension",
}
ENUMS = {
    "PosEncodingMode": ("none", "RoPE (Llama)", "ALiBi"),
    "MaskMode": ("none", "causal", "custom", "multi-item scoring"),
}
TYPES = {
    "__half": "fp16",
    "cutlass::half_t": "fp16",
    "__nv_bfloat16": "bf16",
    "cutlass::bfloat16_t": "bf16",
    "__nv_fp8_e4m3": "fp8 e4m3",
    "__nv_fp8_e5m2": "fp8 e5m2",
    "float": "fp32",
    "int": "int32",
    "long": "int64",
}
_CAST = re.compile(r"^\((?P<type>[\w:\s]+)\)\s*(?P<value>-?\w+)$")
_OPEN, _CLOSE = "<(", ">)"


@dataclass(frozen=True)
class Argument:
    """A decoded template argument: parameter (``#3`` where not known), value, meaning or None."""

    parameter: str
    value: str
    meaning: str | None


@dataclass(frozen=True)
class Kernel:
    """A decoded kernel: name without namespaces, arguments in order, and what follows from them."""

    name: str
    arguments: tuple[Argument, ...]
    derived: tuple[Argument, ...] = ()

    def value(self, parameter: str) -> str | None:
        """The value of a parameter, or None."""
        return next((a.value for a in self.arguments if a.parameter == parameter), None)


@cache
def decode(demangled: str) -> Kernel:
    """Decode a demangled kernel name. A name without template arguments has none; never raises."""
    name, arguments = _split(_without_parameters(demangled))
    short = _short(name)
    decoded = tuple(dict.fromkeys(_named(short, arguments)))
    kernel = Kernel(short, decoded)
    return Kernel(short, decoded, tuple(_derived(kernel)))


def _without_parameters(demangled: str) -> str:
    """``void ns::kernel<…>`` of ``void ns::kernel<…>(T1 *, …)``."""
    depth = 0
    for index, char in enumerate(demangled):
        before = demangled[:index]
        if char == "(" and depth == 0 and index and not before.endswith(("::", " ")):
            return before
        depth += (char in _OPEN) - (char in _CLOSE)
    return demangled


def _split(template: str) -> tuple[str, list[str]]:
    """``("ns::name", ["a", "b<c, d>"])`` of ``ns::name<a, b<c, d>>``."""
    template = template.strip()
    name, bracket, rest = template.partition("<")
    if not bracket or not rest.endswith(">"):
        return template, []
    parts, depth, start, body = [], 0, 0, rest[:-1]
    for index, char in enumerate(body):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            parts.append(body[start:index].strip())
            start = index + 1
    last = body[start:].strip()
    return name, parts + ([last] if last else [])


def _short(name: str) -> str:
    """``KernelTraits`` of ``void flashinfer::KernelTraits``."""
    return name.split("(")[0].split("::")[-1].split(" ")[-1]


def _named(template: str, arguments: list[str]) -> list[Argument]:
    """Arguments under their parameters' names; traits classes are opened in place."""
    names = LATER.get((template, len(arguments)), TEMPLATES.get(template, ()))
    if len(arguments) > len(names):
        names = ()  # another version's template: names would be shifted
    out: list[Argument] = []
    for index, text in enumerate(arguments):
        parameter = names[index] if names else f"#{index + 1}"
        inner, nested = _split(text)
        if nested and _short(inner) in ("KernelTraits", "AttentionKernelTraits"):
            out += _named(_short(inner), nested)
        elif parameter not in ("Params", "CollectiveEpilogue"):
            meaning = MEANINGS.get(f"{template}.{parameter}", MEANINGS.get(parameter))
            out.append(Argument(parameter, _value(text), meaning))
    return out


def _value(text: str) -> str:
    """An argument as a reader writes it: ``(flashinfer::MaskMode)1`` is ``causal``."""
    cast = _CAST.match(text)
    if cast:
        return _of_cast(cast["type"].strip().split("::")[-1], cast["value"])
    if text in TYPES:
        return TYPES[text]
    name, nested = _split(text)
    if _short(name) == "DefaultAttention":
        flags = _named("DefaultAttention", nested)
        on = [a.parameter.removeprefix("use_") for a in flags if a.value == "true"]
        return "DefaultAttention" + (f" ({', '.join(on)})" if on else " (all off)")
    return re.sub(r"(?<=\d)[uUlL]+$", "", _short(name))


def _of_cast(kind: str, value: str) -> str:
    if kind in ENUMS and value.isdigit() and int(value) < len(ENUMS[kind]):
        return ENUMS[kind][int(value)]
    return {"0": "false", "1": "true"}.get(value, value) if kind == "bool" else value


# What the headers compute from the arguments: (name, meaning, factors).
_DERIVED = (
    ("CTA_TILE_KV", "KV tokens a step: NUM_MMA_KV × NUM_WARPS_KV × 16",
     ("NUM_MMA_KV", "NUM_WARPS_KV", 16)),
    ("HEAD_DIM_QK", "NUM_MMA_D_QK × 16", ("NUM_MMA_D_QK", 16)),
    ("NUM_THREADS", "threads a block: NUM_WARPS_Q × NUM_WARPS_KV × 32",
     ("NUM_WARPS_Q", "NUM_WARPS_KV", 32)),
    ("threads", "threads a block: bdx × bdy × bdz", ("bdx", "bdy", "bdz")),
    ("tile", "KV tokens a stage: tile_size_per_bdx × bdy × bdz",
     ("tile_size_per_bdx", "bdy", "bdz")),
    ("head dimension", "bdx × vec_size", ("tile_size_per_bdx", "bdx", "vec_size")),
)  # fmt: skip


def _derived(kernel: Kernel) -> list[Argument]:
    number = {a.parameter: int(a.value) for a in kernel.arguments if a.value.isdigit()}
    if "CTA_Q" in number:
        warps = (number["CTA_Q"] // 64 + 1) * 4
        meaning = "a producer warpgroup, and a consumer warpgroup for each 64 query rows"
        return [Argument("NUM_WARPS", str(warps), meaning)]
    out = []
    for name, meaning, factors in _DERIVED:
        values = [number.get(f) if isinstance(f, str) else f for f in factors]
        if None not in values:
            # the tile size only marks the kernel family, it is no factor of the head dimension
            terms = values[1:] if name == "head dimension" else values
            total = 1
            for term in terms:
                total *= term or 0
            out.append(Argument(name, str(total), meaning))
    return out
