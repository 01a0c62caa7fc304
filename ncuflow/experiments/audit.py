"""An audit of what FlashInfer's autotuner keeps: each stored tactic raced against all others of its runner for the same call.

A store is a folder (`autotune_v2`), v2/<environment>/{manifest.json,entries/*.json}, an entry {"key", "runner", "tactic", …};
or a file (`autotune(cache=…)`), which maps keys to [runner, tactic, …] beside what begins with an underscore.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Literal

from pydantic import Field

from ncuflow.answer import Answer
from ncuflow.experiments.text import between
from ncuflow.format import aligned, in_one_unit
from ncuflow.io import BadInput, clean, read_json
from ncuflow.race import record, rounds
from ncuflow.race.sides import GaveUpError, LostError, Session, SideError, burst
from ncuflow.record import Chance, Count, Effect, Microseconds, Strict
from ncuflow.sweep.points import Planned, expand
from ncuflow.target.contract import Target

DTYPE = re.compile(r"torch\.\w+")


@dataclass(frozen=True)
class StoredTactic:
    """A choice of the tuner's. operation, runner, shapes: of its key, shapes None where it cannot be read; environment: what
    the store says of where it was tuned."""

    key: str
    runner: str
    tactic: Any
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> tuple[str, list[list[int]]] | None:
        """(operation, shapes of its tensors); None of a key of another form."""
        try:
            found = ast.literal_eval(DTYPE.sub(lambda dtype: repr(dtype[0]), self.key))
            operation, _, shapes = found[:3]
            return str(operation), [[int(size) for size in shape] for shape in shapes]
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None


def read_store(path: Path) -> list[StoredTactic]:
    """All choices of a store, by key. Raises BadInput where it is none."""
    found = list(_folder(path) if path.is_dir() else _file(path))
    if not found:
        raise BadInput(
            path, "no store of FlashInfer's autotuner: neither entries/*.json nor a file of choices"
        )
    return sorted(found, key=lambda entry: (entry.environment, entry.key))


def _folder(folder: Path) -> Iterator[StoredTactic]:
    for path in sorted(folder.rglob("entries/*.json")):
        content = read_json(path)
        if not isinstance(content, dict) or not {"key", "runner", "tactic"} <= content.keys():
            raise BadInput(path, "not an entry of FlashInfer's autotuner")
        manifest = path.parents[1] / "manifest.json"
        about = read_json(manifest) if manifest.is_file() else {}
        yield _entry(content["key"], content["runner"], content["tactic"], about)


def _file(path: Path) -> Iterator[StoredTactic]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise BadInput(path, "not a file of FlashInfer's autotuner")
    about = content.get("_metadata") or {}
    for key, value in content.items():
        if key.startswith("_"):
            continue
        if not isinstance(value, list) or len(value) < 2:
            raise BadInput(path, f"{clean(key)}: not [runner, tactic]")
        yield _entry(key, value[0], value[1], about)


def _entry(key: Any, runner: Any, tactic: Any, about: Any) -> StoredTactic:
    known = about if isinstance(about, dict) else {}
    environment = tuple(sorted((clean(str(k)), clean(str(v))) for k, v in known.items()))
    return StoredTactic(clean(str(key)), clean(str(runner)), tactic, environment)


class TacticDifference(Strict):
    """A key under which two stores keep something else."""

    key: str
    """The autotuner's key."""
    first: str
    """The runner and tactic of the first store."""
    second: str
    """The runner and tactic of the second store."""


class StoreComparison(Answer):
    """Two stores of FlashInfer's autotuner against each other."""

    ROWS: ClassVar[tuple[str, ...]] = ("different",)
    command: Literal["advise"] = "advise"
    """The command that wrote this JSON."""
    same: int
    """How many keys have the same choice in both stores."""
    different: list[TacticDifference]
    """The keys under which they have different choices."""
    only_first: list[str]
    """The keys that only the first store has."""
    only_second: list[str]
    """The keys that only the second store has."""
    environments: dict[str, list[str]] = Field(default_factory=dict)
    """Where the stores say that they were tuned in different environments: the first's values, then the second's."""


