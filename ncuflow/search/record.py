"""The record of a search: what `ncuflow search --out` writes, and a program reads back with the same models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ncuflow.answer import Answer
from ncuflow.record import Chance, Count, Effect, Microseconds, Strict
from ncuflow.trial.record import CompileError, Relative, TrialTiming

Found = Literal["winner", "default", "undecided", "none"]
Standing = Literal["kept", "left", "skipped", "wrong", "error", "lost", "not compiled"]


class SearchedKnob(Strict):
    """A knob of the target: a constant of FlashInfer's source, or a parameter that its caller may set."""

    name: str
    """by which candidates are called"""
    kind: Literal["constant", "setting"]
    """constant: compiled anew with another value; setting: an argument or an environment variable"""
    default: bool | int | float | str | None
    """FlashInfer's; null where this version does not have the constant"""
    values: list[bool | int | float | str]
    """that were to be tried"""
    places: list[str]
    """of a constant: file below the package, and line"""
    missing: str | None = None
    """of a constant that this version of FlashInfer does not have: what was looked for"""


class SearchedCandidate(Strict):
    """A combination of values that departs from the defaults."""

    name: str
    """the knobs that depart, with their values"""
    edits: dict[str, int]
    """constants of the source, by knob"""
    settings: dict[str, bool | int | float | str]
    """parameters of the target"""
    diff: str | None
    """what it changes in FlashInfer's files, a patch that `ncuflow try` takes; null where it changes none"""
    reason: str | None = None
    """why it was timed nowhere"""
    compile_error: CompileError | None = None
    """of one that does not compile"""


class CandidateStanding(Strict):
    """How a candidate fared at a shape."""

    name: str
    """of the candidate"""
    point: str
    """id of its point there"""
    fate: Standing
    """kept: to the end of the halving; left: it was surely slower than another; the others were not timed, or not to the end"""
    reason: str | None = None
    """why it was not timed, or not to the end"""
    time_us: Microseconds | None = None
    """median over its rounds, µs; null where it was not timed"""
    against: Relative | None = None
    """its time against the default's, in the rounds that it was in: of the search, so the best of them flatters itself"""
    rounds: Count | None = None
    """that it was in"""


class SearchedShape(Strict):
    """A shape, and what was found there."""

    shape: str
    """id of the point with FlashInfer's defaults"""
    params: dict[str, Any]
    """parameters of that point"""
    found: Found
    """winner: a candidate is faster, confirmed on inputs that the search did not see; default: none is by what matters;
    undecided: the noise was too large; none: nothing could be timed"""
    reason: str | None = None
    """why nothing was found"""
    default_us: Microseconds | None = None
    """the default's time, µs: of the confirmation, else of the search"""
    candidate: str | None = None
    """that was confirmed, the winner where it is one; null where none was left"""
    confirmed: TrialTiming | None = None
    """default and candidate in turns, on fresh inputs: base is the default"""
    price: Relative | None = None
    """of the default: what it takes longer than the winner, of 1; null where there is none"""
    rounds: Count | None = None
    """of the halving"""
    candidates: list[CandidateStanding]
    """those that mean something here, the fastest first"""


class Search(Answer):
    """Which values of a target's knobs are fastest."""

    command: Literal["search"] = "search"
    """the command that answers"""
    tier: Literal["B"] = "B"
    """B: measured here, without counters"""
    target: str
    """the kernel target"""
    gpu: str | None
    """name of the GPU"""
    versions: dict[str, str | None]
    """of the driver, CUDA, torch, FlashInfer"""
    date: str
    """when it was measured, UTC"""
    effect: Effect
    """the relative difference that matters, of 1"""
    alpha: Chance
    """the chance that the run calls any candidate a winner that is not faster"""
    knobs: list[SearchedKnob] = Field(default_factory=list)
    """all that were asked for"""
    beyond_budget: Count = 0
    """candidates that were left out, by --budget or for the memory of the GPU: those that depart in the most knobs first"""
    candidates: list[SearchedCandidate] = Field(default_factory=list)
    """all that were tried"""
    shapes: list[SearchedShape]
    """each shape"""
