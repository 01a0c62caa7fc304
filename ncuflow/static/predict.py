"""Times of a GPU that was not there, predicted from one that was measured, each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, log
from statistics import median
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ncuflow import answer
from ncuflow.findings import kernelname
from ncuflow.findings.ceilings import datasheet
from ncuflow.gpu.table import Device, device
from ncuflow.io import JsonObject
from ncuflow.model import Point, Provenance, Results
from ncuflow.target.contract import Target, known

FEW = "too few points of its target were measured"
SHARPNESS = 2.0  # q: how little two bounds of equal size add to each other
COVERED = 0.9  # of the points lie inside an interval
# Times the width (as a log) of an interval on another GPU of the architecture: between H100 and H200 the one direction needs
# 1.2, the other 0.8 (benchmarks/RESULTS.md).
OTHER_GPU = 1.5
ACROSS = 2.0  # times the width (as a log) of an interval on another architecture, which nothing here measures
MERGED = 0.05  # of a point's bytes are its output: from there on the merge of partial outputs is no small part of the call
FEWEST_OF_KIND = 10  # residuals of a kind of point for an interval of its own
FEWEST = 6  # points of a kernel that it is fitted by itself; fewer share the fit of their target
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class PeakRates:
    """A GPU's published peaks: DRAM in GB/s, and its SMs."""

    dram_gbs: float
    device: Device

    def arithmetic(self, kernel: str) -> tuple[str, float | None]:
        """(what a kernel computes with, FLOP of an SM in a cycle by it); None where that is not published."""
        if kernel.startswith("PrefillWithKVCache"):  # fa3
            return "wgmma", self.device.wgmma_flops
        if "Prefill" in kernel:
            return "mma.sync", self.device.mma_flops
        return "CUDA cores", self.device.fp32_flops

    def sm_tflops(self, kernel: str, blocks: int) -> float | None:
        """Peak of the instructions of a kernel on the SMs that a grid of so many blocks fills; None where none is published."""
        _, each = self.arithmetic(kernel)
        if each is None:
            return None
        sms = self.device.sm_count
        filled = blocks / (ceil(blocks / sms) * sms)
        return each * filled * sms * self.device.boost_mhz / 1e6


@dataclass(frozen=True)
class BoundedPoint:
    """A point on a GPU: its bounds in µs at full peaks, and the time that was measured, None on a GPU without.

    kernel: what is fitted together; floor_us: what the events themselves take; least_us: no launch is
    shorter: its arithmetic at the peak, its traffic less what L2 may keep. Every launch is timed after a flush, so
    that what it reads passes DRAM: only what it writes may stay in L2.
    """

    point: str
    target: str
    kernel: str
    dram_us: float
    sm_us: float
    cycle_ns: float
    floor_us: float
    measured_us: float | None = None
    least_us: float = 0.0


class Residual(NamedTuple):
    """log(measured / predicted) of a point, and whether bounds make up most of its time."""

    bounded: bool
    off: float


class PredictedPoint(answer.AnswerPart):
    """A time that was predicted, never measured."""

    point: str
    """The id of the point."""
    us: float
    """The predicted time, µs."""
    low: float
    """The lower end of its interval, µs."""
    high: float
    """The upper end of its interval, µs."""
    measured_us: float | None
    """The time that was measured on that GPU, µs; null where it was not measured."""
    bounded: bool
    """Whether bounds, and not latency, make up most of the prediction."""


def case(
    point: Point, rates: PeakRates, floor_us: float, written: int | None = None
) -> BoundedPoint | None:
    """A point of results on a GPU; None where its launch or its work is not known.

    written: of its bytes, those that it writes; None where that is not known, which could be all.
    """
    row = point["measurement"]
    known = (row["grid_size"], row["main_kernel"], row["flops_analytic"], row["bytes_analytic"])
    if point["status"] != "ok" or None in known:
        return None
    blocks, kernel, flops, moved = known
    peak = rates.sm_tflops(kernel, blocks)
    if not peak:
        return None
    dram_us, sm_us = moved / rates.dram_gbs / 1e3, flops / peak / 1e6
    kept = min(rates.device.l2_bytes, moved if written is None else written)
    return BoundedPoint(
        point=point["point"],
        target=row["target"],
        kernel=kernel,
        dram_us=dram_us,
        sm_us=sm_us,
        cycle_ns=1e3 / rates.device.boost_mhz,
        floor_us=row["time_floor_us"] or floor_us,
        measured_us=row["time_cold_us"],
        least_us=max(sm_us, dram_us * max(0.0, 1 - kept / moved)),
    )


