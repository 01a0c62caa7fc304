"""Calls of FlashInfer's that no trace template can try: their inputs and their reference, a function each.

A template makes the inputs of most calls, and knows what they compute. Of the calls here it lacks one of both, or there is none.
A case is made for ``p["tokens"]`` rows and ``p["batch"]`` sequences. The references are plain torch in float32.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ncuflow.target import reference
from ncuflow.target.inputs import PageTable, page_table
from ncuflow.target.launch import Inputs, Params, Tensor

HIDDEN = 4096
HEADS, KV_HEADS, DIM, PAGE, KV_LEN = 32, 8, 128, 16, 1024  # of attention
DIT = 3072  # the one width of the fused norms of diffusion transformers
FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitudes of e2m1
# Each router product has one shape: what its name says after "mm_M1_16_".
ROUTERS = (
    "K6144_N256", "K7168_N128", "K7168_N256", "K7168_N256_bf16", "K7168_N384", "K7168_N384_bf16",
    "K7168_N896", "K7168_N896_bf16",
)  # fmt: skip


class Given(NamedTuple):
    """A call with its inputs.

    run: the call, which returns its output; expected: the reference, in float32; read: of what the call returned, what is held
    against it; tolerance: relative L2 error between the two; inputs: the tensors that the call reads; plan: what comes before;
    reset: restores what the call overwrites.
    """

    run: Callable[[], Any]
    expected: Callable[[], Sequence[Tensor]]
    inputs: Sequence[Tensor]
    tolerance: float = 2e-2
    read: Callable[[Any], Sequence[Tensor]] = reference.tensors
    plan: Callable[[], None] | None = None
    reset: Callable[[], None] | None = None


Build = tuple[
    Any, ...
]  # a generator of a JIT module below ``flashinfer.jit`` and its arguments, types by their names


class Case(NamedTuple):
    """api: the call's place below ``flashinfer``; make: its inputs; builds: its JIT modules, of which others are built at the
    first call.
    """

    api: str
    make: Callable[[Params, Inputs], Given]
    builds: tuple[Build, ...] = ()

    @property
    def function(self) -> Any:
        """The call itself, or its class. Raises ImportError or AttributeError where this FlashInfer has none."""
        return _found(self.api)

    def modules(self) -> list[Any]:
        """Its JIT modules that are known ahead; needs FlashInfer and an arch list, but no GPU."""
        import torch

        def value(one: Any) -> Any:
            return getattr(torch, one, one) if isinstance(one, str) else one

        return [_found(f"jit.{place}")(*map(value, given)) for place, *given in self.builds]


CASES: dict[str, Case] = {}


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"flashinfer.{module}"), name)


Making = Callable[[Any, Params, Inputs], Given]


def _case(api: str, *builds: Build) -> Callable[[Making], Making]:
    """Make a function, whose first argument is the call, the case of a call."""

    def of(make: Making) -> Making:
        def made(p: Params, inputs: Inputs) -> Given:
            return make(_found(api), p, inputs)

        CASES[api.rpartition(".")[2]] = Case(api, made, builds)
        return make

    return of


def _bf16(inputs: Inputs, *shape: int) -> Tensor:
    import torch

    return inputs.normal(*shape, dtype=torch.bfloat16)


def _f32(inputs: Inputs, *shape: int) -> Tensor:
    import torch

    return inputs.normal(*shape, dtype=torch.float32)


def _ints(inputs: Inputs, values: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32, device=inputs.device)


# Router products, of at most 16 tokens


def _router(shape: str) -> None:
    @_case(f"gemm.routergemm.mm_M1_16_{shape}", ("dsv3_optimizations.gen_dsv3_router_gemm_module",))
    def _(call: Any, p: Params, inputs: Inputs) -> Given:
        import torch

        k, n = (int(part[1:]) for part in shape.split("_")[:2])
        rows, weight = _bf16(inputs, min(16, p["tokens"]), k), _bf16(inputs, n, k)
        half = shape.endswith("bf16") or shape == "K7168_N128"
        kind = torch.bfloat16 if half else torch.float32
        out = torch.empty(len(rows), n, dtype=kind, device=rows.device)
        return Given(
            lambda: (call(rows, weight.T, out), out)[1],
            lambda: [rows.float() @ weight.float().T],
            (rows, weight),
        )


for _shape in ROUTERS:
    _router(_shape)


# Quantisation: what was quantised is read back by plain torch


@_case("quantization.packbits.packbits", ("quantization.gen_quantization_module",))
def _packbits(call: Any, p: Params, inputs: Inputs) -> Given:
    x = _f32(inputs, p["tokens"] * HIDDEN) > 0
    return Given(partial(call, x), lambda: [x.float()], [x], 0.0, lambda out: [_unpacked(out)])


@_case("quantization.packbits.segment_packbits", ("quantization.gen_quantization_module",))
def _segment_packbits(call: Any, p: Params, inputs: Inputs) -> Given:
    batch, size = p["batch"], HIDDEN + 3  # whose last byte is not full
    x = _f32(inputs, batch * size) > 0
    starts = _ints(inputs, range(0, batch * size + 1, size))

    def read(out: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [_unpacked(out[0]).reshape(batch, -1)[:, :size]]

    return Given(partial(call, x, starts), lambda: [x.float().reshape(batch, size)], [x], 0.0, read)


def _unpacked(packed: Tensor) -> Tensor:
    """Bits of bytes, the highest first, as 0.0 and 1.0."""
    import torch

    places = torch.arange(7, -1, -1, device=packed.device)
    return ((packed[:, None].int() >> places) & 1).float().flatten()


def _of_four_bits(packed: Tensor) -> Tensor:
    """Elements of e2m1, two a byte, the lower half first."""
    import torch

    code = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    values = torch.tensor((*FOUR_BITS, *(-v for v in FOUR_BITS)), device=packed.device)
    return values[code]


def _scales(bits: Tensor, rows: int, exponents: bool) -> Tensor:
    """Scales [rows, blocks] in float32: powers of two, or e4m3."""
    import torch

    if exponents:
        return torch.exp2(bits.view(torch.uint8).reshape(rows, -1).float() - 127)
    return bits.view(torch.uint8).view(torch.float8_e4m3fn).reshape(rows, -1).float()


# e2m1 keeps a bit of mantissa: 1/8 of a value's power of two at most, 10 % in the mean square of normal values with a scale of 16
FOUR, EIGHT = 0.12, 4e-2


def _quantized(block: int, exponents: bool, whole: float) -> Callable[[Any], list[Tensor]]:
    """Reads (elements, scales) of a row of blocks back; whole: what the scales were multiplied by."""

    def read(out: Any) -> list[Tensor]:
        import torch

        elements, scales = out[0], out[1]
        rows = elements.reshape(-1, elements.shape[-1])
        four = elements.element_size() == 1 and elements.dtype == torch.uint8
        values = _of_four_bits(rows) if four else rows.float()
        shared = _scales(scales, len(rows), exponents) / whole
        return [values * shared.repeat_interleave(block, dim=1)]

    return read


def _four_bits(name: str, block: int, exponents: bool) -> None:
    api = f"quantization.fp4_quantization.{name}"

    @_case(api, ("fp4_quantization.gen_fp4_quantization_sm90_module",))
    def _(call: Any, p: Params, inputs: Inputs) -> Given:
        import torch

        x, whole = _bf16(inputs, p["tokens"], HIDDEN), 1.0
        if not exponents:
            whole = float(448 * 6 / x.abs().max())
        one = torch.tensor([whole], device=x.device)
        linear = _found("quantization.SfLayout").layout_linear
        run = {
            "fp4_quantize": partial(call, x, one, is_sf_swizzled_layout=False),
            "nvfp4_quantize": partial(call, x, one, sfLayout=linear),
            "mxfp4_quantize": partial(call, x, sfLayout=linear),
        }[name]
        return Given(
            run,
            lambda: [x.float()],
            [x],
            FOUR * (1.5 if exponents else 1),
            _quantized(block, exponents, whole),
        )


for _name, _block in (("fp4_quantize", 16), ("nvfp4_quantize", 16), ("mxfp4_quantize", 32)):
    _four_bits(_name, _block, _block == 32)


@_case(
    "quantization.fp8_quantization.mxfp8_quantize",
    ("fp8_quantization.gen_mxfp8_quantization_sm100_module",),
)
def _mxfp8(call: Any, p: Params, inputs: Inputs) -> Given:
    x = _bf16(inputs, p["tokens"], HIDDEN)
    return Given(
        partial(call, x, False), lambda: [x.float()], [x], EIGHT, _quantized(32, True, 1.0)
    )


@_case(
    "quantization.fp4_quantization.block_scale_interleave",
    ("fp4_quantization.gen_fp4_quantization_sm90_module",),
)
def _interleave(call: Any, p: Params, inputs: Inputs) -> Given:
    """Tiles of 128 rows and 4 columns, of which row r of column c stands at (r % 32, r // 32, c)."""
    import torch

    rows, columns = -(-p["tokens"] // 128) * 128, HIDDEN // 16
    x = (_f32(inputs, rows, columns) * 40).to(torch.uint8)

    def expected() -> list[Tensor]:
        tiles = x.reshape(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4)
        return [tiles.flatten().float()]

    return Given(partial(call, x), expected, [x], 0.0, lambda out: [out.flatten().float()])


def _packed_four(inputs: Inputs, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """(e2m1 two a byte [*shape / 2], scales of 16 in e4m3 [*shape / 16], the values of both in float32)."""
    import torch

    *outer, last = shape
    kind = {"dtype": torch.uint8, "device": inputs.device, "generator": inputs.generator}
    packed = torch.randint(0, 256, (*outer, last // 2), **kind)
    scales = (_f32(inputs, *outer, last // 16).abs() + 0.5).to(torch.float8_e4m3fn)
    values = _of_four_bits(packed) * scales.float().repeat_interleave(16, dim=-1)
    return packed, scales.view(torch.uint8), values


@_case(
    "quantization.fp4_quantization.nvfp4_kv_dequantize",
    ("fp4_kv_dequantization.gen_fp4_kv_dequantization_module",),
)
def _dequantize(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    packed, scales, values = _packed_four(inputs, p["tokens"], HIDDEN)
    whole = torch.tensor([0.5], device=packed.device)
    return Given(
        partial(call, packed, scales, whole), lambda: [values * 0.5], [packed, scales], 5e-3
    )


@_case(
    "quantization.fp4_quantization.nvfp4_kv_dequantize_paged",
    ("fp4_kv_dequantization.gen_fp4_kv_dequantization_module",),
)
def _dequantize_paged(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    batch, pages = p["batch"], KV_LEN // PAGE
    table = page_table(inputs, batch, KV_LEN, PAGE)
    shape = (batch * pages, PAGE, KV_HEADS, DIM)
    (k, ks, kf), (v, vs, vf) = (_packed_four(inputs, *shape) for _ in range(2))
    one = torch.ones(1, device=k.device)
    out = [torch.empty(batch, KV_LEN, KV_HEADS, DIM, dtype=torch.bfloat16, device=k.device) for _ in range(2)]  # fmt: skip
    lengths, places = _ints(inputs, [KV_LEN] * batch), table.indices.reshape(batch, pages)
    run = partial(call, (k, v), (ks, vs), places, lengths, one, one, *out)
    return Given(
        lambda: (run(), out)[1],
        lambda: [table.gather(x, 0, batch) for x in (kf, vf)],
        [k, v, ks, vs],
        5e-3,
    )


# Norms


def _layernorm(x: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6)


def _diffusion(name: str, gated: bool, shifted: bool) -> None:
    """x, added to a residual where it is gated or has one, and its LayerNorm, by a gamma and beta or by a scale and shift."""

    @_case(f"norm.{name}", ("norm.gen_norm_module",))
    def _(call: Any, p: Params, inputs: Inputs) -> Given:
        x, residual = (_bf16(inputs, 1, p["tokens"], DIT) for _ in range(2))
        # parts of six of one tensor, as the kernel's strides are
        gate, scale, shift = _bf16(inputs, 1, p["tokens"], 6 * DIT).chunk(6, dim=2)[:3]
        gamma, beta = (_f32(inputs, DIT) for _ in range(2))
        by = (scale, shift) if shifted else (gamma, beta)
        # optional by its signature, but the kernel reads each without a look whether it is there
        named = [*(["gate"] if gated else []), *(["scale", "shift"] if shifted else [])]
        bias = {f"{one}_bias": _f32(inputs, DIT) for one in named}
        given = partial(call, x, residual, gate) if gated else partial(call, x, residual=residual)
        run = partial(given, *by, **bias)

        def expected() -> list[Tensor]:
            total = residual.float() + x.float() * (gate.float() + bias["gate_bias"] if gated else 1.0)  # fmt: skip
            if not shifted:
                return [total, _layernorm(total) * gamma + beta]
            normed = _layernorm(total) * (1 + scale.float() + bias["scale_bias"])
            return [total, normed + shift.float() + bias["shift_bias"]]

        used = [x, residual, *by, *bias.values(), *([gate] if gated else [])]
        return Given(run, expected, used)


_diffusion("fused_dit_gate_residual_layernorm_gamma_beta", True, False)
_diffusion("fused_dit_gate_residual_layernorm_scale_shift", True, True)
_diffusion("fused_dit_residual_layernorm_scale_shift", False, True)


@_case("norm.fused_add_rmsnorm_fp8_block_quant", ("norm.gen_norm_module",))
def _block_quant(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    rows, blocks = p["tokens"], HIDDEN // 128
    x, residual, weight = _bf16(inputs, rows, HIDDEN), _bf16(inputs, rows, HIDDEN), _bf16(inputs, HIDDEN)  # fmt: skip
    kept, normed = residual.clone(), torch.empty_like(x)
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty(blocks, -(-rows // 4) * 4, device=x.device)

    def expected() -> list[Tensor]:
        total = x.float() + kept.float()
        norm = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        return [total, norm, norm]

    def read(_: Any) -> list[Tensor]:
        shared = scales.T[:rows].repeat_interleave(128, dim=1)
        return [residual, normed, out.float() * shared]

    return Given(
        partial(call, out, scales, normed, x, residual, weight),
        expected,
        [x, residual, weight],
        EIGHT,
        read,
        reset=lambda: residual.copy_(kept),
    )


# Routing and residual streams


@_case("mhc.mhc_post", ("mhc.gen_mhc_module",))
def _mhc_post(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    x, streams = _bf16(inputs, p["tokens"], HIDDEN), _bf16(inputs, p["tokens"], 4, HIDDEN)
    post, mix = _f32(inputs, p["tokens"], 4), _f32(inputs, p["tokens"], 4, 4)

    def expected() -> list[Tensor]:
        mixed = torch.einsum("toh,ton->tnh", streams.float(), mix)
        return [x.float()[:, None] * post[..., None] + mixed]

    return Given(partial(call, x, streams, post, mix), expected, [x, streams, post, mix])


@_case("sampling.chain_speculative_sampling", ("sampling.gen_sampling_module",))
def _speculative(call: Any, p: Params, inputs: Inputs) -> Given:
    """The target is sure of a token at each place, which the draft of sequence b names at its first b % 5 places: these are
    accepted, and the target's own follows."""
    import torch

    batch, steps, vocab = p["batch"], 4, 32000
    sure = torch.randint(0, vocab, (batch, steps + 1), device=inputs.device, generator=inputs.generator)  # fmt: skip
    right = torch.arange(steps, device=sure.device) < (torch.arange(batch, device=sure.device) % 5)[:, None]  # fmt: skip
    drafted = torch.where(right, sure[:, :-1], (sure[:, :-1] + 1) % vocab).int()
    target = torch.zeros(batch, steps + 1, vocab, device=sure.device).scatter_(2, sure[..., None], 1.0)  # fmt: skip
    draft = torch.softmax(_f32(inputs, batch, steps, vocab), dim=-1)

    def expected() -> list[Tensor]:
        kept = torch.arange(steps + 1, device=sure.device) <= right.sum(1, keepdim=True)
        return [torch.where(kept, sure, -1).float()]

    def read(out: Any) -> list[Tensor]:
        return [out[0].float()]

    return Given(partial(call, draft, drafted, target), expected, [draft, target], 0.0, read)


@_case("page.get_batch_indices_positions")
def _positions(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    batch, each = p["batch"], 16  # tokens that each sequence appends, after KV_LEN - 16
    starts, lengths = _ints(inputs, range(0, each * batch + 1, each)), _ints(inputs, [KV_LEN] * batch)  # fmt: skip

    def expected() -> list[Tensor]:
        token = torch.arange(each * batch, device=starts.device)
        return [(token // each).float(), (KV_LEN - each + token % each).float()]

    def read(out: Any) -> list[Tensor]:
        return [one.float() for one in out]

    return Given(partial(call, starts, lengths, each * batch), expected, [starts, lengths], 0.0, read)  # fmt: skip


# Ulysses: heads of a rank's tokens, packed for all ranks


@_case("comm.ulysses_head_chunk.pack_ulysses_qkv_head_chunk")
def _pack(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    ranks, count = 4, KV_HEADS // 2
    q, k, v = (_bf16(inputs, 1, p["tokens"], HEADS, DIM) for _ in range(3))
    run = partial(call, q, k, v, world_size=ranks, head_offset=0, head_count=count)

    def expected() -> list[Tensor]:
        parts = [x.reshape(1, -1, ranks, HEADS // ranks, DIM)[:, :, :, :count] for x in (q, k, v)]
        return [torch.cat(parts, dim=-1).flatten(2, 3).float()]

    return Given(run, expected, [q, k, v], 0.0)


@_case("comm.ulysses_head_chunk.merge_ulysses_output_head_chunk")
def _merge(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    ranks, local, count = 4, HEADS // 4, 4
    x = _bf16(inputs, 1, p["tokens"], ranks * count, DIM)
    out = torch.zeros(1, p["tokens"], HEADS, DIM, dtype=x.dtype, device=x.device)

    def expected() -> list[Tensor]:
        whole = torch.zeros(1, p["tokens"], ranks, local, DIM, device=x.device)
        whole[:, :, :, :count] = x.reshape(1, -1, ranks, count, DIM).float()
        return [whole.flatten(2, 3)]

    return Given(
        partial(call, x, world_size=ranks, local_heads=local, head_offset=0, out=out),
        expected,
        [x],
        0.0,
    )


# Attention


class _Paged(NamedTuple):
    """A decode's inputs: q [batch, heads, dim], caches [pages, page, KV heads, dim], and their table."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: PageTable

    def expected(self) -> list[Tensor]:
        kept = (self.table.gather(x, 0, len(self.q)) for x in (self.k, self.v))
        return [reference.decode_attention(self.q, *kept)]


def _paged(p: Params, inputs: Inputs, dtype: str = "bfloat16") -> _Paged:
    import torch

    kind, batch = getattr(torch, dtype), p["batch"]
    table = page_table(inputs, batch, KV_LEN, PAGE)
    shape = (batch * KV_LEN // PAGE, PAGE, KV_HEADS, DIM)
    k, v = (inputs.normal(*shape, dtype=kind) for _ in range(2))
    return _Paged(inputs.normal(batch, HEADS, DIM, dtype=kind), k, v, table)


def _workspace(inputs: Inputs) -> Tensor:
    import torch

    return torch.zeros(128 << 20, dtype=torch.uint8, device=inputs.device)


_BF16 = ("bfloat16", "bfloat16", "bfloat16")
_F16 = ("float16", "float16", "float16")
_ENDS = (DIM, DIM, 0, False, False)  # heads; no position, window or cap
_XQA = ("xqa.gen_xqa_module", "bfloat16", "bfloat16", PAGE, DIM, HEADS // KV_HEADS, False, "bfloat16")  # fmt: skip
_PAGED = ("attention.modules._gen_batch_prefill_primary_module", "fa2", *_F16, "int32", *_ENDS, False)  # fmt: skip
_SINGLE = ("attention.modules.gen_single_prefill_module", "fa3", *_F16, *_ENDS, False)


def _latest(name: str, **more: Any) -> None:
    """Decode by XQA, and by the call that chooses it where there is no trtllm-gen."""

    @_case(f"decode.{name}", _XQA)
    def _(call: Any, p: Params, inputs: Inputs) -> Given:
        x = _paged(p, inputs)
        places = x.table.indices.reshape(p["batch"], -1)
        lengths = _ints(inputs, [KV_LEN] * p["batch"])
        given = (x.q, (x.k, x.v), _workspace(inputs), places, lengths, KV_LEN, DIM**-0.5, 1.0)
        run = partial(call, *given, kv_layout="NHD", **more)
        return Given(run, x.expected, [x.q, x.k, x.v])


_latest("xqa_batch_decode_with_kv_cache")
_latest("trtllm_batch_decode_with_kv_cache", backend="xqa")


@_case("xqa.xqa", _XQA)
def _xqa(call: Any, p: Params, inputs: Inputs) -> Given:
    import torch

    x, batch, kept = _paged(p, inputs), p["batch"], _workspace(inputs)
    places, out = x.table.indices.reshape(batch, -1), torch.empty_like(x.q)[:, None]
    lengths = _ints(inputs, [KV_LEN] * batch)[:, None]
    given = (x.q[:, None], x.k, x.v, places, lengths, out, kept[8 << 20 :], kept[: 8 << 20])
    return Given(lambda: (call(*given, KV_HEADS, PAGE), out[:, 0])[1], x.expected, [x.q, x.k, x.v])


@_case(
    "attention._core.BatchAttention",
    ("attention.modules._gen_batch_attention_primary_module", *_BF16, "int32", *_ENDS),
)
def _mixed(call: Any, p: Params, inputs: Inputs) -> Given:
    x, made = _paged(p, inputs), call("NHD", inputs.device)
    rows = _ints(inputs, range(p["batch"] + 1))
    lengths = _ints(inputs, [KV_LEN] * p["batch"])
    sizes = (HEADS, KV_HEADS, DIM, DIM, PAGE)
    plan = partial(made.plan, rows, x.table.indptr, x.table.indices, lengths, *sizes, causal=True)
    run = partial(made.run, x.q, (x.k, x.v))
    return Given(run, x.expected, [x.q, x.k, x.v], read=lambda out: [out[0]], plan=plan)


@_case("sparse.BlockSparseAttentionWrapper", _PAGED)
def _block_sparse(call: Any, p: Params, inputs: Inputs) -> Given:
    """Of the blocks of 16 queries and 16 keys, each row of blocks sees a quarter, its own among them."""
    import torch

    size, block = max(64, p["tokens"] // 16 * 16), 16
    q, k, v = (inputs.normal(size, h, DIM, dtype=torch.float16) for h in (HEADS, KV_HEADS, KV_HEADS))  # fmt: skip
    seen = _seen(inputs, size // block)
    starts = torch.cat((seen.new_zeros(1, dtype=torch.int32), seen.sum(1).cumsum(0).int())).int()
    made = call(_workspace(inputs), "fa2")
    places = seen.nonzero()[:, 1].int()
    plan = partial(made.plan, starts, places, size, size, block, block, HEADS, KV_HEADS, DIM)
    mask = seen.repeat_interleave(block, 0).repeat_interleave(block, 1)
    return Given(partial(made.run, q, k, v), lambda: [_masked(q, k, v, mask)], [q, k, v], plan=plan)


def _seen(inputs: Inputs, blocks: int) -> Tensor:
    import torch

    seen = _f32(inputs, blocks, blocks) > 0.67
    return seen | torch.eye(blocks, dtype=torch.bool, device=seen.device)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention [rows, heads, dim] in which row i sees the keys of mask[i]."""
    import torch

    out = torch.empty_like(q, dtype=torch.float32)
    for head in range(q.shape[1]):
        of = head * k.shape[1] // q.shape[1]
        logits = q[:, head].float() @ k[:, of].float().T / math.sqrt(q.shape[-1])
        out[:, head] = torch.softmax(logits.masked_fill(~mask, -math.inf), -1) @ v[:, of].float()
    return out


@_case("sparse.VariableBlockSparseAttentionWrapper", _PAGED)
def _variable_sparse(call: Any, p: Params, inputs: Inputs) -> Given:
    """The same of blocks of 48 and of 80, whose heads come first."""
    import torch

    blocks = max(2, p["tokens"] // 128 * 2)
    sizes = _ints(inputs, [48, 80] * (blocks // 2))
    size = int(sizes.sum())
    q, k, v = (inputs.normal(h, size, DIM, dtype=torch.float16) for h in (HEADS, KV_HEADS, KV_HEADS))  # fmt: skip
    seen = _seen(inputs, blocks)
    made, by_head = call(_workspace(inputs), "fa2"), sizes.expand(KV_HEADS, -1).contiguous()
    shown = seen.expand(KV_HEADS, -1, -1).contiguous()
    plan = partial(made.plan, shown, by_head, by_head, HEADS, KV_HEADS, DIM, q_data_type=q.dtype)
    mask = seen.repeat_interleave(sizes.long(), 0).repeat_interleave(sizes.long(), 1)

    def expected() -> list[Tensor]:
        first, keys, kept = (x.transpose(0, 1) for x in (q, k, v))
        return [_masked(first, keys, kept, mask).transpose(0, 1)]

    def read(out: Any) -> list[Tensor]:
        return [out.reshape(HEADS, size, DIM)]

    return Given(partial(made.run, q, k, v), expected, [q, k, v], read=read, plan=plan)


def _shared(name: str, rows: bool, own: Build) -> None:
    """Sequences behind one prefix, which lies apart from their pages."""

    @_case(f"cascade.{name}", _SINGLE, own, ("cascade.gen_cascade_module",))
    def _(call: Any, p: Params, inputs: Inputs) -> Given:
        import torch

        x, made = _paged(p, inputs, "float16"), call(_workspace(inputs), "NHD")
        first = [inputs.normal(KV_LEN, KV_HEADS, DIM, dtype=torch.float16) for _ in range(2)]
        begin = [_ints(inputs, range(p["batch"] + 1))] if rows else []
        plan = partial(made.begin_forward, *begin, *x.table.planned, HEADS, KV_HEADS, DIM, PAGE)

        def expected() -> list[Tensor]:
            whole = [
                torch.cat((one.expand(len(x.q), -1, -1, -1), x.table.gather(rest, 0, len(x.q))), 1)
                for one, rest in zip(first, (x.k, x.v), strict=True)
            ]
            return [reference.decode_attention(x.q, *whole)]

        run = partial(made.forward, x.q, *first, (x.k, x.v))
        return Given(run, expected, [x.q, x.k, x.v, *first], plan=plan)


_shared(
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    False,
    ("attention.modules.gen_batch_decode_module", *_F16, "int32", *_ENDS),
)
_shared(
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    True,
    ("attention.modules.gen_batch_prefill_module", "fa3", *_F16, "int32", *_ENDS, False),
)
