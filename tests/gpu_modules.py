"""JIT modules of the GPU tests: all that they load, compiled in one graph before the first of them.

    python tests/gpu_modules.py PLAN.json OUT.json     # in a process of its own: {"points", "examples"} -> as `ncuflow build`

A test declares what it launches by a marker, ``points(target, *blocks)``, and takes its points from there; or what it runs,
``example(path)``, and such a script is run beforehand with nothing behind the calls, for the modules that it asks for.
What needs a module that compiles for minutes is marked ``gpu_long`` in place of ``gpu``.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ncuflow.gpu import nvml
from ncuflow.io import read_json, write_json
from ncuflow.run import builds
from ncuflow.run.preflight import cache_place
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import load

ROOT = Path(__file__).parents[1]
MARKERS = ("gpu", "gpu_long")
# Targets whose defaults take modules of minutes: POD's, with 16 instances, and fa3, which a cascade takes on Hopper. The
# two are four fifths of what there is to compile for the tests of all.
LONG = frozenset({"cascade", "pod"})
NO_CUTE_DSL = "No module named 'cutlass'"
Plan = Mapping[str, Any]


def needs_gpu(name: str) -> pytest.MarkDecorator:
    """The marker of a test that launches a target's defaults."""
    return getattr(pytest.mark, MARKERS[name in LONG])


def skip_without_cute_dsl(reasons: Iterable[str | None]) -> None:
    """Skip the test if the CuTe DSL is what one of these reasons of failure misses."""
    if any(NO_CUTE_DSL in (reason or "") for reason in reasons):
        pytest.skip("needs the CuTe DSL (nvidia-cutlass-dsl)")


def declared(item: pytest.Item) -> list[sweep.Planned]:
    """The points of a test; none where it declares none."""
    mark = item.get_closest_marker("points")
    return sweep.points(load(mark.args[0]), mark.args[1:]) if mark else []


def plan(items: Iterable[pytest.Item]) -> Plan:
    """Points and examples of the GPU tests among these, each once; points by target."""
    points: dict[str, dict[str, Any]] = {}
    examples: dict[str, None] = {}
    for item in items:
        if any(map(item.get_closest_marker, MARKERS)):
            for point in declared(item):
                points.setdefault(point.target, {})[point.id] = point.as_dict()
            for mark in item.iter_markers("example"):
                examples[str(mark.args[0])] = None
    listed = {target: list(found.values()) for target, found in points.items()}
    return {"points": listed, "examples": list(examples)}


def compiled() -> set[str]:
    """Names of the modules whose libraries lie in FlashInfer's cache."""
    libraries = cache_place()[0].rglob("cached_ops/*/*.so")
    return {path.stem for path in libraries if path.parent.name == path.stem}


def compiling(name: str) -> str:
    """How long the files of a module compiled, as ninja noted it; empty where it did not."""
    took: dict[str, int] = {}
    for log in cache_place()[0].rglob(f"cached_ops/{name}/.ninja_log"):
        for line in log.read_text("utf-8").splitlines():
            # start, end (ms), time of the file, file, digest of the command; a file's last line counts
            start, end, _, file, *_ = [*line.split("\t"), *4 * [""]]
            if Path(file).parent.name == name:
                took[file] = int(end) - int(start)
    return f" ({sum(took.values()) / 1e3:.0f} s in {len(took)} files)" if took else ""


@dataclass
class Modules:
    """What became of the modules. report: as ``main`` writes it; None where it could not, and said: why."""

    plan: Plan
    before: set[str]  # compiled by an earlier session
    report: Mapping[str, Any] | None
    said: str = ""

    def summary(self) -> list[str]:
        """How many were compiled in which time, a line for each, and what was compiled after that."""
        points = sum(map(len, self.plan["points"].values()))
        what = f"{points} points of {len(self.plan['points'])} targets, {len(self.plan['examples'])} examples"
        if self.report is None:
            return [f"{what}: nothing was compiled ahead: {self.said}"]
        modules = sorted(self.report["modules"], key=lambda module: str(module["name"]))
        took = f"{self.report['seconds']:.0f} s, {self.report['jobs']} files at once"
        lines = [f"{what}: {len(modules)} modules in one graph: {took}"]
        for module in modules:
            name, why = module["name"], f": {module['reason']}" if module["reason"] else ""
            there = name in self.before
            status = "there before" if there else module["status"]
            lines.append(f"{status}: {name}{'' if there else compiling(name)}{why}")
        for example, why in self.report["ended"].items():
            lines.append(f"not all of {Path(example).parent.name}/{Path(example).name}: {why}")
        late = compiled() - self.before - {module["name"] for module in modules}
        return lines + [f"compiled by a test: {name}{compiling(name)}" for name in sorted(late)]


def build(wanted: Plan, folder: Path) -> Modules:
    """Compile the modules of a plan."""
    before, out = compiled(), folder / "build.json"
    write_json(folder / "plan.json", wanted)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, __file__, str(folder / "plan.json"), str(out)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.splitlines() or [f"status {done.returncode}"])[-1]
        return Modules(wanted, before, None, said)
    return Modules(wanted, before, read_json(out))


def modules(wanted: Plan, ended: dict[str, str]) -> list[Any]:
    """The JIT modules (JitSpec) of a plan, one per name. ended: takes up why an example came to no end."""
    capabilities = builds.capabilities(os.environ, nvml.capabilities)
    found: list[Any] = []
    for name, entries in wanted["points"].items():
        points = [sweep.Planned(**entry) for entry in entries]
        target = load(name)
        found += builds.modules(target, builds.buildable(target, points, capabilities, print))
    for example in wanted["examples"]:
        why = run_without(Path(example), found)
        if why:
            ended[example] = why
    return list({spec.name: spec for spec in found}.values())


def run_without(example: Path, found: list[Any]) -> str | None:
    """Run a script without the modules that it asks for, which are added to ``found``: outputs are zeros, assertions hold.

    Returns why its first statement failed that did; those after it are run all the same, for what they ask for.
    """
    import torch
    from flashinfer.jit.core import JitSpec

    original, why = JitSpec.build_and_load, None

    def asked(spec: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(spec, "write_ninja"):  # of the CuTe DSL, in no graph
            return original(spec, *args, **kwargs)
        found.append(spec)
        return _Nothing(1)

    tree = _Unasserted().visit(ast.parse(example.read_text("utf-8")))
    scope = {"__name__": example.stem}
    with (
        patch.object(JitSpec, "build_and_load", asked),
        patch.object(torch, "empty", torch.zeros),
    ):
        for statement in tree.body:
            try:
                exec(compile(ast.Module([statement], []), str(example), "exec"), scope)
            except Exception as error:
                why = why or builds.one_line(error)
    return why


class _Nothing(int):
    """A module that is not there, what it has, and what that returns: a count of one, or a pair of them."""

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Nothing:
        return self

    def __iter__(self) -> Iterator[_Nothing]:
        return iter((self, self))


class _Unasserted(ast.NodeTransformer):
    """Assertions become expressions: the calls in them are made."""

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        return ast.copy_location(ast.Expr(node.test), node)


def main(given: Path, out: Path) -> None:
    start, jobs = time.perf_counter(), len(os.sched_getaffinity(0))
    ended: dict[str, str] = {}
    specs: Sequence[Any] = modules(read_json(given), ended)
    report = {"modules": builds.build(specs, jobs, print), "jobs": jobs, "ended": ended}
    write_json(out, report | {"seconds": time.perf_counter() - start})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
