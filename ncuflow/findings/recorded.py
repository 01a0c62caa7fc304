"""The results of a recording, made of its captures as the rules make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ncuflow.evidence import location, manifest
from ncuflow.findings import results, stored
from ncuflow.io import BadInput, scratch, write_json
from ncuflow.parsers import tables


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording, and no outputs."""
    return (folder / manifest.FILE).is_file() and not (folder / "results").is_dir()


@contextmanager
def results_of(folder: Path, targets: Iterable[str] | None) -> Iterator[Path]:
    """The folder of the results of outputs, or of a recording; of this they are made, and gone on exit."""
    if is_recording(folder):
        with scratch() as made:
            write(folder, targets, made)
            yield made / "results"
    else:
        yield folder / "results" if (folder / "results").is_dir() else folder


def write(recording: Path, targets: Iterable[str] | None, outputs: Path) -> None:
    """Tables and results of targets of a recording (by default of all), below ``outputs``.

    Raises BadInput where it is no recording, is not as it was recorded, or lacks a target.
    """
    try:
        batches = manifest.read(recording).targets
    except ValueError as error:
        raise BadInput(recording, str(error).removeprefix(f"{recording}: ")) from None
    for target in batches if targets is None else targets:
        if target not in batches:
            raise BadInput(recording, f"no target {target!r} in it; it has {', '.join(batches)}")
        folder = outputs / "tables" / target
        reports = [recording / target / batch for batch in sorted(batches[target])]
        tables.write(tables.collect(recording, reports), folder)
        found = results.results(target, folder, recording, location.name(recording))
        write_json(outputs / "results" / f"{target}{stored.SUFFIX}", found, levels=3)
