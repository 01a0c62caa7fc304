"""From a trace, and what is known besides, to the answer about its steps."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ncuflow import answer
from ncuflow.io import UsageError
from ncuflow.parsers.traces import read
from ncuflow.step import gain, reference, shapes, summary
from ncuflow.step.record import StepAnswer
from ncuflow.step.shapes import NOTHING, KnownFacts

SAID = "said by the caller"
# What --known takes: names of ncuflow/target/rules.py.
KNOWN = (
    "tokens", "decodes", "decodes_kv_tokens", "prompts", "prompt_tokens", "prompt_kv_tokens", "hidden", "intermediate",
    "vocab", "qo_heads", "kv_heads", "head_dim", "page_size",
)  # fmt: skip


def step(
    trace: Path,
    folder: Path | None = None,
    recording: Path | None = None,
    advice: Path | None = None,
    known: list[str] | None = None,
    device: int | None = None,
) -> StepAnswer:
    """The steps of a trace. Raises BadInput where one of the files is not what it should be."""
    given = parse_known(known or [])
    if folder is not None:
        facts = shapes.of_dump(folder)
        given = given.joined(facts.values, shapes.DUMP)
    advised = gain.read_advice(advice) if advice else None
    timeline = read(trace)
    found = summary.Summary(timeline, given, reference.Reference(), advised, device)
    with ExitStack() as stack:
        found.held = reference.evidence(found.gpu, recording, stack)
        return found.answer()


def parse_known(words: list[str]) -> KnownFacts:
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
