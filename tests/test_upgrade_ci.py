"""The action, its script and the recipes that use it: what they name exists, and what the script writes is what CI shows."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import trial_data
import yaml
from command import ncuflow, ran
from conftest import ROOT

from ncuflow.experiments.record import read as trials
from ncuflow.experiments.text import reasons
from ncuflow.experiments.upgrade import EXIT, Upgrade, read, summed, upgrade_text, verdict
from ncuflow.export.formats import commands, upgraded
from ncuflow.pages.html import experiments as page
from ncuflow.race.record import Exponent, PlanAt, PlanCurve

RECIPES = sorted((ROOT / "examples/ci").glob("*.yml"))


def test_sums_count_each_shape_as_often_as_it_runs() -> None:
    found = trial_data.upgraded()
    assert found.gpu_time is not None and found.plan_time is not None
    assert found.gpu_time.base_us == 40 * 100.0
    assert found.gpu_time.change_us == pytest.approx(30 * 110 + 10 * 100)
    assert found.gpu_time.change.estimate == pytest.approx(0.075)
    assert found.gpu_time.outcome == "slower"
    assert (found.plan_time.shapes, found.plan_time.base_us) == (1, 100.0)
    assert re.search(r"as often as they run: 4.000 µs → 4.300 µs", upgrade_text(found))


def test_a_plan_that_is_slower_for_many_sequences_alone_is_found(tmp_path: Path) -> None:
    found = ended("same")
    flat = Exponent(slope=0, low=0, high=0)
    curve = [(1, 100.0), (64, 108.0), (1024, 160.0)]
    points = [PlanAt(batch=n, timing=trial_data.timing(100.0, us)) for n, us in curve]
    found.shapes[1].plan_curve = PlanCurve(points=points, base=flat, change=flat)
    assert verdict([*found.points.values()], found.shapes) == "slower"
    assert "at 1024; slower at 1,024 sequences\n" in upgrade_text(found)
    path = tmp_path / "upgrade.json"
    path.write_text(found.model_dump_json())
    (bad,) = (case for case in upgraded(path, 0) if case.why)
    assert bad.hold.startswith("plan() of 1024 sequences no slower")


def test_what_is_slower_beyond_the_threshold_is_a_case_that_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "upgrade.json"
    path.write_text(trial_data.upgraded().model_dump_json())
    bad = [case for case in upgraded(path, 0.05) if case.why]
    assert [case.point for case in bad] == ["the workload"] * 2 + ["twice/toy_n3"] * 2
    assert not [case for case in upgraded(path, 0.5) if case.why]
    said = commands(bad)
    assert said.count("\n") == 4 and all(
        line.startswith("::error title=") for line in said.splitlines()
    )
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    for form, out in {"junit": junit, "summary": summary}.items():
        done = ncuflow("export", form, "--upgrade", str(path), "--out", str(out))
        assert done.returncode == 0, done.stderr
    assert ET.parse(junit).getroot().attrib["failures"] == "4"
    assert "4 of 5 requirements do not hold." in summary.read_text()


EXPRESSION = re.compile(r"\$\{\{\s*([\w.]+)\s*\}\}")


def acted(folder: Path, given: dict[str, str], **env: str) -> tuple[int, dict[str, str], str]:
    """(status, outputs, what it printed) of action.yml, whose steps run as GitHub runs those of a composite action."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    said = {
        f"inputs.{k}": given.get(k, one.get("default", "")) for k, one in action["inputs"].items()
    }
    said["github.action_path"] = str(ROOT)
    status, printed = 0, ""

    def filled(text: str) -> str:
        return EXPRESSION.sub(lambda match: said.get(match[1], ""), text)

    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        script, out = folder / "step.sh", folder / "outputs"
        script.write_text(filled(step["run"]))
        told = env | {name: filled(text) for name, text in step["env"].items()}
        told |= {"GITHUB_OUTPUT": str(out), "GITHUB_STEP_SUMMARY": str(folder / "step.md")}
        done = ran("bash", "--noprofile", "--norc", "-eo", "pipefail", script, cwd=folder, **told)
        lines = out.read_text().splitlines() if out.exists() else []
        pairs = (line.partition("=") for line in lines)
        said |= {f"steps.{step['id']}.outputs.{name}": value for name, _, value in pairs}
        status, printed = done.returncode, printed + done.stdout
        if status:
            break
    return status, {name: filled(one["value"]) for name, one in action["outputs"].items()}, printed


