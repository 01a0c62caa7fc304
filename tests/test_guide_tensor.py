"""Why fa2 stays below fa3: what its instruction can do in a clock, and how long SMs hold no block."""

import pytest
from conftest import Recorded

from ncuflow.pages.markdown.guide_kernels import instructions, tails


def test_an_instruction_has_the_peak_that_counters_have(recorded: Recorded) -> None:
    slow, fast = instructions(recorded("h200/0.7.2/default", "prefill"))
    assert (slow["name"], round(slow["peak"])) == ("HMMA", 2731)
    assert (fast["name"], round(fast["peak"])) == ("HGMMA", 4096)
    assert fast["kernels"] == ["PrefillWithKVCacheKernel"] and fast["points"] == 17
    assert slow["peak"] / fast["peak"] == pytest.approx(2 / 3, abs=0.001)
    assert fast["at"].endswith("ragged_S8192_B1_H32_K8_D128_f16_auto_c")
    assert [row["name"] for row in instructions(recorded("h200/0.7.2/kernels", "prefill"))] == [None] * 3  # fmt: skip


def test_the_tail_under_a_causal_mask_is_that_of_attention_alone(recorded: Recorded) -> None:
    points = recorded("h200/0.7.2/default", "prefill")["points"]
    fa2, fa3 = tails(points, "seq_len")
    assert (fa2["label"], fa3["label"]) == ("fa2", "fa3")
    assert [(n, round(share)) for n, share in fa2["values"]] == [(2048, 32), (4096, 21), (8192, 12)]
    assert [n for n, _ in fa3["values"]] == [512 * 2**n for n in range(6)]  # which `auto` chose
    assert [round(share) for _, share in fa3["values"]] == [33, 33, 20, 13, 7, 2]
    whole = [{**p, "params": p["params"] | {"causal": False}} for p in points]
    assert tails(whole, "seq_len") == []
    assert tails([p for p in points if p["params"]["backend"] == "fa2"], "seq_len") == []


def test_the_page_says_why_fa2_cannot_reach_fa3(finished) -> None:
    section = (finished.outputs / "reports/prefill.md").read_text().split("## fa2 against fa3")[1]
    assert "| HMMA | 2 731 | 14 | 359 TFLOPS, " in section
    assert "fa2 does at most 67 % of fa3's FLOP in a clock" in section
    assert "in fa2 for 32 % of the time at 2 048 tokens, 21 % at 4 096, 12 % at 8 192; " in section
    assert "in fa3 for 33 % of the time at 512 tokens, 33 % at 1 024, " in section
    assert "in auto" not in section.split("## ")[0]
