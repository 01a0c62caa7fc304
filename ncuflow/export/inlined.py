"""Source that stands alone: a function of the project with all that it needs, for parameters that are known.

The text is the project's own, comments included, cut down to what runs: branches that the parameters do not take go,
arguments that only a check needs go, and what nothing uses after that. Nothing is written a second time.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

from ncuflow.io import CommandError

OWN = "ncuflow"
Node = ast.AST
Edit = tuple[Node, str]  # a node, and the text in its place; of a statement, "" removes it
Key = tuple[str, str]  # (module, name at its top)
_CHOICE = re.compile(
    r"(?<![\w)\]])\(\s*\{\}\s*\)"
)  # the parentheses that held one, around what is left of it
_PLAIN = (str, int, float, bool, type(None))
_UNKNOWN = object()
# What may stand in an expression that is computed here: no call but those of methods of a text.
_COMPUTED = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.JoinedStr, ast.FormattedValue, ast.Call, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What is taken over, and what stands in another's place.

    module, function: where it begins; parameters: the value of its argument ``p``, which it hands on; kept: of a call of
    a class, by its name, the keyword arguments that stay; given: definitions that the text around it has, by their names
    there; around: the other names that it has; instead: calls by their words, such as "TARGET.point_id", and the name
    that takes the place of such a call; rewritten: definitions with a text that takes the place of their own.
    """

    module: str
    function: str
    parameters: Mapping[str, Any]
    kept: Mapping[str, tuple[str, ...]]
    given: Mapping[Key, str]
    around: tuple[str, ...]
    instead: Mapping[str, str]
    rewritten: Mapping[Key, str] = field(default_factory=dict)


def inlined(asked: Asked) -> tuple[set[tuple[str, str]], str]:
    """({(module, name imported from it, "" for itself)}, definitions in an order in which each may be executed).

    Raises CommandError where a definition needs what cannot be taken over.
    """
    sources = _Sources(asked)
    taken: dict[Key, str] = {}
    while (found := _closure(sources, asked)) != taken:
        taken = found
        sources.forget_methods(taken)
    if asked.parameters and any(map(_other_parameters, taken.values())):
        return inlined(replace(asked, parameters={}))
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
    """The modules that are read, as they are cut down."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.modules: dict[str, _Inlined] = {}
        self.order: list[str] = []
        self.cut: dict[Key, str] = {}
        self.module(asked.module)

    def module(self, name: str) -> _Inlined:
        """A module; those that it imports come before it in the order."""
        if name not in self.modules:
            self.modules[name] = found = _read(name)
            for module, _ in found.own.values():
                self.module(module)
            self.order.append(name)
        return self.modules[name]

    def place(self, key: Key) -> tuple[int, int]:
        """Where a definition stands among all."""
        return self.order.index(key[0]), self.modules[key[0]].defined[key[1]].lineno

    def text(self, key: Key) -> str:
        """A definition's text without what these parameters do not run. Raises CommandError for an unknown name."""
        if key not in self.cut:
            module = self.module(key[0])
            if key[1] not in module.defined:
                raise CommandError(f"{key[0]} has no {key[1]} that could be taken over")
            whole = self.asked.rewritten.get(key) or module.text(key[1])
            self.cut[key] = _cut(module, whole, self.asked)
        return self.cut[key]

    def forget_methods(self, taken: Mapping[Key, str]) -> None:
        """Drop the methods that nothing of what is taken asks for."""
        trees = [ast.parse(text) for text in taken.values()]
        asked = {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for key, text in taken.items():
            self.cut[key] = _edited(text, lambda tree, text: _unasked(tree, asked))

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
        self.own: dict[
            str, Key
        ] = {}  # local name -> (module, name in it), "" for the module itself
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
                is_module = isinstance(getattr(_load(node.module), alias.name), ModuleType)
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

    def value(self, name: str) -> Any:
        """What a name at the top stands for, where that is plain data; else _UNKNOWN."""
        found = getattr(self.loaded, name, _UNKNOWN)
        return found if isinstance(found, (*_PLAIN, tuple)) else _UNKNOWN


@cache
def _read(name: str) -> _Inlined:
    return _Inlined(name)


def _load(name: str) -> ModuleType:
    return importlib.import_module(name)


# --- cutting ---------------------------------------------------------------------------------


def _cut(module: _Inlined, text: str, asked: Asked) -> str:
    """A definition without what the parameters do not run, and without what nothing uses after that."""
    before = _loaded(ast.parse(text))
    text = _edited(text, lambda tree, text: _spelled(tree, asked.instead))
    if _takes_parameters(ast.parse(text)):
        text = _edited(text, lambda tree, text: _folded(module, tree, text, asked.parameters))
        text = _CHOICE.sub("{}", text)
    text = _edited(text, lambda tree, text: _shortened(tree, asked.kept))
    text = _edited(text, lambda tree, text: _unused(tree, before))
    return (
        _edited(text, lambda tree, text: _first_sentence(tree))
        if text.startswith(f"def {asked.function}(")
        else text
    )


def _takes_parameters(tree: ast.Module) -> bool:
    """Whether ``p`` is an argument of a function."""
    node = tree.body[0]
    return isinstance(node, ast.FunctionDef) and "p" in [arg.arg for arg in node.args.args]


def _other_parameters(text: str) -> bool:
    """Whether a function makes other parameters of its own: what gets them is not known by those of the point."""
    made = [
        n.values for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Dict) and None in n.keys
    ]
    made += [[n.left, n.right] for n in ast.walk(ast.parse(text)) if isinstance(n, ast.BinOp)]
    return any(isinstance(one, ast.Name) and one.id == "p" for values in made for one in values)


