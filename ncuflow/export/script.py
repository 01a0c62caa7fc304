"""One point, or a kernel of a step, as a Python file that stands alone: torch and FlashInfer, to be run under your own ncu or
nsys; of a kernel it says when it runs whether it launched what the trace has.

The functions of the project that it needs are in it with every definition that they need, each whole, comments included: nothing
is written a second time, and nothing is cut by the parameters of a point; arguments that only a check needs go.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from string import Template
from types import ModuleType
from typing import NamedTuple

from ncuflow.findings import kernelname, stored
from ncuflow.io import CommandError, UsageError, read_yaml, resource
from ncuflow.origin import package_version
from ncuflow.step import trace as steps
from ncuflow.step.record import KernelOfStep, StepAnswer
from ncuflow.sweep import points as sweep
from ncuflow.sweep.points import Planned, points
from ncuflow.target import contract, launch, reference
from ncuflow.target.contract import load
from ncuflow.target.inputs import TOLERANCE, torch_dtype
from ncuflow.target.launch import Launch, Params

NAME = "point.py"  # of a file that is written to standard output
LAUNCH, TENSOR = (launch.__name__, launch.Launch.__name__), (launch.__name__, "Tensor")
# References are written on the array API, by a package that need not be there; an input that one computes is of torch.
WIDE = '''def _wide(*arrays: Tensor) -> tuple[Any, ...]:
    """torch, and the arrays: float64 as they are, the rest in float32."""
    return torch, *(a if a.dtype == torch.float64 else a.float() for a in arrays)
'''
AROUND = (
    "POINT",
    "P",
    "cold_us",
    "main",
    "median",
    "NamedTuple",
    "torch",
    "SEEN",
    "check",
    "json",
    "sys",
    "tempfile",
    "Path",
)
CHECKS = {("json", ""), ("sys", ""), ("tempfile", ""), ("pathlib", "Path")}
IMPORTS = {
    ("collections.abc", "Callable"),
    ("statistics", "median"),
    ("typing", "NamedTuple"),
    ("torch", ""),
}


@dataclass(frozen=True)
class Made:
    """What makes a launch of parameters, what the file is about, and the target whose it is."""

    prepare: Callable[..., launch.Launch]
    title: str
    target: str


class Seen(NamedTuple):
    """A kernel of a trace: its name without arguments, its grid and block, the GPU, the trace, and its number there."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    gpu: str
    trace: str
    number: int


def script(target: contract.Target, point: Planned, name: str = NAME) -> str:
    """The file of a point; name: what the file says that it is called. Raises CommandError where it cannot stand alone."""
    made = Made(target.prepare, f"{target.title}: one launch of FlashInfer", target.name)
    return script_of(made, point.id, point.params, name)


def script_of(
    made: Made, point: str, params: Mapping[str, object], name: str, seen: Seen | None = None
) -> str:
    """The file of a launch; seen: of a trace, what it is held against when it runs."""
    asked = Asked(
        module=made.prepare.__module__,
        function=made.prepare.__name__,
        kept={LAUNCH[1]: ("run", "reset")},
        given={LAUNCH: LAUNCH[1], TENSOR: "torch.Tensor"},
        around=AROUND,
        instead={"TARGET.point_id(p)": "POINT"},
        rewritten={(reference.__name__, "_wide"): WIDE},
    )
    imports, definitions = inlined(asked)
    folder = resource("templates") / "script"
    frame = Template((folder / "point.py.txt").read_text(encoding="utf-8"))
    if seen:
        imports |= CHECKS
    return frame.substitute(
        title=made.title,
        file=_called(name),
        target=made.target,
        seen=_seen(seen, (folder / "check.py.txt").read_text(encoding="utf-8")) if seen else "",
        checked="    check(launch)\n" if seen else "",
        version=f"ncuflow {package_version('ncuflow') or 'of a checkout'}",
        imports="\n".join(_statements(imports | IMPORTS)),
        point=_literal(point),
        parameters="\n".join(
            f"    {_literal(name)}: {_literal(value)}," for name, value in params.items()
        ),
        definitions=definitions,
    )


