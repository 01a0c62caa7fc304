# Configuration, evidence and path helpers that the other rule files share.
import json
import os
import re
import shlex
import sys
from pathlib import Path

# The code that this Snakefile belongs to, in a checkout or inside the installed package: whatever else is installed.
HOME = next(
    folder
    for folder in (Path(workflow.basedir), Path(workflow.basedir).parent.parent)
    if (folder / "ncuflow/cli.py").exists()
)
sys.path.insert(0, str(HOME))

from snakemake.utils import update_config

from ncuflow.run import loss
from ncuflow.flow import checksums, display, jobs
from ncuflow.flow import evidence as _evidence
from ncuflow.flow import settings as _settings
from ncuflow.cli import refused as _refused
from ncuflow.cli import tell
from ncuflow.gpu import use
from ncuflow.model import BATCH as _BATCH
from ncuflow.sweep.points import ranks as _ranks
from ncuflow.target.contract import FOLDERS as _FOLDERS


def refuse(why):
    """End before a job has begun. An exception would come in words of Snakemake's, with places in these files."""
    sys.exit(tell(str(why), 2))


for _key, _value in (workflow.config_settings.config or {}).items():
    if isinstance(_value, (dict, list)):
        update_config(config, {_key: _settings.typed(_value)})
try:
    SETTINGS = _settings.validated(config)
    TARGETS = SETTINGS.targets
    os.environ[_FOLDERS] = os.pathsep.join(
        str(Path(folder).absolute()) for folder in SETTINGS.target_folders
    )
    # machine=a100-static names pages of a GPU that is not there; what was measured keeps its own folder.
    STATIC_MACHINE = (SETTINGS.machine or "").endswith("-static")
    MEASURED = (
        SETTINGS.model_copy(update={"machine": None}) if STATIC_MACHINE else SETTINGS
    )
    RUNNING = _evidence.resolve(MEASURED)
    SIDES = _evidence.sides(SETTINGS.base, SETTINGS.head, RUNNING)
    HERE = _evidence.here(SETTINGS) if RUNNING.recording else RUNNING
    # Folder below `outputs` -> the evidence that its files are made from: this run's, the sides of a comparison,
    # and what the preflight finds on this machine.
    EVIDENCE = _evidence.by_folder(RUNNING, [*SIDES.values(), HERE])
except ValueError as error:
    refuse(error)
except OSError as error:
    refuse(_refused(error))

OUT = f"{SETTINGS.outputs}/{{evidence}}"
RUN = RUNNING.folder
LIVE = RUNNING.recording is None
jobs.spare_snakemake()
_moved = jobs.provide_caches(Path(SETTINGS.outputs))
for _note in (
    _evidence.passed_over(SETTINGS, RUNNING),
    _moved if LIVE else None,
    *(_evidence.left_out(MEASURED) if LIVE else []),
):
    if _note and workflow.is_main_process:
        print(f"note: {_note}", file=sys.stderr)
# The environment that Snakemake runs in is the one that its jobs run in, also where nobody activated it.
_python = Path(sys.executable).parent
for _folder in (_python, HOME):
    if ":" in str(_folder):
        refuse(f"{_folder}: PATH cannot name a folder with a colon")


def quoted(path):
    """A path as a word of a command that Snakemake formats."""
    return shlex.quote(str(path)).replace("{", "{{").replace("}", "}}")


# Nor is a module taken from the folder that the run works in, by jobs or by the Snakemake that starts them.
os.environ |= {"PYTHONSAFEPATH": "1"}
# What a capture that ended badly leaves: status 3, where some points are lost, is none; an interrupted one goes on later;
# one that fails in its second try, or whose tool is unfit (5), costs its own numbers alone.
shell.prefix(
    f"set -euo pipefail; export PATH={quoted(_python)}:$PATH"
    f" PYTHONSAFEPATH=1 PYTHONPATH={quoted(HOME)}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
    "or_give_up() {{ "
    "if [ $1 -eq 3 ]; then return 0; fi; "
    "if [ $1 -eq 130 ] || [ $1 -ne 5 -a $2 -le 1 ]; then return $1; fi; "
    'shift 2; python -m ncuflow give-up "$@"; '
    "}}; "
)
# Programs that hold a GPU note when, for what the run says of it at its end.
GPU_USE = Path(SETTINGS.outputs, RUN, "gpu-use.jsonl") if LIVE else None
if GPU_USE:
    os.environ[use.FILE] = str(GPU_USE)
