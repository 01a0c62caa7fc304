"""The outcome of compare.py as a page.

    python benchmarks/cupti/outcome.py cupti.json [--out benchmarks/cupti/OUTCOME.md]

Every figure of the page is of the record, which holds all values of all launches.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ncuflow.experiments.why import FIRST  # noqa: E402
from ncuflow.format import number  # noqa: E402
from ncuflow.io import read_json, write_text  # noqa: E402
from ncuflow.parsers.registry import METRICS  # noqa: E402

PAGE = Path(__file__).with_name("OUTCOME.md")
LIMIT = 0.02  # of ncu's value
# What a launch does; the others are how fast it was, which differs from launch to launch.
COUNTS = ("inst_executed", "dram_bytes_read", "dram_bytes_write", "l2_hit_pct", "spill_bytes")
MOST = 10  # of the worst differences, a line each
Record = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A metric of a kernel by both tools. ncu, cupti: medians over the launches, None where there is no number;
    spread: of ncu's own launches, highest less lowest of the median."""

    mode: str
    point: str
    kernel: str
    key: str
    ncu: float | None
    cupti: float | None
    spread: float

    @property
    def difference(self) -> float:
        """Of ncu's value; infinite where one tool has a number, or more than nothing, and the other has not."""
        if self.ncu is None or self.cupti is None:
            return 0.0 if self.ncu is self.cupti else math.inf
        return _share(self.cupti - self.ncu, self.ncu)

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= LIMIT


def pairs(record: Record) -> list[Pair]:
    """Every metric of every kernel that both tools counted; calls whose ranges are no kernels are left out."""
    return [
        _pair(mode, point, record, index, key)
        for mode, counted in record["cupti"]["modes"].items()
        for point, launches in counted["points"].items()
        if _comparable(record, point, launches)
        for index in range(len(launches[0]))
        for key in FIRST
    ]


def not_compared(record: Record, mode: str) -> dict[str, str]:
    """Why a point has no pairs: ranges that are no kernels, or a tool that counted nothing there."""
    found = {}
    for point in record["cupti"]["points"]:
        launches = record["cupti"]["modes"][mode]["points"].get(point, [])
        if not _comparable(record, point, launches):
            ranges, kernels = sum(map(len, launches)), len(record["ncu"].get(point, ()))
            found[point] = f"{ranges} ranges of CUPTI, {kernels} kernels of ncu"
    return found


def _comparable(record: Record, point: str, launches: Sequence[Sequence[Any]]) -> bool:
    kernels, ranges = len(record["ncu"].get(point, ())), {len(launch) for launch in launches}
    return len(ranges) == 1 and kernels == ranges.pop() * record["repeats"] > 0


def _pair(mode: str, point: str, record: Record, index: int, key: str) -> Pair:
    launches = record["cupti"]["modes"][mode]["points"][point]
    width = len(launches[0])
    kernels = record["ncu"][point][index::width]
    ours = [launch[index][key] for launch in launches]
    theirs = [kernel["values"][key] for kernel in kernels]
    known = [value for value in theirs if value is not None]
    middle = _median(theirs)
    spread = _share(max(known) - min(known), middle) if known and middle is not None else 0.0
    return Pair(mode, point, kernels[0]["name"], key, middle, _median(ours), spread)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if not part else math.inf


def judged(record: Record) -> tuple[bool, list[str]]:
    """(whether `auto` counts as ncu does, a line for each way to count, with what differs most, and for each cost)."""
    found, lines, good = pairs(record), [], False
    for mode, counted in record["cupti"]["modes"].items():
        own = [pair for pair in found if pair.mode == mode]
        counts = [pair for pair in own if pair.key in COUNTS]
        agree = sum(pair.agrees for pair in counts)
        apart = not_compared(record, mode)
        passed = bool(counts) and agree == len(counts) and not apart and counted["error"] is None
        good |= passed and mode == "auto"
        all_of_them = f"all metrics {sum(pair.agrees for pair in own)} of {len(own)}"
        why = f", error: {counted['error']}" if counted["error"] else ""
        noise = sum(not pair.agrees and abs(pair.difference) <= pair.spread for pair in counts)
        within = f"counts {agree} of {len(counts)} within 2 % of ncu's, {noise} more within the spread of its own launches"
        lines.append(f"{'PASS' if passed else 'FAIL'} {mode}: {within}, {all_of_them}{why}")
        lines += [f"  {' | '.join(row)}" for row in _worst(own)]
        lines += [f"  not compared: {point}: {why}" for point, why in apart.items()]
    lines += [f"cost: {what}: {seconds} s" for what, seconds in _costs(record)]
    lines += [f"{name}: before {before} µs, after {after} µs" for name, before, after in _events(record)]  # fmt: skip
    lines += [f"left out: {point}: {why}" for point, why in record["cupti"]["left_out"].items()]
    return good, [*lines, *([f"FAIL ncu: {record['ncu_error']}"] if record["ncu_error"] else [])]


