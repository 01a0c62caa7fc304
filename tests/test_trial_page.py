"""The page of a trial: what its record says, as text, in one small file."""

import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
import trial_data
from command import ncuflow
from conftest import some

from ncuflow.cli import dispatch
from ncuflow.experiments.record import EXIT, Trial, Trials, read
from ncuflow.experiments.text import ranking
from ncuflow.experiments.trial import TrialPlan
from ncuflow.io import BadInput
from ncuflow.pages.html import experiments as page

HOSTILE = "<img src=x onerror=alert(1)>\"'&lt;</td></style><script>alert(1)</script>{{ 7*7 }}\x1b[31m\u202e"


class Parsed(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


def every(said: trial_data.Said = trial_data.as_is) -> list[Trial]:
    return [trial_data.trial(said), trial_data.wrong(said), trial_data.broken(said)]


@pytest.mark.parametrize("number", range(3))
def test_whatever_a_record_says_is_text(number: int) -> None:
    plain = Parsed(page.rendered([every()[number]]))
    hostile = every(lambda text: text + HOSTILE)[number]
    # A line of the difference that markup follows stays that line.
    hostile.change.diff = "".join(f"{x}{HOSTILE}\n" for x in trial_data.DIFF.splitlines())
    text = page.rendered([hostile])
    assert Parsed(text).elements == plain.elements
    assert "<img" not in text and text.count("<script") == 1 and "49" not in Parsed(text).said
    assert "\x1b" not in text and "\u202e" not in text


def test_it_says_what_the_record_has() -> None:
    said = Parsed(page.rendered([trial_data.trial()])).said
    for words in some(
        [
            "slow.patch at twice: slower",
            "GPU NVIDIA H200",
            "twice/toy_n3 slower 100 110 +10.0 % (+9.5 to +10.5)",
            "+10 µs (100 % of the difference): ToyKernel: compiled code",
            "registers 40 → registers 48",
            "long_scoreboard +10 µs",
            "+0.25 µs are left: no more than runs of one side differ by.",
            "-  return 100.0;",
            "+  return 110.0;",
            "registers 40 48",
            "+4 LDL",
            "2 of 2 inputs are right",
            "DRAM bytes read 33.6 MB 33.6 MB",
            "75.0 % toy.cuh:7 return x; wait",
            "75.0 % toy.cuh:8 return x; wait",
            "25.0 % LDG.E R2, [R4]",
        ]
    ):
        assert " ".join(words.split()) in said, words


def test_it_has_one_minus_sign() -> None:
    faster = trial_data.trial()
    timing = faster.points[0].timing
    timing.change.estimate, timing.change.low, timing.change.high = -0.1, -0.12, -0.08
    view = page.TrialView(faster, 1)
    assert page.adds(-10.0) == "−10 µs"
    assert any(text.startswith("−") for _, text in view.axis.ticks)
    text = page.rendered([faster])
    assert "−10.0 % (−12.0 to −8.0)" in text and "between −12.0 % and −8.0 %" in text


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    said = Parsed(page.rendered([trial_data.trial()])).said
    assert "shared memory a block, bytes – –" in said
    assert "Local memory bytes 0 B 0 B" in said
    assert "static shared memory – 1024" in said  # of a kernel that the base does not have
    said = Parsed(page.rendered([trial_data.wrong()])).said
    assert "output 0 at [3, 1] is not finite, expected 8 (seed 1)" in said
    assert "ncu" not in said.split("driver")[1].split("date")[0]


def test_a_place_without_a_line_and_a_difference_beyond_numbers_are_left_out() -> None:
    trial = trial_data.trial()
    counters = trial.points[0].counters
    assert counters is not None
    counters.base[0].hot[0].line = None
    counters.base[0].metrics["dram_bytes_read"] = 1e-320
    said = Parsed(page.rendered([trial])).said
    assert "toy.cuh return x;" in said and "None" not in said and "inf %" not in said


def test_it_needs_nothing_beside_it_and_asks_for_nothing() -> None:
    text = page.rendered(every())
    asks = r"<link(?! rel=\"icon\" href=\"data:,\")|src=|https?://|@import|url\("
    assert not re.findall(asks, text)
    assert "default-src 'none'" in text and text.count("<script") == 1


def test_it_stays_small_however_many_points_there_are() -> None:
    many = [trial_data.point(trial_data.as_is, n) for n in range(150)]
    diff = "\n".join(f"+{'x' * 60}" for _ in range(650))
    large = trial_data.trial(points=many)
    large.change.diff = diff
    text = page.rendered([large])
    assert len(text.encode()) <= page.BUDGET
    said = Parsed(text).said
    assert all(point.point in said for point in many)
    left = re.search(r"Counters of (\d+) more points are in the record", said)
    assert left and said.count("Counters at") == 150 - int(left[1]) > 0


def test_points_that_differ_come_first_where_not_all_have_their_counters() -> None:
    points = [trial_data.point(trial_data.as_is, n, 100.0, "same") for n in range(3)]
    points.append(trial_data.point(trial_data.as_is, 9))
    view = page.TrialView(trial_data.trial(points=points), 1)
    assert [one.point.point for one in view.counted] == ["twice/toy_n9"] and view.left_out == 3


def test_an_interval_is_drawn_where_it_lies() -> None:
    trial = trial_data.trial()
    slower, same = (page.TrialView(trial, 9).strip(point) for point in trial.points)
    assert slower["effect"][1] < slower["low"] < slower["middle"] < slower["high"] <= page.WIDTH
    assert same["effect"][0] < same["low"] < same["zero"] < same["high"] < same["effect"][1]


def write(folder: Path, trials: Sequence[Trial]) -> Path:
    path = folder / "trial.json"
    record = trials[0] if len(trials) == 1 else Trials(trials=list(trials))
    path.write_text(record.model_dump_json())
    return path


def test_a_page_is_made_of_the_record_alone(tmp_path, capsys):
    out = tmp_path / "try.html"
    record = write(tmp_path, [trial_data.trial()])
    assert ncuflow("try", "--from", record, "--html", out).returncode == 0
    assert out.read_text(encoding="utf-8") == page.rendered([trial_data.trial()])
    dispatch(["trial-page", str(write(tmp_path, every())), "--out", str(out)])
    said = Parsed(out.read_text(encoding="utf-8")).said
    assert "3 changes" in said and "slow.patch 1 +4.9 % slower" in said
    assert "slow.patch – – not compiled" in said
    assert "kB" in capsys.readouterr().err


def test_try_writes_it_and_leaves_standard_output_to_the_record(tmp_path, monkeypatch, capsys):
    def tried(changes: Sequence[Path], plan: TrialPlan) -> Iterator[Trial]:
        assert [change.name for change in changes] == ["x.patch", "y.patch", "z.patch"]
        yield from every()

    monkeypatch.setattr("ncuflow.experiments.trial.tried", tried)
    monkeypatch.chdir(tmp_path)
    for name in ("x.patch", "y.patch", "z.patch"):
        Path(name).touch()
    out, record = tmp_path / "try.html", tmp_path / "try.json"
    given = ["try", "x.patch", "y.patch", "--target", "decode", "--html", str(out)]
    assert dispatch([*given, "--json", str(record), "z.patch"]) == EXIT[every()[0].outcome]
    assert out.read_text(encoding="utf-8") == page.rendered(every())
    assert {trial.change.name for trial in read(record)} == {t.change.name for t in every()}
    capsys.readouterr()
    dispatch([*given, "z.patch", "--json"])
    assert len(json.loads(capsys.readouterr().out)["trials"]) == len(every())


def test_what_was_tried_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = str(write(tmp_path, every()))
    assert dispatch(["try", "--from", record]) == 0
    assert capsys.readouterr().out.endswith(ranking(every()))
    assert dispatch(["try", "--from", record, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == len(every())
    for more in (["x.patch"], ["--target", "decode"], ["--json", "other.json"]):
        assert "--from is of what was tried" in ncuflow("try", *more, "--from", record).stderr


@pytest.mark.parametrize("content", ["{}", "[", '{"schema_version": 2}'])
def test_what_is_no_record_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        read(path)
    assert "not" in str(refused.value) and "\n" not in str(refused.value)


def test_a_record_without_a_trial_is_one_line_and_no_page(tmp_path: Path) -> None:
    path, out = tmp_path / "none.json", tmp_path / "try.html"
    path.write_text('{"schema_version": 1, "trials": []}')
    with pytest.raises(BadInput, match=r"none\.json: the record of no trial$"):
        dispatch(["try", "--from", str(path), "--html", str(out)])
    assert not out.exists()


def test_a_module_says_how_long_it_was_compiled_and_which_file_took_that() -> None:
    trial = trial_data.trial()
    took = "toy : compiled anew in 24 s (toy.cuda.o 20 s), it reads toy.cuh"
    assert took in Parsed(page.rendered([trial])).said
    trial.modules[0].compile_s, trial.modules[0].files = None, []
    assert "toy : compiled anew, it reads toy.cuh" in Parsed(page.rendered([trial])).said
