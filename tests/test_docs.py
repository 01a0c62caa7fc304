"""What the pages under docs/ show is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_compare_recorded import BASE, PLANTED, Compared, compared  # noqa: F401

from analysis import gate
from parsers.files import write_json

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


def test_the_gate_prints_what_its_page_shows(
    compared: Compared,  # noqa: F811
    tmp_path: Path,
    capsys: Any,
) -> None:
    write_json(tmp_path / "compare.json", compared(BASE, PLANTED))
    assert gate.check(tmp_path / "compare.json", gate.THRESHOLD) == 1
    printed = capsys.readouterr().out.splitlines()
    text = (ROOT / "docs/ci.md").read_text()
    shown = re.search(r"and names it:\n\n```\n(.*?)\n```", text, re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        assert line in printed or line == "…"
