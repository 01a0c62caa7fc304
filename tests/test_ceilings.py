"""Datasheet entries and ceilings."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, some

from ncuflow.findings import ceilings
from ncuflow.gpu import table
from ncuflow.io import BadInput
from ncuflow.parsers import reader


def size(path: Path) -> int:
    return path.stat().st_size


RATE = {"value": 4200.0, "q25": 4100.0, "q75": 4300.0, "n": 30, "method": "copy"}
PRODUCT = RATE | {"value": 760, "q25": 750, "q75": 770}
MEASURED = {"copy_gbs": RATE, "matmul_tflops": {"f16": PRODUCT}}


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Workstation"),
        ("NVIDIA GB10", "DGX Spark"),
    ],
)
def test_a_device_is_the_product_of_its_name(device, gpu):
    assert table.product(device) == table.product(device.upper()) == gpu
    assert ceilings.datasheet(device)["dram_gbs"] > 0


@pytest.mark.parametrize(
    "device",
    [None, "", "NVIDIA L40", "GeForce RTX 2070", "NVIDIA GeForce RTX 4090 D",
     "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100X", "NVIDIA A100-SXM-64GB", "NVIDIA A10M",
     "GRID A100D-80C", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H200 MIG 1g.18gb",
     "NVIDIA B200 MIG 1g.23gb", "NVIDIA H100 80GB HBM2e", "NVIDIA H20-3e", "NVIDIA GH200",
     "NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 5090 D", "NVIDIA RTX PRO 6000", "B2"],
)  # fmt: skip
def test_unknown_devices_have_no_datasheet(device):
    assert ceilings.datasheet(device) is None


def test_every_gpu_has_a_capability_and_names_of_its_own():
    content = table.table().model_dump()
    for change, words in (
        ({"names": ("nvidia h200",)}, "a name in common"),
        ({"compute_capability": "6.1"}, "no capability 6.1"),
        ({"names": ()}, "gpus.P4.names"),
        ({"datasheet": {"tflops": {"f16": 0}, "dram_gbs": 300, "source": "x"}}, "greater than 0"),
        ({"datasheet": {"tflops": {"fp12": 9}, "dram_gbs": 300, "source": "x"}}, "fp12"),
        ({"datasheet": {"tflops": {}, "dram_gbs": 300, "source": ""}}, "source"),
        ({"sms": 58}, "Extra inputs are not permitted"),
    ):
        wrong = content["gpus"]["L40S"] | {"names": ("P4",)} | change
        with pytest.raises(ValueError, match=words):
            table.GpuTable.model_validate(content | {"gpus": content["gpus"] | {"P4": wrong}})


AGREES = 0.02  # of a published figure: they are rounded


def operations(gpu: table.Product) -> dict[str, float]:
    """Dense operations of an SM in a cycle by type, of a product."""
    of = table.table().capabilities[gpu.compute_capability]
    tensor = of.wgmma_flops or of.mma_flops
    rates = {"fp32": of.fp32_flops, "f16": tensor, "bf16": tensor, **of.ops, **gpu.chip.ops}
    return {kind: rate for kind, rate in rates.items() if rate}


def test_published_peaks_are_those_of_sms_clocks_and_buses():
    """What is read off two publications, or off a publication and a driver, agrees."""
    peaks, buses = 0, 0
    for name, gpu in table.table().gpus.items():
        sheet, chip = gpu.datasheet, gpu.chip
        if sheet.bus_bits and sheet.dram_mhz:
            of_bus = sheet.bus_bits / 8 * 2 * sheet.dram_mhz / 1e3
            assert of_bus == pytest.approx(sheet.dram_gbs, rel=AGREES), name
            buses += 1
        for kind, rate in operations(gpu).items() if chip else ():
            mhz = (chip.fp32_mhz if kind == "fp32" else None) or chip.boost_mhz
            if mhz and kind in sheet.tflops:
                of_sms = chip.sm_count * rate * mhz / 1e6
                assert of_sms == pytest.approx(sheet.tflops[kind], rel=AGREES), (name, kind)
                peaks += 1
    assert peaks > 90 and buses > 25


def test_a_type_of_half_the_bits_is_computed_no_slower_and_none_is_sparse():
    for name, gpu in some(table.table().gpus.items()):
        peaks = gpu.datasheet.tflops
        assert peaks.get("bf16") in (None, peaks.get("f16")), name
        order = [peaks[kind] for kind in ("fp32", "tf32", "f16", "fp8", "fp4") if kind in peaks]
        assert order == sorted(order), name
        if {"f16", "tf32"} <= peaks.keys():
            assert peaks["f16"] == pytest.approx(2 * peaks["tf32"], rel=AGREES), name
        if {"f16", "fp8"} <= peaks.keys():
            assert peaks["fp8"] == pytest.approx(2 * peaks["f16"], rel=AGREES), name


DEVICE = {
    "sm_count": "multiprocessor_count",
    "l2_bytes": "l2_cache_size",
    "bus_bits": "global_memory_bus_width",
    "shared_sm": "max_shared_memory_per_multiprocessor",
    "shared_block": "max_shared_memory_per_block_optin",
    "registers": "max_registers_per_multiprocessor",
    "warps": "max_warps_per_multiprocessor",
    "blocks": "max_blocks_per_multiprocessor",
}


def as_the_driver_says(report: Path) -> str:
    """The product that a report is of, after the table's facts of it were held against what the driver said there."""
    _, action = next(reader.actions(reader.load(report), 0, 1))

    def said(name: str) -> object:
        return action.metric_by_name(f"device__attribute_{name}").value()

    name = table.product(said("display_name"))
    gpu = table.table().gpus[name]
    capability = table.table().capabilities[gpu.compute_capability]
    facts = capability.model_dump() | gpu.chip.model_dump() | gpu.datasheet.model_dump()
    version = f"{said('compute_capability_major')}.{said('compute_capability_minor')}"
    assert version == gpu.compute_capability
    assert {key: facts[key] for key in DEVICE} == {key: said(DEVICE[key]) for key in DEVICE}
    assert facts["dram_mhz"] * 1000 == said("memory_clock_rate")
    assert (facts["fp32_mhz"] or facts["boost_mhz"]) * 1000 == said("clock_rate")
    return name


