"""Kernel names: template arguments decoded, held against the headers that define them."""

from __future__ import annotations

import pytest
import yaml
from flashinfer_source import flashinfer_package

from ncuflow.findings.kernelname import SHIPPED, Decoder, canonical, decode
from ncuflow.parsers import demangled
from ncuflow.source import Package, templates, version
from ncuflow.target.contract import known

DECODE = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2,"
    " (unsigned int)1, (unsigned int)8, (unsigned int)16, (unsigned int)4, (unsigned int)2,"
    " flashinfer::DefaultAttention<(bool)0, (bool)0, (bool)0, (bool)0>, Params>(T9)"
)
TRAITS = (
    "flashinfer::KernelTraits<(flashinfer::MaskMode)1, (unsigned int)128, (unsigned int)2, (unsigned int)4,"
    " (unsigned int)8, (unsigned int)8, (unsigned int)4, (unsigned int)1, (flashinfer::PosEncodingMode)0,"
    " __half, __nv_bfloat16, __half, float, int,"
    " flashinfer::DefaultAttention<(bool)0, (bool)1, (bool)0, (bool)0>>"
)
PREFILL = f"void flashinfer::BatchPrefillWithPagedKVCacheKernel<{TRAITS}, PagedParams>(T2)"
HOPPER = (
    "flashinfer::AttentionKernelTraits<(bool)0, (int)128, (int)128, (int)128, (int)96, (int)2, cutlass::half_t,"
    " cutlass::half_t, cutlass::half_t, int, flashinfer::StandardAttention>"
)
FA3 = (
    "void flashinfer::PrefillWithKVCacheKernel<flashinfer::SparseCollectiveMainloop<PagedParams::AdditionalParams,"
    f" {HOPPER}, (bool)1, (bool)0>, flashinfer::CollectiveEpilogue<{HOPPER}>, {HOPPER}, (bool)0, (bool)1,"
    " flashinfer::BatchPrefillPersistentTileScheduler<int>, (bool)0>(T1::Params, T2::Params, T6::Params)"
)


def values(name):
    found = decode(name)
    return {a.parameter: a.value for a in (*found.arguments, *found.derived)}


def test_decode_kernel_of_a_gqa_group_of_four():
    found = decode(DECODE)
    assert found.name == "BatchDecodeWithPagedKVCacheKernel"
    assert found.value("bdy") == "4"
    assert values(DECODE)["threads"] == "128"  # 16 × 4 × 2
    assert values(DECODE)["tile"] == "8"  # 1 × 4 × 2 tokens a stage
    assert values(DECODE)["head dimension"] == "128"  # 16 × 8, not times the tile
    assert "Params" not in values(DECODE)


def test_prefill_traits_are_opened_and_enumerations_read():
    found = values(PREFILL)
    assert found["MASK_MODE"] == "causal"
    assert (found["CTA_TILE_Q"], found["CTA_TILE_KV"], found["NUM_THREADS"]) == ("128", "64", "128")
    assert (found["DTypeQ"], found["DTypeKV"], found["DTypeQKAccum"]) == ("fp16", "bf16", "fp32")
    assert found["AttentionVariant"] == "DefaultAttention (sliding_window)"


def test_a_kernel_of_prefill_and_decodes_has_the_arguments_of_both():
    of_decodes = TRAITS.replace("MaskMode)1, (unsigned int)128", "MaskMode)0, (unsigned int)16")
    both = f"{TRAITS}, {of_decodes}, (bool)0, flashinfer::SinglePrefillParams<int>, flashinfer::PagedParams<int>"
    found = values(f"void flashinfer::PODWithKVCacheTensorKernel<{both}>(T4, T5)")
    assert (found["MASK_MODE_P"], found["MASK_MODE_D"]) == ("causal", "none")
    assert (found["CTA_TILE_Q_P"], found["CTA_TILE_Q_D"]) == ("128", "16")
    assert found["CTA_TILE_KV_P"] == found["CTA_TILE_KV_D"] == "64"
    assert found["PartitionKV_P"] == "false"
    assert not {"CTA_TILE_Q", "CTA_TILE_KV", "PrefillParams", "DecodeParams"} & found.keys()


def test_hopper_prefill_says_that_paged_kv_is_not_loaded_by_tma():
    found = values(FA3)
    assert found["CollectiveMainloop"] == "SparseCollectiveMainloop"
    assert found["USE_TMA_LOAD_KV"] == "false"
    assert (found["CTA_Q"], found["CTA_KV"], found["CAUSAL"]) == ("128", "96", "true")
    assert found["NUM_WARPS"] == "12"  # 4 × (128 / 64 + 1)


def test_literals_without_casts_are_read_too():
    assert values("flashinfer::norm::RMSNormKernel<8u, __half>") == {"VEC_SIZE": "8", "T": "fp16"}
    rope = "flashinfer::BatchQKApplyRotaryPosIdsKernel<false, 128u, 8u, 16u, __half, int, 4u, true>"
    assert (values(rope)["heads_per_step"], values(rope)["split_heads"]) == ("4", "true")


