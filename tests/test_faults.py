"""What dies, and what a rerun makes of it: no wrong number, no half file taken for a whole one.

The live pipeline on a fake machine (`fake_machine.py`), and the recorded one where no capture is
involved. docs/faults.md has the outcomes in words.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import dag
import fake_gpus
import fake_machine
import pytest
from command import ncuflow
from conftest import ROOT, SMALL, Finished, Pipeline
from fake_machine import TABLE, Machine, make

from ncuflow.flow import checksums

POINTS = [f"toy/n{n}" for n in range(1, 8)]
FEW = POINTS[:2]
GATED = "toy/n5"
Row = dict[str, Any]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make(tmp_path)


@pytest.fixture
def few(tmp_path: Path) -> Machine:
    """A machine of one batch of two points, where a second batch adds nothing but time."""
    return make(tmp_path, points=len(FEW))


@pytest.fixture
def measured(undisturbed: Machine, tmp_path: Path) -> Machine:
    """A machine that has measured everything before."""
    return undisturbed.copied(tmp_path / "machine")


@pytest.fixture
def gated(machine: Machine) -> Iterator[tuple[Machine, subprocess.Popen[str], int]]:
    """A run that stands still in mid-batch: machine, Snakemake, id of the measuring process."""
    machine.plan("gate", GATED, once=True)
    snakemake = machine.start(TABLE)
    pid = machine.wait_at_gate(snakemake)
    yield machine, snakemake, pid
    if snakemake.poll() is None:
        snakemake.kill()


def batch_of(machine: Machine, point: str) -> Path:
    """Folder of the batch whose plan holds a point."""
    plans = machine.captures.glob("*/points.json")
    (found,) = (path.parent for path in plans if f'"{point}"' in path.read_text())
    return found


def reports(machine: Machine) -> dict[str, int]:
    """When each batch's report was written."""
    found = machine.captures.glob("b*/sweep.ncu-rep")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def text(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def timed(machine: Machine) -> list[str]:
    """What was measured; the host's own times are real, and differ."""
    columns = ("point", "status", "cold_us", "hot_us")
    return text([{name: row[name] for name in columns} for row in machine.table("timing")])


def same_as(machine: Machine, whole: Machine) -> None:
    assert timed(machine) == timed(whole)
    for name in ("kernels", "metrics", "lost"):
        assert text(machine.table(name)) == text(whole.table(name)), name


def finishes(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = machine.run(*arguments or (TABLE,))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def completes(machine: Machine, whole: Machine) -> None:
    """A plain rerun finishes, and its tables are those of the undisturbed run."""
    finishes(machine)
    same_as(machine, whole)


def said(machine: Machine) -> str:
    return (machine.folder / "run.log").read_text()


def points_in(machine: Machine, table: str) -> set[str]:
    return {row["point"] for row in machine.table(table)}


def statuses(machine: Machine) -> dict[str, str]:
    return {row["point"]: row["status"] for row in machine.table("timing")}


# --- kill -9 ----------------------------------------------------------------------------------


def test_a_killed_job_is_tried_again_and_its_half_file_is_not_taken(gated, undisturbed):
    machine, snakemake, pid = gated
    timing = batch_of(machine, GATED) / "timing.jsonl"
    assert not timing.exists()
    os.kill(pid, signal.SIGKILL)
    assert snakemake.wait() == 0, said(machine)
    assert "once more: time toy" in said(machine)
    same_as(machine, undisturbed)


@pytest.mark.exhaustive
def test_a_job_killed_twice_costs_its_batch_alone_and_the_next_run_tries_again(
    machine, undisturbed
):
    machine.plan("gate", GATED)
    snakemake = machine.start(TABLE)
    for _ in range(2):  # the first try and its one retry
        os.kill(machine.wait_at_gate(snakemake), signal.SIGKILL)
    assert snakemake.wait() == 1
    assert "lost: time of toy: the process was ended by SIGKILL" in said(machine)
    records, plan = machine.records(), batch_of(machine, GATED) / "points.json"
    lost = {point for point, record in records.items() if record["status"] == "lost"}
    assert GATED in lost and lost <= {point["id"] for point in json.loads(plan.read_text())}
    assert points_in(machine, "kernels") == set(POINTS) - lost
    machine.forget("gate", GATED)
    before = reports(machine)
    del before[plan.parent.name]
    completes(machine, undisturbed)
    assert before.items() <= reports(machine).items()


def test_beside_a_run_no_other_starts_and_after_snakemake_was_killed_the_same_command_goes_on(
    gated, undisturbed
):
    machine, first, pid = gated
    other = machine.run(TABLE)
    why = f"process {first.pid} is at work in this folder: wait for it, and do not unlock"
    errors = [line for line in other.stderr.splitlines() if line.startswith("error: ")]
    assert other.returncode != 0 and errors == [f"error: {why}"] and first.poll() is None
    first.kill()
    first.wait()
    os.kill(pid, signal.SIGKILL)
    assert list((machine.folder / ".snakemake/locks").iterdir())
    assert "at work" not in finishes(machine).stderr
    same_as(machine, undisturbed)


@pytest.mark.exhaustive
def test_an_interrupted_build_is_gone_on_with(machine, undisturbed):
    toy = machine.folder / "targets/toy.py"
    text = toy.read_text()
    toy.write_text(
        text.replace("generate=lambda p: []", 'generate=lambda p: plans.follow("build") or []')
    )
    machine.plan("gate", "build")
    with (machine.folder / "run.log").open("w") as log:
        snakemake = subprocess.Popen(
            machine.command(TABLE), cwd=machine.folder, env=machine.environment, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    machine.wait_at_gate(snakemake)
    os.killpg(snakemake.pid, signal.SIGINT)  # as a terminal does
    assert snakemake.wait() != 0
    assert "the same command goes on from there" in said(machine)
    assert not list(machine.captures.parent.glob("build*.json*"))
    machine.forget("gate", "build")
    toy.write_text(text)
    completes(machine, undisturbed)


@pytest.mark.exhaustive
def test_counters_refused_in_mid_run_cost_the_counters_alone(machine, undisturbed):
    machine.plan("refuse-ncu")
    done = machine.run(TABLE)
    (lost,) = (line for line in done.stderr.splitlines() if line.startswith("lost: "))
    assert done.returncode == 1 and "put `options nvidia" in lost and "once more" not in done.stderr
    assert timed(machine) == timed(undisturbed) and not machine.table("kernels")
    assert points_in(machine, "lost") == set(POINTS)
    machine.forget("refuse-ncu")
    completes(machine, undisturbed)


def test_a_broken_tool_costs_its_own_numbers_alone_and_every_page_says_so(few):
    machine = few
    fake_machine.trace_as_well(machine, early=True)
    fake_machine.index_source(machine)
    machine.plan("unfit-nsys")
    everything = ("all", "--config", "strict=false")  # counters of other kernels
    done = machine.run(*everything)
    why = "nsys 2024.2.3.38: made no report of a tiny kernel: Importer error status: 3"
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == f"lost: nsys of toy: {why}"
    assert "once more" not in done.stderr  # the preflight knew
    pages = {p.stem: p.read_text() for p in machine.folder.glob("outputs/fake/reports/*.md")}
    assert {"INDEX", "analysis", "claims", "final-report", "kernel-dev-guide", "toy"} <= set(pages)
    assert [name for name, page in pages.items() if why not in page] == []
    assert points_in(machine, "kernels") == set(FEW)
    machine.forget("unfit-nsys")
    finishes(machine)
    assert points_in(machine, "timeline") == set(FEW)


@pytest.mark.exhaustive
def test_a_preflight_whose_ncu_makes_no_report_says_so_and_nothing_is_profiled(machine):
    machine.plan("unfit-ncu")
    done = machine.run(TABLE, "outputs/fake/captures/environment.json")
    assert done.returncode == 1 and "made no report of a tiny kernel" in done.stderr
    assert not machine.table("kernels") and {*statuses(machine).values()} == {"ok"}


@pytest.mark.exhaustive
def test_a_measurement_that_outlives_snakemake_keeps_its_gpu(gated, undisturbed):
    machine, snakemake, pid = gated
    fake_gpus.write(machine.folder, fake_machine.GPUS[0])
    snakemake.kill()
    snakemake.wait()
    lock = [sys.executable, "-m", "ncuflow", "lock", "--timeout", "0", "--", "true"]
    run = {"cwd": machine.folder, "env": machine.environment, "capture_output": True, "text": True}
    # the orphan still measures: nobody else gets its GPU
    assert "no GPU of 1 became free" in subprocess.run(lock, check=False, **run).stderr
    os.kill(pid, signal.SIGKILL)
    completes(machine, undisturbed)  # and after it the lock is gone with its holder


@pytest.mark.exhaustive
def test_leftovers_of_a_killed_holder_do_not_block_the_next(machine, undisturbed):
    locks = machine.folder / "locks"
    locks.mkdir(mode=0o700)
    (locks / "GPU-aaaa.lock.slot0").write_text("")
    scratch = locks / "tmp-GPU-aaaa.slot0"
    scratch.mkdir()
    (scratch / "nsight-compute-lock").write_text("stale")
    completes(machine, undisturbed)
    assert not scratch.exists()


# --- a lost context, a lost GPU ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "bad", "early"),
    [
        (FEW, ["toy/n1"], True),
        pytest.param(POINTS, ["toy/n1", "toy/n5"], True, marks=pytest.mark.exhaustive),
        pytest.param(POINTS, ["toy/n1", "toy/n5", "toy/n6"], False, marks=pytest.mark.exhaustive),
    ],
)
def test_points_that_break_their_process_cost_themselves_alone(
    tmp_path, undisturbed, points, bad, early
):
    """Also where the profiled process is the first to launch them."""
    machine = make(tmp_path, points=len(points))
    fake_machine.trace_as_well(machine, early)
    for point in bad:
        machine.plan("break", point)
    assert "once more" not in finishes(machine).stderr
    rows = {row["point"]: row for row in machine.table("timing")}
    whole = {row["point"]: row for row in undisturbed.table("timing")}
    for point in points:
        expected = ("error", None) if point in bad else ("ok", whole[point]["cold_us"])
        assert (rows[point]["status"], rows[point]["cold_us"]) == expected
        assert ("illegal memory access" in (rows[point]["reason"] or "")) == (point in bad)
    for table in ("kernels", "timeline"):
        assert points_in(machine, table) == set(points) - set(bad), table
    assert not list(machine.captures.glob("b*/timing.jsonl.*"))


@pytest.mark.exhaustive
def test_of_a_point_that_is_wrong_no_table_has_what_came_before_its_timing(machine):
    """A trace that is taken beside the build compares nothing: its timing does."""
    fake_machine.trace_as_well(machine, early=True)
    machine.plan("wrong", GATED)
    finishes(machine)
    assert machine.records()[GATED]["status"] == "wrong"
    traced = json.loads((batch_of(machine, GATED) / "trace.json").read_text())
    assert traced["kernels"][GATED] == 1 and traced["lost"] == []
    for table in ("timeline", "ranges", "kernels"):
        assert points_in(machine, table) == set(POINTS) - {GATED}


@pytest.mark.exhaustive
def test_a_gpu_lost_for_good_costs_what_was_not_visited_before_and_no_number_is_made_up(machine):
    machine.plan("lose", GATED)
    done = machine.run(TABLE)
    assert done.returncode == 1 and "lost: time of toy: " in done.stderr
    rows = {row["point"]: row for row in machine.table("timing")}
    batch = {p["id"] for p in json.loads((batch_of(machine, GATED) / "points.json").read_text())}
    after = {point for point in batch if rows[point]["status"] == "lost"}
    assert after, "the point must not be the last of its round"
    assert rows[GATED]["status"] == "error"
    assert {rows[point]["status"] for point in set(POINTS) - after - {GATED}} == {"ok"}
    for point in (GATED, *after):
        assert rows[point]["cold_us"] is None and rows[point]["hot_us"] is None
        assert "illegal memory access" in rows[point]["reason"]
    assert points_in(machine, "kernels") == set(POINTS) - {GATED, *after}


# --- a wrong result ---------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_point_that_was_wrong_once_is_not_profiled_unchecked(machine):
    machine.plan("wrong", GATED, once=True)  # the profiled process would not see it any more
    finishes(machine)
    assert machine.records()[GATED]["status"] == "wrong"
    batch = json.loads((batch_of(machine, GATED) / "sweep.json").read_text())
    assert "--unchecked" in batch["command"] and GATED not in batch["points"]
    assert points_in(machine, "kernels") == set(POINTS) - {GATED}


def test_a_deep_report_has_no_timing_and_checks_its_points_itself(machine):
    machine.configure(lambda config: config["deep"].update(default={"toy": [{"n": [5, 6]}]}))
    machine.plan("wrong", GATED)
    finishes(machine, f"{machine.captures.relative_to(machine.folder)}/deep/deep.json")
    record = json.loads((machine.captures / "deep/deep.json").read_text())
    assert record["kernels"] == {"toy/n6": 1} and "--unchecked" not in record["command"]
    (lost,) = record["lost"]
    assert lost["point"] == GATED and lost["reason"].startswith("wrong: ")


# --- a batch without a good point -------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_batch_without_a_good_point_has_nothing_to_profile_and_the_others_stand(tmp_path):
    machine = make(tmp_path, points=2, batch_size=1)
    machine.plan("wrong", "toy/n1")
    finishes(machine)
    folder = batch_of(machine, "toy/n1")
    record = json.loads((folder / "sweep.json").read_text())
    assert record["notes"] == ["no point was ok"] and record["kernels"] == {}
    (lost,) = machine.table("lost")
    assert lost["point"] == "toy/n1" and lost["reason"].startswith("wrong: ")
    assert statuses(machine) == {"toy/n1": "wrong", "toy/n2": "ok"}
    assert points_in(machine, "kernels") == {"toy/n2"}


# --- edited code ------------------------------------------------------------------------------


def test_of_an_edit_what_a_capture_executes_is_captured_again_and_a_label_is_not(measured):
    files = ["ncuflow/evidence/scrub.py", "ncuflow/run/ncu.py"]
    label = "parsers/catalogue.yaml|label: Duration|label: Time"
    _, reruns = dag.graph(measured.folder, TABLE, {}, (*files, label), measured.environment)
    assert set(reruns.pop(label)) == {"tables"}
    for file, rules in reruns.items():
        assert "profile" in rules and "time" not in rules, file


def test_another_counter_of_the_registry_is_captured(measured):
    """It is a parameter, which a process reads once."""
    path = measured.folder / "parsers/catalogue.yaml"
    counter = "smsp__inst_executed.sum"
    path.write_text(path.read_text().replace(counter, f"{counter}.x"))
    done = measured.run("-n", TABLE)
    planned = {line.split()[1] for line in done.stdout.splitlines() if "rule " in line}
    assert "profile:" in planned and "time:" not in planned, done.stdout + done.stderr


# --- ncu hangs --------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_hanging_ncu_is_ended_and_the_points_it_did_not_reach_are_named(few):
    machine = few
    machine.configure(lambda config: config["ncu"].update(timeout_s=2))
    machine.plan("hang-ncu")
    finishes(machine)
    profiled, lost = points_in(machine, "kernels"), points_in(machine, "lost")
    assert profiled | lost == set(FEW) and profiled and not profiled & lost
    assert {*statuses(machine).values()} == {"ok"}


# --- a full disk ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "ncuflow-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_no_half_table(project: Pipeline, small_disk: Path, small: Finished):
    settings = ("merge_state", "--config", "source=recorded")
    done = project.run(*settings, f"outputs={small_disk / 'outputs'}", check=False)
    assert done.returncode != 0
    assert "failed: read reports merge_state: " in done.stderr and "do: make room" in done.stderr
    left = [path for path in small_disk.rglob("*") if path.is_file() and path.suffix != ".log"]
    assert not left
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    project.run(*settings, f"outputs={small_disk / 'outputs'}")
    tables = sorted((small_disk / "outputs").rglob("*.csv"))
    assert tables
    for path in tables:
        whole = small.folder / "outputs" / path.relative_to(small_disk / "outputs")
        assert path.read_bytes() == whole.read_bytes()


@pytest.mark.exhaustive
def test_a_full_disk_for_temporary_files_is_named(project, small_disk, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(small_disk))
    done = project.run("decode", "--config", "source=recorded", check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stdout + done.stderr
    assert not list(project.outputs.glob("tables/*/*"))
    assert not list(small_disk.iterdir())


# --- damaged outputs --------------------------------------------------------------------------

RECORDED = ("all", *SMALL)


@pytest.fixture
def remade(small: Finished, tmp_path: Path) -> Pipeline:
    """A copy of a project that has run, to be damaged."""
    return small.copied(tmp_path / "p")


def outputs(pipeline: Finished) -> dict[str, bytes]:
    """Content of everything that a run makes but logs."""
    files = {str(path.relative_to(pipeline.outputs)): path for path in pipeline.outputs.rglob("*")}
    kept = {name: path for name, path in files.items() if not name.startswith("logs/")}
    return {name: path.read_bytes() for name, path in kept.items() if path.is_file()}


def cut_short(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_whatever_of_the_outputs_is_damaged_a_rerun_makes_it_again(
    remade: Pipeline, small: Finished, first: int
):
    """Every second one, in turn lost and cut short."""
    whole = outputs(small)
    noted = [name for name in whole if name != checksums.NOTE]
    for name, damage in zip(noted[first::2], cycle([Path.unlink, cut_short]), strict=False):
        damage(remade.outputs / name)
    assert outputs(remade) != whole
    remade.run(*RECORDED)
    assert outputs(remade) == whole
    assert "Nothing to be done" in remade.run(*RECORDED).stderr


@pytest.mark.exhaustive
def test_a_damaged_page_of_everything_is_made_again(remade: Pipeline, small: Finished):
    """Nothing is made of it, and nothing else is damaged."""
    os.truncate(remade.outputs / "report.html", 10)
    remade.run(*RECORDED)
    assert outputs(remade) == outputs(small)


@pytest.mark.exhaustive
def test_after_a_failed_job_over_existing_outputs_a_rerun_makes_them(
    remade: Pipeline, small: Finished
):
    """Snakemake deletes the tables of the failed job, while the pages that were made of them still stand."""
    module = remade.folder / "parsers/tables.py"
    text = module.read_text()
    module.write_text(text + "\n\ndef collect(*given):\n    raise OSError('out of memory')\n")
    failed = remade.run("merge_state", *RECORDED[1:], check=False)
    assert failed.returncode != 0 and not list(remade.outputs.glob("tables/merge_state/kernels.*"))
    module.write_text(text)
    os.utime(module, (0, 0))  # as it was before: the edit itself is no reason to run anything
    remade.run(*RECORDED)
    assert outputs(remade) == outputs(small)


@pytest.mark.exhaustive
def test_what_is_damaged_of_a_comparison_is_made_again(two_sides: Pipeline):
    """Its figures are one output, a folder: of a comparison, nobody knows beforehand how many there are."""
    settings = ("compare", "--config", "source=recorded", "recording=recordings/one")
    settings += ("base=recordings/one", "head=recordings/two")
    two_sides.run(*settings)
    made = two_sides.folder / "outputs/compare/one-vs-two"
    page, figure = made / "report.html", made / "figures/compare.svg"
    files = {path: path.read_bytes() for path in (page, figure)}
    os.truncate(page, 10)
    figure.unlink()
    two_sides.run(*settings)
    assert {path: path.read_bytes() for path in files} == files


OUTPUTS = [re.compile(r"outputs/[^/]+/(tables/.+/kernels\.csv|captures/.+|reports/\w+\.md)")]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Outputs with a table and a page, in the folder that is worked in."""
    monkeypatch.chdir(tmp_path)
    for name in ("tables/rmsnorm/kernels.csv", "reports/rmsnorm.md"):
        path = Path("outputs/machine", name)
        path.parent.mkdir(parents=True)
        path.write_text("whole", encoding="utf-8")
    return Path("outputs/machine")


def test_a_note_from_elsewhere_removes_nothing_but_outputs_of_rules(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, capture = kept / "notes.txt", kept / "captures/environment.json"
    linked, outside = kept / "tables/linked", Path("victim").absolute()
    (outside / "decode").mkdir(parents=True)
    linked.symlink_to(outside, target_is_directory=True)
    capture.parent.mkdir()
    victims = [own, capture, outside / "decode/kernels.csv", Path("Snakefile")]
    for victim in victims:
        victim.write_text("precious")
    table, long = kept / "tables/rmsnorm/kernels.csv", f"tables/{'x' * 300}/kernels.csv"
    names = [str(victim.absolute()) for victim in victims]
    names += [os.path.relpath(victim, kept) for victim in victims]
    names += ["tables/linked/decode/kernels.csv", "tables/rmsnorm/../../notes.txt", "\0", long]
    names.append("tables/rmsnorm/kernels.csv")
    (kept / "made.json").write_text(json.dumps(dict.fromkeys(names, "of another file")))
    checksums.remove_damaged("outputs", OUTPUTS)
    assert capsys.readouterr().err.count("changed since it was made") == 1 and not table.exists()
    assert [victim.read_text() for victim in victims] == ["precious"] * len(victims)


def test_a_note_of_another_shape_is_forgotten(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "reports/rmsnorm.md"
    for shape in ([], 5, {page: None}, {page: [1]}, {page: [1, 2, "a"]}, {"\ud800": 1}):
        (kept / "made.json").write_text(json.dumps(shape))
        assert checksums._noted(kept) == {}, shape
        checksums.remove_damaged("outputs", OUTPUTS)
    assert (kept / page).exists()
    checksums.note("outputs", OUTPUTS)
    checksums.remove_damaged("outputs", OUTPUTS)
    assert (kept / page).exists() and capsys.readouterr().err == ""
    (kept / page).write_text("cut short")
    checksums.remove_damaged("outputs", OUTPUTS)
    assert not (kept / page).exists()
    assert f"{page}: changed since" in capsys.readouterr().err


def test_a_dry_run_removes_nothing(remade: Pipeline):
    page = remade.outputs / "reports/rmsnorm.md"
    page.write_text("cut short")
    remade.run("-n", *RECORDED)
    assert page.read_text() == "cut short"


# --- sharding ---------------------------------------------------------------------------------


def test_a_point_more_captures_its_batch_again_and_no_other(measured):
    before = reports(measured)
    measured.configure(lambda config: config["sweeps"]["default"]["toy"][0]["n"].append(9))
    finishes(measured)
    after = reports(measured)
    assert len(set(after) - set(before)) == 1
    assert before.items() <= after.items()
    assert points_in(measured, "timing") == {*POINTS, "toy/n9"}


# --- several runs, killed runs ------------------------------------------------------------------


def test_what_killed_processes_left_of_temporary_folders_goes(tmp_path):
    """Not what a process that lives works in, nor what is too new for its lock to be there yet."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    code = "import os, signal; from ncuflow.io import scratch\nwith scratch() as f: print(f, flush=True); {}"

    def start(then: str) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", code.format(then)], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return process, Path(process.stdout.readline().strip())

    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    (dead, left), (new, fresh), (alive, used) = start(kill), start(kill), start("input()")
    dead.wait(), new.wait()
    (left / "large").write_text("left")
    for folder in (left, used):
        os.utime(folder, (0, 0))
    third, own = start("pass")
    assert third.wait() == 0
    assert not left.exists() and not own.exists()
    assert fresh.exists() and used.exists()
    alive.communicate("\n")
    assert not used.exists()


# --- upgrades ---------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_after_an_upgrade_every_row_says_with_what_it_was_measured(machine):
    page = machine.folder / "outputs/fake/reports/toy.md"
    index = machine.folder / "outputs/fake/captures/source_index.json"
    index.parent.mkdir(parents=True)
    # it takes an installed FlashInfer
    index.write_text('{"version": null, "targets": {}, "environment": {}, "functions": {}}')
    machine.install("flashinfer_python", "0.6.18")
    finishes(machine)
    machine.install("flashinfer_python", "0.7.2")
    machine.configure(lambda config: config["sweeps"]["default"]["toy"][0]["n"].append(9))
    finishes(machine, "toy", "--config", "strict=false")
    made = json.loads((machine.folder / "outputs/fake/results/toy_results.json").read_text())
    assert made["provenance"]["mixed"] == ["flashinfer"]
    rows = {point["point"]: point["measurement"]["flashinfer_version"] for point in made["points"]}
    assert rows["toy/n9"] == "0.7.2"
    assert set(rows.values()) == {"0.6.18", "0.7.2"}
    origins = {(row["batch"], row["tool"]): row["ncu"] for row in machine.table("captures")}
    assert {ncu for (_, tool), ncu in origins.items() if tool == "sweep"} == {"2025.3.1.0"}
    assert {ncu for (_, tool), ncu in origins.items() if tool == "timing"} == {None}
    text = page.read_text()
    assert "FlashInfer 0.6.18 and 0.7.2" in text and "not all measured with one FlashInfer" in text
    assert "`n9` (FlashInfer 0.7.2" in text
    shown = [line for line in text.splitlines() if re.match(r"\| `n\d+`.* µs \|", line)]
    assert shown and all("(FlashInfer " in line for line in shown)
    side = machine.folder / "outputs/fake/results"
    refused = ncuflow("compare", side, side, "--out", machine.folder / "c.json")
    assert refused.returncode == 2
    assert refused.stderr.endswith("FlashInfer 0.6.18 and 0.7.2: measured apart, so not one side\n")


@pytest.mark.exhaustive
def test_the_preflight_looks_again_where_another_tool_is_here(machine):
    """Installing ncu takes "ncu missing" from the page; a run in which nothing changed does nothing."""
    ncu = machine.folder / "bin/ncu"
    ncu.rename(ncu.with_name("later"))
    info = machine.folder / "outputs/fake/results/environment_info.json"

    def looked() -> str:
        finishes(machine, "environment")
        (row,) = (r for r in json.loads(info.read_text())["findings"] if r["check"] == "ncu")
        return str(row["status"])

    assert looked() == "missing"
    ncu.with_name("later").rename(ncu)
    assert looked() == "ok"
    before = info.stat().st_mtime_ns
    assert looked() == "ok" and info.stat().st_mtime_ns == before