def test_recorded_gpus_are_as_the_table_says(tmp_path):
    found = set()
    for recording in ("h100/0.7.2/default", "h200/0.7.2/default"):
        path = min((ROOT / "recordings" / recording).rglob("sweep.ncu-rep.xz"), key=size)
        (tmp_path / "x.ncu-rep").write_bytes(lzma.decompress(path.read_bytes()))
        found.add(as_the_driver_says(tmp_path / "x.ncu-rep"))
    assert found == {"H100 SXM", "H200 SXM"}


@pytest.mark.corpus
def test_gpus_of_public_reports_are_as_the_table_says():
    reports = [*(ROOT.parent / "shared/corpus").glob("*.ncu-rep")]
    if not reports:
        pytest.skip("no public reports here")
    assert {as_the_driver_says(report) for report in reports} >= {"A10G", "GeForce RTX 3070"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"copy_gbs": None, "read_gbs": None, "matmul_tflops": None, "reason": "no GPU"}, None),
        ({"gpu": "NVIDIA H100 80GB HBM3"}, "is of NVIDIA H100 80GB HBM3, but environment.json is"),
        ({"copy_gbs": RATE | {"value": 4.2}}, "copy_gbs: q25, value and q75 are not in order"),
        ({"copy_gbs": RATE | {"value": "4200"}}, "copy_gbs.value: Input should be a valid number"),
        ({"copy_gbs": RATE | {"sustained": {"value": -1.0}}}, "copy_gbs.sustained.value: Input"),
        (
            {"read_gbs": dict.fromkeys(RATE, 4200000.0) | {"method": "x"}},
            "read_gbs 4.2e.06 cannot be: ",
        ),
        ({"copy_gbs": RATE | {"sm_mhz": 1e308}}, "copy_gbs.sm_mhz: Input should be less than"),
        ({"copy_gbs": RATE | {"sustained": RATE | {"sm_mhz": -1}}}, "copy_gbs.sustained.sm_mhz: "),
        (
            {"matmul_tflops": {"f16": RATE}},
            "matmul f16 4200 cannot be: the part is published with 989",
        ),
        ({"matmul_tflops": [RATE]}, "matmul_tflops: Input should be a valid dictionary"),
    ],
)
def test_measured_ceilings_are_of_this_gpu_and_possible(tmp_path, change, words):
    path = tmp_path / "ceilings.json"
    assert ceilings.load(tmp_path, "NVIDIA H200") is None
    path.write_text(json.dumps(MEASURED | change), encoding="utf-8")
    if words is None:
        ceilings.machine("NVIDIA H200", ceilings.load(tmp_path, "NVIDIA H200"))
        return
    with pytest.raises(BadInput, match=rf"ceilings\.json: .*{words}"):
        ceilings.load(tmp_path, "NVIDIA H200")


