"""The archive of advice, and what confirmed it: a second run, choices against themselves, all choices timed to the end.

A folder of FOLDER has advice.json.xz, and beside it what there is of again, aa, regret (advice as well) and audit.
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from ncuflow.evidence import location
from ncuflow.experiments import choices, recorded, text
from ncuflow.experiments.audit import Audit, Verdict
from ncuflow.experiments.record import Advice, AdvisedShape
from ncuflow.format import aligned, micro, with_unit
from ncuflow.io import read_as

FOLDER = Path("examples/advice")
ADVICE, AUDIT = "advice", "audit"
BESIDE = ("again", "aa", "regret")


def keep(measured: Path, counters: Path | None, root: Path) -> Path:
    """Keep what a run on a GPU left as {advice,again,aa,regret…,audit}.json in the GPU's folder, which is returned; counters:
    reports of `ncuflow ncu`.

    Of what holds the advice only the choices stay that it is about. Raises BadInput where there is no advice.
    """
    advice = read_as(measured / f"{ADVICE}.json", Advice, "an advice")
    advice.rules = choices.rules(advice.shapes, advice.metric)
    if counters is not None:
        recorded.explain_from(advice, counters)
    folder = root / location.gpu(advice.gpu or "unknown")
    _write(folder, ADVICE, advice.model_dump_json())
    for name in BESIDE:
        some = [read_as(p, Advice, "an advice") for p in sorted(measured.glob(f"{name}*.json"))]
        if some:
            whole = some[0].model_copy(update={"shapes": [s for one in some for s in one.shapes]})
            whole.rules = []
            for shape in whole.shapes:
                _cut(shape, all_of_it=name == "regret")
            _write(folder, name, whole.model_dump_json())
    if (measured / f"{AUDIT}.json").is_file():
        audit = read_as(measured / f"{AUDIT}.json", Audit, "an audit")
        _write(folder, AUDIT, audit.model_dump_json())
    return folder


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def _cut(shape: AdvisedShape, all_of_it: bool) -> None:
    """Leave the choices of a shape that were timed; else those that it is about."""
    about = {shape.shape, shape.advised, *shape.best}
    timed = [one for one in shape.choices if one.time_us is not None]
    shape.choices = [one for one in timed if all_of_it or one.point in about or len(timed) == 2]
    for one in shape.choices:
        one.check = None


def read(folder: Path, name: str) -> Advice | None:
    """An advice of a kept folder; None where there is none of this name."""
    path = folder / f"{name}.json.xz"
    return recorded.read(path) if path.is_file() else None


SHOWN = 5  # columns of the table of shapes that fit a page


def report(folder: Path) -> str:
    """What the advice of all GPUs says and how it held, as Markdown."""
    return "\n\n".join(
        "\n".join(_report(one.parent)) for one in sorted(folder.glob("*/advice.json.xz"))
    )


def _report(folder: Path) -> Iterator[str]:
    advice = recorded.read(folder / f"{ADVICE}.json.xz")
    versions = ", ".join(f"{name} {value}" for name, value in advice.versions.items() if value)
    yield f"Measured on an {advice.gpu} ({versions}; {advice.date}):\n"
    yield "```text"
    head, rows = text.advised(advice.shapes)
    yield aligned(head[:SHOWN], [row[:SHOWN] for row in rows], left=2).rstrip()
    yield "```\n"
    yield f"- {_whole(advice)}"
    for rule in choices.rules(advice.shapes, advice.metric):
        yield f"- {_capital(text.ruled(rule))}."
    yield from (f"- {text}." for text in _causes(advice))
    yield from (f"- {line}" for line in _confirmed(folder, advice))


def _whole(advice: Advice) -> str:
    timed = sum(one.rounds is not None for shape in advice.shapes for one in shape.choices)
    seconds = sum(shape.seconds or 0.0 for shape in advice.shapes)
    default = sum(shape.advised == shape.shape for shape in advice.shapes)
    outcomes = Counter(shape.outcome for shape in advice.shapes)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return (
        f"{with_unit(len(advice.shapes), 'shapes')} with {timed} choices that could be timed took {seconds:.0f} s; {counts}. "
        f"FlashInfer's default is advised at {default}."
    )


def _causes(advice: Advice) -> Iterator[str]:
    """Of each target the cause of the largest loss that was counted."""
    for target in dict.fromkeys(shape.target for shape in advice.shapes):
        some = [text for s in advice.shapes if s.target == target for text in s.cause]
        if some:
            yield max(some, key=_ratio)


def _ratio(text: str) -> float:
    return float(text.partition(" takes ")[2].partition(" ")[0])


def same_winners(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> tuple[int, int]:
    """(how many agree, of how many) of pairs of sets of best choices, one of each run, where neither is a tie."""
    decided = [(set(a), set(b)) for a, b in pairs if len(a) == len(b) == 1]
    return sum(a == b for a, b in decided), len(decided)


def agreement(advice: Advice, again: Advice) -> tuple[int, int, int, int]:
    """(winners that agree, of how many, shapes that advise the same, of how many) of two runs."""
    other = {shape.shape: shape for shape in again.shapes}
    both = [(shape, other[shape.shape]) for shape in advice.shapes if shape.shape in other]
    same, of = same_winners((a.best, b.best) for a, b in both)
    return same, of, sum(a.advised == b.advised for a, b in both), len(both)


def losses(advice: Advice, whole: Advice) -> dict[str, float]:
    """By shape what the advised choice takes longer than the fastest of all, where all were timed to the end; of 1."""
    found = {}
    for shape in whole.shapes:
        times = {one.point: one.time_us for one in shape.choices if one.time_us}
        advised = next((s.advised for s in advice.shapes if s.shape == shape.shape), None)
        if advised in times:
            found[shape.shape] = times[advised] / min(times.values()) - 1
    return found


def _confirmed(folder: Path, advice: Advice) -> Iterator[str]:
    if again := read(folder, "again"):
        same, of, advised, shapes = agreement(advice, again)
        yield f"A second run: {same} of {of} winners of both are the same; {advised} of {shapes} shapes have the same advice."
    if aa := read(folder, "aa"):
        winners = sum(shape.outcome == "winner" for shape in aa.shapes)
        yield f"{len(aa.shapes)} pairs of a choice with itself: {winners or 'no'} winner{'s' * (winners > 1)}."
    if whole := read(folder, "regret"):
        lost = [100 * value for value in losses(advice, whole).values()]
        yield (
            f"Against every choice timed to the end, at {with_unit(len(lost), 'shapes')}: the advised one takes "
            f"{median(lost):.1f} % longer than the fastest at the median, {max(lost):.1f} % at worst."
        )
    path = folder / f"{AUDIT}.json.xz"
    if path.is_file():
        yield _audited(read_as(path, Audit, "an audit"))


def _audited(audit: Audit) -> str:
    counts = {v: sum(one.verdict == v for one in audit.entries) for v in Verdict.__args__}  # type: ignore[attr-defined]
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    worst = [one for one in audit.entries if one.verdict == "wrong" and one.cost]
    said = f"An audit of what FlashInfer's autotuner stored there: {words}."
    for one in worst:
        assert one.cost is not None
        said += (
            f" `{one.point}`: tactic {one.tactic} takes {micro(one.time_us)}, {text.between(one.cost)} against tactic "
            f"{one.best[0]} of {one.tactics}."
        )
    return said


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
