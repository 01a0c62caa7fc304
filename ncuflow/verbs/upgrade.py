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
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ncuflow.io import UsageError, not_over, write_json, write_text
from ncuflow.race import EFFECT
from ncuflow.verbs.options import AS_TEXT, Effect, Jobs, OutFile, Printed, Seconds

if TYPE_CHECKING:
    from ncuflow.experiments.upgrade import Upgrade


def __getattr__(name: str) -> Any:
    """ANSWER, which help does without."""
    from ncuflow.experiments.upgrade import Upgrade

    if name != "ANSWER":
        raise AttributeError(name)
    return Upgrade


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
