"""The jobs of a project's workflow, and which of them each change would rerun; JSON on standard output.

    python tests/dag.py '{"targets": ["all"], "config": {"source": "recorded"}, "changes": ["a.py", …], "lost": []}'

Run in the project's folder. Snakemake builds the graph in this process: a dry run of its own costs
five times as much. Each change is a line more at the end of a file, or the file lost; it is undone before the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from shlex import join, quote
from types import SimpleNamespace
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    OutputSettings,
    Quietness,
    ResourceSettings,
)

Job = dict[str, Any]


def jobs(targets: list[str], config: dict[str, Any]) -> list[Job]:
    """Rule, inputs, outputs, command and whether it would run, of every job."""
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config=config),
            snakefile=Path("Snakefile"),
        )
        dag = workflow.dag(DAGSettings(targets=set(targets)))
        dag.printrulegraph()
        graph = dag.workflow_api._workflow.dag
        needed = set(graph.needrun_jobs())
        return [
            {
                "rule": job.rule.name,
                "input": list(map(str, job.input)),
                "triggers": [str(file) for file in job.input if not file.is_ancient],
                "output": list(map(str, job.output)),
                "log": list(map(str, job.log)),
                "command": command(job),
                "priority": job.rule.priority,
                "runs": job in needed,
            }
            for job in graph.jobs
        ]


def command(job: Any) -> str | None:
    """A job's command for a shell: of its `run` block, the words that it would hand to a child."""
    if not job.is_run:
        return job.shellcmd
    said: list[str] = []
    run, values = job.rule.run_func, vars(type(job)) | {"log": job.log}
    given = {name: getattr(job, name, None) for name in signature(run).parameters if name in values}
    words_of = run.__globals__["jobs"].words_of
    run.__globals__["jobs"] = SimpleNamespace(
        run=lambda log, *words, **options: said.append(
            f"python -m ncuflow {join(words_of(*words, **options))} 2> {quote(log)}"
        ),
        words_of=words_of,
    )
    run(**dict.fromkeys(signature(run).parameters) | given)
    return said[0]


@contextlib.contextmanager
def changed(path: Path) -> Iterator[None]:
    before, stat = path.read_bytes(), path.stat()
    path.write_bytes(before + b"\n# a line more\n")
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@contextlib.contextmanager
def lost(path: Path) -> Iterator[None]:
    away = path.rename(path.with_name(f"{path.name}.away"))
    try:
        yield
    finally:
        away.rename(path)


def main() -> None:
    asked = json.loads(sys.argv[1])
    out, err = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere
        found = jobs(asked["targets"], asked["config"])
        reruns = {}
        for name in [*asked["changes"], *asked.get("lost", ())]:
            with changed(Path(name)) if name in asked["changes"] else lost(Path(name)):
                after = jobs(asked["targets"], asked["config"])
                reruns[name] = [job["rule"] for job in after if job["runs"]]
        sys.stdout, sys.stderr = out, err
    json.dump({"jobs": found, "reruns": reruns}, out)


if __name__ == "__main__":
    main()