def _merges(point: Point, written: int | None) -> bool:
    """Whether a split leaves partial outputs whose merge takes long: its instructions are in no bound, so that no time of it
    follows from those of other points. Where a call writes little beside what it reads (decode), they are few."""
    split = any(kernel["name"].startswith(kernelname.MERGE) for kernel in point["kernels"])
    moved = point["measurement"]["bytes_analytic"]
    return split and bool(written and moved and written > MERGED * moved)


def refused(point: Point, rates: PeakRates, written: int | None = None) -> str:
    """Why a point is no case."""
    if point["status"] != "ok":
        return point["reason"] or point["status"]
    if point["problems"]:
        return "; ".join(point["problems"])
    row = point["measurement"]
    kernel, blocks = row["main_kernel"], row["grid_size"]
    if kernel is None or blocks is None:
        return "not all of its launches are known"
    if rates.sm_tflops(kernel, blocks) is None:
        what, capability = rates.arithmetic(kernel)[0], rates.device.compute_capability
        return f"no peak of {what} is known on compute capability {capability}"
    if _merges(point, written):
        return "the KV cache is split, and what merging the partial outputs of so many rows takes is not modelled"
    return "its work is not known"


class Model:
    """Shares and latency of each kernel, fitted to measured cases.

    The time of a point is what DRAM and the SMs take at the shares of their peaks that a kernel reaches:

        time = floor + (dram^q + sm^q)^(1/q) + latency

    `dram` is the compulsory traffic over the published bandwidth, `sm` the arithmetic over the peak of the
    instructions that run and the SMs that the grid fills, each over the share of it that the kernel reached where
    it was measured; `latency` is what the kernel takes without either. Shares and latency are fitted to each kernel
    of a measured GPU. How wrong that is, is measured as well: each point is predicted by the others, and each
    point of one recording from another. Points whose time is mostly bounds are predicted far better than those
    whose time is mostly latency, so each kind has its own interval. On another GPU it is half as wide again, which was
    measured. Nothing here is a measurement of the GPU that is predicted, and nothing says that a kernel reaches the same
    share of another architecture's peak: an interval there is twice as wide.
    """

    def __init__(self, measured: Sequence[BoundedPoint]) -> None:
        self.measured = [case for case in measured if case.measured_us is not None]
        self._fits: dict[tuple[str, frozenset[str]], Numbers] = {}

    def knows(self, wanted: BoundedPoint) -> bool:
        """Whether its kernel was measured: another one of its target says nothing of it."""
        return any((c.target, c.kernel) == (wanted.target, wanted.kernel) for c in self.measured)

    def parts(self, wanted: BoundedPoint, without: str | None = None) -> tuple[float, float] | None:
        """(what the bounds take, the rest) of a case's time, µs, fitted to the others than the point `without`; None where its
        kernel was not measured."""
        same = [c for c in self.measured if c.target == wanted.target and c.point != without]
        own = [c for c in same if c.kernel == wanted.kernel]
        chosen = own if len(own) >= FEWEST else same
        if len(chosen) < 3:
            return None
        key = (chosen[0].target, frozenset(c.point for c in chosen))
        if key not in self._fits:
            self._fits[key] = _fitted(chosen)
        bounds, rest = _parts(self._fits[key], [wanted])
        return float(bounds[0]), float(rest[0])

    @cached_property
    def residuals(self) -> list[Residual]:
        """How far off each measured point is, predicted by the others."""
        return self.residuals_on(self.measured, leave_out=True)

    def residuals_on(
        self, others: Sequence[BoundedPoint], leave_out: bool = False
    ) -> list[Residual]:
        """The same of measured cases, of another recording or of this one."""
        found = ((c, self.parts(c, c.point if leave_out else None)) for c in others)
        return [
            Residual(parts[0] >= parts[1], log(c.measured_us / sum(parts)))
            for c, parts in found
            if parts and c.measured_us
        ]

    def left_out(self) -> list[PredictedPoint]:
        """Each measured point as the others predict it, with the interval of all such predictions."""
        return self.predict(self.measured, self.residuals, leave_out=True)

    def predict(
        self,
        wanted: Sequence[BoundedPoint],
        residuals: Sequence[Residual],
        wider: float = 1.0,
        leave_out: bool = False,
    ) -> list[PredictedPoint]:
        """Times with intervals that cover COVERED of such residuals; points that it cannot predict are left out.

        wider: times the width of the intervals, as a log; leave_out: each point is predicted by the others.
        """
        factors = {kind: exp(wider * width_of(residuals, kind)) for kind in (True, False)}
        found = []
        for c in wanted:
            parts = self.parts(c, c.point if leave_out else None)
            if parts:
                us, bounded = sum(parts), parts[0] >= parts[1]
                low = max(us / factors[bounded], min(c.least_us, us))
                high, measured = us * factors[bounded], c.measured_us
                found.append(
                    PredictedPoint(
                        point=c.point,
                        us=us,
                        low=low,
                        high=high,
                        measured_us=measured,
                        bounded=bounded,
                    )
                )
        return found


