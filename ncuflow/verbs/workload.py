"""A sweep of what somebody runs: FlashInfer's benchmark lists, trace workloads, and what a server called.

    ncuflow workload FILE… --name mine --out mine.json       then: snakemake -j1 --configfile mine.json -- all

FILE is one of:
  a test list of FlashInfer's benchmarks    one command line per case (--routine …)
  a workload file of FlashInfer-Trace       JSON lines of {"definition", "workload": {"uuid", "axes", "inputs"}}
  a folder that FLASHINFER_TRACE_DUMP=1 left, or a definition of it

What no target measures is refused by name, on stderr, as is a file of a folder that is no definition, such as one that
a killed server left half-written; what is left is written. Exit status 2 where nothing is. The same case twice is one.
A file holds at most 64 MB, a line 16 384 characters, and all files together 10 000 different cases.
"""

import re
import sys
from pathlib import Path

from ncuflow.io import BadInput, UsageError, write_json
from ncuflow.sweep.workloads import WorkloadAnswer, read
from ncuflow.verbs.options import AS_TEXT, Printed


def command(
    file: Path, /, *files: Path, out: Path, name: str = "mine", printed: Printed = AS_TEXT
) -> None:
    """Raises BadInput for a file that is none of the kinds, or holds nothing that can be measured.

    Args:
        file: a list, a file or a folder as above; further ones may follow
        files: further ones
        out: a configuration with that sweep
        name: of the sweep
    """
    if not re.fullmatch(r"\w+", name):
        raise UsageError(f"--name {name!r} is not a word")
    blocks, refused, count = read([file, *files])
    for line in refused if not printed.json else ():
        print(f"refused: {line}", file=sys.stderr)
    if not blocks:
        raise BadInput(file, "holds no case that can be measured")
    write_json(out, {"sweep": name, "sweeps": {name: blocks}})
    cases = {target: len(some) for target, some in blocks.items()}
    found = WorkloadAnswer(
        out=str(out), sweep=name, points=count, cases=cases, refused=refused, refusals=len(refused)
    )
    printed.tell(found, f"{out}: {count} points of {', '.join(blocks)}; {len(refused)} refused\n")
