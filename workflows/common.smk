# Configuration, evidence and path helpers that the other rule files share.
import json
import os
import shlex
import sys
from glob import glob
from pathlib import Path

# The code that this Snakefile belongs to, in a checkout or inside the installed package: whatever else is installed.
HOME = next(
    folder
    for folder in (Path(workflow.basedir), Path(workflow.basedir).parent.parent)
    if (folder / "ncuflow/cli.py").exists()
)
sys.path.insert(0, str(HOME))

from snakemake.exceptions import WorkflowError

from snakemake.utils import update_config

from ncuflow.capture import evidence as _evidence
from ncuflow.capture import settings as _settings
from ncuflow.target import FOLDERS as _FOLDERS
from ncuflow.target import load as load_target

for _key, _value in (workflow.config_settings.config or {}).items():
    if isinstance(_value, (dict, list)):
        update_config(config, {_key: _settings.typed(_value)})
try:
    _settings.check(config, Path(workflow.basedir) / "config/schema.yaml")
except ValueError as error:
    raise WorkflowError(str(error)) from None

os.environ[_FOLDERS] = os.pathsep.join(
    str(Path(folder).absolute()) for folder in config["target_folders"]
)

# Targets whose kernels are profiled, and those of them that this run is about.
TARGETS = config["targets"]
try:
    EVIDENCE = _evidence.resolve(config, [name for name in TARGETS if name != "jit"])
except ValueError as error:
    raise WorkflowError(str(error)) from None

OUT = f"{config['outputs']}/{EVIDENCE.machine}"
LIVE = EVIDENCE.recording is None
RECORDING = f"--recording {EVIDENCE.recording}" if EVIDENCE.recording else ""
# --config strict=false arrives as text or as a boolean, depending on how it was given.
STRICT = "" if str(config["strict"]).lower() == "true" else "--no-strict"
# The environment that Snakemake runs in is the one that its jobs run in, also where nobody activated it.
# Jobs that run at once share the machine between their children. With -jN beside the profile's `cores`, N is in `nodes`.
_jobs = max(
    workflow.resource_settings.cores or 1, workflow.resource_settings.nodes or 1
)
CHILDREN = max(1, min(4, (os.cpu_count() or 1) // _jobs))
shell.prefix(
    f"set -euo pipefail; export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    f" PYTHONPATH={shlex.quote(str(HOME))}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"
    f" NCUFLOW_CHILDREN={CHILDREN}; "
)
KERNEL_TARGETS = [name for name in TARGETS if name in EVIDENCE.targets]
JIT = f"{EVIDENCE.root}/jit/jit_analysis.json"
JIT_MODULES = config["jit"].get(config["sweep"], [])
HAS_JIT = "jit" in TARGETS and bool(JIT_MODULES if LIVE else Path(JIT).exists())
TARGET_PAGES = KERNEL_TARGETS + ["jit"] * HAS_JIT


wildcard_constraints:
    target="[a-z0-9_]+",
    batch="b[0-9a-f]{8}|deep",
    run=r"\d+",


def modules(*names):
    """Files of the project's modules, so that an edit of one reruns what it makes."""
    return [f"{name.replace('.', '/')}.py" for name in names]


def package(name):
    """Every module of a package."""
    return sorted(glob(f"{name}/*.py"))


def plan_of(wildcards):
    """The points of a batch as JSON: what its captures depend on, and no other batch's."""
    return json.dumps(EVIDENCE.plans[wildcards.target, wildcards.batch])


# Snakemake's limit of submissions a second is for clusters; on one machine it keeps a finished run from ending for a
# second (its timers are waited for).
onstart:
    if workflow.local_exec and hasattr(workflow.scheduler, "job_rate_limiter"):
        workflow.scheduler.job_rate_limiter = None
