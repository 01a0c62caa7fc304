"""The page of two measured GPUs: each predicted from the other, beside what was measured there.

ncuflow predict-page --measured DIR --on DIR --out FILE.md
"""

from __future__ import annotations

from pathlib import Path

from ncuflow.findings import stored
from ncuflow.io import UsageError, write_text
from ncuflow.pages.markdown.rendering import environment
from ncuflow.static.predict import predictions


def command(*, measured: Path, on: Path, out: Path) -> None:
    """The page of predictions beside what was measured.

    Args:
        measured: results of a measured GPU
        on: results of another measured GPU
    """
    here, there = ([*stored.folder(place).values()] for place in (measured, on))
    try:
        both = [predictions(here, there), predictions(there, here)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not all(one["crossed"] for one in both):
        raise UsageError(f"{measured} and {on}: not both measured, or of other points")
    text = environment().get_template("predictions.md.j2").render(directions=both)
    write_text(out, text.rstrip() + "\n")
