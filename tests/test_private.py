"""What may not be stored: secrets by their variables, names of the machine, its paths."""

import base64
import lzma
import re
import shutil
import zlib
from pathlib import Path

import pytest
from conftest import ROOT, some, some_by_default

from ncuflow import private
from ncuflow.cli import dispatch
from ncuflow.evidence import location
from ncuflow.process import minimal_environment
from ncuflow.run.builds import one_line

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings").glob("*/*/*"))
SECRET = "correct-horse"
MARK = "marked-folder"
BLOCK = re.compile(r'data-block="[^"]*">([^<]*)<')


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
        (b"/data/venv/lib/site-packages/torch/x.py", b"/xxxx/xxxx/xxx/site-packages/torch/x.py"),
        (b"/tmp/a1/flashinfer/data/csrc/x.cu", b"/xxx/xx/flashinfer/data/csrc/x.cu"),
        (b"/usr/local/cuda/include/cuda_fp16.h", b"/usr/local/cuda/include/cuda_fp16.h"),
        (b"/work/fi/inc", b"/xxxx/xx/inc"),
        (b"/w/f/i/x.cu", b"/x/x/i/x.cu"),
        (b"/home/alice/x.cu", b"/xxxx/xxxxx/x.cu"),
        ("/srv/jürgen/src".encode(), b"/xxx/xxxxxxx/src"),
        (b"/opt/alice/thesis/src", b"/xxx/xxxxx/xxxxxx/src"),
        (b"/dev/shm/alice/src", b"/xxx/xxx/xxxxx/src"),
        (b"/usr/local/cuda-13.0/bin/../include", b"/usr/local/cuda-13.0/bin/../include"),
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
        (b"<flashinfer>/data/include/flashinfer/norm.cuh", False),
        (b"decode/B128/L2048/H32_K32", False),
        (b"\x01/work/inc\0/usr/include\0\0", True),
        (b"\0\x93/work/inc\x81\0", False),
        (b'{"error": "nvcc:\\n/work/fi/x.cu(3): error"}', True),
        (b'{"command": ["nvcc", "-I/work/fi/inc", "x.cu"]}', True),
        (b'{"PATH": "/usr/local/cuda/bin:/work/fi/bin"}', True),
        (b"instructions/cycle, tensor/alu/fma", False),
        (b"\0/\xb6\xfe2/\xb7x/\xa3y/z\0", False),  # machine code
        # The slash is a length, 47: protobuf's of a text in a report.
        (b"\0\n/decode/paged/B1_L2048_H32_K32_D128_P16_f16_cc_n0\x18", False),
    ],
)
def test_a_path_stands_by_itself_or_behind_its_length(data: bytes, found: bool) -> None:
    assert (private.find_path(data) is not None) == found


def test_a_name_is_private_as_a_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_user", lambda: "alice")
    known = private.patterns({})
    for text in (b"alice", b"\0alice\0", b"by alice, bob", b"/home/alice/x"):
        assert private.find_secret(text, known) == "the user name", text
    for text in (b"malice", b"al.alice", b"alice2", b"alice-s"):
        assert private.find_secret(text, known) is None, text


def test_the_working_folder_and_the_jit_cache_are_private(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    known = private.patterns({"FLASHINFER_WORKSPACE_BASE": "/scratch/jit"})
    assert private.find_secret(f"{tmp_path}/x".encode(), known) == "the working folder"
    assert private.find_secret(b"/scratch/jit/.cache", known) == "the JIT cache"


@pytest.mark.parametrize("recording", RECORDINGS, ids=location.name)
def test_no_shipped_recording_names_a_machine_s_path(recording: Path) -> None:
    for path in some(path for path in recording.rglob("*") if path.is_file()):
        data = path.read_bytes()
        plain = lzma.decompress(data) if path.suffix == ".xz" else data
        assert private.find_path(plain) is None, path
        assert private.find_secret(plain, private.patterns({})) is None, path
        assert [found for found in absolute(plain) if not STATED.match(found)] == [], path


# Looser than what masks: whatever begins with a slash where a string does and has another, however short.
STATED = re.compile(
    rb"/usr/(?:include|bin|local/cuda[\d.-]*)(?:/|$)|/lib64/|/x+/"  # the toolkit's, or masked
)
IN_BINARY = re.compile(rb"/(?<=[\0\1]/)(?=[^\0]{4,}\0)[ -.0-~]+/[ -~]+(?=\0)")
IN_TEXT = re.compile(rb"/(?<![\w.~$@>}/<-]/)[\w.~][^\s\"',:;()]*/[^\s\"',:;()]+")


def absolute(data: bytes) -> list[bytes]:
    """The absolute paths in a file: whole strings of a table of strings, words of a text."""
    return (IN_BINARY if b"\0" in data else IN_TEXT).findall(data)


def test_that_search_finds_a_path_however_short() -> None:
    assert absolute(b"\x01\x01/w/a b\0/usr/include\0\0x.h\0") == [b"/w/a b", b"/usr/include"]
    assert absolute(b'{"a": "in /w/f, <flashinfer>/data/x.cu and a/b"}') == [b"/w/f"]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, a trace and a recording in a folder that nobody else need know of."""
    folder, shipped = tmp_path_factory.mktemp(MARK), ROOT / "recordings/h200/0.7.2"
    shutil.copy(shipped / "default/merge_state/deep/deep.ncu-rep.xz", folder / "r.ncu-rep.xz")
    (trace,) = (shipped / "default/merge_state").glob("b*/trace.sqlite.xz")
    shutil.copy(trace, folder / "t.sqlite.xz")
    shutil.copytree(shipped / "decode", folder / "recording")
    return folder


PASSED_ON = [
    "show R --json", "show T --json", "explain R --json", "explain T --json", "trace R#0 busiest_pct --json",
    "trace T#0 duration_ns --json", "compare R R --json --out O", "compare T T --json --out O", "view R T R --out O",
    "explain decode/B1_L2048_H32_K8_D128_P16_f16_tc --outputs D --json", "step T --json --html O",
    "compare D D --json --out O", "advise --recorded D --json --html O", "advise --recorded D --out O",
]  # fmt: skip


@pytest.mark.parametrize("words", some_by_default(PASSED_ON, 3))
def test_what_is_passed_on_names_files_and_no_folder(marked, words, tmp_path, monkeypatch, capsys):
    """But for the words of `ncuflow trace`, which find the file again where it lies."""
    monkeypatch.chdir(tmp_path)
    places = {"R": marked / "r.ncu-rep.xz", "T": marked / "t.sqlite.xz", "D": marked / "recording"}
    given = [re.sub(r"^[RTD](?=$|#)", lambda of: str(places[of[0]]), one) for one in words.split()]
    assert dispatch(["out" if word == "O" else word for word in given]) == 0
    page = Path("out").read_text(encoding="utf-8") if Path("out").exists() else ""
    blocks = [zlib.decompress(base64.b64decode(one)).decode() for one in BLOCK.findall(page)]
    told = "\n".join([capsys.readouterr().out, page, *blocks])
    assert len(told) > 100 and MARK not in re.sub(r'"trace": "(?:[^"\\]|\\.)*"', "", told)
