"""What the pages under docs/ show is what a reader gets."""

import asyncio
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, some

from ncuflow import mcp
from ncuflow.cli import COMMANDS, app, named
from ncuflow.mcp import Root
from ncuflow.target.contract import known

SKILL = ROOT / "skills/ncuflow/SKILL.md"
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", SKILL]
YAML = [
    pytest.param(text, id=f"{path.stem}-{number}")
    for path in DOCS
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("text", YAML)
def test_a_block_of_yaml_is_yaml(text: str) -> None:
    assert isinstance(yaml.safe_load(text), dict | list)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_and_files_that_a_page_names_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = re.findall(r"```bash\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    command = r"(?:^|[ /(\n])ncuflow ([a-z][a-z-]+)"
    assert {name for line in code for name in re.findall(command, line)} <= COMMANDS.keys()
    folders = "ncuflow|parsers|targets|templates|workflows|scripts|config"
    files = re.findall(rf"`((?:{folders})/[\w/.-]+)`", text)
    written = [name for name in files if "page_append" not in name]  # the reader writes that one
    assert [name for name in written if not (ROOT / name).exists()] == []


def test_a_change_is_one_line_of_a_kind_that_the_changelog_has() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in told["type"])
    for path in some((ROOT / told["directory"]).iterdir()):
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({kinds})\.md", path.name), path.name
        assert re.fullmatch(r"[A-Z`].{10,198}\.\n", path.read_text(encoding="utf-8")), path.name


def command_lines(path: Path) -> list[list[str]]:
    """The words of every command of ncuflow that a page shows, in blocks and in its text."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|json)\n(.*?)```", text, re.DOTALL)
    code = [line for block in blocks for line in block.splitlines()]
    code += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    told = [re.sub(r"\s#.*", "", line) for line in code if line.startswith("ncuflow ")]
    found = [shlex.split(line) for line in told]
    served = [json.loads(block) for block in blocks if block.startswith("{")]
    for one in (start for content in served for start in content["mcpServers"].values()):
        found.append([one["command"], *one["args"]])
    return [words[1:] for words in found]


@pytest.mark.parametrize("path", [ROOT / "docs/agents.md", SKILL], ids=lambda path: path.name)
def test_every_command_that_a_program_is_told_parses(path: Path) -> None:
    lines = [words for words in command_lines(path) if words[0] != "COMMAND"]
    assert {"explain", "show", "compare", "trace", "try", "targets", "mcp"} <= {w[0] for w in lines}
    for words in lines:
        name, rest = named(words)
        module = importlib.import_module(COMMANDS[name][0])
        if rest:  # else the command is only named
            app(module, name).parse_args(rest, exit_on_error=False, print_error=False)


def test_a_skill_says_what_it_is_for_and_stays_short() -> None:
    text = SKILL.read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about.keys() == {"name", "description"} and about["name"] == SKILL.parent.name
    assert 40 < len(about["description"]) <= 1024 and body.strip()
    assert len(text.splitlines()) <= 120


def test_the_tools_that_programs_are_told_of_are_those_that_are_served() -> None:
    pytest.importorskip("mcp")
    served = asyncio.run(mcp.server(Root(ROOT, runs=True)).list_tools())
    page = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    assert {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows} == {
        tool.name: list(tool.input_schema["properties"]) for tool in served
    }
    skill = SKILL.read_text(encoding="utf-8")
    assert [tool.name for tool in served if f"`{tool.name}`" not in skill] == []


def test_the_page_of_covered_kernels_has_every_target_and_the_sweeps_that_hold_it() -> None:
    covered = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").split("## Not covered")[0]
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| .* \| ([^|]+) \|$", covered, re.MULTILINE)
    sweeps = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))["sweeps"]
    apart = {"smoke", "compare"}
    shown = {name: blocks for name, blocks in sweeps.items() if name not in apart}
    held = {name: {sweep for sweep, blocks in shown.items() if name in blocks} for name in known()}
    assert {name: set(re.findall(r"`(\w+)`", named)) for name, named in rows} == held
