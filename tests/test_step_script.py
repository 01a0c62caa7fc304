"""A kernel of a step as a file that stands alone, and says whether it launched the grid and block of the trace."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, some
from engine_trace import MadeTrace, decode_step
from test_script import imported

from ncuflow.cli import dispatch
from ncuflow.export import script
from ncuflow.io import CommandError
from ncuflow.step import trace as steps

TRACE = ROOT / "tests/data/engine/trace.json.xz"
MODEL = ["page_size=16", "hidden=4096", "intermediate=14336", "vocab=128256", "qo_heads=32"]


@pytest.fixture(scope="module")
def kernels() -> Iterator[list[Any]]:
    """Those of the recorded trace, which is read once."""
    read, found = steps.step, steps.step(TRACE, known=MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "step", lambda at, **how: found if at == TRACE else read(at, **how))
        yield [one for group in found.groups for one in group.kernels]


def test_every_kernel_of_known_shape_becomes_a_file_with_its_grid(kernels):
    known = [one for one in kernels if one.shape and one.shape.candidates]
    assert len(known) >= 20
    for one in some(known):
        text = script.of_step(TRACE, one.number, MODEL)
        assert imported(text) - sys.stdlib_module_names <= {"torch", "flashinfer"}, one.name
        seen = next(
            ast.literal_eval(node.value) for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SEEN"
        )  # fmt: skip
        assert (seen["grid"], seen["block"]) == ([*one.grid], [*one.block])
        assert seen["kernel"] in one.demangled and f"kernel {one.number} of" in seen["trace"]


def test_numbers_are_those_of_the_answer(kernels):
    assert [one.number for one in kernels] == [*range(1, len(kernels) + 1)]
    norm = next(one for one in kernels if one.name == "FusedAddRMSNormKernel")
    text = script.of_step(TRACE, norm.number, MODEL)
    assert '"rows": 2048' in text and '"variant": "fused_add_rmsnorm"' in text
    product = next(one for one in kernels if one.family == "GEMM")
    assert '"transposed": False' in script.of_step(TRACE, product.number, MODEL)  # …_NNT


def fake_torch(events: list[dict[str, Any]]) -> Any:
    """torch.profiler, which sees these kernels."""
    text = json.dumps({"traceEvents": events}).encode()
    seen = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_bytes(text))
    activity, profile = SimpleNamespace(CUDA=1), lambda activities: nullcontext(seen)
    cuda = SimpleNamespace(synchronize=lambda: None, get_device_name=lambda: "GPU X")
    profiler = SimpleNamespace(profile=profile, ProfilerActivity=activity)
    return SimpleNamespace(cuda=cuda, profiler=profiler)


def checked(kernels: list[Any], events: list[dict[str, Any]]) -> None:
    """The check of a norm's file, where torch's profiler sees these events."""
    norm = next(one for one in kernels if one.name == "FusedAddRMSNormKernel")
    text = script.of_step(TRACE, norm.number, MODEL)
    nodes = [n for n in ast.parse(text).body if isinstance(n, (ast.Assign, ast.FunctionDef))]
    mine = [n for n in nodes if ast.unparse(n).startswith(("SEEN", "def check"))]
    space = {"json": json, "sys": sys, "tempfile": __import__("tempfile"), "Path": Path}
    space["torch"] = fake_torch(events)
    body = "from __future__ import annotations\n" + "\n".join(map(ast.unparse, mine))
    exec(compile(body, "point.py", "exec"), space)
    space["check"](SimpleNamespace(run=lambda: None))


def kernel(grid: list[int], name: str = "void flashinfer::norm::FusedAddRMSNormKernel<8u>") -> dict[str, Any]:  # fmt: skip
    return {"cat": "kernel", "name": name, "args": {"grid": grid, "block": [32, 16, 1]}}


def test_a_file_says_whether_it_launched_what_the_trace_has(kernels, capsys):
    checked(kernels, [kernel([1, 1, 1], "other"), kernel([2048, 1, 1])])
    assert "same grid and block as kernel" in capsys.readouterr().out
    checked(kernels, [])
    assert "not checked" in capsys.readouterr().out
    for other in (kernel([2047, 1, 1]), kernel([2048, 1, 1], "other")):
        with pytest.raises(SystemExit) as ended:
            checked(kernels, [other])
        assert "not what kernel" in str(ended.value) and "here, on GPU X: " in str(ended.value)


def test_what_has_no_shape_is_refused_in_one_line(kernels, tmp_path, capsys):
    refused = next(one for one in kernels if one.name == "BatchPrefillWithPagedKVCacheKernel")
    with pytest.raises(CommandError, match="shape is not known: queries and cache"):
        script.of_step(TRACE, refused.number, MODEL)
    copied = next(one for one in kernels if one.family == "copy" and one.grid is None)
    with pytest.raises(CommandError, match="no kernel with a grid"):
        script.of_step(TRACE, copied.number, MODEL)
    out = tmp_path / "point.py"
    for of in ([str(TRACE), "--kernel", "4000"], [str(TRACE)], ["decode", "--known", "a=1"],
               [str(TRACE), "--kernel", "1", "--blocks", "[]"]):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            dispatch(["export", "script", *of, "--out", str(out)])
        assert ended.value.code == 2 and not out.exists()
        assert "kernel" in capsys.readouterr().err


def test_a_kernel_of_others_whose_shape_is_known_is_refused(tmp_path):
    trace, name = MadeTrace(), "void vllm::rms_norm_kernel<c10::Half>(x)"
    dims, types = [[32, 4096], [32, 4096], [4096]], ["c10::Half"] * 3
    for _ in range(3):
        trace.kernel(name, 4, (32, 1, 1), (256, 1, 1), dims=dims, op="_C::rms_norm", types=types)
        decode_step(trace)
    path = trace.write(tmp_path / "trace.json")
    found = steps.step(path)
    one = next(k for g in found.groups for k in g.kernels if k.owner == "vLLM")
    assert one.roof is not None
    with pytest.raises(CommandError, match="a kernel of vLLM, which no target launches"):
        script.of_step(path, one.number)


@pytest.mark.gpu
@pytest.mark.parametrize("grid", [None, [3, 1, 1]])
@pytest.mark.parametrize(
    "name", ["FusedAddRMSNormKernel", "act_and_mul_kernel", "TopPSamplingFromProbKernel"]
)
def test_a_file_launches_what_it_names(kernels, name, grid, tmp_path):
    """FlashInfer's launch these grids on any GPU. A file of another grid says that this is not what the trace has."""
    one = next(one for one in kernels if one.name == name)
    text, file = script.of_step(TRACE, one.number, MODEL), tmp_path / "kernel.py"
    said = f'"grid": {[*one.grid]}'
    assert said in text
    file.write_text(text.replace(said, f'"grid": {grid or [*one.grid]}'))
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=600, check=False
    )
    wanted = "not what kernel" if grid else "same grid and block as kernel"
    assert (done.returncode == 0, wanted in done.stdout + done.stderr) == (grid is None, True)
