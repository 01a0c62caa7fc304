"""How long a run takes, and what is left of it: modules compile beside profilers, one program at a time has a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ncuflow.io import JsonObject
from ncuflow.model import DEEP

# (target, batch) -> its points, as in points.json
Plans = Mapping[tuple[str, str], list[JsonObject]]

FIRST, COMPILES, PROFILES, TIMES, TRACES, HOST = KINDS = range(6)


class Ahead(NamedTuple):
    """A job that is not done: its rule, its expected seconds, and those that are left of them."""

    rule: str
    seconds: float
    left: float


class RuleCost(NamedTuple):
    """A rule: what it does, its seconds (of a start, with a GPU from when it has one; and of a point), and when it can run."""

    does: str
    start_s: float
    point_s: float
    kind: int = HOST


# Seconds of H100 hosts with 16 cores: benchmarks/RESULTS.md. They are what a run says first; the seconds that went by scale them
# ever more. A rule that is not here is quick. Of `time` they are of a point of no pair; that several rounds visit the others as
# well is not known here.
STEPS = {
    "preflight": RuleCost("preflight and ceilings", 4.0, 0.0, FIRST),
    "source_index": RuleCost("index of FlashInfer's source", 12.0, 0.0),
    "build": RuleCost("build modules", 51.0, 0.45, COMPILES),
    "time": RuleCost("time", 0.2, 0.4, TIMES),
    "time_again": RuleCost("time again", 0.2, 0.4, TIMES),
    "trace": RuleCost("trace (nsys)", 0.2, 0.04, TRACES),
    "profile": RuleCost("profile (ncu)", 2.2, 0.91, PROFILES),
    "profile_deep": RuleCost("deep profile (ncu)", 1.2, 2.1, PROFILES),
    "jit_measure": RuleCost("measure the JIT", 200.0, 0.0, FIRST),
    "tables": RuleCost("read reports", 1.0, 0.02),
    "findings": RuleCost("join", 0.5, 0.01),
    "target_page": RuleCost("page", 1.0, 0.0),
    "environment_page": RuleCost("page of the machine", 0.5, 0.0),
    "claims": RuleCost("claims", 0.7, 0.0),
    "hotlines": RuleCost("hot lines", 0.5, 0.0),
    "pages": RuleCost("pages over all targets", 1.5, 0.0),
    "html": RuleCost("report.html", 1.0, 0.0),
}
QUICK = 0.3
PAIR_S = 0.5  # of a pair with its points, in the process that times a batch
PLANS_S = 2.0  # until a build begins
STANDS_S = 27.0  # of a build, until a module stands; the preflight has the GPU meanwhile
LOAD_S = 6.0  # Python, torch and FlashInfer, before a program has a GPU
LAST_S = 4.0  # tables and pages after what is measured last; those before are made beside
BATCHES = {"profile_deep": DEEP}  # rules with a batch of their own, which is no wildcard


def kind(rule: str) -> int:
    return STEPS[rule].kind if rule in STEPS else HOST


def needs_gpu(rule: str) -> bool:
    """Whether its seconds begin when it has a GPU."""
    return kind(rule) in (PROFILES, TIMES, TRACES)


def points_of(plans: Plans, rule: str, wildcards: Mapping[str, str]) -> int:
    """How many points a job of this rule works on; 0 where its time does not grow with them."""
    if rule not in STEPS or not STEPS[rule].point_s:
        return 0
    target, batch = wildcards.get("target"), BATCHES.get(rule, wildcards.get("batch"))
    return len(
        {
            (name, point["id"])
            for (name, its_batch), points in plans.items()
            if target in (None, name) and batch in (None, its_batch)
            for point in points
        }
    )


def work_of(
    plans: Plans, pairs: Plans, rule: str, wildcards: Mapping[str, str]
) -> tuple[int, float]:
    """How many points a job of this rule works on, and how many seconds that may take."""
    step = STEPS.get(rule, RuleCost("", QUICK, 0.0))
    points = points_of(plans, rule, wildcards)
    if rule != "time":
        return points, step.start_s + step.point_s * points
    place = wildcards["target"], wildcards["batch"]
    paired = pairs.get(place, [])
    alone = {point["id"] for point in plans.get(place, [])} - {point["id"] for point in paired}
    seconds = step.start_s + step.point_s * len(alone) + PAIR_S * len(paired) / 2
    return points, seconds


def rest(left: Iterable[Ahead], together: bool) -> float:
    """Seconds in which these jobs end, by themselves or beside each other.

    Beside each other, profilers have a GPU as soon as a module of a build stands, while what is timed and traced loads after it.
    """
    jobs = list(left)
    of = dict.fromkeys(KINDS, 0.0)
    for job in jobs:
        of[kind(job.rule)] += job.left
    if not together:
        return sum(of.values()) + LOAD_S * sum(needs_gpu(job.rule) for job in jobs)
    builds = [job for job in jobs if kind(job.rule) == COMPILES]
    beside = sum(max(0.0, min(job.left, job.seconds - STANDS_S)) for job in builds)
    first = max(0.0, of[FIRST] - (of[COMPILES] - beside))
    profiles = max(0.0, of[PROFILES] - beside)
    loads = LOAD_S * (bool(of[TIMES] or of[TRACES]) and not profiles)
    plans = PLANS_S * (bool(builds) and all(job.left == job.seconds for job in builds))
    measures = plans + first + of[COMPILES] + profiles + of[TIMES] + of[TRACES] + loads
    return measures + (min(of[HOST], LAST_S) if measures else of[HOST])
