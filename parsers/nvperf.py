"""NVIDIA's library of counters, loaded by the import of this module.

The reader loads it for the first kernel that it reads. That takes 0.06 s and 110 MB, as much as the kernels of a
small report, in each child anew: so a process that will read reports in children loads it once, and they inherit it.
"""

import contextlib
import ctypes
from pathlib import Path

import ncu_report

PLACE = Path(ncu_report.__file__).with_name("libnvperf_host.so")
with contextlib.suppress(OSError):  # where it has another name, the reader looks for it as before
    ctypes.CDLL(str(PLACE))
