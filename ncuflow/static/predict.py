"""Times of a GPU that was not there, predicted from one that was measured, each with its interval.

    ncuflow predict --measured RESULTS --on RESULTS --out predictions.json

RESULTS are folders of *_results.json: of the GPU that was measured, and of the one to predict (tier S, or
measured as well: then the file says how far the predictions were off).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ncuflow import answer
from ncuflow.findings import stored
from ncuflow.findings.ceilings import datasheet
from ncuflow.io import UsageError, write_json
from ncuflow.model import Point, Provenance, Results
from ncuflow.static.device import device
from ncuflow.static.model import (
    ACROSS,
    COVERED,
    OTHER_GPU,
    BoundedPoint,
    Model,
    PeakRates,
    PredictedPoint,
    Residual,
    case,
    refused,
    width_of,
)
from ncuflow.target.contract import Target, known

FEW = "too few points of its target were measured"


def cases(results: Sequence[Results], floor_us: float) -> tuple[list[BoundedPoint], dict[str, str]]:
    """(the points of results by their GPU's published peaks, why others are none by id). Raises ValueError for a GPU without."""
    found, refusals = [], {}
    for result in results:
        gpu = str(result["provenance"]["gpu"])
        sheet = datasheet(gpu)
        if sheet is None:
            raise ValueError(f"{gpu}: no datasheet in gpus.yaml")
        rates = PeakRates(sheet["dram_gbs"], device(gpu))
        target = known().get(result["target"])
        for point in result["points"]:
            if one := case(point, rates, floor_us, _written(target, point)):
                found.append(one)
            else:
                refusals[point["point"]] = refused(point, rates)
    return found, refusals


def _written(target: Target | None, point: Point) -> int | None:
    """What a point writes, where its target says that."""
    return target.written(point["params"]) if target and target.written else None


def predictions(measured: Sequence[Results], wanted: Sequence[Results]) -> dict[str, Any]:
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
    every, refusals = cases(wanted, floor)
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


def _errors(residuals: Sequence[Residual], points: Sequence[PredictedPoint]) -> dict[str, Any]:
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

    command: Literal["predict"] = "predict"
    """the command that answers"""
    tier: Literal["S"]
    """of the predictions"""
    predicted_from: dict[str, Any]
    """the GPU that was measured, with versions and date"""
    predicted_for: dict[str, Any]
    """the GPU that is predicted"""
    covered: float
    """the chance that a time lies in its interval, of 1"""
    across: float
    """times by which intervals are wider on another GPU"""
    known_points: dict[str, Any]
    """how far each measured point lies from what the others predict of it"""
    crossed: dict[str, Any] | None
    """how far the predictions were off on the other GPU; null where it was not measured"""
    points: list[PredictedPoint]
    """each prediction"""
    not_predicted: dict[str, str]
    """points that no prediction could be made of, each with why"""


ANSWER = PredictAnswer
COLUMNS = {
    name: answer.AnswerColumn(unit="µs", metric="", tier="S") for name in ("us", "low", "high")
} | {"measured_us": answer.AnswerColumn(unit="µs", metric="time_cold_us", tier=None)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measured", type=Path, required=True, help="results of a measured GPU")
    parser.add_argument("--on", type=Path, required=True, help="results of the GPU to predict")
    parser.add_argument("--out", type=Path, help="predictions.json; needed without --json")
    answer.options(parser)


def run(args: argparse.Namespace) -> None:
    if args.out is None and not args.json:
        raise UsageError("give --out, or --json")
    try:
        measured, wanted = ([*stored.folder(place).values()] for place in (args.measured, args.on))
        found = predictions(measured, wanted)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.out is not None:
        write_json(args.out, found)
    if args.json:
        points, left_out = answer.cut(found["points"], args.limit)
        told = {name: found[name] for name in ("tier", "covered", "across", "not_predicted")}
        told |= {"predicted_from": found["from"], "predicted_for": found["to"], "points": points}
        told |= {
            name: found[name] and _without_points(found[name]) for name in ("left_out", "crossed")
        }
        told |= {"known_points": told.pop("left_out"), "left_out": left_out, "columns": COLUMNS}
        answer.tell(PredictAnswer.model_validate(told))


def _without_points(errors: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in errors.items() if name != "points"}
