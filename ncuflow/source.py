"""Index the installed FlashInfer: where each kernel target's code, kernels and switches are.

    ncuflow source-index --out source_index.json [--package PATH]

Nothing of FlashInfer is imported; functions of its CUDA headers are found by scanning braces, without a compiler or macros.
Paths are relative to the package's folder. A target with a symbol
that this package does not have is left out, and named with its reason; exit status 2 if none is left.
"""

import ast
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import JsonObject, write_json
from ncuflow.origin import built_version, package_folder, package_version
from ncuflow.process import CaptureError
from ncuflow.target.contract import Target, known
from ncuflow.target.source import Symbol


class Function(NamedTuple):
    """A definition: its name and that name's line, first (with the template) and last line."""

    name: str
    line: int
    line_start: int
    line_end: int
    kernel: bool


NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL
)
# DEFINE_X(y), no semicolon
MACRO_LINE = re.compile(r"^[A-Z][A-Z0-9_]*\([^\n;{}]*\)[ \t]*$", re.MULTILINE)
ALIAS = re.compile(r"\s*(?:using|typedef|static_assert|return|constexpr\s+\w+\s*=)\b")
MEMBER = re.compile(r"[:,]\s*\w+(?:<[^<>]*>)?\s*$")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
TEMPLATE = re.compile(r"\btemplate\s*<")
CONTROL = {"if", "for", "while", "switch", "catch", "return", "do", "else", "sizeof", "decltype"}
# What looks like a call before a function's name: attributes, and macros that stand for them.
ATTRIBUTES = re.compile(
    r"\b(?:__\w+__|__declspec|alignas|requires|noexcept|decltype|[A-Z][A-Z0-9]*_[A-Z0-9_]+)\s*\("
)
NAME = re.compile(r"(~?[A-Za-z_]\w*|operator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+|\w+))\s*$")


def functions(text: str) -> list[Function]:
    """Function definitions at namespace or class level, in order of appearance."""
    plain = blank(text)
    breaks = [match.start() for match in re.finditer("\n", plain)]
    found: list[Function] = []
    stack: list[Function | None] = []  # open function (last line unknown yet), or None for a scope
    nested = 0  # open braces inside a function body, or inside an initialiser such as `Shape{}`
    begin = 0  # where the current declaration starts
    for position in (match.start() for match in re.finditer(r"[{};]", plain)):
        if plain[position] == "{":
            if nested or (stack and stack[-1]) or _is_initialiser(plain[begin:position]):
                nested += 1
                continue
            stack.append(_function(plain[begin:position], begin, breaks))
        elif plain[position] == "}":
            if nested:
                nested -= 1
                continue
            top = stack.pop() if stack else None
            if top is not None:
                found.append(top._replace(line_end=_line(breaks, position)))
        if not nested:
            begin = position + 1
    return sorted(found, key=lambda f: f.line_start)


def blank(text: str) -> str:
    """The text with comments, strings and preprocessor lines as spaces; every newline stays."""
    return MACRO_LINE.sub(_spaces, DIRECTIVE.sub(_spaces, NOISE.sub(_spaces, text)))


def _spaces(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _is_initialiser(head: str) -> bool:
    """Whether a brace after `head` is a value: in parentheses, an alias, or of a member."""
    head = _without_templates(head)
    if head.count("(") != head.count(")") or ALIAS.match(head):
        return True
    return bool(re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) and MEMBER.search(head))


def _function(head: str, begin: int, breaks: Sequence[int]) -> Function | None:
    """The function whose body opens after `head`, or None for a namespace, class or variable."""
    signature = _without_templates(_without_attributes(head))
    before = signature[: max(signature.find("("), 0)]
    if before.rstrip().endswith("operator"):  # operator()(…)
        before = signature[: signature.find(")") + 1]
    match = NAME.search(before)
    if match is None or match.group(1) in CONTROL or ("=" in before and "operator" not in before):
        return None
    start = begin + len(head) - len(head.lstrip())
    line = _line(breaks, begin + match.start(1))
    name = re.sub(r"\s+", "", match.group(1))
    return Function(name, line, _line(breaks, start), line, "__global__" in head)


def _line(breaks: Sequence[int], offset: int) -> int:
    return bisect_left(breaks, offset) + 1


def _without_attributes(text: str) -> str:
    return _without(ATTRIBUTES, "()", text)


def _without_templates(text: str) -> str:
    return _without(TEMPLATE, "<>", text)


def _without(opening: re.Pattern[str], brackets: str, text: str) -> str:
    """The text with spaces for what the pattern opens, up to the bracket that closes it."""
    while match := opening.search(text):
        end = _closing(text, match.end() - 1, *brackets)
        text = text[: match.start()] + " " * (end - match.start()) + text[end:]
    return text


