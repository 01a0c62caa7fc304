"""FlashInfer's launch rules and CUDA's occupancy rules, held against every launch that was recorded."""

from __future__ import annotations

from math import prod

import pytest
from conftest import ROOT, some
from static_data import H200, launched

from ncuflow.findings.ceilings import datasheet
from ncuflow.gpu.table import device
from ncuflow.parsers import ncu
from ncuflow.static.results import stored
from ncuflow.target.contract import load
from ncuflow.target.launch import Host

GPU = device("NVIDIA H200")


def launches(target, params, rules):
    """FlashInfer's: a launch of PyTorch's kernels is None."""
    return [one for one in load(target).rules.launches(params, rules) if one]


def host(recording, gpu=GPU):
    registers = {k.kernel: k.registers for point in launched(recording) for k in point}
    if H200[recording] == (0, 7):  # kernels that the rules of rope ask for and do not launch
        compiled = stored("9.0").of_type("f16")
        registers = {name: kernel["registers"] for name, kernel in compiled.items()} | registers
    return Host(gpu, H200[recording], registers.__getitem__)


@pytest.mark.parametrize("recording", H200)
def test_every_recorded_launch_is_what_the_rules_say(recording):
    seen, rules = 0, host(recording)
    for point in launched(recording):
        said = launches(point[0].target, point[0].params, rules)
        for k, s in zip(point, said, strict=True):
            name = k.kernel.split("<")[0] if "::PrefillWithKV" in k.kernel else k.kernel
            assert (s.kernel, s.grid, s.block, s.shared) == (name, k.grid, k.block, k.shared[1]), (
                k.point
            )
        seen += len(said)
    assert seen > 140


@pytest.mark.parametrize("recording", H200)
def test_blocks_of_an_sm_by_each_resource_are_what_ncu_reports(recording):
    for kernel in some(k for point in launched(recording) for k in point):
        threads, shared = prod(kernel.block), sum(kernel.shared)
        carved = GPU.model_copy(update={"shared_sm": kernel.carved})
        assert carved.fits(threads, kernel.registers, shared) == kernel.fits, kernel
        assert GPU.resident(threads, kernel.registers, shared) == min(kernel.fits.values())


def said(target, gpu="NVIDIA A100-SXM4-80GB", registers=64, **params):
    rules = Host(device(gpu), (0, 7), lambda name: registers)
    return launches(target, {**load(target).parameters, **params}, rules)


def test_an_a100_splits_for_its_own_sms():
    (one,) = said("decode", batch=32)
    assert one.grid == (32, 32, 1)
    split, merge = said("decode", batch=1)
    # four blocks fit into 164 KB: 432 on the GPU, 13 chunks of a sequence are the most
    assert split.grid == (13, 32, 1)
    assert split.note == "KV cache in 13 chunks of 160 tokens"
    assert merge.grid == (108, 1, 1)
    whole, _ = said("decode", batch=1, kv_len=64, launch="graph")
    assert whole.note.startswith("KV cache in 1 chunk of ")


def test_fa2_keeps_two_blocks_on_an_sm():
    def tile(gpu):
        (launch,) = said("prefill", gpu, seq_len=4096, backend="fa2")
        return launch.kernel.split("MaskMode)1, ")[1].split(", 8, 8")[0], launch.shared

    assert tile("NVIDIA H200") == tile("NVIDIA A100-SXM4-80GB") == ("128, 2, 4", 65536)
    assert tile("NVIDIA L40S") == ("128, 2, 2", 49152)  # 100 KB leave a shorter KV tile


def test_a_kernel_that_was_not_compiled_is_named():
    def none(name):
        raise KeyError(name)

    with pytest.raises(KeyError, match="BatchDecodeWithPagedKVCacheKernel"):
        launches("decode", load("decode").parameters, Host(GPU, (0, 7), none))


@pytest.mark.parametrize("changes", [{"kv": "fp8"}, {"kv": "nvfp4"}, {"window": 1024}])
def test_what_the_rules_do_not_know_is_refused(changes):
    with pytest.raises(KeyError, match="no rule for a KV cache of 8 or 4 bits, or for a window"):
        said("decode", **changes)


def test_registers_and_shared_memory_of_compiled_kernels_are_what_ncu_reports():
    facts = stored("9.0")
    seen, lacking = 0, set()
    for kernel in (k for point in launched("h200/0.7.2/default") for k in point):
        static = facts.of_type(kernel.params["dtype"]).get(kernel.kernel)
        if static is None:
            lacking.add((kernel.target, kernel.kernel))
            continue
        assert static["registers"] == kernel.registers, kernel
        assert static["shared_bytes"] == kernel.shared[0], kernel
        seen += 1
    assert (seen, lacking) == (163, set())


@pytest.mark.corpus
@pytest.mark.parametrize(
    "report", ["silu_a100_sxm4_40gb_full", "cutlass_a100_80gb_pcie_sources_nvtx"]
)
def test_an_a100_holds_the_blocks_that_ncu_reported_on_one(report):
    found = ncu.read(ROOT.parent / f"shared/corpus/{report}.ncu-rep", with_lines=False)
    values: dict[int, dict[str, float]] = {}
    for metric in found.metrics:
        values.setdefault(metric["kernel"], {})[metric["key"]] = metric["value"]
    for kernel in some(found.kernels):
        measured, gpu = values[kernel["kernel"]], device(kernel["device"])
        shared = kernel["smem_static_bytes"] + kernel["smem_dynamic_bytes"]
        fits = gpu.fits(kernel["block_size"], kernel["registers"], shared)
        for name, key in (
            ("registers", "registers"),
            ("warps", "warps"),
            ("block slots", "blocks"),
        ):
            assert fits[name] == measured[f"occupancy_limit_{key}"]
        resident = min(fits.values())
        assert measured["sm_count"] == gpu.sm_count
        waves = kernel["grid_size"] / (resident * gpu.sm_count)
        assert measured["waves"] == pytest.approx(waves)
        peak = measured["dram_bytes_peak_per_cycle"] * measured["dram_cycles_per_second"] / 1e9
        assert peak == pytest.approx(datasheet(gpu.gpu)["dram_gbs"], rel=0.01)
