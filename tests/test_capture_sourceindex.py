"""The source index, on a package of a few lines and on the real one."""

from __future__ import annotations

import ast
import json
import os
import textwrap
from pathlib import Path

import pytest
from flashinfer_source import made_package, write

from ncuflow.capture.machine import package_folder
from ncuflow.capture.process import CaptureError
from ncuflow.cli import dispatch
from ncuflow.source import index as sourceindex
from ncuflow.source.cuda import functions
from ncuflow.target import known, load

# an unpacked wheel, or the installed package
REAL = Path(os.environ.get("NCUFLOW_TEST_FLASHINFER") or package_folder("flashinfer") or "missing")
CUDA = textwrap.dedent(
    """\
    #define BODY(x) { x; }
    DEFINE_HAS_MEMBER(maybe_mask)
    namespace flashinfer { // a { in a comment
    template <typename T, bool A = (1 > 2)>
    __global__ __launch_bounds__(Traits::N) void KernelA(const __grid_constant__ T p) {
      if (p.x) { f("}"); } else { g('{'); }
    }
    struct State {
      float m{0}, d{1};
      __device__ State() : m(0), d{2} { init(); }
      __device__ float get() const { return m; }
      bool operator()(int a) const { return a; }
    };
    using Tma = decltype(make_tma(Copy{}, Layout<Shape>{}, int32_t(0), Shape{}));
    constexpr int kTable[] = {1, 2};
    template <typename T>
    inline auto Search(const std::vector<T>& pages,
                       uint32_t low = 1) {
      auto f = [&](int x) { return x; };
      /* } */
      return low;
    }
    }  // namespace
    """
)


def test_functions_of_a_header() -> None:
    found = [(f.name, f.line_start, f.line, f.line_end, f.kernel) for f in functions(CUDA)]
    assert found == [
        ("KernelA", 4, 5, 7, True),
        ("State", 10, 10, 10, False),
        ("get", 11, 11, 11, False),
        ("operator()", 12, 12, 12, False),
        ("Search", 16, 17, 22, False),
    ]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with just what the targets declare."""
    return made_package(tmp_path / "flashinfer")


def test_index_of_a_small_package(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "index.json"
    assert dispatch(["source-index", "--package", str(package), "--out", str(out)]) == 0
    text = out.read_text()
    index = json.loads(text)
    assert index["version"] == "9.9.9"
    assert list(index["targets"]) == list(known())
    decode = index["targets"]["decode"]
    assert decode["api"]["python"]["file"] == "decode.py"
    assert decode["kernels"][0]["symbol"] == "BatchDecodeWithPagedKVCacheKernel"
    assert index["environment"]["MAX_JOBS"] == [{"file": "decode.py", "line": 2, "default": "'1'"}]
    assert index["functions"]["data/include/flashinfer/norm.cuh"][0] == [1, 1, "RMSNormKernel"]
    norm = index["targets"]["rmsnorm"]["kernels"][0]
    assert (norm["symbol"], norm["line"]) == ("RMSNormKernel", 2)  # not the host overload
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("file", "old", "message"),
    [
        (
            "data/include/flashinfer/norm.cuh",
            "FusedAddRMSNormKernel",
            "FusedAddRMSNormKernel: no such kernel",
        ),
        (
            "data/include/flashinfer/attention/scheduler.cuh",
            "DecodePlan",
            "DecodePlan: no such function",
        ),
        ("decode.py", "BatchDecodeWithPagedKVCacheWrapper", r"flashinfer\.decode\.\w+: not found"),
    ],
)
def test_a_missing_symbol_is_named(package: Path, file: str, old: str, message: str) -> None:
    path = package / file
    path.write_text(path.read_text().replace(old, "Gone"))
    with pytest.raises(CaptureError, match=message) as error:
        sourceindex.index(sourceindex.Package(package))
    assert error.value.code == 2


def test_a_missing_template_is_named(package: Path) -> None:
    (package / "data/csrc/batch_decode_kernel_inst.jinja").unlink()
    with pytest.raises(CaptureError, match=r"batch_decode_kernel_inst\.jinja: no such file"):
        sourceindex.index(sourceindex.Package(package))


def test_re_exports_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "jit/attention/__init__.py", "from .modules import gen_x as gen_x\n")
    write(tmp_path / "jit/attention/modules.py", "\n\ndef gen_x(): ...\n")
    write(tmp_path / sourceindex.INCLUDE / "norm.cuh", "")
    place = sourceindex.Package(tmp_path).python("flashinfer.jit.attention.gen_x")
    assert place == ("jit/attention/modules.py", 3)


def test_environment_reads_of_every_spelling() -> None:
    text = """
name = "FLASHINFER_A"
os.environ.get(name, "x")
os.getenv("FLASHINFER_B")
os.environ["CUDA_HOME"]
"FLASHINFER_C" in os.environ
parse_env_flags("FLASHINFER_EXTRA_CFLAGS")
print("FLASHINFER_D"); os.environ.get("HOME"); table.get("MAX_JOBS")
"""
    found = {name: default for name, _, default in sourceindex.environment_reads(ast.parse(text))}
    assert found == {
        "FLASHINFER_A": "'x'", "FLASHINFER_B": None, "CUDA_HOME": None, "FLASHINFER_C": None,
        "FLASHINFER_EXTRA_CFLAGS": None,
    }  # fmt: skip


def test_no_package_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="not a FlashInfer package"):
        sourceindex.Package(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="no FlashInfer installed or named")
def test_the_real_package_has_all_that_is_declared() -> None:
    package = sourceindex.Package(REAL)
    index = {name: sourceindex.target_entry(package, t) for name, t in known().items()}
    kernel = index["prefill"]["kernels"][2]
    line = (REAL / kernel["file"]).read_text().splitlines()[kernel["line"] - 1]
    assert kernel["symbol"] == "PrefillWithKVCacheKernel" and kernel["symbol"] in line
    place = sourceindex.span(package, load("decode").functions[0])
    assert place["line_end"] - place["line"] > 10
