"""Questions of programs: a tool for each, over what the other rooms say, and their server of the Model Context Protocol. Every
path is asked of the `Root` first.

A function's name, arguments and first words are those of its tool. An answer is the record that the command of that name prints
with ``--json``; without ``limit`` what of it fits in four kilobytes.
"""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ncuflow.answer import AnswerPart, cut, limited
from ncuflow.compare import verdict
from ncuflow.compare.records import CompareAnswer
from ncuflow.compare.records import answered as compared
from ncuflow.evidence import location, manifest
from ncuflow.experiments import recorded as advised
from ncuflow.experiments.record import Advice, Trial
from ncuflow.explain import launch, verb
from ncuflow.explain.record import Explanation
from ncuflow.findings import derivation, profiled, stored
from ncuflow.findings.derivation import TraceSteps
from ncuflow.io import (
    BadInput,
    CommandError,
    JsonObject,
    UsageError,
    clean,
    fault,
    read_as,
    refused,
    scratch,
    sniff_packed,
)
from ncuflow.origin import package_version
from ncuflow.parsers import show as shown
from ncuflow.process import die_with_parent, python_environment
from ncuflow.race import EFFECT
from ncuflow.step.record import StepAnswer
from ncuflow.target.contract import load

NSYS = "nsys reads it, which --allow-run allows; `nsys export --type sqlite` makes what is read without"
NOT_BELOW = "only what lies below the served folder may be named, by its path from there on"


