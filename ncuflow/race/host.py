"""The host of a race: the core that all sides are timed on in turns, and what is known of its clock."""

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ncuflow.io import clean
from ncuflow.race.record import HostState

CPU = Path("/sys/devices/system/cpu")
INFO = Path("/proc/cpuinfo")


def core() -> int:
    """The core that calls are timed on: the last of those that this process may run on, the first being busiest with others'
    interrupts."""
    return max(os.sched_getaffinity(0))


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """The calling thread, on one core and without garbage collection for the length of the block."""
    before, collecting = os.sched_getaffinity(0), gc.isenabled()
    os.sched_setaffinity(0, {core})
    gc.disable()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if collecting:
            gc.enable()


def state(core: int) -> HostState:
    """What the system says of a core and its clock."""
    folder = CPU / f"cpu{core}" / "cpufreq"
    khz = _text(folder / "scaling_cur_freq")
    blocks = re.split(r"\n\s*\n", _text(INFO) or "")
    own = next((b for b in blocks if re.search(rf"^processor\s*: {core}$", b, re.M)), "")
    model, mhz = (re.search(rf"^{name}\s*: (.+)$", own, re.M) for name in ("model name", "cpu MHz"))
    return HostState(
        core=core,
        cpu=clean(model[1]) if model else None,
        governor=_text(folder / "scaling_governor"),
        mhz=round(int(khz) / 1e3) if khz else round(float(mhz[1])) if mhz else None,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
