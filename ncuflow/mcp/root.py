"""One folder that is served: which paths a program that asks may name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ncuflow.io import BadInput, clean, sniff_packed

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
