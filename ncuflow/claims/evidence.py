"""Claim evidence: the points, JIT modules, ceilings and source facts that a claim can be decided over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ncuflow.claims.model import Claim, Decision, Selection
from ncuflow.claims.paired import PairTimes, pair_times, paired
from ncuflow.claims.source_facts import SourceFacts
from ncuflow.expression import Functions, conditions, evaluate
from ncuflow.findings import stored
from ncuflow.findings.scope import Scope, ValueOrigin, machine_scope, point_scope, possible_names
from ncuflow.model import Ceilings, Provenance, Results

Jit = dict[str, Any]  # what was measured of the JIT, by module

# What ncuflow.run.jit measures of a module; a step that failed, or that a prebuilt module spared, lacks
# its own.
JIT_NAMES = frozenset({
    "aot", "cache_paths", "cold_aot", "cold_build_s", "cold_generation_s", "cold_library_bytes",
    "cold_load_s", "cold_uri", "cold_write_ninja_s", "disk_build_and_load_s", "disk_generation_s",
    "disk_memory_hit_s", "disk_n", "disk_up_to_date_check_s", "first_launch_first_launch_s",
    "first_launch_later_launch_s",
})  # fmt: skip


class Unanswered(Exception):  # noqa: N818  (no error: the evidence has no answer)
    """Why a decision cannot be made from this evidence."""


@dataclass
class ClaimEvidence:
    """Everything under ``results/``, and the source index where there is one."""

    results: dict[str, Results]
    jit: Jit | None = None
    source: SourceFacts | None = None
    machine: Provenance | None = None
    _scopes: dict[str, list[Scope]] = field(default_factory=dict)
    _pair_times: dict[str, PairTimes] = field(default_factory=dict)

    def provenance(self, target: str) -> Provenance | None:
        """Provenance of a target's results; the machine's where the target was not measured."""
        if target in self.results:
            return self.results[target]["provenance"]
        if target == "jit" and self.jit and self.jit.get("provenance"):
            return cast(Provenance, self.jit["provenance"])
        return self.machine or next((r["provenance"] for r in self.results.values()), None)

    def ceilings(self, target: str) -> Ceilings | None:
        """Ceilings of the machine, as the target's results have them, or those of another target; None without any."""
        of = [self.results.get(target), *self.results.values()]
        return next((found["ceilings"] for found in of if found and found["ceilings"]), None)

    def functions(self, over: str) -> Functions:
        """The calls that a decision over this may use, beside those of every expression."""
        return self.source.functions if over == "source" and self.source else {}

    def scopes(self, target: str) -> list[Scope]:
        """A scope for each point of a target that ran and gave the right result."""
        if target not in self._scopes and target in self.results:
            results = self.results[target]
            possible = possible_names(results)
            self._scopes[target] = [
                point_scope(entry, results, possible)
                for entry in results["points"]
                if entry["status"] == "ok"
            ]
        return self._scopes.get(target, [])

    def pair_times(self, targets: set[str]) -> PairTimes:
        """The times of the targets' points that were timed in turns."""
        for target in targets & self.results.keys() - self._pair_times.keys():
            self._pair_times[target] = pair_times(self.results[target])
        return {
            pair: of for target in targets for pair, of in self._pair_times.get(target, {}).items()
        }

    def parameters(self, targets: set[str]) -> set[str]:
        """Names of the points' parameters."""
        found = [self.results[target] for target in targets & self.results.keys()]
        return {
            name for results in found for entry in results["points"] for name in entry["params"]
        }

    @cached_property
    def jit_scopes(self) -> list[Scope]:
        """A scope for each JIT module."""
        return [_of_module(name, row) for name, row in (self.jit or {}).get("modules", {}).items()]


def load(
    results: Path, source_index: Path | None, targets: Sequence[str] | None = None
) -> ClaimEvidence:
    """Evidence of these targets (``jit`` among them) in a results folder, or of all that it holds.

    Raises BadInput for a folder without results, and for a file that is named but not there.
    """
    machine = stored.optional(results / "environment_info.json")
    index = (
        stored.written(source_index, "source_index.json")
        if source_index
        else stored.optional(results / "source_index.json")
    )
    with_jit = targets is None or "jit" in targets
    return ClaimEvidence(
        results=stored.folder(results, targets),
        jit=stored.optional(results / "jit_analysis.json") if with_jit else None,
        source=SourceFacts(index) if index else None,
        machine=machine.get("provenance") if machine else None,
    )


