"""ncuflow in a notebook: a report as typed records and as frames of pandas, and what the command line says of it.

>>> import ncuflow
>>> report = ncuflow.read("recordings/h200/0.7.2/default/decode/deep/deep.ncu-rep.xz")
>>> report.kernels["dram_throughput_pct"].round(1).to_list()
[62.2, 3.9, 81.3]
>>> report.kernels.attrs["units"]["dram_throughput_pct"]
'%'
>>> print(report.explain(0).limit.words)
instruction issue 74 %, L1/shared 68 %, otherwise latency-bound
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow import parquet
from ncuflow.answer import Displayed
from ncuflow.compare import verdict
from ncuflow.compare.records import Comparison
from ncuflow.compare.verdict import compared as compare
from ncuflow.explain import launch
from ncuflow.explain.record import Explanation, as_text
from ncuflow.explain.verb import explain, of_report
from ncuflow.findings import profiled
from ncuflow.format import Sheet
from ncuflow.io import BadInput, printable, sniff_packed, write_text
from ncuflow.model import Kernel, Row
from ncuflow.parsers import ncu, show
from ncuflow.parsers.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from ncuflow.experiments.record import Advice
    from ncuflow.parsers.nsys import Trace
    from ncuflow.step.record import StepAnswer

__all__ = ["Frames", "Page", "advise", "compare", "explain", "read", "step", "view"]


Displayed.TEXTS |= {Explanation: as_text, Comparison: verdict.as_text}


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
        self._read: ncu.Report | Trace
        if self.kind == "nsys":
            self._read = profiled.trace(path)
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
        if isinstance(self._read, ncu.Report):
            return profiled.kernels(self._read)
        return profiled.traced(self._read)

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
        found = [] if isinstance(self._read, ncu.Report) else self._read.timeline
        return self._frame(
            "timeline", [{**row, "report": printable(self.path)} for row in found], "index"
        )

    @property
    def table(self) -> Sheet:
        """The table that `ncuflow show` prints."""
        if isinstance(self._read, ncu.Report):
            return show.of_report(self._read)[0]
        return show.of_trace(self._read)[0]

    def __str__(self) -> str:
        return self.table.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        table = self.table
        lines = [("th", table.header), *(("td", row) for row in table.rows)]
        cells = ["".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row) for kind, row in lines]
        rows, notes = "".join(f"<tr>{row}</tr>" for row in cells), map(escape, table.notes)
        return f"<p>{escape(table.head)}</p><table>{rows}</table><p>{'<br>'.join(notes)}</p>"

    def metrics(self, kernel: str | int | None = None) -> dict[str, float | str | None]:
        """All that the report has of a launch, by NVIDIA's names and in the report's units; the launch as ``explain`` takes it.

        Raises BadInput where there is none of it, and of anything but a report (.ncu-rep).
        """
        if self.kind != "ncu":
            raise BadInput(self.path, "only a report of ncu (.ncu-rep) has all metrics by name")
        chosen, _ = launch.choose(self.launches, kernel, str(self.path))
        return ncu.raw_metrics(self.path, chosen["kernel"])

    def explain(self, kernel: str | int | None = None) -> Explanation:
        """What limits a launch, by its index, or the longest of a name; the record that `ncuflow explain` prints.

        Raises BadInput where there is none of it.
        """
        if not isinstance(self._read, ncu.Report):
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


@dataclass(frozen=True)
class Page:
    """One HTML page, which a notebook shows in a frame."""

    html: str

    def save(self, path: str | Path) -> Path:
        """Write it; returns where."""
        write_text(path, self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        frame = 'style="width: 100%; height: 40em; border: 0" sandbox="allow-scripts"'
        return f'<iframe srcdoc="{escape(self.html)}" {frame}></iframe>'


def view(file: str | Path, *more: str | Path, source: str | Path | None = None) -> Page:
    """The page that `ncuflow view` writes of reports and traces; source: a folder with source files that no report embeds.

    Raises BadInput where one cannot be read.
    """
    from ncuflow.pages.html import view as page
    from ncuflow.view import files

    return Page(page.rendered(files.view([file, *more], Path(source) if source else None)))


def step(
    trace: str | Path,
    *,
    dump: str | Path | None = None,
    recording: str | Path | None = None,
    advice: str | Path | None = None,
    known: Mapping[str, int] | None = None,
    device: int | None = None,
    wall: Sequence[str] = (),
) -> StepAnswer:
    """The steps of an engine's trace, kernel by kernel: what `ncuflow step` prints; known: of the model, such as hidden=4096;
    wall: what steps take without the profiler, such as "decode=3.1ms".

    Raises BadInput where a file is not what it should be.
    """
    from ncuflow.step import trace as steps

    folder, held, advised = (
        None if one is None else Path(one) for one in (dump, recording, advice)
    )
    said = [f"{name}={value}" for name, value in (known or {}).items()]
    found = steps.step(Path(trace), folder, held, advised, said, device, wall)
    Displayed.TEXTS[type(found)] = steps.report
    return found


def advise(recorded: str | Path, *targets: str, effect: float = 0.02) -> Advice:
    """Which choice for which shape, of a recording, outputs or what `ncuflow advise --out` wrote; of these kernels, or all.

    effect: the minimum effect, of 1: a smaller difference is none. Raises BadInput where that cannot be read.
    """
    from ncuflow.experiments import advice, text

    found = advice.of_recording(Path(recorded), advice.ShapesAsked(list(targets), {}), effect)
    Displayed.TEXTS[type(found)] = text.advice_text
    return found
