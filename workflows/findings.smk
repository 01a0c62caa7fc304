# Tables -> findings: joined measurements, the environment, the JIT, claims.
FINDING_CODE = modules(
    "ncuflow.findings.results",
    "ncuflow.findings.join",
    "ncuflow.findings.columns",
    "ncuflow.findings.ceilings",
    "ncuflow.findings.bottleneck",
    "ncuflow.findings.noise",
    "ncuflow.findings.provenance",
    "ncuflow.io",
    "ncuflow.parsers.timing",
) + ["ncuflow/findings/datasheets.yaml"]
RESULTS = [f"{OUT}/results/{name}_results.json" for name in KERNEL_TARGETS]


rule findings:
    input:
        tables=rules.tables.output,
        environment=f"{EVIDENCE.root}/environment.json",
        ceilings=f"{EVIDENCE.root}/ceilings.json",
        code=FINDING_CODE,
    output:
        results=f"{OUT}/results/{{target}}_results.json",
        measurements=f"{OUT}/tables/{{target}}/measurements.parquet",
        csv=f"{OUT}/tables/{{target}}/measurements.csv",
    log:
        f"{OUT}/logs/findings-{{target}}.log",
    params:
        tables=lambda wc: f"{OUT}/tables/{wc.target}",
        root=EVIDENCE.root,
        recording=RECORDING,
    shell:
        "python -m ncuflow results --target {wildcards.target} --tables {params.tables:q}"
        " --evidence {params.root:q} {params.recording} --out {output.results:q}"
        " --measurements {output.measurements:q} 2> {log:q}"


rule environment_info:
    input:
        environment=f"{EVIDENCE.root}/environment.json",
        code=modules(
            "ncuflow.findings.machine", "ncuflow.findings.provenance", "ncuflow.io"
        ),
    output:
        f"{OUT}/results/environment_info.json",
    log:
        f"{OUT}/logs/environment_info.log",
    params:
        root=EVIDENCE.root,
        recording=RECORDING,
    shell:
        "python -m ncuflow environment --evidence {params.root:q} {params.recording} --out {output:q} 2> {log:q}"


SOURCE_INDEX = f"{EVIDENCE.root}/source_index.json"


rule claims:
    input:
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=f"{OUT}/results/jit_analysis.json" if HAS_JIT else [],
        source_index=SOURCE_INDEX,
        claims=sorted(glob("claims/*")),
        code=modules(
            "ncuflow.claims.audit",
            "ncuflow.claims.files",
            "ncuflow.claims.evidence",
            "ncuflow.claims.decision",
            "ncuflow.claims.expression",
            "ncuflow.claims.scope",
            "ncuflow.findings.sanity",
            "ncuflow.claims.source_facts",
            "ncuflow.findings.noise",
        ),
    output:
        records=f"{OUT}/results/claims.json",
        summary=f"{OUT}/results/claims_summary.json",
    log:
        f"{OUT}/logs/claims.log",
    params:
        results=lambda wc: f"{OUT}/results",
        targets=TARGET_PAGES,
    shell:
        "python -m ncuflow claims --results {params.results:q} --targets {params.targets} --claims claims"
        " --source-index {input.source_index:q} --out {output.records:q} 2> {log:q}"


rule hotlines:
    input:
        results=RESULTS,
        source_index=SOURCE_INDEX,
        code=modules("ncuflow.findings.hotlines"),
    output:
        f"{OUT}/results/hotlines.json",
    log:
        f"{OUT}/logs/hotlines.log",
    params:
        root=EVIDENCE.root,
    shell:
        "python -m ncuflow hotlines --results {input.results:q} --evidence {params.root:q}"
        " --out {output:q} 2> {log:q}"


rule jit_analysis:
    input:
        jit=JIT,
        environment=f"{EVIDENCE.root}/environment.json",
        code=modules(
            "ncuflow.findings.jit", "ncuflow.findings.provenance", "ncuflow.io"
        ),
    output:
        f"{OUT}/results/jit_analysis.json",
    log:
        f"{OUT}/logs/jit_analysis.log",
    params:
        root=EVIDENCE.root,
        recording=RECORDING,
    shell:
        "python -m ncuflow jit-results --evidence {params.root:q} {params.recording} --out {output:q} 2> {log:q}"
