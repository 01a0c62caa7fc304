"""Claim evidence: the points, JIT modules, ceilings and source facts that a claim can be decided over."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import log1p, sqrt
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ncuflow.claims.files import Claim, Decision, Selection
from ncuflow.expression import Functions, conditions, evaluate
from ncuflow.findings import stored
from ncuflow.findings.jit import elsewhere
from ncuflow.findings.scope import (
    Scope,
    Value,
    ValueOrigin,
    Values,
    machine_scope,
    point_scope,
    possible_names,
)
from ncuflow.io import JsonObject
from ncuflow.model import Ceilings, Provenance, Results

HEADERS = "data/include/flashinfer/"
QUESTIONS = (
    "header_defines",
    "api_file",
    "reads_variable",
    "read_at",
    "exports",
    "accepts",
    "requires",
    "default",
    "position",
)


class SourceFacts:
    """Questions to a source index, which a claim decided over the source may ask."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        self.index = index

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The calls by the name that claims use."""
        return {name: getattr(self, name) for name in QUESTIONS}

    def header_defines(self, name: str, header: str | None = None) -> bool | None:
        """Whether a function of this name is defined in that CUDA header, or in any of
        FlashInfer's.

        header: below include/flashinfer, e.g. ``attention/variants.cuh``.
        """
        headers: dict[str, list[list[Any]]] = self.index.get("functions") or {}
        if header is not None:
            headers = {path: found for path, found in headers.items() if path == HEADERS + header}
        if not headers:
            return None
        return any(name == function[2] for found in headers.values() for function in found)

    def api_file(self, target: str, role: str) -> str | None:
        """The file of a target's API symbol (roles: python, jit, …), below the package's folder."""
        symbol = self.index.get("targets", {}).get(target, {}).get("api", {}).get(role)
        return str(symbol["file"]) if symbol else None

    def reads_variable(self, name: str) -> bool | None:
        """Whether the package reads this environment variable; unknown where no Python module does.

        The index holds what Python modules read, and not every name of those; C++ and CUDA sources read more.
        """
        return True if name in (self.index.get("environment") or {}) else None

    def read_at(self, name: str) -> str | None:
        """Where the package reads this environment variable first: file below the package's folder, and line."""
        places = (self.index.get("environment") or {}).get(name)
        return f"{places[0]['file']}:{places[0]['line']}" if places else None

    def exports(self, name: str) -> bool | None:
        """Whether ``import flashinfer`` has this name."""
        names = self.index.get("exports")
        return None if names is None else name in names

    def accepts(self, function: str, parameter: str) -> bool | None:
        """Whether a call may pass this parameter by name; unknown where ``**kwargs`` takes the
        rest.
        """
        parameters = self._parameters(function)
        if parameters is None:
            return None
        if any(p["name"] == parameter for p in parameters):
            return True
        return None if any(p["kind"] == "var_keyword" for p in parameters) else False

    def requires(self, function: str, parameter: str) -> bool | None:
        """Whether a call without this parameter is a TypeError."""
        parameters = self._parameters(function)
        if parameters is None:
            return None
        return any(
            p["name"] == parameter and p.get("default") is None and not p["kind"].startswith("var_")
            for p in parameters
        )

    def default(self, function: str, parameter: str) -> str | None:
        """The default of a parameter as it is written in the source."""
        for found in self._parameters(function) or ():
            if found["name"] == parameter:
                return found.get("default")
        return None

    def position(self, function: str, parameter: str) -> int | None:
        """The slot of a parameter that can be passed by position, from 0."""
        positional = [p for p in self._parameters(function) or () if p["kind"] == "positional"]
        names = [p["name"] for p in positional]
        return names.index(parameter) if parameter in names else None

    def _parameters(self, function: str) -> list[JsonObject] | None:
        """Of each: name, kind (positional, keyword, var_positional, var_keyword), default as text."""
        signatures = self.index.get("signatures") or {}
        return signatures.get(function)


# (point, other point) -> column -> its value at each of them, and the half width of the interval of their log ratio
PairTimes = Mapping[tuple[str, str], Mapping[str, tuple[float, float, float]]]


