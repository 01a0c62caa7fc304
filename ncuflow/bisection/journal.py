"""The journal of a bisection: what was measured so far, a line a step, so that it goes on where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ncuflow.bisection.record import BisectStep
from ncuflow.bisection.search import HeldAgainst, Hold
from ncuflow.io import BadInput, conforming, parsed, sniff


class BisectJournal:
    """Steps of a file that is about the same question; those that are new are added to it as they come.

    Raises BadInput where the file is about another one.
    """

    def __init__(self, path: Path | None, question: dict[str, Any]) -> None:
        self._path = path
        self._known: dict[tuple[str, str], HeldAgainst] = {}
        if path is None:
            return
        if path.exists():
            self._read(path, question)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(question) + "\n", encoding="utf-8")

    def _read(self, path: Path, question: dict[str, Any]) -> None:
        sniff(path)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
            asked = parsed(lines[0])
            # What was being written when it was interrupted has no end of line.
            steps = [parsed(line) for line in lines[1:-1]]
        except ValueError as error:
            raise BadInput(path, f"not a journal of a bisection ({error})") from None
        if asked != question:
            raise BadInput(
                path, "the journal of another bisection: name another file, or remove it"
            )
        for content in steps:
            step = conforming(path, content, BisectStep, "a step of a bisection")
            self._known[step.base, step.head] = _held(step)
        whole = "\n".join(lines[:-1]) + "\n"
        if lines[-1]:
            path.write_text(whole, encoding="utf-8")

    def remembering(self, hold: Hold) -> Hold:
        """The same, measuring only what the journal does not have."""

        def held(base: str, head: str) -> HeldAgainst:
            if (base, head) not in self._known:
                self._known[base, head] = found = hold(base, head)
                self._add(base, head, found)
            return self._known[base, head]

        return held

    def _add(self, base: str, head: str, found: HeldAgainst) -> None:
        if self._path is None:
            return
        step = BisectStep(
            base=base,
            head=head,
            belongs="passed over" if found.change is None else "after" if found.changed else "before",
            reason=found.reason,
            base_us=found.base_us,
            head_us=found.head_us,
            change=found.change,
        )  # fmt: skip
        with self._path.open("a", encoding="utf-8") as file:
            file.write(step.model_dump_json() + "\n")


def _held(step: BisectStep) -> HeldAgainst:
    return HeldAgainst(
        step.change, step.belongs == "after", step.base_us, step.head_us, step.reason
    )
