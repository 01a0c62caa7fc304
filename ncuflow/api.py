"""ncuflow in a notebook: a report as typed records and as frames of pandas, and what the command line says of it.

>>> import ncuflow
>>> report = ncuflow.read("recordings/h200/0.7.2/default/decode/deep/deep.ncu-rep.xz")
>>> report.kernels["dram_throughput_pct"].round(1).to_list()
[62.2, 3.9, 81.3]
>>> report.kernels.attrs["units"]["dram_throughput_pct"]
'%'
>>> print(report.explain(0).limit.words)
instruction issue 74 %, L1/shared 68 % and waits
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow import parquet
from ncuflow.compare.verdict import compared as compare
from ncuflow.explain import launch
from ncuflow.explain.record import Explanation
from ncuflow.explain.verb import explain, of_report
from ncuflow.findings import profiled
from ncuflow.io import printable, sniff_packed
from ncuflow.model import Kernel, Row
from ncuflow.parsers import ncu, nsys
from ncuflow.parsers.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Frames", "compare", "explain", "read"]


class Frames:
    """One report of ncu, what ncu printed, or one trace of nsys.

    Columns are those of docs/tables.md, and of ``kernels`` of a report the keys of docs/metrics.md as well; units stand in a
    frame's ``attrs["units"]``, with ``attrs["tier"]`` and ``attrs["file"]``. What is not known is NA, never 0.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises BadInput where the file is no report, or is not whole."""
        self.path = Path(path)
        kind, _ = sniff_packed(path)
        self.kind = "nsys" if kind in profiled.TRACES else "ncu" if kind == "ncu-rep" else "ncu csv"
        self._read: ncu.Report | nsys.Trace
        if self.kind == "nsys":
            self._read = nsys.read(path)
        else:
            # Lines are disassembled, which takes most of the time: they are read when they are asked for.
            self._read = (
                ncu.read(path, with_lines=False) if self.kind == "ncu" else profiled.read(path)
            )

    @property
    def problems(self) -> list[str]:
        """What is wrong with the file as a whole."""
        return self._read.problems

    @cached_property
    def launches(self) -> list[Kernel]:
        """Every launch with its metrics by registry key, stalls, breakdown and rules; of a trace with its times alone."""
        if isinstance(self._read, nsys.Trace):
            return profiled.traced(self._read)
        return profiled.kernels(self._read)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """A row per launch, by its index in the report."""
        rows = [{**row, "report": printable(self.path), "batch": ""} for row in self.launches]
        frame = self._frame("kernels", rows)
        units = {metric.key: metric.unit for metric in METRICS.values()}
        counted = [key for key in METRICS if key not in frame.columns]
        found = {key: [row["metrics"].get(key) for row in self.launches] for key in counted}
        import pandas as pd

        metrics = pd.DataFrame(found, index=frame.index, dtype="Float64")
        out = pd.concat([frame, metrics], axis=1)
        out.attrs = frame.attrs | {"units": frame.attrs["units"] | units}
        return out

    @cached_property
    def stalls(self) -> pd.DataFrame:
        """A row per launch and warp state; none of a trace."""
        return self._parts("stalls")

    @cached_property
    def rules(self) -> pd.DataFrame:
        """A row per launch and message of NVIDIA's rules; none of a trace."""
        return self._parts("rules")

    @cached_property
    def lines(self) -> pd.DataFrame:
        """A row per launch, instruction and warp state that was sampled there; none without samples."""
        return self._parts("lines", self._whole)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row per operation of a trace, by start; none of a report of ncu."""
        found = self._read.timeline if isinstance(self._read, nsys.Trace) else []
        return self._frame(
            "timeline", [{**row, "report": printable(self.path)} for row in found], "index"
        )

    def explain(self, kernel: str | int | None = None) -> Explanation:
        """What limits a launch, by its index, or the longest of a name; the record that `ncuflow explain` prints.

        Raises BadInput where there is none of it.
        """
        if isinstance(self._read, nsys.Trace):
            return launch.of_trace(self._read, kernel)
        return of_report(self._whole, kernel, self.kind)

    @cached_property
    def _whole(self) -> ncu.Report:
        """The report with its lines."""
        if self.kind == "ncu":
            return ncu.read(self.path)
        return self._read if isinstance(self._read, ncu.Report) else ncu.Report(str(self.path))

    def _parts(self, table: str, of: ncu.Report | None = None) -> pd.DataFrame:
        found = of or self._read
        rows = getattr(found, table) if isinstance(found, ncu.Report) else []
        return self._frame(
            table, [{**row, "report": printable(self.path), "batch": ""} for row in rows]
        )

    def _frame(
        self, table: str, rows: list[Row] | list[Any], index: str = "kernel"
    ) -> pd.DataFrame:
        """Rows as a frame of the types that a table of docs/tables.md has, which may be NA."""
        import pandas as pd
        import pyarrow as pa

        types = {
            pa.float64(): pd.Float64Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(),
            pa.string(): pd.StringDtype(),
        }  # fmt: skip
        built = parquet.build(table, rows)
        frame = built.drop_columns([n for n in ("report", "batch") if n in built.column_names])
        out: pd.DataFrame = frame.to_pandas(types_mapper=types.get).set_index(index)
        about = parquet.columns(table)
        units = {name: about[name].unit for name in out.columns}
        out.attrs = {"units": units, "tier": profiled.RECORDED, "file": str(self.path)}
        return out


def read(path: str | Path) -> Frames:
    """A report of ncu (.ncu-rep), what ncu printed, or a trace of nsys (its SQLite export), each also as .xz.

    Raises BadInput where it is none of them.
    """
    return Frames(path)
