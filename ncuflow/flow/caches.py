"""Where programs keep what they may lose: below the outputs where the home folder cannot be written.

So it is in a container that runs as any user, and for a service. Snakemake's own cache is none of these: the profile
has it in the temporary folder, since Snakemake asks for it before a rule file is read.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDER = ".cache"


def provide(outputs: Path) -> str | None:
    """Let compiled modules and Matplotlib's fonts lie below the outputs where home does not serve.

    It is the environment that is changed: of this process, and of all that it starts. Returns a line that says so.
    """
    own = outputs.absolute() / FOLDER
    if not _serves("XDG_CONFIG_HOME", ".config"):
        os.environ.setdefault("MPLCONFIGDIR", str(own / "matplotlib"))
    if _serves("XDG_CACHE_HOME", ".cache"):
        return None
    os.environ["XDG_CACHE_HOME"] = str(own)
    return f"the home folder cannot be written: caches are in {outputs / FOLDER}"


def _serves(variable: str, below_home: str) -> bool:
    """Whether a file can be written where this variable, or else the home folder, says."""
    home = os.environ.get("HOME")
    place = os.environ.get(variable) or (home and f"{home}/{below_home}")
    if not place:
        return False
    try:
        there = next(path for path in (Path(place), *Path(place).parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            return True
    except OSError:
        return False
