import flashinfer
import torch

logits = torch.randn(128, 128256, device="cuda") * 3
probs = torch.softmax(logits, dim=-1)
joint = {"filter_apply_order": "joint"}  # one kernel; the default renormalises by top-k first
token = flashinfer.sampling.top_k_top_p_sampling_from_probs(probs, 40, 0.9, **joint)
place = (probs > probs.gather(1, token.long()[:, None])).sum(dim=-1)
assert bool((place < 40).all())  # fewer than 40 tokens are likelier
