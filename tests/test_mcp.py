"""Answers to programs: the server by its own client, from start to verdict, and which paths it takes."""

import asyncio
import json
import lzma
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from ncuflow import mcp
from ncuflow.cli import ended
from ncuflow.experiments import recorded
from ncuflow.experiments.record import ChangeRecord, Trial
from ncuflow.io import BadInput, CommandError
from ncuflow.mcp import MOST_BYTES, Root, text
from ncuflow.step import trace as stepped

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
    """The answer of a tool; without a limit it is short."""
    found = await client.call_tool(tool, asked)
    said: str = found.content[0].text
    assert not found.is_error and found.structured_content is None, said
    assert len(said.encode()) <= MOST_BYTES or "limit" in asked, (tool, len(said))
    return json.loads(said)


async def refusal(client: Any, tool: str, **asked: Any) -> str:
    """The one line of a tool that cannot answer."""
    found = await client.call_tool(tool, asked)
    assert found.is_error and found.structured_content is None
    text: str = found.content[0].text
    assert "\n" not in text
    return text


def test_a_program_goes_from_the_reports_to_a_verdict() -> None:
    async def session(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert len(tools) <= 6 and {"list_reports", "step"} <= {tool.name for tool in tools}
        assert all(tool.annotations.read_only_hint for tool in tools)
        told = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
        assert len(json.dumps(told).encode()) <= 8_000
        found = await answer(client, "list_reports")
        assert found["left_out"] > 0 and "h200/0.7.2/decode" in found["folders"]
        assert {"path": DEEP, "kind": "ncu", "bytes": (RECORDINGS / DEEP).stat().st_size} in (
            await answer(client, "list_reports", folder="h200/0.7.2/default/merge_state")
        )["reports"]
        listed = await answer(client, "list_reports", target="merge_state", limit=2)
        assert len(listed["points"]) == len(listed["reports"]) == 2
        assert listed["left_out"] > found["counts"]["merge_state"] - 2

        explained = await answer(client, "explain", source=listed["points"][0])
        assert explained["limit"]["words"] and explained["subject"]["point"] == listed["points"][0]
        time = explained["time"]
        assert time["tier"] == "C" and time["unit"] == "µs"
        asked = {"source": explained["source"], "metrics": time["trace"]}  # a list of one
        steps = (await answer(client, "show", **asked))["steps"]
        assert [one["value"] for one in steps if one.get("name") == time["trace"]] == [
            time["value"]
        ]

        sides = {"base": "h200/0.6.18/baseline", "head": "h200/0.6.18/planted-slow-downs"}
        short = await answer(client, "compare", **sides)
        verdict = await answer(client, "compare", **sides, limit=3)
        assert verdict["statistics"]["tests"] > 0 and verdict["left_out"] > 0
        slower = verdict["points"][0]
        assert slower["verdict"] == "slower" and slower["low"] > 0 and slower["causes"]
        assert [one["id"] for one in short["points"][:2]] == [
            one["id"] for one in verdict["points"][:2]
        ]
        assert short["points"][0]["causes"][0]["what"] == slower["causes"][0]["what"]
        assert slower["relative"] == pytest.approx(slower["head"] / slower["base"] - 1)
        column = verdict["columns"][f"metrics.{slower['metric']}"]
        assert column["unit"] == "µs" and column["tier"] == "C"
        back = {"source": slower["trace"], "metrics": [column["metric"]], "folder": sides["base"]}
        steps = (await answer(client, "show", **back, limit=50))["steps"]
        assert any(one["name"] == column["metric"] and one["value"] for one in steps)

    served(session)


def test_a_report_is_shown_explained_and_quoted_by_the_line() -> None:
    async def session(client: Any) -> None:
        asked = {"source": str(REPORT), "metrics": ["dram_bytes_*", "tensor_int_*", "nothing"]}
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
        asked = {"source": first["trace"].strip("'"), "metrics": [column["metric"]]}
        steps = (await answer(client, "show", **asked, limit=9))["steps"]
        assert steps[-1]["value"] == first["metrics"]["dram_bytes_read"]
        every = await answer(client, "show", source=str(REPORT), metrics="*")
        assert every["left_out"] > 0 and every["kernels"][0]["name"] == first["name"]

        of_trace = await answer(client, "show", source=TRACE, limit=1)
        assert len(of_trace["launches"]) == 1 and of_trace["columns"]["duration_ns"]["unit"] == "ns"

        every = await answer(client, "explain", source=DEEP, limit=500)
        few = await answer(client, "explain", source=DEEP, limit=1)
        tables = (every[name] for name in ("stalls", "lines", "suggestions"))
        assert few["left_out"] == sum(len(rows) - 1 for rows in tables if rows) > 0
        short = await answer(client, "explain", source=DEEP)
        assert short["lines"][0]["line"] == every["lines"][0]["line"]
        assert short["source"] == f"{DEEP}#0" and short["time"]["trace"] == "duration_ns"
        assert short["suggestions"][0]["by"] == every["suggestions"][0]["by"]

    served(session)


def test_what_cannot_be_answered_is_one_line() -> None:
    async def session(client: Any) -> None:
        for named in ("/etc/passwd", "../README.md", "h200/../../README.md"):
            other = "h200/0.7.2/versions"
            for tool, words in (
                ("show", {"source": named}),
                ("explain", {"source": named}),
                ("step", {"trace": named}),
                ("compare", {"base": named, "head": other}),
                ("compare", {"base": other, "head": named}),
                ("list_reports", {"folder": named}),
                ("show", {"source": f"{named}#0", "metrics": "duration_ns"}),
                ("show", {"source": POINT, "metrics": "time_cold_us", "folder": named}),
                ("advise", {"target": "decode", "change": named}),
                ("advise", {"target": "decode", "folder": named}),
            ):
                assert "below the served" in await refusal(client, tool, **words), (tool, named)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for tool in tools.values():
            assert tool.input_schema["additionalProperties"] is False
        said = await refusal(client, "show", source=str(REPORT), metric=["dram_*"])
        assert said == "no argument 'metric'; there are: source, metrics, folder, limit"
        assert "limit: Input should be less" in await refusal(client, "show", source="x", limit=900)
        assert await refusal(client, "step", trace=[1]) == "trace: Input should be a valid string"
        assert not tools["advise"].annotations.read_only_hint
        assert "no such file" in await refusal(client, "show", source="none.ncu-rep")
        assert "name the number" in await refusal(client, "show", source=POINT)
        assert "no point" in await refusal(client, "explain", source=f"{POINT}_no")
        assert "unknown kernel target" in await refusal(client, "list_reports", target="nothing")

    served(session, "--allow-run")  # the tool `advise` runs code then alone


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
        lambda: mcp.explain(root, POINT, None, None, 5),
        lambda: mcp.show(root, POINT, ["time_cold_us"], None, 5),
    ):
        with pytest.raises(BadInput, match="a link that leads out"):
            ask()


