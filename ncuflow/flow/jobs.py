"""A rule's command: the project's own files that it reads, so that an edit of one reruns what it makes, and its run in a child of
Snakemake's own process.

A command reads the modules that it imports, directly or not, those of the commands that it starts, and the
data files that these modules name as ``resource("…")`` or ``Path(__file__).with_name("…")``; a page
reads its template and what that includes. The rules take their inputs from here, at every start of Snakemake,
so modules are searched for their import statements and not parsed as a whole.

Libraries are loaded once, not in every job.
A run on recorded evidence has some twenty jobs, and each would import pandas, pyarrow and matplotlib
for longer than it works (benchmarks/RESULTS.md). One job for all targets would be the other way, but
Snakemake removes what a failed job made: one broken target would take the others' pages along.

Where the home folder cannot be written, caches of programs lie below the outputs: so it is in a container that runs as
any user, and for a service. Snakemake's own is none of these: the profile has it in the temporary folder, since Snakemake
asks for it before a rule file is read.
"""

import gc
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread

from ncuflow import cli
from ncuflow.io import resource
from ncuflow.target.contract import folders, template_folders

PACKAGE = Path(__file__).parents[1]
TARGETS = "ncuflow.targets"  # imported by name, so no import statement has them
LOADS = "ncuflow.target.contract"  # by this module
SUGGESTS = "ncuflow.findings.opportunities"  # what stands beside a target's prose
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
    roots = [cli.COMMANDS[command][0] for command in commands]
    modules = _closure(*roots, apart=frozenset(given))
    if LOADS in modules:
        plugins = [target] if target else _plugins()
        modules |= _closure(*(f"{TARGETS}.{name}" for name in plugins))
    found = {file for name in modules for file in _files(name)}
    if SUGGESTS in modules:
        found |= _templates(f"guide/{target or '*'}/*.yaml") | _templates("guide/*.yaml")
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
    names = [cli.COMMANDS[command][0] for command in _STARTED.findall(text)]
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


# --- its run ---------------------------------------------------------------------------------

# Imported in functions, of libraries and of commands. What the jobs of a command share beside, the function `share` of its
# module makes, of the words of the first of them.
LATE = ("cyclopts.help", "pandas", "pyarrow.csv", "pyarrow.parquet")
Value = str | Path | float | bool | Iterable[str | Path] | None
# A child has the threads' locks but not the threads: a module that was half imported would be so for ever.
_importing = Lock()


def run(log: str, name: str, *given: Value, **options: Value) -> None:
    """Run a command of `ncuflow` with what it is given, what it says on stderr going to the file `log`.

    Raises RuntimeError where it ends with another status than 0.
    """
    words = words_of(name, *given, **options)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(words, log))
    # Not from a thread of Snakemake's pool: the child would wait for that pool when it ends.
    start = Thread(target=child.start)
    with _importing:
        try:
            for module in LATE:
                import_module(module)
            if share := getattr(import_module(cli.COMMANDS[name][0]), "share", None):
                share(words)
        except ImportError as error:
            Path(log).write_text(f"error: {error}\n", encoding="utf-8")
            raise RuntimeError(f"ncuflow {name}: {error}") from error
        # What is here is no garbage: each collection would go through all of it, and copy what a child shares.
        gc.freeze()
        start.start()
        start.join()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"ncuflow {shlex.join(words)}: exit status {child.exitcode}")


def words_of(name: str, *given: Value, **options: Value) -> list[str]:
    """The words of a command: of a list each value, of None, False and an empty list nothing, of True the option alone.

    words_of("pages", ["INDEX"], out_dir=Path("out"), strict=True) is pages INDEX --out-dir out --strict.
    """
    words = [*name.split(), *(word for value in given for word in _texts(value))]
    for option, value in options.items():
        texts = _texts(value)
        if texts or value is True:
            words += [f"--{option.replace('_', '-')}", *texts]
    return words


def _texts(value: Value) -> list[str]:
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, str | Path | int | float):
        return [str(value)]
    return [str(one) for one in value]


def _run(words: Sequence[str], log: str) -> None:
    sys.stderr = Path(log).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    os.dup2(sys.stderr.fileno(), 2)
    gc.disable()  # it lives for one command; the more points, the longer collections go through their rows for nothing
    cli.main(words)


def spare_snakemake() -> None:
    """Keep Snakemake from importing pandas to see whether a param is a frame (half a second of each start, and ours are none),
    and from counting how many jobs it starts in a second: for that it looks several times a second, as long as a job waits, at
    the sizes of all files that waiting jobs read. How many run at a time, `-j` says."""
    from snakemake.persistence import PersistenceBase
    from snakemake.scheduling import job_scheduler

    PersistenceBase._serialize_param_pandas = PersistenceBase._serialize_param_builtin
    job_scheduler.JobRateLimiter = lambda limit: None


FOLDER = ".cache"


def provide_caches(outputs: Path) -> str | None:
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
