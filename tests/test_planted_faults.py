"""The list of planted faults fits the code; `scripts/plant-faults` plants them, which takes minutes."""

from __future__ import annotations

import pytest
import yaml
from conftest import ROOT

from scripts import faults

LIST = yaml.safe_load(faults.LIST.read_text())


@pytest.fixture(scope="module")
def known() -> dict[str, list[faults.Place]]:
    return faults.index(ROOT)


@pytest.mark.parametrize("fault", LIST, ids=lambda fault: fault["fault"])
def test_a_fault_has_its_place_and_its_tests(known, fault):
    """Where a function moved or was renamed, or its text changed, the list has to follow."""
    assert len(faults.places(known, fault)) == 1
    assert fault["new"] != fault["old"]
    assert all((ROOT / f"tests/test_{name}.py").exists() for name in fault["tests"])
