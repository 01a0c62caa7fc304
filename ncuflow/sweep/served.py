"""Points of what is served, and how often each ran: of files, of an engine that was annotated, or of a model by its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.expression import evaluate, holds
from ncuflow.io import BadInput, UsageError, read_json, read_yaml, sniff
from ncuflow.sweep import workloads
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import load

MODELS = Path(__file__).with_name("models.yaml")


@dataclass(frozen=True)
class ServedPoint:
    """A point, and how often it was called; plans: how often plan() was, None where that is not known."""

    point: Planned
    count: int = 1
    plans: int | None = None


def of_points(paths: Sequence[Path]) -> dict[str, list[Planned]]:
    """The points of files of points, by target. Raises BadInput for another file."""
    found: dict[str, list[Planned]] = {}
    for path in paths:
        content = read_json(path)
        try:
            target = load(content[0]["target"])
        except (LookupError, TypeError):
            raise BadInput(path, "not a list of points") from None
        except ValueError as error:
            raise BadInput(path, str(error)) from None
        found.setdefault(target.name, []).extend(read_points(path, target))
    return found


def of_files(paths: Sequence[Path]) -> tuple[dict[str, list[Planned]], list[str]]:
    """(points by target, what was refused). Raises BadInput where there are none."""
    blocks, refused = _blocks(paths)
    try:
        return {name: points(load(name), some) for name, some in blocks.items()}, refused
    except ValueError as error:
        raise BadInput(paths[0], str(error)) from None


def _blocks(paths: Sequence[Path]) -> tuple[Mapping[str, list[Any]], list[str]]:
    """(blocks by target, what was refused): of the configuration of a sweep, or of what `ncuflow workload` reads."""
    if len(paths) == 1 and paths[0].is_file():
        sniff(paths[0])
        if paths[0].suffix == ".json":
            content = read_json(paths[0])
            if isinstance(content, dict) and isinstance(content.get("sweeps"), dict):
                name = content.get("sweep")
                sweeps = content["sweeps"]
                if name not in sweeps or not isinstance(sweeps[name], dict):
                    raise BadInput(paths[0], f"a configuration without its sweep {name!r}")
                return sweeps[name], []
    blocks, refused, _ = workloads.read(list(paths))
    if not blocks:
        raise BadInput(paths[0], "holds no case that can be measured")
    return blocks, refused


def counted(paths: Sequence[Path]) -> tuple[list[ServedPoint], list[str]]:
    """(the points of a workload with their counts, what was refused): of points.json files and folders of these, which
    `ncuflow step annotate --workload` writes, or of any other workload, in which each point counts once."""
    listed = [file for path in paths for file in _point_files(path)]
    if not listed:
        found, refused = of_files(paths)
        return [ServedPoint(point) for some in found.values() for point in some], refused
    served = []
    for file in listed:
        counts = {row["id"]: row.get("count", 1) for row in read_json(file)}
        for point in next(iter(of_points([file]).values())):
            count = counts[point.id]
            if type(count) is not int or count < 1:
                raise BadInput(file, f"{point.id}: a count that is no number from 1")
            served.append(ServedPoint(point, count))
    return served, []


def _point_files(path: Path) -> list[Path]:
    """The files of points that a path is or holds; none where it is another workload."""
    files = (
        sorted(path.glob("*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    )
    return [file for file in files if isinstance(read_json(file), list)]


@cache
def _known() -> Any:
    return read_yaml(MODELS)


def of_model(name: str) -> list[ServedPoint]:
    """What each step of a model calls, by its public configuration. Raises UsageError for one that is not known."""
    models = _known()["models"]
    if name not in models:
        raise UsageError(f"--model {name!r}: choose from {', '.join(models)}")
    every = [
        {"kv_heads": None, "mla_heads": None, **models[name], **step} for step in _known()["steps"]
    ]
    return joined(
        [
            _called(call, sizes)
            for sizes in every
            for call in _known()["calls"]
            if holds(call["where"], sizes)
        ]
    )


def _called(call: Mapping[str, Any], sizes: Mapping[str, Any]) -> ServedPoint:
    params = {name: int(evaluate(str(text), sizes)) for name, text in call["params"].items()}
    (point,) = points(load(call["target"]), [{**call.get("set", {}), **params}])
    return ServedPoint(point, int(evaluate(str(call["calls"]), sizes)), call.get("plans"))


def joined(served: Sequence[ServedPoint]) -> list[ServedPoint]:
    """Each point once, as often as it was called in all."""
    found: dict[str, ServedPoint] = {}
    for one in served:
        before = found.get(one.point.id)
        if before is not None:
            plans = (
                None
                if None in (before.plans, one.plans)
                else (before.plans or 0) + (one.plans or 0)
            )
            one = ServedPoint(one.point, before.count + one.count, plans)
        found[one.point.id] = one
    return list(found.values())
