"""Evidence: where the captures of a run lie and which files each kernel target has. Read by the rules.

Live evidence (``outputs/<machine>/captures``) and recorded evidence (``recordings/…``) have one layout;
a recording's large files carry ``.xz``. Importing this module costs milliseconds: the DAG does it every time.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from ncuflow.evidence import location, manifest
from ncuflow.flow.settings import Settings
from ncuflow.format import slug, with_unit
from ncuflow.gpu.nvml import capabilities, names
from ncuflow.gpu.table import capability_of
from ncuflow.io import JsonObject, present
from ncuflow.model import DEEP, REPORTS
from ncuflow.parsers import lines
from ncuflow.run.profiler import counters_refused_here, tool
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import jit_modules, load


@dataclass(frozen=True)
class Evidence:
    """One set of captures.

    root: where the captures lie; folder: name of the folder below ``outputs`` that is made from them;
    recording: its name or None for live; targets: target -> batch -> point ids; tools: which of events,
    nsys, ncu it has; runs: how often each batch is timed; plans: (target, batch) -> the points of a live
    batch, as in points.json.
    """

    root: Path
    folder: str
    recording: str | None
    targets: dict[str, dict[str, list[str]]]
    tools: frozenset[str]
    runs: int = 1
    plans: dict[tuple[str, str], list[JsonObject]] = field(default_factory=dict)
    pairs: dict[tuple[str, str], list[JsonObject]] = field(default_factory=dict)

    @property
    def early(self) -> list[str]:
        """The targets that are profiled while modules of others are compiled."""
        return [name for name in self.targets if load(name).build.early]

    def batches(self, target: str) -> list[str]:
        return list(self.targets.get(target, {}))

    def files(self, target: str) -> list[str]:
        """Every evidence file of a target that the tables are made from."""
        found = []
        for batch in self.batches(target):
            found += [f"{self.root}/{target}/{batch}/{name}" for name in self._names(target, batch)]
        return found

    def records(self) -> list[str]:
        """What says of every report of the evidence how it was captured."""
        names = {f"{report}.json" for report in REPORTS}
        files = [Path(path) for target in self.targets for path in self.files(target)]
        return [str(path) for path in files if path.name in names]

    def listings(self) -> list[str]:
        """The instructions of its reports, where a recording keeps them beside the report."""
        files = [path for target in self.targets for path in self.files(target)]
        return [path for path in files if path.endswith(lines.LISTING_SUFFIX)]

    def file(self, name: str) -> list[str]:
        """The path of a file beside the targets; empty where a recording has none, while live evidence will."""
        path = self.root / name
        if self.recording is None:
            return [str(path)]
        found = present(path)
        return [str(found)] if found else []

    def _names(self, target: str, batch: str) -> list[str]:
        if self.recording:
            folder = self.root / target / batch
            return sorted(p.name for p in folder.iterdir())
        if batch == DEEP:
            return ["points.json", REPORTS[DEEP], f"{DEEP}.json"]
        names = ["points.json", "timing.jsonl"]
        if self.pairs.get((target, batch)):
            names += ["pairs.json", "pairs.jsonl"]
        names += [f"timing.{run}.jsonl" for run in range(1, self.runs)]
        if sweep.ranks(self.plans.get((target, batch), [])) > 1:
            return names
        if "nsys" in self.tools:
            names += ["trace.sqlite", "trace.json"]
        if "ncu" in self.tools:
            names += ["sweep.ncu-rep", "sweep.json"]
        return names


def recorded(folder: Path) -> Evidence:
    """Evidence of a recording, in this folder or the project's own in its place.

    Raises ValueError with one clear line where it is none, or not as it was recorded.
    """
    folder = location.here(folder)
    if {"{", "}"} & {*str(folder)}:
        raise ValueError(f"{folder}: Snakemake takes braces in a path for wildcards")
    found = manifest.read(folder)
    return Evidence(folder, f"recorded-{found.name}", found.name, found.targets, frozenset())


def live(settings: Settings) -> Evidence:
    """Evidence that the capture rules will make on this machine: what the sweep has points of.

    Points that its GPU cannot run are none of it (`left_out` says which). Raises ValueError for a sweep that has no
    point of the targets.
    """
    deep = settings.deep.get(settings.sweep, {})
    tools = live_tools(settings)
    machine = settings.machine or slug(next(iter(names()), settings.plan_for or ""))
    plans: dict[tuple[str, str], list[JsonObject]] = {}
    pairs: dict[tuple[str, str], list[JsonObject]] = {}
    for name in settings.targets:
        points, _ = _planned(settings, name, settings.sweeps[settings.sweep])
        found = sweep.batches(points, settings.batch_size)
        in_turns = sweep.pairs_of_batches(load(name), found) if settings.timing.pairs else {}
        pairs |= {(name, batch): [p.as_dict() for p in in_turns[batch]] for batch in in_turns}
        if "ncu" in tools and (profiled := _planned(settings, name, deep)[0]):
            found[DEEP] = profiled
        plans |= {(name, batch): [p.as_dict() for p in found[batch]] for batch in found}
    targets: dict[str, dict[str, list[str]]] = {}
    for (name, batch), members in plans.items():
        targets.setdefault(name, {})[batch] = [point["id"] for point in members]
    if not targets:
        why = "; ".join(left_out(settings))
        raise ValueError(
            f"sweep {settings.sweep}: no points of {', '.join(settings.targets)}"
            + f" ({why})" * bool(why)
        )
    root = Path(settings.outputs) / machine / "captures"
    return Evidence(root, machine, None, targets, tools, settings.timing.runs, plans, pairs)


def _planned(
    settings: Settings, name: str, blocks: Mapping[str, Sequence[sweep.Block]]
) -> tuple[list[sweep.Planned], dict[str, list[sweep.Planned]]]:
    """(points of a target that the GPU here can run, the others by the reason): all of them where none is here and none
    is named."""
    points, gpus = sweep.points(load(name), blocks.get(name, [])), capabilities()
    if not gpus and settings.plan_for:
        try:
            gpus = [capability_of(settings.plan_for)]
        except ValueError as error:
            raise ValueError(f"plan_for: {error}") from None
    if len(gpus) != 1:  # of several kinds, it is known when one is taken which
        return points, {}
    facts: JsonObject = {"compute_capability": gpus[0]}
    if here := names():
        facts["gpus"] = len(here)
    return sweep.runnable(load(name), points, facts)


def left_out(settings: Settings) -> list[str]:
    """What a live run does not measure and why, a line each, and what has to be downloaded before it."""
    lines, counts = [], {}
    for name in settings.targets:
        kept, left = _planned(settings, name, settings.sweeps[settings.sweep])
        counts[name] = len(kept), len(kept) + sum(map(len, left.values()))
        lines += [
            f"{name}: {with_unit(len(those), 'points')} left out: {why}"
            for why, those in left.items()
        ]
        lines += [f"{name}: {why}" for why in sweep.wanting(load(name), kept)]
    return [*_pretended(settings, counts), *lines]


def _pretended(settings: Settings, counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """That a run is planned for a GPU that is not here, with how many of their points its targets have there."""
    if capabilities() or not settings.plan_for:
        return []
    points = ", ".join(f"{name} {kept} of {all_}" for name, (kept, all_) in counts.items() if all_)
    more = f"`ncuflow targets --gpu {shlex.quote(settings.plan_for)} --sweep {settings.sweep}` lists each"
    return [f"planned for {settings.plan_for}, which is not here: points of {points}; {more}"]


def here(settings: Settings) -> Evidence:
    """What a preflight finds on this machine, for a run that captures nothing."""
    machine = settings.machine or slug(next(iter(names()), "this machine"))
    root = Path(settings.outputs) / machine / "captures"
    return Evidence(root, machine, None, {}, frozenset())


def resolve(settings: Settings) -> Evidence:
    """The evidence that ``source`` asks for: ``auto`` is live where GPU and packages are, else recorded.

    Raises ValueError with one line where there is none of the kernel targets.
    """
    for name in settings.targets:
        load(name)  # an unknown one is an error also where nothing of it is recorded
    strange = [name for name in settings.jit if name not in jit_modules()]
    if strange:
        known = ", ".join(jit_modules())
        raise ValueError(f"jit: no target has a module {strange[0]}; there are: {known}")
    source: str = settings.source
    if source == "auto":
        source = "live" if names() and not _missing() else "recorded"
    if source == "live":
        # a login node has none: it plans and compiles for the machine or the GPU that is named
        if not settings.machine and not settings.plan_for and not names():
            raise ValueError("source: live, but no NVIDIA GPU is visible")
        return live(settings)
    found = recorded(Path(settings.recording) if settings.recording else location.default())
    if not set(settings.targets) & set(found.targets):
        known = ", ".join(found.targets) or "no target"
        raise ValueError(f"{found.root}: nothing of {', '.join(settings.targets)}; it has {known}")
    return found


def passed_over(settings: Settings, running: Evidence) -> str | None:
    """That a GPU is here and a recording is shown, and why; None where nobody would expect otherwise."""
    gpus, missing = names(), _missing()
    if settings.source != "auto" or running.recording is None or not gpus:
        return None
    lacks = " and ".join(missing)
    return f"{gpus[0]} is not measured, for want of {lacks}; pages are of {running.recording}"


def _missing() -> list[str]:
    return [name for name in ("torch", "flashinfer") if find_spec(name) is None]


def live_tools(settings: Settings) -> frozenset[str]:
    """events always; nsys and ncu where they are installed, wanted and, for ncu, not refused."""
    tools = {"events"}
    if settings.nsys.enabled and tool("nsys"):
        tools.add("nsys")
    if settings.ncu.enabled and tool("ncu") and not counters_refused_here():
        tools.add("ncu")
    return frozenset(tools)


LIVE = "live"


def sides(base: str | None, head: str | None, running: Evidence) -> dict[str, Evidence]:
    """name -> evidence, in the order of comparison; empty unless both are given.

    base, head: folders of recordings, or ``live`` for what this machine's GPU gives now; head may
    list several, separated by commas, or have a pattern of folders in it. running: the evidence of this
    run. Raises ValueError with one line where a side is none, or two have one name.
    """
    if not base or not head:
        return {}
    found: dict[str, Evidence] = {}
    for text in _listed(base, head):
        name = _name(text)
        if name in found:
            raise ValueError(f"compare: two sides are called {name}")
        found[name] = _side(text, running)
    return found


def _listed(base: str, head: str) -> Iterator[str]:
    """The sides, a pattern as the recordings that match it and are not named beside it, by FlashInfer's version."""
    texts = [text.strip() for text in (base, *head.split(","))]
    named = {_name(text) for text in texts}
    for text in texts:
        if "*" in text:
            yield from (str(at) for at in location.matching(text) if location.name(at) not in named)
        else:
            yield text