def _seen(seen: Seen, check: str) -> str:
    """What the trace has, and the function that looks whether this is launched."""
    words = {"kernel": seen.kernel, "grid": list(seen.grid), "block": list(seen.block)}
    words |= {"gpu": seen.gpu, "trace": f"kernel {seen.number} of {seen.trace}"}
    values = "\n".join(f"    {_literal(name)}: {_literal(value)}," for name, value in words.items())
    return f"\n\nSEEN = {{\n{values}\n}}\n\n\n{check.rstrip()}"


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


def planned(asked: str, blocks: list[dict[str, object]] | None) -> tuple[contract.Target, Planned]:
    """The target and the point that are asked for; raises UsageError where that is not one point."""
    name, _, rest = asked.partition("/")
    try:
        target = contract.load(name)
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


def _known(target: contract.Target) -> Iterator[Planned]:
    """The points of a target in the settings' sweeps, then those of results under outputs/."""
    settings = read_yaml(resource("config") / "config.yaml")
    for sweeps in (*settings["sweeps"].values(), *settings["deep"].values()):
        yield from sweep.points(target, sweeps.get(target.name, []))
    for path in sorted(Path("outputs").glob(f"*/results/{target.name}{stored.SUFFIX}")):
        for point in stored.results(path)["points"]:
            yield Planned(point["point"], target.name, point["params"])


OWN = "ncuflow"
Key = tuple[str, str]  # (module, name at its top)


@dataclass(frozen=True)
class Asked:
    """What is taken over, and what stands in another's place.

    module, function: where it begins; kept: of a call of a class, by its name, the keyword arguments that stay; given:
    definitions that the text around it has, by their names there; around: the other names that it has; instead: words,
    such as "TARGET.point_id(p)", and the name that takes their place; rewritten: definitions with a text that takes the
    place of their own.
    """

    module: str
    function: str
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given: Mapping[Key, str] = field(default_factory=dict)
    around: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    rewritten: Mapping[Key, str] = field(default_factory=dict)


def inlined(asked: Asked) -> tuple[set[tuple[str, str]], str]:
    """({(module, name imported from it, "" for itself)}, definitions in an order in which each may be executed).

    Raises CommandError where a definition needs what cannot be taken over.
    """
    sources = _Sources(asked)
    taken = _closure(sources, asked)
    names = dict(asked.given)
    for key in sorted(taken, key=sources.place):
        names[key] = _free(key, {*names.values(), *asked.around})
    imports: set[tuple[str, str]] = set()
    parts = []
    for key in sorted(taken, key=sources.place):
        imports |= sources.imports(key[0], taken[key])
        parts.append(_renamed(sources, key, taken[key], names))
    return imports, _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    """Definitions below each other, those of a line or two closer than functions and classes."""
    text = ""
    for before, part in pairwise(["", *(part.strip() for part in parts)]):
        wide = any(re.search(r"(?m)^(def|class) ", one) for one in (before, part))
        text += ("\n\n\n" if wide else "\n") * bool(before) + part
    return text


def _closure(sources: _Sources, asked: Asked) -> dict[Key, str]:
    """The text of each definition that the first needs, and those need in turn."""
    found: dict[Key, str] = {}
    open_keys = [(asked.module, asked.function)]
    while open_keys:
        key = open_keys.pop()
        if key in found or key in asked.given:
            continue
        found[key] = sources.text(key)
        open_keys += [needed for _, needed in _references(sources, key[0], ast.parse(found[key]))]
    return found


def _free(key: Key, taken: Container[str]) -> str:
    """A definition's own name, behind its module's where another has that already."""
    module, name = key
    return name if name not in taken else f"{module.rpartition('.')[2]}_{name.lstrip('_')}"


