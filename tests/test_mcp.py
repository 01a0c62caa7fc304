"""Answers to programs: the server by its own client, from start to verdict, and which paths it takes."""

import asyncio
import json
import lzma
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from command import ncuflow
from conftest import ROOT

from ncuflow.cli import ended
from ncuflow.experiments import recorded
from ncuflow.experiments.record import ChangeRecord, Trial
from ncuflow.io import BadInput, CommandError
from ncuflow.mcp import answers, server
from ncuflow.mcp.root import Root

RECORDINGS = ROOT / "recordings"
REPORT = min(
    (RECORDINGS / "h200/0.7.2/default/merge_state").glob("b*/sweep.ncu-rep.xz")
).relative_to(RECORDINGS)
TRACE = str(REPORT.with_name("trace.sqlite.xz"))
DEEP = "h200/0.7.2/default/merge_state/deep/deep.ncu-rep.xz"
POINT = "merge_state/merge_state_S512_H32_D128_f16"
Call = Callable[..., Awaitable[Any]]


def served(session: Callable[[Any], Awaitable[None]], *words: str) -> None:
    """A session of the official client with `ncuflow mcp`, over standard input and output."""
    mcp = pytest.importorskip("mcp")
    command = [sys.executable, "-m", "ncuflow", "mcp", "--root", str(RECORDINGS), *words]

    async def whole() -> None:
        started = mcp.StdioServerParameters(command=command[0], args=command[1:], cwd=ROOT)
        async with mcp.Client(started, read_timeout_seconds=300) as client:
            await session(client)

    asyncio.run(whole())


async def answer(client: Any, tool: str, **asked: Any) -> dict[str, Any]:
    """The structured answer of a tool, which its declared schema describes (the client checks it)."""
    found = await client.call_tool(tool, asked)
    assert not found.is_error, found.content[0].text
    content: dict[str, Any] = found.structured_content
    assert content == json.loads(found.content[0].text)
    return content


async def refusal(client: Any, tool: str, **asked: Any) -> str:
    """The one line of a tool that cannot answer."""
    found = await client.call_tool(tool, asked)
    assert found.is_error and found.structured_content is None
    text: str = found.content[0].text
    assert "\n" not in text
    return text


def test_a_program_goes_from_the_targets_to_a_verdict() -> None:
    async def session(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.output_schema for tool in tools.values())
        assert not {"try", "advise"} & tools.keys() and "advice" in tools
        found = await answer(client, "list_targets")
        assert "merge_state" in [target["name"] for target in found["targets"]]
        listed = await answer(client, "list_points", target="merge_state", limit=2)
        assert len(listed["points"]) == 2
        assert listed["left_out"] == found["points"]["merge_state"] - 2

        explained = await answer(client, "explain", source=listed["points"][0])
        assert explained["limit"]["words"] and explained["subject"]["point"] == listed["points"][0]
        time = explained["time"]
        assert time["tier"] == "C" and time["unit"] == "µs"
        source, name = time["trace"].split()
        steps = (await answer(client, "trace", source=source, name=name))["steps"]
        assert [step["value"] for step in steps if step["name"] == name] == [time["value"]]

        sides = {"base": "h200/0.6.18/baseline", "head": "h200/0.6.18/planted-slow-downs"}
        verdict = await answer(client, "compare", **sides, limit=3)
        assert verdict["statistics"]["tests"] > 0 and verdict["left_out"] > 0
        slower = verdict["points"][0]
        assert slower["verdict"] == "slower" and slower["low"] > 0 and slower["causes"]
        assert slower["relative"] == pytest.approx(slower["head"] / slower["base"] - 1)
        column = verdict["columns"][f"metrics.{slower['metric']}"]
        assert column["unit"] == "µs" and column["tier"] == "C"
        back = {"source": slower["trace"], "name": column["metric"], "folder": sides["base"]}
        steps = (await answer(client, "trace", **back))["steps"]
        assert any(step["name"] == back["name"] and step["value"] for step in steps)

    served(session)