def test_what_lies_above_the_folder_is_not_looked_at(tmp_path, monkeypatch):
    """A report of a recording is explained with what its target suggests, unless its recording is not served."""
    monkeypatch.chdir((RECORDINGS / REPORT).parent)
    seen: list[Path] = []
    monkeypatch.setattr("ncuflow.findings.stored.is_recording", seen.append)
    found = mcp.explain(Root(Path.cwd()), REPORT.name, "0", None, 5)
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

    monkeypatch.setattr(mcp.subprocess, "run", fake)
    blocks, runs = [{"batch": 4}], replace(root, runs=True)
    for asked in ({"change": "x.patch"}, {"race": True}):
        with pytest.raises(CommandError, match="serve with --allow-run"):
            mcp.advise(root, "decode", **asked)
    assert commands == []
    assert mcp.advise(runs, "decode", None, False, "x.patch", blocks, "3%") == trial
    assert commands[0][1:5] == ["-m", "ncuflow", "try", "./x.patch"]
    assert {"--target=decode", "--effect=3%", '--blocks=[{"batch": 4}]'} <= {*commands[0]}
    with pytest.raises(CommandError, match=r"^no NVIDIA GPU$"):
        mcp.advise(runs, "decode", change="-x.patch")
    assert commands[1][4] == "./-x.patch"  # a path, and no option


