"""Datasheet entries and ceilings."""

from __future__ import annotations

import pytest

from analysis import ceilings


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA B200", "B200 SXM"),
    ],
)
def test_known_devices(device, gpu):
    assert ceilings.datasheet(device)["gpu"] == gpu


@pytest.mark.parametrize("device", [None, "", "NVIDIA L4", "NVIDIA H100 NVL", "GeForce RTX 2070"])
def test_unknown_devices_have_no_datasheet(device):
    assert ceilings.datasheet(device) is None


def test_every_entry_has_a_source_and_positive_rates():
    for entry in ceilings.datasheets():
        assert entry["source"]
        assert entry["tensor_tflops"] > 0
        assert entry["dram_gbs"] > 0


def test_an_unknown_gpu_still_has_measured_ceilings():
    machine = ceilings.machine("Unknown", {"copy_gbs": {"value": 500, "method": "copy"}})
    found = ceilings.of_point(machine, {}, "f16")
    assert found["ceiling_dram_gbs_measured"] == 500
    assert found["ceiling_dram_gbs_datasheet"] is None
    assert found["ceiling_dram_gbs_counter"] is None
