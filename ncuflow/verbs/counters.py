"""The counters that `ncu --metrics` has to be given to collect what the registry reads.

ncuflow static counters gh100 [--json]
"""

from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from ncuflow import answer
from ncuflow.parsers.chips import CHIPS
from ncuflow.parsers.registry import counters
from ncuflow.verbs.options import AS_TEXT, Printed, one_of


class CountersAnswer(answer.Answer):
    """The counters that `ncu --metrics` is given."""

    ROWS: ClassVar[tuple[str, ...]] = ("counters",)
    command: Literal["counters"] = "counters"
    """The command that wrote this JSON."""
    chip: str
    """The chip whose counters these are."""
    counters: list[str]
    """The names that ncu uses."""


def command(
    chip: Annotated[str, Parameter(validator=one_of(*CHIPS))], /, *, printed: Printed = AS_TEXT
) -> None:
    """The counters of a chip.

    Args:
        chip: as ncu names it
    """
    found = CountersAnswer(chip=chip, counters=[*counters(chip)])
    printed.tell(found, ",".join(found.counters) + "\n")
