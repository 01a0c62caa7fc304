"""What was tried of an opportunity anywhere: in another recording of the GPU and FlashInfer version, as a change by
`ncuflow try`, or in an advice. ``scripts/tried.py`` reads these into ``tried.yaml``, from which pages have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.expression import holds
from ncuflow.findings.choices import Effect, telling
from ncuflow.findings.noise import FASTER
from ncuflow.format import change, percent
from ncuflow.io import JsonObject, read_yaml
from ncuflow.model import Results
from ncuflow.target.contract import known, traits

CHANGES = "examples/changes/"
MUCH = 0.1  # of the time: how much more a point without a trial must be able to bring than the tried one


@dataclass(frozen=True)
class TriedPair:
    """One pair of a trial: the change at a point, with low and high where the source keeps its interval.

    most: what the mechanism could bring there, of 1, where one bounds it; params: of the point, those that are not as the target
    has them; control: whether the change, which is meant to gain, need not gain there.
    """

    at: str
    change: float
    low: float | None
    high: float | None
    verdict: str
    most: float | None
    params: Mapping[str, Any]
    control: bool = False

    def row(self) -> JsonObject:
        """As it is stored: numbers with as many digits as a page can need."""
        found = {n: round(v, 5) if isinstance(v, float) else v for n, v in asdict(self).items()}
        return {n: v for n, v in found.items() if v or n != "control"}


@dataclass(frozen=True)
class Tried:
    """Trials of one opportunity that fare alike.

    where: what tells them from others, an expression over parameters, or ""; source: where they lie; pairs: at least one that
    is no control; abroad: it is of another GPU than what it stands beside.
    """

    target: str
    what: str
    where: str
    gpu: str
    flashinfer: str
    source: str
    pairs: tuple[TriedPair, ...]
    abroad: bool = False

    @property
    def tried(self) -> list[TriedPair]:
        """The pairs without the controls."""
        return [pair for pair in self.pairs if not pair.control]

    @property
    def told(self) -> TriedPair:
        """The pair that changed the most."""
        found = telling(self.tried)
        assert found is not None
        return found

    def at(self, label: str) -> TriedPair:
        """The pair at a point, by its label; that which changed the most where there is none."""
        return next((pair for pair in self.tried if pair.at == label), self.told)

    @property
    def faster(self) -> bool:
        """Whether it saved time, beyond noise and by as much as matters."""
        return self.told.change <= -FASTER and self.told.verdict != "within noise"

    def facts(self, pair: TriedPair) -> JsonObject:
        """The parameters of a pair, and what follows from them."""
        target = known().get(self.target)
        params = {**(target.parameters if target else {}), **pair.params}
        return {**params, **traits(self.target, params)}

    def tells(self, most: float) -> bool:
        """Whether it tells of a point that can gain so much: a loss does not where that is much more than at its own."""
        near = (pair.most is None or most < pair.most + MUCH for pair in self.tried)
        return self.faster or any(near)

    def against(self, gains: bool, where: str) -> Tried | None:
        """The pairs that meet a condition and change the time the other way, by as much as matters; None without any."""
        found = tuple(
            pair
            for pair in self.tried
            if pair.verdict != "within noise" and (pair.change >= FASTER if gains else pair.change <= -FASTER)
            and (not where or holds(where, self.facts(pair)))
        )  # fmt: skip
        return replace(self, where="", pairs=found) if found else None

    def words(self, where: str = "", short: bool = False, label: str = "") -> str:
        """What it brought, and where it lies; where: the condition that is told beside it; short: without the interval; label: of
        the point that it is told of, whose own pair comes first."""
        told, tried = self.at(label), self.tried
        text = change(told.change)
        if told.low is not None and told.high is not None and not short:
            text += f" ({change(told.low)} to {change(told.high)})"
        if told.verdict == "within noise":
            ends = told.low is not None and told.high is not None
            sure = ends and not (told.low or 0) <= 0 <= (told.high or 0)
            text += f", less than {percent(FASTER)}" if sure else ", within noise"
        text += f" at `{told.at}`"
        if len(tried) > 1:
            text += f", over {len(tried)} {_ends(tried)}"
        if controls := [pair for pair in self.pairs if pair.control]:
            text += f", where it need not gain {_ends(controls)}"
        apart = f" where `{self.where}`" if self.where not in where else ""
        return f"{text}{apart}, in `{self.source}`" + f" on {self.gpu}" * self.abroad

    def row(self) -> JsonObject:
        """As it is stored."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "abroad"}
        return found | {"pairs": [pair.row() for pair in self.pairs]}


def _ends(pairs: Sequence[TriedPair]) -> str:
    changes = sorted({change(pair.change): pair.change for pair in pairs}.values())
    return " to ".join(map(change, dict.fromkeys((changes[0], changes[-1]))))


def of_effects(
    effects: Iterable[Effect],
    params: Mapping[str, Mapping[str, Any]],
    controls: Collection[str] = (),
    mosts: Mapping[str, float] | None = None,
    **about: Any,
) -> Tried | None:
    """The record of some pairs; None without any that is no control. params, mosts: by their base points; controls: among
    those."""
    target = known().get(about["target"])
    usual = target.parameters if target else {}
    pairs = tuple(
        TriedPair(
            at=one.base_point.split("/", 1)[1],
            change=one.change,
            low=one.low,
            high=one.high,
            verdict=one.verdict,
            most=(mosts or {}).get(one.base_point),
            params={n: v for n, v in params[one.base_point].items() if n not in usual or usual[n] != v},
            control=one.base_point in controls,
        )
        for one in effects
    )  # fmt: skip
    return Tried(pairs=pairs, **about) if any(not pair.control for pair in pairs) else None


@cache
def every() -> tuple[Tried, ...]:
    """All that is stored."""
    rows: list[JsonObject] = read_yaml(Path(__file__).with_name("tried.yaml")) or []
    return tuple(
        Tried(**row | {"pairs": tuple(TriedPair(**pair) for pair in row["pairs"])}) for row in rows
    )


def elsewhere(results: Results) -> list[Tried]:
    """What was tried on the GPU and with the FlashInfer of some results, and does not lie in their own recording; of a change of
    FlashInfer's source that was tried on other GPUs alone, that, with the GPU beside its place."""
    about: JsonObject = dict(results.get("provenance") or {})
    mine = results["target"], about.get("flashinfer")
    near = [one for one in every() if (one.target, one.flashinfer) == mine]
    here = [t for t in near if t.gpu == about.get("gpu") and t.source != about.get("recording")]
    told = {one.what for one in here}
    changes = [t for t in near if t.source.startswith(CHANGES) and t.what not in told]
    return here + [replace(t, abroad=True) for t in changes if t.gpu != about.get("gpu")]
