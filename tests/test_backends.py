"""Backends: which GPUs FlashInfer has them for, and what of a sweep a GPU takes that is not here."""

import json
import socket
import sys

import pytest
from flashinfer_source import flashinfer_package

from ncuflow.cli import dispatch
from ncuflow.flow import evidence
from ncuflow.flow.settings import validated as settings_of
from ncuflow.gpu.table import capability_of
from ncuflow.io import read_yaml, resource
from ncuflow.race import sides
from ncuflow.sweep import points as sweep
from ncuflow.target import source
from ncuflow.target.contract import known, load
from ncuflow.target.source import Backend, Declaration

BLACKWELL = "10.x, this GPU has "
SOURCE = """
@supported_compute_capability([89, 103])
def listed(a): ...

def generated():
    return flags(supported_major_versions=[10, 11], map=True) or sm90a_nvcc_flags

def is_it(device):
    major, _ = get_compute_capability(device)
    return major == 9 and newer()

def chosen(query):
    return "a" if get_compute_capability(query.device)[0] == 10 else "b"

def silent(query):
    return query.major == 7
"""


@pytest.fixture
def without(monkeypatch):
    """As on a machine without torch and FlashInfer."""
    monkeypatch.setattr(source, "installed", lambda: None)
    monkeypatch.setattr(source, "downloads", lambda: False)
    for module in ("torch", "flashinfer"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.fixture
def settings():
    config = read_yaml(resource("config") / "config.yaml")
    return settings_of(config | {"machine": "pretended", "source": "live"})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("listed", ("8.9", "10.3")),
        ("generated", ("10.x", "11.x", "9.0")),
        ("is_it", ("9.0",)),
        ("chosen", ("10.x",)),
        ("silent", ()),
        ("absent", ()),
    ],
)
def test_what_a_function_declares_is_read_without_importing_it(tmp_path, function, told):
    (tmp_path / "a.py").write_text(SOURCE)
    found = source.declared(tmp_path, Declaration(function, "a.py"))
    assert sorted(found) == sorted(told)
    assert source.declared(tmp_path, Declaration(function, "no/such.py")) == ()


