"""In place of the Slurm plugin: each job is handed to a Snakemake of its own, as on a node, on this machine."""

import subprocess
import sys
from dataclasses import dataclass, field

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import (
    CommonSettings,
    ExecMode,
    ExecutorSettingsBase,
)

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Of the plugin's settings those that the profile names."""

    requeue: bool = field(default=False, metadata={"help": "whether Slurm starts a job again"})


class Executor(RealExecutor):
    cores = "all"  # of the node

    def run_job(self, job: JobExecutorInterface) -> None:
        submitted = SubmittedJobInfo(job)
        self.report_job_submission(submitted)
        if subprocess.run(self.format_job_exec(job), shell=True, check=False).returncode:
            self.report_job_error(submitted)
        else:
            self.report_job_success(submitted)

    def get_python_executable(self) -> str:
        return sys.executable

    def get_exec_mode(self) -> ExecMode:
        return ExecMode.REMOTE

    def cancel(self) -> None: ...

    def shutdown(self) -> None: ...