class _Sources:
    """The modules that are read."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.modules: dict[str, _Inlined] = {}
        self.order: list[str] = []
        self.module(asked.module)

    def module(self, name: str) -> _Inlined:
        """A module; those that it imports come before it in the order."""
        if name not in self.modules:
            self.modules[name] = found = _Inlined(name)
            for module, _ in found.own.values():
                self.module(module)
            self.order.append(name)
        return self.modules[name]

    def place(self, key: Key) -> tuple[int, int]:
        """Where a definition stands among all."""
        return self.order.index(key[0]), self.modules[key[0]].defined[key[1]].lineno

    def text(self, key: Key) -> str:
        """A definition's text. Raises CommandError for an unknown name."""
        module = self.module(key[0])
        if key[1] not in module.defined:
            raise CommandError(f"{key[0]} has no {key[1]} that could be taken over")
        text = self.asked.rewritten.get(key) or module.text(key[1])
        for words, name in self.asked.instead.items():
            text = text.replace(words, name)
        return _edited(text, list(_shortened(ast.parse(text), self.asked.kept)))

    def imports(self, module: str, text: str) -> set[tuple[str, str]]:
        """(module, name of it) of what a text imports at the top of its file, all of other projects'."""
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        return {said for name, said in self.modules[module].foreign.items() if name in used}


class _Inlined:
    """A module of the project as text: what its top defines and imports."""

    def __init__(self, name: str) -> None:
        self.name, self.loaded = name, importlib.import_module(name)
        self.source = inspect.getsource(self.loaded)
        self.lines = self.source.splitlines()
        self.defined: dict[str, ast.stmt] = {}
        # local name -> (module, name in it), "" for the module itself
        self.own: dict[str, Key] = {}
        self.foreign: dict[str, tuple[str, str]] = {}  # local name -> (module, name in it)
        for node in ast.parse(self.source).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._imported(node)
            else:
                self.defined |= dict.fromkeys(_bound(node), node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.Import):
                self.foreign[local] = (alias.name, "")
            elif node.module and node.module.partition(".")[0] == OWN:
                whole = f"{node.module}.{alias.name}"
                is_module = isinstance(
                    getattr(importlib.import_module(node.module), alias.name), ModuleType
                )
                self.own[local] = (whole, "") if is_module else (node.module, alias.name)
            elif node.module != "__future__":
                self.foreign[local] = (str(node.module), alias.name)

    def text(self, name: str) -> str:
        """A definition with its decorators, the comments right above it, and that behind it."""
        node = self.defined[name]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first : node.end_lineno])


def _shortened(
    tree: ast.Module, kept: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[ast.expr, str]]:
    """Calls without the arguments that do not stay."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kept:
            stays = [k for k in node.keywords if k.arg in kept[node.func.id]]
            yield node, ast.unparse(ast.Call(node.func, node.args, stays))


def _edited(text: str, edits: Sequence[tuple[ast.expr, str]]) -> str:
    """A text with others in the place of some of its nodes, none of which is in another."""
    raw = text.encode()
    starts = [0, *accumulate(len(line) for line in raw.splitlines(keepends=True))]  # as nodes count
    for node, by in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        end = starts[int(node.end_lineno or node.lineno) - 1] + int(node.end_col_offset or 0)
        raw = raw[: starts[node.lineno - 1] + node.col_offset] + by.encode() + raw[end:]
    return raw.decode()


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement binds: a definition, an assignment of names alone, an import."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    parts = [one for t in targets for one in (t.elts if isinstance(t, ast.Tuple) else [t])]
    names = [one.id for one in parts if isinstance(one, ast.Name)]
    return names if len(names) == len(parts) else []


def _references(sources: _Sources, module: str, tree: ast.Module) -> Iterator[tuple[ast.expr, Key]]:
    """The nodes of a definition that name another of the project, and which."""
    own, local = sources.module(module), _local(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in local:
            if node.id in own.own and own.own[node.id][1]:
                yield node, own.own[node.id]
            elif node.id in own.defined:
                yield node, (module, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole, symbol = own.own.get(node.value.id, ("", "x"))
            if not symbol and node.value.id not in local:
                yield node, (whole, node.attr)


def _local(tree: ast.Module) -> set[str]:
    """The names that a function binds itself, at any depth; not its own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef) and node is not tree.body[0]:
            found.add(node.name)
    return found if isinstance(tree.body[0], ast.FunctionDef) else set()


