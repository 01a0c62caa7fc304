"""One side of a trial: a process that has one FlashInfer loaded, and does what a line tells it.

    ncuflow trial-worker TARGET --answers FD [--package FOLDER]
    ncuflow trial-worker TARGET --trace POINTS OUT [--package FOLDER]

A line of its standard input is a request, {"do": …} with what that takes; the answer is a line of the file descriptor.
What FlashInfer and torch print goes to standard output, which is no part of that. With --trace it launches points for a
profiler, as `ncuflow launch --mode trace` does, and ends.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ncuflow.runner import builds, timing
from ncuflow.runner import run as launch
from ncuflow.runner.check import CheckedLaunch, check, check_aside, check_extreme, warm_up
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target, load
from ncuflow.target.launch import Launch, NotHereError
from ncuflow.trial.candidate import Substitute
from ncuflow.trial.reach import Module
from ncuflow.trial.record import CheckedCase, CompileError, Worst
from ncuflow.trial.told import Answer, ToldProcess, gpu, planned, reset

SEEDS = (0, 1)  # a result that was kept from the first call is wrong in the second
LAUNCHES = 10  # of a burst
# nvcc: file(line): error: …; the host's compiler: file:line:column: error: …
_ERROR = re.compile(
    r"(?P<file>[^\s:(][^:(]*)(?:\((?P<nvcc>\d+)\)|:(?P<host>\d+)(?::\d+)?):\s*"
    r"(?:catastrophic |fatal )?error\b[^:]*:\s*(?P<what>.+)"
)


class Generated:
    """A module of another side, for the builder: FlashInfer generated what it takes there."""

    def __init__(self, module: Module) -> None:
        self.name, self.sources = module.name, range(module.files)
        self.ninja_path = module.folder / "build.ninja"
        self.jit_library_path = module.library
        # Nobody else compiles what a change generated: its folder goes with the trial.
        self.lock_path = module.folder / "lock"

    def write_ninja(self) -> None:
        """It is written."""


class Worker(ToldProcess):
    """What a side can do."""

    def __init__(self, target: Target, device: Callable[[], Any], candidate: str = "") -> None:
        super().__init__(device)
        self.target, self._candidate = target, candidate
        self._substitute: Substitute | None = None
        self._launch: Launch | None = None
        self._each = 1.0
        self._specs: dict[str, Any] = {}
        self._needed: dict[str, list[str]] = {}  # by the name of a module, ids of points
        self._failed: list[Answer] = []

    def do_hello(self) -> Answer:
        """Which FlashInfer this is, and where what it generates lies."""
        import flashinfer
        from flashinfer.jit import env

        package = str(Path(str(flashinfer.__file__)).parent)
        return {"package": package, "workspace": str(env.FLASHINFER_WORKSPACE_DIR)}

    def do_modules(self, points: list[Answer]) -> Answer:
        """Generate sources and build files of the points' modules. CuTe DSL compiles at the first launch, and has none.

        A point of which that fails is among those that `build` names.
        """
        self._specs, self._needed, self._failed = {}, {}, []
        for point in points:
            try:
                specs = builds.modules(self.target, [planned(point)])
                for spec in specs:
                    if spec.name not in self._specs and hasattr(spec, "write_ninja"):
                        spec.write_ninja()
            except Exception as error:
                failed = {"name": None, "reason": builds.one_line(error), "complaint": None}
                self._failed.append(failed | {"points": [point["id"]]})
                continue
            for spec in specs:
                self._specs.setdefault(spec.name, spec)
                self._needed.setdefault(spec.name, []).append(point["id"])
        return {"modules": [_said(s) for s in self._specs.values() if hasattr(s, "write_ninja")]}

    def do_build(self, jobs: int) -> Answer:
        """Compile the modules of the last request, and what failed: {"failed": [{"name": of a module, null where there is none
        yet, "points": ids of those that need it, "reason", "complaint"}]}."""
        told: list[str] = []
        built = builds.build(list(self._specs.values()), jobs, told.append)
        failed = list(self._failed)
        for module in built:
            if module["status"] == "error":
                name = module["name"]
                own = [
                    t for text in told if text.startswith(f"{name}: ") for t in text.splitlines()
                ]
                complaint = first_error(own)
                said = complaint.model_dump() if complaint else None
                what = {"name": name, "reason": module["reason"], "complaint": said}
                failed.append(what | {"points": self._needed[name]})
        return {"failed": failed}

    def do_compile(self, modules: list[Answer], jobs: int) -> Answer:
        """Compile modules of other sides in one graph, whose sources and build files they generated. What fails there, its
        own side builds again, and has the compiler's complaint."""
        specs = [Generated(Module.model_validate(module)) for module in modules]
        builds.together(specs, jobs, lambda line: None)
        return {}

    def do_check(self, point: Answer, seeds: Sequence[int] = SEEDS) -> Answer:
        """Hold a point against its reference, with the inputs of each seed: a CheckedCase."""
        case = planned(point)
        reason = self.target.skip(case.params, self.device.facts())
        if reason is not None:
            return CheckedCase(id=case.id, status="skipped", reason=reason).model_dump()
        try:
            found = self._checked(case, seeds)
        except NotHereError as error:
            found = CheckedCase(id=case.id, status="skipped", reason=str(error))
        except Exception as error:
            found = CheckedCase(id=case.id, status="error", reason=builds.one_line(error))
            if not self.device.alive():
                found.status = "lost"
        if found.status != "lost":
            self.device.release()
        return found.model_dump()

    def _checked(self, point: Planned, seeds: Sequence[int]) -> CheckedCase:
        """The first wrong result of the seeds, or the last right one. Memory stays allocated between the calls: the second
        one's inputs lie where the first one's lay, and tell a result that is kept by address."""
        found = None
        for seed in seeds:
            launch = self._prepare(point, seed)
            warm_up(self.device, launch)
            checked = check(self.device, launch)
            if checked.wrong is not None:
                return _wrong(point, checked, checked.wrong, seed)
            found = CheckedCase(id=point.id, status="ok", check=checked.check)
            del launch
            gc.collect()
        assert found is not None
        return found

    def do_aside(self, point: Answer) -> Answer:
        """Hold a point against its reference from a stream of its own, and with extreme inputs: {"wrong": {how it was
        launched: CheckedCase}}."""
        case = planned(point)
        launch = self._prepare(case, SEEDS[0])
        warm_up(self.device, launch)
        found = {"launched from a stream of its own": check_aside(self.device, launch)}
        for what, put in launch.extremes.items():
            put()
            found[f"with {what}"] = check_extreme(self.device, launch)
        del launch
        self.device.release()
        return {
            "wrong": {
                how: _wrong(case, checked, f"{how}: {checked.wrong}", SEEDS[0]).model_dump()
                for how, checked in found.items()
                if checked.wrong is not None
            }
        }

    def _prepare(self, point: Planned, seed: int) -> Launch:
        if not self._candidate:
            return self.target.prepare(point.params, seed)
        if self._substitute is None:
            self._substitute = Substitute(self._candidate)
        return self._substitute.prepare(self.target, point.params, seed)

    def do_open(self, point: Answer, seed: int = SEEDS[0]) -> Answer:
        """Make a point ready to be timed: {"each_us"}. One that a failure left open goes first."""
        self._launch = None
        self._launch = self._prepare(planned(point), seed)
        warm_up(self.device, self._launch)
        reset(self._launch)
        self._each = max(min(self.device.cold(self._launch.run, 3).times), 1.0)
        return {"each_us": self._each}

    def do_burst(self) -> Answer:
        """Time launches of the point that is open, from settled clocks: {"times", "throttled"}."""
        assert self._launch is not None
        return self.burst(
            self._launch, self._each, LAUNCHES, timing.BURST_US, least=3, retakes=timing.RETAKES
        )

    def do_close(self) -> Answer:
        """Give the point's memory back."""
        self._launch = None
        self.device.release()
        return {}


