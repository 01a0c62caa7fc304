"""What may not be stored: secrets by their variables, names of the machine, its paths."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from ncuflow import private
from ncuflow.capture.process import minimal_environment
from ncuflow.runner.builds import one_line

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings").iterdir())
SECRET = "correct-horse"


@pytest.mark.parametrize(
    "name",
    ["MYAPP_PW", "DB_PWD", "GH_PAT", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "API_KEY", "PGPASSWORD",
     "SSH_PASSPHRASE", "BASIC_AUTH", "SENTRY_DSN"],
)  # fmt: skip
def test_a_secret_is_known_by_the_name_of_its_variable(name: str) -> None:
    environ = {name: SECRET, "PYTHONPATH": "correct-path"}
    assert private.masked(f"cannot log in with {SECRET}", environ) == f"cannot log in with [{name}]"
    assert private.find_secret(SECRET.encode(), private.patterns(environ)) == f"the value of {name}"
    assert name not in minimal_environment(environ)


@pytest.mark.parametrize("name", ["PATH", "PATTERN", "PWDS", "BYPASS", "AUTHOR"])
def test_other_names_are_no_secrets(name: str) -> None:
    assert private.secrets({name: SECRET}) == {}


def test_a_login_in_a_url_is_masked_whatever_variable_holds_it() -> None:
    text = "cannot reach https://alice:hunter2@mirror.example/simple"
    assert private.masked(text, {}) == "cannot reach https://[login]@mirror.example/simple"
    assert private.find_secret(text.encode(), private.patterns({})) == "a URL with a password"
    markup = b"see @url:guide:https://docs.nvidia.com/x/#y@"
    assert private.find_secret(markup, private.patterns({})) is None


def test_the_text_of_an_exception_carries_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYAPP_PW", SECRET)
    assert one_line(ValueError(f"login {SECRET} refused")) == "ValueError: login [MYAPP_PW] refused"


@pytest.mark.parametrize(
    ("path", "masked"),
    [
        (b"/home/alice/src/decode.cuh", b"/xxxx/xxxxx/src/decode.cuh"),
        (b"/work/checkout/outputs/h200/generated", b"/xxxx/xxxxxxxx/xxxxxxx/xxxx/generated"),
        (b"/data/venv/lib/site-packages/torch/x.py", b"/xxxx/xxxx/xxx/site-packages/torch/x.py"),
        (b"/tmp/a1/flashinfer/data/csrc/x.cu", b"/xxx/xx/flashinfer/data/csrc/x.cu"),
        (b"/usr/local/cuda/include/cuda_fp16.h", b"/usr/local/cuda/include/cuda_fp16.h"),
    ],
)
def test_of_a_path_the_machine_s_folders_are_masked(path: bytes, masked: bytes) -> None:
    assert private.masked_path(path) == masked
    assert private.masked_path(masked) == masked
    found = private.find_path(b"\0" + path + b"\0")
    assert found == (None if path == masked else path.decode())


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"at\x12C/tmp/site/flashinfer/data/include/flashinfer/attention/variants.cuh*", True),
        (b"see https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html", False),
        (b"flashinfer/data/include/flashinfer/norm.cuh", False),
        (b"<flashinfer>/data/include/flashinfer/norm.cuh", False),
        (b"decode/B128/L2048/H32_K32", False),
    ],
)
def test_a_path_stands_by_itself_or_behind_its_length(data: bytes, found: bool) -> None:
    assert (private.find_path(data) is not None) == found


def test_the_working_folder_and_the_jit_cache_are_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    known = private.patterns({"FLASHINFER_WORKSPACE_BASE": "/scratch/jit"})
    assert private.find_secret(f"{tmp_path}/x".encode(), known) == "the working folder"
    assert private.find_secret(b"/scratch/jit/.cache", known) == "the JIT cache"


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_no_shipped_recording_names_a_machine_s_path(recording: Path) -> None:
    for path in recording.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            plain = lzma.decompress(data) if path.suffix == ".xz" else data
            assert private.find_path(plain) is None, path
            assert private.find_secret(plain, private.patterns({})) is None, path
