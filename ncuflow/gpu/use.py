"""Who had a GPU when: a line of JSON for each change, in the file that NCUFLOW_GPU_USE names.

What a program does before it has the GPU it does beside others, so what holds a run up is the time in which nobody has it.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "NCUFLOW_GPU_USE"  # the file, to which all programs of a run append
# what a program that holds the GPU for another is doing: "ncu decode sweep"
JOB = "NCUFLOW_GPU_JOB"
LOADS, WAITS, BEGINS, ENDS = "loads", "waits", "begins", "ends"
READY, DONE = "ready", "done"  # what it measures with stands; it has launched all, and ends


@dataclass(frozen=True)
class Holding:
    """A GPU that one program had. Times are seconds since the epoch.

    loads, waits: when it began to load its libraries, and to wait for the GPU; ready, done: when what it
    measures with stood on the GPU, and when it had launched all. None where it did not, or did not say so.
    """

    job: str
    gpu: str
    loads: float | None
    waits: float | None
    begins: float
    ends: float
    ready: float | None = None
    done: float | None = None


def note(event: str, gpu: str, job: str) -> None:
    """Append an event of this process. What cannot be noted is no reason to end a capture."""
    path = os.environ.get(FILE)
    if not path:
        return
    said = {"event": event, "gpu": gpu, "job": os.environ.get(JOB) or job}
    line = json.dumps({"time": round(time.time(), 3), "pid": os.getpid(), **said})
    with suppress(OSError), Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read(path: Path) -> list[Holding]:
    """All that the file tells of, in the order of their begins; nothing where there is none.

    A program that was killed has no end: it had the GPU until the next one began, or to the last event.
    """
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return _read(sorted(_events(lines), key=lambda event: event["time"]))


def _events(lines: Iterable[str]) -> list[Mapping[str, Any]]:
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _read(events: list[Mapping[str, Any]]) -> list[Holding]:
    found = []
    for number, event in enumerate(events):
        if event["event"] != BEGINS:
            continue
        own = [one for one in events if one["pid"] == event["pid"] and one["gpu"] == event["gpu"]]
        before: dict[str, float] = {}
        for one in (one for one in events[:number] if one["pid"] == event["pid"]):
            # What it did before an earlier turn ended is of that turn.
            before = {} if one["event"] == ENDS else before | {one["event"]: one["time"]}
        after = events[number + 1 :]
        ends = [
            one["time"]
            for one in after
            if one["gpu"] == event["gpu"] and (one["event"] == BEGINS or _ends(one, event))
        ]
        end = ends[0] if ends else events[-1]["time"]
        loads, waits = before.get(LOADS), before.get(WAITS)
        within = {o["event"]: o["time"] for o in own if event["time"] <= o["time"] <= end}
        span = event["time"], end, within.get(READY), within.get(DONE)
        found.append(Holding(event["job"], event["gpu"], loads, waits, *span))
    return found


def _ends(one: Mapping[str, Any], begun: Mapping[str, Any]) -> bool:
    return bool(one["event"] == ENDS and one["pid"] == begun["pid"])


def share(held: Iterable[Holding], since: float, until: float) -> float | None:
    """The part of the time between two moments in which somebody had a GPU, of those that anybody had; None without."""
    spans = [(max(one.begins, since), min(one.ends, until), one.gpu) for one in held]
    spans = [span for span in spans if span[0] < span[1]]
    if not spans:
        return None
    total = sum(end - begin for begin, end, _ in spans)
    return total / ((until - since) * len({gpu for *_, gpu in spans}))
