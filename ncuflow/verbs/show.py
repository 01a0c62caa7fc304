"""Reports of Nsight Compute or Nsight Systems on the terminal, as JSON, CSV or Markdown.

    ncuflow show REPORT… [--format table|csv|md | --json [--limit N]] [--out FILE]
    ncuflow show - < REPORT                          from standard input

Which of the two a file is, its content tells. No GPU and none of NVIDIA's tools are needed; a .nsys-rep is exported first,
where nsys is installed. The JSON of several files is a list.
"""

import sys
from typing import Literal

from ncuflow.io import emit, sniff_packed
from ncuflow.parsers import show
from ncuflow.verbs.options import AS_TEXT, OutFile, Printed, given


def command(
    report: str,
    /,
    *more: str,
    format: Literal["table", "json", "csv", "md"] = "table",
    out: OutFile = None,
    printed: Printed = AS_TEXT,
) -> None:
    """Reports, in the form asked for.

    Args:
        report: REPORT…, .ncu-rep, what ncu printed (with --csv or without), .nsys-rep or its SQLite export; also as .xz; - is
            standard input
        more: further ones
        format: table (the default), csv, md (a table for a pull request), or json as --json
        out: write to this file, atomically, instead of standard output
    """
    printed = printed.as_asked(format)
    found = []
    with given(report, *more) as files:
        for named, path in files:
            kind, words = sniff_packed(path)
            if kind not in show.READERS:
                raise show.strange(path, "ncu or nsys", kind, words)
            found.append((named, *show.READERS[kind](path)))
    if printed.json:
        answers = [show.answer_of(doc, name, printed.limit) for name, _, doc, _ in found]
        printed.tell_all(answers, "", out)
        return
    if format == "table":
        emit("\n".join(sheet.text() for _, sheet, _, _ in found), out)
        return
    if format == "csv":
        several = len(found) > 1
        rows = [{"file": name} | row if several else row for name, *_, of in found for row in of]
        emit(show.as_csv(rows), out)
    else:
        emit("\n".join(sheet.markdown() for _, sheet, _, _ in found), out)
    # A row has no place for what is wrong with the file as a whole.
    for _, _, document, _ in found:
        for problem in document.get("problems", document["report"].get("problems", ())):
            print(f"! {problem}", file=sys.stderr)
