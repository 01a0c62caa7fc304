"""The server of the Model Context Protocol: a tool for each question of `answers`."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ncuflow.io import CommandError, JsonObject, clean, refused
from ncuflow.mcp import answers
from ncuflow.mcp.root import Root
from ncuflow.origin import package_version

LONGEST_NAME = 60  # characters of an argument's name that are said back
INSTRUCTIONS = """Measured facts about GPU kernels, FlashInfer's above all. Every number has a unit, a tier (A: counted here
and now; B: timed here, not counted; C: recorded elsewhere; S: compiled, never run) and the words that `trace` takes to show
where it comes from: of a table `columns` has them once, behind the `trace` of a row. null is not known, never zero. left_out
counts what the limit cut off. A verdict of compare or try stands for itself: "too noisy to tell", "not tested" and
"undecided" are no "same". What a line waits for is seldom caused at that line. A suggestion is no result until it was
tried."""


def made(root: Root) -> Any:
    """The server (`mcp.server.mcpserver.MCPServer`) with its tools. Raises ModuleNotFoundError where `mcp` is not installed."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp.types import ToolAnnotations

    class StrictTool(Tool):  # type: ignore[misc, unused-ignore]
        """A tool that refuses an argument which it does not have: who misspelt one would take the answer for another's."""

        async def run(self, arguments: JsonObject, *rest: Any, **options: Any) -> Any:
            known = self.parameters["properties"]
            if strange := [name for name in arguments if name not in known]:
                what = f"no argument {clean(strange[0])[:LONGEST_NAME]!r}; there are: {', '.join(known)}"
                raise ToolError(f"Error executing tool {self.name}: {what}")
            return await super().run(arguments, *rest, **options)

    def tool(question: Callable[..., Any], annotations: Any) -> Any:
        """The tool of a function, whose first argument is the root; an answer that cannot be had is the one line that the command
        would say."""

        def ask(**asked: Any) -> Any:
            try:
                return question(root, **asked)
            except CommandError as error:
                raise ToolError(" ".join(clean(str(error)).split())) from None
            except OSError as error:
                raise ToolError(clean(refused(error))) from None

        signature = inspect.signature(question, eval_str=True)
        ask.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        name = question.__name__.removesuffix("_change")  # "try" is a word of Python's own
        made = StrictTool.from_function(
            ask, name, description=inspect.getdoc(question), annotations=annotations
        )
        made.parameters["additionalProperties"] = False
        return made

    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    runs = ToolAnnotations(read_only_hint=False)
    tools = [tool(one, reads) for one in answers.READ]
    tools += [tool(one, runs) for one in answers.RUN if root.runs]
    return MCPServer(
        "ncuflow", instructions=INSTRUCTIONS, version=package_version("ncuflow") or "0", log_level="ERROR", tools=tools
    )  # fmt: skip


def serve(root: Path, allow_run: bool) -> None:
    """Answer on standard input and output, until that ends."""
    os.chdir(root)
    server = made(Root(Path.cwd(), allow_run))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    server.run()


def _end(number: int, frame: object) -> None:
    """At once: a thread waits for the next question, and would be waited for. What runs for a question ends with its parent."""
    os._exit(128 + number)
