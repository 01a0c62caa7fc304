"""The process that times and counts the points of compare.py, and the one that launches them for ncu.

    python benchmarks/cupti/counting.py --repeats 5 --count POINTS OUT
    python benchmarks/cupti/counting.py --repeats 5 --trace POINTS OUT

OUT of --count is written anew after each step, so that what broke later costs nothing of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cupti import ranges  # noqa: E402
from ncuflow.evidence.provenance import origin  # noqa: E402
from ncuflow.experiments.why import FIRST  # noqa: E402
from ncuflow.io import read_json, scratch, write_json  # noqa: E402
from ncuflow.parsers.chips import chip_of  # noqa: E402
from ncuflow.parsers.registry import (  # noqa: E402
    METRICS,
    counters,
)
from ncuflow.run import visits as runner  # noqa: E402
from ncuflow.run.prepare import (  # noqa: E402
    Run,
    check,
    warm_up,
)
from ncuflow.sweep.points import Planned  # noqa: E402
from ncuflow.target.contract import Target, load  # noqa: E402
from ncuflow.target.launch import Launch  # noqa: E402

MODES = {"auto": (True, False), "user": (False, False), "replay": (True, True)}  # Library.session
EVENTS = 20  # cold launches of a median
SEED = 0
MODE_S = 15.0  # after which a way to count takes no further point
Values = dict[str, float | None]


@dataclass
class Counting:
    """What a way to count is done with. launches: by point."""

    device: Any
    library: ranges.Library
    chip: str
    launches: Mapping[str, Launch]
    repeats: int
    seconds: dict[str, float] = field(default_factory=dict)

    def mode(self, mode: str) -> dict[str, Any]:
        """What one way to count gave of each point; where it fails, why, and what it had until then."""
        self.seconds = {}
        found: dict[str, Any] = {"points": {}, "seconds": self.seconds, "error": None}
        started = time.perf_counter()
        names = counters(self.chip, FIRST)
        try:
            with self.library.session(_context(), names, *MODES[mode]) as session:
                self.seconds["open"] = time.perf_counter() - started
                found["passes"] = session.passes
                for point, launch in self.launches.items():
                    if time.perf_counter() - started > MODE_S:
                        raise ranges.RangesError(f"no point begun after {MODE_S:g} s")
                    self.device.settle()
                    with timed(self.seconds, point):
                        found["points"][point] = self._counted(session, mode, launch)
                found["anew"] = session.anew
        except ranges.RangesError as error:
            found["error"] = str(error)
        return found

    def _counted(self, session: ranges.Session, mode: str, launch: Launch) -> list[list[Values]]:
        """Registry keys of each range of each launch."""
        if launch.reset is not None:
            launch.reset()
        if mode == "user":
            collected = session.collect(lambda: None, lambda: self._calls(session, launch))
            return [[keyed(self.chip, row)] for row in collected]
        each = (session.collect(self._flush, lambda: self._once(launch)) for _ in range(self.repeats))  # fmt: skip
        return [[keyed(self.chip, row) for row in rows] for rows in each]

    def _flush(self) -> None:
        self.device.flush()
        self.device.synchronize()

    def _once(self, launch: Launch) -> None:
        launch.run()
        self.device.synchronize()

    def _calls(self, session: ranges.Session, launch: Launch) -> None:
        for number in range(self.repeats):
            self._flush()
            with session.range(str(number)):
                self._once(launch)


def count(source: Path, out: Path, repeats: int) -> None:
    """Time the points, count them, and time them again."""
    found: dict[str, Any] = {"seconds": {}, "modes": {}}
    with timed(found["seconds"], "imports"):
        _libraries()
    with timed(found["seconds"], "device"):
        device = _gpu()
    found["origin"] = origin(device.facts()["name"], device.driver())
    chip = chip_of(device.facts()["compute_capability"])
    with timed(found["seconds"], "prepare"):
        launches, found["left_out"] = _prepared(device, source)
    found["points"] = {name: {"before_us": cold(device, run)} for name, run in launches.items()}
    with scratch() as folder:
        with timed(found["seconds"], "compile"):
            library = ranges.Library(folder)
        found["cupti"] = library.versions()
        write_json(out, found)
        counting = Counting(device, library, chip, launches, repeats)
        for mode in ("auto", "user"):
            found["modes"][mode] = counting.mode(mode)
            write_json(out, found)
        for point, launch in launches.items():
            found["points"][point]["after_us"] = cold(device, launch)
        write_json(out, found)
        found["modes"]["replay"] = counting.mode(
            "replay"
        )  # it alone writes to the memory of others
    write_json(out, found)


def trace(source: Path, out: Path, repeats: int) -> None:
    """Launch the points for ncu, as `ncuflow launch` does, whatever their targets."""
    _libraries()
    device = _gpu()
    with out.open("w", encoding="utf-8") as file:
        for entry in read_json(source):
            point = Planned(**entry)
            target = load(point.target)
            launch = target.prepare(point.params, SEED)
            warm_up(device, launch)
            runner.trace(Run(device, target, "trace", repeats, SEED, flush=False), point, launch)
            file.write(json.dumps({"point": point.id, "status": "ok"}) + "\n")
            file.flush()


def keyed(chip: str, values: Mapping[str, float | None]) -> Values:
    """Values by registry key, of values by ncu's names in base units."""
    known = {name: (value, 0) for name, value in values.items() if value is not None}
    found = {}
    for key in FIRST:
        read = (source.read(known.get) for source in METRICS[key].candidates(chip))
        found[key] = next((value for value, _ in filter(None, read)), None)
    return found


def cold(device: Any, launch: Launch) -> float:
    """Median µs of cold launches, timed as a run times them."""
    device.settle()
    if launch.reset is not None:
        launch.reset()
    return float(statistics.median(device.cold(launch.run, EVENTS).times))


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - started, 4)


def _prepared(device: Any, source: Path) -> tuple[dict[str, Launch], dict[str, str]]:
    """Launches of the points that can run here, with a right result; why the others cannot."""
    launches, left_out = {}, {}
    for entry in read_json(source):
        point = Planned(**entry)
        target = load(point.target)
        why = target.skip(point.params, device.facts()) or _not_compiled(target, point)
        if why is None:
            launch = target.prepare(point.params, SEED)
            warm_up(device, launch)
            why = check(device, launch).wrong
        if why is None:
            launches[point.id] = launch
        else:
            left_out[point.id] = why
    return launches, left_out


def _not_compiled(target: Target, point: Planned) -> str | None:
    """The modules of a point that FlashInfer would compile first; None where all stand."""
    missing = [
        str(spec.name)
        for spec in target.modules(point.params)
        if not getattr(spec, "is_aot", False) and not Path(spec.jit_library_path).exists()
    ]
    return f"not compiled: {', '.join(missing)}" if missing else None


def _libraries() -> None:
    import flashinfer  # noqa: F401
    import torch  # noqa: F401


def _gpu() -> Any:
    from ncuflow.run.gpu import Gpu

    return Gpu()


def _context() -> int:
    from cuda.bindings import driver

    from ncuflow.run.ceilings import called

    return int(called(driver.cuCtxGetCurrent))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    for name in ("--count", "--trace"):
        what.add_argument(name, nargs=2, type=Path, metavar=("POINTS", "OUT"))
    args = parser.parse_args()
    source, out = args.count or args.trace
    (count if args.count else trace)(source, out, args.repeats)


if __name__ == "__main__":
    main()
