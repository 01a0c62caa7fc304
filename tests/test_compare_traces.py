"""Two traces are compared by the names of their kernels, on one screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import ncuflow
from engine_trace import MadeTrace

from ncuflow.compare import traces
from ncuflow.compare.records import TOTAL, Thresholds
from ncuflow.io import BadInput


def made(path: Path, gemm_us: float, norm: str = "norm<float, 4>", gemms: int = 30) -> Path:
    trace = MadeTrace()
    for n in range(gemms):
        trace.kernel("gemm", gemm_us + n % 3, (n + 1, 1, 1), (128, 1, 1))
        trace.kernel(norm, 5, (32, 1, 1), (128, 1, 1))
    trace.copy(4096, 2)
    return trace.write(path)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return made(tmp_path / "a.json", 100), made(tmp_path / "b.json", 150, "norm<float, 8>", 29)


def test_launches_of_one_name_are_samples_of_it(sides):
    found = traces.compare(*sides, Thresholds())
    gemm, norm, copy = found.points
    assert (gemm.id, gemm.verdict, gemm.samples) == ("gemm", "slower", (30, 29))
    assert (gemm.base, gemm.head) == pytest.approx((101, 151), rel=1e-3)
    assert gemm.low < 0.495 < gemm.high
    total = gemm.metrics[TOTAL]
    assert (total.base, total.head) == pytest.approx((3030, 4378))
    assert (norm.id, norm.verdict) == ("norm", "same")  # other arguments of its template
    assert copy.verdict == "not tested"


def test_the_whole_is_one_screen(sides):
    done = ncuflow("compare", *sides)
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 30
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("gemm")]
    assert "30 → 29" in line and "+49.5 %" in line and "slower" in line
    assert "3 kernels and copies of both take 3 182 µs → 4 525 µs" in done.stdout


def test_names_of_one_side_alone_come_by_their_time(tmp_path):
    other = MadeTrace().kernel("short", 1, (1, 1, 1), (32, 1, 1))
    other.kernel("long", 50, (1, 1, 1), (32, 1, 1)).copy(4096, 2)
    found = traces.compare(
        other.write(tmp_path / "b.json"), made(tmp_path / "a.json", 9), Thresholds()
    )
    assert found.only_base == ["long", "short"]
    assert found.only_head == ["gemm", "norm<float, 4>"]


def test_another_name_is_paired_by_its_place_or_as_it_is_told(tmp_path):
    """What ran between the same two kernels on both sides is one, unless two names stand there."""

    def trace(name: str, *middle: str) -> Path:
        made = MadeTrace()
        for _ in range(9):
            for number, kernel in enumerate(("first", *middle, "last")):
                made.kernel(kernel, 5 + number, (1, 1, 1), (32, 1, 1))
        return made.write(tmp_path / name)

    base, head = trace("a.json", "fa2<1>"), trace("b.json", "fa3<2>")
    found = traces.compare(base, head, Thresholds())
    assert {point.id for point in found.points} == {"first", "fa3<2>", "last"}
    assert not found.only_base and any("fa2 → fa3" in n for n in found.statistics.notes)
    two = trace("c.json", "fa3<2>", "merge")
    assert traces.compare(base, two, Thresholds()).only_head == ["merge", "fa3<2>"]
    done = ncuflow("compare", base, two, "--map", "fa2=merge", "--json")
    points = {point["id"]: point for point in json.loads(done.stdout)["points"]}
    assert (points["merge"]["base"], points["merge"]["head"]) == pytest.approx((6, 7))
    for words, said in (("fa9=merge", f"{base}: has no kernel 'fa9'"), ("fa2=x", f"{two}: has no"),
                        ("fa2", "OLD=NEW")):  # fmt: skip
        assert said in ncuflow("compare", base, two, "--map", words).stderr


def test_gpus_are_told_apart(sides, tmp_path):
    content = json.loads(sides[1].read_text())
    for event in content["traceEvents"]:
        if event["cat"] == "kernel" and event["name"] == "gemm":
            event["args"]["device"] = 1
    sides[1].write_text(json.dumps(content))
    found = traces.compare(*sides, Thresholds())
    (note,) = [note for note in found.statistics.notes if "2 GPUs" in note]
    assert "--device" in note and "imbalance 93.5 %" in note
    with pytest.raises(BadInput, match="no operation of GPU 1; it has 0"):
        traces.compare(*sides, Thresholds(), device=1)
    with pytest.raises(BadInput, match="no kernel in common"):
        traces.compare(
            sides[0],
            MadeTrace().kernel("x", 1, (1,), (1,)).write(tmp_path / "x.json"),
            Thresholds(),
        )


def test_a_copy_and_a_name_of_other_places_are_no_pair(tmp_path):
    """What took a kernel's place is another kernel, and stands there in most of its launches."""

    def trace(name: str, middle: str, elsewhere: int) -> Path:
        made = MadeTrace()
        for _ in range(9):
            made.kernel("first", 5, (1,), (32,))
            made.copy(64, 2) if middle == "copy" else made.kernel(middle, 6, (1,), (32,))
            made.kernel("last", 7, (1,), (32,))
        for around in (("first", "first"), ("last", "last"), ("last", "first")) * elsewhere:
            for kernel in (around[0], middle, around[1]):
                made.kernel(kernel, 5, (1,), (32,))
        return made.write(tmp_path / name)

    base = trace("a.json", "fa2", 0)
    for name, middle, elsewhere in (("b.json", "copy", 0), ("c.json", "fa3", 7)):
        found = traces.compare(base, trace(name, middle, elsewhere), Thresholds())
        assert found.only_base == ["fa2"] and len(found.only_head) == 1
        (note,) = [one for one in found.statistics.notes if one.startswith("a.json")]
        assert "54 µs of 162 µs in 1 kernel that the other has not" in note


