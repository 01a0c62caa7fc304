"""The jobs of a project's workflow, and which of them each change would rerun; JSON on standard output.

    python tests/dag.py '{"targets": ["all"], "config": {"source": "recorded"}, "changes": ["a.py", …], "lost": []}'

Run in the project's folder. Snakemake builds the graph in this process: a dry run of its own costs
five times as much. Each change is a line more at the end of a file (of "a.py|old|new" other words in it), or the file lost;
it is undone before the next.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import signature
from pathlib import Path
from shlex import join, quote
from types import SimpleNamespace
from typing import Any

import warm

Job = dict[str, Any]
# Of conftest's SMALL.
RECORDED: Job = {"source": "recorded", "targets": ["merge_state", "rmsnorm"]}


def graph(folder: Path, *asked_for: Any, **more: Any) -> tuple[list[Job], dict[str, list[str]]]:
    """(jobs, changed or lost file -> rules of the jobs that would run) of a project whose outputs are made."""
    found = asked(folder, *asked_for, **more)
    assert not any(job["runs"] for job in found["jobs"])
    return found["jobs"], found["reruns"]


def asked(
    folder: Path,
    target: str,
    config: Mapping[str, Any],
    changes: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    lost: tuple[str, ...] = (),
) -> Any:
    """What a process of this file says of a project: {jobs, reruns}."""
    question = {"targets": [target], "config": config, "changes": changes, "lost": lost}
    env = environment or dict(os.environ)
    path = os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")])
    same = tuple((name, value) for name, value in env.items() if name != "PYTEST_CURRENT_TEST")
    return json.loads(_said(folder, json.dumps(question), same, path))


@cache
def _said(folder: Path, question: str, env: tuple[tuple[str, str], ...], path: str) -> str:
    """Once of what several tests ask of one project, which nobody changes for good."""
    done = warm.run("dag", question, cwd=folder, env=dict(env) | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def dependents(jobs: list[Job], file: str) -> list[str]:
    """Rules of the jobs that an input's change runs, and of all that is made from what these make."""
    stale = {file}
    for _ in jobs:
        stale |= {out for j in jobs if stale.intersection(j["triggers"]) for out in j["output"]}
    return sorted(job["rule"] for job in jobs if stale.intersection(job["triggers"]))


def representatives(jobs: list[Job], files: set[str]) -> tuple[str, ...]:
    """One file of each set of files that the same jobs read."""
    classes = {tuple(file in job["input"] for job in jobs): file for file in sorted(files)}
    return tuple(classes.values())


def one_of_each_rule(jobs: list[Job]) -> Iterator[Job]:
    found = {job["rule"]: job for job in jobs if job["output"] and job["command"]}
    return iter(found.values())


def all_lost_are_made_again(
    folder: Path, target: str, config: Job, below: str, every: bool
) -> None:
    """Of each rule whose outputs lie below a folder, every output or the last: Snakemake makes what is lost where it is
    asked for, and no other."""
    jobs, _ = graph(folder, target, config)
    chosen = {}
    for job in one_of_each_rule(jobs):
        files = [file for file in job["output"] if file.startswith(below)]
        chosen |= dict.fromkeys(files if every else files[-1:], job["rule"])
    assert chosen
    _, reruns = graph(folder, target, config, lost=tuple(chosen))
    for file, rule in chosen.items():
        assert rule in reruns[file], file


def jobs(targets: list[str], config: dict[str, Any]) -> list[Job]:
    """Rule, inputs, outputs, command and whether it would run, of every job."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings import types

    quiet = types.OutputSettings(quiet={types.Quietness.ALL}, dryrun=True)
    with SnakemakeApi(quiet) as api:
        workflow = api.workflow(
            resource_settings=types.ResourceSettings(cores=1),
            config_settings=types.ConfigSettings(config=config),
            snakefile=Path("Snakefile"),
        )
        dag = workflow.dag(types.DAGSettings(targets=set(targets)))
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
def changed(said: str) -> Iterator[None]:
    name, *words = said.split("|")
    path = Path(name)
    before, stat = path.read_bytes(), path.stat()
    old, new = (word.encode() for word in words or ("", ""))
    assert old in before
    path.write_bytes(before.replace(old, new) if old else before + b"\n# a line more\n")
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
            with changed(name) if name in asked["changes"] else lost(Path(name)):
                after = jobs(asked["targets"], asked["config"])
                reruns[name] = [job["rule"] for job in after if job["runs"]]
        sys.stdout, sys.stderr = out, err
    json.dump({"jobs": found, "reruns": reruns}, out)


if __name__ == "__main__":
    main()
