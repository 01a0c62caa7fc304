"""Generates, builds and loads modules."""

import ctypes
import subprocess
from pathlib import Path

from flashinfer.jit import env

FLAGS = "-O0"
NINJA = """rule cuda_compile
  command = c++ {flags} -MD -MF $out.d -fPIC -isystem {include} -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = c++ -shared $in -o $out
build {folder}/{name}.cuda.o: cuda_compile {source}
build {folder}/{name}.so: link {folder}/{name}.cuda.o
default {folder}/{name}.so
"""


class Spec:
    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = env.FLASHINFER_JIT_DIR / name
        self.ninja_path = self.folder / "build.ninja"
        self.jit_library_path = self.folder / f"{name}.so"
        self.lock_path = env.FLASHINFER_JIT_DIR / "tmp" / f"{name}.lock"
        source = env.FLASHINFER_GEN_SRC_DIR / name / f"{name}.cc"
        self.sources = [source]
        source.parent.mkdir(parents=True, exist_ok=True)
        text = f"#include <flashinfer/{name}.cuh>\n"
        if not source.exists() or source.read_text(encoding="utf-8") != text:
            source.write_text(text, encoding="utf-8")

    @property
    def aot_path(self) -> Path:
        return env.FLASHINFER_AOT_DIR / self.name / f"{self.name}.so"

    @property
    def is_aot(self) -> bool:
        return self.aot_path.exists()

    def write_ninja(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = NINJA.format(
            flags=FLAGS,
            include=env.FLASHINFER_INCLUDE_DIR,
            folder=self.folder,
            name=self.name,
            source=self.sources[0],
        )
        if not self.ninja_path.exists() or self.ninja_path.read_text(encoding="utf-8") != text:
            self.ninja_path.write_text(text, encoding="utf-8")

    def build(self, verbose: bool = False, need_lock: bool = False) -> None:
        self.write_ninja()
        command = ["ninja", "-C", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError("Ninja build failed. Ninja output:\n" + done.stdout)


def spec(name: str) -> Spec:
    return Spec(name)


def load(name: str) -> ctypes.CDLL:
    """The library of a module, built where it is not prebuilt."""
    found = Spec(name)
    if not found.is_aot:
        found.build()
    library = ctypes.CDLL(str(found.aot_path if found.is_aot else found.jit_library_path))
    for function in (library.result, library.microseconds):
        function.restype = ctypes.c_double
    library.result.argtypes = [ctypes.c_double]
    return library
