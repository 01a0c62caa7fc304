"""What the guide's prose says of FlashInfer, held against FlashInfer's source."""

import re

import pytest
from flashinfer_source import flashinfer_package

from ncuflow.pages.markdown import guide_kernels

INCLUDE = "data/include/flashinfer"
# what the guide says -> where the source says it
FACTS = [
    ("split-KV: chunks of 128 tokens or more", f"{INCLUDE}/attention/scheduler.cuh", r"std::max\(128 / page_size, 1U\)"),
    ("split-KV: not where batch × KV heads fills the slots", f"{INCLUDE}/attention/scheduler.cuh",
     r"if \(batch_size \* gdy >= max_grid_size\) \{\s*split_kv = false"),
    ("split-KV: slots are occupancy × SMs", f"{INCLUDE}/attention/scheduler.cuh",
     r"max_grid_size = num_blocks_per_sm \* num_sm"),
    ("split-KV: two blocks an SM for fa2", f"{INCLUDE}/attention/scheduler.cuh", r"int num_blocks_per_sm = 2;"),
    ("CUDA graphs always split", f"{INCLUDE}/attention/scheduler.cuh", r"when using CUDAGraph, we always use partition-kv"),
    ("decode: a row of threads a query head", f"{INCLUDE}/attention/decode.cuh", r"constexpr uint32_t bdy = GROUP_SIZE;"),
    ("fa2: the mask hook only where a mask cuts", f"{INCLUDE}/attention/prefill.cuh",
     r"MASK_MODE == MaskMode::kCustom \|\| .*?\(iter >= mask_iteration"),
    ("fa3: a producer warpgroup", f"{INCLUDE}/attention/hopper/kernel_traits.cuh",
     r"NUM_WARPS = \(\(CTA_Q / 64\) \+ 1\) \* 4"),
    ("rmsnorm: min(1024, hidden / vector width) threads", f"{INCLUDE}/norm.cuh",
     r"block_size = std::min<uint32_t>\(1024, d / vec_size\)"),
    ("rmsnorm: the sums of the warps go through shared memory", f"{INCLUDE}/norm.cuh",
     r"smem\[ty\] = sum_sq;\s*__syncthreads\(\);"),
    ("fused add: the row stays in shared memory", f"{INCLUDE}/norm.cuh", r"x_vec\.store\(smem_x"),
    ("rope: heads in the grid where tokens do not fill the GPU", f"{INCLUDE}/pos_enc.cuh",
     r"if \(\(nnz \+ bdy - 1\) / bdy >= num_ctas_0\)"),
    ("rope: Llama 3.1 is smooth_a and smooth_b of the same kernel", f"{INCLUDE}/pos_enc.cuh",
     r"smooth = freq\[i\] \* smooth_a \+ smooth_b"),
    ("rope: plain RoPE is the same kernel with smooth_a and smooth_b of 0", f"{INCLUDE}/pos_enc.cuh",
     r"cudaError_t BatchQKApplyRotaryPosIds\((?:(?!\n\}).)*float smooth_a = 0\.f;\s*float smooth_b = 0\.f;"),
    ("rope: Llama 3.1 by position ids never takes the HeadParallelism kernel", f"{INCLUDE}/pos_enc.cuh",
     r"cudaError_t BatchQKApplyLlama31RotaryPosIds\((?:(?!HeadParallelism|\n\}).)*RopeHeadSplit(?:(?!HeadParallelism).)*?\n\}"),
    ("rope: by offsets a sequence's tokens are divided among blocks", f"{INCLUDE}/pos_enc.cuh",
     r"split = RopeGridSplit\(nblks_x, num_ctas, mean_iters,"),
    ("rope: by offsets the frequencies come before the walk along the tokens", f"{INCLUDE}/pos_enc.cuh",
     r"__global__ void BatchQKApplyRotaryKernel\((?:(?!\n\}).)*__powf(?:(?!\n\}).)*i = blockIdx\.y; i < \(seq_len"),
    ("rope: heads_per_step by the threads of an SM", f"{INCLUDE}/pos_enc.cuh",
     r"cudaDevAttrMaxThreadsPerMultiProcessor, device\)\);\s*cached_value = max_threads_per_sm <= 1024;"),
    ("rope: sines by __sincosf", f"{INCLUDE}/pos_enc.cuh", r"__sincosf\(embed"),
    ("merge: the large kernel from states ≥ rows", f"{INCLUDE}/attention/cascade.cuh", r"if \(num_index_sets >= seq_len\)"),
    ("JIT: the library is named after its URI", "jit/core.py", r'JIT_DIR / self\.name / f"\{self\.name\}\.so"'),
    ("JIT: prebuilt first, then a file lock, then the build", "jit/core.py",
     r"try_load\(\).*?FileLock\(self\.lock_path.*?FLASHINFER_DISABLE_JIT.*?self\.build\(\)\s*return self\.load\(\)"),
    ("JIT: VERBOSE alone turns debugging on", "jit/core.py",
     r"debug = \(debug_env if debug_env is not None else verbose_env\) == \"1\""),
    ("JIT: sources are rewritten only if different", "jit/attention/modules.py", r"write_if_different\(dest_path, source\)"),
    ("decode: tensor cores are off by default", "decode.py", r"use_tensor_cores: bool = False"),
    ("norm: the call chooses the type", "data/csrc/norm.cu", r"DISPATCH_DLPACK_DTYPE_TO_CTYPE_FP16\(input\.dtype\(\)"),
    ("norm: VEC_SIZE by the hidden size", f"{INCLUDE}/norm.cuh",
     r"vec_size = std::gcd\(16 / sizeof\(T\), d\);.*?DISPATCH_ALIGNED_VEC_SIZE\(vec_size, VEC_SIZE"),
    ("rope: the call chooses type, head dimension and style", f"{INCLUDE}/pos_enc.cuh",
     r"DISPATCH_INTERLEAVE\(interleave, INTERLEAVE, \{\s*DISPATCH_HEAD_DIM\(head_dim"),
    ("merge: the call chooses the type", "data/csrc/cascade.cu", r"DISPATCH_DLPACK_DTYPE_TO_CTYPE_FP16\(v_a\.dtype"),
    ("decode: bdy by the group size", f"{INCLUDE}/attention/decode.cuh", r"DISPATCH_GQA_GROUP_SIZE\(num_qo_heads / num_kv_heads"),
    ("fa2: CTA_TILE_Q by plan()", "data/csrc/batch_prefill.cu", r"DISPATCH_CTA_TILE_Q\(plan_info\.cta_tile_q"),
    ("fa2: NUM_MMA_KV by registers and shared memory", f"{INCLUDE}/attention/prefill.cuh",
     r"DISPATCH_NUM_MMA_KV\(\s*min\(static_cast<uint32_t>\(max_num_mma_kv_smem\), max_num_mma_kv_reg\)"),
    ("norm: CuTe DSL gives a row 8 to 256 threads", "norm/kernels/rmsnorm.py",
     r"if H <= 64:\s*return 8\b.*return 128\s*else:\s*return 256"),
    ("norm: CuTe DSL copies to shared memory if half of it holds the tile", "norm/kernels/rmsnorm.py",
     r"use_async_copy = tile_bytes <= props\.shared_memory_per_block_optin // 2"),
    ("norm: CuTe DSL has clusters from 9.0 on, up to 16", "norm/kernels/rmsnorm.py",
     r"if sm_version < 90:\s*return 1.*for cluster_n in \[1, 2, 4, 8, 16\]"),
    ("norm: the fused one of CuTe DSL", "norm/kernels/fused_add_rmsnorm.py", r"class FusedAddRMSNormKernel"),
    ("decode: CUDA cores go through a whole chunk whatever the window", f"{INCLUDE}/attention/decode.cuh",
     r"for \(uint32_t iter = 0; iter < ceil_div\(chunk_size, tile_size_per_bdx \* bdy \* bdz\)"),
    ("fa2: begins at the window", f"{INCLUDE}/attention/prefill.cuh",
     r"kv_start_idx = sub_if_greater_or_zero\(\s*kv_len \+ \(qo_tile_idx \* CTA_TILE_Q\) / group_size, qo_len \+ window_left\)"),
    ("fa2: query tiles from the first to the last", f"{INCLUDE}/attention/scheduler.cuh",
     r"for \(uint32_t q_tile_idx = 0; q_tile_idx < num_tiles_q; \+\+q_tile_idx\)"),
    ("decode: plan() takes a fixed split", "decode.py", r"fixed_split_size: Optional\[int\] = None"),
    ("norm: the CUDA kernels by FLASHINFER_USE_CUDA_NORM", "norm/__init__.py", r'"FLASHINFER_USE_CUDA_NORM", "0"\) == "1"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("says", "file", "pattern"), FACTS, ids=lambda v: v if " " in v and ":" in v else ""
)
def test_the_source_says_so(says, file, pattern):
    text = (flashinfer_package() / file).read_text()
    assert re.search(pattern, text, re.DOTALL), f"{says}: not in {file}"


def test_the_commands_of_the_workflow_exist():
    text = (flashinfer_package() / "__main__.py").read_text()
    for command in ("collect-env", "clear-cache", "module-status"):
        assert f'@cli.command("{command}")' in text


def test_there_is_no_llama31_kernel_and_no_attention_py():
    package = flashinfer_package()
    assert not (package / "jit" / "attention.py").exists()
    text = (package / INCLUDE / "pos_enc.cuh").read_text()
    assert not re.search(r"__global__[^;{]*[Ll]lama", text)


def test_a_default_is_a_value_of_the_read_that_is_shown_never_source_text():
    def read(file, default):
        return {"file": file, "line": 1, "default": default}

    environment = {
        "FLASHINFER_NVCC_THREADS": [read("jit/cpp_ext.py", "str(default)")],
        "CUDA_HOME": [read("jit/cpp_ext.py", None), read("cutile/common.py", "'/usr/local/cuda'")],
        "FLASHINFER_LOGLEVEL": [read("api_logging.py", "'0'")],
    }
    index = {"environment": environment}
    found = {row["name"]: row["default"] for row in guide_kernels.environment(index)}
    unknown = dict.fromkeys(("FLASHINFER_NVCC_THREADS", "CUDA_HOME"))
    assert found == unknown | {"FLASHINFER_LOGLEVEL": "'0'"}
