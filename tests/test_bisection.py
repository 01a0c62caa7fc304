"""A bisection: which two versions a change lies between, on recordings and on sides that are none; noise decides nothing."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_gpus
import fake_race
import pytest
from command import ncuflow
from conftest import ROOT, some

from ncuflow.cli import dispatch
from ncuflow.experiments import bisection, versions
from ncuflow.experiments.bisection import Bisection, BisectStep, Neighbours
from ncuflow.experiments.variant import Overlay
from ncuflow.experiments.versions import CannotError, Recordings, Source, Versions, laid
from ncuflow.gpu import lock
from ncuflow.io import BadInput, CommandError, UsageError
from ncuflow.race.record import Relative
from ncuflow.race.sides import LostError, SideError
from ncuflow.sweep.points import points
from ncuflow.target.contract import load

NAMES = [f"v{n}" for n in range(10)]


def times(found: Mapping[str, float | None], half: float = 0.01) -> bisection.Hold:
    """Versions of these times, None for one that cannot run; every interval is so wide to either side."""

    def hold(base: str, head: str) -> BisectStep:
        before, after = found[base], found[head]
        assert before is not None
        if after is None:
            why = {"belongs": "passed over", "reason": "does not compile"}
            return BisectStep(base=base, head=head, **why)
        ratio = after / before - 1
        change = Relative(estimate=ratio, low=ratio - half, high=ratio + half)
        changed = abs(ratio) - half > 0.02
        side = "after" if changed else "before"
        return BisectStep(base=base, head=head, belongs=side, change=change)

    return hold


def stepping(at: int, after: float = 150.0, **others: float | None) -> dict[str, float | None]:
    return {name: 100.0 if n < at else after for n, name in enumerate(NAMES)} | others


def searched(
    found: Mapping[str, float | None], names: list[str] | None = None, half: float = 0.01
) -> tuple[Neighbours, list[BisectStep]]:
    """(the one change that is found, the steps)."""
    steps: list[BisectStep] = []
    changes = bisection.bisect(names or NAMES, times(found, half), steps.append)
    assert changes is not None
    (change,) = changes
    return change, steps


@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("after", [150.0, 60.0, 104.0])
def test_the_two_neighbours_are_found_in_a_few_steps(at: int, after: float) -> None:
    found, steps = searched(stepping(at, after))
    assert (found.before, found.after) == (f"v{at - 1}", f"v{at}")
    assert not found.between and len(steps) <= 5


def test_the_bad_one_may_be_the_older() -> None:
    found, _ = searched(stepping(4), NAMES[::-1])
    assert (found.before, found.after) == ("v4", "v3")


def test_what_cannot_run_is_stepped_over_and_named() -> None:
    found, steps = searched(stepping(6, v4=None, v5=None))
    assert (found.before, found.after, found.between) == ("v3", "v6", ["v4", "v5"])
    passed = {s.head: s.reason for s in steps if s.belongs == "passed over"}
    assert passed == dict.fromkeys(("v4", "v5"), "does not compile")


def test_noise_does_not_decide() -> None:
    # A version halfway between both ends belongs to neither.
    found, steps = searched(stepping(5, v5=122.5), half=0.02)
    assert found.between == ["v5"]
    assert next(step for step in steps if step.head == "v5").belongs == "untold"
    # A small loss on the way is not the change.
    assert searched(stepping(5, v3=104.0, v4=104.0))[0].after == "v5"


def test_the_change_is_that_of_the_version_after_it_not_of_the_last_one() -> None:
    found, _ = searched({"a": 1.0, "b": 1.3, "c": 1.5}, list("abc"))
    assert (found.before, found.after) == ("a", "b")
    assert found.change is not None and found.change.estimate == pytest.approx(0.3)


def test_without_a_change_between_the_ends_there_is_nothing_to_find() -> None:
    steps: list[BisectStep] = []
    assert bisection.bisect(NAMES, times(stepping(4, v9=100.0)), steps.append) == []
    assert bisection.bisect(NAMES, times(stepping(4, v9=None)), steps.append) is None
    assert steps[-1].reason == "does not compile"


def test_a_walk_finds_every_change_and_passes_over_what_cannot_run() -> None:
    found = stepping(3) | dict.fromkeys(NAMES[7:], 100.0) | {"v5": None, "v7": None}
    steps: list[BisectStep] = []
    changes = bisection.walk(NAMES, times(found), steps.append)
    told = [(one.before, one.after, one.between) for one in changes]
    assert told == [("v2", "v3", []), ("v6", "v8", ["v7"])]
    assert [step.base for step in steps if step.head == "v6"] == ["v4"]


def test_a_journal_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path, asked = tmp_path / "j.jsonl", list[str]()
    held = times(stepping(6, v4=None))

    def hold(base: str, head: str) -> BisectStep:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(head)
        return held(base, head)

    question = {"point": "x"}
    with pytest.raises(KeyboardInterrupt):
        bisection.bisect(NAMES, bisection.journaled(hold, path, question), asked.count)
    with path.open("a") as file:
        file.write('{"base": "v0", "he')  # what was being written
    before = asked.copy()
    found = bisection.bisect(NAMES, bisection.journaled(held, path, question), asked.count)
    assert found is not None and found[0].after == "v6"
    kept = [json.loads(line)["head"] for line in path.read_text().splitlines()[1:]]
    assert kept[: len(before)] == before and len(kept) == len(set(kept))
    with pytest.raises(BadInput, match="another bisection"):
        bisection.journaled(hold, path, {"point": "y"})


# --- recordings ---------------------------------------------------------------------------------

TENSOR = "decode/B16_L2048_H32_K8_D128_P16_f16_tc"
EVERY = [str(ROOT / "recordings/h200" / one) for one in ("*/decode", "0.6.6/versions")]


def test_the_release_at_which_auto_became_fa3_is_found_and_the_one_where_it_went_back(capsys):
    status = dispatch(["bisect", "--recorded", *EVERY, "--point", TENSOR, "--json"])
    found = Bisection.model_validate_json(capsys.readouterr().out)
    assert status == 0 and found.outcome == "found" and found.gpu == "NVIDIA H200"
    there, back = found.found
    assert (there.before, there.after) == ("0.5.3", "0.6.1")
    assert (back.before, back.after) == ("0.6.1", "0.6.6")
    assert there.change is not None and there.change.low > 1.5
    assert back.change is not None and back.change.high < -0.5
    assert any("→ PrefillWithKVCacheKernel" in cause for cause in some(there.causes))
    assert any("PrefillWithKVCacheKernel →" in cause for cause in some(back.causes))
    assert "jit/attention/modules.py" in there.files and "decode.py" in back.files


def test_two_ends_are_halved_without_a_word_of_where(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bisect", "--recorded", *EVERY, "--point", TENSOR, "--good", "0.7.2.post1"]
    assert dispatch([*words, "--bad", "0.6.1"]) == 0
    said = capsys.readouterr().out
    assert "it changed from 0.6.6 to 0.6.1" in said
    assert dispatch([*words, "--bad", "0.6.6"]) == 3
    assert "between 0.7.2.post1 and 0.6.6 it did not change" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--point", TENSOR, "--metric", "host_launch_us"], "are not judged"),
        (["--point", TENSOR, "--good", "0.6.1"], "go together"),
        (["--point", TENSOR, "--good", "0.6.1", "--bad", "9"], "no version '9'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(words, why):
    assert why in ncuflow("bisect", "--recorded", *EVERY, *words).stderr


@pytest.mark.parametrize(
    ("point", "folders", "why"),
    [
        ("decode/B32_L2048_H32_K8_D128_P16_f16_cc", "h?00/0.7.2/default", "of one GPU alone"),
        ("decode/x", "h200/*/*", "0 of these recordings' versions"),
        ("decode/x", "h200/none", "no recording matches"),
    ],
)
def test_recordings_that_do_not_go_together_are_no_matter_of_usage(point, folders, why):
    with pytest.raises(CommandError, match=why) as ended:
        Recordings([str(ROOT / "recordings" / folders)], point, "time_cold_us", 0.02, Path())
    assert not isinstance(ended.value, UsageError)


# --- where versions come from -------------------------------------------------------------------


def wheel(folder: Path, version: str, **files: str) -> None:
    """A wheel of a FlashInfer with these modules."""
    modules = {f"{name}.py": text for name, text in files.items()}
    fake_race.wheel(folder, version, {"__init__.py": f"__version__ = {version!r}\n", **modules})


def test_wheels_are_laid_apart_in_the_order_of_versions(tmp_path: Path) -> None:
    for version in ("0.6.10", "0.6.2", "0.6.9.post1"):
        wheel(tmp_path, version, same="x = 1\n", other=f"x = {version!r}\n")
    (tmp_path / "torch-2.0-py3-none-any.whl").touch()
    found = versions.wheels(tmp_path).changes
    assert list(found) == ["0.6.2", "0.6.9.post1", "0.6.10"]
    overlays = [laid(str(change), tmp_path / name) for name, change in found.items()]
    packages = [one.package for one in overlays]
    assert ["0.6.2" in (p / "__init__.py").read_text() for p in packages] == [True, False, False]
    assert versions.differing(*packages[:2]) == ["__init__.py", "other.py"]
    assert len({one.workspace for one in overlays}) == 3


def test_a_wheel_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    for version in ("0.6.1", "0.6.2"):
        (tmp_path / f"flashinfer_python-{version}-py3-none-any.whl").write_text("no wheel")
    with pytest.raises(CannotError, match="not a wheel"):
        laid(str(versions.wheels(tmp_path).changes["0.6.1"]), tmp_path / "x")
    with pytest.raises(BadInput, match="0 wheels"):
        versions.wheels(tmp_path / "none")


def test_a_version_that_is_there_is_kept_and_one_that_was_cut_off_made_again(tmp_path):
    wheel(tmp_path, "0.6.1")
    folder, change = tmp_path / "kept", f"flashinfer@{next(tmp_path.glob('*.whl'))}"
    (folder / "partial/lib/flashinfer").mkdir(parents=True)
    (folder / "partial/lib/flashinfer/left").touch()
    package = laid(change, folder).package
    assert (package / "__init__.py").exists() and not (package / "left").exists()
    (package / "mark").touch()
    assert laid(change, folder).package == package and (package / "mark").exists()


def test_values_of_a_variable_are_the_installed_one_with_each() -> None:
    found = versions.values("FLASHINFER_USE_CUDA_NORM=0,1")
    assert (dict(found.changes), found.variable) == ({"0": None, "1": None}, "FLASHINFER_USE_CUDA_NORM")  # fmt: skip
    for text in ("X", "X=1", "X=1,1", "x y=1,2"):
        with pytest.raises(UsageError):
            versions.values(text)


# --- sides that are none ------------------------------------------------------------------------


class FakeSide:
    """A side whose launches take a time of its version's; ``breaks`` is what fails."""

    def __init__(self, package: Path | None, time: float, breaks: str) -> None:
        self._package, self._time, self._breaks = package, time, breaks

    def ask(self, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        if do == self._breaks:
            raise (LostError if do == "burst" else SideError)(f"no {do}")
        answers: dict[str, dict[str, Any]] = {
            "hello": {"package": "elsewhere" if self._breaks == "path" else str(self._package), "workspace": "w"},
            "modules": {"modules": []},
            "build": {"failed": [{"name": "m", "reason": "nvcc"}] * (self._breaks == "compile")},
            "gpu": {"name": "x", "driver": "y"},
            "check": {"id": "x", "status": "wrong" if self._breaks == "right" else "ok", "reason": "far off"},
            "open": {"each_us": self._time},
            "burst": {"times": [self._time], "throttled": False},
            "close": {},
        }  # fmt: skip
        return answers[do]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Versions of times on a GPU that is none; one whose time is a word cannot be had, or breaks where it says."""
    fake_gpus.put(monkeypatch, tmp_path, fake_gpus.H200)
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(tmp_path / "locks"))

    def lay(change: str, folder: Path) -> Overlay:
        if change == "place":
            raise CannotError("not in the index")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.py").write_text("x" if change == "100.0" else "y")
        return Overlay(folder, None, frozenset())

    monkeypatch.setattr(versions, "laid", lay)

    @contextmanager
    def make(**found: float | str) -> Iterator[Versions]:
        @contextmanager
        def begin(target: str, package: Path, environ: Any, locks: Any) -> Iterator[FakeSide]:
            one = found[package.name]
            yield FakeSide(package, one if isinstance(one, float) else 100.0, str(one))

        decode = load("decode")
        (point,) = points(decode, [{}])
        source = Source("wheels", {name: str(one) for name, one in found.items()})
        with lock.gpu_lock() as gpu:
            yield Versions(source, decode, point, 0.02, 1.0, print, gpu, tmp_path / "v", begin)

    return make


def test_versions_are_timed_in_turns_and_what_cannot_run_is_passed_over(held: Any) -> None:
    broken = {"b": "place", "c": "compile", "e": "right", "f": "burst"}
    times = dict.fromkeys("abcd", 100.0) | dict.fromkeys("efgh", 130.0) | broken
    with held(**times) as sides:
        steps: list[BisectStep] = []
        (found,) = bisection.bisect(list(times), sides.hold, steps.append) or []
        sides.explain(found)
    assert (found.before, found.after, found.between) == ("d", "g", ["e", "f"])
    assert found.change is not None and found.change.estimate == pytest.approx(0.3)
    assert found.files == ["a.py"]
    reasons = {step.head: str(step.reason) for step in steps if step.belongs == "passed over"}
    assert "far off" in reasons["e"] and "no burst" in reasons["f"]


def test_what_cannot_be_had_or_compiled_says_why(held: Any) -> None:
    with held(a=100.0, b="place", c="compile", d="path") as sides:
        assert sides.hold("a", "b").reason == "not in the index"
        assert "another FlashInfer first" in str(sides.hold("a", "d").reason)
        assert sides.hold("a", "c").reason == "m: nvcc"
        with pytest.raises(CommandError, match="c: m: nvcc"):
            sides.hold("c", "a")


def test_the_versions_between_two_are_in_the_direction_from_the_good_one() -> None:
    assert bisection.between(NAMES, "v2", "v5") == ["v2", "v3", "v4", "v5"]
    assert bisection.between(NAMES, "v5", "v3") == ["v5", "v4", "v3"]
    assert bisection.between(NAMES, None, None) == NAMES
