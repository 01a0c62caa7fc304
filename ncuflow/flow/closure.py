"""Closures: the project's own files that a command reads, so that an edit of one reruns what it makes.

A command reads the modules that it imports, directly or not, those of the commands that it starts, and the
data files that these modules name as ``resource("…")`` or ``Path(__file__).with_name("…")``; a page
reads its template and what that includes. The rules take their inputs from here, at every start of Snakemake,
so modules are searched for their import statements and not parsed as a whole.
"""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from ncuflow.cli import COMMANDS
from ncuflow.io import resource
from ncuflow.target.contract import folders, template_folders

PACKAGE = Path(__file__).parents[1]
TARGETS = "ncuflow.targets"  # imported by name, so no import statement has them
LOADS = "ncuflow.target.contract"  # by this module
SUGGESTS = "ncuflow.findings.opportunities"  # what the targets' files of that name have
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)
_FROM = re.compile(rf"from ({PACKAGE.name}[\w.]*) import (\([^)]*\)|[^#\n]+)")
_IMPORT = re.compile(rf"import ({PACKAGE.name}\.[\w.]+)")
_NAME = re.compile(r"([\w.]+)(?: as \w+)?")
_STARTED = re.compile(r'"-m",\s*"ncuflow",\s*"([\w-]+)"')
_DATA = re.compile(r'resource\("([^"]+)"\)')
_TEMPLATE = re.compile(r'get_template\("([^"]+)"\)')
_INCLUDED = re.compile(
    r"\{%-? *(?:include|import|from|extends) +(.+?)(?: import .+| ignore missing)? *-?%\}"
)
_BESIDE = re.compile(r'Path\(__file__\)\.with_name\("([^"]+)"\)')


def inputs(
    *commands: str,
    target: str | None = None,
    pages: Sequence[str] = (),
    given: Sequence[str] = (),
) -> list[str]:
    """Paths of what the commands read, sorted, relative to the working directory where they lie below it.

    commands: names of `ncuflow.cli.COMMANDS`. target: the kernel target that they work on; without
    one, those that load targets are taken to load all. pages: page templates that they render.
    given: modules whose part in it the rule hands over itself, as a parameter.
    """
    roots = [COMMANDS[command][0] for command in commands]
    modules = _closure(*roots, apart=frozenset(given))
    if LOADS in modules:
        plugins = [target] if target else _plugins()
        modules |= _closure(*(f"{TARGETS}.{name}" for name in plugins))
    found = {file for name in modules for file in _files(name)}
    if SUGGESTS in modules:
        found |= _templates(f"guide/{target or '*'}/opportunities.yaml")
    found |= {file for page in pages for file in _templates(f"{page}.md.j2")}
    return _from_here(found)


def data(folder: str) -> list[str]:
    """Paths of the files below a data folder, in the order of their names."""
    return _from_here(path for path in resource(folder).rglob("*") if path.is_file())


def _plugins() -> list[str]:
    files = {path.stem for folder in folders() for path in folder.glob("*.py")}
    return sorted(files - {"__init__"})


@cache
def _closure(*modules: str, apart: frozenset[str] = frozenset()) -> frozenset[str]:
    """The modules and all project modules that are imported with them."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found | apart and _path(name):
            found.add(name)
            waiting += [name.rpartition(".")[0], *imported(name)]
    return frozenset(found)


@cache
def _path(module: str) -> Path | None:
    """The file of a module of this package; None for any other name."""
    package, _, name = module.rpartition(".")
    if package == TARGETS:
        paths = [folder / f"{name}.py" for folder in folders()]
    elif module.partition(".")[0] == PACKAGE.name:
        path = PACKAGE.joinpath(*module.split(".")[1:])
        paths = [path / "__init__.py", path.with_suffix(".py")]
    else:
        return None
    return next((path for path in paths if path.is_file()), None)


@cache
def _text(module: str) -> str:
    path = _path(module)
    assert path, module
    return _FOR_TYPES.sub("", path.read_text(encoding="utf-8"))


@cache
def imported(module: str) -> list[str]:
    """What a module imports, in functions too, and the modules of the commands that it starts.

    A name that is no module has no file.
    """
    text = _text(module)
    names = [COMMANDS[command][0] for command in _STARTED.findall(text)]
    for package, parts in _FROM.findall(text):
        names += [package, *(f"{package}.{part}" for part in _NAME.findall(parts))]
    return names + _IMPORT.findall(text)


@cache
def _files(module: str) -> tuple[Path, ...]:
    """A module's own file and the data files that it names."""
    path = _path(module)
    assert path, module
    data = [resource(name) for name in _DATA.findall(_text(module))]
    data += [path.with_name(name) for name in _BESIDE.findall(_text(module))]
    for name in _TEMPLATE.findall(_text(module)):
        data += sorted(_templates(name))
    return path, *(found for found in data if found.is_file())


@cache
def _templates(name: str) -> frozenset[Path]:
    """The templates of this name or pattern, with all that they include."""
    found = {path for path, known in _all_templates() if fnmatchcase(known, name)}
    for path in frozenset(found):
        for said in _INCLUDED.findall(path.read_text(encoding="utf-8")):
            for one in said.strip("[]").split(","):
                parts = (part.strip() for part in one.split("~"))
                known = (part[1:-1] if part.startswith('"') else "*" for part in parts)
                found |= _templates("".join(known))
    return frozenset(found)


@cache
def _all_templates() -> list[tuple[Path, str]]:
    """Every template and its name; a part of a name that is known only when it is rendered matches any."""
    return [
        (path, str(path.relative_to(folder)))
        for folder in template_folders()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _from_here(paths: Iterable[Path]) -> list[str]:
    """The paths, sorted, with their links followed, as seen from the working directory."""
    here = f"{Path.cwd()}{os.sep}"
    return sorted(_real(path).removeprefix(here) for path in paths)


@cache
def _real(path: Path) -> str:
    return os.path.realpath(path)
