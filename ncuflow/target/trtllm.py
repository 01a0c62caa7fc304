"""trtllm-gen's attention kernels, of whose launches the names say type, head dimension, page and mask, and the grid the heads."""

from collections.abc import Iterator

from ncuflow.target.inputs import FP8
from ncuflow.target.launch import Params
from ncuflow.target.rules import LaunchSignature, UnsaidError

PREFIX = "fmhaSm"
CONTEXT, GENERATION = (
    rf"{PREFIX}\d+\w*Context",
    rf"{PREFIX}\d+\w*ForGen",
)  # names of its kernels, by phase
BACKEND = "trtllm-gen"


def _said(seen: LaunchSignature) -> Params:
    """What the name says. Raises UnsaidError of another attention, of another layout and of a window."""
    if seen.argument("value_dim") or seen.argument("sparse") or seen.argument("head_dim") is None:
        raise UnsaidError("no rule tells the shape of this attention from its launch")
    said: Params = {"head_dim": seen.number("head_dim"), "backend": BACKEND}
    if page := seen.argument("page_size"):
        said["page_size"] = int(page)
    queries = seen.argument("type") or seen.argument("queries")
    cache = seen.argument("type") or seen.argument("cache")
    if queries in ("f16", "bf16"):
        said |= {"dtype": queries} | ({} if cache == queries else {"kv": cache})
    for name in ("qo_heads", "kv_heads"):
        if heads := seen.sure(name):
            said[name] = heads
    if seen.argument("mask") == "SlidingOrChunkedCausal":
        raise UnsaidError("its window is not in the launch", said)
    if len({"qo_heads", "kv_heads"} & {*said}) < 2:
        raise UnsaidError("its heads are not in the launch", said)
    return said


def prefill_shapes(seen: LaunchSignature) -> Iterator[Params]:
    """Of prompts of one length: their tokens are in the step."""
    said = _said(seen) | {"layout": "paged" if seen.argument("layout") == "PagedKv" else "ragged"}
    said |= {"causal": seen.argument("mask") == "Causal"}
    if seen.argument("type") == FP8:
        said["dtype"] = FP8
    prompts, tokens, read = (
        seen.sure(name) for name in ("prompts", "prompt_tokens", "prompt_kv_tokens")
    )
    if not prompts or tokens is None:
        raise UnsaidError("its prompts and their tokens are not in the launch", said)
    said["batch"] = prompts
    if read is None:
        raise UnsaidError("what of the cache its prompts read is not in the launch", said)
    if prompts > 1 or read < tokens:
        raise UnsaidError("the lengths of several prompts are not in the launch", said)
    yield {**said, "seq_len": tokens} | ({"cached": read - tokens} if read > tokens else {})


def decode_shapes(seen: LaunchSignature) -> Iterator[Params]:
    """Of sequences whose caches' lengths are known; their mean stands for each."""
    said = _said(seen) | {"cores": "tensor"} | ({"launch": "graph"} if seen.graph else {})
    if seen.argument("type") == FP8:
        raise UnsaidError("no point of decode has queries of 8 bits", said)
    said["batch"] = batch = seen.needed("decodes", "its sequences are not in the launch", said)
    if (tokens := seen.known_value("decodes_kv_tokens")) is None:
        raise UnsaidError("the lengths of its caches are not in the launch", said)
    for kv_len in sorted({max(1, round(count / batch)) for count in tokens}):
        yield {**said, "kv_len": kv_len}
