"""Where a point's results are: in outputs of this folder, or in a recording, of whose captures they are then made."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ncuflow.evidence import location, manifest
from ncuflow.findings import results, stored
from ncuflow.io import BadInput, UsageError, scratch, status_line, write_json
from ncuflow.model import Results
from ncuflow.target.contract import known


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording, and no outputs."""
    return (folder / manifest.FILE).is_file() and not (folder / "results").is_dir()


@contextmanager
def results_of(folder: Path, targets: Iterable[str] | None) -> Iterator[Path]:
    """The folder of the results of outputs, or of a recording; of this they are made, and gone on exit."""
    if is_recording(folder):
        with scratch() as made:
            make_results(folder, targets, made)
            yield made / "results"
    else:
        yield folder / "results" if (folder / "results").is_dir() else folder


def make_results(recording: Path, targets: Iterable[str] | None, outputs: Path) -> None:
    """Tables and results of targets of a recording (by default of all), below ``outputs``.

    Raises BadInput where it is no recording, is not as it was recorded, or lacks a target.
    """
    try:
        batches = manifest.read(recording).targets
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(recording, str(error).removeprefix(f"{recording}: ")) from None
    import pyarrow  # noqa: F401  of all that tables need, the first that one who lacks it is told of

    from ncuflow.parsers import tables  # of a recording alone

    for target in batches if targets is None else targets:
        if target not in batches:
            raise BadInput(recording, f"no target {target!r} in it; it has {', '.join(batches)}")
        status_line.at = f"{location.name(recording)}: {target}"
        folder = outputs / "tables" / target
        reports = [recording / target / batch for batch in sorted(batches[target])]
        tables.write(tables.collect(recording, reports), folder)
        found = results.results(target, folder, recording, location.name(recording))
        write_json(outputs / "results" / f"{target}{stored.SUFFIX}", found, levels=3)


FEW = 3  # names that an error lists


@dataclass(frozen=True)
class Place:
    """A folder with ``results`` and ``tables``. named: the folder that these are of; recording: whether that is a recording,
    of which they were made just now."""

    outputs: Path
    named: Path
    recording: bool

    def results(self, target: str) -> Results:
        """The results of one target. Raises BadInput where it has none."""
        return stored.results(self.outputs / "results" / f"{target}{stored.SUFFIX}")


def is_point(text: str) -> bool:
    """Whether a text may be the id of a point: a target, and what follows it."""
    target, slash, rest = text.partition("/")
    return bool(slash and rest) and target in known()


@contextmanager
def of_point(point: str, folder: Path | None = None) -> Iterator[Place]:
    """Where the results of a point's target are: in the folder of outputs or the recording that is named, else in the one
    below ``outputs/`` that has the point, else in the recording that ships.

    Raises BadInput where no place has the point, UsageError where several have it.
    """
    target = point.split("/", 1)[0]
    found = location.here(folder) if folder else _holder(point) or shipped()
    if not is_recording(found):
        _check(point, found)
        yield Place(found, found, False)
        return
    with scratch() as made:
        make_results(found, [target], made)
        _check(point, made, found)
        yield Place(made, found, True)


def shipped() -> Path:
    """The recording that the pages show unless a setting names another. Raises UsageError where there is none."""
    try:
        return location.default()
    except ValueError as error:
        raise UsageError(str(error)) from None


def _holder(point: str) -> Path | None:
    """The one folder below ``outputs/`` that has the point; None where there is none."""
    name = point.split("/", 1)[0] + stored.SUFFIX
    files = sorted(Path("outputs").glob(f"*/results/{name}"))
    holders = [path.parents[1] for path in files if point in _ids(path)]
    if len(holders) > 1:
        said = ", ".join(map(str, holders))
        raise UsageError(f"name the folder of the results; under outputs/ these have it: {said}")
    return holders[0] if holders else None


def _ids(path: Path) -> list[str]:
    return [point["point"] for point in stored.results(path)["points"]]


def _check(point: str, outputs: Path, named: Path | None = None) -> None:
    """Raises BadInput where the outputs lack the point, with the nearest that they have."""
    target = point.split("/", 1)[0]
    path = outputs / "results" / f"{target}{stored.SUFFIX}"
    if not path.exists():
        raise BadInput(path, f"no results of target {target!r} here")
    ids = _ids(path)
    if point not in ids:
        near = ", ".join(get_close_matches(point, ids, FEW, 0)) or "none"
        raise BadInput(named or path, f"no point {point!r}; the nearest of {len(ids)}: {near}")