@dataclass(frozen=True)
class Root:
    """The folder that is served, in which the process also works: a path is told from it on. runs: whether other programs may
    be started for who asks."""

    folder: Path
    runs: bool = False

    def inside(self, named: str) -> Path:
        """A path that was named, from the folder on; what it leads to need not be there.

        Raises BadInput for an absolute path, for one with "..", for one that leads out, itself or, of a folder, by
        a link in it, and for a report that nsys alone reads where it may not be run.
        """
        path = Path(named)
        shown = (
            named.replace("\0", "?").encode(errors="replace").decode()
        )  # of half a surrogate pair, "?"
        if not named or shown != named or path.is_absolute() or ".." in path.parts:
            raise BadInput(clean(shown) or "(empty)", NOT_BELOW)
        for place in (path, *_links(path)):
            if not self.holds(place):
                raise BadInput(clean(str(place)), f"a link that leads out; {NOT_BELOW}")
        if not self.runs and path.is_file() and sniff_packed(path)[0] == "nsys-rep":
            raise BadInput(clean(named), NSYS)
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path, with its links followed, lies below the folder."""
        # Path.resolve() raises RuntimeError of links in a circle, which lead nowhere.
        return Path(os.path.realpath(path)).is_relative_to(self.folder.resolve())


def _links(folder: Path) -> list[Path]:
    """The links in a folder and the folders below it; those that a link leads to are not gone through."""
    found = []
    for place, names, files in os.walk(folder):
        found += [one for name in (*names, *files) if (one := Path(place, name)).is_symlink()]
    return found


RECORDING_OF_REPORT = 2  # folders above a report of a recording: target and batch
OUTPUTS = Path("outputs")  # where a point is looked for
LAST_WORDS = 400  # characters of what a trial that failed says last
CAUSES = 3  # of a change
METRIC = "time_cold_us"  # that decides an advice
ROWS = 50  # of a list that is cut to what fits
FILES = 20_000  # of a folder that are looked at
T = TypeVar("T")


def _listed(value: Any) -> Any:
    """A list of one, where one was given by itself."""
    return [value] if isinstance(value, str | dict) else value


Limit = Annotated[
    int | None,
    Field(ge=1, le=500, description="entries of a list, each whole; default: what fits in 4 kB"),
]
Below = Annotated[str, Field(description="path from the served folder on")]
Folder = Annotated[
    str | None,
    Field(description="outputs/<machine> or a recording; default: outputs, else what ships"),
]
Words = Annotated[list[str], BeforeValidator(_listed)]
Blocks = Annotated[
    list[JsonObject] | None,
    BeforeValidator(_listed),
    Field(description="parameters of the points to run; default: the target's own point"),
]


class ListedReport(AnswerPart):
    """A report or a trace in the served folder."""

    path: str
    """The path that the other tools take."""
    kind: str
    """The tool that wrote it: ncu, nsys or torch."""
    bytes: int
    """The size of the file."""


class Listed(AnswerPart):
    """What can be asked about."""

    ROWS: ClassVar[tuple[str, ...]] = ("reports", "folders", "points")
    reports: list[ListedReport]
    """Reports and traces, by their paths."""
    folders: list[str]
    """Outputs and recordings, which `compare`, `explain` and `advise` take."""
    lineage: str
    """The folder whose points are counted or listed."""
    counts: dict[str, int]
    """How many points that folder has of each kernel target."""
    points: list[str]
    """The ids of the target that was asked for."""
    left_out: int = 0
    """How many entries the limit left out."""


def list_reports(
    root: Root, folder: Folder = None, target: str | None = None, limit: Limit = None
) -> Listed:
    """The reports, traces, outputs and recordings that are served (below folder), and the recorded points: how many of each
    kernel target, or the ids of one target."""
    place = root.inside(folder) if folder else None
    files, folders = _found(place or Path())
    where = place if place in folders else stored.shipped()
    named = str(where) if where is place else f"what ships ({location.name(where)})"
    ids = _ids(where)
    if target is not None:
        _known(target)
    found = Listed(
        reports=files, folders=sorted(map(str, folders)), lineage=named,
        counts={name: len(some) for name, some in ids.items()}, points=ids.get(target or "", []),
    )  # fmt: skip
    return limited(found, limit)


def _found(place: Path) -> tuple[list[ListedReport], set[Path]]:
    """(the reports and traces below a folder by their content, and the outputs and recordings there)."""
    reports, folders, looked = [], set(), 0
    for at, names, files in os.walk(place):
        names.sort()
        here = Path(at)
        if (here / manifest.FILE).is_file() or any(f.endswith(stored.SUFFIX) for f in files):
            folders.add(here)
        looked += len(files)
        for path in (here / name for name in sorted(files) if looked <= FILES):
            if path.is_file() and not path.is_symlink() and (kind := _kind(path)):
                size = path.stat().st_size
                reports.append(ListedReport(path=clean(str(path)), kind=kind, bytes=size))
    return reports, folders


def _kind(path: Path) -> str | None:
    """What wrote a report or a trace; None for any other file."""
    try:
        kind, _ = sniff_packed(path)
    except CommandError:
        return None
    if kind in ("json", "gzip"):
        return "torch" if shown.of_torch(path) else None
    return {"ncu-rep": "ncu", "sqlite": "nsys", "nsys-rep": "nsys"}.get(kind)


def _known(target: str) -> None:
    """Raises CommandError for an unknown target."""
    try:
        load(target)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _ids(where: Path) -> dict[str, list[str]]:
    """The ids of the points of outputs or of a recording, by target."""
    if not stored.is_recording(where):
        results = where / "results"
        every = stored.folder(results if results.is_dir() else where)
        return {name: [point["point"] for point in one["points"]] for name, one in every.items()}
    try:
        batches = manifest.read(where).targets
    except ValueError as error:
        raise CommandError(str(error)) from None
    return {
        name: list(dict.fromkeys(one for ids in of.values() for one in ids))
        for name, of in batches.items()
    }


def show(
    root: Root,
    source: Annotated[
        str, Field(description="path of a report; REPORT#INDEX of a launch; or id of a point")
    ],
    metrics: Words = [],  # noqa: B006
    folder: Folder = None,
    limit: Limit = None,
) -> shown.ReportAnswer | shown.TraceAnswer | TraceSteps:
    """Of a report of ncu or nsys its launches, with the counters whose key (docs/metrics.md) is in metrics or matches a pattern
    there. Of REPORT#INDEX or a point each number that metrics names (column, counter), back to its formula and counter: an
    answer's `trace` has both words."""
    report, sign, _ = source.rpartition("#")
    path = root.inside(report if sign else source)
    if sign or (stored.is_point(source) and not path.exists()):
        if not metrics:
            raise UsageError("metrics: name the number to trace back, such as duration_ns")
        where = _at_hand(root, folder)
        steps = [step for name in metrics for step in derivation.found(source, name, where)]
        return limited(TraceSteps(point=source, name=", ".join(metrics), steps=steps), limit)
    kind, words = sniff_packed(path)
    if kind not in shown.READERS:
        raise shown.strange(path, "ncu or nsys", kind, words)
    document = shown.READERS[kind](str(path))[1]
    for kernel in document.get("kernels", ()):
        counted = kernel["metrics"].items()
        kernel["metrics"] = {k: v for k, v in counted if any(fnmatchcase(k, m) for m in metrics)}
    found = shown.answer_of(document, source, limit or ROWS)
    if limit is None and isinstance(
        found, shown.ReportAnswer
    ):  # of the stalls the largest says enough
        found.columns = {n: one for n, one in found.columns.items() if "stalls." not in n}
        for row in found.kernels:
            row.stalls = {}
    return found


