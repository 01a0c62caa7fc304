"""A change of FlashInfer: is it still right? Is it faster, where, by how much, and why?

    ncuflow try CHANGE… --target TARGET [--points points.json | --blocks JSON] [--effect 2%] [--json out.json]
    ncuflow try --from out.json [--html page.html]              what was tried before, again on the screen or as a page

CHANGE is a unified patch against FlashInfer, a folder that is laid over it, a function that takes the place of the API that
the target calls (module:function), or another FlashInfer (flashinfer==0.7.1, flashinfer@WHEEL, flashinfer@FOLDER). A patch is
made in a copy: the installed package stays as it is. Modules that it reaches are compiled anew, by the flags of the base.
Each point is compared with its float32 reference, also at inputs where kernels go wrong; then base and change are timed in
turns, until it is known whether the change matters. Where ncu is there, it counts both sides. A change is code, and runs as
the user who tries it.
Several changes are compiled at once, tried one after the other, and ranked; the exit status is that of the first in rank.

exit  0 faster or the same    1 it does not compile, or nothing could be run    2 bad input    3 slower somewhere
      4 wrong somewhere, in error, or it did not end    5 nothing is slower, and some are not decided
With --from it is 0 where the record is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ncuflow.io import MissingFile, UsageError, emit, not_over, write_json, write_text
from ncuflow.race import EFFECT
from ncuflow.verbs.options import Effect, Jobs, OutFile, Seconds, blocks_of, exclusive

if TYPE_CHECKING:
    from ncuflow.experiments.record import Trial, Trials


def command(
    *change: Path,
    target: str | None = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    points: Path | None = None,
    blocks: str | None = None,
    json: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    html: Annotated[OutFile, Parameter(name=("--html", "--out"))] = None,
    no_counters: bool = False,
    effect: Effect = EFFECT,
    limit: Seconds = 300.0,
    jobs: Jobs = None,
) -> int:
    """The exit status of the first change in rank.

    Args:
        change: unified patch, folder of changed files, module:function in place of an API, or flashinfer==VERSION
        target: of a CHANGE: kernel target; `ncuflow targets` lists them
        from_: the record of a trial, or trials, that --json wrote: nothing is tried
        points: points.json (default: the target's own point)
        blocks: blocks of a sweep, as JSON
        json: write the record of the trial, or trials, as well; without a file, print it in place of the screen
        html: a page of the trial, or trials
        no_counters: do not run ncu, which says why times differ
        effect: minimum effect: a smaller difference is none (default: 2%)
        limit: seconds of a check or a burst, after which a variant hangs (default: 300)
        jobs: files compiled at once (default: one per core)
    """
    from ncuflow import answer
    from ncuflow.experiments.record import EXIT
    from ncuflow.experiments.text import ranked, ranking, trial_text
    from ncuflow.experiments.trial import TrialPlan, tried
    from ncuflow.pages.html import experiments as page
    from ncuflow.sweep.points import of_target

    # Of the words behind --json the first is its file: those after it are changes.
    changes, written = [*change, *(json or ())[1:]], json[0] if json else None
    on_screen = json != []
    if from_ is not None:
        if changes or target or written:
            raise UsageError(
                "--from is of what was tried: not with CHANGE, --target or a file to write"
            )
        _again(from_, html, on_screen)
        return 0
    for one in changes:
        if one.suffix in (".patch", ".diff") and not one.is_file():
            raise MissingFile(one, "no such file")
    if not changes or target is None:
        raise UsageError("a CHANGE and its --target are needed, or --from RECORD")
    exclusive(points=points, blocks=blocks)
    planned = of_target(target, points, blocks_of(blocks))
    plan = TrialPlan(*planned, effect, limit, jobs, counters=not no_counters)
    trials: list[Trial] = []
    for trial in tried(changes, plan):
        trials.append(trial)
        if written is not None:
            write_json(written, _record(trials, len(changes)).model_dump())
        if html is not None:
            write_text(html, page.rendered(trials))
        if on_screen:
            emit(trial_text(trial), None)
    if not on_screen:
        answer.tell(_record(trials, len(changes)))
    elif len(trials) > 1:
        emit(ranking(trials), None)
    return EXIT[ranked(trials)[0][1].outcome]


def _again(record: Path, html: Path | None, on_screen: bool) -> None:
    """Show what was recorded: on the screen, as a page, or as JSON."""
    from ncuflow import answer
    from ncuflow.experiments.record import read
    from ncuflow.experiments.text import ranking, trial_text
    from ncuflow.pages.html import experiments as page

    not_over(html, record)
    trials = read(record)
    if not on_screen:
        answer.tell(_record(trials, len(trials)))
    if html is not None:
        write_text(html, page.rendered(trials))
    elif on_screen:
        more = [ranking(trials)] if len(trials) > 1 else []
        emit("".join([*map(trial_text, trials), *more]), None)


def _record(trials: list[Trial], changes: int) -> Trial | Trials:
    """Of one change its trial, of several all that have ended, the first in rank first."""
    if changes == 1:
        return trials[0]
    from ncuflow.experiments.record import Trials
    from ncuflow.experiments.text import ranked

    return Trials(trials=[trial for _, trial in ranked(trials)])
