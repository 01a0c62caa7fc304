"""Names by public schemes, and roofs of what no target counts: a made step like that of vLLM on a B200, of gpt-oss-120b in
eight parts, whose kernels, grids and shapes are those of a public trace."""

from pathlib import Path
from typing import Any

import pytest
from conftest import some
from engine_trace import MadeTrace

from ncuflow.findings import kernelname
from ncuflow.findings.kernelname import built
from ncuflow.parsers.timeline import KERNEL, Launched, Operator
from ncuflow.step import rows, shapes
from ncuflow.step import trace as steps
from ncuflow.step.record import KernelOfStep, StepAnswer
from ncuflow.step.shapes import NOTHING

CONTEXT = "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext"
WINDOW = CONTEXT.replace("PagedKvCausal", "PagedKvSlidingOrChunkedCausal")
BMM = "_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN"
FIRST, SECOND = f"bmm_MxE4m3{BMM}_swiGlu_dynBatch_sm100f", f"bmm_Bfloat16{BMM}_dynBatch_sm100f"
REDUCE = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)"
ADD_NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, float, int, int)"
FINALIZE = "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, 4, true> >(P)"
COPIED = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"
NVJET = "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"
BF16 = "c10::BFloat16"
LAYERS = 36


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (CONTEXT, {"type": "fp8", "output": "bf16", "head_dim": "64", "mask": "Causal", "page_size": "16", "tile_q": "128"}),
        ("fmhaSm100fKernel_QkvE4m3OE2m1H128PagedKvCausalP16MultiCtasKvVarSeqSkipsSoftmaxQ32Kv128StaticSwapsAbForGen",
         {"output": "nvfp4", "split": "MultiCtasKv", "schedule": "Static", "phase": "ForGen"}),
        ("fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512HVPerCta256PagedKvDenseP64VarSeqQ64Kv128Persistent2CtaKeepsAbForGen",
         {"head_dim": "576", "value_dim": "512", "mask": "Dense"}),
        (FIRST, {"a": "mxfp4", "b": "mxfp8", "output": "mxfp8", "tile": "128x16x256", "stages": "3", "cluster": "1x1x1"}),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_Ab32_Bb32_Cb32_t128x128x256u2_s4x4x4x4x1x4_et128x32_m256x128x32_c2x1x1_rM_TN",
         {"tile": "128x128x256", "stages": "4", "mma": "256x128x32", "cluster": "2x1x1"}),
        (NVJET, {"type": "bf16", "tile": "64x64", "stage_k": "64", "stages": "16", "cluster": "2x1"}),
        ("nvjet_sm100_hsh_64x8_64x16_1x1_h_bz_splitK_NNT", {"type": "f16", "split": "splitK", "layout": "NNT"}),
        ("cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_bf16_bf16_256x128x256_0x0x1_0_tnn_align32",
         {"unit": "bstensorop", "a": "ue4m3xf4", "tile": "256x128x256"}),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<X, cutlass::gemm::collective::CollectiveMma<"
         "cutlass::gemm::MainloopSm100TmaUmmaWarpSpecializedBlockScaled<(int)6, (int)2, (int)1, cute::tuple<cute::C<(int)2>, "
         "cute::C<(int)1>, cute::C<(int)1> > >, cute::tuple<cute::C<(int)256>, cute::C<(int)128>, cute::C<(int)256> >, T>>>(P)",
         {"arch": "Sm100", "stages": "6", "tile": "256x128x256", "cluster": "2x1"}),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 7168u, 2048u, 1u, 128u, 96u, 128u, 128u>(float*)",
         {"n": "7168", "k": "2048", "tile": "128x96x128"}),
        ("void deep_gemm::sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 128u, 128u, 0u, 7168u, 2048u, "
         "128u, 64u, 128u, 1u>(int*)", {"n": "7168", "tile": "128x64x128"}),
        ("void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, cutlass::bfloat16_t, 512>, true>(P)",
         {"head_dim": "576", "tile_q": "64", "type": "bf16"}),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x64x1_swiglu", {"b": "mxfp4", "tile": "128x256x64", "activation": "swiglu"}),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL128(ncclDevKernelArgsStorage<4096ul>)",
         {"operation": "AllReduce", "type": "bf16", "algorithm": "TREE", "protocol": "LL128"}),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1, "
         "__nv_bfloat16, 8, true, true>(P)", {"algorithm": "oneshot_lamport", "ranks": "8"}),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)", {"algorithm": "1stage", "ranks": "8"}),
        ("kernel_cutlass_kernel_flashinfernormkernelsRMSNormKernel_object_at__tensorptrbf16gmemalign16o", {"type": "bf16"}),
        ("fused_moe_kernel", {}),
        ("acme_t128x16x256_s3", {}),
    ],
)  # fmt: skip
def test_a_name_says_what_its_scheme_says(name, said):
    assert said.items() <= built(name).items()
    assert bool(said) is bool(built(name))


