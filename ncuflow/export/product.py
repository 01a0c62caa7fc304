"""A matrix product of torch's, as an engine calls it: what a script of one is made of."""

from ncuflow.target.inputs import TOLERANCE, torch_dtype
from ncuflow.target.launch import Launch, Params


def prepare(p: Params) -> Launch:
    """Random matrices, and their product: the weight as [n, k], read transposed, or as [k, n]."""
    import torch

    of = {"dtype": torch_dtype(p["dtype"]), "device": "cuda"}
    batch = [p["batch"]] if p["batch"] > 1 else []
    left = torch.randn(*batch, p["m"], p["k"], **of)
    if p["transposed"]:
        right = torch.randn(*batch, p["n"], p["k"], **of).transpose(-1, -2)
    else:
        right = torch.randn(*batch, p["k"], p["n"], **of)
    out = torch.empty(*batch, p["m"], p["n"], **of)

    def run() -> None:
        torch.matmul(left, right, out=out)

    return Launch(
        run=run,
        output=lambda: (out,),
        reference=lambda: (torch.matmul(left.float(), right.float()),),
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
    )
