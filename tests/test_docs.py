"""What the pages under docs/ show is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

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
