"""What a run on the fake machine does at a point, as the files of the plan folder say."""

import os
import signal
from pathlib import Path

FOLDER = Path(os.environ.get("NCUFLOW_TEST_PLAN", "plan"))


def planned(what, point):
    """Whether `what` is to happen at `point`; a plan that says once is used up."""
    path = FOLDER / f"{what}-{point.replace('/', '-')}"
    if not path.exists():
        return False
    if path.read_text() == "once":
        path.unlink()
    return True


def follow(point):
    if planned("gate", point):
        with (FOLDER / "reached").open(
            "w", encoding="utf-8"
        ) as reached:  # waits until the test reads
            reached.write(str(os.getpid()))
        signal.pause()  # until the test kills it
    lost = planned("lose", point)
    if lost:  # the next process cannot use the GPU either
        (FOLDER / "gone-process").write_text("once")
    if lost or planned("break", point):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
