"""Where recordings lie, what they are called by it, and which of them is shown."""

import json
from pathlib import Path

import pytest

from ncuflow.evidence import location
from ncuflow.flow import evidence


def recorded(folder: Path, flashinfer: str | None, memory: object) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    provenance = {"flashinfer": flashinfer, "memory_bytes": memory}
    (folder / "environment.json").write_text(json.dumps({"provenance": provenance}))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("recordings/h200/0.7.2/default", "h200-0.7.2-default"),
        ("recordings/h200/0.7.2/default/", "h200-0.7.2-default"),
        ("/somewhere/recordings/old/recordings/one", "one"),
        ("elsewhere/a100", "a100"),
        ("/elsewhere/recordings", "recordings"),
    ],
)
def test_a_recording_is_called_by_its_path_below_recordings(folder: str, name: str) -> None:
    assert location.name(Path(folder)) == name


def test_a_folder_is_called_the_same_from_inside_of_recordings(tmp_path, monkeypatch):
    inside = tmp_path / "recordings/h200"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert location.name(Path("0.7.2/default")) == "h200-0.7.2-default"


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300-ac"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server-edition"),
        ("NVIDIA A10G", "a10g"),
    ],
)
def test_a_gpu_has_a_folder_without_its_form_and_memory(gpu: str, folder: str) -> None:
    of = location.recording_folder({"gpu": gpu, "flashinfer": "0.7.2.post1"})
    assert of == Path("recordings") / folder / "0.7.2/default"


@pytest.mark.parametrize("what", ["../../esc", "a/b", "..", "", "/abs"])
def test_a_recordings_folder_has_one_name(what: str) -> None:
    with pytest.raises(ValueError, match="no name of a folder"):
        location.recording_folder({"gpu": "NVIDIA H200", "flashinfer": "0.7.2"}, what)


def test_shown_is_the_newest_flashinfer_on_the_gpu_with_the_most_memory(tmp_path, monkeypatch):
    """By what its environment says, not by its folders' names."""
    monkeypatch.chdir(tmp_path)
    home = Path("recordings")
    recorded(home / "a/0.9.1/default", "0.10.0", 141)
    recorded(home / "b/0.10.0/default", "0.10.0.post1", 80)
    recorded(home / "c/9/default", "0.9.3", 192)
    recorded(home / "c/10/default", None, "much")
    recorded(home / "c/11/kernels", "0.11", 192)
    (home / "d/0.12.0/default").mkdir(parents=True)
    assert location.default() == home / "a/0.9.1/default"
    assert location.matching("recordings/*/*/default") == [
        home / "c/10/default", home / "c/9/default", home / "b/0.10.0/default", home / "a/0.9.1/default",
    ]  # fmt: skip


def test_where_the_folder_has_no_recordings_the_projects_own_are_taken(tmp_path, monkeypatch):
    shipped = location.default()
    monkeypatch.chdir(tmp_path)
    own = location.resource("recordings") / shipped.relative_to("recordings")
    assert location.default().samefile(own)
    assert evidence.recorded(Path("recordings/h200/0.6.12/gdn")).targets
    with pytest.raises(ValueError, match=r"^recordings/\*/gdn: no recording matches$"):
        location.matching("recordings/*/gdn")


def test_a_damaged_environment_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(Path("recordings/a/1/default"), "0.1", 1)
    Path("recordings/a/1/default/environment.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"environment\.json: not JSON") as caught:
        location.default()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["one", "two"], "one-vs-two"),
        (["h200-0.6.1-gdn", "h200-0.7.2-gdn"], "h200-0.6.1-vs-0.7.2-gdn"),
        (["h100-0.7.2-default", "h200-0.7.2-default"], "h100-vs-h200-0.7.2-default"),
        (["h200-0.6.18-baseline", "h200-0.6.18-planted-slow-downs"], "h200-0.6.18-baseline-vs-planted-slow-downs"),
        (["a-1", "a-1-2", "a-1-2-2"], "a-1-vs-1-2-vs-1-2-2"),
        (["a-2", "a-1-2"], "a-2-vs-1-2"),
    ],
)  # fmt: skip
def test_a_comparison_has_the_names_of_its_sides_without_what_they_share(names, name):
    assert evidence.together(names) == name


def test_a_pattern_is_the_sides_that_match_it_by_version_and_none_twice() -> None:
    running = evidence.recorded(Path("recordings/h200/0.6.12/gdn"))
    found = evidence.sides("recordings/h200/0.6.14/gdn", "recordings/h200/*/gdn", running)
    assert list(found) == ["h200-0.6.14-gdn", "h200-0.6.12-gdn", "h200-0.7.2-gdn"]
    assert [side.folder for side in found.values()] == [f"recorded-{name}" for name in found]
    with pytest.raises(ValueError, match="no recording matches"):
        evidence.sides("recordings/h200/0.6.14/gdn", "recordings/h200/*/nothing", running)