def _closing(text: str, start: int, left: str, right: str) -> int:
    """Offset after the bracket that closes the one at `start`; `(a > b)` closes no `<`."""
    depth = parentheses = 0
    for offset in range(start, len(text)):
        mark = text[offset]
        if left == "<" and mark in "()":
            parentheses += 1 if mark == "(" else -1
        elif mark == left and not parentheses:
            depth += 1
        elif mark == right and not parentheses:
            depth -= 1
            if depth == 0:
                return offset + 1
    return len(text)


def templates_of(text: str) -> dict[str, list[list[str]]]:
    """Parameter names of the templates of kernels and structs, in order, by name; each overload's."""
    plain, found = blank(text), dict[str, list[list[str]]]()
    for match in TEMPLATE.finditer(plain):
        end = _closing(plain, match.end() - 1, "<", ">")
        head = re.split(r"[{;]", plain[end:], maxsplit=1)[0]
        struct = re.match(r"\s*(?:struct|class)\s+(\w+)\s*(?!<)(?::|$)", head)
        kernel = NAME.search(_without_attributes(head).partition("(")[0])
        names = _parameters(plain[match.end() : end - 1])
        named = struct or (kernel if "__global__" in head else None)
        if named and names:
            found.setdefault(named[1], []).append(names)
    return found


def _parameters(text: str) -> list[str]:
    """``["kTile", "T", "Act"]`` of ``int kTile_ = 2, typename T, float (*Act)(const float&)``."""
    parts, angles, parentheses = [""], 0, 0
    for char in text:
        parentheses += (char == "(") - (char == ")")
        angles += 0 if parentheses else (char == "<") - (char == ">")
        if char == "," and not angles and not parentheses:
            parts.append("")
        else:
            parts[-1] += char
    # of a pointer to a function
    names = (re.search(r"\(\s*\*\s*(\w+)\s*\)", part) for part in parts)
    words = (re.findall(r"\w+", part.partition("=")[0]) for part in parts)
    return [
        (name[1] if name else found[-1]).rstrip("_")
        for name, found in zip(names, words, strict=True)
        if found
    ]


CSRC, INCLUDE = "data/csrc", "data/include/flashinfer"
HEADERS = ("*.cuh", "attention/*.cuh", "attention/hopper/*.cuh", "norm/*.cuh")
ENVIRONMENT = re.compile(
    r"^(FLASHINFER_\w+|MAX_JOBS|CUDA_HOME|CUDA_PATH|CUDA_LIB_PATH|CC|CXX|CUTE_DSL_ARCH)$"
)
READERS = {"get", "setdefault", "pop"}
METHODS = {"__init__": "", "plan": ".plan"}


class SourceLine(NamedTuple):
    """A line of a file below the package's folder."""

    file: str
    line: int


