"""The guide's usage examples: run on a GPU; everywhere, held against FlashInfer's signatures."""

import ast
import inspect
import runpy
from pathlib import Path

import gpu_modules
import pytest
from conftest import some
from flashinfer_source import flashinfer_package

from ncuflow import source
from ncuflow.pages.markdown import guide
from ncuflow.target.contract import known

GUIDE = Path(__file__).parents[1] / "templates" / "guide"
USAGE = sorted(GUIDE.rglob("*.py"))
EXAMPLES = pytest.mark.parametrize("example", USAGE, ids=lambda p: f"{p.parent.name}-{p.stem}")
RUNS = [
    pytest.param(p, id=f"{p.parent.name}-{p.stem}", marks=[pytest.mark.example(p), gpu_modules.needs_gpu(p.parent.name)])
    for p in USAGE
]  # fmt: skip
KINDS = inspect.Parameter
KIND = {
    "positional": KINDS.POSITIONAL_OR_KEYWORD, "keyword": KINDS.KEYWORD_ONLY,
    "var_positional": KINDS.VAR_POSITIONAL, "var_keyword": KINDS.VAR_KEYWORD,
}  # fmt: skip


def signature(node: ast.FunctionDef) -> inspect.Signature:
    """The signature of a function as its source writes it; ``self`` left out."""
    optional = {False: KINDS.empty, True: None}
    return inspect.Signature(
        KINDS(row["name"], KIND[row["kind"]], default=optional[row["default"] is not None])
        for row in source.parameters(node)
    )


class Package:
    """Classes and functions of FlashInfer's top level, found in its source."""

    def __init__(self, root: Path) -> None:
        self.nodes = {}
        for node in ast.parse((root / "__init__.py").read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                self._collect(root, node)

    def _collect(self, root: Path, node: ast.ImportFrom) -> None:
        base = root.joinpath(*node.module.split("."))
        files = [f for f in (base.with_suffix(".py"), base / "__init__.py") if f.exists()]
        nodes = [n for f in files[:1] for n in ast.parse(f.read_text()).body]
        defined = {n.name: n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
        for alias in node.names:
            if alias.name in defined:
                self.nodes[alias.asname or alias.name] = defined[alias.name]

    def signatures(self, name: str, method: str | None = None) -> list[inspect.Signature]:
        """Signatures of a function or (overloaded) method, base classes followed."""
        node = self.nodes[name]
        if isinstance(node, ast.FunctionDef):
            return [signature(node)]
        functions = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        found = [n for n in functions if n.name == (method or "__init__")]
        if any(n.args.kwarg for n in found):  # what takes **kwargs hands them to its implementation
            found = [n for n in functions if n.name == f"_{method}_impl"] or found
        if found:
            return [signature(n) for n in found]
        bases = [b.id for b in node.bases if isinstance(b, ast.Name)]
        return [s for base in bases for s in self.signatures(base, method)]


LENGTHS = {"table": 3, "buffers": 3, "left": 2, "right": 2}  # of what the examples unpack


def positional(call: ast.Call) -> list[None]:
    """Placeholders for the positional arguments; a starred name counts for its length."""
    counts = [LENGTHS[a.value.id] if isinstance(a, ast.Starred) else 1 for a in call.args]
    return [None] * sum(counts)


def imported_names(tree: ast.Module) -> set[str]:
    """What an example imports from FlashInfer."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return {alias.name for n in imports if n.module == "flashinfer" for alias in n.names}


def wrappers(tree: ast.Module, package: Package) -> dict[str, str]:
    """Variable -> FlashInfer class that an example builds it from."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "id", None)
            if name in imported_names(tree) and isinstance(package.nodes[name], ast.ClassDef):
                out[node.targets[0].id] = name
    return out


def misfits(text: str, package: Package) -> list[str]:
    """Calls of FlashInfer in an example that fit no signature."""
    tree = ast.parse(text)
    functions, objects, out = imported_names(tree), wrappers(tree, package), []
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if getattr(call.func, "id", None) in functions:
            name, method = call.func.id, None
        elif getattr(getattr(call.func, "value", None), "id", None) in objects:
            name, method = objects[call.func.value.id], call.func.attr
        else:
            continue
        if not fits(call, package.signatures(name, method)):
            out.append(f"{name}.{method or '__init__'}, line {call.lineno}")
    return out


def fits(call: ast.Call, signatures: list[inspect.Signature]) -> bool:
    """Whether the arguments bind to one of the (overloaded) signatures."""
    unpacked = any(k.arg is None for k in call.keywords)  # what ** brings is not in the text
    for one in signatures:
        bind = one.bind_partial if unpacked else one.bind
        try:
            bind(*positional(call), **{k.arg: None for k in call.keywords if k.arg})
        except TypeError:
            continue
        return True
    return False


@pytest.fixture(scope="module")
def package() -> Package:
    return Package(flashinfer_package())


@EXAMPLES
def test_calls_fit_the_signatures_of_the_source(example, package):
    assert misfits(example.read_text(), package) == []


@pytest.mark.parametrize(
    ("example", "right", "wrong"),
    [
        ("decode/usage", "    head_dim,\n    page_size,", "    head_dim_qk=head_dim, page_size=page_size,"),
        ("decode/usage", "pos_encoding_mode=", "position_mode="),
        ("decode/usage_graph", '*buffers, "NHD", True', '"NHD", max_batch_size=batch, max_num_pages=pages'),
        ("prefill/usage", "causal=True", "is_causal=True"),
        ("rope/usage", "is_neox=True", "interleave=False"),
    ],
)  # fmt: skip
def test_a_call_that_would_raise_is_found(example, right, wrong, package):
    text = (GUIDE / f"{example}.py").read_text()
    assert right in text
    assert misfits(text.replace(right, wrong), package)


def test_examples_stay_in_the_guide():
    """A kernel's page leads to one file of all its examples, which each stand for themselves; the guide shows the others."""
    shown = "".join(path.read_text() for path in GUIDE.rglob("*.j2"))
    for path in some(USAGE):
        compile(path.read_text(), path.name, "exec")
        of = path.parent.name
        assert (
            path.read_text() in guide.example(of) if of in known() else 'usage("variant")' in shown
        )


@pytest.mark.parametrize("example", RUNS)
def test_example_runs_and_its_assertions_hold(example):
    try:
        runpy.run_path(str(example))
    except ModuleNotFoundError as error:
        gpu_modules.skip_without_cute_dsl([str(error)])
        raise
