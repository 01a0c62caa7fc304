"""`ncuflow advise` from end to end: real processes and pipes; FlashInfer and the GPU are none."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import fake_race
import pytest
from command import python
from conftest import some
from fake_race import FAKE

from ncuflow.experiments import audit
from ncuflow.experiments.audit import Audit
from ncuflow.experiments.record import Advice
from ncuflow.io import BadInput


def advised(machine: Path, *words: str) -> tuple[int, str, Any]:
    """(exit status, output, what was written or None) of an advice."""
    page = [] if "--audit" in words else ["--html", str(machine / "page.html")]
    return fake_race.recorded(machine, "advise", "--patience", "2", *page, *words)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = fake_race.make(tmp_path_factory.mktemp("machine"))
    shutil.copytree(FAKE / "flashinfer", folder / "flashinfer")
    return folder


@pytest.fixture(scope="module")
def raced(machine) -> tuple[int, str, Advice]:
    words = ["--target", "thrice", "--blocks", '[{"n": [1, 2]}]', "--apply", "python", "advised.py"]
    status, said, found = advised(machine, *words, "--apply", "flashinfer-store", "kept")
    assert found is not None, said
    return status, said, Advice.model_validate(found)


def test_the_fastest_that_is_right_is_advised_at_every_shape(raced):
    status, said, found = raced
    assert status == 0, said
    assert [shape.shape for shape in found.shapes] == ["thrice/auto_n1", "thrice/auto_n2"]
    for shape in some(found.shapes):
        assert (shape.outcome, shape.advised) == ("winner", f"thrice/fast_n{shape.params['n']}")
        assert shape.regret is not None and shape.regret.low < 1.5 < shape.regret.high
        chosen: Any = shape.choice(shape.advised)
        assert chosen.asked == {"wrapper": {"how": "fast"}} and chosen.departs == 1
    assert re.search(r"how=fast +40.0 ", said) and "its time, µs" in said and "2.50 times" in said


def test_a_choice_that_fails_costs_itself_alone_and_says_why(raced):
    _, said, found = raced
    fates = {choice.settings["how"]: choice for choice in found.shapes[0].choices}
    expected = {
        "auto": "slower",
        "same": "same",
        "fast": "best",
        "slow": "slower",
        "tuned": "slower",
    }
    expected |= {"wrong": "wrong", "raises": "error", "never": "skipped"}
    expected |= dict.fromkeys(("hangs", "dies", "late"), "lost")
    assert {how: choice.fate for how, choice in fates.items()} == expected
    assert fates["never"].reason == "not on this GPU"
    # plan() says that `auto` is `same`: one call, which is timed once.
    assert fates["same"].reason == "the call of thrice/auto_n1: how=auto is same here"
    assert fates["same"].time_us is None and fates["auto"].resolved == {"how": "same"}
    assert "no such kernel" in str(fates["raises"].reason)
    assert "did not end within 2 s" in str(fates["hangs"].reason)
    assert all(fates[how].time_us is None for how in ("wrong", "raises", "hangs", "never"))
    assert "thrice/wrong_n1 and 1 more choice: wrong: relative L2 error" in said
    again = {choice.settings["how"]: choice for choice in found.shapes[1].choices}
    for how in ("hangs", "dies", "late"):
        reason = f"not tried: it was lost at thrice/{how}_n1"
        assert (again[how].fate, again[how].reason) == ("skipped", reason)


def test_a_plan_that_takes_longer_is_paid_by_so_many_layers(raced):
    layers = raced[2].shapes[0].layers
    # plan() sleeps for 20 ms, a layer gains 60 µs; a machine that is busy sleeps longer
    assert layers is not None and 330 <= layers < 3000


def key(n: int, operation: str = "thrice") -> str:
    return str((operation, "Runner", ((n,),), ()))


def store(folder: Path, **entries: tuple[str, Any]) -> Path:
    """A store as FlashInfer's autotuner leaves one: entries by their file's name."""
    place = folder / "v2/0123456789abcdef/entries"
    place.mkdir(parents=True)
    (place.parent / "manifest.json").write_text(json.dumps({"gpu": folder.name}))
    for name, (of, tactic) in entries.items():
        entry = {"key": of, "runner": "Runner", "tactic": tactic}
        (place / f"{name}.json").write_text(json.dumps(entry))
    return folder


def test_an_audit_says_which_stored_tactics_are_right_and_what_the_others_cost(machine, tmp_path):
    kept = store(
        tmp_path / "s",
        slow=(key(1), 0),
        tie=(key(2), 4),
        wrong=(key(3), 2),
        strange=(key(4, "other"), 0),
        elsewhere=(key(5).replace("()", "(7,)"), 0),
    )
    status, said, found = advised(machine, "--audit", str(kept), "--target", "thrice")
    assert found is not None and status == 3, said
    audit = Audit.model_validate(found)
    entries = {entry.key: entry for entry in audit.entries}
    slow, tie, wrong = (entries[key(n)] for n in (1, 2, 3))
    assert (slow.verdict, tie.verdict) == ("wrong", "within noise")
    assert slow.cost is not None and slow.cost.low < 0.25 < slow.cost.high
    assert sorted(slow.best) == ["1", "4"]
    assert (slow.tactics, slow.failed) == (3, 2)
    assert wrong.reason == "the stored tactic gives a wrong result here, or fails"
    assert entries[key(4, "other")].reason == "no target makes this call"
    elsewhere = next(entry for of, entry in entries.items() if "(7,)" in of)
    assert elsewhere.reason == "the call of this shape is kept under another key here"
    assert "1 within noise, 1 wrong, 3 not timed" in said


def test_two_stores_are_compared_without_a_gpu(tmp_path: Path) -> None:
    first = store(tmp_path / "a", x=(key(1), 0), y=(key(2), [1, 2]), z=(key(3), 0))
    other = {"_metadata": {"gpu": "b"}, key(1): ["Runner", 0], key(2): ["Runner", [1, 3]]}
    (tmp_path / "b.json").write_text(json.dumps(other))
    found = audit.compare_stores(audit.read_store(first), audit.read_store(tmp_path / "b.json"))
    assert (found.same, found.only_first, found.only_second) == (1, [key(3)], [])
    assert [(one.first, one.second) for one in found.different] == [
        ("Runner [1, 2]", "Runner [1, 3]")
    ]
    assert found.environments == {"gpu": ["a", "b"]}


@pytest.mark.parametrize("text", ["[]", '{"_metadata": {}}', '{"key": 3}', "not JSON"])
def test_what_is_no_store_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store.json"
    path.write_text(text)
    with pytest.raises(BadInput):
        audit.read_store(path)


def test_the_page_has_a_map_and_every_choice(machine, raced):
    text = (machine / "page.html").read_text()
    assert '<td class="c0"><a href="#thrice_auto_n2">how=fast</a><small>2.50 times' in text
    assert all(f"error: {one.reason}" in text for one in some(_errors(raced[2])))
    assert text.count("<script") == 1  # the page's own, for its tables as CSV


def _errors(found: Advice) -> list[Any]:
    return [one for one in found.shapes[0].choices if one.fate == "error"]


def test_an_advice_is_applied_by_a_module_and_by_flashinfers_own_store(machine, raced):
    assert "kept: FlashInfer's autotuner keeps 2 choices of 2 of 2 shapes" in raced[1]
    assert len(list((machine / "kept").rglob("entries/*.json"))) == 2
    ask = 'import advised; print(advised.choose("thrice", {"n": 2})["wrapper"])'
    done = python("-c", ask, cwd=machine)
    assert done.stdout == "{'how': 'fast'}\n"
