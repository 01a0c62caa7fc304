"""Whose evidence it is: provenances of captures brought together."""

import json

import pytest

from ncuflow.evidence.provenance import load_provenance, of_captures, one_line, together
from ncuflow.io import BadInput
from ncuflow.model import Origin

ENVIRONMENT = {
    "tier": "A", "gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "torch": "2.11", "flashinfer": "0.7.2",
    "cutlass_dsl": None, "ncu": "2025.3", "nsys": "2023.4", "python": "3.11", "date": "2026-03-03T01:00:00Z",
    "recording": None, "mixed": [],
}  # fmt: skip


def capture(**own):
    """A row of the captures table, made as the environment says but for `own`."""
    return {key: ENVIRONMENT[key] for key in Origin.__annotations__} | own


def test_captures_say_themselves_when_and_with_what():
    rows = [
        capture(date="2026-03-01T09:00:00Z", ncu=None),
        capture(date="2026-03-01T08:00:00Z", nsys=None),
    ]
    found = of_captures(ENVIRONMENT, rows)
    assert (found["ncu"], found["nsys"], found["mixed"]) == ("2025.3", "2023.4", [])
    assert found["date"] == "2026-03-01T09:00:00Z"  # not the day on which the machine was looked at
    assert "not all" not in one_line(found)


def test_what_an_origin_lacks_is_left_out_of_its_line():
    assert one_line({"gpu": "NVIDIA H200"}) == "NVIDIA H200"
    assert one_line({"tier": ["A"], "date": "2026-03-03"}) == "no GPU · 2026-03-03"


@pytest.mark.parametrize(
    ("own", "mixed", "shown"),
    [
        ({"flashinfer": "0.6.18"}, ["flashinfer"], "FlashInfer 0.6.18 and 0.7.2"),
        ({"ncu": "2024.1", "driver": "570"}, ["driver", "ncu"], "driver 570 and 580.1"),
        ({"cutlass_dsl": "4.8"}, ["cutlass_dsl"], "CuTe DSL 4.8 and none"),
    ],
)
def test_what_differs_stands_side_by_side(own, mixed, shown):
    earlier = capture(date="2026-02-27T09:00:00Z", **own)
    found = of_captures(ENVIRONMENT, [capture(), earlier])
    assert found["mixed"] == mixed
    assert shown in one_line(found) and "not all measured with one" in one_line(found)
    assert found["date"] == "2026-02-27 to 2026-03-03"
    again = together([found, found, of_captures(ENVIRONMENT, [capture()])])
    assert again == found


def test_a_page_says_that_the_registry_lacks_the_chip():
    def line(capability, **own):
        return one_line(ENVIRONMENT | {"compute_capability": capability} | own)

    assert "a chip of compute capability 13.0" in line("13.0")
    assert "--query-metrics --chips" in line("13.0")
    for known in (line("9.0"), line("12.1"), line(None), line("13.0", tier="S")):
        assert "registry" not in known


def test_of_a_capture_that_does_not_say_the_environment_does():
    silent = dict.fromkeys(Origin.__annotations__)
    assert of_captures(ENVIRONMENT, [silent, silent]) == ENVIRONMENT
    assert of_captures(ENVIRONMENT, []) == ENVIRONMENT
    assert of_captures(ENVIRONMENT, [silent, capture(flashinfer="0.8")])["mixed"] == ["flashinfer"]


@pytest.mark.parametrize(
    "content",
    [
        [], {}, None, {"provenance": []}, {"provenance": ENVIRONMENT | {"gpu": 5}},
        {"provenance": ENVIRONMENT | {"sm_count": -1}}, {"provenance": ENVIRONMENT | {"tier": "Z"}},
        {"provenance": ENVIRONMENT, "findings": [{"check": "gpu"}]},
    ],
)  # fmt: skip
def test_an_environment_that_is_none_is_one_line(tmp_path, content):
    (tmp_path / "environment.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"environment\.json: not what a preflight found \("
    ) as found:
        load_provenance(tmp_path, None)
    assert "\n" not in str(found.value)


def test_an_environment_keeps_what_it_says(tmp_path):
    (tmp_path / "environment.json").write_text(json.dumps({"provenance": ENVIRONMENT}))
    unsaid = ("sm_count", "l2_bytes", "memory_bytes", "clock_policy", "compute_capability")
    expected = ENVIRONMENT | {"tier": "C", "recording": "x"} | dict.fromkeys(unsaid)
    assert load_provenance(tmp_path, "x") == expected
