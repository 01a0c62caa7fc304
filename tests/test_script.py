"""A point as a file that stands alone: what it holds, and that it launches what the target launches."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_modules
import pytest
from command import python
from conftest import ROOT, some

from ncuflow.cli import dispatch
from ncuflow.export import script as exported
from ncuflow.export.script import Asked, inlined
from ncuflow.io import CommandError, UsageError, read_yaml
from ncuflow.sweep.points import Planned, points
from ncuflow.target.contract import Target, known, load

DEFAULT = "decode/B32_L2048_H32_K32_D128_P16_f16_cc"
SWEEP = read_yaml(ROOT / "config/config.yaml")["sweeps"]["default"]


def chosen(target: Target, every: bool) -> list[Planned]:
    """The target's own point and those of the default sweep; else of these each that has a choice which none before it has."""
    found = [*points(target, [{}]), *points(target, SWEEP.get(target.name, []))]
    if every:
        return list({point.id: point for point in found}.values())
    kept, seen = found[:1], {*found[0].params.items()}
    for point in found[1:]:
        made = {(name, point.params[name]) for name in target.choices}
        kept += [point] if made - seen else []
        seen |= made
    return kept


def imported(text: str) -> set[str]:
    """The packages that a file imports anywhere in it."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("name", known())
def test_every_point_of_the_default_sweep_becomes_a_file_that_stands_alone(name, every, tmp_path):
    target = load(name)
    for number, point in enumerate(chosen(target, every)):
        text = exported.script(target, point)
        assert imported(text) - sys.stdlib_module_names <= {"torch", "flashinfer"}, point.id
        assert f'POINT = "{point.id}"' in text
        assert re.search(r"(?m)^    ncu .* python point\.py$", text), point.id
        assert str(ROOT) not in text and "/home" not in text and "ncuflow/" not in text
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    # names that nothing defines, imports that nothing uses, and what is no Python
    rules = ["--isolated", "--no-cache", "--select", "F,E9", "--ignore", "F841"]
    done = python("-m", "ruff", "check", *rules, tmp_path)
    assert done.returncode == 0, done.stdout


class Recorder(ModuleType):
    """Stands for a package or for anything that comes of it: whatever is done with it is a line of ``log``.

    Its name is how it was made, so two that were made alike are alike.
    """

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(name)
        self.__dict__.update(_name=name, _log=log)

    def __getattr__(self, attribute: str) -> Recorder:
        if attribute.startswith("__") or attribute == "_mock_methods":
            raise AttributeError(attribute)
        return Recorder(f"{self._name}.{attribute}", self._log)

    def __call__(self, *args: Any, **named: Any) -> Recorder:
        words = [*map(repr, args), *(f"{name}={value!r}" for name, value in named.items())]
        self._log.append(f"{self._name}({', '.join(words)})")
        return Recorder(self._log[-1], self._log)

    def __repr__(self) -> str:
        return str(self._name)

    def _with(self, *others: Any) -> Recorder:
        return Recorder(f"{self._name}[{', '.join(map(repr, others))}]", self._log)

    __getitem__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = _with
    __floordiv__ = __rfloordiv__ = __mod__ = __neg__ = __or__ = __and__ = __pow__ = __rpow__ = _with
    __lt__ = __gt__ = __ge__ = _with
    __enter__ = _with

    def __setitem__(self, *others: Any) -> None:
        self._log.append(f"{self._name} set {others}")

    def __exit__(self, *others: Any) -> None:
        self._log.append(f"{self._name} left")

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Recorder]:
        return iter([self._with(0), self._with(1)])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with torch and FlashInfer, of which neither is here."""
    found: list[str] = []
    for name in ("torch", "torch.nn", "torch.nn.functional", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, Recorder(name, found))
    dsl = ModuleType("cutlass")
    dsl.__spec__ = ModuleSpec(
        "cutlass", None
    )  # FlashInfer's kernels of linear attention ask for it
    monkeypatch.setitem(sys.modules, "cutlass", dsl)
    wide = "ncuflow.target.reference._wide"  # which a file has a text of its own for
    monkeypatch.setattr(wide, lambda *given: (sys.modules["torch"], *(a.float() for a in given)))
    for name in (
        "mla",
        "page",
        "norm",
        "gdn_prefill",
        "gemm",
        "sampling",
        "fused_moe",
        "autotuner",
    ):
        own = f"flashinfer.{name}"
        monkeypatch.setitem(sys.modules, own, Recorder(own, found))
    return found