def _name(text: str) -> str:
    return LIVE if text == LIVE else location.name(Path(text))


def together(names: Iterable[str]) -> str:
    """The name of a comparison: those of its sides with -vs- between them, and what all begin or end with once.

    together(["h200-0.6.1-gdn", "h200-0.7.2-gdn"]) is h200-0.6.1-vs-0.7.2-gdn.
    """
    parts = [name.split("-") for name in names]
    spare = min(map(len, parts)) - 1
    front = _alike(parts, spare)
    back = _alike([part[::-1] for part in parts], spare - front)
    middle = "-vs-".join("-".join(part[front : len(part) - back]) for part in parts)
    return "-".join([*parts[0][:front], middle, *parts[0][len(parts[0]) - back :]])


def _alike(parts: list[list[str]], most: int) -> int:
    """With how many parts all begin alike, `most` at most."""
    firsts = zip(*(part[:most] for part in parts), strict=True)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, firsts))


def by_folder(running: Evidence, sides: Iterable[Evidence]) -> dict[str, Evidence]:
    """Folder below ``outputs`` -> the evidence that its files are made from.

    Raises ValueError with one line where two would share a folder.
    """
    found = {running.folder: running}
    for side in sides:
        other = found.setdefault(side.folder, side)
        if other.root.resolve() != side.root.resolve():
            raise ValueError(
                f"compare: {other.root} and {side.root} would both be outputs/{side.folder};"
                f" rename the folder of one, or say --config recording={side.root}"
            )
    return found


def _side(path: str, running: Evidence) -> Evidence:
    if path != LIVE:
        found = recorded(Path(path))
        name = _name(path)  # what its owner calls it, whatever the manifest says
        return replace(found, folder=f"recorded-{name}", recording=name)
    if running.recording is not None:
        raise ValueError("compare: a side is live, but this run has recorded evidence")
    return running
