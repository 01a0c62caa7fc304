"""What can be measured here: the kernel targets, and FlashInfer's APIs by their trace templates."""

import ast
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel

from ncuflow import answer
from ncuflow.gpu import nvml, table
from ncuflow.io import JsonObject, UsageError, read_as, read_yaml, resource
from ncuflow.sweep import points as sweep_points
from ncuflow.target.contract import Target, known, load
from ncuflow.target.source import installed
from ncuflow.targets.api_cases import CASES

Row = dict[str, str]


class _Parameters(BaseModel):
    api: str


class _Call(BaseModel):
    params: _Parameters
    status: str
    reason: str | None
    info: dict[str, str | int | float | bool | None]


class _ApiResults(BaseModel):
    """Results of the target ``apis``: the part that says what its calls came to."""

    points: list[_Call]


class Measurable(answer.AnswerPart):
    """A kernel target, or an API with a trace template."""

    name: str
    """The name that a sweep uses."""
    status: Literal["ready", "measured", "not here", "planned", "left out", "target", "no target"]
    """measured: by the capture that --results names; planned, left out: for a point, with --gpu; target, no target: whether
    one measures the call, with --coverage."""
    what: str
    """What it is, or why it cannot be measured here."""


class TargetsAnswer(answer.Answer):
    """What can be measured here, and why the rest cannot."""

    ROWS: ClassVar[tuple[str, ...]] = ("targets",)
    command: Literal["targets"] = "targets"
    """The command that wrote this JSON."""
    ready: int
    """How many can be measured; with --gpu, how many points are planned."""
    targets: list[Measurable]
    """The kernel targets, then the APIs."""


READY = ("ready", "measured")


def text(rows: list[Row], total: str) -> str:
    """A line of each, then how many there are."""
    wide = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:{wide}}  {row['status']:9} {row['what']}" for row in rows]
    return "\n".join([*lines, total]) + "\n"


