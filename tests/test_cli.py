"""The command line: how a command is found, and how each of them ends."""

import errno
import gzip
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from command import ncuflow, ran
from conftest import ROOT, run_python, some

from ncuflow import __version__, cli
from ncuflow.cli import (
    COMMANDS,
    PARTS,
    RENAMED,
    RULES,
    SHELLS,
    USER,
    dispatch,
    named,
    ticking,
)
from ncuflow.format import Sheet, in_column, in_one_unit
from ncuflow.gpu.nvml import NoGpuError
from ncuflow.io import CommandError, replacing, status_line
from ncuflow.verbs import run as workflow

pytestmark = pytest.mark.usefixtures("read_once")

ROOMS = ("ncuflow", "targets", "parsers")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("all", "-j1 -- all"),
        ("decode rope -- -j2 --config a=b", "-j2 --config a=b -- decode rope"),
        ("all -- --cores 4", "--cores 4 -- all"),
        ("all -- --workflow-profile slurm", "--workflow-profile slurm -- all"),
        ("all -- --jobs=4", "--jobs=4 -- all"),
        ("-- --list-target-rules", "-j1 --list-target-rules"),
        ("", "-j1"),
    ],
)
def test_what_follows_the_dashes_is_an_option_of_snakemake(monkeypatch, words, expected):
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    assert workflow.arguments(words.split()) == expected.split()


