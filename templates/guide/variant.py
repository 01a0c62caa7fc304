import torch
from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

# A variant is a struct whose hooks the kernel inlines. This one attends to every n-th token.
VARIANT = r"""
struct DilatedAttention : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t qo_len, kv_len, window_left, dilation;
  float sm_scale_log2;

  template <typename Params>
  __device__ __host__ DilatedAttention(const Params& params, uint32_t batch_idx,
                                       uint8_t* smem_ptr) {
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    window_left = kv_len;
    dilation = uint32_t(params.dilation);
    sm_scale_log2 = params.sm_scale * math::log2e;
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return kv_idx % dilation == 0 ? logits : T(-math::inf);
  })
};
"""
seq_len, heads, head_dim, dilation, scale = 256, 8, 128, 4, 128**-0.5
q, k, v = (
    torch.randn(seq_len, heads, head_dim, dtype=torch.float16, device="cuda") for _ in range(3)
)
indptr = torch.tensor([0, seq_len], dtype=torch.int32, device="cuda")
half, tensors, scalars = torch.float16, [], ["sm_scale", "dilation"]
jit_args = [
    *("dilated_attention", half, half, half, torch.int32, head_dim, head_dim),  # URI, types, sizes
    *(tensors, [], scalars, ["double"] * len(scalars)),  # further parameters of the kernel
    *("DilatedAttention", VARIANT),
]
workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa2", jit_args=jit_args)
wrapper.plan(indptr, indptr, heads, heads, head_dim, causal=False, q_data_type=half)
out = wrapper.run(q, k, v, scale, float(dilation))  # scalars follow in the order of their names

seen = [t.float().transpose(0, 1) for t in (q, k[::dilation], v[::dilation])]
expected = torch.nn.functional.scaled_dot_product_attention(*seen).transpose(0, 1)
assert torch.allclose(out.float(), expected, atol=1e-2)
