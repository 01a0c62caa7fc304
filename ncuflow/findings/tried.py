"""What was tried of an opportunity anywhere: in another recording of the GPU and FlashInfer version, as a change by
`ncuflow try`, or in an advice. ``scripts/tried.py`` reads these into ``tried.yaml``, from which pages have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.findings.choices import Effect
from ncuflow.findings.noise import FASTER
from ncuflow.format import change
from ncuflow.io import read_yaml
from ncuflow.model import Results

CHANGES = "examples/changes/"


@dataclass(frozen=True)
class Tried:
    """Trials of one opportunity that fare alike.

    where: what tells them from others, an expression over parameters, or ""; source: where they lie; at: the point of the
    change, which has low and high where the source keeps its interval; pairs, least, most: over all of them.
    """

    target: str
    what: str
    where: str
    gpu: str
    flashinfer: str
    source: str
    at: str
    pairs: int
    change: float
    low: float | None
    high: float | None
    verdict: str
    least: float
    most: float

    @property
    def faster(self) -> bool:
        """Whether it saved time, beyond noise and by as much as matters."""
        return self.change <= -FASTER and self.verdict != "within noise"

    def words(self, where: str = "") -> str:
        """What it brought, and where it lies; where: the condition that is told beside it."""
        text = change(self.change)
        if self.low is not None and self.high is not None:
            text += f" ({change(self.low)} to {change(self.high)})"
        text += ", within noise" if self.verdict == "within noise" else ""
        text += f" at `{self.at}`"
        if self.pairs > 1:
            text += f", over {self.pairs} {change(self.least)} to {change(self.most)}"
        apart = f" where `{self.where}`" if self.where not in ("", where) else ""
        return f"{text}{apart}, in `{self.source}`"

    def row(self) -> dict[str, Any]:
        """As it is stored: numbers with as many digits as a page can need."""
        found = asdict(self)
        return {n: round(v, 4) if isinstance(v, float) else v for n, v in found.items()}


def of_effects(
    effects: Sequence[Effect],
    telling: Callable[[Sequence[Effect]], Effect | None],
    **about: Any,
) -> Tried | None:
    """The record of some pairs, by the one that ``telling`` picks; None without any."""
    one = telling(effects)
    if one is None:
        return None
    changes = [effect.change for effect in effects]
    return Tried(
        at=one.base_point.split("/", 1)[1],
        pairs=len(effects),
        change=one.change,
        low=one.low,
        high=one.high,
        verdict=one.verdict,
        least=min(changes),
        most=max(changes),
        **about,
    )


@cache
def every() -> tuple[Tried, ...]:
    """All that is stored."""
    rows: list[dict[str, Any]] = read_yaml(Path(__file__).with_name("tried.yaml")) or []
    names = [field.name for field in fields(Tried)]
    return tuple(Tried(**{name: row[name] for name in names}) for row in rows)


def elsewhere(results: Results) -> list[Tried]:
    """What was tried on the GPU and with the FlashInfer of some results, and does not lie in their own recording; of a change of
    FlashInfer's source that was tried on other GPUs alone, that, with the GPU beside its place."""
    about: dict[str, Any] = dict(results.get("provenance") or {})
    mine = results["target"], about.get("flashinfer")
    near = [one for one in every() if (one.target, one.flashinfer) == mine]
    here = [t for t in near if t.gpu == about.get("gpu") and t.source != about.get("recording")]
    told = {one.what for one in here}
    changes = [t for t in near if t.source.startswith(CHANGES) and t.what not in told]
    return here + [
        replace(t, source=f"{t.source}, {t.gpu}") for t in changes if t.gpu != about.get("gpu")
    ]
