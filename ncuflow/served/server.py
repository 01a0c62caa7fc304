"""Answer programs over the Model Context Protocol, on standard input and output: `pip install 'ncuflow[mcp]'`.

    ncuflow mcp [--root FOLDER]                 reports, outputs and recordings below FOLDER (default: this one)
    ncuflow mcp --root FOLDER --allow-run       also compiles and runs: changes of FlashInfer (`ncuflow try`), choices of it
                                                (`ncuflow advise`), as you

Nothing is written and nothing is run without --allow-run. A path is told from FOLDER on; one that leads out is refused.
docs/agents.md has the tools, and how their answers are read.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from ncuflow.cli import refused
from ncuflow.experiments.record import Advice, Trial
from ncuflow.explain.record import Explanation
from ncuflow.io import CommandError, UsageError, clean
from ncuflow.origin import package_version
from ncuflow.served import answers
from ncuflow.served.records import (
    HotLines,
    Lineages,
    Points,
    ServedComparison,
    ServedReport,
    Suggestions,
    Targets,
)
from ncuflow.served.root import Root

T = TypeVar("T")
LONGEST_NAME = 60  # characters of an argument's name that are said back
INSTRUCTIONS = """Measured facts about GPU kernels, FlashInfer's above all. Every number has a unit, a tier (A: counted here
and now; B: timed here, not counted; C: recorded elsewhere; S: compiled, never run) and the words that `trace` takes to show
where it comes from. null is not known, never zero. left_out counts what the limit cut off. A verdict of compare or try stands
for itself: "too noisy to tell", "not tested" and "undecided" are no "same". What a line waits for is seldom
caused at that line. A suggestion is not a result until it was tried."""

Limit = Annotated[int, Field(ge=1, le=500, description="entries of a list at most")]
Source = Annotated[str, Field(description="path of a report of ncu or nsys, or the id of a point")]
Kernel = Annotated[
    str | None,
    Field(
        description="of a report: index of a launch, or pattern of a name; default: of the largest total the longest"
    ),
]
Folder = Annotated[
    str | None,
    Field(description="outputs/<machine> or a recording; default: outputs, else what ships"),
]
Source_ = Annotated[
    str | None,
    Field(
        description="outputs, a recording, or what `ncuflow advise --out` wrote; default: what ships"
    ),
]
Metrics = Annotated[
    list[str], Field(description="keys of docs/metrics.md or patterns of them, such as dram_*")
]
Path_ = Annotated[str, Field(description="path from the served folder on")]
Blocks = Annotated[
    list[dict[str, Any]] | None,
    Field(description="parameters of the points; default: the target's own point"),
]


def made(root: Root) -> Any:
    """The server (`mcp.server.mcpserver.MCPServer`) with its tools. Raises CommandError where `mcp` is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
        from mcp.types import ToolAnnotations
    except ImportError:
        raise CommandError("the package mcp is missing: pip install 'ncuflow[mcp]'") from None

    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    runs = ToolAnnotations(read_only_hint=False)
    tools: list[Any] = []

    class StrictTool(Tool):  # type: ignore[misc, unused-ignore]
        """A tool that refuses an argument which it does not have: who misspelt one would take the answer for another's."""

        async def run(self, arguments: dict[str, Any], *rest: Any, **options: Any) -> Any:
            known = self.parameters["properties"]
            if strange := [name for name in arguments if name not in known]:
                what = f"no argument {clean(strange[0])[:LONGEST_NAME]!r}; there are: {', '.join(known)}"
                raise ToolError(f"Error executing tool {self.name}: {what}")
            return await super().run(arguments, *rest, **options)

    def tool(annotations: Any, name: str | None = None) -> Callable[[Callable[..., T]], None]:
        """Declares a tool by its function."""

        def declared(function: Callable[..., T]) -> None:
            made = StrictTool.from_function(function, name=name, annotations=annotations)
            made.parameters["additionalProperties"] = False
            tools.append(made)

        return declared

    def answered(answer: Callable[..., T], *asked: Any) -> T:
        """An answer; where it cannot be had, the one line that the command would say."""
        try:
            return answer(root, *asked)
        except CommandError as error:
            raise ToolError(" ".join(clean(str(error)).split())) from None
        except OSError as error:
            raise ToolError(clean(refused(error))) from None

    @tool(reads)
    def list_targets(folder: Folder = None, limit: Limit = 50) -> Targets:
        """The kernel targets, whether each can be measured on this machine, and how many points of it are at hand."""
        return answered(answers.targets, folder, limit)

    @tool(reads)
    def list_points(target: str, folder: Folder = None, limit: Limit = 50) -> Points:
        """The ids of a target's points, which explain, hot_lines, opportunities and trace take."""
        return answered(answers.points, target, folder, limit)

    @tool(reads)
    def show(report: Path_, metrics: Metrics = [], limit: Limit = 20) -> ServedReport:  # noqa: B006
        """The launches of a report of ncu or nsys, of any program, with the counters that are asked for."""
        return answered(answers.show, report, metrics, limit)

    @tool(reads)
    def explain(
        source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
    ) -> Explanation:
        """What limits a kernel, what its warps wait for, what it could gain at most, and what to try."""
        return answered(answers.explain, source, kernel, folder, limit)

    @tool(reads)
    def hot_lines(
        source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
    ) -> HotLines:
        """The source lines at which a kernel's warps stood, and what for; the line's text where its source is installed."""
        return answered(answers.hot_lines, source, kernel, folder, limit)

    @tool(reads)
    def opportunities(
        source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
    ) -> Suggestions:
        """What the evidence suggests to try at a kernel or a point, with what it can bring at most."""
        return answered(answers.opportunities, source, kernel, folder, limit)

    @tool(reads)
    def compare(base: Path_, head: Path_, limit: Limit = 20) -> ServedComparison:
        """What got slower from base to head, and why: two folders of results, outputs or recordings, or two reports."""
        return answered(answers.compare, base, head, limit)

    @tool(reads)
    def trace(source: str, name: str, folder: Folder = None, limit: Limit = 50) -> Lineages:
        """From a number back to its report, kernel and counter; the words are those of its `trace`: source, name, folder."""
        return answered(answers.trace, source, name, folder, limit)

    @tool(reads)
    def advice(target: str, folder: Source_ = None, limit: Limit = 5) -> Advice:
        """Which backend and settings are fastest for each shape of a target that was measured, by how much, and why. Choices that
        were not timed are left out."""
        return answered(answers.advice, target, folder, limit)

    if root.runs:

        @tool(runs, "try")
        def try_change(
            change: Path_, target: str, blocks: Blocks = None, effect: str = "2%"
        ) -> Trial:
            """Compile a patch of FlashInfer, hold it against the reference, and time it beside what is installed. It is code,
            and runs as the user who serves; it takes minutes, and a GPU."""
            return answered(answers.try_change, change, target, blocks, effect)

        @tool(runs)
        def advise(
            target: str, blocks: Blocks = None, effect: str = "2%", limit: Limit = 5
        ) -> Advice:
            """Race all legal choices of each shape on this machine's GPU, checked against the reference. It compiles what is not
            compiled yet, and takes minutes."""
            return answered(answers.advise, target, blocks, effect, limit)

    return MCPServer(
        "ncuflow", instructions=INSTRUCTIONS, version=package_version("ncuflow") or "0", log_level="ERROR", tools=tools
    )  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, default=Path(), metavar="FOLDER", help="what is read")
    parser.add_argument(
        "--allow-run",
        action="store_true",
        help="also the tools `try` and `advise`, which run code as you",
    )


def run(args: argparse.Namespace) -> None:
    if not args.root.is_dir():
        raise UsageError(f"--root {args.root}: no such folder")
    os.chdir(args.root)
    server = made(Root(Path.cwd(), args.allow_run))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    server.run()


def _end(number: int, frame: object) -> None:
    """At once: a thread waits for the next question, and would be waited for. What runs for a question ends with its parent."""
    os._exit(128 + number)
