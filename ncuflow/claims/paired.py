"""Pairs: points of several samples joined into one scope, with the times of those that were timed in turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import log1p, sqrt
from pathlib import PurePosixPath

from ncuflow.findings.scope import Scope, Value, ValueOrigin, Values
from ncuflow.model import Results

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
