"""Tunables: constants that are found once or named as missing, edits that change nothing else, and the variants of them."""

from pathlib import Path

import pytest
from conftest import some
from fake_device import none_target
from flashinfer_source import flashinfer_package

from ncuflow.experiments.choices import (
    FoundTunable,
    NotThereError,
    Variant,
    declared,
    find,
    listed,
    write,
)
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import known
from ncuflow.target.source import Constant, Source, Tunable

HEADER = "data/include/flashinfer/made.cuh"
TEXT = """template <typename T>
cudaError_t Launch(T* x, int n) {
  if (n > 4) {
    constexpr uint32_t num_threads = 128;
    constexpr uint32_t num_stages = 4;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t Other(T* x) {
  constexpr uint32_t num_threads = 256;
  return cudaSuccess;
}
"""
THREADS, STAGES = r"num_threads = (\d+);", r"num_stages = (\d+)"


def place(function: str = "Launch", pattern: str = THREADS, file: str = HEADER) -> Constant:
    return Constant(file, function, pattern)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "flashinfer" / HEADER
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    return tmp_path / "flashinfer"


def test_a_constant_is_found_in_its_function(package: Path) -> None:
    one = find(Tunable("threads", (place(),), (256, 128, 64)), package)
    assert (one.default, one.values) == (128, (256, 64))  # the source's own is none to try
    assert one.places == (f"{HEADER}:4",)
    other = find(Tunable("threads", (place("Other"),), (64,)), package)
    assert (other.default, other.places) == (256, (f"{HEADER}:12",))


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ((place(""),), "matches 2 times"),
        ((place("Gone"),), "Gone of data/include/flashinfer/made.cuh: .* matches not"),
        ((place(pattern=r"tile = (\d+)"),), "matches not"),
        ((place(), place("Other")), "different values: 128, 256"),
        ((place(file="data/gone.cuh"),), "data/gone.cuh: no such file"),
    ],
)
def test_what_is_not_there_exactly_once_is_said(places, why, package):
    with pytest.raises(NotThereError, match=why):
        find(Tunable("threads", places, (64,)), package)


def test_edits_change_their_values_alone(package: Path, tmp_path: Path) -> None:
    threads = find(Tunable("threads", (place(),), (1024,)), package)
    stages = find(Tunable("stages", (place(pattern=STAGES),), (2,)), package)
    write({"threads": 1024, "stages": 2}, [threads, stages], package, tmp_path / "new")
    wanted = TEXT.replace("threads = 128", "threads = 1024").replace("stages = 4", "stages = 2")
    assert (tmp_path / "new" / HEADER).read_text() == wanted
    write({"stages": 2}, [threads, stages], package, tmp_path / "one")
    assert "threads = 128" in (tmp_path / "one" / HEADER).read_text()
    assert (package / HEADER).read_text() == TEXT


TARGET = none_target(
    "made",
    parameters={"n": 1, "split": "auto"},
    choices={"split": ("auto", "off")},
    free=lambda p: {"split": "auto"},
    id="n{n}_{split}",
    source=Source(
        tunables=(
            Tunable("threads", (place(),), (256, 64), where="n > 1"),
            Tunable("stages", (place(pattern=STAGES),), (2,), where="split == 'off'"),
            Tunable("gone", (place("Gone"),), (2,)),
        )
    ),
)


def shape(n: int) -> Planned:
    params = {"n": n, "split": "auto"}
    return Planned(TARGET.point_id(params), "made", params)


def tunables(package: Path) -> list[FoundTunable]:
    return declared(TARGET, [shape(1)], package, None)[0]


def test_variants_are_the_combinations_that_mean_something_the_nearest_first(package):
    found = [one.name for one in listed(TARGET, [shape(2)], tunables(package), None)]
    assert found == [
        "split=off",
        "threads=256",
        "threads=64",
        "stages=2 split=off",
        "threads=256 split=off",
        "threads=64 split=off",
        "threads=256 stages=2 split=off",
        "threads=64 stages=2 split=off",
    ]
    few = [one.name for one in listed(TARGET, [shape(1)], tunables(package), None)]
    assert few == ["split=off", "stages=2 split=off"]
    only = listed(TARGET, [shape(2)], tunables(package), ["threads"])
    assert [one.name for one in only] == ["threads=256", "threads=64"]


def test_a_variant_has_points_where_all_of_it_means_something(package: Path) -> None:
    shapes = [shape(1), shape(2)]
    threads = Variant((("threads", 64),))
    assert threads.points(TARGET, shapes, tunables(package)) == {"made/n2_auto": shape(2)}
    assert threads.departs == 1
    both = Variant((("stages", 2),), (("split", "off"),))
    points = both.points(TARGET, shapes, tunables(package))
    ids = {name: point.id for name, point in points.items()}
    assert ids == {"made/n1_auto": "made/n1_off", "made/n2_auto": "made/n2_off"}
    assert Variant((("stages", 2),)).points(TARGET, shapes, tunables(package)) == {}


def test_what_is_said_of_knobs(package: Path) -> None:
    there, said = declared(TARGET, [shape(1)], package, None)
    assert [one.tunable.name for one in there] == ["threads", "stages"]
    told = {one.name: (one.kind, one.default, one.values, bool(one.missing)) for one in said}
    assert told == {
        "threads": ("constant", 128, [256, 64], False),
        "stages": ("constant", 4, [2], False),
        "gone": ("constant", None, [2], True),
        "split": ("setting", "auto", ["off"], False),
    }
    assert [one.name for one in declared(TARGET, [shape(1)], package, ["split"])[1]] == ["split"]


TUNED = [(target, tunable) for target in known().values() for tunable in target.source.tunables]


@pytest.mark.parametrize(
    ("target", "tunable"), [pytest.param(t, k, id=f"{t.name}-{k.name}") for t, k in some(TUNED)]
)
def test_an_edit_of_a_declared_constant_is_a_line_of_each_place(target, tunable, tmp_path):
    package = flashinfer_package()
    one = find(tunable, package)
    assert one.default > 0 and one.values
    write({tunable.name: 4242}, [one], package, tmp_path)
    changed = []
    for path in some(p for p in tmp_path.rglob("*") if p.is_file()):
        name = path.relative_to(tmp_path).as_posix()
        sides = [(root / name).read_text().splitlines() for root in (package, tmp_path)]
        pairs = zip(*sides, strict=True)
        changed += [f"{name}:{n}" for n, (old, new) in enumerate(pairs, 1) if old != new]
    assert sorted(changed) == sorted(set(one.places))


def test_a_target_whose_tunable_has_no_condition_of_its_own_is_refused(tmp_path, monkeypatch):
    for fake in some((Path(__file__).parent / "fake_flashinfer/targets").glob("*.py")):
        text = fake.read_text().replace('where="n > 100"', 'where="m > 100"')
        (tmp_path / fake.name).write_text(text)
    monkeypatch.setenv("NCUFLOW_TARGETS", str(tmp_path))
    with pytest.raises(ValueError, match="tunable large: its name or where"):
        known()