def _worst(found: Sequence[Pair]) -> list[list[str]]:
    """Rows of the pairs that differ most, counts first."""
    beyond = [pair for pair in found if not pair.agrees]
    beyond.sort(key=lambda pair: (pair.key not in COUNTS, -abs(pair.difference)))
    return [_row(pair) for pair in beyond[:MOST]]


def _row(pair: Pair) -> list[str]:
    what = [pair.point, pair.kernel, METRICS[pair.key].label]
    shares = [_percent(pair.difference), _percent(pair.spread, sign="")]
    return [*what, _plain(pair.ncu), _plain(pair.cupti), *shares]


def _plain(value: float | None) -> str:
    return "—" if value is None else f"{value:.6g}"


def _percent(share: float, sign: str = "+") -> str:
    return "—" if math.isinf(share) else f"{100 * share:{sign}.2f} %"


def _costs(record: Record) -> Iterator[tuple[str, str]]:
    cupti = record["cupti"]
    yield "ncu, all points, its own process included", number(record["ncu_wall_s"])
    yield "the process that times and counts, all ways", number(record["wall_s"])
    for what, seconds in cupti["seconds"].items():
        yield f"of it {what}", number(seconds)
    for mode, counted in cupti["modes"].items():
        each = [seconds for what, seconds in counted["seconds"].items() if what != "open"]
        if each:
            yield f"{mode}: to open the profiler", number(counted["seconds"]["open"])
            yield f"{mode}: a point, {record['repeats']} launches", number(statistics.median(each))


def _events(record: Record) -> Iterator[tuple[str, str, str]]:
    for name, times in record["cupti"]["points"].items():
        after = times.get("after_us")
        yield name, number(times["before_us"], 4), "—" if after is None else number(after, 4)


def page(record: Record) -> str:
    """The page as Markdown."""
    found, modes = pairs(record), list(record["cupti"]["modes"])
    good, _ = judged(record)
    answer = "They do." if good else "They do not: the first tier stays with ncu."
    parts = [
        "# Counters without ncu's start",
        "CUPTI's range profiler in the process that times, and ncu in its own: do the counts of what a launch does agree within"
        f" 2 % when each kernel is a range (`auto`)? **{answer}** What the ways to count are, and what CUPTI does not tell:"
        " `compare.py`, which took the numbers.",
        "## Conditions",
        _table(["what", "which"], _conditions(record)),
        "## Agreement",
        "Of each metric, over the kernels of all points: the largest difference of the medians from ncu's, and how many"
        " are within 2 %. ncu's own launches spread by as much as the last column says.",
        _table(["metric", "kind", *modes, "ncu's spread"], _agreement(found, modes)),
        "## Beyond 2 %, `auto`",
        _table(
            ["point", "kernel", "metric", "ncu", "CUPTI", "difference", "ncu's spread"],
            _worst([pair for pair in found if pair.mode == "auto"]),
        ),
        "## Cost",
        _table(["what", "s"], _costs(record)),
        "## Times by events",
        "Median of cold launches before a profiler was opened, and after the last of `auto` and `user` was closed.",
        _table(["point", "before, µs", "after, µs"], _events(record)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _conditions(record: Record) -> Iterator[list[str]]:
    cupti = record["cupti"]
    for what, value in cupti["origin"].items():
        if value is not None:
            yield [what, str(value)]
    yield ["ncu", record["ncu_error"] or str(record["ncu_version"])]
    yield ["CUPTI: headers, library", ", ".join(map(str, cupti.get("cupti", ())))]
    passes = {mode: counted.get("passes") for mode, counted in cupti["modes"].items()}
    theirs = {kernel["passes"] for kernels in record["ncu"].values() for kernel in kernels}
    yield ["passes: ncu", ", ".join(map(str, sorted(theirs, key=str)))]
    yield ["passes: CUPTI", ", ".join(f"{mode} {count}" for mode, count in passes.items())]
    yield ["launches of each point", str(record["repeats"])]
    for point, why in cupti["left_out"].items():
        yield [f"left out: {point}", why]
    for mode, counted in cupti["modes"].items():
        if counted["error"]:
            yield [f"{mode} failed", counted["error"]]
        for point, why in not_compared(record, mode).items():
            yield [f"{mode}, not compared: {point}", why]


def _agreement(found: Sequence[Pair], modes: Sequence[str]) -> Iterator[list[str]]:
    for key in FIRST:
        own = [pair for pair in found if pair.key == key]
        cells = []
        for mode in modes:
            each = [pair for pair in own if pair.mode == mode]
            worst = max(each, key=lambda pair: abs(pair.difference), default=None)
            agree = sum(pair.agrees for pair in each)
            cells.append(f"{_percent(worst.difference)}, {agree} of {len(each)}" if worst else "—")
        spread = max((pair.spread for pair in own), default=math.inf)
        kind = "count" if key in COUNTS else "rate or time"
        yield [METRICS[key].label, kind, *cells, _percent(spread, sign="")]


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    write_text(args.out, page(read_json(args.record)))


if __name__ == "__main__":
    main()