def test_families_of_names_that_say_several_things():
    relu = (
        "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu"
    )
    skips = (
        "fmhaSm100fKernel_QkvE4m3OE2m1H128PagedKvCausalP16VarSeqSkipsSoftmaxQ32Kv128StaticForGen"
    )
    experts = (
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x8x128_s4_et128x8_m128x8x32_c1x1x1_transOut_dynB_sm100f"
    )
    found = [kernelname.family(name) for name in (relu, skips, experts)]
    assert found == ["GEMM", "attention", "MoE"]


def test_a_name_of_a_stranger_s_is_searched_in_no_time():
    for of in ("bmm_Fp16_E4m3_Fp32_", "t1x1x1_s1_m1x1x1_", "Q1Kv1Static", "_f32_f32", "ncclDevKernel_"):  # fmt: skip
        assert built("fmhaSm100Kernel_QkvE4m3OBfloat16H64PagedKvDense" + of * 4000) == {}


# --- a step of vLLM on a B200 ------------------------------------------------------------------------


STATES, SCALAR = [888, 2880], "Scalar"
HEADS = [[888, 8, 64], [888, 1, 64], [888, 1, 64], [888, 8, 64]]
ROUTED = ("vllm::moe_forward", [[888, 3072], [888, 128], []], [BF16, BF16, ""])
# Of a layer: name, us, blocks, threads, operator, shapes and types of its tensors.
LAYER: list[tuple[Any, ...]] = [
    (REDUCE, 29.0, (8, 1, 1), 1024, "symm_mem::multimem_all_reduce_", [[2557440], [], []], [BF16, "", ""]),
    (ADD_NORM, 6.3, (888, 1, 1), 256, "_C::fused_add_rms_norm", [STATES, STATES, [2880], []], [BF16, BF16, BF16, SCALAR]),
    (NVJET, 8.0, (140, 1, 1), 256, "aten::addmm", [[640], STATES, [2880, 640], []], [BF16, BF16, BF16, SCALAR]),
    (CONTEXT, 13.5, (4, 8, 1), 512, "vllm::unified_attention_with_output", HEADS, ["c10::Float8_e4m3fn", BF16, BF16, BF16]),
    (COPIED, 5.3, (111, 1, 1), 128, "aten::copy_", [STATES, STATES, []], [BF16, BF16, SCALAR]),
    (REDUCE, 29.0, (8, 1, 1), 1024, "symm_mem::multimem_all_reduce_", [[2557440], [], []], [BF16, "", ""]),
    (ADD_NORM, 6.3, (888, 1, 1), 256, "_C::fused_add_rms_norm", [STATES, STATES, [2880], []], [BF16, BF16, BF16, SCALAR]),
    (FIRST, 88.4, (8, 342, 1), 576, *ROUTED),
    (SECOND, 56.5, (24, 342, 1), 480, *ROUTED),
    (FINALIZE, 7.0, (888, 1, 1), 256, *ROUTED),
]  # fmt: skip


