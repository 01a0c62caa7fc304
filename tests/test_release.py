"""What a release takes: its tag and notes, the workflow that publishes, the container, and what registries read."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from command import ncuflow
from conftest import ROOT

from ncuflow import __version__
from scripts import release

SERVER = json.loads((ROOT / "server.json").read_text())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a release looks at, of a version that CHANGELOG.md has."""
    (tmp_path / "ncuflow").mkdir()
    for name in ("server.json", "README.md", "ncuflow/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    text = (
        f"# Changelog\n\n## {__version__}, 2026-12-01\n\n- news\n\n## 0.0.9, 2026-01-01\n\n- old\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(text)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def released(project: Path, monkeypatch: pytest.MonkeyPatch, tag: str) -> str:
    words = ["release", "--tag", tag, "--owner", "someone", "--notes", str(project / "notes.md")]
    monkeypatch.setattr("sys.argv", words)
    release.main()
    return (project / "notes.md").read_text()


def test_a_tag_brings_the_part_of_the_changelog_and_whose_it_is(project, monkeypatch):
    assert released(project, monkeypatch, f"v{__version__}") == "- news\n"
    assert json.loads((project / "server.json").read_text())["name"] == "io.github.someone/ncuflow"
    assert "mcp-name: io.github.someone/ncuflow " in (project / "README.md").read_text()
    assert released(project, monkeypatch, "main") == ""


@pytest.mark.parametrize(
    ("tag", "changelog", "said"),
    [
        ("v9.9.9", "", "the tag is v9.9.9"),
        (f"v{__version__}", "# Changelog\n", "nothing about"),
        (f"v{__version__}", f"## {__version__}, not yet released\n\nx\n", "has no date"),
    ],
)
def test_a_tag_that_is_none_is_refused(project, monkeypatch, tag, changelog, said):
    (project / "CHANGELOG.md").write_text(changelog)
    with pytest.raises(SystemExit, match=said):
        released(project, monkeypatch, tag)
    assert not (project / "notes.md").exists()


def test_one_job_alone_may_publish_and_runs_nothing_of_the_tree():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    trusted = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert trusted == ["pypi"] and jobs["pypi"]["environment"] == "pypi"
    steps = jobs["pypi"]["steps"]
    of_others = ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert [step["uses"].split("@")[0] for step in steps] == of_others
    assert all(jobs[name]["if"] for name in ("pypi", "github"))


def test_the_registry_s_file_is_of_this_package():
    (package,) = SERVER["packages"]
    assert SERVER["version"] == package["version"] == __version__
    assert (package["registryType"], package["identifier"]) == ("pypi", "ncuflow")
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", SERVER["name"]) and len(SERVER["description"]) <= 100
    assert f"<!-- mcp-name: {SERVER['name']} -->" in (ROOT / "README.md").read_text()
    verb, root = package["packageArguments"]
    assert f"{root['name']}" in ncuflow(verb["value"], "--help").stdout


def test_the_plug_in_holds_the_server_and_the_skill():
    server = json.loads((ROOT / "plugin/.mcp.json").read_text())["mcpServers"]["ncuflow"]
    assert server["args"][-3:] == ["mcp", "--root", "."]
    assert (ROOT / "plugin/skills/ncuflow/SKILL.md").read_text().startswith("---\nname: ncuflow\n")
