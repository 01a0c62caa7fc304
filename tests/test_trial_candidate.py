"""A function in place of an API: a `trace_apply` that is a few lines, and a target that calls what it replaces."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_device import none_target

from ncuflow.experiments.variant import check_function, named_function
from ncuflow.io import CommandError, UsageError
from ncuflow.race.worker import Substitute, Worker
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import Launch


class Applied:
    """FlashInfer's part: an API `twice` of one definition for each n, which is written down once, and what replaces it."""

    def __init__(self) -> None:
        self.solutions: dict[str, Callable[..., Any]] = {}
        self.hits: dict[str, dict[str, int]] = {}
        self.dumped: set[str] = set()

    def enable_apply(self, solutions: dict[str, Callable[..., Any]]) -> None:
        self.solutions = dict(solutions)

    def disable_apply(self) -> None:
        self.solutions, self.hits = {}, {}

    def stats(self) -> dict[str, dict[str, int]]:
        return self.hits

    def twice(self, n: int, value: float) -> float:
        name = f"twice_n{n}"
        if os.environ.get("FLASHINFER_TRACE_DUMP") == "1" and name not in self.dumped:
            self.dumped.add(name)
            folder = Path(os.environ["FLASHINFER_TRACE_DUMP_DIR"])
            (folder / f"{name}.json").write_text(json.dumps({"name": name}))
        status = "hit" if name in self.solutions else "fallback_no_candidate"
        self.hits.setdefault("twice", {})[status] = 1
        return self.solutions[name](value=value) if status == "hit" else 2 * value


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    found = Applied()
    package = ModuleType("flashinfer")
    package.trace_apply = found  # type: ignore[attr-defined]
    mine = SimpleNamespace(thrice=lambda value: 3 * value)
    for name, module in {
        "flashinfer": package,
        "flashinfer.trace_apply": found,
        "mine": mine,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    return found


def target(call: Callable[[int, float], float]) -> Target:
    def prepare(p: dict[str, Any], seed: int = 0) -> Launch:
        found: list[float] = []

        def run() -> None:
            found[:] = [call(p["n"], 1.0 + seed)]

        put = {"an infinity": run, "a mask": run}
        return Launch(
            run,
            lambda: tuple(found),
            lambda: (2.0 + 2 * seed,),
            1e-3,
            lambda: (),
            extremes=put,
            untold=("a mask",),
        )

    return none_target("t", prepare=prepare)


def test_the_function_is_called_at_every_point_and_with_other_inputs(applied: Applied) -> None:
    substitute = Substitute("mine:thrice")
    for n, seed in ((1, 0), (1, 1), (2, 0)):
        launch = substitute.prepare(target(applied.twice), {"n": n}, seed)
        launch.run()
        assert launch.output() == (3.0 + 3 * seed,) and [*launch.extremes] == ["an infinity"]
    assert "FLASHINFER_TRACE_DUMP" not in os.environ


def test_a_target_that_calls_no_such_api_is_told(applied: Applied) -> None:
    with pytest.raises(RuntimeError, match="calls no API that trace_apply knows"):
        Substitute("mine:thrice").prepare(target(lambda n, value: 2 * value), {"n": 1}, 0)


def test_a_function_that_was_passed_over_is_told(applied, monkeypatch):
    monkeypatch.setattr(applied, "enable_apply", lambda solutions: None)
    with pytest.raises(RuntimeError, match="its own kernel, and not the function, for twice_n1"):
        Substitute("mine:thrice").prepare(target(applied.twice), {"n": 1}, 0)


def test_a_worker_checks_the_function_and_says_where_there_is_none(applied: Applied) -> None:
    device = SimpleNamespace(
        facts=lambda: {"compute_capability": "9.0"}, alive=lambda: True, release=lambda: None
    )
    asked = {"do": "check", "point": Planned("t/n1", "t", {"n": 1}).as_dict()}
    worker = Worker(target(applied.twice), lambda: device, "mine:none")
    worker.target.unable = lambda p, gpu: None
    assert "has no attribute 'none'" in worker.answer(asked)["reason"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("a:b", "a:b"), ("pack.age.mod:f_1", "pack.age.mod:f_1"), ("a.patch", None), ("x/y:z", None), ("1:b", None), ("a:", None)],
)  # fmt: skip
def test_what_is_a_function(text: str, found: str | None) -> None:
    assert named_function(Path(text)) == found


def test_a_file_of_that_name_is_a_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").write_text("", encoding="utf-8")
    assert named_function(Path("a:b")) is None


def test_a_flashinfer_without_trace_apply_is_told_without_usage(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="a:b: this FlashInfer has no trace_apply") as ended:
        check_function("a:b", tmp_path)
    assert not isinstance(ended.value, UsageError)
    (tmp_path / "trace_apply").mkdir()
    check_function("a:b", tmp_path)