def b200_step(trace: MadeTrace) -> MadeTrace:
    """One prefill of 888 tokens, every other layer's attention with a window."""
    begin = trace.at - 10
    for layer in range(LAYERS):
        for name, us, grid, threads, op, dims, types in LAYER:
            if name == REDUCE:
                trace.copy(5114880, us=5.4, way="DtoD (Device -> Device)")
            called = WINDOW if name == CONTEXT and layer % 2 else name
            trace.kernel(called, us, grid, (threads, 1, 1), dims=dims, op=op, types=types)
    trace.range("execute_context_1(888_788544)_generation_0(0)", begin, trace.at)
    return trace


def answered(tmp_path: Path, **more: Any) -> StepAnswer:
    path = tmp_path / "trace.json"
    return steps.step(b200_step(MadeTrace()).write(path, "NVIDIA B200"), **more)


@pytest.fixture(scope="module")
def b200(tmp_path_factory) -> StepAnswer:
    return answered(tmp_path_factory.mktemp("b200"))


def row(found: StepAnswer, name: str) -> KernelOfStep:
    return next(one for one in found.groups[0].kernels if one.demangled == name)


def test_most_of_a_step_on_a_b200_has_a_roof_or_a_reason_that_no_trace_mends(b200):
    assert b200.roof_pct > 70
    assert b200.roof_pct + b200.unmendable_pct > 90
    for one in some(b200.groups[0].kernels):
        assert (one.roof is None) is (one.reason is not None), one.name
        assert one.roof is None or one.roof.percent[1] <= 100
    assert row(b200, REDUCE).reason.would == "nothing"
    assert "the other GPUs" in row(b200, REDUCE).reason.why


def test_a_product_of_experts_lies_between_one_token_s_experts_and_all(b200):
    """888 tokens of 4 experts each, which the grid says: 128 + (888 × 4 − 128) / 16 = 342 tiles."""
    first, second = row(b200, FIRST), row(b200, SECOND)
    assert "888 tokens × 4 of 128 experts, 1024×3072" in first.shape.operands
    assert "3072×512" in second.shape.operands
    assert first.roof.flops[1] == 2 * 888 * 4 * 1024 * 3072
    weights, tokens, output = 128 * 1024 * 3072 * 17 / 32, 888 * 3072 * 33 / 32, 888 * 4 * 512 * 33 / 32  # fmt: skip
    assert first.roof.bytes[1] == pytest.approx(weights + tokens + output, abs=1)
    assert first.roof.bytes[0] < first.roof.bytes[1] / 10
    assert first.roof.bound == "DRAM" and first.roof.percent[0] < first.roof.percent[1]
    assert first.built["stages"] == "3"


def test_a_grid_that_no_number_of_experts_explains_has_no_roof():
    operator = Operator("vllm::moe_forward", ((888, 3072), (888, 128), ()), (BF16, BF16, ""))
    first = Launched(KERNEL, FIRST, (8, 342, 1), (576, 1, 1))
    second = Launched(KERNEL, SECOND, (24, 342, 1), (480, 1, 1))
    found = rows.routed(operator, [first, second])
    assert found is not None and (found.chosen, found.rows) == (4, (897, 1024))
    assert rows.routed(operator, [first._replace(grid=(8, 300, 1)), second]) is None
    assert rows.routed(operator, [second]) is None
    assert rows.of_experts(second._replace(grid=(20, 342, 1)), operator, found) is None


def test_triton_s_products_of_experts_lie_between_one_pair_and_all():
    dims = ((64, 2048), (128, 1536, 2048), (128, 2048, 768), (64, 8), (64, 8))
    operator = Operator("vllm::inplace_fused_experts", dims, (BF16, BF16, BF16, "float", "int"))
    one = Launched(KERNEL, "fused_moe_kernel", (600, 1, 1), (128, 1, 1))
    found = rows.of_fused(one, operator)
    assert found is not None and "64 tokens × 8 of 128 experts" in found.words
    least, most = found.works
    assert least.bytes == 2 * 2048 * 768 and least.flops == 2 * 2048 * 768
    assert most.flops == 2 * 64 * 8 * 1536 * 2048
    assert most.bytes == 128 * 1536 * 2048 * 2 + 64 * 8 * 2 * (2048 + 1536)
    packed = operator._replace(types=(BF16, "unsigned char", "unsigned char", "float", "int"))
    assert rows.of_fused(one, packed) is None
    assert rows.of_fused(one._replace(name="moe_align"), operator) is None


