"""A kernel target of choices that need no GPU; a setting says what is wrong with it."""

import os
import time

from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import Launch

TIMES = {
    "auto": 100.0,
    "same": 100.0,
    "fast": 40.0,
    "slow": 300.0,
    "wrong": 1.0,
    "raises": 1.0,
    "hangs": 1.0,
    "dies": 1.0,
}


def tuned(operation, runner, shapes):
    return {"how": "tuned", "n": shapes[0][0]} if operation == "thrice" else None


def prepare(p, seed=0):
    how, found = p["how"], []
    if how == "tuned":
        return tuned_call(p["n"])
    if how == "raises":
        raise RuntimeError("no such kernel")
    if how == "dies":
        os._exit(9)

    def run():
        found[:] = [3.0 if how == "wrong" else 2.0]
        late = how == "late" and len(calls) > 3
        calls.append(1)
        if late:
            os._exit(9)
        if how == "hangs":
            time.sleep(600)
        return TIMES.get(how, 50.0) * p["n"]

    calls = []
    return Launch(
        run=run,
        output=lambda: tuple(found),
        reference=lambda: (2.0,),
        tolerance=1e-3,
        buffers=lambda: (),
        plan=(lambda: time.sleep(0.02)) if how == "fast" else lambda: None,
        info={"how": "same"} if how == "auto" else {},
    )


def tuned_call(n):
    """A call whose tactic FlashInfer's autotuner chooses."""
    from flashinfer.autotuner import AutoTuner, Runner

    found = []

    def run():
        _, tactic = AutoTuner.get().choose_one("thrice", [Runner()], None, [n])
        if tactic == 3:
            raise RuntimeError("no such tactic")
        found[:] = [3.0 if tactic == 2 else 2.0]
        return {-1: 100.0, 0: 100.0, 1: 80.0, 2: 1.0, 4: 80.0}[tactic] * n

    return Launch(
        run=run,
        output=lambda: tuple(found),
        reference=lambda: (2.0,),
        tolerance=1e-3,
        buffers=lambda: (),
    )


TARGET = Target(
    name="thrice",
    title="Thrice",
    parameters={"n": 1, "how": "auto"},
    choices={"how": (*TIMES, "never", "late", "tuned")},
    id="{how}_n{n}",
    work=lambda p: Work(1, 1, "none"),
    unable=lambda p, gpu: "not on this GPU" if p["how"] == "never" else None,
    free=lambda p: {"how": "auto"},
    asked=lambda p: {"wrapper": {"how": p["how"]}},
    tuned=tuned,
    prepare=prepare,
)