def ended(outcome: str) -> Upgrade:
    found = trial_data.upgraded()
    points = found.trials[0].points
    if outcome == "wrong":
        points[0] = trial_data.point(trial_data.as_is, 3, outcome="wrong")
        points[0].reason, points[0].timing = "an LSE", None
    elif outcome == "same":
        found = trial_data.upgraded(100.0)
        points = found.trials[0].points
        points[0] = trial_data.point(trial_data.as_is, 3, 100.0, "same")
        found.gpu_time = found.plan_time = None
    found.outcome = verdict(points)
    assert found.outcome == outcome
    return found


@pytest.mark.parametrize("outcome", ["same", "slower", "wrong", None])
def test_the_action_shows_what_ci_shows_and_ends_as_the_upgrade(tmp_path, outcome):
    program = tmp_path / "bin/ncuflow"
    program.parent.mkdir()
    status = EXIT[outcome] if outcome else 1
    if outcome:
        (tmp_path / "made.json").write_text(ended(outcome).model_dump_json())
    program.write_text(f"""#!/bin/sh
if [ "$1" = upgrade ]; then echo "$@" >said; cp made.json upgrade.json; exit {status}; fi
exec '{sys.executable}' -m ncuflow "$@"
""")
    program.chmod(0o755)
    (tmp_path / "upgrade.json").write_text("of the night before")
    path = f"{program.parent}:{os.environ['PATH']}"
    given = {"workload": "called", "to": "0.7.2; rm -rf x"}
    code, outputs, printed = acted(tmp_path, given, PATH=path, PYTHONPATH=str(ROOT))
    assert code == status == {"same": 0, "slower": 3, "wrong": 4, None: 1}[outcome], printed
    record = tmp_path / "upgrade.json"
    assert outputs == {"status": str(status), "record": str(record)}
    words = (tmp_path / "said").read_text()
    assert (
        words
        == "upgrade --to 0.7.2; rm -rf x --effect 2% --out upgrade.json --workload called --html upgrade.html\n"
    )
    assert record.exists() == (tmp_path / "step.md").exists() == (outcome is not None)
    if outcome is None:
        return
    bad = ET.parse(tmp_path / "junit.xml").getroot().attrib["failures"]
    assert bad == {"same": "0", "slower": "4", "wrong": "3"}[outcome]
    assert printed.count("::error title=") == int(bad)
    summary = (tmp_path / "step.md").read_text()
    assert (f"{bad} of" in summary) == (bad != "0") and ("an LSE" in summary) == (
        outcome == "wrong"
    )


def test_the_action_gives_each_input_to_its_script_and_none_to_a_shell() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    assert set(action["inputs"]) == {"workload", "model", "from", "to", "threshold"}
    assert {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]} <= set(step["env"].values())
    assert "${{" not in step["run"]
    script = (ROOT / "scripts/upgrade-gate").read_text()
    assert set(step["env"]) - {"NCUFLOW_ACTION"} <= set(re.findall(r"NCUFLOW_[A-Z]+", script))