def test_copies_and_what_operators_move_have_a_roof_by_their_bytes(b200):
    copied = row(b200, "Device-to-Device")
    assert copied.roof.bytes == (2 * 5114880,) * 2
    assert row(b200, COPIED).roof.bytes == (2 * 2 * 888 * 2880,) * 2
    assert row(b200, COPIED).shape.operands == "888×2880 bf16, 888×2880 bf16"
    assert row(b200, ADD_NORM).shape.candidates[0]["hidden"] == 2880
    caches, kinds = ((9, 16, 1, 64),) * 2, (BF16, BF16, "unsigned char", "unsigned char")
    quant = Operator("_C_cache_ops::reshape_and_cache_flash", ((8, 1, 64),) * 2 + caches, kinds)
    assert rows.of_operator(quant).works[0].bytes == 2 * 8 * 64 * (2 + 1)
    assert rows.of_operator(quant._replace(types=())) is None
    made = Operator("aten::add", ((8, 1), (1, 4), ()), ("float", "float", "Scalar"))
    assert rows.of_operator(made).works[0].bytes == 4 * (8 + 4 + 32)
    assert rows.of_operator(Operator("aten::index", ((8, 4),), (BF16,))) is None


def test_attention_says_what_would_give_its_shape_and_gets_it(b200, tmp_path):
    refused = row(b200, CONTEXT)
    assert refused.shape.certain["qo_heads"] == 8 and refused.shape.certain["dtype"] == "fp8"
    assert (refused.reason.would, refused.roof) == ("lengths", None)
    assert "window" in row(b200, WINDOW).reason.why
    one = row(answered(tmp_path, known=["prompt_kv_tokens=888"]), CONTEXT)
    (shape,) = one.shape.candidates
    assert (shape["seq_len"], shape["kv_heads"], shape["backend"]) == (888, 1, "trtllm-gen")
    assert one.roof.bound in ("DRAM", "tensor cores") and one.reason is None
    other = answered(tmp_path, known=["prompt_kv_tokens=1912"])
    assert row(other, CONTEXT).shape.candidates[0]["cached"] == 1024


def test_a_decode_of_trtllm_gen_has_its_shape_where_lengths_are_known():
    name = "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64MultiCtasKvVarSeqQ8Kv128StaticSwapsAbForGen"
    one = Launched(KERNEL, name, (4, 8, 32), (512, 1, 1))
    facts = NOTHING.joined({"decodes": 32, "qo_heads": 64, "kv_heads": 8}, "said")
    assert shapes.of_launch(one, facts, ()).refusal == "the lengths of its caches are not in the launch"  # fmt: skip
    found = shapes.of_launch(one, facts.joined({"decodes_kv_tokens": 32 * 2048}, "said"), ())
    assert found.target is not None and found.target.name == "decode"
    assert [(c["kv_len"], c["page_size"], c["dtype"]) for c in found.candidates] == [(2048, 64, "bf16")]  # fmt: skip
    mla = name.replace("H128", "HQk576HV512")
    assert "no rule" in str(shapes.of_launch(one._replace(name=mla), facts, ()).refusal)


def test_a_gpu_without_a_ceiling_gives_that_as_the_reason(tmp_path):
    found = steps.step(b200_step(MadeTrace()).write(tmp_path / "t.json", "NVIDIA X1"))
    assert {one.reason.why for one in some(found.groups[0].kernels)} == {"no ceiling of this GPU is known"}  # fmt: skip