def test_the_installed_flashinfer_is_asked_and_else_what_0_7_2_says(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(SOURCE)
    monkeypatch.setattr(source, "installed", lambda: tmp_path)
    newer = Backend("x", ("9.0",), Declaration("chosen", "a.py"))
    assert newer.refusal({"compute_capability": "10.3"}) is None
    refusal = newer.refusal({"compute_capability": "9.0"})
    assert refusal.startswith("x needs compute capability 10.x,")
    other = Backend("x", ("9.0", "12.1"), Declaration("absent", "a.py"))
    assert other.refusal({"compute_capability": "12.1"}) is None
    assert "9.0 or 12.1, this GPU has 12.0" in other.refusal({"compute_capability": "12.0"})
    assert Backend("library").refusal({"compute_capability": "7.5"}) is None


def test_the_targets_say_what_flashinfer_declares():
    package = flashinfer_package()
    declared = {
        (target.name, one.name): (one.capabilities, source.declared(package, one.declared))
        for target in known().values()
        for one in target.backends
        if one.declared
    }
    assert {("prefill", "fa3"), ("decode", "trtllm-gen"), ("gemm", "tgv")} <= declared.keys()
    assert [key for key, (ours, its) in declared.items() if ours != its] == []


@pytest.mark.parametrize(
    ("gpu", "has", "lacks"),
    [
        ("B200", {"fa2", "trtllm-gen", "cutlass", "auto"}, set()),
        ("12.0", {"fa2", "auto"}, {"trtllm-gen needs compute capability " + BLACKWELL + "12.0",
                                   "cutlass needs compute capability 10.x or 11.x, this GPU has 12.0"}),
        ("8.6", {"fa2", "auto"}, {"trtllm-gen needs compute capability " + BLACKWELL + "8.6",
                                  "cutlass needs compute capability 10.x or 11.x, this GPU has 8.6"}),
        ("h100", {"fa2", "auto"}, {"trtllm-gen needs compute capability " + BLACKWELL + "9.0",
                                   "cutlass needs compute capability 10.x or 11.x, this GPU has 9.0"}),
    ],
)  # fmt: skip
def test_the_default_sweep_is_planned_for_a_gpu_that_is_not_here(without, capsys, gpu, has, lacks):
    assert dispatch(["targets", "--gpu", gpu, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["targets"]
    said = {row["name"]: (row["status"], row["what"]) for row in rows}
    blocks = read_yaml(resource("config") / "config.yaml")["sweeps"]["default"]
    points = [p for name in blocks for p in sweep.points(load(name), blocks[name])]
    told = {name for name, (status, _) in said.items() if status in ("planned", "left out")}
    assert {p.id for p in points} == told
    kept = [p for p in points if said[p.id][0] == "planned"]
    assert {p.params["backend"] for p in kept if "backend" in p.params} == has
    assert {said[p.id][1] for p in points if p not in kept} == lacks
    # what is no attention runs anywhere
    assert all(p in kept for p in points if "backend" not in p.params)


def test_what_is_downloaded_is_named_before_the_run(without, capsys, monkeypatch, tmp_path):
    def row():
        assert dispatch(["targets", "--gpu", "10.0", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["targets"]
        return next(row["what"] for row in rows if row["name"] == "prefill: trtllm-gen")

    assert "`flashinfer download-cubin`" in row()
    monkeypatch.undo()
    monkeypatch.setenv(source.CUBINS, str(tmp_path))
    assert "`flashinfer download-cubin`" in row()
    (tmp_path / "fmha").mkdir()
    (tmp_path / "fmha/a.cubin").touch()
    assert row() == "Prefill attention"


def test_kernels_that_cannot_be_downloaded_are_skipped_at_once(without, monkeypatch):
    """With no connection a choice is not tried, and what FlashInfer misses all the same fails at once."""
    target, facts = load("prefill"), {"compute_capability": "10.0", "memory_bytes": 1 << 40}
    points = sweep.points(target, [{"backend": ["fa2", "trtllm-gen", "cudnn"]}])
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        there = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        for place in (there, "/srv/cubins"):
            monkeypatch.setenv(source.REPOSITORY, place)
            assert source.offline() == {}
            assert [sweep.unable(target, point, facts) for point in points] == [None] * 3
    monkeypatch.setenv(source.REPOSITORY, there + "y")  # nobody answers there any more
    assert source.offline() == {"FLASHINFER_NO_DOWNLOAD": "1"}
    assert sides.program("prefill")[1]["FLASHINFER_NO_DOWNLOAD"] == "1"
    fa2, *others = [sweep.unable(target, point, facts) for point in points]
    assert fa2 is None and all("nothing can be downloaded here" in why for why in others)
    monkeypatch.setattr(
        source, "find_spec", lambda name: name
    )  # cuDNN's own package has its kernels
    assert [sweep.unable(target, point, facts) is None for point in points] == [True, False, True]


def test_where_flashinfer_downloads_from_is_read_of_it(monkeypatch, tmp_path):
    (tmp_path / "jit").mkdir()
    monkeypatch.delenv(source.REPOSITORY, raising=False)
    monkeypatch.setattr(source, "installed", lambda: tmp_path)
    assert source.reachable()  # an older one, which does not say
    asked = '"FLASHINFER_CUBINS_REPOSITORY",\n    "http://127.0.0.1:1/",\n'
    loader = f"X = os.environ.get(\n    {asked})\n"
    (tmp_path / "jit/cubin_loader.py").write_text(loader)
    assert not source.reachable()


@pytest.mark.parametrize(
    ("said", "capability"),
    [
        ("NVIDIA B200", "10.0"),
        ("rtx 5090", "12.0"),
        ("A10G", "8.6"),
    ],
)
def test_a_gpu_is_known_by_words_of_its_name(said, capability):
    assert capability_of(said) == capability


@pytest.mark.parametrize("gpus", [["10.0"], ["9.0"], [], ["8.9", "9.0"]])
def test_a_live_run_plans_what_its_gpu_can_run(without, monkeypatch, settings, gpus):
    monkeypatch.setattr(evidence, "capabilities", lambda: gpus)
    lines = evidence.left_out(settings)
    points = [point for members in evidence.live(settings).plans.values() for point in members]
    planned = {p["params"]["backend"] for p in points if p["target"] == "prefill"}
    left_out = [line for line in lines if "left out" in line]
    if gpus == ["9.0"]:
        assert planned == {"auto", "fa2"}
        why = f"points left out: trtllm-gen needs compute capability {BLACKWELL}9.0"
        assert [line for line in left_out if line.startswith("prefill: ") and line.endswith(why)]
    else:  # where it is not known which GPU measures, each point says it when it is launched
        assert planned == {"auto", "fa2", "trtllm-gen", "cutlass"}
        assert not left_out
    assert any("download-cubin" in line for line in lines) == (gpus != ["9.0"])


@pytest.mark.parametrize(
    ("gpu", "reasons"),
    [
        ("5090", {"trtllm-gen needs compute capability " + BLACKWELL + "12.0",
                      "cutlass needs compute capability 10.x or 11.x, this GPU has 12.0"}),
        ("A10G", {"trtllm-gen needs compute capability " + BLACKWELL + "8.6",
                      "cutlass needs compute capability 10.x or 11.x, this GPU has 8.6"}),
    ],
)  # fmt: skip
def test_a_run_is_planned_for_a_gpu_that_is_not_here(
    without, monkeypatch, settings, capsys, gpu, reasons
):
    """Jobs of a dry run are of the points that `ncuflow targets --gpu` says are planned, and its notes have the reasons."""
    monkeypatch.setattr(evidence, "capabilities", list)
    monkeypatch.setattr(evidence, "names", list)
    pretended = settings.model_copy(update={"machine": None, "plan_for": gpu})
    found = evidence.resolve(pretended)
    assert (found.folder, found.recording) == (gpu.lower(), None)
    assert dispatch(["targets", "--gpu", gpu, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["targets"]
    batches = {name: own for one in found.targets.values() for name, own in one.items()}
    planned = {point for name, own in batches.items() if name.startswith("b") for point in own}
    assert planned == {row["name"] for row in rows if row["status"] == "planned"}
    first, *lines = evidence.left_out(pretended)
    whole = [row["name"] for row in rows if row["name"].startswith("prefill/")]
    kept = [name for name in whole if name in planned]
    assert f"prefill {len(kept)} of {len(whole)}, " in first and 0 < len(kept) < len(whole)
    assert f"ncuflow targets --gpu {gpu} " in first
    assert {line.split(" left out: ")[1] for line in lines if " left out: " in line} == reasons


def test_a_gpu_that_is_here_goes_before_one_that_is_named(without, monkeypatch, settings):
    monkeypatch.setattr(evidence, "capabilities", lambda: ["9.0"])
    named = settings.model_copy(update={"plan_for": "A10G"})
    lines = evidence.left_out(named)
    assert any("left out: trtllm-gen" in line and line.endswith("9.0") for line in lines)
    assert not [line for line in lines if "A10G" in line]


def test_an_unknown_gpu_to_plan_for_is_named(without, monkeypatch, settings):
    monkeypatch.setattr(evidence, "capabilities", list)
    with pytest.raises(ValueError, match="plan_for: no GPU 'B2'; there are "):
        evidence.left_out(settings.model_copy(update={"plan_for": "B2"}))


def test_points_of_more_gpus_than_are_here_are_left_out_and_the_others_have_batches_of_their_own(
    without, monkeypatch, settings
):
    monkeypatch.setattr(evidence, "capabilities", lambda: ["9.0"])
    monkeypatch.setattr(evidence, "names", lambda: ["NVIDIA H100"] * 2)
    blocks = [{"ranks": [2, 4], "tokens": [16, 128], "variant": ["oneshot", "twoshot"]}]
    asked = {"sweep": "ranks", "sweeps": {"ranks": {"allreduce": blocks}}, "targets": ["allreduce"]}
    two = settings.model_copy(update=asked)
    assert evidence.left_out(two) == [
        "allreduce: 4 points left out: needs 4 GPUs of one host, here are 2"
    ]
    [(_, batch)] = evidence.live(two).plans
    assert evidence.live(two)._names("allreduce", batch) == [
        "points.json",
        "timing.jsonl",
        "pairs.json",
        "pairs.jsonl",
    ]
    monkeypatch.setattr(evidence, "names", lambda: ["NVIDIA H100"] * 4)
    plans = evidence.live(two).plans.values()
    assert [{p["params"]["ranks"] for p in points} for points in plans] == [{2}, {4}]


def test_a_sweep_of_which_the_gpu_can_run_nothing_says_why(without, monkeypatch, settings):
    monkeypatch.setattr(evidence, "capabilities", lambda: ["8.0"])
    sweep = {"sweeps": {"default": {"prefill": [{"backend": ["fa3"]}]}}, "deep": {}}
    only = settings.model_copy(update=sweep)
    with pytest.raises(ValueError, match=r"no points of .*prefill: 1 point left out: fa3 needs"):
        evidence.live(only)
