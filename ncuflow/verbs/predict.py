"""Times of a GPU that was not there, predicted from one that was measured, each with its interval.

    ncuflow static predict --measured RESULTS --on RESULTS --out predictions.json

RESULTS are folders of *_results.json: of the GPU that was measured, and of the one to predict (tier S, or
measured as well: then the file says how far the predictions were off).
"""

from pathlib import Path

from ncuflow.findings import stored
from ncuflow.io import BadInput, UsageError, write_json
from ncuflow.static.predict import answered, predictions
from ncuflow.verbs.options import AS_TEXT, Printed


def command(
    *, measured: Path, on: Path, out: Path | None = None, printed: Printed = AS_TEXT
) -> None:
    """Predicted times.

    Args:
        measured: results of a measured GPU
        on: results of the GPU to predict
        out: predictions.json; needed without --json
    """
    if out is None and not printed.json:
        raise UsageError("give --out, or --json")
    try:
        sides = ([*stored.folder(place).values()] for place in (measured, on))
        found = predictions(*sides)
    except BadInput:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    if out is not None:
        write_json(out, found)
    if printed.json:
        printed.tell(answered(found), "")
