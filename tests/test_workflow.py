"""The pipeline as a user runs it: what is made, what is made again, and what a wrong setting says."""

import copy
import itertools
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import fake_gpus
import pytest
import yaml
from conftest import COPIED, DEFAULT, ROOT, SECRET, SMALL, Finished, Pipeline, copy_project, some
from dag import asked
from snakemake.cli import parse_config
from snakemake.utils import update_config

from ncuflow.evidence import location
from ncuflow.evidence.manifest import checksums, sealed
from ncuflow.experiments.record import Advice
from ncuflow.flow import settings
from ncuflow.flow.evidence import recorded, resolve
from ncuflow.target.contract import known

RECORDED = ("--config", "source=recorded")
CONFIG = yaml.safe_load((ROOT / "config/config.yaml").read_text())
# Those that the recording has: a new target is in the configuration before anything of it is recorded.
TARGETS = list(json.loads((DEFAULT / "manifest.json").read_text())["targets"])
PAGES = ["INDEX", "environment", "analysis", "kernel-dev-guide", "final-report", "claims"]


@pytest.fixture
def changed(small: Finished, tmp_path: Path) -> Pipeline:
    """A copy of a project that has run, with its outputs and Snakemake's records, to be changed."""
    return small.copied(tmp_path / "p")


@pytest.mark.parametrize("page", PAGES + TARGETS)
def test_every_page_is_made(finished, page):
    assert (finished.outputs / "reports" / f"{page}.md").stat().st_size > 500


@pytest.mark.parametrize("target", TARGETS)
def test_results_carry_the_origin_of_every_row(finished, target):
    results = json.loads((finished.outputs / f"results/{target}_results.json").read_text())
    assert results["provenance"]["tier"] == "C"
    for point in results["points"]:
        assert point["tier"] == "C"
        assert point["measurement"]["gpu"] == results["provenance"]["gpu"]


def test_what_most_wait_for_is_made_first(small: Finished):
    """One job at a time: all tables, all results, then what is of all targets, and beside it the page of each."""
    orders = ("tables/*/metrics.csv", "results/*_results.json", "results/claims.json")
    orders = (*orders, "reports/INDEX.md", "reports/[mr]*.md", "report.html")
    made = [[path.stat().st_mtime_ns for path in small.outputs.glob(one)] for one in orders]
    assert [len(times) for times in made] == [2, 2, 1, 1, 2, 1]
    assert all(max(some) < min(later) for some, later in itertools.pairwise(made))


def test_advice_is_made_of_what_was_recorded_and_live_of_the_points(project):
    recording = ("source=recorded", f"recording={ROOT / 'recordings/h200/0.7.2/decode'}")
    done = project.run("advise", "--config", *recording)
    (record,) = project.outputs.parent.glob("*/results/advice.json")
    advice = Advice.model_validate_json(record.read_text())
    assert advice.tier == "C" and any(shape.outcome == "winner" for shape in advice.shapes)
    assert (record.parents[1] / "reports/advice.html").is_file(), done.stdout + done.stderr
    said = commands(project, "advise")
    assert "ncuflow advise --points" in said and "decode/" in said


def test_environment_says_what_is_missing_where_nothing_can_be_measured(project):
    """No compiler, no torch, no GPU: the page is about this machine, beside the one of the recording."""
    project.run("environment", *RECORDED, "machine=this-machine")
    page = (project.outputs.parent / "this-machine/reports/environment.md").read_text()
    assert "## Preflight" in page and "| torch | " in page and "recording `" not in page
    recorded = (project.outputs / "reports/environment.md").read_text()
    assert f"recording `{location.name(DEFAULT)}`" in recorded
    assert {p.name for p in (project.outputs / "reports").iterdir()} == {"environment.md"}
    assert not (project.outputs / "tables").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [("figures", "draw_all"), pytest.param("pages", "command", marks=pytest.mark.exhaustive)],
)
def test_a_page_whose_figures_fail_is_not_kept_and_the_other_way_round(changed, module, name):
    """Also when what fails has written its files before."""
    fails = f"""

import functools

whole = {name}


@functools.wraps(whole)
def {name}(*given, **more):
    whole(*given, **more)
    raise RuntimeError("all is written")
"""
    with (changed.folder / f"ncuflow/pages/markdown/{module}.py").open("a") as file:
        file.write(fails)
    done = changed.run("rmsnorm", *SMALL, check=False)
    assert done.returncode != 0
    assert "all is written" in done.stdout + done.stderr
    assert not (changed.outputs / "reports/rmsnorm.md").exists()
    assert not list((changed.outputs / "figures").glob("rmsnorm-*.svg"))


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("recording=nowhere", "nowhere: no recording here"),
        (
            'timing={"run": 5}',
            "config: timing.run: there is no setting 'run'; there are: repeats, runs, ",
        ),
        ("sweep=smoky", "config: sweep: there is no sweep 'smoky'; sweeps has smoke, compare, "),
        ("outputs=a$(touch${IFS}x)", "is not a path of letters, digits"),
        (f"recording={'x' * 300}", "File name too long"),
        ('ncu={"sections": ["X; touch Y"]}', "'X; touch Y' is not the identifier of a section"),
        ('targets=["decode", "decod"]', "unknown kernel target 'decod'; there are: activation, "),
        ('jit=["ropes"]', "jit: no target has a module ropes; there are: prefill_fa2"),
        ('targets=["jit"]', "unknown kernel target 'jit'; there are: activation, "),
    ],
)
def test_a_wrong_setting_is_named(setting, named):
    """As the workflow takes it, without Snakemake around it."""
    config = copy.deepcopy(CONFIG) | {"source": "recorded"}
    update_config(config, settings.typed(parse_config([setting])))
    with pytest.raises((ValueError, OSError)) as refused:
        resolve(settings.validated(config))
    assert named in str(refused.value)


