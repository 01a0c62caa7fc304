"""Changes that are faster on two GPUs: for FlashInfer's maintainers, a page of each, and a table of all.

They are those of examples/changes whose recorded trials have a point that is faster on one GPU and on another, and none at
which the change is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ncuflow.experiments import text
from ncuflow.experiments.record import PointTrial, Trial
from ncuflow.format import change as relative
from ncuflow.pages.markdown.rendering import environment, single_spaced
from scripts import outcomes
from scripts.outcomes import Example

GPUS = 2  # that a point is faster on
RIGHT = ("faster", "same", "slower", "undecided")  # outcomes of a change that is wrong nowhere
TABLE = "README.md"


@dataclass(frozen=True)
class Speedup:
    """A change, its trials by GPU, and the ids of the points that are faster on at least two."""

    example: Example
    trials: dict[str, Trial]
    holds: frozenset[str]

    def table(self, helps: bool) -> tuple[list[str], list[list[str]]]:
        """(head, rows) of the points that are faster on two GPUs, or of those that are not, each on every GPU."""
        chosen = [
            (gpu, point)
            for gpu, trial in self.trials.items()
            for point in _timed(trial)
            if (point.point in self.holds) == helps
        ]
        head, rows = text.times([point for _, point in chosen])
        return ["GPU", *head], [[gpu, *row] for (gpu, _), row in zip(chosen, rows, strict=True)]

    @property
    def by_gpu(self) -> dict[str, str]:
        """The least and the largest difference of the points that it holds at."""
        found = {}
        for gpu, trial in self.trials.items():
            held = (p.timing for p in trial.points if p.point in self.holds)
            times = [timing.change.estimate for timing in held if timing]
            if times:
                bounds = dict.fromkeys(relative(value) for value in (max(times), min(times)))
                found[gpu] = " to ".join(bounds)
        return found


def pages(examples: Path, folder: Path) -> dict[Path, str]:
    """The text of every page by its file in a folder; none before a second GPU was there."""
    found = [one for example in outcomes.examples(examples) if (one := speedup(example))]
    if not found:
        return {}
    made = {folder / f"{one.example.name}.md": page(one) for one in found}
    return made | {folder / TABLE: table(found)}


def speedup(example: Example) -> Speedup | None:
    """What of a change holds on two GPUs; None where nothing does, or it is wrong on one."""
    trials = [trial for trial in (example.trial, *example.others) if trial is not None]
    if any(trial.outcome not in RIGHT for trial in trials):
        return None
    by_gpu = {trial.gpu: trial for trial in trials if trial.gpu is not None}
    faster = [{p.point for p in _timed(t) if p.outcome == "faster"} for t in by_gpu.values()]
    named = {point for points in faster for point in points}
    holds = frozenset(p for p in named if sum(p in points for points in faster) >= GPUS)
    return Speedup(example, by_gpu, holds) if holds else None


def page(found: Speedup) -> str:
    """The page of one change."""
    example, trials = found.example, list(found.trials.values())
    folder = example.folder
    given = {
        "title": example.title,
        "name": example.name,
        "what": Markup(_prose(folder / "README.md")),
        "helps": found.table(True),
        "others": found.table(False),
        "untried": _untried(found),
        "effect": trials[0].effect,
        "alpha": trials[0].alpha,
        "machines": [(t.gpu, t.driver, t.flashinfer, t.date) for t in trials],
        "why": [
            [f"{t.gpu}, {first}", *rest] for t in trials for p in _timed(t) if p.causes and p.point in found.holds
            for first, *rest in [text.reasons(p)]
        ],
        "right": [(t.gpu, *_right(t)) for t in trials],
        "command": example.tried_at([*example.blocks, *example.elsewhere]),
    }  # fmt: skip
    return single_spaced(
        environment(outcomes.TEMPLATES).get_template("speedup.md.j2").render(given)
    )


def _prose(readme: Path) -> str:
    """What a README says, without its heading: Markdown of our own."""
    return readme.read_text(encoding="utf-8").partition("\n")[2].strip()


def _untried(found: Speedup) -> list[str]:
    """GPUs on which only points were tried that it holds at."""
    return [g for g, t in found.trials.items() if {p.point for p in _timed(t)} <= found.holds]


def table(found: list[Speedup]) -> str:
    """The table of all."""
    gpus = list(dict.fromkeys(gpu for one in found for gpu in one.trials))
    rows = [
        (f"{one.example.name}.md", one.example.title, [one.by_gpu.get(gpu) for gpu in gpus])
        for one in found
    ]
    versions = sorted({str(trial.flashinfer) for one in found for trial in one.trials.values()})
    given = {"gpus": gpus, "rows": rows, "versions": versions}
    return single_spaced(
        environment(outcomes.TEMPLATES).get_template("speedups.md.j2").render(given)
    )


def _timed(trial: Trial) -> list[PointTrial]:
    return [point for point in trial.points if point.timing is not None]


def _right(trial: Trial) -> tuple[int, int, int]:
    """(inputs that are right, inputs, those that are no point of the trial)."""
    cases = {case.id: case for point in trial.points for case in point.cases}
    edges = cases.keys() - {point.point for point in trial.points}
    return sum(case.status == "ok" for case in cases.values()), len(cases), len(edges)