def width_of(residuals: Sequence[Residual], bounded: bool) -> float:
    """The width for one kind of point; where few of that kind were measured, not less than that of all points."""
    own, every = [r.off for r in residuals if r.bounded == bounded], [r.off for r in residuals]
    if len(own) >= FEWEST_OF_KIND:
        return width(own)
    return max(width(every), *map(abs, own), 0.0)


def width(residuals: Sequence[float]) -> float:
    """Half the width of the interval, as a log: the conformal quantile of absolute residuals."""
    ordered = np.sort(np.abs(np.asarray(residuals)))
    rank = min(len(ordered), ceil(COVERED * (len(ordered) + 1)))
    return float(ordered[rank - 1])


def _parts(fit: Numbers, wanted: Sequence[BoundedPoint]) -> tuple[Numbers, Numbers]:
    """(What the bounds take, latency and what the events take) of each case."""
    dram_share, sm_share, cycles = np.exp(fit)
    dram = np.array([c.dram_us for c in wanted]) / dram_share
    sm = np.array([c.sm_us for c in wanted]) / sm_share
    rest = np.array([c.floor_us + cycles * c.cycle_ns / 1e3 for c in wanted])
    return (dram**SHARPNESS + sm**SHARPNESS) ** (1 / SHARPNESS), rest