# The targets that this run is about.
KERNEL_TARGETS = [name for name in TARGETS if name in RUNNING.targets]
# Compilation is measured where it is asked for by name (`snakemake -j1 jit`), and shown where that was done once.
WITH_JIT = [
    folder
    for folder, evidence in EVIDENCE.items()
    if (evidence.root / "jit/jit_analysis.json").is_file()
]
HAS_JIT = RUN in WITH_JIT
TARGET_PAGES = KERNEL_TARGETS + ["jit"] * HAS_JIT


wildcard_constraints:
    evidence="|".join(map(re.escape, EVIDENCE)),
    target="[a-z0-9_]+",
    batch=_BATCH,
    run=r"\d+",


def root(wildcards):
    """The folder of the captures that a file below `outputs` is made from."""
    return EVIDENCE[wildcards.evidence].root


def captured(name):
    """An input: a file of the evidence, or nothing where a recording lacks it."""
    return lambda wildcards: EVIDENCE[wildcards.evidence].file(name)


def recording(wildcards):
    """A param: what tells a command that its evidence is recorded; nothing where it is live."""
    return EVIDENCE[wildcards.evidence].recording or []


def paged(path, page):
    """An output: a page, and how Snakemake's own report lists it."""
    return report(
        path, caption="report/page.rst", category="Pages", labels={"page": page}
    )


def of_run(patterns, **wildcards):
    """Files of this run's evidence."""
    return expand(patterns, evidence=RUN, **wildcards)


def plan_of(what):
    """A param: the points or pairs of a batch as JSON, what its captures depend on, and no other batch's."""

    def plan(wildcards):
        plans = getattr(EVIDENCE[wildcards.evidence], what)
        return json.dumps(plans.get((wildcards.target, wildcards.batch), []))

    return plan


def gpus_of(wildcards):
    """A param: the GPUs that a batch takes; "" for one."""
    count = _ranks(RUNNING.plans.get((wildcards.target, wildcards.batch), []))
    return f"--gpus {count}" if count > 1 else ""


def in_turns(plan, records):
    """A param: the pairs that a process times."""
    return f"--pairs {quoted(plan)} --pairs-out {quoted(records)}"


def built_of(targets):
    """An input: the points whose modules a build compiles."""
    places = [f"{name}/{batch}" for name in targets for batch in RUNNING.batches(name)]
    return [f"{RUNNING.root}/{place}/points.json" for place in places]


def built_for(wildcards):
    """An input: the build; of a target that is profiled beside it none, whose programs wait for their own modules."""
    return (
        []
        if wildcards.target in RUNNING.early
        else ancient(f"{RUNNING.root}/build.json")
    )


def timed_before(wildcards):
    """An input: the records of what was timed, where a target is not profiled and traced before."""
    folder = f"{RUNNING.root}/{wildcards.target}/{wildcards.batch}"
    return [] if wildcards.target in RUNNING.early else f"{folder}/timing.jsonl"


def after_timing(timing):
    """A param: what a profiler is told of the records of what was timed."""
    return f"--timing {quoted(timing)}" if timing else ""


def code(*commands, **more):
    """An input: the project's files that commands read which work on the target of their output."""
    return lambda wildcards: jobs.inputs(*commands, target=wildcards.target, **more)


def made_in(folder):
    """A param: a folder below the outputs of the evidence."""
    return lambda wildcards: f"{OUT}/{folder}".format(**dict(wildcards.items()))


def kernel_targets(name):
    """The kernel targets of a side."""
    return list(SIDES[name].targets)


def made_of_side(name, patterns):
    """Files of all kernel targets of a side."""
    return expand(patterns, evidence=SIDES[name].folder, target=kernel_targets(name))


def side(position, patterns):
    """An input: such files of the first (0) or the second (1) side of a pair."""
    return lambda wildcards: made_of_side(PAIRS[wildcards.pair][position], patterns)


def losses():
    """A line for each reason for which captures of this run are missing; what it does not capture, it does not miss."""
    return loss.messages(RUNNING.root, KERNEL_TARGETS) if LIVE else []


DISPLAY = display.install(workflow, RUNNING.plans, RUNNING.pairs, GPU_USE)