def explain(
    root: Root,
    source: Annotated[str, Field(description="path of a report, or id of a point")],
    kernel: Annotated[
        str | None,
        Field(description="of a report: index or pattern of a name; default: what takes most time"),
    ] = None,
    folder: Folder = None,
    limit: Limit = None,
) -> Explanation:
    """What limits a kernel, what its warps wait for and at which source lines, what it could gain at most, and what to try."""
    return limited(_explained(root, source, kernel, folder), limit)


def _explained(root: Root, source: str, kernel: str | None, folder: str | None) -> Explanation:
    path = root.inside(source)
    outputs = _at_hand(root, folder)
    if not path.exists() or sniff_packed(path)[0] in profiled.TRACES:
        return verb.explain(source, kernel, outputs)
    above = path.absolute().parents
    if len(above) <= RECORDING_OF_REPORT or root.holds(above[RECORDING_OF_REPORT]):
        return verb.explain(source, kernel)
    # what lies above the folder may be the recording that the report is of: it is not looked at
    kind = "ncu" if sniff_packed(path)[0] == "ncu-rep" else "ncu csv"
    return launch.of_report(profiled.read(path), kernel, kind)


def _at_hand(root: Root, folder: str | None) -> Path | None:
    """The folder that is named; None where none is, and what is looked through then lies below the served one as well."""
    if folder is None and OUTPUTS.exists():
        root.inside(str(OUTPUTS))
    return root.inside(folder) if folder else None


def compare(root: Root, base: Below, head: Below, limit: Limit = None) -> CompareAnswer:
    """What got slower from base to head, and why: two folders of results, outputs or recordings, two reports, or two traces. A
    point has its largest causes, without their parts."""
    sides = root.inside(base), root.inside(head)
    found = compared(verdict.compared(*sides), verdict.METRICS, limit or ROWS)
    for point in found.points:
        causes = point.causes[: CAUSES if limit else 1]
        point.causes = [replace(cause, parts=[], facts=[]) for cause in causes]
        kept = point.metrics.items() if limit else ()
        point.metrics = {name: replace(one, causes=[]) for name, one in kept}
    return found


def step(
    root: Root,
    trace: Annotated[str, Field(description="SQLite export of nsys, or JSON of torch's profiler")],
    device: int | None = None,
    known: Annotated[
        Words, Field(description="NAME=NUMBER of the model, such as hidden=4096")
    ] = [],  # noqa: B006
    limit: Limit = None,
) -> StepAnswer:
    """The steps of a serving engine's trace, kernel by kernel: which shapes ran, how far from the roof, where the GPU stood idle,
    and what another choice of FlashInfer's would bring."""
    from ncuflow.step import trace as stepped  # with numpy, which is an extra

    found = stepped.step(root.inside(trace), known=known, device=device)
    return stepped.limited(found, limit)


def advise(
    root: Root,
    target: str,
    folder: Annotated[
        str | None,
        Field(
            description="outputs, a recording, or what `ncuflow advise --out` wrote; default: what ships"
        ),
    ] = None,
    race: Annotated[bool, Field(description="on this GPU, in place of what is recorded")] = False,
    change: Annotated[
        str | None, Field(description="path of a patch of FlashInfer to try on this GPU")
    ] = None,
    blocks: Blocks = None,
    effect: Annotated[
        str, Field(description="minimum effect: a smaller difference is none")
    ] = "2%",
    limit: Limit = None,
) -> Advice | Trial:
    """Which backend and settings are fastest at each recorded shape of a target, by how much, and why. race times them on this
    GPU; change compiles a patch, checks it against the reference and times it. Both take minutes, run code as the user who
    serves, and need --allow-run."""
    patch = root.inside(change) if change is not None else None
    if race or patch:
        if not root.runs:
            raise UsageError("race and change run code here: serve with --allow-run")
        words = [f"--target={target}", f"--effect={effect}"]
        words += [f"--blocks={json.dumps(blocks or [{}])}"] if blocks or race else []
        if patch:
            return _run(["try", f"./{patch}", *words], "--json", Trial, "the record of a trial")
        return _timed(_run(["advise", *words], "--out", Advice, "an advice"), limit)
    where = root.inside(folder) if folder else stored.shipped()
    _known(target)
    if where.is_dir():
        return _timed(advised.advise(where, [target], {}, METRIC, EFFECT), limit)
    found = advised.read(where)
    found.shapes = [shape for shape in found.shapes if shape.target == target]
    found.rules = [rule for rule in found.rules if rule.target == target]
    return _timed(found, limit)


