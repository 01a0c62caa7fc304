"""The steps of a trace, kernel by kernel: which shapes ran, how far from the roof, and what another choice would bring.

    ncuflow step TRACE [--device N] [--dump FOLDER] [--recording FOLDER] [--advice advice.json] [--known hidden=4096 …]
                 [--wall 240ms] [--html page.html]

TRACE is an SQLite export of nsys (with --cuda-graph-trace=node), or the JSON of torch's profiler, also packed. A dump is the
folder that FLASHINFER_TRACE_DUMP=1 left; it says what launches do not. Of a recording, by default the one of the trace's GPU,
are ceilings, the points that launches are compared with, and the choices that were measured. docs/step.md says how to record.
"""

from pathlib import Path

from ncuflow import answer
from ncuflow.io import emit, not_over, write_text
from ncuflow.step.record import StepAnswer
from ncuflow.step.trace import limited, report, step
from ncuflow.verbs.options import AS_TEXT, OutFile, Printed

ANSWER = StepAnswer


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
    not_over(html, trace)
    found = step(trace, dump, recording, advice, known, device, wall or [])
    if html:
        from ncuflow.pages.html import step as page

        write_text(html, page.rendered(found))
    if printed.json:
        answer.tell(limited(found, printed.limit))
    else:
        emit(report(found), None)
