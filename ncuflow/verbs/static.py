"""Static facts of a sweep's kernels: its JIT modules compiled for an architecture, without a GPU.

    ncuflow static --arch 8.0 --out FOLDER [--blocks '{"decode": [{"batch": 1}]}']
                   [--targets rmsnorm,rope] [--only PATTERN] [--jobs 2] [--limit SECONDS]
    ncuflow static predict --measured RESULTS --on RESULTS --out predictions.json
    ncuflow static counters gh100

Each source of each module is compiled by the command that FlashInfer's own build has for it, to a
cubin alone: no host code, nothing linked. What the tools say of the cubins is FOLDER/static.json.xz,
a file per kernel source in FOLDER/usage (`cuobjdump -res-usage`). What that file has already, of the
same FlashInfer and tools, stays and is not compiled again. --only: the sources alone whose
MODULE/SOURCE the pattern finds. After --limit no further source is begun, those under way are ended,
and what was made by then is written; a source that does not compile is named in the file, with the
compiler's complaint. Exit status 3 where not all compiled.
"""

import re
from pathlib import Path

from ncuflow.io import UsageError
from ncuflow.static import build, results
from ncuflow.target.contract import known
from ncuflow.verbs.options import Jobs, Seconds


def command(
    *,
    arch: str,
    out: Path,
    blocks: str | None = None,
    targets: str | None = None,
    only: str = "",
    jobs: Jobs = None,
    limit: Seconds = 86400.0,
) -> int:
    """0 where all compiled.

    Args:
        arch: compute capability: 8.0, 9.0a, 12.0a
        out: folder of static.json.xz
        blocks: blocks of a sweep by target, as JSON
        targets: these targets of the sweep alone, separated by commas
        only: sources whose MODULE/SOURCE this finds
        jobs: compilers at once
        limit: seconds for all of it
    """
    if not re.fullmatch(r"\d+\.\d[af]?", arch):
        raise UsageError(f"--arch {arch}: not a compute capability such as 8.0 or 9.0a")
    swept = results.swept_blocks(blocks)
    names = targets.split(",") if targets else list(swept)
    unknown = [name for name in names if name not in known() or name not in swept]
    if unknown:
        raise UsageError(f"--targets: the sweep has no points of {unknown[0]}")
    chosen = {name: swept[name] for name in names}
    return 0 if build.compile_all(arch, out, chosen, only, jobs, limit) else 3