def test_a_wrong_setting_is_one_line_of_snakemake(project):
    done = project.run("-n", "all", "--config", "source=recorded", "sauce=live", check=False)
    assert done.returncode != 0
    (line,) = said(done)
    assert line.startswith("error: config: sauce: there is no setting 'sauce'; there are: source, ")


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of a run but the two with which Snakemake begins: which settings it has read."""
    begins = ("Using workflow specific profile ", "Config file ")
    return [
        line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(begins)
    ]


def test_of_a_damaged_recording_one_line_is_said(project):
    damaged = shutil.copytree(ROOT / "recordings/h200/0.6.14/gdn", project.folder / "damaged")
    (damaged / "environment.json").write_text("{}")
    done = project.run("rmsnorm", *RECORDED, f"recording={damaged.name}", check=False)
    assert done.returncode != 0
    assert said(done) == ["error: damaged/environment.json: does not match the manifest's sha256"]
    assert not (project.folder / "outputs").exists()


def test_one_target_makes_its_own_files_alone_and_needs_no_home_folder(project, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nowhere")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    done = project.run("rmsnorm", *RECORDED)
    assert said(done)[0].startswith("[ 1/4] ") and "/proc/nowhere" not in done.stdout + done.stderr
    (made,) = project.folder.glob("outputs/recorded-*")
    assert [p.name for p in (made / "reports").iterdir()] == ["rmsnorm.md"]
    assert [p.name for p in (made / "tables").iterdir()] == ["rmsnorm"]
    assert list(project.folder.glob("outputs/.cache/matplotlib/*"))
    planned = project.run("-n", "--config", "source=live", "machine=a100", "--", "rmsnorm")
    note = "note: the home folder cannot be written: caches are in outputs/.cache\n"
    assert planned.stderr.count(note) == 1


def test_a_folder_that_cannot_be_locked_is_one_line(project):
    (project.folder / ".snakemake/ncuflow.lock").mkdir(parents=True)
    done = project.run("rmsnorm", *RECORDED, check=False)
    assert done.returncode != 0 and "/ncuflow.lock: Is a directory\n" in done.stderr
    assert "Errno" not in done.stderr and not (project.folder / "outputs").exists()


def test_numbers_inside_a_setting_of_the_command_line_are_numbers(project):
    chosen = ("source=live", "machine=a100", "sweep=compare", 'targets=["decode"]')
    runs = 'timing={"runs": 3, "repeats": 30, "exclusive_host": true}'
    planned = project.planned("all", "--config", *chosen, runs)
    assert planned.count("time_again") == 2 * planned.count("time") > 0
    batches = 'sweeps={"compare": {"decode": [{"batch": [3, 5]}]}}'
    assert project.planned("all", "--config", *chosen, batches).count("build") > 0


def commands(project: Pipeline, target: str, **config: Any) -> str:
    """What a live run would start."""
    found = asked(project.folder, target, {"source": "live", "machine": "a100"} | config)["jobs"]
    return re.sub(" +", " ", "\n".join(job["command"] or "" for job in found))


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ([], "ncuflow lock --slot --"),
        pytest.param(["--resources", "gpu=8"], "ncuflow lock --", marks=pytest.mark.exhaustive),
    ],
)
def test_two_timed_jobs_start_together_where_they_share_a_gpu(project, given, how):
    chosen = ("--config", "source=live", "machine=a100")
    done = project.run("-n", "-p", *chosen, *given, "--", "decode")
    said = re.sub(" +", " ", done.stdout + done.stderr)
    assert said.count(how) == said.count("ncuflow lock ") > 0
    assert re.search(r"--mode time .* --pairs \S+/pairs.json --pairs-out \S+/pairs.jsonl ", said)


def test_what_is_timed_has_its_host_alone_where_a_setting_says_so(project):
    said = commands(project, "decode", timing={"exclusive_host": True})
    assert said.count("ncuflow lock --exclusive-host --") == said.count("ncuflow lock ") > 0


def test_points_of_several_gpus_are_timed_with_all_of_them_and_nothing_else(project):
    said = commands(project, "allreduce", sweep="ranks", plan_for="H100")
    two, four = (said.count(f"ncuflow lock --gpus {n} --") for n in (2, 4))
    assert min(two, four) > 0 and said.count("ncuflow lock ") == two + four
    assert "ncuflow nsys" not in said and "ncuflow ncu " not in said


@pytest.mark.exhaustive
def test_lanes_of_a_snakemake_whose_resources_are_plain_numbers(project):
    (project.folder / "older").write_text(
        'kept, workflow.global_resources = workflow.global_resources, {"lane": 4}\n'
        'include: "Snakefile"\n'
        "workflow.global_resources = kept\n"
    )
    chosen = ("--config", "source=live", "machine=a100")
    done = project.run("-s", "older", "-n", "-p", *chosen, "--", "decode")
    assert "ncuflow lock --slot --" in re.sub(" +", " ", done.stdout + done.stderr)


@pytest.mark.exhaustive
def test_a_job_of_a_cluster_runs_as_its_executor_starts_it(project, monkeypatch):
    """It has no cores, and starts Snakemake again on a node; a dry run does neither."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/cluster"), prepend=os.pathsep)
    table = f"outputs/recorded-{location.name(DEFAULT)}/tables/merge_state/timing.csv"
    project.run(table, "--workflow-profile", "profiles/slurm", *RECORDED)
    assert (project.folder / table).exists()


