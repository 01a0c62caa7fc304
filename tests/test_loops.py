"""No test asserts in a loop or under a condition alone, where nothing at all would pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import some

TESTS = sorted(Path(__file__).parent.glob("test_*.py"))
CHECKS = ("raises", "fail", "warns", "check", "some")


def checks(node: ast.AST) -> bool:
    """Whether something in it can fail a test."""
    return any(
        isinstance(one, ast.Assert)
        or (isinstance(one, ast.Call) and ast.unparse(one.func).split(".")[-1] in CHECKS)
        for one in ast.walk(node)
    )


def filled(node: ast.expr) -> bool:
    """Whether there is something to loop over for certain: what is written out, counted, or looked at by `some`."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name in ("some", "range") or (
            name in ("enumerate", "zip") and any(map(filled, node.args))
        )
    if isinstance(node, ast.Name):
        return node.id.isupper()  # a constant of the test
    return isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict)


def certain(body: list[ast.stmt]) -> bool:
    """Whether a check runs whatever there is."""
    for one in body:
        match one:
            case ast.For():
                found = (filled(one.iter) and certain(one.body)) or checks(one.iter)
            case ast.While() | ast.FunctionDef() | ast.ClassDef():
                found = False
            case ast.If():
                found = certain(one.body) and certain(one.orelse)
            case ast.With():
                found = any(checks(item.context_expr) for item in one.items) or certain(one.body)
            case ast.Try():
                bodies = (one.body, one.finalbody, *(h.body for h in one.handlers))
                found = any(map(certain, bodies))
            case _:
                found = checks(one)
        if found:
            return True
    return False


def idle(text: str) -> Iterator[str]:
    """The tests of a module that have checks, none of which runs for certain."""
    for one in ast.walk(ast.parse(text)):
        if (
            isinstance(one, ast.FunctionDef)
            and one.name.startswith("test")
            and checks(one)
            and not certain(one.body)
        ):
            yield one.name


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_test_fails_where_there_is_nothing_to_assert_anything_of(path: Path) -> None:
    assert list(idle(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("loop", "silent"),
    [
        ("for one in found: assert one", True),
        ("if found: assert found", True),
        ("for one in [1, 2]: assert one", False),
        ("for one in some(found): assert one", False),
        ("assert found\n    for one in found: assert one", False),
        ("for one in (1, 2):\n        for two in found: assert two", True),
    ],
)
def test_a_loop_over_nothing_is_found(loop: str, silent: bool) -> None:
    assert list(idle(f"def test_it():\n    {loop}")) == ["test_it"] * silent


def test_some_of_nothing_fails() -> None:
    assert some(iter("ab")) == ["a", "b"]
    with pytest.raises(AssertionError, match="nothing to assert"):
        some([])
