"""The modules of several changes: sides that only say what they are asked, and a graph for all of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import Mock

import pytest
from fake_device import none_target

from ncuflow.experiments import build
from ncuflow.experiments.build import NotCompiledError, built
from ncuflow.experiments.variant import Overlay
from ncuflow.race.sides import BaseError, LostError, SideError
from ncuflow.sweep.points import Planned

TARGET = none_target()
POINT = Planned("none/n1", "none", {"n": 1})
INSTALLED = Path("/installed/flashinfer")


def broken(name: str, *points: str) -> dict[str, Any]:
    """What a side says of a module that it cannot build."""
    points = points or (POINT.id,)
    return {"name": name, "points": list(points), "reason": "no", "complaint": None}


class Scripted:
    """A side with one module that is never found built; `fails`: what it answers with an error."""

    def __init__(self, log: list[str], package: Path, fails: Mapping[str, Any]) -> None:
        self.log, self.package, self.fails = log, package, fails
        self.name = package.parent.name

    def ask(self, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        names = [Path(m["library"]).parent.name for m in words.get("modules", [])]
        self.log.append(" ".join([self.name, do, *names]))
        if isinstance(self.fails.get(do), Exception):
            raise self.fails[do]
        folder = f"/{self.name}"
        module = {"name": "m", "folder": folder, "library": f"{folder}/m.so", "files": 3}
        return {
            "hello": {"package": str(self.package), "workspace": f"/{self.name}"},
            "modules": {"modules": [module]},
            "build": {"failed": self.fails.get("build", [])},
        }.get(do, {"name": "H100", "driver": "1"})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the sides were asked; folders of changes named after how they fail."""
    said: list[str] = []
    fails = {
        "unimportable": {"hello": SideError("SyntaxError")},
        "broken": {"build": [broken("m")]},
    }

    @contextmanager
    def started(target: str, package: Path | None = None, *rest: Any) -> Iterator[Scripted]:
        how = fails.get(package.parent.name if package else "", {})
        side = Scripted(said, package or INSTALLED, how)
        try:
            yield side
        finally:
            said.append(f"{side.name} ends")

    monkeypatch.setattr(build, "started", started)
    monkeypatch.setattr(build.nvml, "capabilities", list)
    monkeypatch.setattr(build, "reached", lambda base, other, *rest: {m.name: "why" for m in other})
    monkeypatch.setattr(build, "reuse", lambda *rest: [])
    monkeypatch.setattr(build, "compare_code", lambda *rest: None)
    return said


def overlay(name: str) -> Overlay:
    files = frozenset({PurePosixPath("x")})
    return Overlay(Path(f"/{name}/flashinfer"), Path(f"/{name}/jit"), files)


def test_all_changes_are_compiled_in_one_graph_and_one_that_fails_costs_itself(log):
    names = ["a", "unimportable", "broken", "b"]
    told: list[str] = []
    found, _ = built(TARGET, [POINT], INSTALLED, [overlay(n) for n in names], 4, told.append)
    reasons = [change.failing.get(POINT.id) for change in found]
    assert reasons == [None, NotCompiledError("SyntaxError"), NotCompiledError("m: no"), None]
    assert [len(change.records) for change in found] == [1, 0, 0, 1]
    assert "compiling 3 modules of 4 changes" in told
    (graph,) = [n for n, line in enumerate(log) if " compile" in line]
    assert log[graph] == "installed compile a broken b"
    # Before it all have generated what they need, and none builds alone.
    assert {"a modules", "broken modules", "b modules", "installed build"} <= set(log[:graph])
    assert {"a build", "broken build", "b build"} <= set(log[graph:])
    assert "unimportable build" not in log


