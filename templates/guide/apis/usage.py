from flashinfer import silu_and_mul

inputs = silu_and_mul.fi_init(num_tokens=1024)  # what its trace template makes
out = silu_and_mul(**inputs)
assert out.shape[-1] * 2 == inputs["input"].shape[-1]
