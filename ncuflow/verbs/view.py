"""Reports of any program in one HTML file, to read, to compare and to pass on, without a network.

    ncuflow view FILE… [--out page.html] [--source FOLDER]

Files are reports of ncu, traces of nsys (their SQLite export, or .nsys-rep where nsys is installed) and what ncu
printed, each also as .xz. Of several reports the first is the baseline, and the others are compared with it kernel by
kernel. No GPU and none of NVIDIA's tools are needed.
"""

from pathlib import Path

from ncuflow.answer import wrote
from ncuflow.io import BadInput, not_over, write_text
from ncuflow.pages.html import view as page
from ncuflow.verbs.options import OutFile
from ncuflow.view import files


def command(file: Path, /, *more: Path, out: OutFile = None, source: Path | None = None) -> None:
    """A page of reports.

    Args:
        file: FILE…, reports and traces; the first report is the baseline
        more: further ones
        out: default: the first file's name with .html, in this folder
        source: folder with source files that no report embeds
    """
    if source and not source.is_dir():
        raise BadInput(source, "not a folder")
    page_file = out or Path(_stem(file) + ".html")
    not_over(page_file, file, *more)
    write_text(page_file, page.rendered(files.view([file, *more], source)))
    if out is None:
        wrote(page_file)  # what was asked for by name is told of every verb


def _stem(path: Path) -> str:
    """report.ncu-rep.xz is report."""
    name = path.name.removesuffix(".xz")
    return name.rpartition(".")[0] or name