def test_a_base_that_is_lost_at_the_graph_ends_the_trial(log, monkeypatch):
    ask = Scripted.ask

    def lost(side: Scripted, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        if do == "compile":
            raise LostError("gone")
        return ask(side, do, limit_s, **words)

    monkeypatch.setattr(Scripted, "ask", lost)
    with pytest.raises(BaseError, match="the base: gone"):
        built(TARGET, [POINT], INSTALLED, [overlay("a"), overlay("b")], 4, lambda line: None)


def test_one_change_alone_is_built_by_its_own_side(log: list[str]) -> None:
    (change,), _ = built(TARGET, [POINT], INSTALLED, [overlay("a")], None, lambda line: None)
    assert [(module.name, module.why) for module in change.records] == [("m", "why")]
    assert not any(" compile" in line for line in log)


def test_a_change_has_the_modules_of_its_own_points_alone(log, monkeypatch):
    ask = Scripted.ask
    seen: dict[str, list[str]] = {}

    def noting(side: Scripted, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        if do == "modules":
            seen[side.name] = [point["id"] for point in words["points"]]
        return ask(side, do, limit_s, **words)

    monkeypatch.setattr(Scripted, "ask", noting)
    other = Planned("none/n2", "none", {"n": 2})
    both, changes = [POINT, other], [overlay("a"), overlay("b")]
    built(TARGET, both, INSTALLED, changes, 4, lambda line: None, each=[[POINT], [other]])
    assert seen == {"installed": ["none/n1", "none/n2"], "a": ["none/n1"], "b": ["none/n2"]}


def test_a_base_that_fails_ends_the_trial_where_the_point_is_not_spare(log, monkeypatch):
    other = Planned("none/n2", "none", {"n": 2})
    ask = Scripted.ask

    def failing(side: Scripted, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        found = ask(side, do, limit_s, **words)
        if do == "build" and side.name == "installed":
            found["failed"] = [broken("m", other.id)]
        return found

    monkeypatch.setattr(Scripted, "ask", failing)
    given = (INSTALLED, [overlay("a")], 4, lambda line: None)
    found, base = built(TARGET, [POINT], *given, spare=[other])
    assert base == {other.id: NotCompiledError("m: no")} and found[0].failing == {}
    # The change compiles what the base cannot: its code has nothing to be compared with.
    assert [m.not_compared for m in found[0].records] == ["the base has no module of this name"]
    with pytest.raises(BaseError, match="the base: m: no"):
        built(TARGET, [POINT, other], *given)


def test_without_a_change_the_base_is_built(log: list[str]) -> None:
    assert built(TARGET, [POINT], INSTALLED, [], 4, lambda line: None) == ([], {})
    assert "installed build" in log


@contextmanager
def bench(changes: list[Overlay], monkeypatch: pytest.MonkeyPatch) -> Iterator[build.VariantBench]:
    @contextmanager
    def lock() -> Iterator[Any]:
        yield type("Ours", (), {"environ": {}, "locks": ()})

    monkeypatch.setattr(build.lock, "gpu_lock", lock)
    with build.bench("none", changes, 5.0, lambda line: None) as found:
        yield found


def test_the_base_serves_all_changes_and_these_start_together(log, monkeypatch):
    monkeypatch.setattr(build, "TOGETHER", 2)
    changes = [overlay(name) for name in "abc"]
    with bench(changes, monkeypatch) as found:
        for place in range(len(changes)):
            with found.of(place) as sides:
                sides.change.ask("check", 1.0)
    order = [line for line in log if not line.startswith("installed")]
    assert sorted(order[:2]) == ["a gpu", "b gpu"] and order[2:] == [
        "a check", "a ends", "b check", "b ends", "c gpu", "c check", "c ends"
    ]  # fmt: skip
    assert log.count("installed gpu") == log.count("installed ends") == 2


def test_changes_that_are_not_asked_for_end_too(log, monkeypatch):
    changes = [overlay("a"), overlay("b")]
    with bench(changes, monkeypatch) as found, found.of(0):
        pass
    assert {"a ends", "b ends"} <= set(log) and log.count("installed ends") == 2


def test_a_base_that_finds_no_gpu_ends_the_trial(log, monkeypatch):
    monkeypatch.setattr(Scripted, "ask", Mock(side_effect=LostError("gone")))
    with pytest.raises(BaseError, match="the base: gone"), bench([overlay("a")], monkeypatch):
        pass
    assert log.count("installed ends") == 2 and "a ends" in log
