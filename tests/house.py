"""The house: its rooms by floor. CONTRIBUTING's table is this list, `test_layers` holds the imports against it.

python tests/house.py      # write the table into CONTRIBUTING.md
"""

import re
from pathlib import Path
from typing import NamedTuple

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
TABLE = re.compile(r"(?m)^\| floor \|.*\n(?:\|.*\n)+")


class Room(NamedTuple):
    """Folders of the package, or modules at its top, with one noun; `noun`, what they are about; `never`, what they leave to
    others."""

    names: str
    noun: str
    knows: str
    never: str
    beside: str = ""  # what belongs to it outside of the package


# From the ground up. Rooms of a floor do not know each other; of a room's folders and modules one knows those named before it.
FLOORS = (
    (
        Room(
            "locks io private process toolkit origin record model parquet format expression answer",
            "a file, a child process, a record",
            "atomic writes, locks, one-line errors, a minimal environment, installed versions, CUDA tools, expressions, records",
            "the rooms",
        ),
    ),
    (
        Room(
            "parsers",
            "a report",
            "one tool's file → tidy tables; the metric registry",
            "GPUs, targets, verdicts",
            "`parsers/`",
        ),
        Room(
            "gpu",
            "a GPU",
            "one table of GPUs, what the driver says of those here, whose turn it is",
            "kernels",
        ),
        Room(
            "target targets",
            "a kernel",
            "all that is particular to one kernel, in one file; the kit that these files are made of: the contract, "
            "launches and their rules, inputs, references, pages of KV, cases of a workload",
            "profilers, a run",
            "`targets/`, `templates/guide/<target>/`",
        ),
    ),
    (
        Room(
            "evidence",
            "evidence",
            "manifests, recordings, provenance, what may be stored",
            "meaning",
        ),
        Room(
            "source",
            "the installed FlashInfer",
            "its Python API and CUDA headers: symbols, kernels, lines",
            "measurements",
        ),
    ),
    (
        Room(
            "sweep run",
            "a sweep",
            "its points, from settings, test lists, traces and dumps; the run that builds, checks, times, traces and "
            "profiles them; what this machine can do (the preflight)",
            "kernels' facts, verdicts",
        ),
        Room(
            "findings",
            "a finding",
            "tables → columns, the scope of a point, limits, stalls, noise, sanity, what to change",
            "formats of tools, prose",
        ),
    ),
    (
        Room(
            "race",
            "a race",
            "variants in turns: workers, rounds, halving, the sequential test, the A/A control, what is left of the time",
            "what a variant is",
        ),
        Room(
            "claims",
            "a claim",
            "a statement, its source, the points that it is about, the expression that decides it",
            "prose of pages",
            "`claims/*.yaml`",
        ),
        Room(
            "compare",
            "a comparison",
            "two sides of evidence → changes, with statistics and causes",
            "formats of tools",
        ),
        Room(
            "static",
            "static evidence",
            "compiled kernels, occupancy → results of a GPU that was not there",
            "times measured",
        ),
    ),
    (
        Room(
            "experiments",
            "an experiment",
            "a change tried, a shape advised, tunables searched, versions bisected; a tuner's choices audited",
            "formats of tools",
        ),
        Room(
            "explain view",
            "an explanation",
            "one launch or point → what limits it, where it waits, what it could gain, what to try; that of every "
            "launch in reports and traces of any program",
            "verdicts of its own",
        ),
        Room(
            "step",
            "a serving step",
            "traces of an engine → its steps, the shapes that its kernels ran, roofs, gaps and gains",
            "pages",
        ),
    ),
    (
        Room(
            "pages.context pages.markdown pages.html export",
            "a page",
            "findings, comparisons, claims → Markdown, figures, one HTML file; what another tool takes (checks for CI, "
            "Bencher, GitHub, JUnit, Perfetto; a point as a script)",
            "numbers typed by hand, verdicts",
            "`templates/`",
        ),
    ),
    (
        Room(
            "mcp cli api verbs",
            "a verb",
            "a typed function for each, their table, how a command ends; the same for a notebook, and for a program "
            "over the Model Context Protocol",
            "logic",
        ),
    ),
    (
        Room(
            "flow __main__",
            "a run of the pipeline",
            "evidence and settings, inputs from the import closure, jobs, display",
            "what a page says",
            "`Snakefile`, `workflows/`",
        ),
    ),
)


def table() -> str:
    """The rooms as CONTRIBUTING has them, the top floor first."""
    rows = ["| floor | room | one noun | knows | never |", "|---|---|---|---|---|"]
    for number, rooms in reversed(list(enumerate(FLOORS, 1))):
        rows += [
            f"| {number} | {_where(room)} | {room.noun} | {room.knows} | {room.never} |"
            for room in rooms
        ]
    return "\n".join(rows) + "\n"


def _where(room: Room) -> str:
    own = []
    for name in room.names.split():
        path = Path("ncuflow", *name.split("."))
        folder = (CONTRIBUTING.parent / path).is_dir()
        own.append(f"`{path.as_posix()}{'/' if folder else '.py'}`")
    return ", ".join([*own, room.beside] if room.beside else own)


if __name__ == "__main__":
    written = TABLE.sub(lambda _: table(), CONTRIBUTING.read_text(), count=1)
    CONTRIBUTING.write_text(written)
