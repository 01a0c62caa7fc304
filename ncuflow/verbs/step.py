"""The steps of a trace, kernel by kernel: which shapes ran, how far from the roof, and what another choice would bring.

    ncuflow step TRACE [--device N] [--dump FOLDER] [--recording FOLDER] [--advice advice.json] [--known hidden=4096 …]
                 [--wall 240ms] [--html page.html]

TRACE is an SQLite export of nsys (with --cuda-graph-trace=node), or the JSON of torch's profiler, also packed. A dump is the
folder that FLASHINFER_TRACE_DUMP=1 left; it says what launches do not. Of a recording, by default the one of the trace's GPU,
are ceilings, the points that launches are compared with, and the choices that were measured. docs/step.md says how to record.
"""

from pathlib import Path

from ncuflow.io import UsageError, emit, not_over, scratch, write_json, write_text
from ncuflow.process import run_in_place
from ncuflow.verbs.options import AS_TEXT, OutFile, Printed


def command(
    trace: Path,
    /,
    *,
    device: int | None = None,
    dump: Path | None = None,
    recording: Path | None = None,
    advice: Path | None = None,
    known: list[str] | None = None,
    wall: list[str] | None = None,
    html: OutFile = None,
    printed: Printed = AS_TEXT,
) -> None:
    """The steps of a trace.

    Args:
        trace: SQLite export of nsys, or JSON of torch's profiler
        device: of several GPUs; default: the one that ran most
        dump: folder that FLASHINFER_TRACE_DUMP=1 left
        recording: a recording, or outputs
        advice: what `ncuflow advise` wrote
        known: NAME=NUMBER …, what you know besides, of tokens, decodes, decodes_kv_tokens, prompts, prompt_tokens,
            prompt_kv_tokens, hidden, intermediate, vocab, qo_heads, kv_heads, head_dim, page_size
        wall: what a step takes without the profiler: 240ms, decode=3.1ms (of several kinds; graph: of replays), or another
            trace, without shapes
        html: a page with the kernels
    """
    from ncuflow import answer
    from ncuflow.step.trace import limited, report, step  # with what annotate does without

    not_over(html, trace)
    found = step(trace, dump, recording, advice, known, device, wall or [])
    if html:
        from ncuflow.pages.html.experiments import rendered_step

        write_text(html, rendered_step(found))
    if printed.json:
        answer.tell(limited(found, printed.limit))
    else:
        emit(report(found), None)


def annotate(*words: str, workload: Path | None = None, graphs: bool = False) -> int:
    """Run an engine with a range around each of FlashInfer's calls that states its shape, as `ncuflow step` reads it.

        ncuflow step annotate -- nsys profile --trace=cuda,nvtx -o trace python -m engine …
        ncuflow step annotate --workload called/ -- python -m engine …

    No code of the engine changes: the calls are wrapped when its processes import FlashInfer, which each tells on stderr when it
    ends. Ranges are NVTX's, or torch's profiler's while that records. ncuflow has to be where the engine's Python finds it, or
    its dependencies there (PyYAML). The workload is a folder of points, TARGET.json, each with how often it ran: the points that
    `ncuflow advise --points called/decode.json` and `ncuflow try … --points called/decode.json` take.

    Args:
        words: -- COMMAND…
        workload: a folder without points for what was called, a file for each target
        graphs: ranges around launches that are captured into a CUDA graph as well
    """
    from ncuflow.step import annotate as engine
    from ncuflow.target.contract import known

    if not words:
        raise UsageError("no command given after --")
    if workload and workload.is_file():
        raise UsageError(f"{workload} is a file; --workload is a folder")
    if workload and (old := next((f for f in workload.glob("*.json") if f.stem in known()), None)):
        raise UsageError(f"{old} is of another run; --workload is a folder without points")
    with scratch() as own:
        (own / "site").mkdir()
        (own / "called").mkdir()
        env = engine.environment(own / "site", own / "called" if workload else None, graphs)
        try:
            status = run_in_place([*words], env)
        finally:
            if workload:
                for target, points in engine.workload(own / "called").items():
                    write_json(workload / f"{target}.json", points)
    return status if status >= 0 else 128 - status
