"""The sides of a comparison: the evidence that each name on the command line stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from ncuflow.evidence import location
from ncuflow.flow.evidence import Evidence, recorded

LIVE = "live"


def of(base: str | None, head: str | None, running: Evidence) -> dict[str, Evidence]:
    """name -> evidence, in the order of comparison; empty unless both are given.

    base, head: folders of recordings, or ``live`` for what this machine's GPU gives now; head may
    list several, separated by commas, or have a pattern of folders in it. running: the evidence of this
    run. Raises ValueError with one line where a side is none, or two have one name.
    """
    if not base or not head:
        return {}
    found: dict[str, Evidence] = {}
    for text in _listed(base, head):
        name = _name(text)
        if name in found:
            raise ValueError(f"compare: two sides are called {name}")
        found[name] = _side(text, running)
    return found


def _listed(base: str, head: str) -> Iterator[str]:
    """The sides, a pattern as the recordings that match it and are not named beside it, by FlashInfer's version."""
    texts = [text.strip() for text in (base, *head.split(","))]
    named = {_name(text) for text in texts}
    for text in texts:
        if "*" in text:
            yield from (str(at) for at in location.matching(text) if location.name(at) not in named)
        else:
            yield text


def _name(text: str) -> str:
    return LIVE if text == LIVE else location.name(Path(text))


def together(names: Iterable[str]) -> str:
    """The name of a comparison: those of its sides with -vs- between them, and what all begin or end with once.

    together(["h200-0.6.1-gdn", "h200-0.7.2-gdn"]) is h200-0.6.1-vs-0.7.2-gdn.
    """
    parts = [name.split("-") for name in names]
    spare = min(map(len, parts)) - 1
    front = _alike(parts, spare)
    back = _alike([part[::-1] for part in parts], spare - front)
    middle = "-vs-".join("-".join(part[front : len(part) - back]) for part in parts)
    return "-".join([*parts[0][:front], middle, *parts[0][len(parts[0]) - back :]])


def _alike(parts: list[list[str]], most: int) -> int:
    """With how many parts all begin alike, `most` at most."""
    firsts = zip(*(part[:most] for part in parts), strict=True)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, firsts))


def by_folder(running: Evidence, sides: Iterable[Evidence]) -> dict[str, Evidence]:
    """Folder below ``outputs`` -> the evidence that its files are made from.

    Raises ValueError with one line where two would share a folder.
    """
    found = {running.folder: running}
    for side in sides:
        other = found.setdefault(side.folder, side)
        if other.root.resolve() != side.root.resolve():
            raise ValueError(
                f"compare: {other.root} and {side.root} would both be outputs/{side.folder};"
                f" rename the folder of one, or say --config recording={side.root}"
            )
    return found


def _side(path: str, running: Evidence) -> Evidence:
    if path != LIVE:
        found = recorded(Path(path))
        name = _name(path)  # what its owner calls it, whatever the manifest says
        return replace(found, folder=f"recorded-{name}", recording=name)
    if running.recording is not None:
        raise ValueError("compare: a side is live, but this run has recorded evidence")
    return running
