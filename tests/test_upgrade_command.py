"""`ncuflow upgrade` from end to end: two wheels over a workload in real processes; FlashInfer and the GPU are none."""

import json
import shutil
from pathlib import Path

import fake_race
import pytest
from test_bisection_command import wheel

from ncuflow.experiments.upgrade import Upgrade, upgrade_text

pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a compiler"
)
ROWS = {
    "toy_n3": ({"n": 3}, 5),
    "toy_n4": ({"n": 4}, 1),
    "plain_n3": ({"n": 3, "module": "plain"}, 2),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fake_race.make(tmp_path_factory.mktemp("machine"))
    wheel(folder, "0.6.1")
    wheel(folder, "0.6.2")
    wheel(folder, "0.6.3", "return 100.0", "return 130.0")
    wheel(folder, "0.6.4", "return 2.0", "return 3.0")
    wheel(folder, "0.6.5", "return 100.0", "return undeclared")
    (folder / "called").mkdir()
    rows = [
        {"id": f"twice/{name}", "target": "twice", "params": params, "count": count}
        for name, (params, count) in ROWS.items()
    ]
    (folder / "called/twice.json").write_text(json.dumps(rows))
    shutil.copytree(fake_race.FAKE / "flashinfer", folder / "site/flashinfer")
    return folder


def upgraded(machine: Path, base: str, to: str, *words: str) -> tuple[int, str, Upgrade | None]:
    """(exit status, output, record or None) from a wheel to another."""
    ends = [f"flashinfer_python-{version}-py3-none-any.whl" for version in (base, to)]
    command = ["upgrade", "--workload", "called", "--from", ends[0], "--to", ends[1], *words]
    status, said, found = fake_race.recorded(machine, *command, path=str(machine / "site"))
    return status, said, found and Upgrade.model_validate(found)


@pytest.mark.exhaustive
def test_a_release_that_changes_nothing_is_the_same_on_gpu_and_host(machine: Path) -> None:
    status, said, found = upgraded(machine, "0.6.1", "0.6.2")
    assert status == 0 and found is not None, said
    assert found.outcome == "same"
    assert [shape.count for shape in found.shapes] == [5, 1, 2]
    assert found.gpu_time is not None and found.gpu_time.shapes == 3
    assert found.call_time is not None and found.call_time.outcome == "same"
    assert found.shapes[0].base == found.shapes[0].change
    assert found.host is not None
    # Only Python could differ, so one process has both.
    assert {point.call.effect for point in found.points.values() if point.call} == {0.03}


def test_a_slower_release_is_named_with_the_engines_sum_and_the_wheel_that_made_it_so(machine):
    status, said, found = upgraded(machine, "0.6.1", "0.6.3", "--bisect")
    assert status == 3 and found is not None, said
    assert found.gpu_time is not None and found.gpu_time.outcome == "slower"
    assert found.call_time is not None
    assert found.host is not None and [shape.count for shape in found.shapes] == [5, 1, 2]
    points = found.points
    outcomes = {name: points[f"twice/{name}"].outcome for name in ROWS}
    assert outcomes == {"toy_n3": "slower", "toy_n4": "slower", "plain_n3": "same"}
    base = sum(points[f"twice/{name}"].timing.base_us * n for name, (_, n) in ROWS.items())  # type: ignore[union-attr]
    assert found.gpu_time.base_us == pytest.approx(base)
    assert "slower" in said and "twice/toy_n3" in said
    assert found.jit_base_s and found.jit_change_s
    assert upgrade_text(found) in said
    (search,) = found.bisections
    assert search.point == "twice/toy_n3" and search.over == "wheels"
    assert [(pair.before, pair.after) for pair in search.found] == [("0.6.2", "0.6.3")]
    assert "twice/toy_n3: between 0.6.2 and 0.6.3" in said


@pytest.mark.exhaustive
@pytest.mark.parametrize(("version", "reason"), [("0.6.4", "wrong"), ("0.6.5", "does not compile")])
def test_what_is_wrong_or_does_not_compile_leaves_the_other_shapes(machine, version, reason):
    status, said, found = upgraded(machine, "0.6.1", version)
    assert status == 4 and found is not None and found.outcome == "wrong", said
    points = found.points
    assert points["twice/plain_n3"].timing is not None
    assert points["twice/toy_n3"].timing is None and reason in said