class Package:
    """A FlashInfer package on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "jit").is_dir() or not (root / INCLUDE).is_dir():
            raise CaptureError(f"{root.name}: not a FlashInfer package (no jit/ or {INCLUDE}/)")

    @cache  # noqa: B019 (one package a run)
    def tree(self, file: Path) -> ast.Module:
        """Syntax tree of a Python file."""
        return ast.parse(file.read_text("utf-8"))

    @cache  # noqa: B019
    def functions(self, header: str) -> list[Function]:
        """Functions of a header below data/include/flashinfer."""
        path = self.root / INCLUDE / header
        return functions(path.read_text("utf-8")) if path.exists() else []

    def python(self, symbol: str) -> SourceLine:
        """Where `flashinfer.decode.X` is defined, re-exports followed."""
        module, name = symbol.rsplit(".", 1)
        place = self._find(module.split(".")[1:], name, set())
        if place is None:
            raise CaptureError(f"{symbol}: not found in this FlashInfer")
        return place

    def _find(self, parts: list[str], name: str, seen: set[Path]) -> SourceLine | None:
        file = self._module(parts)
        if file is None or file in seen:
            return None
        for node in self.tree(file).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return SourceLine(str(file.relative_to(self.root)), node.lineno)
        package = parts if file.name == "__init__.py" else parts[:-1]
        for inner in ast.walk(self.tree(file)):
            if isinstance(inner, ast.ImportFrom):
                original = _imported_as(inner, name)
                if original is not None and inner.level:
                    base = package[: len(package) - (inner.level - 1)]
                    place = self._find(
                        [*base, *(inner.module or "").split(".")], original, seen | {file}
                    )
                    if place is not None:
                        return place
        return None

    def _module(self, parts: Iterable[str]) -> Path | None:
        base = self.root.joinpath(*[part for part in parts if part])
        candidates = (base.with_suffix(".py"), base / "__init__.py")
        return next((path for path in candidates if path.is_file()), None)


def _imported_as(node: ast.ImportFrom, name: str) -> str | None:
    """What an import calls ``name`` where it comes from; None where it does not bring it."""
    if any(alias.name == "*" for alias in node.names):
        return None if name.startswith("_") else name
    return next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)


def index(package: Package) -> JsonObject:
    """The whole of source_index.json; ``missing`` says why a target has no entry.

    Raises CaptureError if the package has all that is declared of no target.
    """
    entries: dict[str, JsonObject] = {}
    scheduler: dict[str, JsonObject] = {}
    missing: dict[str, str] = {}
    for name, target in known().items():
        try:
            cited = {function.name: span(package, function) for function in target.source.functions}
            entries[name] = target_entry(package, target)
            scheduler |= cited
        except CaptureError as error:
            missing[name] = str(error)
    if not entries:
        raise CaptureError("; ".join(missing.values()))
    return {
        "schema": 1,
        "version": version(package.root),
        "targets": entries,
        "missing": missing,
        "scheduler": scheduler,
        "environment": environment(package),
        "functions": function_table(package),
        "templates": templates(package),
        "signatures": signatures(package.root, python_symbols(entries)),
        "exports": exports(package.root),
    }


def python_symbols(entries: dict[str, JsonObject]) -> dict[str, str]:
    """{name: file} of the Python API of the targets."""
    found = [
        api for entry in entries.values() for role, api in entry["api"].items() if role != "jit"
    ]
    return {api["symbol"].rpartition(".")[2]: api["file"] for api in found}


def target_entry(package: Package, target: Target) -> JsonObject:
    """API, JIT generator, templates and kernels of one kernel target."""
    symbols = {
        key: value for key, value in target.source.api.items() if value.startswith("flashinfer.")
    }
    files = {key: value for key, value in target.source.api.items() if "/" in value}
    return {
        "api": {key: {"symbol": s, **package.python(s)._asdict()} for key, s in symbols.items()},
        "files": {key: existing(package, f"data/{value}") for key, value in files.items()},
        "templates": [existing(package, f"{CSRC}/{file}") for file in target.source.sources],
        "kernels": [
            {"symbol": kernel.name, **span(package, kernel, kernels=True)}
            for kernel in target.source.kernels
            if kernel.header
        ],
    }


def span(package: Package, symbol: Symbol, kernels: bool = False) -> JsonObject:
    """File and lines of a function, or of the ``__global__`` function of that name."""
    name, header = symbol
    same = [f for f in package.functions(header) if f.name == name and f.kernel >= kernels]
    if not same:
        what = "kernel" if kernels else "function"
        raise CaptureError(f"{name}: no such {what} in {INCLUDE}/{header} of this FlashInfer")
    return {"file": f"{INCLUDE}/{header}", "line": same[0].line, "line_end": same[0].line_end}


def existing(package: Package, file: str) -> str:
    """The same path, checked."""
    if not (package.root / file).is_file():
        raise CaptureError(f"{file}: no such file in this FlashInfer")
    return file


def environment(package: Package) -> dict[str, list[JsonObject]]:
    """{variable: [{file, line, default}]} of every read in the package; default is source text."""
    found: dict[str, list[JsonObject]] = {}
    for file in sorted(package.root.rglob("*.py")):
        relative = file.relative_to(package.root)
        if relative.parts[0] == "data":
            continue
        text = file.read_text("utf-8", "replace")
        if "environ" not in text and "getenv" not in text:
            continue
        for name, line, default in environment_reads(ast.parse(text)):
            found.setdefault(name, []).append(
                {"file": str(relative), "line": line, "default": default}
            )
    return dict(sorted(found.items()))


def environment_reads(tree: ast.Module) -> Iterator[tuple[str, int, str | None]]:
    """(variable, line, default's source) of os.environ and os.getenv reads."""
    names = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        key, default = _read_of(node)
        value = names.get(key.id) if isinstance(key, ast.Name) else getattr(key, "value", None)
        if key is not None and isinstance(value, str) and ENVIRONMENT.match(value):
            yield value, key.lineno, None if default is None else ast.unparse(default)


def signatures(root: Path, symbols: Mapping[str, str]) -> dict[str, list[JsonObject]]:
    """Call -> parameters, of functions, and of a class as ``X`` (its ``__init__``) and ``X.plan``.

    symbols: {name: file below root}. What a version does not define in that file is left out.
    """
    found = {}
    for name, file in symbols.items():
        for node in _tree(root / file).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                found[name] = parameters(node)
            if isinstance(node, ast.ClassDef) and node.name == name:
                for method in node.body:  # overloads come first, what they are of last
                    if isinstance(method, ast.FunctionDef) and method.name in METHODS:
                        found[name + METHODS[method.name]] = parameters(method)
    return found


def _tree(path: Path) -> ast.Module:
    """A module's syntax tree; an empty one where this version has no such file."""
    return ast.parse(path.read_text("utf-8") if path.exists() else "")


def parameters(node: ast.FunctionDef) -> list[JsonObject]:
    """[{"name", "kind": positional | keyword | var_positional | var_keyword, "default": source or None}]."""
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    missing = len(positional) - len(spec.defaults)
    defaults = [None] * missing + [ast.unparse(default) for default in spec.defaults]
    out = [_row(p, "positional", d) for p, d in zip(positional, defaults, strict=True)]
    if spec.vararg:
        out.append(_row(spec.vararg, "var_positional", None))
    for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        out.append(_row(parameter, "keyword", None if default is None else ast.unparse(default)))
    if spec.kwarg:
        out.append(_row(spec.kwarg, "var_keyword", None))
    return [row for row in out if row["name"] != "self"]


def _row(parameter: ast.arg, kind: str, default: str | None) -> JsonObject:
    return {"name": parameter.arg, "kind": kind, "default": default}


def exports(root: Path) -> list[str]:
    """Names that the package's ``__init__.py`` imports or defines."""
    tree = _tree(root / "__init__.py")
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return sorted(names | defined)


def templates(package: Package) -> dict[str, list[list[str]]]:
    """Template parameters of kernels, and of the structs that their arguments are, by name."""
    found: dict[str, list[list[str]]] = {}
    kernels = {kernel.name for target in known().values() for kernel in target.source.kernels}
    for path in headers(package):
        for name, overloads in templates_of(path.read_text()).items():
            if name in kernels or name.endswith(("Kernel", "KernelTraits", "DefaultAttention")):
                found.setdefault(name, []).extend(overloads)
    return dict(sorted(found.items()))


def headers(package: Package) -> list[Path]:
    """Headers with kernels: those of HEADERS, and what lies beside a header that a target names."""
    beside = {
        f"{Path(k.header).parent}/*.cuh"
        for t in known().values()
        for k in t.source.kernels
        if k.header
    }
    base = package.root / INCLUDE
    return sorted({path for pattern in {*HEADERS, *beside} for path in base.glob(pattern)})


def function_table(package: Package) -> dict[str, list[list[Any]]]:
    """{header: [[line_start, line_end, function]]}, to name the function of a hot line."""
    base = package.root / INCLUDE
    table = {}
    for path in headers(package):
        found = package.functions(str(path.relative_to(base)))
        if found:
            table[str(path.relative_to(package.root))] = [
                [f.line_start, f.line_end, f.name] for f in found
            ]
    return table


def version(root: Path) -> str | None:
    """FlashInfer's version: build metadata, the dist-info beside it, or the installed one."""
    if built := built_version(root):
        return built
    for info in sorted(root.parent.glob("flashinfer_python-*.dist-info")):
        return info.name.split("-")[1].removesuffix(".dist")
    return package_version("flashinfer-python")


def _read_of(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """(key, default) if a node reads the environment."""
    if isinstance(node, ast.Call) and node.args and _is_reader(node.func):
        return node.args[0], node.args[1] if len(node.args) > 1 else None
    if isinstance(node, ast.Subscript) and _is_environ(node.value):
        return node.slice, None
    if isinstance(node, ast.Compare) and _is_environ(node.comparators[0]):
        return node.left, None
    return None, None


def _is_reader(function: ast.expr) -> bool:
    """os.getenv, os.environ.get and the like."""
    if isinstance(function, ast.Name):
        # getenv, and helpers such as parse_env_flags("FLASHINFER_EXTRA_CFLAGS")
        return "env" in function.id
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "getenv" or (function.attr in READERS and _is_environ(function.value))


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == "environ"


def command(*, out: Path, package: Path | None = None) -> int:
    """The index of the installed FlashInfer.

    Args:
        out: source_index.json
        package: folder of a flashinfer package (default: the installed one)
    """
    root = package or package_folder("flashinfer")
    if root is None:
        raise CaptureError("flashinfer: not installed; name its folder with --package")
    found = index(Package(root))
    for name, reason in found["missing"].items():
        print(f"source-index: {name} is left out: {reason}", file=sys.stderr)
    write_json(out, found)
    return 0