def test_a_report_is_shown_explained_and_quoted_by_the_line() -> None:
    async def session(client: Any) -> None:
        asked = {"report": str(REPORT), "metrics": ["dram_bytes_*", "tensor_int_*", "nothing"]}
        shown = await answer(client, "show", **asked, limit=2)
        whole = await answer(client, "show", **asked, limit=500)
        assert shown["kernels"] == whole["kernels"][:2] and whole["left_out"] == 0
        assert shown["left_out"] == len(whole["kernels"]) - 2 > 0
        first = shown["kernels"][0]
        # what no counter of this GPU tells is no number, and no zero
        assert {"dram_bytes_read", "dram_bytes_write"} <= first["metrics"].keys()
        assert first["metrics"].get("tensor_int_ops_peak_per_second") is None
        assert all(key.startswith(("dram_bytes_", "tensor_int_")) for key in first["metrics"])
        column = shown["columns"]["metrics.dram_bytes_read"]
        assert column["unit"] and column["tier"] == "C" and column["metric"] == "dram_bytes_read"
        asked = {"source": first["trace"].strip("'"), "name": column["metric"]}
        steps = (await answer(client, "trace", **asked))["steps"]
        assert steps[-1]["value"] == first["metrics"]["dram_bytes_read"]

        of_trace = await answer(client, "show", report=TRACE, limit=1)
        assert len(of_trace["launches"]) == 1 and of_trace["columns"]["duration_ns"]["unit"] == "ns"

        lines = await answer(client, "hot_lines", source=DEEP, limit=2)
        every = await answer(client, "explain", source=DEEP, limit=500)
        assert lines["lines"] == every["lines"][:2]
        assert lines["left_out"] == len(every["lines"]) - 2 > 0
        few = await answer(client, "explain", source=DEEP, limit=1)
        tables = (every[name] for name in ("stalls", "lines", "suggestions"))
        assert few["left_out"] == sum(len(rows) - 1 for rows in tables if rows) > 0

        tried = await answer(client, "opportunities", source=POINT, limit=1)
        own = await answer(client, "explain", source=POINT, limit=500)
        assert tried["suggestions"] == own["suggestions"][:1]
        assert tried["left_out"] == max(0, len(own["suggestions"]) - 1)

    served(session)


def test_what_cannot_be_answered_is_one_line() -> None:
    async def session(client: Any) -> None:
        for named in ("/etc/passwd", "../README.md", "h200/../../README.md"):
            for tool, key in (("show", "report"), ("explain", "source"), ("hot_lines", "source"),
                              ("opportunities", "source")):  # fmt: skip
                said = await refusal(client, tool, **{key: named})
                assert "only what lies below the served folder" in said, (tool, named)
            other = "h200/0.7.2/versions"
            for tool, words in (
                ("compare", {"base": named, "head": other}),
                ("compare", {"base": other, "head": named}),
                ("list_targets", {"folder": named}),
                ("list_points", {"target": "decode", "folder": named}),
                ("trace", {"source": f"{named}#0", "name": "duration_ns"}),
                ("trace", {"source": POINT, "name": "time_cold_us", "folder": named}),
                ("try", {"change": named, "target": "decode"}),
            ):
                assert "below the served" in await refusal(client, tool, **words), (tool, named)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for tool in tools.values():
            assert tool.input_schema["additionalProperties"] is False
        said = await refusal(client, "show", report=str(REPORT), metric=["dram_*"])
        assert "no argument 'metric'; there are: report, metrics, limit" in said
        for name in ("try", "advise"):
            assert not tools[name].annotations.read_only_hint and tools[name].output_schema
        assert "below the served" in await refusal(client, "advice", target="decode", folder="../x")
        assert "no such file" in await refusal(client, "show", report="none.ncu-rep")
        assert "no point" in await refusal(client, "explain", source=f"{POINT}_no")
        assert "unknown kernel target" in await refusal(client, "list_points", target="nothing")

    served(session, "--allow-run")  # the tools `try` and `advise` are there then alone


# --- without a server ------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A served folder, in which the process works, beside one that is not."""
    (tmp_path / "served").mkdir()
    (tmp_path / "secret").write_text("x", "utf-8")
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "served")
    return Root(Path.cwd())


@pytest.mark.parametrize(
    "named",
    ["", "/", "/etc/passwd", "..", "../secret", "a/../../secret", "a\0b", "a\ud800b", "a/.."],
)
def test_a_path_out_of_the_folder_is_refused(root: Root, named: str) -> None:
    with pytest.raises(BadInput, match="only what lies below the served folder") as error:
        root.inside(named)
    assert "\n" not in str(error.value)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(root: Root) -> None:
    folder = root.folder / "results"
    folder.mkdir()
    (root.folder / "own").write_text("x", "utf-8")
    (folder / "fine").symlink_to(root.folder / "own")
    (folder / "circle").symlink_to("circle")
    assert root.inside("results") == Path("results") and root.inside("results/fine")
    (root.folder / "out").symlink_to(root.folder.parent / "secret")
    (folder / "rope_results.json").symlink_to(root.folder.parent / "secret")
    for named in ("out", "results", "results/rope_results.json"):
        with pytest.raises(BadInput, match="a link that leads out"):
            root.inside(named)
    (root.folder / "folder").symlink_to(root.folder.parent / "beside")
    with pytest.raises(BadInput, match="a link that leads out"):
        root.inside("folder/new")


def test_outputs_that_nobody_named_are_held_to_the_same(root: Root) -> None:
    """A point is looked for below outputs/ of the folder."""
    (root.folder / "outputs").symlink_to(root.folder.parent / "beside")
    for ask in (
        lambda: answers.explain(root, POINT, None, None, 5),
        lambda: answers.trace(root, POINT, "time_cold_us", None, 5),
    ):
        with pytest.raises(BadInput, match="a link that leads out"):
            ask()