def _timed(found: Advice, limit: int | None) -> Advice:
    """So many shapes, each with the choices that were timed, or without a limit with none; the rest is counted."""
    shapes, left_out = cut(found.shapes, limit)
    for shape in shapes:
        timed = [one for one in shape.choices if one.time_us is not None and limit]
        left_out += len(shape.choices) - len(timed)
        shape.choices = timed
    return found.model_copy(update={"shapes": shapes, "left_out": found.left_out + left_out})


def _run(words: Sequence[str], option: str, kind: type[T], what: str) -> T:
    """The record that a command of ncuflow writes where this option says. Raises CommandError with its last word."""
    with scratch() as folder:
        out = folder / "record.json"
        done = subprocess.run(
            [sys.executable, "-m", "ncuflow", *words, f"{option}={out}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=python_environment(os.environ),
            preexec_fn=die_with_parent,
        )
        if not out.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()]
            last = said[-1][:LAST_WORDS] if said else f"it ended with status {done.returncode}"
            raise CommandError(last.partition("error: ")[2] or last, done.returncode)
        return read_as(out, kind, what)


TOOLS = (list_reports, show, explain, compare, step, advise)


# --- an answer's text, and the server --------------------------------------------------------

MOST_BYTES = 4096
LONGEST = 240  # characters of a text in an answer that is cut to fit
SMALL = 150  # bytes of a list that stays whole: a grid, an interval
MAPS = ("columns", "metrics")  # mappings that are cut as lists are


def text(found: BaseModel, whole: bool) -> str:
    """An answer as JSON: whole, or what fits. Then numbers have six digits, a null is left out, and the longest lists lose their
    last entries, which ``left_out`` counts."""
    document = found.model_dump(mode="json", by_alias=True)
    if whole:
        return _dumped(document)
    fitted = _sourced(_brief(document))
    while len(_dumped(fitted).encode()) > MOST_BYTES and (longest := _longest(fitted)):
        kept = len(longest) // 2
        fitted["left_out"] = fitted.get("left_out", 0) + len(longest) - kept
        if isinstance(longest, list):
            del longest[kept:]
        else:
            for key in [*longest][kept:]:
                del longest[key]
    return _dumped(fitted)


def _longest(value: JsonObject) -> list[Any] | dict[str, Any] | None:
    """What is cut next: of lists of several entries the longest that holds no other such; then one of a single entry."""
    found = [one for one in _lists(value, "") if one[1] > SMALL]
    return max(found, key=lambda one: (len(one[2]) > 1, one[0], one[1]))[2] if found else None


def _lists(value: Any, name: str) -> Iterator[tuple[bool, int, Any]]:
    """Each list and mapping that may be cut, those inside it before it: whether none of these has several entries, its bytes
    beside them, and itself."""
    within, lowest = 0, True
    for key, one in value.items() if isinstance(value, dict) else (("", one) for one in value):
        for leaf, size, inner in _lists(one, key) if isinstance(one, dict | list) else ():
            within += size
            lowest = lowest and not (len(inner) > 1 and size > SMALL)
            yield leaf, size, inner
    if isinstance(value, list) or name in MAPS:
        yield lowest, len(_dumped(value)) - within, value


def _sourced(document: JsonObject) -> JsonObject:
    """With the first of the words of all ``trace`` once, as ``source``, where it is the same of all."""
    found = [one for one in _objects(document) if " " in str(one.get("trace"))]
    sources = {one["trace"].rpartition(" ")[0] for one in found}
    if len(found) < 2 or len(sources) > 1:
        return document
    for one in found:
        one["trace"] = one["trace"].rpartition(" ")[2]
    return document | {"source": sources.pop().strip("'")}


