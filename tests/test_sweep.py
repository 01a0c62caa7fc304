"""Sweeps: blocks become points, points become batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.sweep import points as sweep
from ncuflow.sweep.points import Planned, batches, expand, points
from ncuflow.target.contract import load

DEFAULTS = {"a": 1, "b": 2, "kind": "x"}
CHOICES = {"kind": ("x", "y")}


def target(**changes: Any) -> Any:
    known: dict[str, Any] = {"name": "t", "parameters": DEFAULTS, "choices": CHOICES}
    known["point_id"] = lambda p: f"t/a{p['a']}_b{p['b']}_{p['kind']}"
    return SimpleNamespace(**{**known, **changes})


def numbered(n: int) -> list[Planned]:
    return [Planned(f"t/{i}", "t", {"i": i}) for i in range(n)]


@pytest.mark.parametrize(
    ("blocks", "sets"),
    [
        ([{"a": [3, 1], "b": [5, 4]}, {"a": 9}], [(3, 5), (3, 4), (1, 5), (1, 4), (9, 2)]),
        ([], []),
        ([{}], [(1, 2)]),
        # Duplicates are dropped, and the first place is kept.
        ([{"a": [2, 1]}, {"a": [1, 3], "b": 2}], [(2, 2), (1, 2), (3, 2)]),
    ],
)
def test_a_block_is_a_product_and_blocks_are_a_union_in_order(blocks: Any, sets: Any) -> None:
    found = expand(blocks, DEFAULTS)
    assert [(s["a"], s["b"]) for s in found] == sets
    for one in found:
        one["b"] = 99
    assert DEFAULTS["b"] == 2


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"c": 1}, r"unknown parameter 'c'.*there are: a, b, kind"),
        ({"a": []}, r"'a' of a sweep block has no values"),
        ({"kind": ["x", "z"]}, r"'kind' cannot be 'z'; it is one of: x, y"),
        ({"a": "1"}, r"'a' cannot be '1'; it is a number from 1"),
        ({"a": 2**31}, r"'a' cannot be 2147483648; it is a number from 1 to 2\^31 - 1"),
        ({"a": 0}, r"'a' cannot be 0"),
        ({"a": True}, r"'a' cannot be True"),
        ({"a": None}, r"'a' cannot be None"),
    ],
)
def test_a_bad_block_is_one_clear_error(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        expand([block], DEFAULTS, CHOICES)
    assert "\n" not in str(caught.value)


def test_the_error_of_a_target_names_it() -> None:
    with pytest.raises(ValueError, match=r"^target t: unknown parameter 'c'"):
        points(target(), [{"c": 1}])


def test_points_carry_id_target_and_all_parameters() -> None:
    (point,) = points(target(), [{"a": 7}])
    params = {"a": 7, "b": 2, "kind": "x"}
    assert point.as_dict() == {"id": "t/a7_b2_x", "target": "t", "params": params}


def test_parameters_that_give_one_id_are_one_point() -> None:
    same = target(point_id=lambda p: f"t/a{p['a']}")
    found = points(same, [{"a": [1, 2], "b": [1, 2]}])
    assert [(p.id, p.params["b"]) for p in found] == [("t/a1", 1), ("t/a2", 1)]


@given(st.integers(0, 300), st.integers(1, 40))
def test_batches_hold_every_point_once_in_order(n: int, size: int) -> None:
    found = batches(numbered(n), size)
    assert [p for batch in found.values() for p in batch] == numbered(n)
    sizes = [len(batch) for batch in found.values()]
    assert all(max(1, size // 2) <= s <= 2 * size for s in sizes[:-1])
    assert all(1 <= s <= 2 * size for s in sizes[-1:])


def test_batch_names_are_b_and_eight_hex_digits_of_the_ids() -> None:
    first = batches(numbered(3), 10)
    (name,) = first
    assert len(name) == 9 and name[0] == "b" and int(name[1:], 16) >= 0
    again = batches([Planned(p.id, "t", {"other": 1}) for p in numbered(3)], 10)
    assert list(again) == [name]


@given(st.integers(0, 199))
def test_adding_a_point_leaves_most_batches_as_they_are(position: int) -> None:
    before = numbered(200)
    after = [*before[:position], Planned("t/new", "t", {}), *before[position:]]
    old, new = batches(before, 10), batches(after, 10)
    assert len(set(old) - set(new)) <= 2
    assert len(old) > 12


def test_batch_size_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="not 0"):
        batches(numbered(1), 0)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"causal": 1}, "'causal' cannot be 1; it is one of: False, True"),
        ({"dim": [64, 64.0]}, "'dim' cannot be 64.0; it is one of: 64, 128"),
        ({"dim": True}, "'dim' cannot be True; it is one of: 64, 128"),
        ({"dim": "64"}, "'dim' cannot be '64'; it is one of: 64, 128"),
        ({"dim": [[64]]}, r"'dim' cannot be \[64\]; it is one of: 64, 128"),
    ],
)
def test_a_value_of_another_type_is_no_choice_though_it_is_equal(block, message):
    choices = {"causal": (False, True), "dim": (64, 128)}
    expand([{"causal": [True, False], "dim": [64, 128]}], {"causal": True, "dim": 64}, choices)
    with pytest.raises(ValueError, match=message):
        expand([block], {"causal": True, "dim": 64}, choices)


def test_pairs_of_a_sweep_are_those_of_the_choices_and_two_of_a_point_with_itself() -> None:
    decode = load("decode")
    blocks = [{"batch": [1, 32, 64], "cores": ["cuda", "tensor"]}, {"batch": 8}]
    found = sweep.pairs(decode, sweep.points(decode, blocks))
    pairs = zip(found[::2], found[1::2], strict=True)
    named = [(a.params["batch"], a.params["cores"], b.params["cores"]) for a, b in pairs]
    assert named == [
        (1, "cuda", "tensor"), (32, "cuda", "tensor"), (64, "cuda", "tensor"),
        (1, "cuda", "cuda"), (64, "cuda", "cuda"),
    ]  # fmt: skip
    assert sweep.pairs(decode, sweep.points(decode, [{"batch": [1, 2]}])) == []
