"""The source index, on a package of a few lines and on the real one."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path

import pytest
from flashinfer_source import flashinfer_package, made_package, write

from ncuflow import source as sourceindex
from ncuflow.cli import dispatch
from ncuflow.process import CaptureError
from ncuflow.source import functions, templates_of
from ncuflow.target.contract import known, load

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


@pytest.mark.parametrize(
    "attribute",
    ["FLASHINFER_SAMPLING_LAUNCH_BOUNDS(BLOCK)", "__cluster_dims__(2, 1)", "__maxnreg__(N)"],
)
def test_what_stands_before_a_kernels_name_is_not_its_name(attribute: str) -> None:
    text = f"template <int B>\n__global__ void {attribute}\n    Sample(int n) {{ }}\n"
    (found,) = functions(text)
    assert (found.name, found.line, found.line_start, found.kernel) == ("Sample", 3, 1, True)


def test_templates_of_kernels_and_structs() -> None:
    text = CUDA + textwrap.dedent(
        """\
        template <MaskMode MASK_MODE_, uint32_t kTile = Align<8, (4 > 2)>(), typename DTypeQ_>
        struct KernelTraits : Base<int> { };
        template <> struct KernelTraits<1, 2, int> { };
        template <typename T>
        struct KernelTraits<1, 2, T> { };
        template <int N, typename... Ts> __global__ void Twice(Ts... x) { }
        template <bool B> /* of another */
        __global__ void Twice() { }
        template <typename T, float (*Activation)(const float&), int N = 2>
        __global__ void Apply(T x) { }
        """
    )
    assert templates_of(text) == {
        "Apply": [["T", "Activation", "N"]],
        "KernelA": [["T", "A"]],
        "KernelTraits": [["MASK_MODE", "kTile", "DTypeQ"]],
        "Twice": [["N", "Ts"], ["B"]],
    }


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
    ("file", "old", "targets", "message"),
    [
        ("data/include/flashinfer/norm.cuh", "FusedAddRMSNormKernel", ["rmsnorm"],
         "FusedAddRMSNormKernel: no such kernel in data/include/flashinfer/norm.cuh"),
        ("data/include/flashinfer/attention/scheduler.cuh", "DecodePlan", ["decode"],
         "DecodePlan: no such function in "),
        ("decode.py", "BatchDecodeWithPagedKVCacheWrapper", ["decode"],
         "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper: not found"),
        ("data/csrc/batch_decode_kernel_inst.jinja", None, ["decode"],
         "data/csrc/batch_decode_kernel_inst.jinja: no such file"),
    ],
)  # fmt: skip
def test_a_target_with_a_missing_symbol_is_left_out_and_named(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str | None, targets: list[str],
    message: str,
) -> None:  # fmt: skip
    path, out = package / file, tmp_path / "index.json"
    if old is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, "Gone"))
    assert dispatch(["source-index", "--package", str(package), "--out", str(out)]) == 0
    index = json.loads(out.read_text())
    assert list(index["missing"]) == targets and index["missing"][targets[0]].startswith(message)
    assert targets[0] not in index["targets"]
    assert len(index["targets"]) == len(known()) - 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"source-index: {targets[0]} is left out: {message}")


def test_a_package_with_nothing_that_is_declared_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="not a FlashInfer package"):
        sourceindex.Package(tmp_path)
    write(tmp_path / "jit/__init__.py", "")
    write(tmp_path / sourceindex.INCLUDE / "norm.cuh", "")
    said = r"no such function .*; flashinfer\.norm\.rmsnorm: not found"
    with pytest.raises(CaptureError, match=said):
        sourceindex.index(sourceindex.Package(tmp_path))


def test_signatures_are_those_of_the_targets_calls(package: Path) -> None:
    (package / "decode.py").write_text(
        (package / "decode.py").read_text().replace(
            "def BatchDecodeWithPagedKVCacheWrapper(): ...",
            "class BatchDecodeWithPagedKVCacheWrapper:\n"
            "    def __init__(self, workspace, layout='NHD'): ...\n"
            "    def plan(self, indptr, *, causal: bool = False): ...\n",
        )
    )  # fmt: skip
    found = sourceindex.index(sourceindex.Package(package))["signatures"]
    name = "BatchDecodeWithPagedKVCacheWrapper"
    assert [p["name"] for p in found[name]] == ["workspace", "layout"]
    assert found[f"{name}.plan"][1] == {"name": "causal", "kind": "keyword", "default": "False"}
    assert "rmsnorm" in found and "gen_norm_module" not in found


def test_what_a_package_takes_over_is_found_where_it_is_defined(tmp_path: Path) -> None:
    for name, text in {
        f"{sourceindex.INCLUDE}/norm.cuh": "",
        "jit/attention/__init__.py": "from .modules import gen_x as gen_x\n",
        "jit/attention/modules.py": "\n\ndef gen_x(): ...\n",
        "mla/__init__.py": "from ._core import *\n",
        "mla/_core.py": "from ._parts import (\n    Wrapper as Wrapper,\n)\n",
        "mla/_parts/__init__.py": "import math\n\nclass Wrapper: ...\ndef _own(): ...\n",
    }.items():
        write(tmp_path / name, text)
    package = sourceindex.Package(tmp_path)
    assert package.python("flashinfer.jit.attention.gen_x") == ("jit/attention/modules.py", 3)
    assert package.python("flashinfer.mla.Wrapper") == ("mla/_parts/__init__.py", 3)
    with pytest.raises(CaptureError, match="_own: not found"):
        package.python("flashinfer.mla._own")  # a star leaves it behind


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


def test_the_real_package_has_all_that_is_declared() -> None:
    real = flashinfer_package()
    package = sourceindex.Package(real)
    index = {name: sourceindex.target_entry(package, t) for name, t in known().items()}
    kernel = index["prefill"]["kernels"][2]
    line = (real / kernel["file"]).read_text().splitlines()[kernel["line"] - 1]
    assert kernel["symbol"] == "PrefillWithKVCacheKernel" and kernel["symbol"] in line
    place = sourceindex.span(package, load("decode").source.functions[0])
    assert place["line_end"] - place["line"] > 10


def test_the_sources_of_an_attention_module_are_those_that_flashinfer_names() -> None:
    modules = (flashinfer_package() / "jit/attention/modules.py").read_text()
    named = set(re.findall(r'"(batch_(?:prefill|decode)_?\w*\.(?:cu|jinja))"', modules))
    # of decode for MLA, and of the module that prefills pages alone
    named = {n for n in named if "_mla" not in n and not n.startswith("batch_prefill_paged.")}
    named -= {"batch_prefill_paged_jit_binding.cu", "batch_decode_kernel.cu"}  # the last is made
    assert named == {*load("prefill").source.sources, *load("decode").source.sources}
