"""What a trial says of why, from records of trials that were made on a GPU."""

import re
from pathlib import Path

import pytest
import trial_data
from conftest import ROOT

from ncuflow.experiments.record import KernelTrial, read
from ncuflow.experiments.text import coverage, reasons, trial_text, widths

RECORDS = sorted((ROOT / "examples/changes").glob("*/trial*.json.xz"))


def kernel(**opcodes: int) -> KernelTrial:
    named = {name.replace("_", "."): n for name, n in opcodes.items()}
    return KernelTrial(name="Toy", base=None, change=None, opcodes=named)


def test_loads_that_became_narrower_say_their_width() -> None:
    (trial,) = read(ROOT / "examples/changes/append-scalar/trial.json.xz")
    found = {widths(one) for module in trial.modules for one in module.kernels} - {""}
    assert any(re.match(r"loads of \S+ → 8 bits", text) for text in found), found


def test_widths_are_those_of_what_went_and_of_what_came() -> None:
    assert widths(kernel(LDG_E_128=-4, LDG_E=16)) == "loads of 128 → 32 bits"
    assert widths(kernel(STG_E_64=-1, STG_E_U16=4)) == "stores of 64 → 16 bits"
    assert widths(kernel(LDG_E_64=-2, LDS_U=3)) == ""
    assert widths(kernel(LDG_E=4)) == ""


def test_more_instructions_for_the_same_bytes_is_said_with_how_many() -> None:
    point = trial_data.point(trial_data.as_is, 3)
    for side, executed in ((point.counters.base, 1e6), (point.counters.change, 3.2e6)):
        side[0].metrics |= {"inst_executed": executed, "dram_bytes_write": 1e6}
    said = list(reasons(point, [kernel(LDG_E_128=-4, LDG_E=16)]))
    assert any(text.startswith("  3.2 times the instructions for the same bytes") for text in said)
    named = kernel(LDG_E_128=-4, LDG_E=16).model_copy(update={"name": "void ToyKernel<8>"})
    assert "  loads of 128 → 32 bits" in reasons(point, [named])
    point.counters.change[0].metrics["dram_bytes_read"] *= 3
    assert not any("same bytes" in text for text in reasons(point))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_counters_do_not_cover_is_said_beside_what_they_do(path: Path) -> None:
    points = [point for trial in read(path) for point in trial.points]
    found = {point.point: coverage(point) for point in points}
    apart = [p for p in points if (c := found[p.point]) and abs(1 - c.share) > 0.2]
    silent = [p.point for p in apart if not any("counters cover" in text for text in reasons(p))]
    assert silent == []
    assert ("counters cover" in "".join(map(trial_text, read(path)))) == bool(apart)