@pytest.mark.parametrize(
    ("name", "short", "arguments"),
    [
        ("void at::native::fill<(int)8, std::array<char *, (unsigned long)1>>(int)", "fill", ["8", "array"]),
        ("ampere_fp16_s16816gemm", "ampere_fp16_s16816gemm", []),
        ("", "", []),
        ("void broken<(int)1, (", "broken<", []),
        # One with more arguments than are known gets no shifted names.
        ("flashinfer::norm::RMSNormKernel<(bool)1, (unsigned int)8, __half>", "RMSNormKernel", ["true", "8", "fp16"]),
    ],
)  # fmt: skip
def test_unknown_kernels_are_decoded_by_position(name, short, arguments):
    found = decode(name)
    assert found.name == short
    assert [a.value for a in found.arguments] == arguments
    assert [a.parameter for a in found.arguments] == [f"#{i + 1}" for i in range(len(arguments))]


def test_the_prefill_kernel_of_a_later_version_has_named_parameters():
    traits = TRAITS.removesuffix(">") + ", (bool)1>"
    name = (
        f"void flashinfer::BatchPrefillWithPagedKVCacheKernel<(bool)1, {traits}, PagedParams>(T3)"
    )
    named = values(name)
    assert named["SAME_KV_STRIDES"] == named["ENABLE_FP4_REPACK"] == "true"
    assert (named["MASK_MODE"], named["CTA_TILE_Q"]) == ("causal", "128")


def test_a_versions_own_templates_come_before_those_of_the_tested_ones():
    name = "void flashinfer::norm::RMSNormKernel<(bool)1, (unsigned int)8, __half>(int)"
    own = Decoder({"RMSNormKernel": [["PDL", "VEC_SIZE", "T"]]})
    found = {a.parameter: a.value for a in own.decode(name).arguments}
    assert found == {"PDL": "true", "VEC_SIZE": "8", "T": "fp16"}
    assert own.decode(DECODE) == decode(DECODE)  # where the index has none of that name


def test_a_targets_meanings_are_shown_and_the_kernels_own_wins():
    found = {a.parameter: a.meaning for a in decode(DECODE).arguments}
    assert found["bdy"].startswith("rows of threads: a query head of the group")
    assert found["bdz"] and found["vec_size"] == "elements a thread loads at once"


def test_the_shipped_templates_are_those_of_the_headers():
    package = Package(flashinfer_package())
    shipped = yaml.safe_load(SHIPPED.read_text())
    assert str(version(package.root)) in SHIPPED.read_text().splitlines()[0]
    for name, overloads in templates(package).items():
        for parameters in overloads if name in shipped else ():
            assert parameters in shipped[name], name
    kernels = [kernel for target in known().values() for kernel in target.source.kernels]
    assert {kernel.name for kernel in kernels if kernel.header} <= set(shipped)


def test_a_kernel_of_cute_dsl_has_the_name_of_its_class():
    layout = "_tensorptrf32gmemalign16o1_CopyAtom_ThrID10_TVLayoutSrc1409601_TVLayoutDst14096_0"
    module = "kernel_cutlass_kernel_flashinfergdn_kernelsdelta_rule_dsldelta_rule_cp_sm90"
    found = decode(f"{module}CPDeltaRulePrefillSm90_object_at_{layout}")
    assert found.name == "CPDeltaRulePrefillSm90 (CuTe DSL)"
    assert found.value("compiled for") == layout.strip("_")
    assert decode(f"{module}_cp_object_at_{layout}").arguments == ()


@pytest.mark.parametrize(
    ("full", "name"),
    [
        ("my_kernel(float *)", "my_kernel"),
        ("enable_if<!T7, void>::type my_gemv<int, float, 0, 1>(T13)", "my_gemv"),
        ("std::enable_if<(a > 1), void>::type ns::k<(b < 2)>(int)", "k"),
        ("void at::native::<unnamed>::my_fill_kernel<float, (int)4>(int, float *)", "my_fill_kernel"),
        ("void (anonymous namespace)::k<2>(int)", "k"),
        ("(anonymous namespace)::k(int)", "k"),
        ("decltype(auto) k<3>(int)", "k"),
        ("void cutlass::device_kernel<my::attention<128>>(my::Params)", "device_kernel"),
        ("void f<ns::g<X>(int &)::[lambda(int) (instance 1)]>(int, T3)", "f"),
        ("vectorAdd", "vectorAdd"),
        ("<unnamed>", "<unnamed>"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_function_of_a_demangled_name(full, name):
    assert demangled.function(full) == name


MANY = 25_000
LONG = {
    "open": "k" + "<" * MANY,
    "parentheses": "k<" + "(" * MANY,
    "nested": "k<" * MANY + ">" * MANY,
    "traits": "KernelTraits<" * MANY + "1" + ">" * MANY,
    "variants": "DefaultAttention<" * MANY + "1" + ">" * MANY,
    "blanks": "void k<" + " " * MANY + "x>",
    "digits": "k<(flashinfer::MaskMode)" + "9" * MANY + ">",
    "no digit": "flashinfer::norm::RMSNormKernel<\N{SUPERSCRIPT TWO}, x>",
    "mangled": "kernel_cutlass_x" + "A" * MANY + "_object_at_" + "_" * MANY + "!",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=key, marks=[pytest.mark.exhaustive] * (key == "variants")) for key, name in LONG.items()],
)  # fmt: skip
def test_a_name_that_no_compiler_made_is_read_in_time_that_grows_with_its_length(name):
    """What is quadratic takes minutes for one of these."""
    assert decode(name).name is not None
    for read in (canonical, demangled.function, demangled.cute_name):
        assert isinstance(read(name), str)
