"""The server of the Model Context Protocol: a tool for each question of `answers`."""

import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ncuflow.io import CommandError, JsonObject, clean, fault, refused
from ncuflow.mcp import answers
from ncuflow.mcp.fit import text
from ncuflow.origin import package_version

LONGEST_NAME = 60  # characters of an argument's name that are said back
INSTRUCTIONS = """Measured facts about GPU kernels, FlashInfer's above all. A number has a unit, a tier (A: counted here and now;
B: timed here, not counted; C: recorded elsewhere; S: compiled, never run) and in `trace` the words (source, metric) with which
`show` shows where it comes from; of a table `columns` has unit and tier once. null or absent is not known, never zero. left_out
counts what was cut: ask with `limit` for whole entries. A verdict of compare or of a change stands for itself: "inconclusive",
"not tested" and "undecided" are no "same". What a line waits for is seldom caused at that line. A suggestion is no result
until it was tried."""


def made(root: answers.Root) -> Any:
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
        runs = root.runs and question is answers.advise
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
        tools=[tool(one) for one in answers.TOOLS],
    )  # fmt: skip


def _untitled(schema: Any) -> Any:
    """A schema of arguments without the titles that pydantic makes of their names."""
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(one) for key, one in schema.items() if key != "title"}


def serve(root: Path, allow_run: bool) -> None:
    """Answer on standard input and output, until that ends."""
    os.chdir(root)
    server = made(answers.Root(Path.cwd(), allow_run))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    server.run()


def _end(number: int, frame: object) -> None:
    """At once: a thread waits for the next question, and would be waited for. What runs for a question ends with its parent."""
    os._exit(128 + number)