def _wrong(point: Planned, checked: CheckedLaunch, reason: str, seed: int) -> CheckedCase:
    """What is said of a wrong result."""
    worst = None if checked.worst is None else Worst(**checked.worst)
    return CheckedCase(
        id=point.id, status="wrong", reason=reason, seed=seed, check=checked.check, worst=worst
    )


def _said(spec: Any) -> Answer:
    """A module that ninja builds, as a Module is told."""
    folder, library = str(Path(spec.ninja_path).parent), str(spec.jit_library_path)
    return {"name": spec.name, "folder": folder, "files": len(spec.sources), "library": library}


def first_error(lines: Sequence[str]) -> CompileError | None:
    """The first thing that a compiler complained of, with file and line; None where it named none."""
    found = next((match for line in lines if (match := _ERROR.match(line.strip()))), None)
    if found is None:
        return None
    return CompileError(
        file=found["file"], line=int(found["nvcc"] or found["host"]), message=found["what"].strip()
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--answers", type=int, help="file descriptor of the answers")
    what.add_argument(
        "--trace", nargs=2, metavar=("POINTS", "OUT"), help="launch these points, records to OUT"
    )
    parser.add_argument("--package", type=Path, help="folder of the FlashInfer to load")
    parser.add_argument("--candidate", default="", help="module:function in place of the API")


def run(args: argparse.Namespace) -> int:
    if args.package is not None:
        sys.path.insert(0, str(args.package.parent))
    # Modules that were compiled elsewhere, of other sources and by other flags, are those of neither side.
    if importlib.util.find_spec("flashinfer_jit_cache") is not None:
        sys.modules["flashinfer_jit_cache"] = None  # type: ignore[assignment]
    if args.trace:
        return _trace(args.target, *args.trace)
    Worker(load(args.target), gpu, args.candidate).serve(args.answers)
    return 0


def _trace(target: str, points: str, out: str) -> int:
    """One launch of each point in a profiler's range. They were found right before, and the profiler flushes itself."""
    words = argparse.Namespace(target=target, mode="trace", points=Path(points), out=Path(out))
    words.repeats, words.seed, words.order, words.rounds = 1, SEEDS[0], 0, timing.ROUNDS
    words.no_flush = words.unchecked = True
    words.visit_all = words.after_builds = False
    words.alone, words.pairs, words.pairs_out = False, None, None
    return launch.run(words)