def _spelled(tree: ast.Module, instead: Mapping[str, str]) -> Iterator[Edit]:
    """Calls that a name takes the place of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (by := instead.get(ast.unparse(node.func))):
            yield node, by


def _edited(text: str, edits: Callable[[ast.Module, str], Iterator[Edit]]) -> str:
    """A text after its edits, one after the other, until there are none."""
    while edit := next(edits(ast.parse(text), text), None):
        text = _replaced(text, *edit)
    return text


def _replaced(text: str, node: Any, by: str) -> str:
    """A text with another in the place of a node."""
    raw, starts = text.encode(), _starts(text)
    begin = starts[node.lineno - 1] + node.col_offset
    last = int(node.end_lineno)
    end = starts[last - 1] + node.end_col_offset
    if isinstance(node, ast.stmt) and not by:
        begin, end = starts[_first_line(text, node) - 1], starts[last]
        while raw[end : end + 1] == b"\n" and raw[:begin].endswith((b":\n", b"\n\n")):
            end += 1  # no empty line where a block begins, nor two of them
    return (raw[:begin] + by.encode() + raw[end:]).decode()


def _starts(text: str) -> list[int]:
    """Where each line begins, in bytes, as the nodes count; the end at last."""
    return [0, *accumulate(len(line) for line in text.encode().splitlines(keepends=True))]


def _first_line(text: str, node: Any) -> int:
    """The line, from 1, that a statement begins at with its decorators and the comments right above it."""
    lines = text.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return int(first)


def _folded(module: _Inlined, tree: ast.Module, text: str, p: Mapping[str, Any]) -> Iterator[Edit]:
    """Branches that the parameters decide, and texts that they make."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.IfExp, ast.If)):
            known = _known(module, node.test, p)
            if known is _UNKNOWN:
                continue
            taken = node.body if known else node.orelse
            yield node, _block(text, taken) if isinstance(taken, list) else _words(text, taken)
        elif isinstance(node, ast.Subscript) and (entry := _entry(module, node, p)):
            yield node, entry
        elif isinstance(node, ast.JoinedStr) and (known := _known(module, node, p)) is not _UNKNOWN:
            yield node, f'"{known}"' if str(known).isidentifier() else repr(known)


def _words(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ast.unparse(node)


def _block(text: str, taken: list[ast.stmt]) -> str:
    """The statements of a branch, as they stand in place of the whole: a step further out, but for the first line."""
    if not taken:
        return ""
    lines = text.splitlines()[_first_line(text, taken[0]) - 1 : taken[-1].end_lineno]
    if lines[0].lstrip().startswith("elif"):
        return "\n".join(lines).lstrip()[2:]
    return "\n".join(line[4:] for line in lines).lstrip()


def _known(module: _Inlined, node: ast.expr, p: Mapping[str, Any]) -> Any:
    """The value of an expression of the parameters and of plain data alone; else _UNKNOWN."""
    names: dict[str, Any] = {"p": dict(p)}
    for one in ast.walk(node):
        if not isinstance(one, _COMPUTED):
            return _UNKNOWN
        if isinstance(one, ast.Call) and not isinstance(one.func, ast.Attribute):
            return _UNKNOWN
        if isinstance(one, ast.Name) and one.id != "p":
            names[one.id] = module.value(one.id)
            if names[one.id] is _UNKNOWN:
                return _UNKNOWN
    try:
        found = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, names)
    except Exception:
        return _UNKNOWN
    return found if isinstance(found, _PLAIN) else _UNKNOWN


