"""Will another FlashInfer slow an engine? Both versions over its workload, GPU and host, in one verdict.

    ncuflow upgrade --workload called/ --from 0.6.18 --to 0.7.2 [--html upgrade.html] [--out upgrade.json]
    ncuflow upgrade --model llama-3-8b --to flashinfer.whl
    ncuflow upgrade --again upgrade.json [--html upgrade.html]     what was measured before, again
    ncuflow upgrade bisect …                                        which release did it

A version is a number, a wheel or a folder; --from is what is installed unless given. A workload is a folder or a points.json of
`ncuflow step annotate --workload`, whose counts weigh the shapes, what `ncuflow workload` reads, or a model by its name. With
--model it may be a benchmark's: results of vLLM's or SGLang's (bench serve, bench_serving, bench_one_batch), or vLLM's lists.
Both versions are compiled at the same time; each shape is compared with its float32 reference, then timed in turns: its kernels,
its call on the host, and plan(). What is slower on the GPU is explained by counters. Code of both runs as the user who asks.

exit  0 no slower    1 nothing could be run    2 bad input    3 slower somewhere, on the GPU or the host    4 wrong somewhere
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ncuflow.io import UsageError, not_over, write_json, write_text
from ncuflow.race import EFFECT
from ncuflow.verbs.options import AS_TEXT, Effect, Jobs, OutFile, Printed, Seconds, exclusive

if TYPE_CHECKING:
    from ncuflow.experiments.upgrade import Upgrade


OUTCOMES = {"found": 0, "no change": 3, "untold": 5}  # of a bisection


def command(
    *,
    workload: list[Path] | None = None,
    model: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    again: Path | None = None,
    out: OutFile = None,
    html: OutFile = None,
    slopes: bool = False,
    bisect: bool = False,
    explained: int = 8,
    effect: Effect = EFFECT,
    patience: Seconds = 300.0,
    jobs: Jobs = None,
    cache: Path | None = None,
    printed: Printed = AS_TEXT,
) -> int:
    """What an upgrade ends with.

    Args:
        workload: what is served: files and folders as above
        model: a model with a public configuration, such as llama-3-8b
        from_: the version, wheel or folder to upgrade from (default: what is installed)
        to: the version, wheel or folder to upgrade to
        again: the record that --out wrote: nothing is measured
        out: write the record
        html: a page of it
        slopes: time plan() over 1 to 1 024 sequences as well
        bisect: find the release, or the wheel beside both, at the shape that loses most on the GPU
        explained: how many shapes that differ counters explain (default: 8)
        effect: difference of GPU times that matters (default: 2%)
        patience: seconds of a check or a burst, after which a version hangs (default: 300)
        jobs: files compiled at once (default: one per core)
        cache: folder that keeps versions and what they compiled
    """
    from ncuflow.experiments.upgrade import EXIT, read, upgrade_text
    from ncuflow.experiments.upgrading import UpgradePlan, bisected, upgraded
    from ncuflow.pages.html import experiments as page
    from ncuflow.sweep import benchmarks

    not_over(out, again, *(workload or ()))
    not_over(html, again, *(workload or ()))
    if again is not None:
        if workload or model or from_ or to or out:
            raise UsageError("--again is of what was measured: with --html and --json alone")
        found = read(again)
    else:
        if not to or not (workload or model):
            raise UsageError("--to VERSION and --workload or --model are needed, or --again RECORD")
        shapes, refused = benchmarks.served(workload or [], model)
        asked = (named(from_), named(to) or "", effect, patience, jobs, explained, cache, refused)
        plan = UpgradePlan(shapes, *asked, slopes, keep=lambda found: _keep(found, out))
        found = upgraded(plan)
        if bisect:
            found.bisections = list(bisected(found, plan))
            _keep(found, out)
    if html and found.trials:
        write_text(html, page.rendered(found.trials, upgrade_text(found)))
    printed.tell(found, lambda: upgrade_text(found))
    return 0 if again else EXIT[found.outcome]


def _keep(found: Upgrade, out: Path | None) -> None:
    """Write what is there, so that an interruption costs the rest alone."""
    if out is not None:
        write_json(out, found.model_dump(mode="json"))


def named(version: str | None) -> str | None:
    """A version as `ncuflow try` takes one."""
    if version is None:
        return None
    path = Path(version)
    if path.suffix == ".whl" or path.is_dir():
        return f"flashinfer@{version}"
    return version if version.startswith("flashinfer") else f"flashinfer=={version}"


def bisect(
    *,
    point: str,
    recorded: list[str] | None = None,
    wheels: Path | None = None,
    releases: bool = False,
    env: str | None = None,
    points: Path | None = None,
    good: str | None = None,
    bad: str | None = None,
    metric: str = "time_cold_us",
    effect: Effect = EFFECT,
    journal: Path | None = None,
    cache: Path | None = None,
    out: OutFile = None,
    patience: Seconds = 300.0,
    printed: Printed = AS_TEXT,
) -> int:
    """Between which two versions a point became slower or faster, by what, and which files differ.

        ncuflow upgrade bisect --recorded 'recordings/h200/*/*' --point decode/B16_L2048_H32_K8_D128_P16_f16_tc
        ncuflow upgrade bisect --releases --good 0.6.12 --bad 0.6.14 --point ID [--journal bisect.jsonl]
        ncuflow upgrade bisect --wheels FOLDER | --env NAME=A,B --point ID

    With --good and --bad the versions between them are halved, each compared with the good one; --bad may be the older one.
    Without them every version is compared with the one before it, and each change is found. Recordings are compared as
    `ncuflow compare` does, without a GPU; all others are timed in turns, each in a process and a folder of its own. Noise never
    decides: a version that is inconclusive, or cannot run the point, is skipped and named.
    Commits of a checkout are for `git bisect run ncuflow try flashinfer@. …` (docs/advise.md).

    exit  0 found    1 nothing could be run    2 bad input    3 it did not change    5 it cannot be told

    Args:
        point: its id; of what is timed here --points has it
        recorded: recordings of versions, by their paths or patterns of these
        wheels: folder with wheels of FlashInfer
        releases: what pip's index has
        env: NAME=A,B: values of an environment variable
        points: points.json with that point
        good: the version that others are compared with
        bad: the version at the other end
        metric: column that decides (default: time_cold_us)
        effect: change that matters (default: 2%)
        journal: file that keeps each step, to go on after an interruption
        cache: folder that keeps versions and what they compiled
        out: write the record
        patience: seconds of one check, or of one burst (default: 300)
    """
    from ncuflow.experiments import bisection, versions

    if bool(good) != bool(bad):
        raise UsageError("--good and --bad go together; without them every change is found")
    exclusive(recorded=recorded, wheels=wheels, releases=releases, env=env)
    not_over(out, points, journal)
    asked = versions.BisectedPoint(point, metric, effect, good, bad, journal)
    if recorded:
        found = versions.recorded(recorded, asked)
    elif metric != versions.COLD:
        raise UsageError(f"--metric {metric!r}: what is timed here is {versions.COLD}")
    elif not (wheels or env or releases):
        raise UsageError("--recorded, --wheels, --releases or --env says which versions")
    elif releases and not good:
        raise UsageError("--releases needs --good and --bad")
    else:
        local = versions.wheels(wheels) if wheels else None
        source = local or (versions.values(env) if env else versions.releases())
        found = versions.timed(source, asked, points, patience, cache)
    if out:
        write_json(out, found.model_dump(mode="json"))
    printed.tell(found, lambda: bisection.report(found))
    return OUTCOMES[found.outcome]
