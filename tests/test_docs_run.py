"""Every command that README and docs show runs as written, in a folder with the files that they name.

What needs a GPU is read as its command line is, and no further: the tests with the marker `gpu` run it.
"""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import ncuflow
from conftest import ROOT, Finished, Pipeline, some, some_by_default

from ncuflow.cli import COMMANDS, app, named

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMPARISON = "compare.json"
LIST = "--routine rmsnorm --batch_size 32 --hidden_size 4096\n"
# What a command stands for that is the reader's, and what it is here.
OURS = {
    "POINT": "decode/B32_L2048_H32_K8_D128_P16_f16_cc",
    "COLUMN": "time_cold_us",
    "<machine>": "h200",
    "outputs/compare/A-vs-B/results/compare.json": COMPARISON,
    "[--targets decode rope]": "--targets decode rope",
    "[--source-index source_index.json]": "",
    "../flashinfer/benchmarks/samples/sample_testlist.txt": "list.txt",
    "~/project": ".",
    "outputs/A/": "before/",
    "outputs/B/": "after/",
    "head=live": "head=live source=live machine=h100",  # what a machine with a GPU takes by itself
    "recordings/A": "recordings/h200/0.6.14/versions",
    "recordings/B": "recordings/h200/0.6.18/versions",
}
# What needs a GPU, or the target that a page has its reader write.
ELSEWHERE = re.compile(
    r".*page_append|try|build|launch|advise (?!--recorded)|upgrade (?!--again|bisect --recorded)|static --arch|step annotate"
)
# Programs of others, and what makes or unmakes a machine: their own tests, or nobody's, run them.
OTHERS = {
    "python3", "pip", "apt-get", "docker", "git", "mkdir", "case", "curl", "vllm", "ncu", "nsys",
    "pytest", "scripts/slurm-test",
    "python -m pytest", "python -m sglang.launch_server",
    "python benchmarks/mutants.py", "python benchmarks/interruptions.py",
}  # fmt: skip
# Snakemake with executors that are not of this project's environment.
CLUSTER = re.compile(r"--executor|--workflow-profile")


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def lines(path: Path) -> list[str]:
    """The commands of the blocks of a page, without comments, `.venv/bin/` and variables before them."""
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    text = re.sub(r"\\\n\s*", " ", "\n".join(blocks))
    told = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [re.sub(r"^(\w+=\S+ )+|^\.venv/bin/", "", line) for line in told if line]


ALL = [(path.stem, line) for path in DOCS for line in lines(path)]


def of(program: str) -> list[Any]:
    """Each once: a ninth of them by default, all at night."""
    return some_by_default([*{line: None for _, line in ALL if re.match(program, line)}], 9)


def test_a_program_that_a_page_starts_is_known_here() -> None:
    ours = re.compile(r"(python -m )?ncuflow |snakemake ")
    rest = [line for _, line in some(ALL) if not ours.match(line)]
    assert [line for line in rest if not line.startswith(tuple(OTHERS))] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, finished: Finished) -> Path:
    """Where a reader is who has a report, a trace, a patch, a list and results."""
    here = tmp_path_factory.mktemp("reader")
    report = lzma.decompress((ROOT / "tests/data/rmsnorm_set_full.ncu-rep.xz").read_bytes())
    for name in ("report", "before", "after", "baseline", "candidate"):
        (here / f"{name}.ncu-rep").write_bytes(report)
    engine = ROOT / "tests/data/engine"
    for name, source in {
        "trace.sqlite": "nsys-node.sqlite",
        "before.sqlite": "nsys-node.sqlite",
        "after.sqlite": "nsys-node.sqlite",
    }.items():
        (here / name).write_bytes(lzma.decompress((engine / f"{source}.xz").read_bytes()))
    trace = lzma.decompress((engine / "trace.json.xz").read_bytes())
    (here / "trace.json.gz").write_bytes(gzip.compress(trace, 1))
    (here / "list.txt").write_text(LIST)
    (here / "dump").mkdir()
    definition = {"name": "silu_and_mul_h14336", "axes": {"hidden": {"value": 14336}}}
    (here / "dump/a.json").write_text(json.dumps(definition))
    (gate,) = re.findall(r"```yaml\n(- points: \[.*?)```", page("ci"), re.DOTALL)
    (here / "gate.yaml").write_text(gate)
    for name in ("recordings", "claims"):
        (here / name).symlink_to(ROOT / name)
    for name in ("outputs/h200", "before", "after"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).symlink_to(finished.outputs)
    done = ncuflow("compare", "before", "after", "--format", "json", "--out", COMPARISON, cwd=here)
    assert done.returncode == 0, done.stderr
    return here


@pytest.mark.parametrize("line", of(r"(python -m )?ncuflow "))
def test_a_command_runs_as_written(folder: Path, line: str) -> None:
    for theirs, ours in OURS.items():
        line = line.replace(theirs, ours)
    words = shlex.split(line.split("ncuflow ", 1)[1])
    name, rest = named(words)
    if ELSEWHERE.match(" ".join(words)):
        module = importlib.import_module(COMMANDS[name][0])
        app(module, name).parse_args(rest, exit_on_error=False, print_error=False)
        return
    done = ncuflow(*words, cwd=folder)
    assert not done.stderr.startswith("error"), done.stderr
    assert done.returncode == 0 or (name == "check" and "do not hold" in done.stdout)


@pytest.mark.parametrize("line", of("snakemake "))
def test_a_rule_is_planned_as_written(project: Pipeline, line: str) -> None:
    if CLUSTER.search(line):
        pytest.skip("an executor that this environment does not have")
    for theirs, ours in OURS.items():
        line = line.replace(theirs, ours)
    if "mine.json" in line:
        (project.folder / "list.txt").write_text(LIST)
        assert not ncuflow(
            "workload", "list.txt", "--out", "mine.json", cwd=project.folder
        ).returncode
    done = project.run("-n", *shlex.split(line)[1:], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
