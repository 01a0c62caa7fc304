"""Roles of warps: who waits for whom at an mbarrier, made up and in the recorded fa3 kernel."""

from __future__ import annotations

import json
import lzma

import pytest
from conftest import ROOT

from ncuflow.findings.waits import roles

LISTING = {
    0: "S2R R0, SR_TID.X",
    16: "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xd8",
    32: "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14], R0",
    48: "@!P0 BRA 0x7f0000000020",
    64: "HGMMA.64x128x16.F32 R24, gdesc[UR4], R24",
    80: "USETMAXREG.DEALLOC.CTAPOOL 0x48",
    96: "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR14], R0",
    112: "@P1 BRA 0x7f0000000070",
    128: "LDGSTS.E.128 [R2], [R4.64]",
}


def kernel(*samples):
    names = ("pc", "reason", "samples")
    return {"lines": [dict(zip(names, one, strict=True)) | {"opcode": None} for one in samples]}


SAMPLES = kernel(
    (0, "no_instruction", 10),
    (48, "long_scoreboard", 30), (64, "wait", 20), (64, "selected", 10),
    (112, "long_scoreboard", 6), (128, "long_scoreboard", 24),
)  # fmt: skip


def test_a_consumer_waits_for_the_tile_and_the_producer_for_a_stage():
    consumer, producer, other = roles(SAMPLES, LISTING)
    shares = {role.name: role.share for role in (consumer, producer, other)}
    assert shares == {"consumer": 0.6, "producer": 0.3, "other": 0.1}
    assert consumer.waits == (("the producer's tile", 0.5), ("wait", pytest.approx(1 / 3)))
    assert dict(producer.waits) == {
        "a stage that the consumers have read": 0.2,
        "long_scoreboard": 0.8,
    }


def test_warps_that_are_alike_have_no_roles():
    alike = {pc: text for pc, text in LISTING.items() if "USETMAXREG" not in text}
    assert roles(SAMPLES, alike) == roles(SAMPLES, {}) == []


def test_code_that_is_not_laid_out_by_role_tells_none():
    assert roles(SAMPLES, LISTING | {144: "HGMMA.64x128x16.F32 R24, gdesc[UR4], R24"}) == []


def test_a_recorded_kernel_has_roles_where_its_code_takes_registers(finished):
    """fa3's two warpgroups have one code for registers, or none: nvcc left USETMAXREG out of what was recorded."""
    found = json.loads((finished.outputs / "results/hotlines.json").read_text())["kernels"]
    (fa3,) = (k for k in found if k["kernel"] == "PrefillWithKVCacheKernel")
    folder = ROOT / "recordings/h200/0.7.2/default/prefill/deep"
    listed = json.loads(lzma.decompress((folder / "deep.listing.json.xz").read_bytes()))["kernels"]
    (code,) = (k["instructions"] for k in listed if k["function"] == fa3["kernel"])
    assert bool(fa3["roles"]) == any("USETMAXREG" in text for _, text, *_ in code)
