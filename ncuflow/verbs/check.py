"""A check for CI: whether a comparison has slow-downs, or whether points hold what a file asks of them.

    ncuflow check compare.json [--threshold 0.05]            # of `ncuflow compare`
    ncuflow check gate.yaml --results outputs/MACHINE/results
    ncuflow check sanity outputs/MACHINE/results             # numbers that cannot be
    ncuflow check claims …                                   # statements of claims/*.yaml, judged

    - points: ["decode/B128_*", "rmsnorm/*_R16384_*"]   # patterns on the point's id
      hold: of_roof >= 0.8                               # over the columns of docs/measurements.md and of_roof

A significant slow-down beyond the threshold does not hold; host times are not judged. of_roof is the least time that the
datasheet leaves for the point's work, over its cold time. What cannot be computed fails, and so does a requirement that no
point answers to. A figure above 1 of what the datasheet allows cannot be true: nothing is judged then.

exit  0 all hold    1 some do not    2 no such file, or a figure that cannot be true    3 nothing was tested
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ncuflow.export.check import NOTHING_TESTED, failures, finite, found
from ncuflow.findings import sanity as limits
from ncuflow.findings import stored
from ncuflow.format import with_unit
from ncuflow.verbs.options import AS_TEXT, Printed


def command(
    file: Path,
    /,
    *,
    results: Path | None = None,
    threshold: Annotated[float | None, Parameter(validator=finite)] = None,
    printed: Printed = AS_TEXT,
) -> int:
    """0 where all hold, 1 where some do not, 3 where nothing was tested.

    Args:
        file: compare.json; with --results YAML, a list of points and what they hold
        results: outputs/MACHINE/results
        threshold: of a comparison; 0.05 of 1
    """
    answer = found(file, results, threshold)
    if not printed.json:
        for text in answer.notes:
            print(f"note: {text}", file=sys.stderr)
    printed.tell(answer, lambda: "".join(f"{line}\n" for line in failures(answer)))
    return NOTHING_TESTED if answer.passed is None else int(not answer.passed)


def sanity(results: Path, /, *, no_strict: bool = False, printed: Printed = AS_TEXT) -> int:
    """The numbers of results that cannot be, each with its limit and the likely cause.

    ncuflow check sanity RESULTS_DIR [--no-strict]        exit 3 if anything is impossible

    Args:
        results: folder of *_results.json
        no_strict: print what is found, exit 0
    """
    every = stored.folder(results, struck=False).values()
    violations = [violation for found in every for violation in limits.check(found)]
    told = limits.SanityAnswer(impossible=len(violations), violations=violations)
    printed.tell(told, "".join(f"{one}\n" for one in violations))
    if no_strict or not violations:
        return 0
    if not printed.json:
        print(with_unit(len(violations), "impossible numbers"), file=sys.stderr)
    return 3
