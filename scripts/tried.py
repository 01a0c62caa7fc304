"""Write ncuflow/findings/tried.yaml: what recordings, changes and advices in this checkout tried of each target's opportunities.

python -m scripts.tried [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ncuflow.evidence import location
from ncuflow.experiments.record import PointTrial, Trial
from ncuflow.experiments.recorded import read as advice_of
from ncuflow.expression import evaluate, holds, names
from ncuflow.findings import opportunities, stored
from ncuflow.findings.choices import CHANGES, Effect, Tried, divided, of_effects, within
from ncuflow.io import read_as, read_json
from ncuflow.sweep.points import points
from ncuflow.target.contract import Choice, Opportunity, Target, known

ROOT = Path(__file__).parents[1]
OUT = ROOT / "ncuflow/findings/tried.yaml"
HEAD = "# Made by scripts/tried.py of the recordings, changes and advices in this checkout; not edited by hand.\n"


def of_recordings(root: Path = ROOT) -> Iterator[Tried]:
    """The pairs of each recording that a GPU was measured for."""
    for manifest in sorted(root.glob("recordings/*/*/*/manifest.json")):
        folder = manifest.parent
        with stored.results_of(folder, None) as place:
            for results in stored.folder(place).values():
                yield from of_results(results, location.name(folder))


def of_results(results: Any, source: str) -> Iterator[Tried]:
    """The rows of one target's results that have pairs."""
    about = results["provenance"]
    params = {point["point"]: point["params"] for point in results["points"]}
    for row in opportunities.found(results, tried=()):
        made = of_effects(
            row.effects, params, mosts=row.mosts, target=results["target"], what=row.opportunity.what, where=row.where,
            gpu=about["gpu"], flashinfer=about["flashinfer"], source=source,
        )  # fmt: skip
        if made:
            yield made


def of_changes(root: Path = ROOT) -> Iterator[Tried]:
    """The trials of the changes that opportunities name."""
    for target, one in _declared():
        folder = root / "examples/changes" / one.trial
        if not one.trial:
            continue
        told = read_json(folder / "try.json")
        meant, others = (points(target, told.get(key, [])) for key in ("blocks", "elsewhere"))
        params = {point.id: point.params for point in [*others, *meant]}
        controls = {point.id for point in others}
        for path in sorted(folder.glob("trial*.json.xz")):
            trial = read_as(path, Trial, "a trial")
            effects = [_of_trial(point) for point in trial.points if point.timing]
            made = of_effects(
                effects, params, controls, target=target.name, what=one.what, where="",
                gpu=trial.gpu, flashinfer=trial.flashinfer, source=f"{CHANGES}{one.trial}",
            )  # fmt: skip
            if made:
                yield made


def _never(where: str, params: Mapping[str, Any]) -> bool:
    """Whether a condition is known not to hold at a point, whatever its counters are."""
    return evaluate(where, {**dict.fromkeys(names(where)), **params}) is False


def _of_trial(point: PointTrial) -> Effect:
    timing = point.timing
    assert timing is not None and timing.base_us and timing.change_us
    told, name = timing.change, point.point
    verdict = "differs" if point.outcome in ("faster", "slower") else "within noise"
    return Effect(
        "time_cold_us", name, name, (), timing.base_us, timing.change_us, told.estimate,
        low=told.low, high=told.high, verdict=verdict,
    )  # fmt: skip


def of_advices(root: Path = ROOT) -> Iterator[Tried]:
    """Pairs of an advice that differ in the choice of an opportunity alone, at shapes whose parameters meet its condition."""
    for path in sorted(root.glob("examples/advice/*/advice.json.xz")):
        advice = advice_of(path)
        for target, one in _declared():
            effects = list(_of_choice(target, one, advice)) if one.metric == advice.metric else []
            params = {effect.base_point: dict(effect.fixed) for effect in effects}
            own = _said(target, one, advice) if effects else []
            for part in divided(effects) if effects else ():
                made = of_effects(
                    part.effects, params, target=target.name, what=one.what,
                    where=" and ".join([*own, *filter(None, [part.where])]),
                    gpu=advice.gpu, flashinfer=advice.versions.get("FlashInfer"),
                    source=path.parent.relative_to(root).as_posix(),
                )  # fmt: skip
                if made:
                    yield made


def _said(target: Target, one: Opportunity, advice: Any) -> list[str]:
    """What the choice of an opportunity asks that not all its shapes have."""
    choice = _choice(target, one)
    asked = [
        {**shape.params, **target.free(shape.params)}
        for shape in advice.shapes
        if shape.target == target.name
    ]
    shown = [params for params in asked if not _never(one.where, params)]
    return within(choice, shown) if choice else []


def _of_choice(target: Target, one: Opportunity, advice: Any) -> Iterator[Effect]:
    choice = _choice(target, one)
    if choice is None:
        return
    sides = (choice.other, choice.base) if one.inverted else (choice.base, choice.other)
    for shape in advice.shapes:
        timed = [c for c in shape.choices if shape.target == target.name and c.time_us and c.behind]
        of = {tuple(sorted(c.settings.items(), key=str)): c for c in timed}
        for base in timed:
            params = {**shape.params, **base.settings}
            changed = {**base.settings, choice.parameter: sides[1]}
            other = of.get(tuple(sorted(changed.items(), key=str)))
            unknown = dict.fromkeys(names(one.where))
            if other is None or params.get(choice.parameter) != sides[0]:
                continue
            usual = {**target.free(params), choice.parameter: sides[0]}  # nothing else is set
            asked = holds(choice.where, {**dict.fromkeys(names(choice.where)), **params})
            if base.settings == usual and asked and evaluate(one.where, {**unknown, **params}):
                apart = base.behind.high < other.behind.low or other.behind.high < base.behind.low
                yield Effect(
                    one.metric, base.point, other.point, tuple(params.items()), base.time_us,
                    other.time_us, other.time_us / base.time_us - 1,
                    verdict="differs" if apart else "within noise",
                )  # fmt: skip


def _choice(target: Target, one: Opportunity) -> Choice | None:
    return next((c for c in target.compared if c.key == one.choice), None)


def _declared() -> list[tuple[Target, Opportunity]]:
    return [(target, one) for target in known().values() for one in target.opportunities]


def text(root: Path = ROOT) -> str:
    """The file's content."""
    rows = [*of_recordings(root), *of_changes(root), *of_advices(root)]
    form: dict[str, Any] = {"sort_keys": False, "default_flow_style": True, "width": 1000}
    return HEAD + "".join(f"- {yaml.safe_dump(row.row(), **form)}" for row in rows)


def main() -> None:
    """Write the file, or say that it is another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the file would change")
    check, made = parser.parse_args().check, text()
    if not check:
        OUT.write_text(made, encoding="utf-8")
    elif made != OUT.read_text(encoding="utf-8"):
        sys.exit(
            f"{OUT.relative_to(ROOT)} is not what recordings and trials say: python -m scripts.tried"
        )


if __name__ == "__main__":
    main()