def test_a_record_of_each_night_is_kept_on_a_runner_that_keeps_its_folder(tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / "examples/ci/nightly.yml").read_text())["jobs"]["nightly"][
        "steps"
    ]
    (keep,) = (step["run"] for step in steps if step.get("name") == "keep the record")
    work, origin = tmp_path / "work", tmp_path / "origin.git"
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    ran("git", "init", "-q", "--bare", origin, cwd=tmp_path)
    ran("git", "clone", "-q", origin, work, cwd=tmp_path)
    (work / "first").write_text("")
    ran("git", "add", ".", cwd=work)
    ran("git", *who, "commit", "-q", "-m", "first", cwd=work)
    for night in ("01", "02", "03"):
        ran("git", "clean", "-ffdxq", cwd=work)  # as actions/checkout does
        (work / "upgrade.json").write_text(night)
        done = ran(
            "bash", "-e", "-c", keep.replace("date -u +%F", f"echo 2026-11-{night}"), cwd=work
        )
        assert done.returncode == 0, done.stderr
    kept = ran("git", "ls-tree", "--name-only", "ncuflow-history", cwd=origin).stdout.split()
    assert kept == [f"2026-11-{night}.json" for night in ("01", "02", "03")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_uses_inputs_that_the_action_has_and_shell_that_parses(path: Path) -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    recipe: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [step for job in recipe["jobs"].values() for step in job["steps"]]
    used = [step for step in steps if "ncuflow@" in step.get("uses", "")]
    assert len(used) == 1 and set(used[0]["with"]) <= set(inputs)
    required = {name for name, one in inputs.items() if one.get("required")}
    assert required <= set(used[0]["with"]) and {"workload", "model"} & set(used[0]["with"])
    for step in steps:
        if "run" in step:
            assert "${{" not in step["run"]
            assert subprocess.run(["bash", "-n", "-c", step["run"]]).returncode == 0
    assert True in recipe or "on" in recipe  # YAML 1.1 reads "on" as true
    assert json.dumps(steps)


def test_the_sum_of_a_recorded_upgrade_is_that_of_its_points() -> None:
    """FlashInfer 0.6.18 to 0.7.2.post1 on an H200: the GPU's sum lies within the minimum effect."""
    found = read(ROOT / "examples/upgrade/0.6.18-to-0.7.2.json.xz")
    sums = summed(found.shapes, found.points, lambda point: point.timing, found.effect)
    assert sums is not None and (sums.shapes, sums.outcome) == (42, "same")
    assert found.gpu_time is not None and sums.base_us == pytest.approx(found.gpu_time.base_us)


def test_the_page_of_an_upgrade_has_its_screen_first_and_a_trial_of_each_target(tmp_path):
    record, out = ROOT / "examples/upgrade/0.6.18-to-0.7.2.json.xz", tmp_path / "upgrade.html"
    done = ncuflow("upgrade", "--again", str(record), "--html", str(out))
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert len(text.encode()) <= page.BUDGET
    parts = ("host time of the calls", 'id="trial-1"', 'id="trial-10"')
    assert sorted(parts, key=text.index) == [*parts]
    assert "activation/silu_T64_D14336_bf16" in text and 'href="#upgrade"' in text


def test_changes_of_flashinfer_that_were_taken_back_are_found() -> None:
    folder = ROOT / "examples/upgrade/taken-back"
    found = {path.name.partition(".")[0]: trials(path)[0] for path in folder.glob("*.xz")}
    came = {name: one.outcome for name, one in found.items()}
    assert came == {
        "merge-empty": "wrong",
        **dict.fromkeys(("activation-width", "fp8-window"), "lost"),
        "activation-blocks": "faster",
        "gumbel": "wrong",
        **dict.fromkeys(("far-decode", "far-prefill", "far-mla", "far-merge"), "wrong"),
        "mla-pages": "wrong",
        **dict.fromkeys(("mla-append", "rope-split", "fp4-convert", "kv-offsets"), "slower"),
        "plan-max": "same",
    }
    said = {
        name: " ".join(c.reason or "" for c in one.points[0].cases) for name, one in found.items()
    }
    assert all("far below 0" in said[name] for name in said if name.startswith("far"))
    assert "with one token all but certain" in said["gumbel"]
    assert "did not end within 30 s" in said["fp8-window"]
    for point in found["mla-pages"].points:
        assert "pages behind element 2^32" in (point.reason or "")
    for point in found["plan-max"].points:
        assert point.plan is not None and (point.outcome, point.plan.outcome) == ("same", "slower")
    for name, why in {
        "mla-append": "vec_size 8 → vec_size 2",
        "rope-split": "grid 40,32,1 → grid 40,1,1",
        "fp4-convert": "short_scoreboard",
        "kv-offsets": "other instructions",
    }.items():
        assert why in " ".join(reasons(found[name].points[0])), name
    blocks = found["activation-blocks"].points[0]
    assert blocks.timing is not None and blocks.timing.change.high < -0.2
    assert "block 256,1,1 → block 1024,1,1" in " ".join(reasons(blocks))
