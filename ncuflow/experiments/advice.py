"""Advice: what is asked for, and which choice of each shape is fastest on this machine's GPU, or in a recording."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.experiments import audit, choices, heuristics, recorded
from ncuflow.experiments.advise import ShapeRace
from ncuflow.experiments.record import Advice, AdvisedShape, head
from ncuflow.gpu import lock, nvml
from ncuflow.io import BadInput, CommandError, UsageError, clean, read_json, sniff
from ncuflow.race.eta import tell
from ncuflow.race.rounds import ALPHA
from ncuflow.race.sides import GaveUpError, Session, SideError, started
from ncuflow.run import FATAL
from ncuflow.sweep import workloads
from ncuflow.sweep.points import Planned, of_target, points, read_points, unable
from ncuflow.target.contract import Target, known, load

BUILD_S = 3600.0
RECORDED = "`ncuflow advise --recorded`"
BUDGET_S = 5.0
COLD = "time_cold_us"
Cases = list[tuple[Target, list[Planned]]]  # targets with their shapes


@dataclass(frozen=True)
class ShapesAsked:
    """What is advised on. targets: those to take, of several; also: what is free beside what targets declare."""

    targets: Sequence[str]
    also: Mapping[str, Sequence[Any]]
    workload: Sequence[Path] | None = None
    points: Sequence[Path] | None = None
    blocks: Sequence[Mapping[str, Any]] | None = None

    def cases(self) -> tuple[Cases, list[str]]:
        """(targets with their shapes, a line for each case that no target measures)."""
        refused: list[str] = []
        try:
            wanted = [load(name).name for name in self.targets]
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.points is not None:
            found = _of_points(self.points)
        elif self.workload is not None:
            found, refused = _workload(self.workload)
        elif len(wanted) == 1:
            found = {wanted[0]: of_target(wanted[0], None, self.blocks)[1]}
        else:
            raise UsageError(
                "one TARGET, or --workload, --points, --recorded or --audit, says what is advised"
            )
        targets = [load(name) for name in found if name in (wanted or found)]
        if not targets:
            raise UsageError("none of the targets that were asked for is among the shapes")
        self.check_free(targets)
        return [(t, choices.shapes(t, found[t.name], self.also)) for t in targets], refused

    def check_free(self, targets: Sequence[Target]) -> None:
        """Raises UsageError where something is to be free that none of the targets has."""
        try:
            choices.known_to(targets, self.also)
        except ValueError as error:
            raise UsageError(f"--also: {error}") from None


@dataclass(frozen=True)
class RaceLimits:
    """How choices are timed. effect: the difference that matters, of 1; patience_s: of a check or a burst, after which a choice
    hangs; budget_s: of a shape's rounds; jobs: files compiled at once."""

    effect: float
    patience_s: float
    budget_s: float = BUDGET_S
    jobs: int | None = None


def of_recording(path: Path, asked: ShapesAsked, effect: float) -> Advice:
    """The advice of a recording, or one that was written before."""
    if path.is_dir():
        named = [known()[name] for name in asked.targets or known() if name in known()]
        asked.check_free(named)
        return recorded.advise(path, asked.targets or None, asked.also, COLD, effect)
    found = recorded.read(path)
    found.shapes = [s for s in found.shapes if s.target in (asked.targets or (s.target,))]
    found.rules = heuristics.rules(found.shapes, found.metric)
    return found


def audited(store: Path, names: Sequence[str], limits: RaceLimits) -> audit.Audit:
    """What FlashInfer's autotuner stored, held against the runners-up on this GPU."""
    stored = audit.read_store(store)
    targets = [load(name) for name in names or known()]
    with racing(limits) as session:
        entries = [
            audit.audited(session, entry, targets, len(stored), limits.effect, tell)
            for entry in stored
        ]
        about = head(session.facts["name"], session.driver)
    return audit.Audit(**about, effect=limits.effect, alpha=ALPHA, entries=entries)


