"""The sides of a comparison: the evidence that each name on the command line stands for."""

from __future__ import annotations

from pathlib import Path

from ncuflow.capture.evidence import Evidence, recorded

LIVE = "live"


def of(base: str | None, head: str | None, running: Evidence) -> dict[str, Evidence]:
    """name -> evidence, in the order of comparison; empty unless both are given.

    base, head: folders of recordings, or ``live`` for what this machine's GPU gives now; head may
    list several, separated by commas. running: the evidence of this run. Raises ValueError with one
    line where a side is none, or two have one name.
    """
    if not base or not head:
        return {}
    found: dict[str, Evidence] = {}
    for text in (base, *head.split(",")):
        name = LIVE if text.strip() == LIVE else Path(text.strip()).name
        if name in found:
            raise ValueError(f"compare: two sides are called {name}")
        found[name] = _side(text.strip(), running)
    return found


def _side(path: str, running: Evidence) -> Evidence:
    if path != LIVE:
        return recorded(Path(path))
    if running.recording is not None:
        raise ValueError("compare: a side is live, but this run has recorded evidence")
    return running