def markdown(rows: list[Row], total: str) -> str:
    """The same as a table."""
    cells = [[f"`{row['name']}`", row["status"], row["what"].replace("|", "/")] for row in rows]
    head = [f"{total}.", "", "| name | status | what, or why not |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


def planned(name: str, sweep: str) -> tuple[list[Row], str]:
    """(a row of each backend and each point of a sweep on a GPU that need not be here, how many are planned)."""
    sweeps = read_yaml(resource("config") / "config.yaml")["sweeps"]
    if sweep not in sweeps:
        raise UsageError(f"--sweep: there is no sweep {sweep!r}; there are: {', '.join(sweeps)}")
    try:
        facts = {"compute_capability": table.capability_of(name)}
    except ValueError as error:
        raise UsageError(f"--gpu: {error}") from None
    backends: list[Row] = []
    rows: list[Row] = []
    for target in (load(one) for one in sweeps[sweep]):
        points = sweep_points.points(target, sweeps[sweep][target.name])
        _, left = sweep_points.runnable(target, points, facts)
        backends += _backends(target, facts)
        why = {point.id: reason for reason, those in left.items() for point in those}
        rows += [
            {
                "name": point.id,
                "status": "left out" if point.id in why else "planned",
                "what": why.get(point.id, target.title),
            }
            for point in points
        ]
    count = sum(row["status"] == "planned" for row in rows)
    gpu = f"compute capability {facts['compute_capability']}"
    return [*backends, *rows], f"{count} of {len(rows)} points are planned for {gpu}"


def _backends(target: Target, facts: JsonObject) -> Iterator[Row]:
    """A row of each name; of several calls that have a backend of it, the first that a GPU has says what it wants."""
    for name in dict.fromkeys(one.name for one in target.backends):
        alike = [one for one in target.backends if one.name == name]
        whys = [one.refusal(facts) for one in alike]
        if None not in whys:
            what = whys[0]
        else:
            one = alike[whys.index(None)]
            what = one.wanting() or ("its library decides" if not one.here else target.title)
        status = "ready" if None in whys else "not here"
        yield {"name": f"{target.name}: {name}", "status": status, "what": what or ""}


def coverage() -> tuple[list[Row], str]:
    """(a row of each call that FlashInfer offers, by areas, how many have a target). Raises UsageError without FlashInfer."""
    package = installed()
    if package is None:
        raise UsageError("--coverage: FlashInfer is not installed")
    found = offered(package)
    rows = [
        {
            "name": one.name,
            "status": "target" if one.target else "no target",
            "what": ", ".join(filter(None, (one.area, one.target, "engines call it" * one.called))),
        }
        for one in found
    ]
    areas = []
    for area in dict.fromkeys(one.area for one in found):
        those = [one for one in found if one.area == area]
        areas.append(f"{area} {sum(one.target != '' for one in those)} of {len(those)}")
    return rows, f"with a target: {'; '.join(areas)}"


def gpu() -> tuple[JsonObject | None, str]:
    """(facts of the GPU here or None, why there is none)."""
    if find_spec("torch") is None:
        return None, "torch is not installed"
    found = nvml.capabilities()
    return ({"compute_capability": found[0]}, "") if found else (None, "no GPU here")


def targets(facts: JsonObject | None, why: str) -> list[Row]:
    """A row of each kernel target: whether its default point runs on this GPU."""
    rows = []
    for target in known().values():
        reason = why if facts is None else target.skip(target.parameters, facts)
        status = "not here" if reason else "ready"
        rows.append({"name": target.name, "status": status, "what": reason or target.title})
    return rows


def apis(facts: JsonObject | None, measured: dict[str, Row]) -> list[Row]:
    """A row of each API with a trace template: what a capture of it came to, else whether it may be tried."""
    rows = []
    for target in known().values():
        try:
            for name, api, why in target.workload.listed(facts) if target.workload.listed else ():
                row = {"name": name, "status": "not here" if why else "ready", "what": why or api}
                rows.append(measured.get(name, row))
        except ImportError:
            lacks = "FlashInfer is not installed"
            rows += [*measured.values(), {"name": target.name, "status": "not here", "what": lacks}]
    return rows


def measured_apis(results: Path) -> dict[str, Row]:
    """{API: its row} of a results file of the target ``apis``."""
    rows = {}
    for point in read_as(results, _ApiResults, "the results of single APIs").points:
        name, good = point.params.api, point.status == "ok"
        what = str(point.info.get("api") or "") if good else point.reason or point.status
        rows[name] = {"name": name, "status": "measured" if good else "not here", "what": what}
    return rows


MARK = "flashinfer_api"
OTHER = "other"


class Offered(NamedTuple):
    """A call of FlashInfer's. name: below the package; area: of those that the target of all calls names; target: that measures
    it, "" for none; called: whether engines are known to call it."""

    name: str
    area: str
    target: str
    called: bool


def offered(package: Path) -> list[Offered]:
    """Every call, the areas in their order, and in each those without a target first, called ones before others."""
    measured, called = _known()
    any_api = next((one.name for one in known().values() if one.generic), "")
    whole, cases, found = _whole(package), {_key(case.api) for case in CASES.values()}, []
    for name, trace in sorted(dict(_marked(package)).items()):
        tried = any_api if trace in whole or _key(name) in cases else ""
        target = measured.get(_key(name), tried)
        found.append(Offered(name, area(name), target, _key(name) in called))
    order = [*_areas(), OTHER]
    return sorted(found, key=lambda one: (order.index(one.area), one.target != "", not one.called))


def area(name: str) -> str:
    """Of a call, by the folders and the file that have it."""
    parts = name.split(".")[:-1]
    for label, starts in _areas().items():
        if any(part.startswith(starts) for part in parts):
            return label
    return OTHER


def _areas() -> Mapping[str, tuple[str, ...]]:
    return next((one.workload.areas for one in known().values() if one.generic), {})


def _marked(package: Path) -> Iterator[tuple[str, str]]:
    """("gemm.gemm_base.mm_bf16", its trace template's name or ""): functions with the mark, classes by one of their methods."""
    for path in sorted(package.rglob("*.py")):
        below = path.relative_to(package)
        text = path.read_text(encoding="utf-8", errors="replace")
        if below.parts[0] in ("jit", "trace", "testing", "data") or f"@{MARK}" not in text:
            continue
        module = ".".join(below.with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(text).body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            named = (one for one in inner if isinstance(one, ast.FunctionDef))
            marks = [by for one in named for by in one.decorator_list if _is_mark(by)]
            if marks:
                traces = (_keyword(by, "trace") for by in marks)
                yield f"{module}.{getattr(node, 'name', '')}", next(filter(None, traces), "")


def _is_mark(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(named, ast.Name) and named.id == MARK


def _keyword(call: ast.expr, name: str) -> str:
    """The name that a call is given by a keyword, "" of none."""
    given = call.keywords if isinstance(call, ast.Call) else []
    return next((ast.unparse(one.value) for one in given if one.arg == name), "")


def _whole(package: Path) -> set[str]:
    """The names of trace templates that make inputs and know a reference, by which any API is tried."""
    found: set[str] = set()
    for path in sorted(package.glob("trace/templates/*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and all(
                _keyword(node.value, part) for part in ("init", "reference")
            ):
                found |= {ast.unparse(one) for one in node.targets}
    return found


def _key(name: str) -> tuple[str, str]:
    """What tells a call wherever it is imported from: the package's part that has it, and its class or its function."""
    parts = name.split(".")
    return parts[0], next((part for part in parts[1:] if part[:1].isupper()), parts[-1])


def _known() -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """(the target that measures a call, those that engines are known to call)."""
    measured: dict[tuple[str, str], str] = {}
    called = set()
    for target in known().values():
        for name in _names(target):
            measured.setdefault(_key(name), target.name)
        called |= {
            _key(f"{one.module}.{one.name}".removeprefix("flashinfer."))
            for one in target.workload.calls
        }
    return measured, called


def _names(target: Target) -> Iterator[str]:
    own = [value for key, value in target.source.api.items() if key.startswith("python")]
    own += [f"{one.module}.{one.name}" for one in target.workload.calls]
    yield from (name.removeprefix("flashinfer.") for name in own if name.startswith("flashinfer."))
