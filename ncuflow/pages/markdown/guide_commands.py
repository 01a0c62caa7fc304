"""Commands: those that captured this evidence, read from the records beside the captures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ncuflow.io import read_json
from ncuflow.parsers.registry import CHIPS, counters
from ncuflow.target.contract import ordered

TOOLS = {"trace": "timeline", "sweep": "counters", "deep": "deep"}


def of_evidence(root: Path) -> dict[str, str | None]:
    """timeline, counters, deep -> the command line that ran, None where none was recorded."""
    out: dict[str, str | None] = dict.fromkeys(TOOLS.values())
    for tool, name in TOOLS.items():
        records = sorted(root.glob(f"*/*/{tool}.json"))
        first = ordered({path.parts[-3] for path in records})  # of several, as pages are in order
        records.sort(key=lambda path: first.index(path.parts[-3]))
        commands = [command for path in records if (command := _command(path))]
        if commands:
            out[name] = " ".join(_word(word) for word in commands[0])
    return out


def _word(word: str) -> str:
    """A word as a shell takes it; the registry's hundred counters as what prints them."""
    names = set(word.split(","))
    chip = max(CHIPS, key=lambda known: len(names.intersection(counters(known))))
    if len(names) > 1 and len(names.intersection(counters(chip))) > len(names) / 2:
        return f'"$(python -m ncuflow counters {chip})"'
    return shlex.quote(word)


def _command(path: Path) -> list[str] | None:
    record: Any = read_json(path)
    command = record.get("command")
    return [str(word) for word in command] if command else None
