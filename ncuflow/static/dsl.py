"""The norms that FlashInfer writes in CuTe DSL, compiled for a GPU that is not there.

    ncuflow static-norm --arch sm_80 --kernel rmsnorm --dtype f16 --hidden 4096 [--pdl] --out FILE.cubin

No nvcc takes part: CuTe DSL compiles them in the process that launches them, once for each hidden size.
What FlashInfer asks the GPU for there (its shared memory) is answered from `gpus.yaml`. A process
compiles one kernel: CuTe DSL reads the architecture once, where it is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from types import SimpleNamespace

from ncuflow.io import replacing, scratch
from ncuflow.model import Params
from ncuflow.process import CaptureError
from ncuflow.static.device import shared_of_block
from ncuflow.target.launch import ITEMSIZE

MODULE = "norm_cute_dsl"
LONGEST = 187  # characters of a kernel's name before its number
KERNELS = {  # variant -> what runs: module of FlashInfer, class, function that compiles
    "rmsnorm": ("rmsnorm", "RMSNormKernel", "_get_compiled_rmsnorm_kernel"),
    "fused_add_rmsnorm": (
        "fused_add_rmsnorm",
        "FusedAddRMSNormKernel",
        "_get_compiled_fused_add_rmsnorm_kernel",
    ),
}
_NAME = re.compile(
    r"kernel_cutlass_kernel_flashinfernormkernels[a-z_]*?(?P<kind>[A-Z]\w*?Kernel)_object_at_"
    r"_tensorptr(?P<dtype>b?f16)gmemalign\d+oi64(?P<sizes>\d+)_"
)
DTYPES = {"f16": "float16", "bf16": "bfloat16"}


def kernel_of(p: Params) -> str | None:
    """Which of KERNELS a point of RMSNorm runs where CuTe DSL is installed; None where another one does."""
    if p["norm"] != "auto":
        return None
    return {"add_then_rmsnorm": "rmsnorm"}.get(
        p["variant"], p["variant"] if p["variant"] in KERNELS else None
    )


def dependent(p: Params, capability: str) -> bool:
    """Whether the kernel is compiled for dependent launch: where the GPU has it, from 9.0 on, and it was not turned off."""
    return p["pdl"] != "off" and float(capability.rstrip("af")) >= 9


def name(kernel: str, dtype: str, hidden: int, pdl: bool) -> str:
    """The kernel's name as CuTe DSL makes it of the types of its arguments, and cuts it off."""
    module, kind, _ = KERNELS[kernel]
    short = {"f16": "f16", "bf16": "bf16"}[dtype]
    rows = f"tensorptr{short}gmemalign{gcd(128, hidden * ITEMSIZE[dtype])}oi64{hidden}{hidden}1"
    weight = f"tensorptr{short}gmemalign16o{hidden}1"
    tensors = (rows, weight, rows) if kernel == "rmsnorm" else (rows, rows, weight)
    whole = f"kernel_cutlass_kernel_flashinfernormkernels{module}{kind}_object_at__{'_'.join(tensors)}___{pdl}"
    return f"{whole[:LONGEST]}_0"


def described(kernel: str) -> str | None:
    """E.g. "RMSNormKernel (CuTe DSL, f16, 4096)" for a name of CuTe DSL; None for another."""
    found = _NAME.match(kernel)
    if found is None:
        return None
    twice = found["sizes"][:-1]
    return f"{found['kind']} (CuTe DSL, {found['dtype']}, {twice[: len(twice) // 2]})"


def commands(arch: str, points: Sequence[Params]) -> Iterator[tuple[str, str]]:
    """(what is compiled, command) of the kernels that points of RMSNorm run; none without CuTe DSL."""
    if find_spec("cutlass") is None:
        return
    folder = f"sm_{arch.replace('.', '')}"
    wanted = {
        (kernel, p["dtype"], p["hidden"], dependent(p, arch)): None
        for p in points
        if (kernel := kernel_of(p))
    }
    for kernel, dtype, hidden, pdl in wanted:
        words = (
            f"--arch {folder} --kernel {kernel} --dtype {dtype} --hidden {hidden}" + " --pdl" * pdl
        )
        source = f"{kernel}_{dtype}_{hidden}" + "_pdl" * pdl
        yield source, f"{sys.executable} -m ncuflow static-norm {words}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", required=True, help="such as sm_80 or sm_90a")
    parser.add_argument("--kernel", choices=list(KERNELS), required=True)
    parser.add_argument("--dtype", choices=list(DTYPES), required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--pdl", action="store_true", help="for programmatic dependent launch")
    parser.add_argument("--out", type=Path, required=True, help="the cubin")


def run(args: argparse.Namespace) -> None:
    capability = re.sub(r"sm_(\d+)(\d)[af]?$", r"\1.\2", args.arch)
    shared = shared_of_block(capability)
    if shared is None:
        raise CaptureError(
            f"{args.arch}: gpus.yaml has no limits of compute capability {capability}"
        )
    with scratch() as folder:
        os.environ |= {
            "CUTE_DSL_ARCH": args.arch,
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_DUMP_DIR": str(folder),
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        }
        _compile(args, int(10 * float(capability)), shared)
        made = list(folder.glob("*.cubin"))
        if len(made) != 1:
            raise CaptureError(f"CuTe DSL left {len(made)} cubins, not one")
        with replacing(args.out) as temporary:
            shutil.copyfile(made[0], temporary)


def _compile(args: argparse.Namespace, sm_version: int, shared: int) -> None:
    import torch

    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    torch.cuda.get_device_properties = lambda *which: properties
    torch.cuda.current_device = lambda: 0
    module, _, function = KERNELS[args.kernel]
    kernels = importlib.import_module(f"flashinfer.norm.kernels.{module}")
    getattr(kernels, function)(DTYPES[args.dtype], args.hidden, 0.0, args.pdl, sm_version)