@pytest.mark.parametrize(
    "file", ["timing.jsonl.xz", "sweep.ncu-rep.xz", "sweep.json", "points.json"]
)
def test_a_recording_without_a_file_of_its_manifest_is_named(tmp_path, file):
    recording = shutil.copytree(ROOT / "recordings/h200/0.6.18/baseline", tmp_path / "r")
    (lost,) = recording.glob(f"decode/*/{file}")
    lost.unlink()
    with pytest.raises(ValueError, match=f"{file}: missing, though the manifest lists it"):
        recorded(recording)


@pytest.mark.parametrize("text", ["[]", "{", '{"name": "x", "targets": {}}'])
def test_a_manifest_that_is_none_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json: not (a manifest|JSON)"):
        recorded(tmp_path)


@pytest.mark.parametrize(
    ("rule", "config", "needs"),
    [
        ("predict", "base=recordings/h200/0.6.18/baseline", "base=recordings/A head=recordings/B"),
        pytest.param(
            "jit", "source=recorded", "source=live", marks=pytest.mark.exhaustive
        ),  # only a GPU makes it
    ],
)
def test_a_rule_without_what_it_needs_says_so(project, rule, config, needs):
    done = project.run(rule, "--config", config, check=False)
    assert done.returncode != 0 and f"error: {rule} needs --config {needs}" in done.stderr


