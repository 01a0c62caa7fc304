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
"""

from pathlib import Path

from ncuflow.experiments import bisection, versions
from ncuflow.experiments.versions import COLD, BisectedPoint, Source
from ncuflow.io import UsageError, not_over, write_json
from ncuflow.race import EFFECT
from ncuflow.verbs.options import AS_TEXT, Effect, OutFile, Printed, Seconds, exclusive

ANSWER = bisection.Bisection
EXIT = {"found": 0, "no change": 3, "untold": 5}


def command(
    *,
    point: str,
    recorded: list[str] | None = None,
    wheels: Path | None = None,
    releases: bool = False,
    env: str | None = None,
    points: Path | None = None,
    good: str | None = None,
    bad: str | None = None,
    metric: str = COLD,
    effect: Effect = EFFECT,
    journal: Path | None = None,
    cache: Path | None = None,
    out: OutFile = None,
    patience: Seconds = 300.0,
    printed: Printed = AS_TEXT,
) -> int:
    """What a bisection ends with.

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
    if bool(good) != bool(bad):
        raise UsageError("--good and --bad go together; without them every change is found")
    exclusive(recorded=recorded, wheels=wheels, releases=releases, env=env)
    not_over(out, points, journal)
    asked = BisectedPoint(point, metric, effect, good, bad, journal)
    if recorded:
        found = versions.recorded(recorded, asked)
    elif metric != COLD:
        raise UsageError(f"--metric {metric!r}: what is timed here is {COLD}")
    else:
        source = _source(wheels, env, releases, good)
        found = versions.timed(source, asked, points, patience, cache)
    if out:
        write_json(out, found.model_dump(mode="json"))
    printed.tell(found, lambda: bisection.report(found))
    return EXIT[found.outcome]


def _source(wheels: Path | None, env: str | None, releases: bool, good: str | None) -> Source:
    if wheels is not None:
        return versions.wheels(wheels)
    if env is not None:
        return versions.values(env)
    if not releases:
        raise UsageError("--recorded, --wheels, --releases or --env says which versions")
    if not good:
        raise UsageError("--releases needs --good and --bad")
    return versions.releases()