def launched(log: list[str], prepare: Any, p: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(the random numbers that the inputs are made of, what a launch does with FlashInfer and with tensors), in order."""
    log.clear()
    launch = prepare(p)
    ready = len(log)
    launch.run()
    if launch.reset:
        launch.reset()
    random = "generator=torch.Generator(device='cuda'))"
    drawn = [line for line in log[:ready] if line.endswith(random)]
    done = [line for line in log[:ready] if line.startswith("flashinfer")]
    return drawn, done + log[ready:]


# The target that takes its inputs from FlashInfer's trace templates needs FlashInfer itself, one of ranks a GPU for each.
@pytest.mark.parametrize(
    "name", [n for n, t in known().items() if not t.generic and "ranks" not in t.parameters]
)
def test_a_file_draws_the_inputs_and_makes_the_calls_of_its_target(name, every, log):
    target = load(name)
    for point in some(chosen(target, every)):
        text = exported.script(target, point)
        space: dict[str, Any] = {"__name__": "point"}
        sys.modules["point"] = ModuleType("point")  # where a dataclass looks up its annotations
        exec(compile(text, "point.py", "exec"), space)
        drawn, done = launched(log, space["prepare"], space["P"])
        of_target = launched(log, target.prepare, point.params)
        assert done == of_target[1], point.id
        assert drawn == of_target[0], point.id
        assert any("flashinfer" in line for line in done), point.id
    del sys.modules["point"]


def test_the_launch_alone_is_in_the_range_of_the_id(log, monkeypatch):
    """Under a profiler: what it records begins with the range and ends after it, and one run is in there."""
    target = load("merge_state")
    space: dict[str, Any] = {"__name__": "point"}
    text = exported.script(target, points(target, [{}])[0])
    exec(compile(text, "point.py", "exec"), space)
    space["cold_us"] = lambda launch: 1.0
    space["main"]()
    start = next(i for i, line in enumerate(log) if "cudaProfilerStart" in line)
    recorded = [re.sub(r"\(.*", "", line) for line in log[start + 1 :]]
    nvtx = "torch.cuda.nvtx.range"
    launch = [f"{nvtx}_push", "flashinfer.merge_states", f"{nvtx}_pop"]
    assert recorded == [*launch, "torch.cuda.synchronize", *["torch.cuda.cudart"] * 2]
    assert space["POINT"] in log[start + 1]


# --- what is asked for -----------------------------------------------------------------------


def test_a_point_is_named_by_its_id_or_by_its_target_and_parameters(tmp_path: Path) -> None:
    by_id, by_name = tmp_path / "a.py", tmp_path / "b.py"
    assert dispatch(["export", "script", DEFAULT, "--out", str(by_id)]) == 0
    blocks = '[{"batch": 32, "kv_len": 2048}]'
    assert dispatch(["export", "script", "decode", "--blocks", blocks, "--out", str(by_name)]) == 0
    assert by_id.read_text() == by_name.read_text().replace("b.py", "a.py")
    assert "python a.py" in by_id.read_text()


def test_a_point_of_results_is_found_by_its_id(tmp_path, monkeypatch, recorded):
    monkeypatch.chdir(tmp_path)
    other = points(load("merge_state"), [{"seq_len": 77}])[0]
    with pytest.raises(UsageError, match="no sweep and no results have"):
        exported.planned(other.id, None)
    found = dict(recorded("h200/0.7.2/default", "merge_state"))
    found["points"] = [found["points"][0] | {"point": other.id, "params": other.params}]
    folder = tmp_path / "outputs/machine/results"
    folder.mkdir(parents=True)
    from ncuflow.io import write_json

    write_json(folder / "merge_state_results.json", found)
    assert exported.planned(other.id, None)[1] == other


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two words.py", "'two words.py'"),
        ('a"""b.py', exported.NAME),
        ("a\nb.py", exported.NAME),
        ("a\\N.py", exported.NAME),
    ],
)
def test_the_name_of_a_file_does_not_end_its_docstring(name, said, tmp_path):
    dispatch(["export", "script", "decode", "--out", str(tmp_path / name)])
    written = ast.get_docstring(ast.parse((tmp_path / name).read_text("utf-8")))
    assert f"    python {said}\n" in str(written)


