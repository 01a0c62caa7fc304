"""Run an engine with a range around each of FlashInfer's calls that states its shape, as `ncuflow step` reads it.

    ncuflow step annotate -- nsys profile --trace=cuda,nvtx -o trace python -m engine …
    ncuflow step annotate --workload called/ -- python -m engine …

No code of the engine changes: the calls are wrapped when its processes import FlashInfer, which each tells on stderr when it
ends. Ranges are NVTX's, or torch's profiler's while that records. ncuflow has to be where the engine's Python finds it, or its
dependencies there (PyYAML). The workload is a folder of points, TARGET.json, each with how often it ran: the points that
`ncuflow advise --points called/decode.json` and `ncuflow try … --points called/decode.json` take.
"""

from pathlib import Path

from ncuflow.io import UsageError, scratch, write_json
from ncuflow.process import run_in_place
from ncuflow.step import annotate
from ncuflow.target.contract import known


def command(*words: str, workload: Path | None = None, graphs: bool = False) -> int:
    """Run a command with FlashInfer's calls in ranges; its exit status is ours (128 + n for signal n).

    What would end us is sent on to it, and it is waited for: what was called until then is in the workload.

    Args:
        words: -- COMMAND…
        workload: a folder without points for what was called, a file for each target
        graphs: ranges around launches that are captured into a CUDA graph as well
    """
    if not words:
        raise UsageError("no command given after --")
    if workload and workload.is_file():
        raise UsageError(f"{workload} is a file; --workload is a folder")
    if workload and (old := next((f for f in workload.glob("*.json") if f.stem in known()), None)):
        raise UsageError(f"{old} is of another run; --workload is a folder without points")
    with scratch() as own:
        (own / "site").mkdir()
        (own / "called").mkdir()
        env = annotate.environment(own / "site", own / "called" if workload else None, graphs)
        try:
            status = run_in_place([*words], env)
        finally:
            if workload:
                for target, points in annotate.workload(own / "called").items():
                    write_json(workload / f"{target}.json", points)
    return status if status >= 0 else 128 - status
