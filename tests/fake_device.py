"""A device and a target of numbers, for runs without a GPU."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ncuflow.run import prepare, timing
from ncuflow.run.launch import line_of
from ncuflow.run.prepare import Record, Run
from ncuflow.run.visits import run_points
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import Launch

Numbers = tuple[float, ...]


class Device:
    """A device whose tensors are numbers; it writes down what it was asked to do."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.answers = True
        self.unwritten = False
        self.throttled: list[tuple[str, ...]] = []  # of the cold bursts to come
        self.states: list[dict[str, Any] | None] = []  # answers of clocks(), the last one for good

    def facts(self) -> dict[str, Any]:
        return {"name": "fake", "compute_capability": "9.0", "memory_bytes": 1 << 34}

    def driver(self) -> str | None:
        return "580.159.04"

    def synchronize(self) -> None: ...

    def alive(self) -> bool:
        return self.answers

    def release(self) -> None:
        self.log.append("release")

    def begin(self) -> None: ...

    def peak_memory(self) -> int:
        return 1234

    def poison(self, launch: Launch) -> None:
        self.log.append("poison")

    def written(self, launch: Launch) -> bool:
        return not self.unwritten

    def on_side_stream(self, launch: Launch) -> tuple[float, ...]:
        launch.run()
        return launch.output()

    def differences(self, outputs: Numbers, expected: Numbers) -> list[tuple[float, float]]:
        pairs = zip(outputs, expected, strict=True)
        return [(abs(o - e) / abs(e), abs(o - e)) for o, e in pairs]

    def comparable(self, outputs: Numbers, expected: Numbers) -> tuple[Numbers, Numbers]:
        return outputs, expected

    def worst(self, outputs: Numbers, expected: Numbers) -> dict[str, Any]:
        pairs = list(zip(outputs, expected, strict=True))
        far = max(range(len(pairs)), key=lambda i: abs(pairs[i][0] - pairs[i][1]))
        return {"output": far, "index": [0], "got": pairs[far][0], "expected": pairs[far][1]}

    def flush(self) -> None:
        self.log.append("flush")

    def cold(self, run: Callable[[], None], n: int) -> timing.Burst:
        self.log.append(f"cold {n}")
        run()
        return timing.Burst([10.0 + i for i in range(n)], True, 1900.0, self.throttle())

    def hot(self, run: Callable[[], None], n: int, group: int) -> timing.Burst:
        self.log.append(f"hot {n} x {group}")
        run()
        return timing.Burst([5.0] * n, False, 1800.0)

    def steady(self, run: Callable[[], None], n: int, group: int) -> timing.Burst:
        self.log.append(f"steady {n} x {group}")
        return timing.Burst([6.0 + i for i in range(n)], True, 1500.0, ("sw_power_cap",))

    def settle(self) -> None:
        self.log.append("settle")

    def floor_us(self) -> float:
        return 2.5

    def throttle(self) -> tuple[str, ...]:
        """Throttle reasons of the next burst, as ``throttled`` says."""
        return self.throttled.pop(0) if self.throttled else ()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.log.append(f"<{name}")
        yield
        self.log.append(f"{name}>")

    @contextmanager
    def profiled(self) -> Iterator[None]:
        self.log.append("start")
        yield
        self.log.append("stop")

    def clocks(self) -> dict[str, Any] | None:
        if not self.states:
            return None
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def fake_target(device: Device, **kinds: Any) -> Any:
    """A target of points {"n": 1}, ...; ``kinds`` maps p<n> to what its launch does.

    A kind is a number (the output; the reference is 2), "skip", an exception to raise, or a
    function to call.
    """

    def skip(p: dict[str, Any], facts: dict[str, Any]) -> str | None:
        return "not here" if kinds.get(f"p{p['n']}") == "skip" else None

    def prepare(p: dict[str, Any], seed: int = 0) -> Launch:
        kind = kinds.get(f"p{p['n']}", 2.0)

        def run() -> None:
            device.log.append("run")
            if isinstance(kind, BaseException):
                raise kind
            if callable(kind):
                kind()

        return Launch(
            run=run,
            output=lambda: (2.0 if callable(kind) else kind,),
            reference=lambda: (2.0,),
            tolerance=0.01,
            buffers=lambda: (),
            plan=lambda: device.log.append("plan"),
            reset=lambda: device.log.append("reset"),
            info={"split_kv": False, "seed": seed},
        )

    found = SimpleNamespace(
        name="fake", parameters={"n": 1}, choices={}, skip=skip, prepare=prepare
    )
    found.point_id, found.edges = (lambda p: f"fake/p{p['n']}"), (lambda p: [])
    found.work = lambda p: Work(1, 2, "none")
    return found


def none_target(name: str = "none", **given: Any) -> Target:
    """A target that launches nothing; given: what it has beside that."""
    own = {
        "title": name.title(),
        "parameters": {"n": 1},
        "id": "n{n}",
        "prepare": lambda p, seed=0: None,
    }
    return Target(name=name, work=lambda p: Work(1, 1, "none"), **own | given)


def made(n: int) -> list[Planned]:
    return [Planned(f"fake/p{i}", "fake", {"n": i}) for i in range(1, n + 1)]


def ran(
    device: Device, mode: str = "time", n: int = 1, planted: str = "", **kinds: Any
) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, records, those that stand if no other process goes on among them) of a run over n points."""
    records: list[Record] = []
    run = Run(device, fake_target(device, **kinds), mode, seed=7)
    run.faults = prepare.planted_faults({prepare.VARIABLE: planted})
    status = run_points(run, made(n), records.append)
    records += run.rest
    return status, as_written(records)


def as_written(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The records as a file holds them."""
    return [json.loads(line_of(record, None)) for record in records]


def points_file(folder: Path, entries: Any) -> Path:
    path = folder / "points.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), "utf-8")
    return path
