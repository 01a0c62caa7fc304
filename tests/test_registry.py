"""The registry: names that exist, units, formatting, the arithmetic of sources."""

import lzma
import re
from functools import cache
from pathlib import Path

import pytest
from conftest import some
from hypothesis import given, settings
from hypothesis import strategies as st

from ncuflow.cli import dispatch
from ncuflow.format import quantity
from ncuflow.parsers.chips import ANY, CHIPS, chip_of, unknown
from ncuflow.parsers.registry import (
    METRICS,
    NOT_COUNTED,
    Ceiling,
    NotANumber,
    base_unit,
    counters,
    scale,
    source,
)
from ncuflow.parsers.stalls import RATIO, STALL_REASONS, unnamed
from scripts import docs, nvperf

# What `ncu --query-metrics --chips …` of ncu 2025.3.1 lists for an A100 and for an H100.
FACTS = Path(__file__).parent / "data"
# Chips of NVIDIA's library that have the names of another of their compute capability.
SAME = {
    "tu102": ("tu104", "tu106"),
    "ga102": ("ga103", "ga104", "ga106", "ga107"),
    "ad102": ("ad103", "ad104", "ad106", "ad107"),
    "gb100": ("gb102",),
    "gb110": ("gb112",),
    "gb202": ("gb203", "gb205", "gb206", "gb207"),
    "gb20b": ("gb20c",),
}
# Two without tensor cores, and one that is newer than the registry.
OTHERS = {"tu116", "tu117", "gr100"}
library = cache(nvperf.ChipCounters)  # asked without a GPU


@pytest.fixture(params=["ga100", "gh100"])
def listed(request):
    path = FACTS / f"ncu-metrics-{request.param}.txt.xz"
    with lzma.open(path, "rt") as lines:
        return request.param, {line.split()[0] for line in lines if line.strip()}


def test_every_metric_name_exists_in_an_older_ncu(listed):
    chip, names = listed
    assert [name for name in counters(chip) if name.split(".")[0] not in names] == []


@pytest.mark.parametrize("chip", CHIPS)
def test_every_counter_of_a_chip_is_in_nvidias_library(chip):
    assert [name for name in counters(chip) if not library(chip).has(name)] == []
    assert [name for name in counters(ANY) if not library(chip).has(name)] == []


def test_no_chip_of_the_library_is_overlooked():
    same = {name for names in SAME.values() for name in names}
    assert {*nvperf.chips()} == {*CHIPS} | same | OTHERS


@pytest.mark.parametrize("chip", SAME)
def test_chips_of_one_capability_have_the_same_names(chip):
    other = {name: nvperf.ChipCounters(name).names for name in SAME[chip]}
    assert [name for name, names in other.items() if names != library(chip).names] == []


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("key", ["tensor_flops", "tensor_int_ops"])
def test_the_sums_of_tensor_work_name_all_counters_of_their_kind(chip, key):
    (source,), (peak,) = (METRICS[k].candidates(chip) for k in (key, f"{key}_peak_per_second"))
    of_kind = {f"{name}.sum" for name in library(chip).names}
    of_kind = {name for name in of_kind if re.fullmatch(source.kind, name)}
    assert of_kind and of_kind == {n for n in source.names if not n.endswith("fp64.sum")}
    assert peak.kind == source.kind and [work for work, _ in peak.pairs] == list(source.names)


def test_a_sum_of_tensor_work_leaves_out_no_type_that_the_chip_multiplies():
    """Sums by type, of all instructions and of sparse and dense together, are of the same work."""
    for chip in CHIPS:
        names = (n for n in library(chip).names if n.startswith("sm__ops_path_tensor_src_"))
        types = {re.sub("_sparsity.*", "", n.split("_src_")[1]) for n in names if "time" not in n}
        work = {*METRICS["tensor_flops"].candidates(chip)[0].names}
        work |= {*METRICS["tensor_int_ops"].candidates(chip)[0].names}
        summed = {re.sub(r"_sparsity.*|\.sum", "", name.split("_src_")[1]) for name in work}
        missed = {t for t in types - summed if not any(s.startswith(f"{t}_") for s in summed)}
        assert missed <= {"int1"}, chip


