"""The pipeline as a user runs it: what is made, what is made again, and what a wrong setting says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, SECRET, Pipeline

RECORDED = ("--config", "source=recorded")
CONFIG = yaml.safe_load((ROOT / "config/config.yaml").read_text())
TARGETS = [name for name in CONFIG["targets"] if name != "jit"]
PAGES = ["INDEX", "environment", "analysis", "kernel-dev-guide", "final-report", "claims"]


@pytest.fixture
def changed(finished: Pipeline, tmp_path):
    """A copy of the finished project, with its outputs and Snakemake's records, to be changed."""
    shutil.copytree(finished.folder, tmp_path / "p", symlinks=True)
    return Pipeline(tmp_path / "p")


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


def test_a_second_run_does_nothing(finished):
    done = finished.run("all", *RECORDED)
    assert "Nothing to be done" in done.stdout + done.stderr


def test_one_target_makes_its_own_files_alone(project):
    project.run("decode", *RECORDED)
    made = {p.name for p in (project.outputs / "reports").iterdir()}
    assert made == {"decode.md"}
    assert {p.name for p in (project.outputs / "tables").iterdir()} == {"decode"}


def test_environment_needs_no_kernel_target(project):
    project.run("environment", *RECORDED)
    assert {p.name for p in (project.outputs / "reports").iterdir()} == {"environment.md"}
    assert not (project.outputs / "tables").exists()


def _append(path, text):
    path.write_text(path.read_text() + text)


def test_an_edited_page_template_renders_the_pages_over_all_targets_alone(changed):
    _append(changed.folder / "templates/final-report.md.j2", "\nOne line more.\n")
    assert changed.planned("all", *RECORDED) == ["pages", "all"]


def test_an_edited_target_template_renders_the_target_pages_alone(changed):
    _append(changed.folder / "templates/target.md.j2", "\nOne line more.\n")
    assert set(changed.planned("all", *RECORDED)) == {"target_page", "all"}


def test_an_edited_parser_reads_every_target_again(changed):
    _append(changed.folder / "parsers/nsys.py", "\n# a comment more\n")
    planned = changed.planned("all", *RECORDED)
    assert planned.count("tables") == len(TARGETS)
    assert "environment_info" not in planned


def test_an_edited_figure_draws_no_table_again(changed):
    _append(changed.folder / "reporting/figures.py", "\n# a comment more\n")
    planned = changed.planned("all", *RECORDED)
    assert planned.count("target_page") == len(TARGETS)
    assert set(planned) == {"target_page", "pages", "all"}


@pytest.mark.parametrize("module", ["figures", "pages"])
def test_a_page_whose_figures_fail_is_not_kept_and_the_other_way_round(changed, module):
    """Also when what fails has written its files before."""
    path = changed.folder / f"reporting/{module}.py"
    whole = path.read_text()
    assert "    main_guard(main)\n" in whole
    path.write_text(whole.replace("main_guard(main)", "main_guard(lambda: main() or 3)"))
    done = changed.run("decode", *RECORDED, check=False)
    assert done.returncode != 0
    assert not (changed.outputs / "reports/decode.md").exists()
    assert not list((changed.outputs / "figures").glob("decode-*.svg"))


@pytest.mark.parametrize(
    ("setting", "named"),
    [("sauce=live", "sauce"), ("batch_size=0", "batch_size"), ("recording=nowhere", "nowhere")],
)
def test_a_wrong_setting_is_named(project, setting, named):
    done = project.run("-n", "all", "--config", "source=recorded", setting, check=False)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def test_live_without_a_gpu_is_one_clear_line(project):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    done = project.run("-n", "all", "--config", "source=live", check=False)
    assert done.returncode != 0
    assert "no NVIDIA GPU is visible" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_secret_of_the_environment_is_nowhere_in_the_outputs(finished):
    for path in finished.outputs.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_no_path_of_this_machine_is_in_the_outputs(finished):
    home = str(finished.folder).encode()
    for folder in ("reports", "results", "tables", "figures"):
        for path in (finished.outputs / folder).rglob("*"):
            if path.is_file():
                assert home not in path.read_bytes(), path


def test_json_is_strict(finished):
    for path in finished.outputs.rglob("*.json"):
        json.loads(
            path.read_text(), parse_constant=lambda name, at=path: pytest.fail(f"{name} in {at}")
        )


def test_default_config_fits_the_schema_and_every_key_is_described():
    import jsonschema

    schema = yaml.safe_load((ROOT / "config/schema.yaml").read_text())
    jsonschema.validate(CONFIG, schema)
    assert set(schema["properties"]) - set(CONFIG) <= {"base", "head"}
    assert schema["additionalProperties"] is False


def test_every_sweep_names_known_targets_and_parameters():
    sys.path.insert(0, str(ROOT))
    from targets import load, names, sweep

    assert {*CONFIG["deep"], *CONFIG["jit"]} <= set(CONFIG["sweeps"])
    for blocks in [*CONFIG["sweeps"].values(), *CONFIG["deep"].values()]:
        assert set(blocks) <= set(names())
        for target, found in blocks.items():
            assert sweep.points(load(target), found)


def test_the_schema_knows_the_jit_modules_that_the_probe_knows():
    from capture.jitprobe import MODULES

    schema = yaml.safe_load((ROOT / "config/schema.yaml").read_text())
    known = schema["properties"]["jit"]["additionalProperties"]["items"]["enum"]
    assert set(known) == set(MODULES)


def test_the_smoke_sweep_is_small_as_a_whole():
    """Three process starts a target are what it costs; deep reports and the JIT would double it."""
    from targets import load, sweep

    smoke = CONFIG["sweeps"]["smoke"]
    assert len(smoke) <= 3
    assert sum(len(sweep.points(load(name), blocks)) for name, blocks in smoke.items()) <= 6
    assert "smoke" not in {**CONFIG["deep"], **CONFIG["jit"]}


def test_lint_is_clean(project):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint", *RECORDED], cwd=project.folder, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
