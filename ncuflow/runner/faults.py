"""Planted faults: what tests and demonstrations break on purpose.

``NCUFLOW_FAULT`` holds faults separated by ";":
``wrong:<id-glob>`` corrupts the output, ``delay:<id-glob>:<us>`` makes the host wait in each run(),
``copy:<id-glob>`` adds a device copy after the kernel, ``break:<id-glob>`` a kernel whose assertion fails,
after which the process's CUDA context is of no use.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncuflow.target.launch import Launch, Tensor

VARIABLE = "NCUFLOW_FAULT"
_KINDS = ("wrong", "delay", "copy", "break")


@dataclass(frozen=True)
class Fault:
    """One planted fault; ``microseconds`` is for a delay."""

    kind: str
    glob: str
    microseconds: float = 0.0


def parse(environment: Mapping[str, str]) -> list[Fault]:
    """Faults that the environment asks for. Raises ValueError for one that is not understood."""
    return [_parse_one(text) for text in environment.get(VARIABLE, "").split(";") if text]


def _parse_one(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    try:
        if kind == "delay":
            glob, _, amount = rest.rpartition(":")
            fault = Fault(kind, glob, float(amount))
        else:
            fault = Fault(kind, rest)
    except ValueError:
        fault = Fault("", "")
    if fault.kind not in _KINDS or not fault.glob:
        raise ValueError(
            f"{VARIABLE}: {text!r} is not wrong:GLOB, delay:GLOB:US, copy:GLOB or break:GLOB"
        )
    return fault


def apply(launch: Launch, point: str, faults: list[Fault]) -> Launch:
    """The launch with the faults that match the point id."""
    for fault in faults:
        if fnmatch.fnmatchcase(point, fault.glob):
            plant = {"wrong": _wrong, "delay": _delay, "copy": _copy, "break": _break}[fault.kind]
            launch = plant(launch, fault)
    return launch


def _wrong(launch: Launch, fault: Fault) -> Launch:
    output = launch.output
    return replace(launch, output=lambda: tuple(t * 1.25 for t in output()))


def _delay(launch: Launch, fault: Fault) -> Launch:
    run = launch.run

    def delayed() -> None:
        run()
        until = time.perf_counter() + fault.microseconds * 1e-6
        while time.perf_counter() < until:
            pass

    return replace(launch, run=delayed)


def _copy(launch: Launch, fault: Fault) -> Launch:
    run = launch.run
    scratch_of: dict[int, Tensor] = {}

    def copied() -> None:
        run()
        for index, tensor in enumerate(launch.buffers()):
            if index not in scratch_of:
                scratch_of[index] = tensor.clone()
            scratch_of[index].copy_(tensor)

    return replace(launch, run=copied)


def _break(launch: Launch, fault: Fault) -> Launch:
    run = launch.run

    def broken() -> None:
        import torch

        run()
        torch._assert_async(torch.zeros(1, device="cuda"))

    return replace(launch, run=broken)