def _objects(value: Any) -> Iterator[JsonObject]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from _objects(one)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _brief(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_brief(one) for one in value]
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]} …"
    return float(f"{value:.6g}") if isinstance(value, float) else value


LONGEST_NAME = 60  # characters of an argument's name that are said back
INSTRUCTIONS = """Measured facts about GPU kernels, FlashInfer's above all. A number has a unit, a tier (A: counted here and now;
B: timed here, not counted; C: recorded elsewhere; S: compiled, never run) and in `trace` the words (source, metric) with which
`show` shows where it comes from; of a table `columns` has unit and tier once. null or absent is not known, never zero. left_out
counts what was cut: ask with `limit` for whole entries. A verdict of compare or of a change stands for itself: "inconclusive",
"not tested" and "undecided" are no "same". What a line waits for is seldom caused at that line. A suggestion is no result
until it was tried."""


def server(root: Root) -> Any:
    """The server (`mcp.server.mcpserver.MCPServer`) with its tools. Raises ModuleNotFoundError where `mcp` is not installed."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp.types import ToolAnnotations

    class StrictTool(Tool):  # type: ignore[misc, unused-ignore]
        """A tool that refuses in one line an argument which it does not have, or that is not what it should be: who misspelt one
        would take the answer for another's."""

        async def run(self, arguments: JsonObject, *rest: Any, **options: Any) -> Any:
            known = self.parameters["properties"]
            if strange := [name for name in arguments if name not in known]:
                raise ToolError(
                    f"no argument {clean(strange[0])[:LONGEST_NAME]!r}; there are: {', '.join(known)}"
                )
            try:
                self.fn_metadata.validate_arguments(arguments)
            except ValidationError as error:
                raise ToolError(" ".join(clean(fault(error)).split())) from None
            return await super().run(arguments, *rest, **options)

    def tool(question: Callable[..., Any]) -> Any:
        """The tool of a function, whose first argument is the root; an answer that cannot be had is the one line that the command
        would say."""

        def ask(**asked: Any) -> str:
            try:
                return text(question(root, **asked), whole=asked["limit"] is not None)
            except CommandError as error:
                raise ToolError(" ".join(clean(str(error)).split())) from None
            except OSError as error:
                raise ToolError(clean(refused(error))) from None

        signature = inspect.signature(question, eval_str=True)
        own = [*signature.parameters.values()][1:]
        ask.__signature__ = signature.replace(parameters=own, return_annotation=str)  # type: ignore[attr-defined]
        runs = root.runs and question is advise
        made = StrictTool.from_function(
            ask,
            question.__name__,
            description=inspect.getdoc(question),
            annotations=ToolAnnotations(read_only_hint=not runs, open_world_hint=False),
            structured_output=False,
        )
        made.parameters = _untitled(made.parameters) | {"additionalProperties": False}
        return made

    return MCPServer(
        "ncuflow", instructions=INSTRUCTIONS, version=package_version("ncuflow") or "0", log_level="ERROR",
        tools=[tool(one) for one in TOOLS],
    )  # fmt: skip


def _untitled(schema: Any) -> Any:
    """A schema of arguments without the titles that pydantic makes of their names."""
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(one) for key, one in schema.items() if key != "title"}


def mcp(*, root: Path = Path(), allow_run: bool = False) -> None:
    """Answer programs over the Model Context Protocol, on standard input and output; it needs the package mcp.

        ncuflow mcp [--root FOLDER]                 reports, outputs and recordings below FOLDER (default: this one)
        ncuflow mcp --root FOLDER --allow-run       also compiles and runs: changes of FlashInfer (`ncuflow try`), choices of it
                                                    (`ncuflow advise`), as you

    Nothing is written and nothing is run without --allow-run. A path is told from FOLDER on; one that leads out is refused.
    docs/agents.md has the tools, and how their answers are read.

    Args:
        root: folder that is read
        allow_run: the tool `advise` may run code, as you
    """
    if not root.is_dir():
        raise UsageError(f"--root {root}: no such folder")
    os.chdir(root)
    answering = server(Root(Path.cwd(), allow_run))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    answering.run()


def _end(number: int, frame: object) -> None:
    """At once: a thread waits for the next question, and would be waited for. What runs for a question ends with its parent."""
    os._exit(128 + number)
