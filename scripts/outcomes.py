"""Recorded trials of the changes in examples/changes: a page of each, and a table of all.

A change's folder has change.patch, README.md, try.json (what it is tried at and what is expected of it) and, once it was
tried on a GPU, the record of that; records of other GPUs beside it, trial-GPU.json.xz.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ncuflow.experiments import text
from ncuflow.experiments.record import KernelTrial, Trial, read
from ncuflow.findings.kernelname import canonical
from ncuflow.format import change as relative
from ncuflow.format import slug
from ncuflow.gpu.table import device
from ncuflow.io import BadInput, read_json
from ncuflow.pages.markdown.rendering import environment, single_spaced
from ncuflow.sweep.points import Planned, points
from ncuflow.target.contract import load
from ncuflow.target.launch import TYPES, Host

TEMPLATES = Path(__file__).with_name("pages")
KERNELS = 3  # whose code differs, that a page has
RECORD, PAGE, TABLE = "trial.json.xz", "page.md", "README.md"
REGISTERS = (
    32  # of a kernel that a rule asks for: they change how many blocks there are, not which kernels
)


@dataclass(frozen=True)
class Example:
    """A change, what is expected of it, and what came of it.

    elsewhere: blocks at which it need not be faster; trial: None where none is recorded; others: on other GPUs.
    """

    folder: Path
    title: str
    target: str
    blocks: Any
    elsewhere: Any
    expected: str
    trial: Trial | None
    others: tuple[Trial, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def points(self) -> list[Planned]:
        """What it is tried at; none of a target that is not known here."""
        try:
            return points(load(self.target), self.blocks)
        except ValueError:
            return []

    @property
    def as_expected(self) -> bool:
        return self.trial is not None and self.trial.outcome == self.expected

    @property
    def command(self) -> str:
        """Which tries it again, in the folder of the project."""
        return self.tried_at(self.blocks)

    def tried_at(self, where: Any) -> str:
        """The command that tries it at blocks."""
        blocks = shlex.quote(json.dumps(where))
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
    others = sorted(path for path in folder.glob("trial-*.json.xz"))
    return Example(
        folder=folder,
        title=heading.removeprefix("# "),
        target=told["target"],
        blocks=told["blocks"],
        elsewhere=told.get("elsewhere", []),
        expected=told["expected"],
        trial=_one(record) if record.exists() else None,
        others=tuple(map(_one, others)),
    )


def _one(record: Path) -> Trial:
    """The trial of a record. Raises BadInput where it has several."""
    trials = read(record)
    if len(trials) != 1:
        raise BadInput(record, "the record of several trials")
    return trials[0]


def kept_in(folder: Path, trial: Trial) -> Path:
    """The file of a change's folder that a trial belongs into: its own for each GPU but the first."""
    first = folder / RECORD
    if not first.exists() or _one(first).gpu == trial.gpu:
        return first
    gpu = (trial.gpu or "no gpu").removeprefix("NVIDIA ").split()[0]
    return folder / f"trial-{slug(gpu)}.json.xz"


def page(example: Example, trial: Trial) -> str:
    """The page of one recorded trial."""
    timed = [point for point in trial.points if point.timing is not None]
    head, rows = text.times(timed)
    cases = {case.id: case for point in trial.points for case in point.cases}
    kernels, launched = relevant(example, trial)
    given = {
        "title": example.title,
        "expected": example.expected,
        "outcome": trial.outcome,
        "reason": trial.reason if trial.points == [] else None,
        "facts": [trial.gpu or "not run on a GPU", f"FlashInfer {trial.flashinfer}", trial.date],
        "head": head,
        "rows": rows,
        "effect": trial.effect,
        "alpha": trial.alpha,
        "why": [list(text.reasons(point)) for point in timed if point.causes],
        "kernels": [(k.name, list(text.differences(k))) for k in kernels[:KERNELS]],
        "more": max(0, len(kernels) - KERNELS),
        "launched": launched,
        "rest": sum(len(module.kernels) for module in trial.modules) - len(kernels),
        "right": sum(case.status == "ok" for case in cases.values()),
        "inputs": len(cases),
        "bad": [text.case_lines(case) for case in cases.values() if case.status != "ok"],
        "command": example.command,
    }
    return single_spaced(environment(TEMPLATES).get_template("trial-outcome.md.j2").render(given))


def relevant(example: Example, trial: Trial) -> tuple[list[KernelTrial], bool]:
    """(kernels whose code differs, whether they are those that the points launch): these alone where launch rules tell
    them, else all, the new ones first, then those whose template arguments are of the points' types and sizes."""
    kernels = [kernel for module in trial.modules for kernel in module.kernels]
    names = {name for point in example.points for name in _launched(example.target, point, trial)}
    launched = [k for k in kernels if canonical(k.name) in names]
    if launched:
        return launched, True
    given = [value for point in example.points for value in point.params.values()]
    said = {str(value) for value in given} | {TYPES[v] for v in given if v in TYPES}

    def foreign(kernel: KernelTrial) -> tuple[bool, float]:
        arguments = kernel.name.partition("<")[2].rstrip(">").split(", ")
        return kernel.base is not None, -sum(a in said for a in arguments) / len(arguments)

    return sorted(kernels, key=foreign), False


def _launched(target: str, point: Planned, trial: Trial) -> list[str]:
    """Kernels that a point launches, by the target's rules; none where they do not know it."""
    launches = load(target).rules.launches
    try:
        version = tuple(int(part) for part in str(trial.flashinfer).split(".")[:2])
        host = Host(device(trial.gpu or ""), (version[0], version[1]), lambda name: REGISTERS)
        return [one.kernel for one in launches(point.params, host) if one] if launches else []
    except (KeyError, ValueError):
        return []


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
    return single_spaced(environment(TEMPLATES).get_template("trial-outcomes.md.j2").render(given))


def _where(trial: Trial) -> str:
    return f"{trial.gpu}, FlashInfer {trial.flashinfer}"


def _range(trial: Trial | None) -> str | None:
    """The least and the largest difference of times of a trial's points; None where nothing was timed."""
    timed = [p.timing.change.estimate for p in trial.points if p.timing] if trial else []
    if not timed:
        return None
    bounds = dict.fromkeys(relative(value) for value in (min(timed), max(timed)))
    return " to ".join(bounds)
