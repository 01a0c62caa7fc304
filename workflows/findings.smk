# Tables -> findings: joined measurements, the environment, the JIT, claims.
RESULTS = of_run(f"{OUT}/results/{{target}}_results.json", target=KERNEL_TARGETS)


rule findings:
    input:
        tables=rules.tables.output,
        environment=captured("environment.json"),
        ceilings=captured("ceilings.json"),
        code=code("results"),
    output:
        results=f"{OUT}/results/{{target}}_results.json",
        measurements=f"{OUT}/tables/{{target}}/measurements.parquet",
        csv=report(
            f"{OUT}/tables/{{target}}/measurements.csv",
            caption="report/table.rst",
            category="Tables",
            labels={"target": "{target}"},
        ),
    log:
        f"{OUT}/logs/findings-{{target}}.log",
    params:
        tables=made_in("tables/{target}"),
        root=root,
        recording=recording,
    run:
        command(
            "results --target {wildcards.target} --tables {params.tables:q}"
            " --evidence {params.root:q} {params.recording} --out {output.results:q}"
            " --measurements {output.measurements:q}",
            log,
        )


rule environment_info:
    input:
        environment=captured("environment.json"),
        ceilings=captured("ceilings.json"),
        code=closure.of("environment"),
    output:
        f"{OUT}/results/environment_info.json",
    log:
        f"{OUT}/logs/environment_info.log",
    params:
        root=root,
        recording=recording,
    run:
        command(
            "environment --evidence {params.root:q} {params.recording} --out {output:q}",
            log,
        )


rule jit_analysis:
    input:
        jit=captured("jit/jit_analysis.json"),
        environment=captured("environment.json"),
        code=closure.of("jit-results"),
    output:
        f"{OUT}/results/jit_analysis.json",
    log:
        f"{OUT}/logs/jit_analysis.log",
    params:
        root=root,
        recording=recording,
    run:
        command(
            "jit-results --evidence {params.root:q} {params.recording} --out {output:q}",
            log,
        )


rule claims:
    input:
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        source_index=captured("source_index.json"),
        claims=closure.data("claims"),
        code=closure.of("claims"),
    output:
        records=f"{OUT}/results/claims.json",
        summary=f"{OUT}/results/claims_summary.json",
    log:
        f"{OUT}/logs/claims.log",
    params:
        results=made_in("results"),
        targets=TARGET_PAGES,
        claims=lambda wc, input: Path(input.claims[0]).parent,
    run:
        command(
            "claims --results {params.results:q} --targets {params.targets} --claims {params.claims:q}"
            " --source-index {input.source_index:q} --out {output.records:q}",
            log,
        )


rule hotlines:
    input:
        results=RESULTS,
        source_index=captured("source_index.json"),
        code=closure.of("hotlines"),
    output:
        f"{OUT}/results/hotlines.json",
    log:
        f"{OUT}/logs/hotlines.log",
    params:
        root=root,
    run:
        command(
            "hotlines --results {input.results:q} --evidence {params.root:q}"
            " --out {output:q}",
            log,
        )
