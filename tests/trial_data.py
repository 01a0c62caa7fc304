"""Records of trials that nobody made, every text of them given by a function."""

from collections.abc import Callable
from typing import Any

from ncuflow.experiments.record import (
    ChangeRecord,
    CompiledFile,
    HotPlace,
    KernelCode,
    KernelCounters,
    KernelTrial,
    ModuleTrial,
    PointCounters,
    PointTrial,
    Trial,
    TrialCause,
    TrialFact,
    TrialTerm,
)
from ncuflow.experiments.upgrade import Upgrade, UpgradedShape, summed
from ncuflow.race.record import (
    CheckedCase,
    CompileError,
    HostTiming,
    Relative,
    TrialTiming,
    TurnsTiming,
    Worst,
)
from ncuflow.record import Check

DIFF = """--- a/data/include/flashinfer/toy.cuh
+++ b/data/include/flashinfer/toy.cuh
@@ -5,3 +5,3 @@
 extern "C" double microseconds() {
-  return 100.0;
+  return 110.0;
 }
"""
Said = Callable[[str], str]


def as_is(text: str) -> str:
    return text


def code(registers: int) -> KernelCode:
    return KernelCode(
        registers=registers, shared_bytes=1024, stack_bytes=8, local_instructions=0, instructions=900
    )  # fmt: skip


def launch(said: Said, us: float, line: int) -> KernelCounters:
    return KernelCounters(
        name=said("ToyKernel"),
        grid=said("132,1,1"),
        block=said("256,1,1"),
        registers=40,
        shared_bytes=None,
        duration_us=us,
        metrics={"duration_ns": 1e3 * us, "dram_bytes_read": 33.6e6, "spill_bytes": 0.0},
        stalls={"long_scoreboard": us / 10, "wait": 0.7},
        hot=[
            HotPlace(
                file=said("include/flashinfer/toy.cuh"), line=line, text=said("return x;"), sass=None, share=0.75,
                reason=said("wait"),
            ),
            HotPlace(file=None, line=None, text=None, sass=said("LDG.E R2, [R4]"), share=0.25, reason=None),
        ],
    )  # fmt: skip


def timing(base: float, change: float, half: float = 0.005) -> TrialTiming:
    estimate = change / base - 1
    return TrialTiming(
        base_us=base,
        change_us=change,
        change=Relative(estimate=estimate, low=estimate - half, high=estimate + half),
        noise=Relative(estimate=0.0, low=-0.001, high=0.001),
        rounds=9,
        throttled=0,
    )


def cause(said: Said, delta_us: float) -> TrialCause:
    term = {"what": said("long_scoreboard"), "base": 5.0, "change": 6.0, "unit": said("cycles")}
    part = TrialTerm(**term, delta_us=delta_us)
    facts = [
        TrialFact(what=said("registers"), base=40, change=48, unit=""),
        TrialFact(what=said("template"), base=said("2"), change=None, unit=""),
    ]
    return TrialCause(
        kind="code",
        what=said("ToyKernel: compiled code"),
        base=said("registers 40"),
        change=said("registers 48"),
        delta_us=delta_us,
        share=1.0,
        parts=[part],
        facts=facts,
    )


def point(said: Said, number: int, change: float = 110.0, outcome: Any = "slower") -> PointTrial:
    name = said(f"twice/toy_n{number}")
    differs = outcome in ("slower", "faster")
    return PointTrial(
        point=name,
        outcome=outcome,
        cases=[CheckedCase(id=name, status="ok", check=Check(rel_l2=1e-4, max_abs=2e-3, tolerance=1e-3))],
        timing=timing(100.0, change),
        counters=PointCounters(
            tier="all" if differs else "few", base=[launch(said, 100.0, 7)], change=[launch(said, change, 8)]
        ),
        causes=[cause(said, change - 100)] if differs else [],
        unexplained_us=0.25 if differs else None,
        remainder=said("no more than runs of one side differ by") if differs else None,
    )  # fmt: skip


def trial(said: Said = as_is, **changed: Any) -> Trial:
    """A change that is slower at one point and the same at another."""
    kernel = KernelTrial(
        name=said("ToyKernel"), base=code(40), change=code(48), opcodes={said("LDL"): 4, said("MOV"): -2}
    )  # fmt: skip
    new = KernelTrial(name=said("NewKernel"), base=None, change=code(48), opcodes={})
    module = ModuleTrial(
        name=said("toy"), compiled=True, why=said("it reads toy.cuh"), compile_s=24.4, same_kernels=3, kernels=[kernel, new],
        files=[CompiledFile(name=said("toy.cuda.o"), seconds=20.4)],
    )  # fmt: skip
    found: dict[str, Any] = {
        "change": ChangeRecord(name=said("slow.patch"), files=[said("toy.cuh")], elsewhere=[], diff=said(DIFF)),
        "target": said("twice"),
        "effect": 0.02,
        "alpha": 0.05,
        "date": said("2026-11-23T00:00:00Z"),
        "flashinfer": said("0.7.2"),
        "gpu": said("NVIDIA H200"),
        "driver": said("580.1"),
        "ncu": said("2025.3.1"),
        "outcome": "slower",
        "modules": [module, ModuleTrial(name=said("plain"), compiled=False)],
        "points": [point(said, 3), point(said, 4, 100.0, "same")],
    }  # fmt: skip
    return Trial(**(found | changed))


def wrong(said: Said = as_is) -> Trial:
    worst = Worst(output=0, index=[3, 1], got=None, expected=8.0)
    case = CheckedCase(
        id=said("twice/toy_n1"), status="wrong", reason=said("not finite everywhere"), seed=1, worst=worst
    )  # fmt: skip
    bad = PointTrial(
        point=said("twice/toy_n3"), outcome="wrong", reason=said("twice/toy_n1: not finite"), cases=[case]
    )  # fmt: skip
    return trial(said, outcome="wrong", points=[bad], ncu=None)


def broken(said: Said = as_is) -> Trial:
    error = CompileError(file=said("data/include/flashinfer/toy.cuh"), line=7, message=said("x is undefined"))  # fmt: skip
    return trial(
        said, outcome="not compiled", reason=said("toy.cuh:7: x is undefined"), compile_error=error, modules=[], points=[],
    )  # fmt: skip


def upgraded(plan: float = 120.0) -> Upgrade:
    """An upgrade that nobody made: slower at one of two points, and its plan() as well."""
    slow = point(as_is, 3)
    same = point(as_is, 4, 100.0, "same")
    turns = timing(100.0, plan)
    host = {name: getattr(turns, name) for name in TurnsTiming.model_fields}
    slow.plan = HostTiming(**host, outcome="slower")
    shapes = [
        UpgradedShape(point="twice/toy_n3", count=30, plans=1),
        UpgradedShape(point="twice/toy_n4", count=10, plans=None),
    ]
    found_trial = trial(points=[slow, same])
    found = Upgrade(
        base="FlashInfer 0.6.18", change="FlashInfer 0.7.2", gpu="NVIDIA H200", driver=None, date="2026-11-27T00:00:00Z",
        effect=0.02, alpha=0.05, outcome="slower", shapes=shapes, trials=[found_trial],
    )  # fmt: skip
    found.gpu_time = summed(shapes, found.points, lambda point: point.timing, 0.02)
    found.plan_time = summed(shapes, found.points, lambda point: point.plan, 0.03, plans=True)
    return found
