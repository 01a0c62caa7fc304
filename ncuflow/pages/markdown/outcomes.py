"""Recorded trials of the changes in examples/changes: a page of each, and a table of all.

A change's folder has change.patch, README.md, try.json (what it is tried at and what is expected of it) and, once it was
tried on a GPU, the record of that.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.format import change as relative
from ncuflow.io import BadInput, read_json
from ncuflow.pages.markdown.rendering import environment
from ncuflow.pages.markdown.text import single_spaced
from ncuflow.trial import screen
from ncuflow.trial.record import Trial, read

KERNELS = 3  # whose code differs, that a page has
RECORD, PAGE, TABLE = "trial.json.xz", "page.md", "README.md"


@dataclass(frozen=True)
class Example:
    """A change, what is expected of it, and what came of it; trial: None where that is not recorded."""

    name: str
    title: str
    target: str
    blocks: Any
    expected: str
    trial: Trial | None

    @property
    def as_expected(self) -> bool:
        return self.trial is not None and self.trial.outcome == self.expected

    @property
    def command(self) -> str:
        """Which tries it again, in the folder of the project."""
        blocks = shlex.quote(json.dumps(self.blocks))
        patch = f"examples/changes/{shlex.quote(self.name)}/change.patch"
        return f"ncuflow try {patch} --target {self.target} --blocks {blocks}"


def pages(folder: Path) -> dict[Path, str]:
    """The text of every page by its file; none where the folder is not there."""
    found = examples(folder)
    if not found:
        return {}
    made = {
        folder / one.name / PAGE: page(one, one.trial) for one in found if one.trial is not None
    }
    return made | {folder / TABLE: table(found)}


def examples(folder: Path) -> list[Example]:
    """The changes of a folder by name. Raises BadInput where one is not described."""
    return (
        [_example(path) for path in sorted(folder.iterdir()) if path.is_dir()]
        if folder.is_dir()
        else []
    )


def _example(folder: Path) -> Example:
    told: Mapping[str, Any] = read_json(folder / "try.json")
    heading = (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0]
    record = folder / RECORD
    trials = read(record) if record.exists() else [None]
    if len(trials) != 1:
        raise BadInput(record, "the record of several trials")
    title = heading.removeprefix("# ")
    return Example(folder.name, title, told["target"], told["blocks"], told["expected"], trials[0])


def page(example: Example, trial: Trial) -> str:
    """The page of one recorded trial."""
    points = [point for point in trial.points if point.timing is not None]
    cases = {case.id: case for point in trial.points for case in point.cases}
    kernels = [kernel for module in trial.modules for kernel in module.kernels]
    given = {
        "title": example.title,
        "expected": example.expected,
        "outcome": trial.outcome,
        "reason": trial.reason if trial.points == [] else None,
        "facts": [trial.gpu or "not run on a GPU", f"FlashInfer {trial.flashinfer}", trial.date],
        "head": [*screen.HEAD[:-1], "verdict"],
        "rows": [screen.row(point) for point in points],
        "effect": trial.effect,
        "alpha": trial.alpha,
        "why": [list(screen.reasons(point)) for point in points if point.causes],
        "kernels": [(k.name, list(screen.differences(k))) for k in kernels[:KERNELS]],
        "more": max(0, len(kernels) - KERNELS),
        "right": sum(case.status == "ok" for case in cases.values()),
        "inputs": len(cases),
        "bad": [screen.case_lines(case) for case in cases.values() if case.status != "ok"],
        "command": example.command,
    }
    return single_spaced(environment().get_template("trial-outcome.md.j2").render(given))


def table(found: list[Example]) -> str:
    """The table of all changes: what was expected, and what came."""
    rows = [(one, one.trial.outcome if one.trial else None, _range(one.trial)) for one in found]
    given = {
        "rows": [
            (
                f"{one.name}/{'page' if came else 'README'}.md",
                one.title,
                one.target,
                one.expected,
                came,
                times,
            )
            for one, came, times in rows
        ],
        "tried": sum(one.trial is not None for one in found),
        "right": sum(one.as_expected for one in found),
        "where": sorted({_where(one.trial) for one in found if one.trial and one.trial.gpu}),
    }
    return single_spaced(environment().get_template("trial-outcomes.md.j2").render(given))


def _where(trial: Trial) -> str:
    return f"{trial.gpu}, FlashInfer {trial.flashinfer}"


def _range(trial: Trial | None) -> str | None:
    """The least and the largest difference of times of a trial's points; None where nothing was timed."""
    timed = [p.timing.change.estimate for p in trial.points if p.timing] if trial else []
    if not timed:
        return None
    bounds = dict.fromkeys(relative(value) for value in (min(timed), max(timed)))
    return " to ".join(bounds)
