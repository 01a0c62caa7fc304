"""The findings that pages are made of, read from the files of a run when a page first asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ncuflow.findings import sanity, stored
from ncuflow.findings.sanity import ImpossibleNumber
from ncuflow.io import BadInput
from ncuflow.model import Results
from ncuflow.target.contract import ordered


class Struck(float):
    """A number that cannot be true: computed with like any other, printed struck through."""


class Impossible(BadInput):
    """Results with a number that cannot be true; the first stands for all in ``first``."""

    def __init__(self, name: str, violations: Sequence[ImpossibleNumber]) -> None:
        reasons = list(map(str, violations))
        super().__init__(name, "; ".join(reasons))
        more = f" ({len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        self.first = reasons[0] + more


class Findings:
    """What the pages read: results by target and the JSON beside them, loaded when first asked for.

    names: the targets of this run, ``jit`` among them; None for all that the folder holds, which
    may be of an earlier run.
    """

    def __init__(
        self,
        results: Path,
        evidence: Path,
        strict: bool = True,
        names: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.evidence, self.strict, self.names = results, evidence, strict, names
        self.struck: list[str] = []
        self.stopped: dict[str, str] = {}  # target -> the number for which its results are left out
        self._read: dict[str, Results] = {}

    @cached_property
    def targets(self) -> dict[str, Results]:
        """target -> content of ``<target>_results.json``, in the order of pages.

        One with an impossible number is left out, and named in ``stopped``.
        """
        names = self.names
        if names is None:
            files = self.folder.glob("*_results.json")
            names = [path.name.removesuffix("_results.json") for path in files]
        found = {}
        for name in ordered([name for name in names if name != "jit"]):
            try:
                found[name] = self.target(name)
            except Impossible as error:
                self.stopped[name] = error.first
        return found

    def results(self, name: str) -> Results:
        """One target's results, read once, whatever numbers are in it."""
        if name not in self._read:
            self._read[name] = stored.results(self.folder / f"{name}_results.json", struck=False)
        return self._read[name]

    def target(self, name: str) -> Results:
        """One target's results, without those of the others.

        Raises Impossible for a number that cannot be true; without ``strict`` that number is struck
        through instead, and ``struck`` says why.
        """
        results = self.results(name)
        violations = sanity.check(results)
        if violations and self.strict:
            raise Impossible(f"{name}_results.json", violations)
        self.struck += map(str, violations)
        rows = {point["point"]: point["measurement"] for point in results["points"]}
        for violation in violations:
            row = rows[violation.point]
            for column in violation.struck & row.keys():
                if isinstance(row[column], int | float):
                    row[column] = Struck(row[column])
        return results

    def optional(self, name: str) -> Any:
        """A JSON finding that this run may lack (jit_analysis, claims, environment_info), or None."""
        if name == "jit_analysis" and self.names is not None and "jit" not in self.names:
            return None
        return stored.optional(self.folder / f"{name}.json")

    def required(self, name: str) -> Any:
        """A JSON finding that a page cannot do without. Raises BadInput where the run lacks it."""
        found = self.optional(name)
        if found is None:
            raise BadInput(
                self.folder, f"no results here: a run leaves {name}.json in outputs/MACHINE/results"
            )
        return found

    @cached_property
    def source_index(self) -> Any:
        """The index of the FlashInfer that was measured, or None."""
        return stored.optional(self.evidence / "source_index.json")