def _renamed(sources: _Sources, key: Key, text: str, names: Mapping[Key, str]) -> str:
    """A definition with the names that it and others have where all stand together."""
    tree = ast.parse(text)
    edits = [(node, names[needed]) for node, needed in _references(sources, key[0], tree)]
    text = _edited(text, [(node, name) for node, name in edits if ast.unparse(node) != name])
    old, new = key[1], names[key]
    defines = rf"(?m)^((?:def|class) |){re.escape(old)}\b"
    return text if old == new else re.sub(defines, rf"\g<1>{new}", text, count=1)


# --- a kernel of a step ----------------------------------------------------------------------


def prepare(p: Params) -> Launch:
    """Random matrices, and their product: the weight as [n, k], read transposed, or as [k, n]."""
    import torch

    of = {"dtype": torch_dtype(p["dtype"]), "device": "cuda"}
    batch = [p["batch"]] if p["batch"] > 1 else []
    left = torch.randn(*batch, p["m"], p["k"], **of)
    if p["transposed"]:
        right = torch.randn(*batch, p["n"], p["k"], **of).transpose(-1, -2)
    else:
        right = torch.randn(*batch, p["k"], p["n"], **of)
    out = torch.empty(*batch, p["m"], p["n"], **of)

    def run() -> None:
        torch.matmul(left, right, out=out)

    return Launch(
        run=run,
        output=lambda: (out,),
        reference=lambda: (torch.matmul(left.float(), right.float()),),
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
    )


TORCH = ("cuBLAS", "CUTLASS", "torch")  # whose kernels torch's products launch
DSL = " (CuTe DSL)"  # what stands behind the class's name in place of the mangled rest


def of_step(trace: Path, number: int, known: list[str] | None = None, name: str = NAME) -> str:
    """The file of the kernel that has this number in `ncuflow step`; raises CommandError where its shape is not known."""
    found = steps.step(trace, known=known)
    one = _kernel(found, number)
    made, point, params = _made(one, number)
    assert one.grid is not None and one.block is not None
    called = one.name.removesuffix(DSL)
    seen = Seen(called, one.grid, one.block, found.gpu or "an unknown GPU", found.file, number)
    return script_of(made, point, params, name, seen)


def _kernel(found: StepAnswer, number: int) -> KernelOfStep:
    kernels = [one for group in found.groups for one in group.kernels]
    if not 1 <= number <= len(kernels):
        raise UsageError(f"--kernel {number}: the steps of {found.file} have 1 to {len(kernels)}")
    return kernels[number - 1]


def _made(one: KernelOfStep, number: int) -> tuple[Made, str, Params]:
    """(what makes it, its point, the point's parameters)."""
    shape, asked = one.shape, f"kernel {number}, {one.name[:80]}"
    if shape is None or one.grid is None or one.block is None:
        raise CommandError(f"{asked}, is no kernel with a grid and a block")
    if not shape.candidates or shape.target is None:
        why = one.reason.why if one.reason else shape.refusal or "no target counts it"
        raise CommandError(f"{asked}: its shape is not known: {why}")
    params = dict(shape.candidates[-1])
    target = load(shape.target)
    if target in kernelname.targets_of(kernelname.decode(one.demangled).name):
        (planned, *_) = points(target, [params])
        title = f"{target.title}: one launch of FlashInfer"
        return Made(target.prepare, title, target.name), planned.id, planned.params
    if one.owner not in TORCH or one.family != "GEMM" or not {"m", "n", "k"} <= {*params}:
        raise CommandError(
            f"{asked}: a kernel of {one.owner or 'others'}, which no target launches"
        )
    layout = kernelname.built(one.demangled).get("layout", "T")
    whole = {"batch": 1, "dtype": "f16", **params, "transposed": layout[0] in "Tt"}
    sizes = "_".join(f"{side.upper()}{whole[side]}" for side in ("m", "n", "k"))
    title = "A matrix product: one launch of torch"
    return Made(prepare, title, target.name), f"torch/mm_{sizes}_{whole['dtype']}", whole
