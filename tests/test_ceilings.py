"""Datasheet entries and ceilings."""

from __future__ import annotations

import pytest

from ncuflow.findings import ceilings


@pytest.mark.parametrize(
    ("device", "gpu", "dram_gbs", "tensor_tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", 2039, 312),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM", 1555, 312),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", 1935, 312),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe", 1555, 312),
        ("A100-SXM4-40GB", "A100 40GB SXM", 1555, 312),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 3350, 989.5),
        ("NVIDIA H100 PCIe", "H100 PCIe", 2000, 756.5),
        ("NVIDIA H200", "H200 SXM", 4800, 989.5),
        ("NVIDIA L40S", "L40S", 864, 362.05),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090", 1008, 165.2),
        ("NVIDIA B200", "B200 SXM", 8000, 2250),
    ],
)
def test_known_devices(device, gpu, dram_gbs, tensor_tflops):
    found = ceilings.datasheet(device)
    assert (found["gpu"], found["dram_gbs"], found["tensor_tflops"]) == (
        gpu,
        dram_gbs,
        tensor_tflops,
    )


@pytest.mark.parametrize(
    "device",
    [None, "", "NVIDIA L4", "NVIDIA L40", "GeForce RTX 2070", "NVIDIA GeForce RTX 4090 D",
     "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100X", "NVIDIA A100-SXM-64GB",
     "GRID A100D-80C", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 NVL",
     "NVIDIA H100 80GB HBM2e", "NVIDIA H200 NVL", "NVIDIA GH200 480GB",
     "NVIDIA GH200 144G HBM3e", "NVIDIA GB200", "NVIDIA GB300"],
)  # fmt: skip
def test_unknown_devices_have_no_datasheet(device):
    assert ceilings.datasheet(device) is None


def test_every_entry_has_a_source_and_positive_rates():
    for entry in ceilings.datasheets():
        assert entry["source"]
        assert entry["tensor_tflops"] > 0
        assert entry["dram_gbs"] > 0


def test_an_unknown_gpu_still_has_measured_ceilings():
    found = ceilings.machine("Unknown", {"copy_gbs": {"value": 500, "method": "copy"}})
    assert found["measured"]["dram_gbs"] == 500
    assert found["datasheet"]["dram_gbs"] is None
