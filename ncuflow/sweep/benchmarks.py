"""What a benchmark of an engine ran, as steps of a model: results of vLLM's and SGLang's benchmarks, and vLLM's lists of them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, JsonObject, clean
from ncuflow.sweep import workloads
from ncuflow.sweep.workloads import ServedPoint
from ncuflow.target.workload import RefusedError

# One of these a run has, and no other workload.
TELLS = {"input_lens", "input_len", "random_input_len", "total_input_tokens", "test_name"}
GROUPS = 4  # of prompts by their length, each of which counts as its mean
CONCURRENT = ("max_concurrency", "concurrency", "max_concurrent_requests")


def served(paths: Sequence[Path], model: str | None = None) -> tuple[list[ServedPoint], list[str]]:
    """(the points of workloads with their counts, what was refused). A benchmark's are those of the model's steps in it; of a
    model beside none, those of its usual steps. Raises BadInput for a benchmark without a model, or that tells no lengths."""
    runs = {path: found for path in paths if (found := [*_runs(path)])}
    others = [path for path in paths if path not in runs]
    shapes, refused = workloads.counted(others) if others else ([], [])
    steps: list[JsonObject] = []
    for path, found in runs.items():
        if model is None:
            raise BadInput(path, "lengths of a benchmark: --model NAME says of which model")
        for number, run in enumerate(found, 1):
            try:
                steps += _steps(run)
            except RefusedError as error:
                name = str(run.get("test_name") or f"run {number}")
                refused.append(clean(f"{path.name}, {name}: {error}"))
        if not steps:
            raise BadInput(path, f"no run of it can be measured: {refused[-1]}")
    if model is not None:
        shapes = [*shapes, *workloads.of_model(model, steps or None)]
    return workloads.joined(shapes), refused


def _runs(path: Path) -> Iterator[JsonObject]:
    """The runs that a file tells of, a name for each setting; none of another workload."""
    if path.is_dir() or path.suffix not in (".json", ".jsonl"):
        return
    lines = workloads.lines(path)
    try:
        found = [_parsed("\n".join(lines))]
    except ValueError:
        try:
            found = [_parsed(line) for line in lines if line.strip()]
        except ValueError:
            return
    for content in found:
        defaults: JsonObject = {}
        if isinstance(content, dict) and isinstance(content.get("tests"), list):
            defaults, content = _settings(content.get("defaults")), content["tests"]
        for row in content if isinstance(content, list) else [content]:
            run = defaults | _settings(row)
            if TELLS & run.keys():
                several = run.get("max_concurrency_list")
                for most in several if isinstance(several, list) else [run.get("max_concurrency")]:
                    yield {**run, "max_concurrency": most}


def _parsed(text: str) -> Any:
    """The value of JSON, in which a rate may be infinite. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=float)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _settings(row: Any) -> JsonObject:
    """The settings of a run: of vLLM's lists, in which they stand apart for server and client, and with - for _."""
    found: JsonObject = {}
    if isinstance(row, dict):
        for part in (row, *map(row.get, ("server_parameters", "client_parameters", "parameters"))):
            found |= {k.replace("-", "_"): v for k, v in part.items()} if part else {}
    return found


def _number(run: Mapping[str, Any], *names: str) -> int:
    """The first of these settings that is a number from 1, rounded. Raises RefusedError where none is."""
    for name in names:
        value = run.get(name)
        if isinstance(value, int | float) and 1 <= value < math.inf:
            return round(value)
    raise RefusedError(f"it tells no {names[0]}")


def _lengths(run: Mapping[str, Any], which: str, requests: int) -> list[int]:
    """Tokens of each request; which: input or output."""
    listed = run.get(f"{which}_lens")
    if isinstance(listed, list):
        found = [one for one in listed if type(one) is int and one > 0]
        if found:
            return found
    if run.get(f"total_{which}_tokens"):
        return [max(1, _number(run, f"total_{which}_tokens") // requests)] * requests
    return [_number(run, f"{which}_len", f"random_{which}_len")] * requests


def _steps(run: Mapping[str, Any]) -> Iterator[JsonObject]:
    """The steps of a run (as in models.yaml), and how often it makes each: prompts by themselves, or those of a static batch at
    once; then the tokens of as many requests as run at a time, at the length that they have at half of their output."""
    static = "batch_size" in run
    requests = _number(run, "batch_size") if static else _number(run, "completed", "num_prompts")
    prompts, outputs = (_lengths(run, which, requests) for which in ("input", "output"))
    at_once = requests if static else min(requests, _number(run, *CONCURRENT))
    ranks = _number({"1": 1, **run}, "tensor_parallel_size", "1")
    for some in _groups(sorted(prompts)):
        length, each = round(sum(some) / len(some)), len(some) if static else 1
        step = {"tokens": each * length, "sequences": each, "context": length, "prompt": length}
        yield step | {"times": len(some) // each, "ranks": ranks}
    made = sum(outputs) - len(outputs)  # the first token of each is of its prompt's step
    if made:
        context = round((sum(prompts) + sum(outputs) / 2) / len(prompts))
        step = {"tokens": at_once, "sequences": at_once, "context": context, "prompt": 0}
        yield step | {"times": max(1, round(made / at_once)), "ranks": ranks}


def _groups(found: Sequence[int]) -> Iterator[Sequence[int]]:
    """The sorted lengths in groups of about one size; of one length, one."""
    size = len(found) if found[0] == found[-1] else math.ceil(len(found) / GROUPS)
    for first in range(0, len(found), size):
        yield found[first : first + size]