def test_what_results_say_is_a_literal_and_never_code() -> None:
    decode = load("decode")
    hostile = "\"\"\"\nimport os  # '''\\ \u2028 $title \ud800"
    point = Planned(hostile, "decode", {**decode.parameters, hostile: hostile})
    text = exported.script(decode, point)
    tame = exported.script(decode, Planned("x", "decode", {**decode.parameters, "x": "x"}))
    text.encode()
    for statement, same in some(zip(ast.parse(text).body, ast.parse(tame).body, strict=True)):
        named = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0])
        if named in ("POINT", "P"):
            ast.literal_eval(statement.value)
        else:
            assert ast.unparse(statement) == ast.unparse(same)


# --- what is taken over ----------------------------------------------------------------------

OTHER = '''
"""Two functions of one name."""
from __future__ import annotations
from math import sqrt
from ncuflow.target import inputs
from ncuflow.target.inputs import FP8


def torch_dtype(p):
    return inputs.torch_dtype(p["dtype"])


def whole(p):
    # why it is so
    if p["dtype"] == FP8:
        return sqrt(2)
    return Made(run=torch_dtype(p), check=missing)


def missing(p):
    return inputs.nothing(p)
'''


def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> str:
    (tmp_path / "taken_here.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("taken_here", None)
    return inlined(Asked("taken_here", function, kept={"Made": ("run",)}))[1]


def test_a_definition_is_taken_whole_with_all_that_it_needs(tmp_path, monkeypatch):
    text = taken(tmp_path, monkeypatch, "whole")
    assert "def torch_dtype(name: str)" in text
    of_one_name = 'def taken_here_torch_dtype(p):\n    return torch_dtype(p["dtype"])'
    assert of_one_name in text
    assert "    # why it is so" in text and "sqrt(2)" in text and 'FP8 = "fp8"' in text
    # what only a check needs is not there
    assert "return Made(run=taken_here_torch_dtype(p))" in text and "missing" not in text


def test_what_cannot_be_taken_over_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(CommandError, match=r"ncuflow\.target\.inputs has no nothing"):
        taken(tmp_path, monkeypatch, "missing")


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[gpu_modules.needs_gpu(n), pytest.mark.points(n, load(n).small)])
        for n in sorted(known())
    ],
)
def test_a_file_runs_with_torch_and_flashinfer_alone(name, request, tmp_path):
    pytest.importorskip("torch")
    (point, *_) = gpu_modules.declared(request.node)
    path = tmp_path / "point.py"
    path.write_text(exported.script(load(name), point), encoding="utf-8")
    done = python("-P", path, cwd=tmp_path, PYTHONSAFEPATH="1")
    gpu_modules.skip_without_cute_dsl([done.stderr])
    assert done.returncode == 0, done.stderr
    said = rf"{re.escape(point.id)}: [\d.]+ µs, the L2 cache cold, on .+\n"
    assert re.fullmatch(said, done.stdout)