def select(
    claim: Claim,
    decide: Decision,
    evidence: ClaimEvidence,
    others: Mapping[str, ClaimEvidence] | None = None,
) -> list[Scope]:
    """The scopes that a decision is made over. Raises Unanswered where there is none.

    others: the evidence of a sample, by its name, where it is another one.
    """
    if decide.over == "arithmetic":
        return [Scope({})]
    if decide.over == "source":
        if evidence.source is None:
            raise Unanswered(
                "the evidence has no source_index.json of the FlashInfer that was measured"
            )
        return [Scope({})]
    if decide.over == "machine":
        ceilings = evidence.ceilings(claim.applies.target)
        if ceilings is None:
            raise Unanswered("the evidence has no ceilings of its machine")
        return [machine_scope(ceilings)]
    narrowed = (claim.applies, decide.select)
    if decide.over == "jit":
        if not evidence.jit_scopes:
            raise Unanswered("the evidence has no jit_analysis.json")
        return _filtered(evidence.jit_scopes, narrowed)
    if decide.samples is None:
        return _points(narrowed, evidence)
    samples = {name: (*narrowed, sample) for name, sample in decide.samples.items()}
    of = others or {}
    scopes = {name: _points(chosen, of.get(name, evidence)) for name, chosen in samples.items()}
    targets = {_last("target", s) for s in samples.values()}
    found = paired(
        scopes, decide.differ, evidence.parameters(targets), evidence.pair_times(targets)
    )
    if not found:
        raise Unanswered(f"no points of {' and '.join(scopes)} that agree in every other parameter")
    return found


def _last(key: str, selections: Sequence[Selection]) -> Any:
    """What the last selection that says something of it says; every ``where`` must hold, though."""
    return next((v for s in reversed(selections) if (v := getattr(s, key)) is not None), None)


def _points(selections: Sequence[Selection], evidence: ClaimEvidence) -> list[Scope]:
    target = _last("target", selections)
    scopes = _filtered(evidence.scopes(target), selections)
    if not scopes:
        globs = _last("points", selections) or []
        wanted = [term for s in selections if s.where for term in conditions(s.where)]
        which = ", ".join([*globs, *dict.fromkeys(wanted)])
        raise Unanswered(
            f"no {target} point was measured with {which}"
            if which
            else f"no {target} point was measured"
        )
    return scopes


def _filtered(scopes: Sequence[Scope], selections: Sequence[Selection]) -> list[Scope]:
    globs = _last("points", selections) or ["*"]
    return [
        scope
        for scope in scopes
        if any(fnmatchcase(scope.point or "", glob) for glob in globs)
        and all(evaluate(s.where, scope) is True for s in selections if s.where is not None)
    ]


def _of_module(name: str, row: Jit) -> Scope:
    """Nested keys joined by '_' (``cold_build_s``); the cache's file names in ``cache_paths``.

    The noise of a host time is half the range of its samples.
    """
    values: dict[str, Any] = {"module": name}
    for key, value in row.items():
        parts = value if isinstance(value, dict) and key != "cache" else {"": value}
        values |= {f"{key}_{part}".rstrip("_"): inner for part, inner in parts.items()}
    values["cache_paths"] = list(row["cache"]) if "cache" in row else None
    values.pop("cache", None)
    point = f"jit/{name}"

    def origin(key: str) -> ValueOrigin | None:
        return (
            ValueOrigin("jit/jit_analysis.json", point, None, key, None) if key in values else None
        )

    def spread(key: str) -> float | None:
        samples, value = values.get(f"{key}_samples"), values.get(key)
        return (max(samples) - min(samples)) / 2 / value if samples and value else None

    return Scope(values | {"point": point}, JIT_NAMES, point, origin, spread)