def test_live_without_a_gpu_is_one_clear_line(project, monkeypatch):
    fake_gpus.no_driver(monkeypatch, project.folder)
    done = project.run("-n", "all", "--config", "source=live", check=False)
    assert done.returncode != 0
    assert "no NVIDIA GPU is visible" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_of_a_gpu_that_is_not_here_says_what_it_leaves_out(project, monkeypatch):
    fake_gpus.no_driver(monkeypatch, project.folder)
    config = ("source=live", "plan_for=5090", "targets=[prefill]")
    done = project.run("-n", "all", "--config", *config, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: planned for 5090, which is not here: points of prefill " in done.stderr
    assert "left out: trtllm-gen needs compute capability 10.x, this GPU has 12.0" in done.stderr
    assert "outputs/5090/captures/prefill/b" in done.stdout
    assert not (project.folder / "outputs/5090").exists()


def test_a_secret_of_the_environment_is_nowhere_in_the_outputs(finished):
    for path in some(finished.outputs.rglob("*")):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_no_path_of_this_machine_is_in_the_outputs(finished):
    home = str(finished.folder).encode()
    for folder in ("reports", "results", "tables", "figures"):
        for path in some((finished.outputs / folder).rglob("*")):
            if path.is_file():
                assert home not in path.read_bytes(), path


def test_snakemakes_report_holds_pages_figures_and_tables(changed, tmp_path):
    path = tmp_path / "report.zip"
    changed.run(*SMALL, "--report", str(path))
    with zipfile.ZipFile(path) as packed:
        names = {name.rpartition("/")[2] for name in packed.namelist()}
        text = packed.read("report/report.html").decode()
    held = {"INDEX.md", "rmsnorm.md", "rmsnorm-roofline.svg", "measurements.csv", "report.html"}
    assert held <= names
    for said in ("Figures", "Pages", "Tables", "each dot is a point that was measured"):
        assert said in text


def test_json_is_strict(finished):
    for path in some(finished.outputs.rglob("*.json")):
        json.loads(
            path.read_text(), parse_constant=lambda name, at=path: pytest.fail(f"{name} in {at}")
        )


def test_every_sweep_names_known_targets():
    assert set(CONFIG["deep"]) <= set(CONFIG["sweeps"])
    for blocks in [*CONFIG["sweeps"].values(), *CONFIG["deep"].values()]:
        assert set(blocks) <= set(known())


def test_what_an_earlier_run_left_is_on_no_page_of_this_one(changed):
    """Results of other targets, and the JIT measurement, lie beside those of this run."""
    results, reports = changed.outputs / "results", changed.outputs / "reports"
    (results / "jit_analysis.json").write_text('{"jit.md": "of another run"}')
    changed.run("all", *RECORDED, 'targets=["merge_state"]')
    assert {"rmsnorm_results.json", "jit_analysis.json"} <= {p.name for p in results.iterdir()}
    index = (reports / "INDEX.md").read_text()
    assert (
        "(merge_state.md)" in index and "(rmsnorm.md)" not in index and "jit_analysis" not in index
    )
    for page in ("INDEX", "analysis", "final-report", "environment"):
        text = (reports / f"{page}.md").read_text()
        assert "rmsnorm/" not in text and "jit.md" not in text
    summary = json.loads((results / "claims_summary.json").read_text())
    assert list(summary["noise"]) == ["merge_state"]
    for record in json.loads((results / "claims.json").read_text()):
        points = {entry["point"].split("/")[0] for entry in record["points"] if entry["point"]}
        assert points <= {"merge_state", "jit"}, record["id"]


def test_evidence_of_another_gpu_than_its_environment_says_is_refused(tmp_path):
    spoilt = copy_project(tmp_path, [name for name in COPIED if name != "recordings"])
    recording = spoilt.folder / DEFAULT.relative_to(ROOT)
    shutil.copytree(DEFAULT, recording)
    environment = recording / "environment.json"
    for path in (environment, recording / "manifest.json"):
        path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA A100-SXM4-40GB"))
    manifest = json.loads((recording / "manifest.json").read_text())
    changed = sealed(manifest | {"files": checksums(recording)})
    (recording / "manifest.json").write_text(json.dumps(changed))
    done = spoilt.run("rmsnorm", *RECORDED, check=False)
    assert done.returncode != 0
    (log,) = spoilt.folder.glob("outputs/*/logs/findings-rmsnorm.log")
    assert "is of NVIDIA H200, but environment.json is of NVIDIA A100-SXM4-40GB" in log.read_text()


def test_what_a_shell_would_run_in_the_path_of_a_recording_is_not_run(tmp_path):
    """Nor does the space in the project's own path part a command's words."""
    (tmp_path / "a b").mkdir()
    project = copy_project(tmp_path / "a b")
    odd = project.folder / "a$(pwd>PWNED)"
    odd.symlink_to(ROOT / "recordings/h200/0.6.18/baseline")
    project.run("rmsnorm", *RECORDED, f"recording={odd.name}")
    assert (project.outputs / "reports/rmsnorm.md").exists()
    assert not list(project.folder.glob("**/PWNED"))


def test_what_a_shell_would_run_in_the_name_of_a_recording_is_not_run(project):
    folder = shutil.copytree(ROOT / "recordings/h200/0.6.18/baseline", project.folder / "odd")
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content | {"name": "x$(touch PWNED)"}))
    done = project.run("rmsnorm", *RECORDED, "recording=odd", check=False)
    assert done.returncode != 0
    assert "odd/manifest.json: not a manifest (name: name 'x$(touch PWNED)'" in done.stderr
    assert not list(project.folder.glob("**/PWNED"))


def test_a_target_in_a_folder_of_the_users_own_is_planned(project):
    own = project.folder / "kernels of ours"
    own.mkdir()
    text = (ROOT / "targets/rmsnorm.py").read_text().replace('name="rmsnorm"', 'name="ours"')
    (own / "ours.py").write_text(text.replace("        jit=", "        jit=() and "))
    (project.folder / "mine.yaml").write_text(json.dumps({
        "source": "live", "machine": "fake", "targets": ["ours"], "target_folders": [own.name],
        "sweeps": {"mine": {"ours": [{"rows": [1, 2]}]}}, "sweep": "mine", "deep": {},
    }))  # fmt: skip
    project.run("all", "--until", "plan", "--configfile", "mine.yaml")
    (points,) = project.outputs.glob("captures/ours/*/points.json")
    ids = [point["id"] for point in json.loads(points.read_text())]
    assert ids == [f"ours/rmsnorm_R{rows}_D4096_f16" for rows in (1, 2)]
