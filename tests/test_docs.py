"""What the pages under docs/ show is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ncuflow.cli import COMMANDS
from ncuflow.target.contract import known

ROOT = Path(__file__).parents[1]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
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
    commands = [
        name for line in code for name in re.findall(r"(?:^|[ /(\n])ncuflow ([a-z][a-z-]+)", line)
    ]
    assert set(commands) <= COMMANDS.keys()
    files = re.findall(
        r"`((?:ncuflow|parsers|targets|templates|workflows|scripts|config)/[\w/.-]+)`", text
    )
    written = [name for name in files if "page_append" not in name]  # the reader writes that one
    assert [name for name in written if not (ROOT / name).exists()] == []


def test_the_page_of_covered_kernels_has_every_target_and_the_sweeps_that_hold_it() -> None:
    covered = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").split("## Not covered")[0]
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| .* \| ([^|]+) \|$", covered, re.MULTILINE)
    sweeps = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))["sweeps"]
    held = {
        name: {sweep for sweep, blocks in sweeps.items() if name in blocks} - {"smoke", "compare"}
        for name in known()
    }
    assert {name: set(re.findall(r"`(\w+)`", named)) for name, named in rows} == held
