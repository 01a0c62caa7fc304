"""Versions that were recorded: held against each other as `ncuflow compare` does, with the causes that counters give."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ncuflow.bisection.record import Neighbours
from ncuflow.bisection.search import HeldAgainst
from ncuflow.compare import verdict
from ncuflow.compare.records import MetricChange, Thresholds
from ncuflow.compare.verdict import HOST, METRICS, Side
from ncuflow.evidence import location, manifest
from ncuflow.findings import locate, stored
from ncuflow.io import CommandError, UsageError, clean, present, scratch
from ncuflow.race.record import Relative

CAUSES = 4
JUDGED = {column: name for name, column in METRICS.items() if name not in HOST}


class Recordings:
    """Recordings of one GPU that have a point, by their FlashInfer. Use it as a context: results are made in a scratch folder."""

    def __init__(self, patterns: Sequence[str], point: str, metric: str, effect: float) -> None:
        if metric not in JUDGED:
            raise UsageError(
                f"--metric {metric!r}: of recordings it is one of {', '.join(JUDGED)}; host times of two processes are not judged"
            )
        self._point, self._metric = point, JUDGED[metric]
        self._target = point.partition("/")[0]
        self._settings = Thresholds(threshold=effect)
        self._folders = _by_version(patterns, point)
        self._sides: dict[str, Side] = {}
        self._changes: dict[tuple[str, str], MetricChange] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Recordings:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @property
    def gpu(self) -> str | None:
        """The one that all of them are of."""
        return next(manifest.provenance(folder).get("gpu") for folder in self._folders.values())

    @property
    def versions(self) -> list[str]:
        """Those of FlashInfer, the oldest first."""
        return list(self._folders)

    def hold(self, base: str, head: str) -> HeldAgainst:
        """A version against another."""
        found = verdict.compare(self._side(base), self._side(head), self._settings)
        row = next((p.metrics.get(self._metric) for p in found.points if p.id == self._point), None)
        if row is None or row.interval is None:
            apart = (p for p in found.not_compared if p.id == self._point)
            return HeldAgainst(
                reason=next((f"{p.base}; {p.head}" for p in apart), "it was not timed")
            )
        self._changes[base, head] = row
        low, high = row.interval
        change = Relative(estimate=row.relative, low=low, high=high)
        return HeldAgainst(change, row.changed, row.base, row.head)

    def _side(self, version: str) -> Side:
        if version not in self._sides:
            place = self._stack.enter_context(scratch())
            locate.make_results(self._folders[version], [self._target], place)
            self._sides[version] = verdict.load(place / "results", [self._target])
        return self._sides[version]

    def explain(self, found: Neighbours) -> None:
        """Add the change, its causes, and the files that differ for sure."""
        held = self.hold(found.before, found.after)
        found.change = held.change
        row = self._changes[found.before, found.after]
        found.causes = [_said(cause) for cause in row.causes[:CAUSES]]
        before, after = self._folders[found.before], self._folders[found.after]
        found.files = _files(before, after, self._target)


def _said(cause: Any) -> str:
    share = f" ({100 * cause.share_of_delta:.0f} % of it)" if cause.share_of_delta else ""
    sides = " → ".join(_spelt(value) for value in (cause.base, cause.head) if value is not None)
    return ", ".join(part for part in (f"{cause.what}{share}", sides, cause.evidence) if part)


def _spelt(value: Any) -> str:
    """A side of a cause: a number, a text, or names of kernels."""
    return ", ".join(value) if isinstance(value, list) else str(value)


def _by_version(patterns: Sequence[str], point: str) -> dict[str, Path]:
    """Of each version the recording with the most points of those that have the point, the oldest version first.

    Raises CommandError where fewer than two versions have it, or where they are of several GPUs.
    """
    target = point.partition("/")[0]
    found: dict[str, tuple[int, Path]] = {}
    gpus = set()
    try:
        folders = [folder for pattern in patterns for folder in location.matching(pattern)]
        for folder in dict.fromkeys(folders):
            about = manifest.read(folder)
            points = {name for some in about.targets.get(target, {}).values() for name in some}
            version = about.provenance.get("flashinfer")
            if point not in points or not version:
                continue
            gpus.add(about.provenance.get("gpu"))
            if len(points) > found.get(version, (0, folder))[0]:
                found[version] = (len(points), folder)
    except ValueError as error:
        raise CommandError(clean(str(error))) from None
    if len(gpus) > 1:
        raise CommandError(
            f"recordings of {' and '.join(sorted(map(str, gpus)))}: of one GPU alone"
        )
    if len(found) < 2:
        raise CommandError(
            f"{point}: {len(found)} of these recordings' versions have it, of two at least"
        )
    ordered = sorted(found, key=lambda version: (location.numbers(version), version))
    return {version: found[version][1] for version in ordered}


def _files(before: Path, after: Path, target: str) -> list[str]:
    """Files of the target in which what a source index knows lies elsewhere: they differ, whatever others do."""
    sides = [_places(folder, target) for folder in (before, after)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [name for name in names if sides[0].get(name) != sides[1].get(name)]


def _places(folder: Path, target: str) -> dict[str, set[tuple[str, int]]]:
    """Lines of the symbols that a recording's index of FlashInfer's source has of a target, by file."""
    path = present(folder / "source_index.json")
    index = stored.written(path) if path else {"targets": {}}
    own = index["targets"].get(target, {"api": {}, "kernels": []})
    found: dict[str, set[tuple[str, int]]] = {}
    for place in (*own["api"].values(), *own["kernels"]):
        found.setdefault(place["file"], set()).add((place["symbol"], place["line"]))
    files = {*found, *own.get("files", {}).values()}
    for name, place in (index.get("scheduler") or {}).items():
        if place["file"] in files:
            found.setdefault(place["file"], set()).add((name, place["line"]))
    for file, symbols in index.get("functions", {}).items():
        if file in files:
            found.setdefault(file, set()).update((symbol, line) for line, _, symbol in symbols)
    return found