def pair_times(results: Results) -> PairTimes:
    """The times of all points that were timed in turns, by both orders of each two."""
    if not results.get("pairs"):
        return {}
    # scipy takes a second to import, and few claims compare points.
    from ncuflow.findings import choices

    found: dict[tuple[str, str], dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for one in choices.in_turns(results):
        if one.low is not None and one.high is not None:
            a, b, half = one.base, one.other, (log1p(one.high) - log1p(one.low)) / 2
            found[one.base_point, one.other_point][one.metric] = a, b, half
            found[one.other_point, one.base_point][one.metric] = b, a, half
    return found


def paired(
    scopes: dict[str, list[Scope]],
    differ: Iterable[str],
    params: Iterable[str],
    turns: PairTimes | None = None,
) -> list[Scope]:
    """Points of several samples joined where all parameters but ``differ`` agree.

    The joined scope has every name with its sample's name before it (``fused_time_cold_us``), and
    the parameters that agree plainly. Points without a partner in every sample are left out. Of two
    that were timed in turns (``turns``) the times are those, and ``in_turns`` is true.
    """
    names = sorted(set(params) - set(differ))
    first, *others = scopes

    def agreed(scope: Scope) -> tuple[Value, ...]:
        return tuple(map(scope.known.get, names))

    partners = {other: {agreed(s): s for s in reversed(scopes[other])} for other in others}
    out = []
    for scope in scopes[first]:
        key = agreed(scope)
        group = {first: scope} | {other: of[key] for other, of in partners.items() if key in of}
        if len(group) == len(scopes):
            out.append(_in_turns(_joined(group, names), group, turns or {}))
    return out


def _joined(group: dict[str, Scope], shared: list[str]) -> Scope:
    first = next(iter(group.values()))
    joined = Scope({name: first.known.get(name) for name in shared})
    joined.possible = first.possible | {f"{s}_{name}" for s in group for name in first.possible}
    joined.point = " / ".join(dict.fromkeys(str(scope.point) for scope in group.values()))
    owners: dict[str, tuple[Scope, str]] = {}
    for sample, scope in group.items():
        joined.known |= {f"{sample}_{name}": value for name, value in scope.known.items()}
        owners |= {f"{sample}_{name}": (scope, name) for name in scope.known}
    joined.origin = lambda name: owners[name][0].origin(owners[name][1]) if name in owners else None
    joined.noise = lambda name: owners[name][0].noise(owners[name][1]) if name in owners else None
    return joined


def _in_turns(joined: Scope, group: Mapping[str, Scope], turns: PairTimes) -> Scope:
    """The joined scope with the times that its points have in turns, where both have one of their own.

    Each side has its part of the noise of the pair: together they are the half width of its interval.
    """
    points = [str(scope.point) for scope in group.values()]
    times = turns.get((points[0], points[1]), {}) if len(points) == 2 else {}
    known = joined.known
    values: Values = {}
    floors: dict[str, float] = {}
    for column, (*sides, half) in times.items():
        names = [f"{sample}_{column}" for sample in group]
        if all(known.get(name) is not None for name in names):
            values |= dict(zip(names, sides, strict=True))
            floors |= dict.fromkeys(names, half / sqrt(2))
    before, spread = joined.origin, joined.noise

    def origin(name: str) -> ValueOrigin | None:
        found = before(name)
        if found is None or name not in values:
            return found
        report = str(PurePosixPath(found.report or "timing.jsonl").with_name("pairs.jsonl"))
        return replace(found, report=report, formula=f"{found.formula}, timed in turns")

    return replace(
        joined,
        known=known | values | {"in_turns": bool(values)},
        origin=origin,
        noise=lambda name: floors[name] if name in floors else spread(name),
    )


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
    jit: JsonObject | None = None
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
        """A scope for each point of a target that ran and gave the right result, none of a rival: claims speak of FlashInfer."""
        if target not in self._scopes and target in self.results:
            results = self.results[target]
            possible = possible_names(results)
            self._scopes[target] = [
                point_scope(entry, results, possible)
                for entry in results["points"]
                if entry["status"] == "ok" and "rival" not in entry.get("info", {})
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
        """A scope for each JIT module: of another measurement where this evidence has none, and then its points say so."""
        of = self.jit or elsewhere()
        apart = "" if self.jit else f" of FlashInfer {of['flashinfer']}"
        report = of.get("report", "jit/jit_analysis.json")
        return [_of_module(name + apart, row, report) for name, row in of["modules"].items()]


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


def _of_module(name: str, row: JsonObject, report: str) -> Scope:
    """Nested keys joined by '_' (``cold_build_s``); the cache's file names in ``cache_paths``.

    The noise of a host time is half the range of its samples.
    """
    values: JsonObject = {"module": name}
    for key, value in row.items():
        parts = value if isinstance(value, dict) and key != "cache" else {"": value}
        values |= {f"{key}_{part}".rstrip("_"): inner for part, inner in parts.items()}
    values["cache_paths"] = list(row["cache"]) if "cache" in row else None
    values.pop("cache", None)
    point = f"jit/{name}"

    def origin(key: str) -> ValueOrigin | None:
        return ValueOrigin(report, point, None, key, None) if key in values else None

    def spread(key: str) -> float | None:
        samples, value = values.get(f"{key}_samples"), values.get(key)
        return (max(samples) - min(samples)) / 2 / value if samples and value else None

    return Scope(values | {"point": point}, JIT_NAMES, point, origin, spread)