@pytest.mark.parametrize("chip", CHIPS)
def test_a_sweep_asks_for_every_counter_that_a_value_is_read_from(chip):
    read = {n for m in METRICS.values() for source in m.candidates(chip) for n in source.names}
    asked = counters(chip)
    assert len(asked) == len(set(asked))
    assert {name for name in read - set(asked) if not name.startswith(NOT_COUNTED)} == set()
    assert not [name for name in asked if name.startswith(NOT_COUNTED)]
    assert {*counters(ANY)} < {*asked}


@pytest.mark.parametrize("chip", CHIPS)
def test_stall_reasons_are_those_of_the_chip(chip):
    pattern = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active")
    there = {found[1] for found in map(pattern.fullmatch, library(chip).names) if found}
    parts = {name for name in there if name.partition("_pipe_")[0] in there - {name}}
    assert {reason.reason for reason in STALL_REASONS.values() if reason.on(chip)} == there - parts
    assert unnamed(tuple(RATIO.format(name) for name in there)) == ((), (), ())


@pytest.mark.parametrize("chip", CHIPS)
def test_every_metric_has_a_source_on_every_chip_that_counts_it(chip):
    lacking = {key for key, metric in METRICS.items() if not metric.candidates(chip)}
    dram = {key for key in METRICS if key.startswith("dram_")}
    counted = any(name.startswith("dram__") for name in library(chip).names)
    assert lacking == (set() if counted else dram)


def test_every_source_is_of_a_chip_that_there_is():
    for metric in some(METRICS.values()):
        assert {*metric.sources} <= {*CHIPS, ANY}, metric.key


def test_what_a_chip_calls_deprecated_is_not_read_where_it_counts_otherwise():
    old = "sm__pipe_tensor_cycles_active"
    assert "DEPRECATED" in library("ad102").meaning(old)
    for chip in CHIPS:
        asked = {name.split(".")[0] for name in counters(chip)}
        assert (old in asked) == (chip != "ad102") != (f"{old}_v2" in asked)


@pytest.mark.parametrize(
    ("unit", "base"),
    [
        ("ns", (-9, "s")),
        ("usecond", (-6, "s")),
        ("Gbyte", (9, "byte")),
        ("byte/s", (0, "byte/s")),
        ("Kbyte/block", (3, "byte/block")),
        ("MHz", (6, "hz")),
        ("byte/usecond", (6, "byte/s")),
        ("cycle/nsecond", (9, "hz")),
        ("inst/cycle", (0, "inst/cycle")),
        ("%", (0, "%")),
        ("", (0, "")),
    ],
)
def test_units_come_down_to_one_base(unit, base):
    assert base_unit(unit) == base


@given(st.floats(1e-6, 1e15), st.integers(-12, 12))
def test_scaling_is_a_power_of_ten(value, exponent):
    assert scale(value, exponent) == pytest.approx(value * 10.0**exponent)
    assert scale(value, 0) == value


@settings(deadline=None)
@given(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_every_finite_value_has_a_text(value):
    for metric in some(METRICS.values()):
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
    assert source({"any_of": ["c", ["d", ["a"]]]}).read(get) == (5.0, "a")


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


@pytest.mark.parametrize(
    ("capability", "chip"),
    [
        ("7.5", "tu102"), ("8.0", "ga100"), ("8.6", "ga102"), ("8.9", "ad102"), ("9.0", "gh100"), ("10.0", "gb100"),
        ("10.3", "gb110"), ("11.0", "gb10b"), ("12.0", "gb202"), ("12.1", "gb20b"), ("7.0", ANY), (None, ANY),
    ],
)  # fmt: skip
def test_the_chip_is_told_by_compute_capability(capability, chip):
    assert chip_of(capability) == chip
    said = unknown(capability)
    assert (said is None) == (chip != ANY)
    assert said is None or ("--query-metrics --chips" in said and (capability or "") in said)


def test_the_command_prints_the_names_of_a_chip(capsys):
    dispatch(["static", "counters", "gb202"])
    assert capsys.readouterr().out.strip() == ",".join(counters("gb202"))
    with pytest.raises(SystemExit):
        dispatch(["static", "counters", "gb999"])
    assert 'Invalid value "gb999" for CHIP. Choose from: ' in capsys.readouterr().err


def test_each_part_of_docs_that_is_made_stands_on_one_page():
    """What it is to be, `python -m scripts.docs --check` says, which `scripts/check` runs."""
    pages = [path.read_text() for path in (Path(__file__).parents[1] / "docs").glob("*.md")]
    parts = re.findall(r"<!-- scripts/docs.py: (\w+) -->", "".join(pages))
    assert sorted(parts) == sorted(docs.PARTS)
