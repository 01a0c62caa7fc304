"""Programs of the CUDA toolkit and of the compiler beside it: where they lie, and what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from ncuflow.process import CaptureError


def tool(name: str) -> str:
    """A program of the CUDA toolkit: on the PATH, in $CUDA_HOME, or of the extra `static`.

    Raises CaptureError with the remedy where it is nowhere.
    """
    folders = [os.environ.get("PATH", "")]
    folders += [f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    folders += [f"{folder}/nvidia/cu13/bin" for folder in sys.path]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise CaptureError(
            f"{name}: not found; `pip install '.[static]'` in a checkout of ncuflow brings it"
        )
    return found


def output(name: str, *arguments: str) -> str:
    """What a program of the toolkit prints. Raises CaptureError where it is not there, or fails."""
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise CaptureError(f"{name}: {complaint[-1]}")
    return done.stdout


def demangled(names: Iterable[str]) -> dict[str, str]:
    """Names as C++ has them, by the mangled ones. Raises CaptureError without c++filt."""
    mangled = list(names)
    try:
        shown = subprocess.run(
            ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise CaptureError(f"c++filt: {error}") from None
    return dict(zip(mangled, shown.stdout.split("\n"), strict=False))
