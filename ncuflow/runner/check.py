"""The check of one launch: warm up, run once on poisoned outputs, compare with the reference."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from ncuflow.record import Check
from ncuflow.target.launch import Launch, Tensor

WARM_RUNS = 2


class Bench(Protocol):
    """What the check asks of a device."""

    def synchronize(self) -> None: ...
    def poison(self, launch: Launch) -> None: ...
    def written(self, launch: Launch) -> bool: ...
    def aside(self, launch: Launch) -> tuple[Tensor, ...]: ...
    def differences(
        self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> list[tuple[float, float]]: ...
    def comparable(
        self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]: ...
    def worst(
        self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> dict[str, Any]: ...


class CheckedLaunch(NamedTuple):
    """check: of the record; wrong: why the result is wrong, None where it is right; worst: then its element that is farthest
    from the reference."""

    check: Check
    wrong: str | None = None
    worst: dict[str, Any] | None = None


def warm_up(device: Bench, launch: Launch) -> None:
    """Run until every module is built, loaded and cached."""
    for _ in range(WARM_RUNS):
        launch.run()
    device.synchronize()


def check(device: Bench, launch: Launch) -> CheckedLaunch:
    """Hold a launch against its reference.

    Outputs are filled with NaN before the run, so that one that was not written cannot pass for
    an earlier run's. ``rel_l2`` and ``max_abs`` are the worst over the outputs, None if not finite.
    """
    device.poison(launch)
    if launch.reset is not None:
        launch.reset()
    launch.run()
    device.synchronize()
    return _judged(device, launch, launch.output())


def check_aside(device: Bench, launch: Launch) -> CheckedLaunch:
    """As `check`, from a stream of its own while the default one is busy: what was launched on another stream than the
    caller's is not there when that one's work is done."""
    device.poison(launch)
    if launch.reset is not None:
        launch.reset()
    return _judged(device, launch, device.aside(launch))


def check_extreme(device: Bench, launch: Launch) -> CheckedLaunch:
    """As `check`, of inputs that hold infinities: an output is right that is infinite where the reference is, to the same
    side; where the reference is no number nothing is asked of it."""
    device.poison(launch)
    if launch.reset is not None:
        launch.reset()
    launch.run()
    device.synchronize()
    return _compared(device, launch, *device.comparable(launch.output(), launch.reference()))


def _judged(device: Bench, launch: Launch, outputs: tuple[Tensor, ...]) -> CheckedLaunch:
    written = device.written(launch)
    return _compared(device, launch, outputs, launch.reference(), written)


def _compared(
    device: Bench,
    launch: Launch,
    outputs: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    written: bool = True,
) -> CheckedLaunch:
    pairs = device.differences(outputs, expected)
    rel_l2, max_abs = (_worst([pair[i] for pair in pairs]) for i in range(2))
    found = Check(rel_l2=rel_l2, max_abs=max_abs, tolerance=launch.tolerance)
    if rel_l2 is None or not written:
        wrong = "the output is not finite everywhere"
    elif rel_l2 > launch.tolerance:
        wrong = f"relative L2 error {rel_l2:.3g} is above {launch.tolerance:.3g}"
    else:
        return CheckedLaunch(found)
    return CheckedLaunch(found, wrong, device.worst(outputs, expected))


def _worst(values: list[float]) -> float | None:
    """The largest value; None if there is none, or one is NaN or infinite."""
    return max(values) if values and all(map(math.isfinite, values)) else None
