"""A kernel of a step as a file that stands alone, and that says when it runs whether it launched what the trace has."""

from pathlib import Path

from ncuflow.export import product
from ncuflow.export.script import NAME, Made, Seen, script_of
from ncuflow.findings import kernelname
from ncuflow.io import CommandError, UsageError
from ncuflow.step import trace as steps
from ncuflow.step.record import KernelOfStep, StepAnswer
from ncuflow.sweep.points import points
from ncuflow.target.contract import load
from ncuflow.target.launch import Params

TORCH = ("cuBLAS", "CUTLASS", "torch")  # whose kernels torch's products launch
DSL = " (CuTe DSL)"  # what stands behind the class's name in place of the mangled rest


def script(trace: Path, number: int, known: list[str] | None = None, name: str = NAME) -> str:
    """The file of the kernel that has this number in `ncuflow step`; raises CommandError where its shape is not known."""
    found = steps.step(trace, known=known)
    one = _kernel(found, number)
    made, point, params = _made(one, number)
    assert one.grid is not None and one.block is not None
    called = one.name.removesuffix(DSL)
    seen = Seen(called, one.grid, one.block, found.gpu or "an unknown GPU", found.file, number)
    return script_of(made, point, params, name, seen)


def _kernel(found: StepAnswer, number: int) -> KernelOfStep:
    kernels = [one for group in found.groups for one in group.kernels]
    if not 1 <= number <= len(kernels):
        raise UsageError(f"--kernel {number}: the steps of {found.file} have 1 to {len(kernels)}")
    return kernels[number - 1]


def _made(one: KernelOfStep, number: int) -> tuple[Made, str, Params]:
    """(what makes it, its point, the point's parameters)."""
    shape, asked = one.shape, f"kernel {number}, {one.name[:80]}"
    if shape is None or one.grid is None or one.block is None:
        raise CommandError(f"{asked}, is no kernel with a grid and a block")
    if not shape.candidates or shape.target is None:
        why = one.reason.why if one.reason else shape.refusal or "no target counts it"
        raise CommandError(f"{asked}: its shape is not known: {why}")
    params = dict(shape.candidates[-1])
    target = load(shape.target)
    if target in kernelname.targets_of(kernelname.decode(one.demangled).name):
        (planned, *_) = points(target, [params])
        title = f"{target.title}: one launch of FlashInfer"
        return Made(target.prepare, title, target.name), planned.id, planned.params
    if one.owner not in TORCH or one.family != "GEMM" or not {"m", "n", "k"} <= {*params}:
        raise CommandError(
            f"{asked}: a kernel of {one.owner or 'others'}, which no target launches"
        )
    layout = kernelname.built(one.demangled).get("layout", "T")
    whole = {"batch": 1, "dtype": "f16", **params, "transposed": layout[0] in "Tt"}
    sizes = "_".join(f"{side.upper()}{whole[side]}" for side in ("m", "n", "k"))
    title = "A matrix product: one launch of torch"
    return Made(product.prepare, title, target.name), f"torch/mm_{sizes}_{whole['dtype']}", whole