def compare_stores(first: list[StoredTactic], second: list[StoredTactic]) -> StoreComparison:
    """What two stores do not agree in."""
    sides = [{entry.key: entry for entry in side} for side in (first, second)]
    both = [key for key in sides[0] if key in sides[1]]
    told = [[tactic_name(side[key]) for key in both] for side in sides]
    unlike = [
        TacticDifference(key=k, first=a, second=b)
        for k, a, b in zip(both, *told, strict=True)
        if a != b
    ]
    return StoreComparison(
        same=len(both) - len(unlike),
        different=unlike,
        only_first=[key for key in sides[0] if key not in sides[1]],
        only_second=[key for key in sides[1] if key not in sides[0]],
        environments=_environments(first, second),
    )


def tactic_name(entry: StoredTactic) -> str:
    return f"{entry.runner} {entry.tactic}"


def _environments(first: list[StoredTactic], second: list[StoredTactic]) -> dict[str, list[str]]:
    found = []
    for side in (first, second):
        values: dict[str, set[str]] = {}
        for entry in side:
            for key, value in entry.environment:
                values.setdefault(key, set()).add(value)
        found.append({key: ", ".join(sorted(some)) for key, some in values.items()})
    names = sorted({*found[0], *found[1]})
    both = {name: [side.get(name, "not said") for side in found] for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def comparison_text(found: StoreComparison) -> str:
    """What a comparison of two stores says."""
    total = found.same + len(found.different)
    lines = [f"{len(found.different)} of {total} choices differ"]
    lines += [f"  {one.key}: {one.first}, {one.second}" for one in found.different]
    for which, keys in (("first", found.only_first), ("second", found.only_second)):
        lines += [f"the {which} store alone: {key}" for key in keys]
    lines += [f"{name}: {a}; {b}" for name, (a, b) in found.environments.items()]
    return "\n".join(lines) + "\n"


Verdict = Literal["right", "within noise", "wrong", "undecided", "not timed"]


class AuditedTactic(Strict):
    """One choice of the tuner's."""

    key: str
    """The key under which the choice is stored."""
    runner: str
    """The autotuner's name of the runner that computes the call."""
    tactic: str
    """The stored tactic."""
    verdict: Verdict
    """right: it is significantly faster than all others; within noise: no other is; wrong: another is significantly
    faster; undecided: the noise is too large; not timed: its call cannot be made here."""
    reason: str | None = None
    """The reason why it was not timed."""
    point: str | None = None
    """The point whose call was timed."""
    tactics: Count | None = None
    """How many tactics were raced."""
    failed: Count | None = None
    """How many tactics of the runner gave a wrong result, or failed."""
    time_us: Microseconds | None = None
    """The median time of the stored tactic, µs."""
    best: list[str] = Field(default_factory=list)
    """The tactics that no other is significantly faster than, the fastest first."""
    cost: record.Relative | None = None
    """What the stored tactic takes longer than the fastest."""


class Audit(Answer):
    """What a tuner's choices cost."""

    ROWS: ClassVar[tuple[str, ...]] = ("entries",)
    command: Literal["advise"] = "advise"
    """The command that wrote this JSON."""
    gpu: str | None
    """The name of the GPU that the tactics were timed on."""
    versions: dict[str, str | None]
    """The versions that the tactics were timed with."""
    date: str
    """The date of the timing, UTC."""
    effect: Effect
    """The minimum effect: the relative difference of times below which two are the same, as a fraction of 1."""
    alpha: Chance
    """The chance that any verdict here is wrong by noise."""
    entries: list[AuditedTactic]
    """Each stored choice."""


def point_of(entry: StoredTactic, targets: Sequence[Target]) -> tuple[Target, Planned] | None:
    """The target and the point whose call a choice is kept for; None where no target knows it."""
    parts = entry.parts
    for target in targets if parts else ():
        assert parts is not None
        params = target.tuned(parts[0], entry.runner, parts[1])
        if params is not None:
            with suppress(ValueError):
                (whole,) = expand([params], target.parameters, target.choices)
                return target, Planned(target.point_id(whole), target.name, whole)
    return None


MOST_LOST = 20  # entries of a store that break their process, one after the other


@dataclass(frozen=True)
class StoreAudit:
    """Entries of a store are raced, one after the other. entries: of the whole run."""

    session: Session
    targets: Sequence[Target]
    entries: int
    effect: float
    tell: Callable[[str], None]

    def audited(self, entry: StoredTactic) -> AuditedTactic:
        """What a race of the tactics of one entry's call says of it."""
        found = AuditedTactic(
            key=entry.key, runner=entry.runner, tactic=str(entry.tactic), verdict="not timed"
        )
        if (place := point_of(entry, self.targets)) is None:
            found.reason = "no target makes this call"
            return found
        target, point = place
        found.point = point.id
        found.reason = target.skip(point.params, self.session.facts)
        if found.reason is not None:
            return found
        try:
            self._race(entry, point, found)
        except LostError as error:
            if self.session.restarts > MOST_LOST:
                raise GaveUpError(str(error)) from None
            found.reason = str(error)
        except SideError as error:
            found.reason = str(error)
        with suppress(SideError):
            self.session.ask("close")
        self.tell(f"{point.id}: {tactic_name(entry)}: {found.verdict}")
        return found

    def _race(self, entry: StoredTactic, point: Planned, found: AuditedTactic) -> None:
        assert entry.parts is not None
        asked: dict[str, Any] = {
            "operation": entry.parts[0],
            "runner": entry.runner,
            "key": entry.key,
        }
        call = self.session.ask("tactics", point=point.as_dict(), **asked)
        if not call["reached"]:
            found.reason = "the call of this shape is kept under another key here"
            return
        own = json.dumps(entry.tactic)
        tactics = {json.dumps(tactic): tactic for tactic in [entry.tactic, *call["tactics"]]}
        ready = [n for n, t in tactics.items() if self._ready(n, t, checked=True)]
        found.failed = len(tactics) - len(ready)
        if own not in ready:
            found.reason = "the stored tactic gives a wrong result here, or fails"
            return
        found.tactics = len(ready)
        race = rounds.Race(ready, own, self.entries, self.effect)
        if not self._ready(own + rounds.AA, entry.tactic, checked=False):
            race.fail(own + rounds.AA)
        until = monotonic() + self.session.budget_s

        def failed(name: str, error: SideError) -> None:
            raise error

        rounds.run(
            race,
            lambda name: burst(self.session, self.session.limit_s, name=name)[0],
            lambda: monotonic() > until,
            failed,
            lambda left, over: None,
        )
        _conclude(race, own, found)

    def _ready(self, name: str, tactic: Any, checked: bool) -> bool:
        """Whether a tactic can be timed. One that fails costs itself alone, unless it breaks the process."""
        try:
            answer = self.session.ask("tactic", name=name, tactic=tactic, checked=checked)
        except LostError:
            raise
        except SideError:
            return False
        return bool(answer["status"] == "ok")


def _conclude(race: rounds.Race, own: str, found: AuditedTactic) -> None:
    found.time_us = race.time_us(own)
    found.best = sorted(race.remaining, key=lambda name: race.time_us(name) or 0)
    found.cost = race.against(own, race.leader).relative
    if own not in race.remaining:
        found.verdict = "wrong"
    elif race.decision() == "winner":
        found.verdict = "right"
    else:
        found.verdict = "within noise" if race.decision() == "tie" else "undecided"


def audit_text(audit: Audit) -> str:
    """What an audit says, on one screen."""
    unit, took = in_one_unit([one.time_us for one in audit.entries])
    head = ("call", "stored", f"time, {unit}", "verdict", "costs", "fastest", "of")
    rows = [
        (
            one.point or one.key,
            f"{one.runner} {one.tactic}",
            time,
            one.verdict,
            between(one.cost) if one.cost and one.verdict == "wrong" else "–",
            ", ".join(one.best[:3]) or "–",
            str(one.tactics or "–"),
        )
        for one, time in zip(audit.entries, took, strict=True)
    ]
    counts = {v: sum(one.verdict == v for one in audit.entries) for v in Verdict.__args__}  # type: ignore[attr-defined]
    lines = [aligned(head, rows, left=2).rstrip(), ""]
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    reasons = {one.reason: one for one in audit.entries if one.reason}
    lines += [f"not timed: {reason} ({one.point or one.key})" for reason, one in reasons.items()]
    return "\n".join(lines) + "\n"
