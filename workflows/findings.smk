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
    priority: -1  # what waits longest comes first: all tables, then this, and pages of targets beside those over all
    params:
        tables=made_in("tables/{target}"),
        root=root,
        recording=recording,
    run:
        jobs.run(
            log[0],
            "results",
            target=wildcards.target,
            tables=params.tables,
            evidence=params.root,
            recording=params.recording,
            out=output.results,
            measurements=output.measurements,
        )


rule environment_info:
    input:
        environment=captured("environment.json"),
        ceilings=captured("ceilings.json"),
        code=jobs.inputs("environment"),
    output:
        f"{OUT}/results/environment_info.json",
    log:
        f"{OUT}/logs/environment_info.log",
    params:
        root=root,
        recording=recording,
    run:
        jobs.run(
            log[0],
            "environment",
            evidence=params.root,
            recording=params.recording,
            out=output,
        )


rule jit_analysis:
    input:
        jit=captured("jit/jit_analysis.json"),
        environment=captured("environment.json"),
        code=jobs.inputs("jit-results"),
    output:
        f"{OUT}/results/jit_analysis.json",
    log:
        f"{OUT}/logs/jit_analysis.log",
    params:
        root=root,
        recording=recording,
    run:
        jobs.run(
            log[0],
            "jit-results",
            evidence=params.root,
            recording=params.recording,
            out=output,
        )


rule claims:
    input:
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        source_index=captured("source_index.json"),
        claims=jobs.data("claims"),
        code=jobs.inputs("check claims"),
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
        jobs.run(
            log[0],
            "check claims",
            results=params.results,
            targets=params.targets,
            claims=params.claims,
            source_index=input.source_index,
            out=output.records,
        )


rule hotlines:
    input:
        results=RESULTS,
        source_index=captured("source_index.json"),
        listings=RUNNING.listings(),
        code=jobs.inputs("hotlines"),
    output:
        f"{OUT}/results/hotlines.json",
    log:
        f"{OUT}/logs/hotlines.log",
    params:
        root=root,
    run:
        jobs.run(
            log[0],
            "hotlines",
            results=input.results,
            evidence=params.root,
            out=output,
        )
