"""Two FlashInfers in one interpreter: which of them what imports, and calls in turns."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import pytest
from fake_device import Device, fake_target

from ncuflow.experiments import build
from ncuflow.experiments.variant import Overlay
from ncuflow.gpu.lock import Held
from ncuflow.race.measure import SIDES
from ncuflow.race.sides import Packages
from ncuflow.race.worker import TURNS, Worker
from ncuflow.run import timing

FILES = {
    "__init__.py": "from flashinfer.own import NAME\n",
    "own.py": "NAME = '{}'\n",
    "late.py": "from flashinfer import NAME\n",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders base and change, each with a FlashInfer, of which Python finds the base's."""
    held = {n: sys.modules.pop(n) for n in [*sys.modules] if n.partition(".")[0] == "flashinfer"}
    for side in ("base", "change"):
        folder = tmp_path / side / "flashinfer"
        folder.mkdir(parents=True)
        for name, text in FILES.items():
            (folder / name).write_text(text.format(side))
    monkeypatch.syspath_prepend(str(tmp_path / "base"))
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]
    sys.modules.update(held)


def late() -> str:
    """What a function of a launch imports when it runs."""
    return str(importlib.import_module("flashinfer.late").NAME)


def test_each_launch_imports_from_its_own_flashinfer(packages: Path) -> None:
    held = Packages()
    assert importlib.import_module("flashinfer").NAME == "base"
    held.add("change", packages / "change/flashinfer", {})
    for _ in range(2):
        for name in ("base", "change", "control"):
            with held.of(name):
                assert late() == ("change" if name == "change" else "base")
    assert late() == "base"
    with pytest.raises(ZeroDivisionError), held.of("change"):
        assert 1 / 0
    assert late() == "base"


def test_calls_and_plans_go_in_turns_each_with_its_own_package(packages, monkeypatch) -> None:
    device, seen = Device(), list[str]()
    target = fake_target(device)
    prepare = target.prepare

    def prepared(p: Any, seed: int = 0) -> Any:
        launch, made = prepare(p, seed), late()
        return replace(launch, run=lambda: seen.append(f"{made} {late()}"), plan=lambda: None)

    target.prepare = prepared
    worker = Worker(target, lambda: device)
    package = str(packages / "change/flashinfer")
    assert worker.do_beside("change", package, {}) == {"package": package}
    point, names = {"id": "fake/p1", "target": "fake", "params": {"n": 1}}, [*SIDES]
    assert [worker.do_prepare(name, point, False)["status"] for name in names] == ["ok"] * 3
    seen.clear()

    def call_times(device: Any, run: Callable[[], None], n: int) -> list[float]:
        for _ in range(n):
            run()
        return [float(len(seen) - n + i) for i in range(n)]  # the places of these calls in `seen`

    monkeypatch.setattr(timing, "call_times", call_times)
    found = worker.do_turns(names)
    assert {kind: {n: len(t) for n, t in by.items()} for kind, by in found.items()} == {
        kind: dict.fromkeys(names, TURNS) for kind in ("call", "plan")
    }
    for name, package in zip(names, ("base", "change", "base"), strict=True):
        for place in map(int, found["call"][name]):
            other = "base" if package == "change" else "change"
            # Each that counts is the second of its own, after two of the other FlashInfer.
            before = [f"{one} {one}" for one in (other, other, package, package)]
            assert seen[place - 3 : place + 1] == before
    assert {*found["call"]["base"]}.isdisjoint(found["call"]["control"])


@pytest.mark.parametrize(
    ("files", "started"),
    [
        (["decode.py", "mla/_core.py"], True),
        (["decode.py", "data/csrc/norm.cu"], False),
        (["jit/activation.py"], False),
    ],
)
def test_compiled_code_of_two_flashinfers_shares_no_process(files, started, monkeypatch) -> None:
    asked = list[str]()

    def ask(do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        asked.append(f"{do} {words['name']} {words['package']}")
        return {}

    side = nullcontext(SimpleNamespace(ask=ask))
    monkeypatch.setattr(build, "started", lambda *words: side)
    overlay = Overlay(Path("/laid/flashinfer"), None, frozenset())
    held: Any = Held(None, {}, ())  # type: ignore[arg-type]
    with ExitStack() as stack:
        found = build.together("fake", None, overlay, map(PurePath, files), held, stack)
    assert (found is not None) == started
    assert asked == (["beside change /laid/flashinfer"] if started else [])
