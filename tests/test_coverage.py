"""FlashInfer's own list of its calls, held against the targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flashinfer_source import flashinfer_package, write

from ncuflow.cli import dispatch
from ncuflow.experiments import choices
from ncuflow.run import listing
from ncuflow.sweep import points
from ncuflow.target.contract import load
from ncuflow.target.source import rival
from ncuflow.targets import apis
from ncuflow.targets.api_cases import CASES

FILES = {
    "norm/__init__.py": "@flashinfer_api\ndef rmsnorm(): ...\n@flashinfer_api(trace=half)\ndef newest_norm(): ...\n"
    "@flashinfer_api(trace=tried)\ndef other_norm(): ...\ndef own(): ...\n",
    "fused_moe/core.py": "@flashinfer_api\ndef cutlass_fused_moe(): ...\n@flashinfer_api\ndef other_moe(): ...\n",
    "decode.py": "class BatchDecodeWithPagedKVCacheWrapper:\n    @flashinfer_api\n    def plan(self): ...\n"
    "    @flashinfer_api\n    def run(self): ...\nclass Own:\n    def run(self): ...\n",
    "comm/ar.py": "@flashinfer_api\ndef allreduce(): ...\n",
    "jit/core.py": "@flashinfer_api\ndef inner(): ...\n",
    "quantization/packbits.py": "@flashinfer_api\ndef packbits(): ...\n",
    "trace/templates/norm.py": "half = TraceTemplate(init=a)\ntried = TraceTemplate(init=a, reference=b)\n",
    "trap.py": "raise RuntimeError('imported')\n@flashinfer_api\ndef trap(): ...\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    return tmp_path


def test_a_call_is_listed_once_by_areas_and_those_without_a_target_first(package: Path) -> None:
    found = [(one.name, one.area, one.target, one.called) for one in listing.offered(package)]
    assert found == [
        ("fused_moe.core.other_moe", "MoE", "", False),
        ("fused_moe.core.cutlass_fused_moe", "MoE", "moe", True),
        ("decode.BatchDecodeWithPagedKVCacheWrapper", "attention", "decode", True),
        ("comm.ar.allreduce", "communication", "", False),
        ("norm.newest_norm", "other", "", False),
        ("trap.trap", "other", "", False),
        ("norm.rmsnorm", "other", "rmsnorm", True),
        ("norm.other_norm", "other", "apis", False),
        ("quantization.packbits.packbits", "other", "apis", False),
    ]


def test_the_command_counts_targets_by_area(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "installed", lambda: package)
    assert dispatch(["targets", "--coverage"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        said[-1]
        == "with a target: MoE 1 of 2; attention 1 of 1; communication 0 of 1; other 3 of 5"
    )
    assert said[0].split() == ["fused_moe.core.other_moe", "no", "target", "MoE"]


def test_coverage_is_of_the_source_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        dispatch(["targets", "--coverage", "--gpu", "B200"])
    assert "it takes neither --gpu nor --results" in capsys.readouterr().err


def test_what_targets_say_that_they_measure_flashinfer_has() -> None:
    found = {one.target for one in listing.offered(flashinfer_package())}
    assert {"decode", "gemm", "mla_decode", "moe", "prefill", "rmsnorm", "sampling"} <= found


def test_a_case_is_of_a_call_that_flashinfer_has_and_so_are_its_modules() -> None:
    package = flashinfer_package()
    offered = {one.name for one in listing.offered(package)}
    assert {case.api for case in CASES.values()} <= offered
    assert len({case.api for case in CASES.values()}) == len(CASES) > 30
    for place in {build[0] for case in CASES.values() for build in case.builds}:
        module, _, name = place.rpartition(".")
        source = (package / "jit" / f"{module.replace('.', '/')}.py").read_text()
        assert f"\ndef {name}(" in source, place


def test_a_case_of_another_flashinfer_is_no_api_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(apis.NAMES, raising=False)
    monkeypatch.setitem(sys.modules, "flashinfer", None)  # an import of it fails
    [point] = points.points(load("apis"), [{"api": "packbits"}])
    every = points.points(load("apis"), [{"api": "every"}])
    assert point in every and len(every) == len(CASES)
    monkeypatch.setenv(apis.NAMES, "one,two")
    assert [one.params["api"] for one in points.points(load("apis"), [{"api": "every"}])] == [
        "one",
        "two",
    ]
    with pytest.raises(ValueError, match="cannot be 'every'"):
        points.points(load("decode"), [{"dtype": "every"}])


def test_what_a_user_would_call_instead_is_no_choice_of_flashinfers() -> None:
    target = load("gemm")
    shape = points.points(target, [{"m": 16}])[0]
    chosen = {point.params["backend"] for point in choices.choices(target, shape)}
    assert {"cudnn", "cublaslt"} <= chosen and "torch" not in chosen
    assert rival(target.backends, {"backend": "torch"})["rival"].startswith("torch ")
    assert not rival(target.backends, shape.params)