def _entry(module: _Inlined, node: ast.Subscript, p: Mapping[str, Any]) -> str | None:
    """The words of the entry of a table that the parameters choose; None where there is no such table."""
    table: Any = node.value
    if isinstance(table, ast.Name):
        table = getattr(module.defined.get(table.id), "value", None)
    if not isinstance(table, ast.Dict) or (chosen := _known(module, node.slice, p)) is _UNKNOWN:
        return None
    pairs = zip(table.keys, table.values, strict=True)
    found = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == chosen]
    # names and values of one word: a whole entry would be written out where its name stood
    plain = found and isinstance(found[0], (ast.Name, ast.Constant))
    return ast.unparse(found[0]) if plain else None


def _shortened(tree: ast.Module, kept: Mapping[str, tuple[str, ...]]) -> Iterator[Edit]:
    """Calls without the arguments that do not stay."""
    for node in ast.walk(tree):
        name = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if isinstance(node, ast.Call) and name in kept:
            stays = [k for k in node.keywords if k.arg in kept[name] and not _none(k.value)]
            if stays != node.keywords:
                yield node, ast.unparse(ast.Call(node.func, node.args, stays))


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _unused(tree: ast.Module, before: set[str]) -> Iterator[Edit]:
    """Statements that nothing asks for any more, and what follows a return.

    Of an inner function the call stays whose result nobody wants: it runs when the kernel is launched.
    """
    whole = tree.body[0]
    if not isinstance(whole, ast.FunctionDef):
        return
    now = _loaded(tree)
    outer = {id(node) for node in _within(whole)}
    for block in _blocks(whole):
        for number, node in enumerate(block):
            if isinstance(node, ast.Return) and block[number + 1 :]:
                yield block[number + 1], ""
            bound = set(_bound(node)) & before
            if not bound or bound & now or not _pure(node):
                continue
            if id(node) not in outer and _calls(node):
                yield node, ast.unparse(node.value)  # type: ignore[attr-defined]
            elif not (_draws(node) and any(map(_draws, block[number + 1 :]))):
                yield node, ""


def _within(node: Node) -> Iterator[Node]:
    """What is in a function, without what is in the functions in it."""
    for one in ast.iter_child_nodes(node):
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.Lambda)):
            yield from _within(one)


def _calls(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and any(
        isinstance(one, ast.Call) for one in ast.walk(node)
    )


def _pure(node: ast.stmt) -> bool:
    return isinstance(
        node, (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.Import, ast.ImportFrom)
    )


def _draws(node: Node) -> bool:
    """Whether random numbers are drawn in it: what is drawn after them would be others without it."""
    return any(isinstance(one, ast.Name) and one.id == "inputs" for one in ast.walk(node))


def _blocks(node: Node) -> Iterator[list[ast.stmt]]:
    for one in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(one, name, None)
            if isinstance(block, list) and block:
                yield block


def _loaded(tree: Node) -> set[str]:
    """The names that are read."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


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


def _unasked(tree: ast.Module, asked: set[str]) -> Iterator[Edit]:
    """Methods of a class that nobody asks for."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(one, ast.FunctionDef) and one.name not in asked and one.name[:2] != "__":
                yield one, ""


def _first_sentence(tree: ast.Module) -> Iterator[Edit]:
    """The docstring of the first function: what follows its first sentence is about the check."""
    node = tree.body[0]
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
    if text and isinstance(node, ast.FunctionDef):
        first = re.split(r"(?<=\.)\s", text)[0]
        if first != text:
            yield node.body[0], f'"""{first}"""'


# --- names -----------------------------------------------------------------------------------


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
    for node, name in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        if ast.unparse(node) != name:
            text = _replaced(text, node, name)
    old, new = key[1], names[key]
    defines = rf"(?m)^((?:def|class) |){re.escape(old)}\b"
    return text if old == new else re.sub(defines, rf"\g<1>{new}", text, count=1)
