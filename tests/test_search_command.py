"""`ncuflow search` from end to end: real processes, overlays, builds and pipes; FlashInfer and the GPU are none."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
from conftest import ROOT
from test_trial_command import HEADER, Machine, made_machine
from test_trial_command import pytestmark as pytestmark

from ncuflow.experiments.record import Search

SCHEMA = ROOT / "ncuflow/schemas/advise.json"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield made_machine(tmp_path_factory.mktemp("machine"))


def searched(machine: Machine, *words: str) -> tuple[int, str, Search | None]:
    out = machine.folder / "search.json"
    out.unlink(missing_ok=True)
    status, said = machine.ran("search", "tuned", "--out", str(out), *words)
    if not out.exists():
        return status, said, None
    jsonschema.validate(json.loads(out.read_text()), json.loads(SCHEMA.read_text()))
    return status, said, Search.model_validate_json(out.read_text())


def test_the_winner_of_each_shape_its_price_and_what_became_of_the_others(machine: Machine) -> None:
    status, said, found = searched(machine, "--blocks", '[{"n": [3, 4]}]', "--budget", "5")
    assert status == 0 and found is not None, said
    assert [shape.shape for shape in found.shapes] == ["tuned/n3", "tuned/n4"]
    for shape in found.shapes:
        assert (shape.found, shape.candidate) == ("winner", "us=95")
        assert shape.price.estimate == pytest.approx(100 / 95 - 1, abs=1e-3)
    knobs = {knob.name: (knob.default, bool(knob.missing)) for knob in found.knobs}
    assert knobs == {
        "us": (100, False), "factor": (2, False), "asserted": (1, False), "gone": (None, True),
        "large": (2, False), "graph": (False, False),
    }  # fmt: skip
    tried = {one.name: one.reason for one in found.candidates}
    assert set(tried) == {"us=110", "us=95", "factor=3", "asserted=2", "graph=True"}
    assert tried["us=95"] is None and tried["graph=True"] is None
    assert str(tried["factor=3"]).startswith("wrong: tuned/n3: relative L2 error 0.5")
    assert f"does not compile: data/{HEADER}:10: " in str(tried["asserted=2"])
    assert found.beyond_budget == 18
    assert "gone: not there in this FlashInfer" in said and "18 more beyond the budget" in said
    assert str(machine.folder) not in said.partition("\nwrote ")[0]


@pytest.mark.exhaustive
def test_where_nothing_compiles_nothing_is_timed(machine: Machine) -> None:
    status, said, found = searched(machine, "--only", "asserted")
    assert status == 1 and found is None
    assert "error: no variant compiles: data/include/flashinfer/toy.cuh:10: " in said
    status, said, found = searched(machine, "--knobs", "gone")
    assert status == 1 and "tuned: no tunable means anything at these shapes" in said


@pytest.mark.exhaustive
def test_a_setting_that_does_not_compile_costs_the_variants_that_have_it(machine):
    words = ("--blocks", '[{"n": 5}]', "--knobs", "us", "module", "--budget", "9")
    status, said, found = searched(machine, *words)
    assert status == 0 and found is not None, said
    tried = {one.name: one for one in found.candidates}
    broken = {name for name, one in tried.items() if one.reason is not None}
    assert broken == {"module=absent", "us=110 module=absent", "us=95 module=absent"}
    for name in sorted(broken):
        error = tried[name].compile_error
        assert error is not None and error.file.endswith("generated/absent/absent.cc")
        assert str(tried[name].reason).startswith(f"does not compile: {error.file}:1: ")
    (shape,) = found.shapes
    assert (shape.found, shape.candidate) == ("winner", "us=95")
    timed = {"us=110", "us=95", "module=plain", "us=110 module=plain", "us=95 module=plain"}
    assert {one.name for one in shape.candidates} == timed
    assert str(machine.folder) not in said
