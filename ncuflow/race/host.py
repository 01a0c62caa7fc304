"""The host of a race: the core that all sides are timed on in turns, what is known of its clock, and two FlashInfers in one
process."""

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

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


class Packages:
    """FlashInfers in one interpreter. Of these `import flashinfer` finds one at a time, with all that it has loaded."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        self._loaded: dict[Path | None, dict[str, ModuleType]] = {}
        self._now: Path | None = None  # None: that of the process

    def add(self, name: str, folder: Path, environ: Mapping[str, str]) -> str:
        """Load another one, which launches of this name are of; where it lies. Raises what that raises."""
        before = dict(os.environ)
        _imported()  # that of the process, before another is found in its place
        self._folders[name] = folder
        with self.of(name):
            os.environ.update(environ)
            sys.path.insert(0, str(folder.parent))
            try:
                return _imported()
            finally:
                sys.path.remove(str(folder.parent))
                os.environ.clear()
                os.environ.update(before)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """That of a launch, for the length of the block."""
        before = self._now
        self._take(self._folders.get(name))
        try:
            yield
        finally:
            self._take(before)

    def _take(self, folder: Path | None) -> None:
        if folder != self._now:
            names = [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]
            self._loaded[self._now] = {name: sys.modules.pop(name) for name in names}
            sys.modules.update(self._loaded.get(folder, {}))
            self._now = folder


def _imported() -> str:
    """Import FlashInfer, with where it compiles, which its environment says; its file."""
    with suppress(ModuleNotFoundError):
        importlib.import_module("flashinfer.jit.env")
    return str(importlib.import_module("flashinfer").__file__)
