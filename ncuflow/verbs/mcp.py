"""Answer programs over the Model Context Protocol, on standard input and output; it needs the package mcp.

    ncuflow mcp [--root FOLDER]                 reports, outputs and recordings below FOLDER (default: this one)
    ncuflow mcp --root FOLDER --allow-run       also compiles and runs: changes of FlashInfer (`ncuflow try`), choices of it
                                                (`ncuflow advise`), as you

Nothing is written and nothing is run without --allow-run. A path is told from FOLDER on; one that leads out is refused.
docs/agents.md has the tools, and how their answers are read.
"""

from pathlib import Path

from ncuflow.io import UsageError
from ncuflow.mcp import serve


def command(*, root: Path = Path(), allow_run: bool = False) -> None:
    """Serve.

    Args:
        root: folder that is read
        allow_run: the tool `advise` may run code, as you
    """
    if not root.is_dir():
        raise UsageError(f"--root {root}: no such folder")
    serve(root, allow_run)
