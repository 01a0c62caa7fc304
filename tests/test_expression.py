"""Expressions of claims: what they may say, and what stays unknown."""

from __future__ import annotations

import contextlib

import pytest

from ncuflow.claims.expression import ExpressionError, evaluate, names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 1", 3),
        ("a * missing", None),
        ("missing > 1", None),
        ("not missing", None),
        ("a == 1 and missing", False),
        ("a == 2 and missing", None),
        ("a == 2 or missing", True),
        ("1 / (a - 2)", None),
        ("nan + 1", None),
        ("known(missing)", False),
        ("max(a, missing)", None),
        ("1 < a < 3", True),
        ('name in ["x", "y"]', True),
        ('count(names, "Merge")', 1),
        ('capture(name2, "tile([0-9]+)") * 2', 256),
        ("a if a > 1 else missing", 2),
    ],
)
def test_expression_keeps_what_is_unknown_unknown(text, value):
    scope = {
        "a": 2, "missing": None, "nan": float("nan"), "name": "x", "name2": "tile128",
        "names": ["Decode", "Merge"],
    }  # fmt: skip
    assert evaluate(text, scope) == value


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "a[0]",
        "__import__('os')",
        "(lambda: 1)()",
        "[x for x in a]",
        "max(a, key=len)",
        "2 ** 10 ** 10",
        "'x' * 9",
        "a +",
        "b",
        "a\0",
        "1 +" * 200 + "1",
        'capture("x", "x")',
        'matches("x", "(")',
        'matches("x", "' + "(" * 500 + '")',
        "sum([1, 'x'])",
        "1e308 ** 9",
    ],
)
def test_expression_refuses_everything_else(text):
    with pytest.raises(ExpressionError):
        evaluate(text, {"a": [1]})


def test_a_regular_expression_that_would_run_for_years_is_refused():
    name = "flashinfer::" + "a" * 60
    with pytest.raises(ExpressionError, match="takes more than"):
        evaluate("matches(name, '(a|aa)+!')", {"name": name})


@pytest.mark.parametrize("text", ["-" * 590 + "1", "not " * 140 + "1", "(" * 290 + "1" + ")" * 290])
def test_nesting_has_a_value_or_is_refused(text):
    with contextlib.suppress(ExpressionError):
        assert abs(evaluate(text, {})) == 1


@pytest.mark.parametrize("text", ["1e999", "9" * 590, "9" * 290 + " * " + "9" * 290])
def test_a_number_beyond_every_float_is_unknown(text):
    assert evaluate(text, {}) is None


def test_names_are_those_of_values_in_order():
    assert names("max(b, 2 * a) - b") == ["b", "a"]


def test_a_regular_expression_that_would_not_end_is_one_line() -> None:
    """Each letter can be matched in two ways, so that the ways to fail double with it."""
    with pytest.raises(ExpressionError, match=r"takes more than 0\.5 s on one text"):
        evaluate('count(names, "(a|aa)+$")', {"names": ["a" * 60 + "b"]})
