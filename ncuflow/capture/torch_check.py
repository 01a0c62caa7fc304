"""Whether torch loads and sees the GPU, asked of a process of its own: to load it takes seconds, and others measure meanwhile."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from threading import Thread
from typing import Any

from ncuflow.process import CaptureError, ProcessExit, python_environment, run_child
from ncuflow.runner.builds import shown

LIMIT_S = 60.0
MARK = "torch is "
# Its libraries load in a third of the time of its import, and what keeps torch from a GPU shows there: a library that is
# not found, a CUDA newer than the driver's, a driver that does not start. Where they do not load, the import has the last
# word, which may know other places.
ASK = f"""
import json

def by_its_libraries():
    import ctypes, importlib.util, runpy
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    cuda = runpy.run_path(folder + "/version.py")["cuda"]
    driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if int(cuda.split(".")[0]) > version.value // 1000 or driver.cuInit(0):
        raise RuntimeError("the driver is older, or does not work")
    ctypes.CDLL(folder + "/lib/libtorch_python.so")
    return {{"gpu": True, "cuda": cuda}}

def by_itself():
    import torch
    return {{"gpu": torch.cuda.is_available(), "cuda": torch.version.cuda}}

try:
    found = by_its_libraries()
except Exception:
    try:
        found = by_itself()
    except Exception as error:
        found = {{"kind": type(error).__name__, "message": str(error)}}
print("\\n" + {MARK!r} + json.dumps(found), flush=True)
"""


class TorchCheck:
    """The question, on its way since this was made."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._outcome: ProcessExit | None = None
        self._thread = Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        command, environment = [sys.executable, "-c", ASK], python_environment()
        with suppress(CaptureError):
            self._outcome = run_child(
                command, env=environment, timeout=LIMIT_S, on_line=self._lines.append
            )

    def answer(self) -> dict[str, Any]:
        """{"gpu": whether it sees one, "cuda": what it is built for, None without}, {"error": line}, or {"timed_out": True}."""
        self._thread.join()
        if self._outcome and self._outcome.timed_out:
            return {"timed_out": True}
        answers = [line.removeprefix(MARK) for line in self._lines if line.startswith(MARK)]
        if answers:
            found: dict[str, Any] = json.loads(answers[-1])
            return {"error": shown(**found)} if "kind" in found else found
        status = self._outcome.returncode if self._outcome else None
        return {"error": f"its process ended with status {status}"}
