"""The driver's kernels compile without a GPU, and what fails is one line."""

from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from ncuflow.run import builds, ceilings


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


def test_a_call_that_fails_is_named_with_its_error() -> None:
    def cuMemAlloc(size: int) -> tuple[Any, ...]:  # noqa: N802
        return (
            (Status.CUDA_SUCCESS, 4096) if size < 100 else (Status.CUDA_ERROR_OUT_OF_MEMORY, None)
        )

    assert ceilings.called(cuMemAlloc, 1) == 4096
    with pytest.raises(RuntimeError, match=r"^cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY$"):
        ceilings.called(cuMemAlloc, 1000)


@pytest.fixture
def nvrtc() -> None:
    bindings = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        bindings.nvrtcVersion()
    except RuntimeError:
        pytest.skip("no NVRTC")


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_for_a_gpu_that_is_not_there(nvrtc: None, capability: int) -> None:
    code = ceilings.compiled(ceilings.KERNELS, capability)
    assert code.startswith(b"\x7fELF") and b".text.spin" in code and b".text.read" in code


def test_the_kernels_are_ptx_for_a_gpu_that_the_compiler_does_not_know(nvrtc, monkeypatch):
    older = lambda: (Status.CUDA_SUCCESS, [75, 80, 90, 120])  # noqa: E731
    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcGetSupportedArchs", older)
    code = ceilings.compiled(ceilings.KERNELS, 103)
    assert b".target sm_90\n" in code and b".entry spin(" in code and b".entry read(" in code
    with pytest.raises(RuntimeError, match="invalid value for --gpu-architecture"):
        ceilings.compiled(ceilings.KERNELS, 10)


def test_what_the_compiler_complains_of_is_one_line(nvrtc: None) -> None:
    with pytest.raises(RuntimeError) as failed:
        ceilings.compiled("__global__ void read() { nonsense; }", 90)
    line = builds.one_line(failed.value)
    assert "NVRTC_ERROR_COMPILATION" in line and '"nonsense" is undefined' in line


def test_the_numbers_that_cublas_is_called_with_are_those_of_its_headers() -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")
    if (folder := pathfinder.find_nvidia_header_directory("cublas")) is None:
        pytest.skip("no headers of cuBLAS")
    text = (Path(folder) / "cublas_api.h").read_text()
    other = (Path(folder) / "library_types.h").read_text()
    assert f"CUBLAS_OP_N = {ceilings.OP_N}," in text
    assert f"CUBLAS_COMPUTE_32F = {ceilings.COMPUTE_32F}," in text
    assert f"CUBLAS_GEMM_DEFAULT = {ceilings.GEMM_DEFAULT}," in text
    for name, dtype in (("CUDA_R_16F", "f16"), ("CUDA_R_16BF", "bf16")):
        assert f"{name}={ceilings.TYPES[dtype]}," in "".join(other.split())


def test_the_matrices_hold_normal_values_of_their_type() -> None:
    numpy = pytest.importorskip("numpy")
    half, short = ceilings._normal("f16", 1), ceilings._normal("bf16", 1)
    wide = (short.astype(numpy.uint32) << 16).view(numpy.float32)
    assert half.nbytes == short.nbytes == 2 * ceilings.VALUES
    assert abs(float(wide.mean())) < 0.01 and float(wide.std()) == pytest.approx(1, abs=0.01)
    # the same draw: half of bf16's last place is 2^-8 of a number
    assert (abs(half - wide) <= abs(wide) * 2**-7 + 1e-4).all()