def test_a_profile_of_the_environment_says_how_many_jobs_run(monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "mine")
    assert workflow.arguments(["all"]) == ["--", "all"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([*name.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: ncuflow {name} ")


def listed(option: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The commands that `ncuflow --help` or `--help-all` lists."""
    assert dispatch([option]) == 0
    said = capsys.readouterr().out.split("\nread a report:\n")[1]
    return [line.split()[0] for line in said.splitlines() if line.startswith("  ")]


def test_what_only_rules_call_is_what_they_and_other_commands_call_and_no_user_does() -> None:
    """A command is told from a verb by who calls it: rules, or modules of the package."""
    rules = [ROOT / "Snakefile", *ROOT.glob("workflows/*.smk")]
    modules = [path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py")]
    texts = [path.read_text() for path in (*rules, *modules)]
    starts = r'-m ncuflow ([a-z][a-z-]+)|"-m",\s*"ncuflow",\s*"([a-z-]+)"|\bjobs\.run\(\s*log\[0\],\s*"([a-z-]+)"'
    found = {name for text in texts for names in re.findall(starts, text) for name in names if name}
    assert found - USER.keys() == RULES.keys()


def test_the_list_of_commands_imports_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("--help", capsys) == [*USER]
    assert listed("--help-all", capsys) == [*USER, *(name.split()[0] for name in PARTS), *RULES]
    code = "import sys; from ncuflow.cli import dispatch; dispatch(['--help']); "
    code += "sys.exit(str(sorted(m for m in sys.modules if m.startswith('ncuflow.'))))"
    assert run_python(code)[1] == "['ncuflow.cli', 'ncuflow.io']\n"


@pytest.mark.parametrize("verb", ["try", "upgrade"])
def test_what_an_experiment_takes_is_said_without_what_it_runs(verb: str) -> None:
    code = f"import sys; from ncuflow.cli import dispatch; dispatch(['{verb}', '--help']); "
    code += "print(*sys.modules, file=sys.stderr)"
    loaded = run_python(code)[1].split()
    heavy = ("pydantic", "ncuflow.record", "ncuflow.experiments", "ncuflow.pages", "ncuflow.sweep")
    assert "ncuflow.verbs.options" in loaded and {*heavy} & {*loaded} == set()


def test_the_list_is_short_and_a_part_belongs_to_a_verb_of_it() -> None:
    assert len(USER) <= 18
    for name in PARTS:
        verb, part = name.split()
        assert verb in USER and named([verb, part, "x"]) == (name, ["x"])
    assert named(["check", "x"]) == ("check", ["x"])


@pytest.mark.parametrize("name", RENAMED)
def test_an_older_name_goes_on_and_names_the_new_one(name, capsys):
    now, _ = named(RENAMED[name].split())
    assert now in COMMANDS and name not in COMMANDS
    assert dispatch([name, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == f"note: {name} is now `ncuflow {RENAMED[name]}`\n"
    assert said.out.startswith(f"usage: ncuflow {now} ")


USAGE = [
    ("shwo x.ncu-rep", "error: no command 'shwo'; did you mean 'show'?\n`ncuflow --help` lists them\n"),
    ("try . --target rmsnorm --effect 0", "'0' is no change between 0.1% and 50%"),
    ("try . --target rmsnorm --effect x", "'x' is no change"),
    ("try . --target rmsnorm --limit 0", "for --limit. It has to be above 0"),
    ("try . --target rmsnorm --jobs 0", "for --jobs. It has to be above 0"),
    ("try . --target rmsnorm --blocks {}", "not a list of one object or more"),
    ("""try . --target rmsnorm --blocks '[{"m": 1}]'""", "unknown parameter 'm'"),
    ("try . --target rmsnorm --points none.json", "none.json: no such file"),
    ("try . --target decoed", "unknown kernel target 'decoed'"),
    ("search rmsnorm --knobs tiles", "rmsnorm has no tunable 'tiles'; it has: threads"),
    ("search kv_append", "kv_append declares no tunables"),
    ("search decoed", "unknown kernel target 'decoed'"),
    ("search rmsnorm --budget 0", "'0' is no number of variants, or of seconds"),
    ("search rmsnorm --budget 1.5", "'1.5' is no number of variants"),
    ("search rmsnorm --patience 0", "for --patience. It has to be above 0"),
    ("""search rmsnorm --blocks '[{"m": 1}]'""", "unknown parameter 'm'"),
    ("upgrade", "--to VERSION and --workload or --model are needed"),
    ("upgrade --to 0.7.1 --model gpt-7", "--model 'gpt-7': choose from llama-3-8b"),
    ("upgrade --again x.json --to 1", "--again is of what was measured"),
    ("export trace --results x --out x", " needs --"),
    ("export junit --out x", " needs --"),
    ("export bencher --out x", " needs --"),
    ("export script nothing/B1 --out x", "unknown kernel target 'nothing'"),
    ("export script decode/B1_nowhere --out x", "no sweep and no results have decode/B1_nowhere"),
    ("""export script decode --blocks '[{"batch": [1, 2]}]' --out x""", "2 points: a script is of one"),
    ("""export script decode --blocks '[{"batches": 1}]' --out x""", "unknown parameter 'batches'"),
    ("""export script decode/B1 --blocks '[{"batch": 1}]' --out x""", "--blocks goes with a target"),
    ("check gate.yaml", "requirements need --results"),
    ("check gate.yaml --results x --threshold 0.1", "--threshold"),
    ("check sanity .", "no results here"),
    ("targets --gpu B2", "no GPU 'B2'; there are "),
    ("targets --gpu A100 --sweep x", "there is no sweep 'x'; there are: "),
    ("targets --gpu ''", "no GPU ''; there are "),
    ("targets --gpu 99.9", "no GPU '99.9'; there are "),
    ("targets --sweep default", "it needs --gpu"),
    ("targets --gpu A100 --sweep ''", "there is no sweep ''; there are: "),
    ("mcp --root nowhere", "nowhere: no such folder"),
    *((words, "--help` says what it takes") for words in (
        "compare", "compare a", "check a b", "compare a b --alpha 2", "check c --threshold nan", "check c --threshold inf",
        "compare a b --floor inf", "export junit --results a --out b --threshold inf",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), USAGE)
def test_bad_usage_says_what_is_wrong_and_writes_nothing(words, said, tmp_path):
    (tmp_path / "gate.yaml").write_text("[]")
    done = ncuflow(*shlex.split(words), cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gate.yaml"]


def test_help_of_a_command_and_the_version():
    assert ncuflow("help", "check", "claims").stdout == ncuflow("check", "claims", "--help").stdout
    assert ncuflow("help").stdout == ncuflow("--help").stdout
    assert ncuflow("--version").stdout == f"ncuflow {__version__}\n"


def test_commands_are_the_only_way_in() -> None:
    """No module is run as a program of its own, and none has a parser of its own."""
    for path in some(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py")):
        text = path.read_text()
        assert '__main__"' not in text, path
        assert path.name == "cli.py" or "ArgumentParser(" not in text, path


# --- how a command ends -----------------------------------------------------------------------


def ended(command: str, stdout: Any = subprocess.PIPE) -> tuple[int, str]:
    """(exit status, stderr) of a command that is this expression."""
    code = f"import os, sys; from ncuflow.cli import ended; sys.exit(ended(lambda: {command} or 0))"
    return run_python(code, stdout)


def fails(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (lambda: fails(CommandError("no", 5)), 5, "no"),
        (lambda: Path("none/at/all").read_bytes(), 2, "none/at/all: No such file or directory"),
        (lambda: Path("parsers").rename("README.md"), 2, "README.md: Not a directory"),
        (lambda: os.read(-1, 1), 2, "Bad file descriptor"),
        (lambda: Path("none/at\nall\x1b[31m").read_bytes(), 2, "none/at all?[31m: No such file or directory"),
        (lambda: fails(OSError("a library that does not load")), 2, "a library that does not load"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_line(command, status, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.ended(command) == status
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_full_disk_is_one_line_and_a_closed_pipe_is_quiet() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert ended("print('x')", full) == (2, "error: No space left on device\n")
    ours, theirs = os.pipe()
    os.close(ours)
    for text in ("'x'", "'x' * 100000"):
        assert ended(f"print({text})", theirs) == (128 + signal.SIGPIPE, "")
    os.close(theirs)


def test_a_command_that_is_terminated_ends_as_if_interrupted() -> None:
    """So that what it holds is released on the way out."""
    code = "import os, signal; from ncuflow import cli; "
    code += "cli.dispatch = lambda words: os.kill(os.getpid(), signal.SIGTERM); cli.main([])"
    assert run_python(code) == (128 + signal.SIGINT, "error: interrupted\n")


def test_files_and_pipes_get_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    head = '"ID","Kernel Name","gpu__time_duration.sum"'
    path.write_text(f'{head}\n"","","us"\n"0","größe","5.5"\n', encoding="utf-8")
    command = [sys.executable, "-m", "ncuflow", "show", str(path)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    said = subprocess.run(command, capture_output=True, check=True, env=env).stdout.decode("utf-8")
    assert "größe" in said and " µs " in said


def test_a_trace_of_torch_is_told_as_one_and_the_verb_that_reads_it(tmp_path: Path) -> None:
    packed = tmp_path / "run.json.gz"
    measured = b'{"metadata": {"times": [%s]}, ' % b", ".join([b"0.001"] * 5000)  # of a harness
    packed.write_bytes(gzip.compress(measured + b'"schemaVersion": 1, "traceEvents": []}'))
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    report = ROOT / "recordings/h200/0.7.2/default/merge_state/deep/deep.ncu-rep.xz"
    for words in (["show"], ["explain"], ["view"], ["compare", report]):
        said = ncuflow(*words, packed)
        assert said.returncode == 2
        assert f"a trace of torch's profiler: `ncuflow step {packed}` reads it" in said.stderr
        assert "`ncuflow step" not in ncuflow(*words, tmp_path / "other.json").stderr
    assert "`ncuflow explain` reads it" in ncuflow("step", report).stderr


def test_of_two_sides_the_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    there, file = ROOT / "recordings/h200/0.7.2/decode", ROOT / "README.md"
    for sides in ((there, tmp_path / "nix"), (tmp_path / "nix", there), (file, tmp_path / "nix")):
        said = ncuflow("compare", *sides)
        assert said.stderr == f"error: {tmp_path / 'nix'}: no such file or folder\n"
    said = ncuflow("compare", there, file).stderr
    assert said == f"error: {file}: a file, and {there} is a folder: two of a kind are compared\n"


@pytest.mark.parametrize("missing", [0, errno.ENOSPC, errno.ENOENT])
def test_what_cannot_be_written_is_named_as_it_was_asked_for(tmp_path: Path, missing: int) -> None:
    out = tmp_path / "x.json"
    with pytest.raises(OSError) as refused, replacing(out) as temporary:
        if missing:
            raise OSError(missing, "no", str(temporary) if missing == errno.ENOENT else None)
        temporary.unlink()
    assert refused.value.filename == str(out) and not list(tmp_path.iterdir())


def test_a_change_is_looked_at_before_a_gpu_and_what_works_without_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without() -> NoReturn:
        raise NoGpuError("no NVIDIA GPU: the driver lists none")

    monkeypatch.setattr("ncuflow.gpu.nvml.visible", without)
    monkeypatch.setattr("ncuflow.experiments.variant.package_folder", lambda name: None)
    target = ["--target", "rmsnorm"]
    for words in (target, []):  # before what else is missing
        said = ncuflow("try", tmp_path / "x.patch", *words)
        assert said.stderr == f"error: {tmp_path / 'x.patch'}: no such file\n"
    (tmp_path / "x.patch").write_text("no patch", encoding="utf-8")
    assert f"{tmp_path / 'x.patch'}: " in ncuflow("try", tmp_path / "x.patch", *target).stderr
    assert "`ncuflow try --from RECORD` works without" in ncuflow("try", tmp_path, *target).stderr
    said = ncuflow("advise", "rmsnorm")
    assert "`ncuflow advise --recorded` works without a GPU" in said.stderr
    monkeypatch.setattr("ncuflow.experiments.variant.package_folder", lambda name: tmp_path)
    assert "the driver lists none; `ncuflow try" in ncuflow("try", tmp_path, *target).stderr


DEEP = ROOT / "recordings/h200/0.7.2/default/decode/deep/deep.ncu-rep.xz"
MERGE = ROOT / "recordings/h200/0.7.2/default/merge_state/deep/deep.ncu-rep.xz"


def test_several_files_and_standard_input_are_read_one_after_the_other(monkeypatch, tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    for path, kernels in ((one, "abc"), (two, "d")):
        rows = [f'"{n}","{name}","5.5"\n' for n, name in enumerate(kernels)]
        path.write_text('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n' + "".join(rows))

    def piped(verb, content, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
        return ncuflow(verb, "-", *words)

    for verb in ("show", "explain"):
        said = piped(verb, two.read_bytes(), "--json").stdout
        alone = [json.loads(ncuflow(verb, path, "--json").stdout) for path in (one, two)]
        assert json.loads(ncuflow(verb, one, two, "--json").stdout) == alone
        assert "scratch" not in said and "-#0" in said
        assert said.replace("-#0", f"{two}#0").count(str(two))
        text = ncuflow(verb, one, two).stdout
        assert text == "\n".join(ncuflow(verb, path).stdout for path in (one, two))
        assert piped(verb, b"no report").stderr.startswith("error: -: no kernel in it")
    packed = piped("show", MERGE.read_bytes(), "--json").stdout
    assert json.loads(packed)["report"]["kernels"] > 0
    rows = ncuflow("show", one, two, "--format", "csv").stdout.splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(one)] * 3 + [str(two)]


def test_a_table_for_a_pull_request_is_one_and_holds_no_markup_of_a_file() -> None:
    for verb in (["show", DEEP], ["explain", DEEP, MERGE], ["explain", DEEP, "--all"]):
        lines = ncuflow(*verb, "--format", "md").stdout.splitlines()
        table = [line for line in lines if line.startswith("|")]
        assert len(table) >= 4 and {line.count(" | ") for line in table} == {table[0].count(" | ")}
        assert lines[-len(table) :] == table and set(table[1]) == set("| -")
    sheet = Sheet(("name", "none"), [["a|`b<i>", ""], ["sm 90 %", ""]], head="*x*")
    assert sheet.markdown() == "`*x*`\n\n| name |\n| --- |\n| `` a\\|`b<i> `` |\n| sm 90 % |\n"


def test_json_has_one_form_and_a_kernel_is_named_as_ncu_takes_it() -> None:
    for words in (["show", DEEP], ["explain", DEEP], ["compare", DEEP, DEEP], ["targets"]):
        assert ncuflow(*words, "--format", "json").stdout == ncuflow(*words, "--json").stdout
    for kernel, index in (("regex:^BatchP.*l$", 2), ("regex:Merge|nothing", 1), ("BatchPre", 2)):
        found = json.loads(ncuflow("explain", DEEP, "--kernel", kernel, "--json").stdout)
        assert found["subject"]["index"] == index, kernel
    for kernel, said in (("regex:(", "no regular expression"), ("batchpre", "has no kernel")):
        done = ncuflow("explain", DEEP, "--kernel", kernel)
        assert done.returncode == 2 and said in done.stderr


@pytest.mark.parametrize("width", ["60", "100", "160"])
def test_lines_are_as_wide_as_the_terminal(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = [
        *ncuflow("explain", DEEP).stdout.splitlines(),
        *ncuflow("show", DEEP).stdout.splitlines(),
    ]
    longest = max(len(line) for line in lines if "ncuflow trace" not in line)
    assert longest <= max(int(width), 94) and longest > int(width) - 12


def test_a_column_of_times_has_one_unit_and_three_digits() -> None:
    assert in_one_unit([12.3456, 1.5, None]) == ("µs", ["12.3", "1.50", "–"])
    assert in_one_unit([2345.6, 0.8]) == ("µs", ["2 346", "0.800"])  # ms from ten of them
    assert in_one_unit([23456.0, 800.0]) == ("ms", ["23.5", "0.800"])
    assert in_one_unit([]) == ("µs", [])
    assert in_column([3.0, 28.0, None]) == ["3", "28", "–"]  # whole numbers are counts
    assert in_column([0.0, 28.0, 0.05, 5.43e-8]) == ["0", "28.0", "0.0500", "5.43e-8"]
    head, *rows = ncuflow("show", DEEP).stdout.split("\n\n")[1].splitlines()
    assert "  µs  " in head and not any("µs" in row for row in rows)


def test_what_is_written_is_named_with_its_size(tmp_path, monkeypatch) -> None:
    page, size = tmp_path / "a.html", r", [\d.]+ kB\n"
    done = ncuflow("view", MERGE, "--out", page)
    assert done.stdout == "" and re.fullmatch(f"wrote {page}{size}", done.stderr)
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(f"wrote deep.html{size}", ncuflow("view", MERGE, cwd=tmp_path).stderr)
    for verb, *words in (("show", MERGE), ("compare", DEEP, DEEP), ("preflight",)):
        out = tmp_path / f"{verb}.json"
        assert f"wrote {out}, " in ncuflow(verb, *words, "--json", "--out", out).stderr
    assert ncuflow("show", MERGE).stderr == ""


def test_a_terminal_sees_how_long_it_takes_and_nothing_is_left_of_it(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("ncuflow.cli.PATIENCE_S", 0.01)
    said = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with ticking("advise"):
            status_line.at = "h200: decode"
            time.sleep(0.1)
        said[stream.isatty()] = stream.getvalue()
    assert "\r\x1b[Kadvise h200: decode: 0 s" in said[True] and said[True].endswith("\r\x1b[K")
    assert said[False] == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_and_their_options(shell: str, tmp_path: Path) -> None:
    script = ncuflow("--completion", shell).stdout
    assert [name for name in USER if name not in script] == []
    assert all(word in script for word in ("claims", "kernel", "json"))
    if shell == "bash":
        (tmp_path / "c").write_text(script, encoding="utf-8")
        ask = 'source c; COMP_WORDS=(ncuflow expl); COMP_CWORD=1; _ncuflow; echo "${COMPREPLY[@]}"'
        assert ran("bash", "-c", ask, cwd=tmp_path).stdout == "explain\n"
    assert "choose from bash, zsh, fish" in ncuflow("--completion", "csh").stderr
