"""The registry: names that exist, units, formatting, the arithmetic of sources."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow import docs
from ncuflow.format import quantity
from ncuflow.parsers.breakdown import UNITS
from ncuflow.parsers.registry import METRICS, NOT_COUNTED, architecture, counters
from ncuflow.parsers.sources import Ceiling, NotANumber, source
from ncuflow.parsers.stalls import STALL_REASONS
from ncuflow.parsers.units import base_unit, scale

# What `ncu --query-metrics --chips …` of ncu 2025.3.1 lists for an A100 and for an H100.
FACTS = Path(__file__).parent / "data"


@pytest.fixture(params=["ga100", "gh100"])
def listed(request):
    path = FACTS / f"ncu-metrics-{request.param}.txt.gz"
    with gzip.open(path, "rt") as lines:
        return request.param, {line.split()[0] for line in lines if line.strip()}


def test_every_metric_name_exists_on_its_architecture(listed):
    arch, names = listed
    unknown = [
        name
        for metric in METRICS.values()
        for source in metric.candidates(arch)
        for name in source.names
        if name.split(".")[0] not in names and not name.startswith(NOT_COUNTED)
    ]
    assert unknown == []


def test_the_sums_of_tensor_work_name_all_counters_of_their_kind(listed):
    arch, names = listed
    for key in ("tensor_flops", "tensor_int_ops"):
        (source,), (peak,) = (METRICS[k].candidates(arch) for k in (key, f"{key}_peak_per_second"))
        of_kind = {f"{n}.sum" for n in names if re.fullmatch(source.kind, f"{n}.sum")}
        assert of_kind and of_kind == {n for n in source.names if not n.endswith("fp64.sum")}
        assert peak.kind == source.kind and {work for work, _ in peak.pairs} == set(source.names)


@pytest.mark.parametrize("arch", ["ga100", "gh100"])
def test_a_sweep_asks_for_every_counter_that_a_value_is_read_from(arch):
    read = {n for m in METRICS.values() for source in m.candidates(arch) for n in source.names}
    asked = counters(arch)
    assert len(asked) == len(set(asked))
    assert {name for name in read - set(asked) if not name.startswith(NOT_COUNTED)} == set()
    assert not [name for name in asked if name.startswith(NOT_COUNTED)]
    assert "sm__ops_path_tensor_src_fp64.sum" in asked
    other = {"ga100": "op_hmma_src", "gh100": "src_fp16_dst"}[arch]
    assert not [name for name in asked if name.startswith(f"sm__ops_path_tensor_{other}")]


def test_stall_reasons_are_those_of_the_architecture(listed):
    arch, names = listed
    pattern = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active")
    there = {found[1] for found in map(pattern.fullmatch, names) if found}
    assert {reason.reason for reason in STALL_REASONS.values() if reason.on(arch)} == there


def test_every_architecture_has_a_source_for_every_metric():
    for metric in METRICS.values():
        for arch in ("ga100", "gh100"):
            assert metric.candidates(arch), (metric.key, arch)


def test_only_stalls_are_stalls():
    kinds = {r.reason: r.kind for r in STALL_REASONS.values()}
    assert kinds.pop("selected") == "selected"
    assert kinds.pop("not_selected") == "not_selected"
    assert set(kinds.values()) == {"stall"}
    assert STALL_REASONS["gmma"].samples.endswith("_warpgroup_arrive")
    assert STALL_REASONS["no_instruction"].samples.endswith("_no_instructions")
    assert "shared memory" in STALL_REASONS["short_scoreboard"].meaning


@pytest.mark.parametrize(
    ("unit", "base"),
    [
        ("ns", (-9, "s")),
        ("nsecond", (-9, "s")),
        ("usecond", (-6, "s")),
        ("second", (0, "s")),
        ("Gbyte", (9, "byte")),
        ("byte/second", (0, "byte/s")),
        ("Gbyte/second", (9, "byte/s")),
        ("byte/s", (0, "byte/s")),
        ("Kbyte/block", (3, "byte/block")),
        ("Ghz", (9, "hz")),
        ("MHz", (6, "hz")),
        ("cycle/nsecond", (9, "hz")),
        ("cycle/second", (0, "hz")),
        ("inst/cycle", (0, "inst/cycle")),
        ("%", (0, "%")),
        ("", (0, "")),
        ("branches", (0, "branches")),
    ],
)
def test_units_come_down_to_one_base(unit, base):
    assert base_unit(unit) == base


@given(st.floats(1e-6, 1e15), st.integers(-12, 12))
def test_scaling_is_a_power_of_ten(value, exponent):
    assert scale(value, exponent) == pytest.approx(value * 10.0**exponent)
    assert scale(value, 0) == value


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("duration_ns", 3104.0, "3.1 µs"),
        ("duration_ns", 999.9, "1 µs"),
        ("duration_ns", 523968.0, "524 µs"),
        ("duration_ns", 10783168.0, "10.8 ms"),
        ("dram_peak_bytes_per_second", 4.812e12, "4.81 TB/s"),
        ("tensor_flops", 1.462e11, "146 GFLOP"),
        ("sm_clock_hz", 1.7745e9, "1.77 GHz"),
        ("sm_throughput_pct", 7.37354, "7.37 %"),
        ("registers", 255.0, "255 register"),
        ("waves", 0.9696, "0.97"),
        ("spill_bytes", 0.0, "0 B"),
        ("spill_bytes", None, "–"),
    ],
)
def test_values_as_text(key, value, text):
    assert quantity(value, METRICS[key].unit) == text


@given(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_every_finite_value_has_a_text(value):
    for metric in METRICS.values():
        assert quantity(value, metric.unit)


def test_nan_has_no_text():
    with pytest.raises(ValueError):
        quantity(float("nan"), "%")


def lookup(**values):
    return lambda name: values.get(name)


def test_a_product_keeps_track_of_units():
    get = lookup(rate=(2.0, 0), hz=(3e9, 0), ns=(500.0, -9))
    value, name = source({"product": ["rate", "hz", "ns"], "factor": 2}).read(get)
    assert value == 6000.0
    assert name == "2 × rate × hz × ns"


def test_a_sum_needs_all_its_terms_unless_partial():
    get = lookup(a=(5.0, 0))
    assert source({"sum": ["a", "b"]}).read(get) is None
    assert source({"sum": {"a": 1, "b": 1}}).read(get) is None
    assert source({"any_of": ["a", "b"]}).read(get) == (5.0, "a")
    assert source({"any_of": ["c"]}).read(get) is None


def test_a_source_that_nobody_can_read_is_refused():
    with pytest.raises(ValueError, match="no source"):
        source({"produkt": ["a"]})


def test_the_ceiling_is_that_of_the_work_that_ran():
    pairs = Ceiling((("hmma", "hmma_peak"), ("hgmma", "hgmma_peak")))
    peaks = {"hmma_peak": (640.0, 0), "hgmma_peak": (960.0, 0)}
    only = lookup(hmma=(10.0, 0), hgmma=(0.0, 0), **peaks)
    assert pairs.read(only) == (640.0, "hmma_peak")
    both = lookup(hmma=(640.0, 0), hgmma=(960.0, 0), **peaks)
    assert pairs.read(both)[0] == 800.0
    assert pairs.read(lookup(hmma=(0.0, 0), hgmma=(0.0, 0), **peaks)) is None
    assert pairs.read(lookup(hmma=(1.0, 0))) is None


def test_not_a_number_is_not_swallowed():
    def get(name):
        raise NotANumber(name)

    with pytest.raises(NotANumber):
        source({"any_of": ["a", "b"]}).read(get)


def test_old_cards_read_the_names_of_ga100():
    assert architecture(9) == "gh100"
    assert architecture(8) == architecture(7) == architecture(None) == "ga100"


def test_the_made_parts_of_docs_are_in_step():
    pages = [path.read_text() for path in (Path(__file__).parents[1] / "docs").glob("*.md")]
    parts = re.findall(r"<!-- ncuflow docs: (\w+) -->", "".join(pages))
    assert sorted(parts) == sorted(docs.PARTS)
    assert [page for page in pages if docs.made(page) != page] == [], "run ncuflow docs"
    assert docs.made("<!-- ncuflow docs: units -->\n<!-- end -->\n").count("\n| `") == len(UNITS)
