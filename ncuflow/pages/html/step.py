"""The page of a trace's steps, made of the answer alone."""

from functools import partial

from ncuflow.format import micro, pct, short
from ncuflow.pages.html import page
from ncuflow.step import trace
from ncuflow.step.record import StepAnswer

MOST_ROWS, LONGEST = 400, 1000  # of a table of the page, and of a name on it
FILTERS = {
    "micro": micro,
    "pct": pct,
    "shape": trace.shape_text,
    "roof": trace.roof_text,
    "alone": trace.alone_text,
    "gain": trace.gain_text,
    "reason": trace.reason_text,
    "built": trace.built_text,
    "short": partial(short, width=LONGEST),
}


def rendered(found: StepAnswer) -> str:
    """The page's text, with so many rows of each table at most."""
    page.environment().filters.update(FILTERS)
    sections = [("trace", "Trace")]
    for at, group in enumerate(found.groups, 1):
        sections.append((f"steps-{at}", f"{group.kind}{' (graph)' if group.replayed else ''}"))
    origin = f"steps of a trace · {found.gpu or 'unknown GPU'}"
    shown = trace.limited(found, MOST_ROWS)
    told = page.framed(
        "step.html.j2",
        found.file,
        origin,
        sections,
        found=shown,
        told_by=trace.told_by,
        roofs=trace.roofs,
        parts=trace.parts,
        times=trace.times,
    )
    return told + "\n"
