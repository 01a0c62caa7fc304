"""A kernel that FlashInfer writes in CuTe DSL, compiled for a GPU that is not there.

    ncuflow static-cute --arch sm_80 --function MODULE:FUNCTION --arguments '["float16", 4096]' --out FILE.cubin

No nvcc takes part: CuTe DSL compiles them in the process that launches them, once for each size. FUNCTION is
FlashInfer's that compiles it, given these arguments and the SM version.
What FlashInfer asks the GPU for there (its shared memory) is answered from `gpus.yaml`. A process
compiles one kernel: CuTe DSL reads the architecture once, where it is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ncuflow.gpu.table import shared_of_block
from ncuflow.io import replacing, scratch
from ncuflow.model import Params
from ncuflow.process import CaptureError
from ncuflow.target.contract import Target, known
from ncuflow.target.source import CuteKernel


def described(kernel: str) -> str | None:
    """A kernel's name as its target says it for people; None where no target does."""
    return next(
        (said for target in known().values() if (said := target.rules.described(kernel))), None
    )


def commands(
    target: Target, arch: str, points: Sequence[Params]
) -> Iterator[tuple[CuteKernel, str]]:
    """(kernel, command) of what CuTe DSL compiles for points of a target, each once; none where it is not installed."""
    if find_spec("cutlass") is None:
        return
    wanted = {kernel: None for p in points if (kernel := target.build.cute(p, arch.rstrip("af")))}
    for kernel in wanted:
        arguments = shlex.quote(json.dumps(kernel.arguments))
        words = f"--arch sm_{arch.replace('.', '')} --function {kernel.function} --arguments {arguments}"
        yield kernel, f"{sys.executable} -m ncuflow static-cute {words}"


def command(*, arch: str, function: str, arguments: str, out: Path) -> None:
    """A cubin.

    Args:
        arch: such as sm_80 or sm_90a
        function: that compiles it: module:function
        arguments: its own, as JSON
        out: the cubin
    """
    capability = re.sub(r"sm_(\d+)(\d)[af]?$", r"\1.\2", arch)
    shared = shared_of_block(capability)
    if shared is None:
        raise CaptureError(f"{arch}: gpus.yaml has no limits of compute capability {capability}")
    with scratch() as folder:
        os.environ |= {
            "CUTE_DSL_ARCH": arch,
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_DUMP_DIR": str(folder),
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        }
        _compile(function, json.loads(arguments), int(10 * float(capability)), shared)
        made = list(folder.glob("*.cubin"))
        if len(made) != 1:
            raise CaptureError(f"CuTe DSL left {len(made)} cubins, not one")
        with replacing(out) as temporary:
            shutil.copyfile(made[0], temporary)


def _compile(name: str, arguments: Sequence[Any], sm_version: int, shared: int) -> None:
    import torch

    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    torch.cuda.get_device_properties = lambda *which: properties
    torch.cuda.current_device = lambda: 0
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(*arguments, sm_version)