def _fitted(measured: Sequence[BoundedPoint]) -> Numbers:
    """Logs of the shares of DRAM and SM and of the latency in cycles; outliers count by their distance."""
    times = np.log([c.measured_us or np.nan for c in measured])

    def off(fit: Numbers) -> Numbers:
        return np.log(sum(_parts(fit, measured))) - times

    start = np.log([0.8, 0.5, 2000.0])
    bounds = (np.log([0.05, 1e-3, 1.0]), np.log([1.2, 1.0, 1e5]))
    return np.asarray(least_squares(off, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x)


# --- predictions.json ----------------------------------------------------------------------------


def cases(
    results: Sequence[Results], floor_us: float, merged: bool = True
) -> tuple[list[BoundedPoint], dict[str, str]]:
    """(the points of results by their GPU's published peaks, why others are none by id). Raises ValueError for a GPU without.

    merged: also points whose time is in part that of a merge, which no prediction is made for.
    """
    found, refusals = [], {}
    for result in results:
        gpu = str(result["provenance"]["gpu"])
        sheet = datasheet(gpu)
        if sheet is None:
            raise ValueError(f"{gpu}: no datasheet in gpus.yaml")
        rates = PeakRates(sheet["dram_gbs"], device(gpu))
        target = known().get(result["target"])
        for point in result["points"]:
            written = _written(target, point)
            one = case(point, rates, floor_us, written)
            if one and (merged or not _merges(point, written)):
                found.append(one)
            else:
                refusals[point["point"]] = refused(point, rates, written)
    return found, refusals


def _written(target: Target | None, point: Point) -> int | None:
    """What a point writes, where its target says that."""
    return target.written(point["params"]) if target and target.written else None


def predictions(measured: Sequence[Results], wanted: Sequence[Results]) -> JsonObject:
    """predictions.json: the predictions, and how far such predictions are off where that is known.

    left_out: each measured point as the others predict it; crossed: the measured points of the other
    GPU, where it was measured; inside: the part of them within their intervals. factors: a time lies
    between the prediction over it and the prediction times it, where bounds make up most of it and
    elsewhere. Intervals on another GPU are wider by `across` (of 1, as a log). not_predicted: why, by point: what
    FlashInfer does not run there, what nothing is known of, and a kernel that was not measured.
    """
    origins = [side[0]["provenance"] for side in (measured, wanted)]
    here, _ = cases(measured, 0.0)
    model = Model(here)
    if not model.measured:
        raise ValueError(f"{origins[0]['gpu']}: none of these points was timed")
    floor = median(case.floor_us for case in here)
    every, refusals = cases(wanted, floor, merged=False)
    there = [case for case in every if model.knows(case)]
    strange = {c.point: f"{c.kernel} was not measured" for c in every if not model.knows(c)}
    timed = [case for case in there if case.measured_us is not None]
    crossed = model.residuals_on(timed)
    residuals = model.residuals
    across = _wider(*origins)
    found = model.predict(there, residuals, across)
    return {
        "schema": 1,
        "tier": "S",
        "from": origins[0],
        "to": origins[1],
        "covered": COVERED,
        "across": across,
        "left_out": _errors(residuals, model.left_out()),
        "crossed": _errors(crossed, [p for p in found if p.measured_us]) if crossed else None,
        "points": [prediction.model_dump() for prediction in found],
        "not_predicted": refusals
        | strange
        | {c.point: FEW for c in there if c.point not in {p.point for p in found}},
    }


def _wider(here: Provenance, there: Provenance) -> float:
    """Times the width of an interval for the step from one GPU to the other."""
    if here["compute_capability"] != there["compute_capability"]:
        return ACROSS
    return OTHER_GPU if here["gpu"] != there["gpu"] else 1.0


def _errors(residuals: Sequence[Residual], points: Sequence[PredictedPoint]) -> JsonObject:
    inside = [p.low <= (p.measured_us or 0) <= p.high for p in points]
    kinds = {"bounds": True, "latency": False}
    return {
        "n": len(residuals),
        "median_error": exp(median(abs(r.off) for r in residuals)) - 1,
        # of the predictions, as the page's column "off" has it; a residual is measured over predicted
        "bias": exp(-median(r.off for r in residuals)) - 1,
        "factors": {name: exp(width_of(residuals, kind)) for name, kind in kinds.items()},
        "of_kind": {
            name: sum(r.bounded == kind for r in residuals) for name, kind in kinds.items()
        },
        "inside": sum(inside) / len(inside),
        "points": [point.model_dump() for point in points],
    }


class PredictAnswer(answer.Answer):
    """Times of a GPU that is not there, with intervals; no number of it is in a report."""

    ROWS: ClassVar[tuple[str, ...]] = ("points",)
    command: Literal["predict"] = "predict"
    """The command that wrote this JSON."""
    tier: Literal["S"]
    """The tier of the predictions."""
    predicted_from: JsonObject
    """The GPU that was measured, with versions and date."""
    predicted_for: JsonObject
    """The GPU that is predicted."""
    covered: float
    """The chance that a time lies in its interval, of 1."""
    across: float
    """The factor by which intervals are wider on another GPU."""
    known_points: JsonObject
    """How far each measured point lies from what the others predict for it."""
    crossed: JsonObject | None
    """How far the predictions were off on the other GPU; null where it was not measured."""
    points: list[PredictedPoint]
    """Each prediction."""
    not_predicted: dict[str, str]
    """The points that could not be predicted, each with the reason."""


COLUMNS = {
    name: answer.AnswerColumn(unit="µs", metric="", tier="S") for name in ("us", "low", "high")
} | {"measured_us": answer.AnswerColumn(unit="µs", metric="time_cold_us", tier=None)}


def answered(found: dict[str, Any]) -> PredictAnswer:
    """Predictions as an answer."""
    told = {name: found[name] for name in ("tier", "covered", "across", "not_predicted", "points")}
    told |= {"predicted_from": found["from"], "predicted_for": found["to"], "columns": COLUMNS}
    for name, of in (("known_points", "left_out"), ("crossed", "crossed")):
        told[name] = found[of] and {k: v for k, v in found[of].items() if k != "points"}
    return PredictAnswer.model_validate(told)