def _of_points(paths: Sequence[Path]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for path in paths:
        content = read_json(path)
        try:
            target = load(content[0]["target"])
        except (LookupError, TypeError):
            raise BadInput(path, "not a list of points") from None
        except ValueError as error:
            raise BadInput(path, str(error)) from None
        found.setdefault(target.name, []).extend(read_points(path, target))
    return found


def _workload(paths: Sequence[Path]) -> tuple[dict[str, list[Planned]], list[str]]:
    """(points by target, what was refused). Raises BadInput where there are none."""
    blocks, refused = _blocks(paths)
    try:
        return {name: points(load(name), some) for name, some in blocks.items()}, refused
    except ValueError as error:
        raise BadInput(paths[0], str(error)) from None


def _blocks(paths: Sequence[Path]) -> tuple[Mapping[str, list[Any]], list[str]]:
    """(blocks by target, what was refused): of the configuration of a sweep, or of what `ncuflow workload` reads."""
    if len(paths) == 1 and paths[0].is_file():
        sniff(paths[0])
        if paths[0].suffix == ".json":
            content = read_json(paths[0])
            if isinstance(content, dict) and isinstance(content.get("sweeps"), dict):
                name = content.get("sweep")
                sweeps = content["sweeps"]
                if name not in sweeps or not isinstance(sweeps[name], dict):
                    raise BadInput(paths[0], f"a configuration without its sweep {name!r}")
                return sweeps[name], []
    blocks, refused, _ = workloads.read(list(paths))
    if not blocks:
        raise BadInput(paths[0], "holds no case that can be measured")
    return blocks, refused


# --- on a GPU ---------------------------------------------------------------------------------


@contextmanager
def racing(limits: RaceLimits) -> Iterator[Session]:
    """A GPU that nobody else uses, and a process on it. Raises CommandError where there is none, or it is lost for good."""
    nvml.needed(RECORDED)  # who has no GPU need not wait for a compiler to hear of it
    with lock.gpu_lock() as held, ExitStack() as stack:
        session = Session(
            lambda: stack.enter_context(started(None, None, held.environ, held.locks)),
            limits.patience_s,
            limits.budget_s,
        )
        try:
            found = session.ask("gpu")
            session.facts, session.driver = found["facts"], found["driver"]
            yield session
        except (SideError, GaveUpError) as error:
            raise CommandError(clean(str(error)), FATAL) from None


def measured(asked: ShapesAsked, limits: RaceLimits, store: Path | None = None) -> Advice:
    """The advice of a race on this machine's GPU; published through FlashInfer's autotuner into ``store``."""
    cases, refused = asked.cases()
    with racing(limits) as session:
        failed = _built(session, cases, asked.also, limits.jobs)
        number = sum(len(shapes) for _, shapes in cases)
        advised = [
            ShapeRace(session, target, shape, asked.also, number, limits.effect, tell).advised()
            for target, shapes in cases
            for shape in shapes
        ]
        if store is not None:
            _published(session, advised, store)
        about = head(session.facts["name"], session.driver)
    return Advice(
        **about,
        tier="B",
        recording=None,
        metric=COLD,
        effect=limits.effect,
        alpha=ALPHA,
        shapes=advised,
        rules=heuristics.rules(advised, COLD),
        refused=refused,
        failed_modules=failed,
    )


def _published(session: Session, shapes: Sequence[AdvisedShape], store: Path) -> None:
    """Let FlashInfer's autotuner store what it tunes of the advised calls, and say how many that were."""
    entries, kept, reason = 0, 0, None
    for shape in shapes:
        chosen = shape.choice(shape.advised)
        if chosen is None:
            continue
        params = {**shape.params, **chosen.settings}
        point = {"id": chosen.point, "target": shape.target, "params": params}
        found = session.ask("publish", point=point, root=str(store.absolute()))
        entries, kept = entries + found["entries"], kept + bool(found["entries"])
        reason = found["reason"] or reason
    tell(
        reason
        or f"{store}: FlashInfer's autotuner keeps {entries} choices of {kept} of {len(shapes)} shapes"
    )


def _built(session: Session, cases: Cases, also: choices.Also, jobs: int | None) -> dict[str, str]:
    """Compile what all choices need, in one graph; the modules that do not compile, with why."""
    wanted = [
        choice.as_dict()
        for target, shapes in cases
        for shape in shapes
        for choice in choices.choices(target, shape, also)
        if unable(target, choice, session.facts) is None
    ]
    tell(f"{len(wanted)} choices; compiling what of them is not compiled yet")
    jobs = jobs or len(os.sched_getaffinity(0))
    session.ask("modules", BUILD_S, points=wanted)
    failed = session.ask("build", BUILD_S, jobs=jobs)["failed"]
    return {one["name"] or ", ".join(one["points"]): one["reason"] for one in failed}