def test_the_highest_of_what_streamed_is_the_ceiling_and_is_named():
    found = ceilings.machine("Unknown", {"copy_gbs": {"value": 500, "method": "copy"}})
    assert (found["measured"]["dram_gbs"], found["datasheet"]["dram_gbs"]) == (500, None)
    rates = {"copy_gbs": {"value": 4276.0, "method": "a copy"}}
    rates |= {"read_gbs": {"value": 4450.0, "method": "a read", "sustained": {"value": 4467.0}}}
    found = ceilings.machine("NVIDIA H200", rates)["measured"]
    assert (found["dram_gbs"], found["source"]) == (4467.0, "a read")


def reached(gbs, passed, **more):
    """A point that is credited with 100 MB at a rate, of which some passed DRAM."""
    work = dict.fromkeys(("tflops", "flops_analytic", "flops_tensor_counted"))
    moved = {"gbs": gbs, "bytes_analytic": 1e8, "bytes_dram_counted": passed}
    return {"point": "decode/a", "dtype": "f16"} | moved | work | more


@pytest.mark.parametrize(
    ("row", "ceiling", "point"),
    [
        (reached(4600.0, 1.01e8), 4600.0, "decode/a"),
        (reached(4600.0, None), 4600.0, "decode/a"),  # nobody counted
        (reached(4600.0, 0.5e8), 4276.0, None),  # half of it stayed in L2
        (reached(4100.0, 1e8), 4276.0, None),
        (reached(9999.0, 1e8), 4276.0, None),  # cannot be: sanity says so
    ],
)
def test_what_exceeds_a_ceiling_shows_that_it_is_none(row, ceiling, point):
    machine = ceilings.machine("NVIDIA H200", {"copy_gbs": {"value": 4276.0, "method": "a copy"}})
    found = ceilings.raised(machine, [row])["measured"]
    assert (found["dram_gbs"], found["points"].get("dram_gbs")) == (ceiling, point)
    assert (found["source"] == "a copy") == (point is None)
    assert machine["measured"]["dram_gbs"] == 4276.0


def test_a_tensor_rate_raises_the_ceiling_of_its_own_type():
    products = {"f16": {"value": 761.0}, "bf16": {"value": 796.0}}
    machine = ceilings.machine("NVIDIA H200", {"matmul_tflops": products})
    work = {"tflops": 770.0, "flops_analytic": 1e12, "flops_tensor_counted": 1.1e12}
    found = ceilings.raised(machine, [reached(None, None, **work)])["measured"]
    assert found["tensor_tflops"] == {"f16": 770.0, "bf16": 796.0}


def test_no_recorded_point_is_above_its_ceiling(finished):
    made = (finished.outputs / "results").glob("*_results.json")
    found = [json.loads(path.read_text()) for path in made]
    rows = [point["measurement"] for results in found for point in results["points"]]
    shares = [row[f"{rate}_fraction_measured"] for row in rows for rate in ("gbs", "tflops")]
    known = [share for share in shares if share is not None]
    assert len(known) > 200 and max(known) <= 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "not a table of GPUs"),
        (lambda text: text.rpartition("    datasheet")[0], "not a table of GPUs"),
        (lambda text: text.replace("sm_count: 132", "sm_count: 0"), "sm_count: Input should be gr"),
        (lambda text: text.replace("https://", "file://"), "url: .*: String should match"),
        (lambda text: text.replace("dram_gbs: 4800", "dram_gbs: .inf"), "dram_gbs: Input should"),
        (lambda text: text.replace("dram_gbs: 4800", "dram_gbs: many"), "dram_gbs: Input should"),
        (lambda text: text.replace("  ", "\t"), "not YAML"),
        (lambda text: text + "x: \udcff", "not YAML"),
    ],
)
def test_a_damaged_table_of_gpus_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], said: str
) -> None:
    damaged = tmp_path / "gpus.yaml"
    damaged.write_text(change(table.TABLE.read_text()), errors="surrogateescape")
    monkeypatch.setattr(table, "TABLE", damaged)
    with pytest.raises(BadInput, match=said) as raised:
        table.table.__wrapped__()
    assert str(raised.value).startswith(str(damaged)) and "\n" not in str(raised.value)
