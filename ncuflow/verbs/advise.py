"""Which choice for which shape: every one that is legal there raced in turns, by what is significantly faster.

    ncuflow advise --workload mine.json --out advice.json [--html page.html]
    ncuflow advise decode --blocks '[{"batch": [1, 32], "kv_heads": 8}]'
    ncuflow advise --recorded recordings/h200/0.7.2/default
    ncuflow advise --tunables TARGET [--blocks JSON | --points points.json] [--only NAME…] [--budget 12] [--budget 90s]

Shapes are those of a sweep (--workload: the configuration that `ncuflow workload` writes, or what it reads), of --blocks of
a target, or of points.json files. On a GPU each choice of a shape (backend, CUDA or tensor cores, split, graph, what the
target declares as free) is compared with its float32 reference and timed in turns with the others, until it is significantly
slower than the leader; what stays is a winner or a tie. --recorded takes the choices that a recording has, without a GPU.

With --tunables constants of FlashInfer's source that the target declares (tile, stages, threads, chunk) are searched beside
what a caller may set. Each combination of other values is made in an overlay of the installed FlashInfer as a change of
`ncuflow try` is: compiled where it reaches a module, compared with the float32 reference, never timed when wrong. They are timed
in turns with the default; after each rung, which has twice the rounds of the one before, the slower half leaves, unless noise
could be why. The best is confirmed in turns on inputs that the search did not see.

exit  0 every shape has an advice (a winner, or the default stands)    1 nothing could be compiled or timed    2 bad input
      3 some shapes have none
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ncuflow.answer import Answer
from ncuflow.experiments import advice, choices, record, variant
from ncuflow.experiments import audit as audits
from ncuflow.experiments.advice import BUDGET_S, RaceLimits, ShapesAsked
from ncuflow.experiments.recorded import explain_from
from ncuflow.experiments.search import SearchPlan
from ncuflow.experiments.search import measured as searched
from ncuflow.experiments.text import advice_text, search_text
from ncuflow.io import UsageError, not_over, write_json, write_text
from ncuflow.pages.html import experiments as page
from ncuflow.race import EFFECT, eta
from ncuflow.run import FATAL, OK, SOME_FAILED
from ncuflow.sweep.points import Planned, of_target
from ncuflow.target.contract import Target, load
from ncuflow.verbs import options

MOST = 12  # variants of a search


def command(
    kernel: str | None = None,
    /,
    *,
    workload: list[Path] | None = None,
    blocks: str | None = None,
    points: list[Path] | None = None,
    recorded: Path | None = None,
    audit: list[Path] | None = None,
    target: list[str] | None = None,
    tunables: bool = False,
    only: Annotated[
        list[str] | None, Parameter(name=("--only", "--knobs"))
    ] = None,  # its older name
    apply: Annotated[
        list[tuple[Literal["python", "flashinfer-store"], Path]] | None, options.Each
    ] = None,
    also: Annotated[list[str] | None, options.Each] = None,
    out: options.OutFile = None,
    counters: Path | None = None,
    html: options.OutFile = None,
    budget: Annotated[list[str] | None, options.Each] = None,
    effect: options.Effect = EFFECT,
    patience: options.Seconds = 120.0,
    jobs: options.Jobs = None,
    printed: options.Printed = options.AS_TEXT,
) -> int:
    """What an advice, an audit or a search ends with.

    Args:
        kernel: TARGET, a kernel target; `ncuflow targets` lists them
        workload: what is run, as `ncuflow workload` reads or writes it
        blocks: blocks of a sweep, as JSON, of one target
        points: points.json files
        recorded: a recording, the outputs of a run, or what --out wrote: no GPU
        audit: a store of FlashInfer's autotuner, its tactics against their runners-up; of two what differs, without a GPU
        target: those to take, of several
        tunables: search constants of the source as well
        only: the tunables to search (default: all)
        apply: KIND OUT; python: a module that a server imports; flashinfer-store: through FlashInfer's autotuner, into a folder
        also: NAME=A,B: a further parameter that is free here, such as page_size=1,16
        out: advice.json
        counters: results, a recording, or reports of `ncuflow ncu`, with counters of these points
        html: a page: a map of the shapes, and every choice
        budget: seconds of a shape's rounds, after which its race is decided as it stands (default: 5); with --tunables variants
            (default: 12), or seconds of the rounds of all shapes together (90s); both may be given
        effect: minimum effect: a smaller difference is none (default: 2%)
        patience: seconds of a check or a burst, after which a variant hangs (default: 120)
        jobs: files compiled at once (default: one per core)
    """
    options.exclusive(
        workload=workload, blocks=blocks, points=points, recorded=recorded, audit=audit
    )
    wanted = dict(apply or ())
    for file in (out, html, wanted.get("python")):
        not_over(file, recorded, *(workload or ()), *(points or ()), *(audit or ()))
    given: dict[str, object] = {
        "--workload": workload,
        "--recorded": recorded,
        "--audit": audit,
        "--html": html,
    }
    given |= {"--apply": wanted, "--also": also, "--counters": counters}
    for mode, chosen in (("--audit", audit), ("--tunables", tunables)):
        for name, value in given.items():
            if chosen and value and name != mode:
                raise UsageError(f"{name} is of an advice: not with {mode}")
    if only and not tunables:
        raise UsageError("--only is of a search: with --tunables")
    targets, seconds = target or ([kernel] if kernel else []), _budgets(budget or ())
    limits = RaceLimits(effect, patience, min(seconds.values(), default=BUDGET_S), jobs)
    if audit:
        found, text, status = _audited(audit, targets, limits)
    elif tunables:
        found, text, status = _searched(targets, points, blocks, only, seconds, limits)
    else:
        asked = ShapesAsked(
            targets, _freed(also or ()), workload, points, options.blocks_of(blocks)
        )
        advised = _advised(asked, limits, recorded, counters, wanted.get("flashinfer-store"))
        status = _status([shape.advised is not None for shape in advised.shapes])
        found, text = advised, advice_text(advised)
        if html:
            write_text(html, page.rendered_advice(advised))
        if "python" in wanted:
            of = {shape.target: load(shape.target) for shape in advised.shapes}
            write_text(wanted["python"], advice.python_module(advised, of))
    if out:
        write_json(out, found.model_dump(mode="json"))
    printed.tell(found, text)
    return status


def _freed(words: Sequence[str]) -> dict[str, list[Any]]:
    """What --also frees: numbers where they are such."""
    found = {}
    for text in words:
        name, _, values = text.partition("=")
        found[name] = [int(v) if v.isdecimal() else v for v in values.split(",") if v]
        if not name or not found[name]:
            raise UsageError(f"--also: {text!r} is not NAME=A,B")
    return found


def _budgets(words: Sequence[str]) -> dict[str, float]:
    """The numbers of --budget, by the words."""
    for text in words:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", text)
        if not match or float(match[1]) <= 0:
            raise UsageError(f"--budget: {text!r} is no number of variants, or of seconds (90s)")
    return {text: float(text.removesuffix("s")) for text in words}


def _status(done: Sequence[bool]) -> int:
    """What the command ends with, of several things that were asked for."""
    return OK if all(done) and done else SOME_FAILED if any(done) else FATAL


def _advised(
    asked: ShapesAsked,
    limits: RaceLimits,
    recording: Path | None,
    counters: Path | None,
    store: Path | None,
) -> record.Advice:
    """The advice of a recording, or of a race here. Raises UsageError for what would be given and not done."""
    if recording is not None:
        if store is not None:
            raise UsageError("--apply flashinfer-store tunes on a GPU: not with --recorded")
        if counters is not None and recording.is_dir():
            raise UsageError(
                "--counters adds to an advice that was measured: a recording has its own"
            )
        if asked.also and recording.is_file():
            raise UsageError("--also: what is free is settled in an advice that was written")
        found = advice.of_recording(recording, asked, limits.effect)
    else:
        found = advice.measured(asked, limits, store)
    if counters is not None:
        explain_from(found, counters)
    return found


def _audited(
    stores: Sequence[Path], targets: Sequence[str], limits: RaceLimits
) -> tuple[Answer, str, int]:
    """One store on this GPU, or two against each other."""
    if len(stores) > 2:
        raise UsageError("--audit takes one store, or two to compare")
    if len(stores) == 2:
        compared = audits.compare_stores(*map(audits.read_store, stores))
        return compared, audits.comparison_text(compared), OK
    found = advice.audited(stores[0], targets, limits)
    timed = [entry.verdict != "not timed" for entry in found.entries]
    return found, audits.audit_text(found), _status(timed)


def _searched(
    targets: Sequence[str],
    points: Sequence[Path] | None,
    blocks: str | None,
    only: Sequence[str] | None,
    budgets: Mapping[str, float],
    limits: RaceLimits,
) -> tuple[Answer, str, int]:
    """A search of tunables."""
    if len(targets) != 1:
        raise UsageError("--tunables needs one TARGET")
    counts = [text for text in budgets if not text.endswith("s")]
    if broken := [text for text in counts if "." in text]:
        raise UsageError(f"{broken[0]!r} is no number of variants, or of seconds (90s)")
    if len(points or ()) > 1:
        raise UsageError("--tunables takes one file of points")
    target, given = of_target(targets[0], points[0] if points else None, options.blocks_of(blocks))
    shapes = choices.shapes(target, given)
    _known_tunables(only, target, shapes)
    installed = variant.installed_package(advice.RECORDED)
    plan = SearchPlan(
        target,
        shapes,
        only=only,
        variants=min(map(int, counts), default=MOST),
        seconds=min((s for text, s in budgets.items() if text not in counts), default=None),
        effect=limits.effect,
        patience_s=limits.patience_s,
        jobs=limits.jobs,
    )
    found = searched(plan, installed, eta.tell)
    return found, search_text(found), search_status(found.shapes)


def search_status(shapes: Sequence[record.SearchedShape]) -> int:
    """What a search ends with."""
    answered = [shape.found in ("winner", "default") for shape in shapes]
    timed = any(shape.confirmed for shape in shapes)
    return OK if all(answered) else SOME_FAILED if timed else FATAL


def _known_tunables(only: Sequence[str] | None, target: Target, shapes: Sequence[Planned]) -> None:
    """Raises UsageError for a tunable that the target has not, or where it has none."""
    names = [tunable.name for tunable in target.source.tunables]
    names += [name for shape in shapes for name in target.free(shape.params)]
    if not names:
        raise UsageError(f"{target.name} declares no tunables")
    if strange := [name for name in only or () if name not in names]:
        raise UsageError(
            f"{target.name} has no tunable {strange[0]!r}; it has: {', '.join(dict.fromkeys(names))}"
        )
