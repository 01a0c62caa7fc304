# ncuflow: measured kernel guides for FlashInfer.
#   snakemake -j1 all                 everything, live on a GPU or from recorded evidence
#   snakemake -j1 all --config machine=a100-static    the pages of a GPU that is not there
#   snakemake -j1 decode              one kernel target: its chain and its page
#   snakemake -j1 advise              which choice for which shape
#   snakemake --list-target-rules     what else there is
from snakemake.utils import min_version

min_version("9.13")


configfile: f"{workflow.basedir}/config/config.yaml"


# snakemake --report report.zip, after a run.
report: "workflows/report/overview.rst"


# Used with --software-deployment-method apptainer alone; the environment is README's otherwise.
container: "docker://python:3.11-slim"


include: "workflows/common.smk"
include: "workflows/capture.smk"
include: "workflows/tables.smk"
include: "workflows/findings.smk"
include: "workflows/pages.smk"
include: "workflows/static.smk"
include: "workflows/compare.smk"
include: "workflows/advise.smk"
include: "workflows/sample.smk"


rule all:
    default_target: True
    input:
        rules.static.input if STATIC_MACHINE else rules.reports.input,
    localrule: True


include: "workflows/checksums.smk"
