# A GPU that is not there: snakemake -j1 static --config arch=80. Compiled kernels, launch rules, claims, predictions
# from what this run's evidence measured.
from ncuflow.gpu import table as _table
from ncuflow.static import results as _facts
from ncuflow.target.contract import known as _known

try:
    ABSENT = _table.of_architecture(SETTINGS.arch, SETTINGS.gpu)
except ValueError as error:
    refuse(error)
_LAUNCHED = [name for name, target in _known().items() if target.rules.launches]
STATIC = f"{SETTINGS.outputs}/{SETTINGS.machine if STATIC_MACHINE else ABSENT.folder}"
RECORDED_FACTS = _facts.recorded(ABSENT.compute_capability)
BESIDE = _facts.recorded("9.0" if ABSENT.compute_capability != "9.0" else "8.0")
SWEEP = json.dumps(
    {
        name: blocks
        for name, blocks in SETTINGS.sweeps[SETTINGS.sweep].items()
        if name in _LAUNCHED
    }
)


# Compiled here where no facts of the architecture are recorded: by the extra `static`, without a GPU.
if not RECORDED_FACTS:

    rule static_facts:
        input:
            code=jobs.inputs("static"),
        output:
            f"{STATIC}/{_facts.FILE}",
        log:
            f"{STATIC}/logs/static-facts.log",
        threads: os.cpu_count() or 1  # no more than -j says; workflow.cores is not there on a cluster
        params:
            out=lambda wc, output: Path(output[0]).parent,
            arch={"9.0": "9.0a"}.get(
                ABSENT.compute_capability, ABSENT.compute_capability
            ),
            blocks=SWEEP,
        shell:
            "python -m ncuflow static --arch {params.arch} --out {params.out:q} --jobs {threads}"
            " --blocks {params.blocks:q} 2> {log:q}"


rule static_results:
    input:
        facts=str(RECORDED_FACTS or f"{STATIC}/{_facts.FILE}"),
        code=jobs.inputs("static-results"),
    output:
        expand(f"{STATIC}/results/{{target}}_results.json", target=_LAUNCHED),
        f"{STATIC}/results/environment_info.json",
    log:
        f"{STATIC}/logs/static-results.log",
    params:
        gpu=ABSENT.gpu,
        out=lambda wc, output: Path(output[0]).parent,
        blocks=SWEEP,
    shell:
        "python -m ncuflow static-results --facts {input.facts:q} --gpu {params.gpu:q} --out {params.out:q}"
        " --blocks {params.blocks:q} 2> {log:q}"


rule static_claims:
    input:
        results=rules.static_results.output,
        source_index=RUNNING.file("source_index.json"),
        claims=jobs.data("claims"),
        code=jobs.inputs("check claims"),
    output:
        records=f"{STATIC}/results/claims.json",
        summary=f"{STATIC}/results/claims_summary.json",
    log:
        f"{STATIC}/logs/claims.log",
    params:
        results=lambda wc, output: Path(output.records).parent,
        targets=list(_LAUNCHED),
        claims=lambda wc, input: Path(input.claims[0]).parent,
    shell:
        "python -m ncuflow check claims --results {params.results:q} --targets {params.targets} --claims {params.claims:q}"
        " --source-index {input.source_index:q} --out {output.records:q} 2> {log:q}"


rule predictions:
    input:
        static=rules.static_results.output,
        measured=RESULTS,
        code=jobs.inputs("static predict"),
    output:
        f"{STATIC}/results/predictions.json",
    log:
        f"{STATIC}/logs/predictions.log",
    params:
        on=lambda wc, output: Path(output[0]).parent,
        measured=lambda wc, input: Path(input.measured[0]).parent,
    shell:
        "python -m ncuflow static predict --measured {params.measured:q} --on {params.on:q} --out {output:q} 2> {log:q}"


# A word of its own: no prediction confirms or refutes.
rule predicted_claims:
    input:
        records=rules.static_claims.output.records,
        predictions=rules.predictions.output,
        claims=jobs.data("claims"),
        code=jobs.inputs("claims-predicted"),
    output:
        f"{STATIC}/results/claims_predicted.json",
    log:
        f"{STATIC}/logs/predicted-claims.log",
    params:
        results=lambda wc, output: Path(output[0]).parent,
        claims=lambda wc, input: Path(input.claims[0]).parent,
    shell:
        "python -m ncuflow claims-predicted --results {params.results:q} --predictions {input.predictions:q}"
        " --claims {params.claims:q} --out {output:q} 2> {log:q}"


rule static_pages:
    input:
        results=rules.static_results.output,
        claims=rules.static_claims.output,
        predictions=rules.predictions.output,
        predicted=rules.predicted_claims.output,
        measured=of_run(rules.claims.output),
        facts=rules.static_results.input.facts,
        beside=str(BESIDE) if BESIDE else [],
        modules=[str(path) for path in _facts.every_recorded()],
        code=jobs.inputs(
            "static-page", "machine-page", "pages", pages=["static", "claims"]
        ),
    output:
        expand(f"{STATIC}/reports/{{page}}.md", page=["INDEX", "environment", "claims"]),
    log:
        f"{STATIC}/logs/pages.log",
    params:
        results=lambda wc, input: Path(input.results[0]).parent,
        measured=lambda wc, input: Path(input.measured[0]).parent,
        evidence=RUNNING.root,
        beside=f"--beside {quoted(BESIDE)}" if BESIDE else "",
        out=lambda wc, output: Path(output[0]).parent,
    shell:
        "(python -m ncuflow static-page --results {params.results:q} --facts {input.facts:q} {params.beside}"
        " --modules {input.modules:q} --measured {params.measured:q} --out {params.out:q}/INDEX.md"
        " && python -m ncuflow machine-page --environment {params.results:q}/environment_info.json"
        " --out {params.out:q}/environment.md"
        " && python -m ncuflow pages claims --results {params.results:q} --evidence {params.evidence:q}"
        " --out-dir {params.out:q}) 2> {log:q}"


# What the pages are made of is asked for beside them, so that what was lost of it is made again.
rule static:
    input:
        rules.static_results.output,
        rules.static_claims.output,
        rules.predictions.output,
        rules.predicted_claims.output,
        rules.static_pages.output,
        [] if RECORDED_FACTS else rules.static_facts.output,
    localrule: True
