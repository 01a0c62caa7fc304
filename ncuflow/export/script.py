"""One point as a Python file that stands alone: torch and FlashInfer, to be run under your own ncu or nsys."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from ncuflow.export.inlined import Asked, inlined
from ncuflow.findings import stored
from ncuflow.io import UsageError, read_yaml, resource
from ncuflow.origin import package_version
from ncuflow.sweep import points as sweep
from ncuflow.sweep.points import Planned
from ncuflow.target import launch, reference
from ncuflow.target.contract import Target, load

NAME = "point.py"  # of a file that is written to standard output
LAUNCH, TENSOR = (launch.__name__, launch.Launch.__name__), (launch.__name__, "Tensor")
# References are written on the array API, by a package that need not be there; an input that one computes is of torch.
WIDE = '''def _wide(*arrays: Tensor) -> tuple[Any, ...]:
    """torch, and the arrays: float64 as they are, the rest in float32."""
    return torch, *(a if a.dtype == torch.float64 else a.float() for a in arrays)
'''
AROUND = ("POINT", "P", "cold_us", "main", "median", "NamedTuple", "torch")
IMPORTS = {
    ("collections.abc", "Callable"),
    ("statistics", "median"),
    ("typing", "NamedTuple"),
    ("torch", ""),
}


def script(target: Target, point: Planned, name: str = NAME) -> str:
    """The file of a point; name: what the file says that it is called. Raises CommandError where it cannot stand alone."""
    asked = Asked(
        module=target.prepare.__module__,
        function=target.prepare.__name__,
        kept={LAUNCH[1]: ("run", "reset")},
        given={LAUNCH: LAUNCH[1], TENSOR: "torch.Tensor"},
        around=AROUND,
        instead={"TARGET.point_id(p)": "POINT"},
        rewritten={(reference.__name__, "_wide"): WIDE},
    )
    imports, definitions = inlined(asked)
    frame = Template((resource("templates") / "script/point.py.txt").read_text(encoding="utf-8"))
    return frame.substitute(
        title=target.title,
        file=_called(name),
        target=target.name,
        version=f"ncuflow {package_version('ncuflow') or 'of a checkout'}",
        imports="\n".join(_statements(imports | IMPORTS)),
        point=_literal(point.id),
        parameters="\n".join(
            f"    {_literal(name)}: {_literal(value)}," for name, value in point.params.items()
        ),
        definitions=definitions,
    )


def _called(name: str) -> str:
    """A file's name as a shell reads it, in the file's docstring; one that would end that is not said."""
    return shlex.quote(name) if name.isprintable() and not set(name) & set('\\"') else NAME


def _literal(value: object) -> str:
    """A parameter as Python has it: texts with the quotes that the rest of the file has."""
    plain = isinstance(value, str) and value.isprintable()
    return json.dumps(value, ensure_ascii=False) if plain else repr(value)


def _statements(imports: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Import statements, one a module: the standard library's, then torch."""
    named: dict[str, list[str]] = defaultdict(list)
    for module, name in sorted(imports):
        named[module].append(name)
    whole = [module for module in named if "" in named[module] and module != "torch"]
    yield from (f"import {module}" for module in whole)
    parts = {module: [name for name in names if name] for module, names in named.items()}
    yield from (
        f"from {module} import {', '.join(names)}" for module, names in parts.items() if names
    )
    yield from ("", "import torch")


def planned(asked: str, blocks: list[dict[str, object]] | None) -> tuple[Target, Planned]:
    """The target and the point that are asked for; raises UsageError where that is not one point."""
    name, _, rest = asked.partition("/")
    try:
        target = load(name)
        if not rest:
            found = sweep.points(target, blocks or [{}])
            if len(found) != 1:
                raise UsageError(f"{len(found)} points: a script is of one")
            return target, found[0]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if blocks:
        raise UsageError("--blocks goes with a target, not with a point's id")
    point = next((point for point in _known(target) if point.id == asked), None)
    if point is None:
        raise UsageError(f"no sweep and no results have {asked}: name {name} and --blocks")
    return target, point


def _known(target: Target) -> Iterator[Planned]:
    """The points of a target in the settings' sweeps, then those of results under outputs/."""
    settings = read_yaml(resource("config") / "config.yaml")
    for sweeps in (*settings["sweeps"].values(), *settings["deep"].values()):
        yield from sweep.points(target, sweeps.get(target.name, []))
    for path in sorted(Path("outputs").glob(f"*/results/{target.name}{stored.SUFFIX}")):
        for point in stored.results(path)["points"]:
            yield Planned(point["point"], target.name, point["params"])
