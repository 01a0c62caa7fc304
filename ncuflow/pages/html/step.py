"""The steps of a trace, kernel by kernel: which shapes ran, how far from the roof, and what another choice would bring.

    ncuflow step TRACE [--device N] [--dump FOLDER] [--recording FOLDER] [--advice advice.json] [--known hidden=4096 …]
                 [--html page.html]

TRACE is an SQLite export of nsys (with --cuda-graph-trace=node), or the JSON of torch's profiler, also packed. A dump is the
folder that FLASHINFER_TRACE_DUMP=1 left; it says what launches do not. Of a recording, by default the one of the trace's GPU,
are ceilings, the points that launches are held against, and the choices that were measured. docs/step.md says how to record.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jinja2

from ncuflow import answer
from ncuflow.format import micro, pct, short, with_unit
from ncuflow.io import (
    BadInput,
    UsageError,
    emit,
    file_to_write,
    not_over,
    resource,
    sniff_packed,
    write_text,
)
from ncuflow.pages.html.page import FOLDER
from ncuflow.parsers import nsys, torch_trace
from ncuflow.parsers.timeline import Timeline
from ncuflow.step import gain, reference, screen, shapes, summary
from ncuflow.step.record import StepAnswer
from ncuflow.step.shapes import NOTHING, KnownFacts

ANSWER = StepAnswer
SAID = "said by the caller"
MOST_ROWS, LONGEST = 400, 1000  # of a table of the page, and of a name on it
# What --known takes: names of ncuflow/target/rules.py.
KNOWN = (
    "tokens", "decodes", "decodes_kv_tokens", "prompts", "prompt_tokens", "prompt_kv_tokens", "hidden", "intermediate",
    "vocab", "qo_heads", "kv_heads", "head_dim", "page_size",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", type=Path, help="SQLite export of nsys, or JSON of torch's profiler"
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="of several GPUs; default: the one that ran most"
    )
    parser.add_argument(
        "--dump", type=Path, metavar="FOLDER", help="what FLASHINFER_TRACE_DUMP=1 left"
    )
    parser.add_argument("--recording", type=Path, metavar="FOLDER", help="a recording, or outputs")
    parser.add_argument("--advice", type=Path, metavar="FILE", help="what `ncuflow advise` wrote")
    parser.add_argument(
        "--known",
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help=f"what you know besides: {', '.join(KNOWN)}",
    )
    parser.add_argument(
        "--html", type=file_to_write, metavar="FILE", help="a page with the kernels"
    )
    answer.options(parser)


def run(args: argparse.Namespace) -> None:
    if args.html:
        not_over(args.html, args.trace)
    found = step(args.trace, args.dump, args.recording, args.advice, args.known, args.device)
    if args.html:
        text = rendered(limited(found, MOST_ROWS))
        write_text(args.html, text)
    if args.json:
        answer.tell(limited(found, args.limit))
    else:
        emit(screen.screen(found), None)
        if args.html:
            print(f"\n{args.html}: {with_unit(round(len(text.encode()) / 1e3), 'kB')}")


def step(
    trace: Path,
    folder: Path | None = None,
    recording: Path | None = None,
    advice: Path | None = None,
    known: list[str] | None = None,
    device: int | None = None,
) -> StepAnswer:
    """The steps of a trace. Raises BadInput where one of the files is not what it should be."""
    given = said(known or [])
    if folder is not None:
        facts = shapes.of_dump(folder)
        given = given.joined(facts.values, shapes.DUMP)
    advised = gain.read_advice(advice) if advice else None
    timeline = read(trace)
    found = summary.Summary(timeline, given, reference.Reference(), advised, device)
    with ExitStack() as stack:
        found.held = reference.evidence(found.gpu, recording, stack)
        return found.answer()


def read(path: Path) -> Timeline:
    """A trace of either tool. Raises BadInput for any other file."""
    kind, words = sniff_packed(path)
    if kind in ("sqlite", "nsys-rep"):
        return nsys.read_timeline(path)
    if kind in ("json", "gzip"):
        return torch_trace.read(path)
    raise BadInput(path, f"neither an nsys export nor the JSON of torch's profiler but {words}")


def said(words: list[str]) -> KnownFacts:
    """What --known states. Raises UsageError for what is no name with a number."""
    values: dict[str, int] = {}
    for word in words:
        name, _, number = word.partition("=")
        usable = number.isdecimal() and len(number) <= 10 and 0 < int(number) < 1 << 31
        if name not in KNOWN or not usable:
            raise UsageError(f"--known {word!r}: NAME=NUMBER, of {', '.join(KNOWN)}")
        values[name] = int(number)
    return NOTHING.joined(values, SAID)


def limited(found: StepAnswer, limit: int | None) -> StepAnswer:
    """With so many groups, kernels, families and gains of each at most, and the count of what that leaves out."""
    if limit is None:
        return found
    groups, left_out = answer.cut(found.groups, limit)
    kept = []
    for group in groups:
        cut = {
            name: answer.cut(getattr(group, name), limit)
            for name in ("kernels", "families", "gains")
        }
        left_out += sum(left for _, left in cut.values())
        kept.append(group.model_copy(update={name: rows for name, (rows, _) in cut.items()}))
    problems, more = answer.cut(found.problems, limit)
    update = {"groups": kept, "problems": problems, "left_out": left_out + more}
    return found.model_copy(update=update)


def rendered(found: StepAnswer) -> str:
    """The page of what is in the record: it needs no script."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(FOLDER)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "micro": micro,
        "pct": pct,
        "shape": screen.shape_text,
        "roof": screen.roof_text,
        "each": screen.each_text,
        "alone": screen.alone_text,
        "gain": screen.gain_text,
        "short": partial(short, width=LONGEST),
    }
    env.globals |= {"told_by": screen.told_by}
    style = (resource(FOLDER) / "style.css").read_text(encoding="utf-8")
    return env.get_template("step.html").render(found=found, style=style) + "\n"