def test_what_lies_above_the_folder_is_not_looked_at(tmp_path, monkeypatch):
    """A report of a recording is explained with what its target suggests, unless its recording is not served."""
    monkeypatch.chdir((RECORDINGS / REPORT).parent)
    seen: list[Path] = []
    monkeypatch.setattr("ncuflow.findings.locate.is_recording", seen.append)
    found = answers.explain(Root(Path.cwd()), REPORT.name, "0", None, 5)
    assert found.limit is not None and seen == []


def test_a_trial_is_the_record_that_the_command_writes(root, monkeypatch):
    trial = Trial(
        change=ChangeRecord(name="x.patch", files=["a"], elsewhere=[]), target="decode", effect=0.02,
        alpha=0.05, date="2026-01-01T00:00:00Z", flashinfer="0.7.2", outcome="not compiled", reason="no",
    )  # fmt: skip
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        out = next(word for word in command if word.startswith("--json="))
        if len(commands) == 1:
            Path(out.removeprefix("--json=")).write_text(trial.model_dump_json(), "utf-8")
        return subprocess.CompletedProcess(command, 1, "", "usage: …\nerror: no NVIDIA GPU\n")

    monkeypatch.setattr(answers.subprocess, "run", fake)
    blocks = [{"batch": 4}]
    assert answers.try_change(root, "x.patch", "decode", blocks, "3%") == trial
    assert commands[0][1:5] == ["-m", "ncuflow", "try", "./x.patch"]
    assert {"--target=decode", "--effect=3%", '--blocks=[{"batch": 4}]'} <= {*commands[0]}
    with pytest.raises(CommandError, match=r"^no NVIDIA GPU$"):
        answers.try_change(root, "-x.patch", "decode", None, "2%")
    assert commands[1][4] == "./-x.patch"  # a path, and no option


def test_recorded_advice_has_the_choices_that_were_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    root = Root(RECORDINGS)
    found = answers.advice(root, "decode", "h200/0.7.2/decode", 3)
    whole = recorded.advise(RECORDINGS / "h200/0.7.2/decode", ["decode"], {}, "time_cold_us", 0.02)
    assert [one.shape for one in found.shapes] == [one.shape for one in whole.shapes[:3]]
    assert found.rules == whole.rules and found.shapes[2].cause == whole.shapes[2].cause
    choices = [one for shape in found.shapes for one in shape.choices]
    assert choices and all(one.time_us is not None for one in choices)
    # three shapes further on, and a default that was not recorded
    assert found.left_out == len(whole.shapes) - 3 + 1
    with pytest.raises(CommandError, match="unknown kernel target 'decoed'"):
        answers.advice(root, "decoed", None, 3)


def test_a_written_advice_is_read_and_a_race_is_the_commands(tmp_path, monkeypatch):
    whole = recorded.advise(RECORDINGS / "h200/0.7.2/decode", ["decode"], {}, "time_cold_us", 0.02)
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(whole.model_dump_json(), encoding="utf-8")
    found = answers.advice(Root(tmp_path), "decode", "a.json", 50)
    assert len(found.shapes) == len(whole.shapes) and found.rules == whole.rules
    assert answers.advice(Root(tmp_path), "prefill", "a.json", 50).shapes == []
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        out = next(word for word in command if word.startswith("--out="))
        Path(out.removeprefix("--out=")).write_text(whole.model_dump_json(), encoding="utf-8")
        return subprocess.CompletedProcess(command, 3, "", "")

    monkeypatch.setattr(answers.subprocess, "run", fake)
    raced = answers.advise(Root(tmp_path), "decode", [{"batch": 4}], "3%", 2)
    assert [one.shape for one in raced.shapes] == [one.shape for one in whole.shapes[:2]]
    assert {"advise", "--target=decode", "--effect=3%", '--blocks=[{"batch": 4}]'} <= {*commands[0]}


def test_without_the_package_it_says_what_to_install(root, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert ended(lambda: bool(server.made(root))) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the package mcp is missing: pip install")


def test_nsys_is_started_for_nobody_unless_runs_are_allowed(root: Root) -> None:
    (root.folder / "a.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report" + bytes(9))
    with lzma.open(root.folder / "b.nsys-rep.xz", "wb") as packed:
        packed.write(b"NVIDIA Tegra Profiler Report")
    for name in ("a.nsys-rep", "b.nsys-rep.xz"):
        with pytest.raises(BadInput, match="nsys reads it, which --allow-run allows"):
            answers.show(root, name)
        assert Root(root.folder, runs=True).inside(name) == Path(name)


def test_one_signal_ends_it() -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}  # fmt: skip
    command = [sys.executable, "-m", "ncuflow", "mcp", "--root", str(RECORDINGS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as child:
        print(json.dumps(asked), file=child.stdin, flush=True)
        assert '"ncuflow"' in child.stdout.readline()
        child.terminate()
        try:
            assert child.wait(30) == 128 + signal.SIGTERM
        finally:
            child.kill()


def test_a_folder_that_is_not_there_is_bad_usage():
    done = ncuflow("mcp", "--root", "nowhere")
    assert done.returncode == 2 and "nowhere: no such folder" in done.stderr