@pytest.fixture
def alike(tmp_path: Path) -> tuple[Path, Path]:
    """Traces of kernels of one bare name: of one whole name on both sides, and of several that are not."""

    def trace(name: str, us: float, *own: str) -> Path:
        made = MadeTrace()
        for n in range(12):
            for functor in ("add_functor", "mul_functor"):
                made.kernel(
                    f"void at::vectorized_elementwise_kernel<4, {functor}<float>>(int)",
                    us + n % 2,
                    (1,),
                    (32,),
                )
            for functor in own:
                made.kernel(f"void at::reduce_kernel<512, {functor}>(int)", us, (1,), (32,))
        return made.write(tmp_path / name)

    return trace("a.json", 5, "mean", "sum"), trace("b.json", 80, "max")


def test_kernels_that_begin_alike_are_told_apart(alike, monkeypatch):
    """By the words that only one has, which a narrow terminal keeps as well."""
    for width in ("80", "120", "200"):
        monkeypatch.setenv("COLUMNS", width)
        lines = ncuflow("compare", *alike).stdout.splitlines()
        assert len(lines) < 50 and max(map(len, lines)) <= int(width)
        for functor in ("add_functor", "mul_functor"):
            (line,) = [line for line in lines if line.startswith(f"{functor} · vector")]
            assert "× 14.6" in line and "slower" in line
            assert (" to " in line) == (width != "80")  # its interval


def test_launches_of_several_kernels_are_no_samples_of_one(alike):
    found = traces.compare(*alike, Thresholds())
    (merged,) = [point for point in found.points if point.target == "reduce_kernel"]
    assert (merged.verdict, merged.low, merged.p) == ("not judged", None, None)
    assert merged.metrics[TOTAL].base == pytest.approx(120)
    assert traces.UNLIKE in found.statistics.notes


def test_a_gpu_that_a_trace_does_not_name_is_unknown(alike):
    content = json.loads(alike[1].read_text())
    content["deviceProperties"] = []
    alike[1].write_text(json.dumps(content))
    assert "→ unknown" in ncuflow("compare", *alike).stdout
