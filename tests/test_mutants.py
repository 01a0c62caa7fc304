"""A damaged report gives no wrong number without a word: a few seeded mutants of every kind.

`python benchmarks/mutants.py` makes many.
"""

from __future__ import annotations

import copy

import pytest

from benchmarks import mutants


def test_no_mutant_changes_a_number_in_silence(every):
    seeds = 2 if every else 1
    came = {(kind, seed): what for kind, seed, what in mutants.run(range(seeds))}
    assert len(came) == seeds * len(mutants.KINDS)
    assert [mutant for mutant, what in came.items() if what == "silent"] == []
    assert list(came.values()).count("refused") > len(came) / 3


@pytest.fixture(scope="module")
def read():
    return mutants.rows_of(mutants.BATCH)


def test_a_wrong_number_would_be_noticed(read):
    """As where the names of counters are shifted by one, and where a kernel has another's numbers."""
    place = next(iter(read["kernels"]))[0]
    mine = {key: row for key, row in read["metrics"].items() if key[0] == place and row["value"]}
    shifted = copy.deepcopy(read)
    values = [row["value"] for row in mine.values()]
    for key, value in zip(mine, [*values[1:], values[0]], strict=True):
        shifted["metrics"][key]["value"] = value
    assert mutants.outcome(read, shifted) == "silent"
    shifted["kernels"][place,]["problems"] = "damaged"
    assert mutants.outcome(read, shifted) == "named"


def test_one_counter_may_differ_and_null_is_no_number(read):
    assert mutants.outcome(read, copy.deepcopy(read)) == "same"
    other = copy.deepcopy(read)
    row = next(row for row in other["metrics"].values() if row["value"])
    row["value"] *= 2
    assert mutants.outcome(read, other) == "plausible"
    row["value"] = None
    assert mutants.outcome(read, other) == "named"