def test_recorded_advice_has_the_choices_that_were_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    root = Root(RECORDINGS)
    found = mcp.advise(root, "decode", "h200/0.7.2/decode", limit=3)
    whole = recorded.advise(RECORDINGS / "h200/0.7.2/decode", ["decode"], {}, "time_cold_us", 0.02)
    assert [one.shape for one in found.shapes] == [one.shape for one in whole.shapes[:3]]
    assert found.rules == whole.rules and found.shapes[2].cause == whole.shapes[2].cause
    choices = [one for shape in found.shapes for one in shape.choices]
    assert choices and all(one.time_us is not None for one in choices)
    # three shapes further on, and a default that was not recorded
    assert found.left_out == len(whole.shapes) - 3 + 1
    with pytest.raises(CommandError, match="unknown kernel target 'decoed'"):
        mcp.advise(root, "decoed")


def test_a_written_advice_is_read_and_a_race_is_the_commands(tmp_path, monkeypatch):
    whole = recorded.advise(RECORDINGS / "h200/0.7.2/decode", ["decode"], {}, "time_cold_us", 0.02)
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(whole.model_dump_json(), encoding="utf-8")
    found = mcp.advise(Root(tmp_path), "decode", "a.json", limit=50)
    assert len(found.shapes) == len(whole.shapes) and found.rules == whole.rules
    assert mcp.advise(Root(tmp_path), "prefill", "a.json", limit=50).shapes == []
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        out = next(word for word in command if word.startswith("--out="))
        Path(out.removeprefix("--out=")).write_text(whole.model_dump_json(), encoding="utf-8")
        return subprocess.CompletedProcess(command, 3, "", "")

    monkeypatch.setattr(mcp.subprocess, "run", fake)
    runs = Root(tmp_path, runs=True)
    raced = mcp.advise(runs, "decode", race=True, blocks=[{"batch": 4}], effect="3%", limit=2)
    assert [one.shape for one in raced.shapes] == [one.shape for one in whole.shapes[:2]]
    assert {"advise", "--target=decode", "--effect=3%", '--blocks=[{"batch": 4}]'} <= {*commands[0]}


def test_an_answer_that_is_cut_says_so_and_keeps_small_lists_and_each_part(tmp_path):
    """Of a step several kinds stay, each with a kernel; whole it is what the command prints."""
    (tmp_path / "t.json.xz").symlink_to(ROOT / "tests/data/engine/trace.json.xz")
    found = stepped.step(tmp_path / "t.json.xz")
    whole, short = json.loads(text(found, True)), json.loads(text(found, False))
    assert whole == found.model_dump(mode="json", by_alias=True)
    kinds, every = ([one["kind"] for one in some["groups"]] for some in (short, whole))
    assert len(kinds) > 1 and kinds == every[: len(kinds)]
    kernels = [one["kernels"] for one in short["groups"]]
    assert all(kernels) and short["left_out"] > 0
    assert all(len(one["grid"]) == 3 for few in kernels for one in few if "grid" in one)


def test_without_the_package_it_says_what_to_install(root, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert ended(lambda: bool(mcp.server(root))) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the package mcp is missing: pip install")


def test_nsys_is_started_for_nobody_unless_runs_are_allowed(root: Root) -> None:
    (root.folder / "a.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report" + bytes(9))
    with lzma.open(root.folder / "b.nsys-rep.xz", "wb") as packed:
        packed.write(b"NVIDIA Tegra Profiler Report")
    for name in ("a.nsys-rep", "b.nsys-rep.xz"):
        with pytest.raises(BadInput, match="nsys reads it, which --allow-run allows"):
            mcp.show(root, name)
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
