# Findings -> figures and pages.
CONTEXT = modules(
    "ncuflow.pages.pages",
    "ncuflow.pages.contexts",
    "ncuflow.format",
    "ncuflow.pages.filters",
    "ncuflow.pages.series",
    "ncuflow.findings.provenance",
    "ncuflow.findings.sanity",
) + ["templates/_macros.j2"]
GUIDE = sorted(glob("ncuflow/pages/guide*.py")) + modules(
    "ncuflow.findings.kernelname",
    "ncuflow.findings.stalltree",
    "ncuflow.findings.hotlines",
    "ncuflow.findings.crossing",
    "ncuflow.findings.choices",
    "ncuflow.findings.noise",
    "ncuflow.parsers.stalls",
)
GUIDE += sorted(glob("templates/guide/**/*.*", recursive=True))
OVER_ALL = ["kernel-dev-guide", "final-report", "claims", "INDEX", "analysis"]
PAGES = [f"{OUT}/reports/{name}.md" for name in ["environment", *OVER_ALL]]


# A page and the figures beside it in one job, at once: most of a figure's time is the import of matplotlib.
# The shell waits for both, whichever of them fails.
FIGURE_CODE = modules(
    "ncuflow.pages.figures",
    "ncuflow.pages.series",
    "ncuflow.findings.provenance",
    "ncuflow.io",
)


rule target_page:
    input:
        results=f"{OUT}/results/{{target}}_results.json",
        code=CONTEXT,
        figure_code=FIGURE_CODE,
        template="templates/target.md.j2",
    output:
        page=f"{OUT}/reports/{{target}}.md",
        figures=expand(
            f"{OUT}/figures/{{{{target}}}}-{{kind}}.svg",
            kind=["roofline", "stalls", "sweep"],
        ),
    log:
        f"{OUT}/logs/page-{{target}}.log",
    wildcard_constraints:
        target="|".join(KERNEL_TARGETS),
    params:
        strict=STRICT,
        results=lambda wc: f"{OUT}/results",
        out=lambda wc: f"{OUT}/reports",
        figures=lambda wc: f"{OUT}/figures",
        root=EVIDENCE.root,
    shell:
        "( trap wait EXIT;"
        " python -m ncuflow figures --results {input.results:q} --out-dir {params.figures:q} &"
        " python -m ncuflow pages target --target {wildcards.target} --results {params.results:q}"
        " --evidence {params.root:q} {params.strict} --out-dir {params.out:q}; wait $! ) 2> {log:q}"


rule environment_page:
    input:
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        code=CONTEXT,
        template="templates/environment.md.j2",
    output:
        f"{OUT}/reports/environment.md",
    log:
        f"{OUT}/logs/page-environment.log",
    params:
        strict=STRICT,
        results=lambda wc: f"{OUT}/results",
        targets=["jit"] * HAS_JIT,
        out=lambda wc: f"{OUT}/reports",
        root=EVIDENCE.root,
    shell:
        "python -m ncuflow pages environment --results {params.results:q} --targets {params.targets}"
        " --evidence {params.root:q} {params.strict} --out-dir {params.out:q} 2> {log:q}"


# The pages that read all results, in one job: reading those takes as long as most of the pages.
rule pages:
    input:
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        claims=rules.claims.output,
        hotlines=rules.hotlines.output,
        source_index=SOURCE_INDEX,
        code=CONTEXT,
        figure_code=FIGURE_CODE,
        guide=GUIDE,
        templates=expand("templates/{page}.md.j2", page=OVER_ALL),
    output:
        pages=expand(f"{OUT}/reports/{{page}}.md", page=OVER_ALL),
        figure=f"{OUT}/figures/roofline.svg",
    log:
        f"{OUT}/logs/pages.log",
    params:
        pages=OVER_ALL,
        strict=STRICT,
        results=lambda wc: f"{OUT}/results",
        targets=TARGET_PAGES,
        out=lambda wc: f"{OUT}/reports",
        figures=lambda wc: f"{OUT}/figures",
        root=EVIDENCE.root,
    shell:
        "( trap wait EXIT; python -m ncuflow figures --overview --results {input.results:q}"
        " --out-dir {params.figures:q} &"
        " python -m ncuflow pages {params.pages} --results {params.results:q} --targets {params.targets}"
        " --evidence {params.root:q} {params.strict} --out-dir {params.out:q}; wait $! ) 2> {log:q}"


if HAS_JIT:

    rule jit:
        input:
            jit=rules.jit_analysis.output,
            code=CONTEXT,
            template="templates/jit.md.j2",
        output:
            f"{OUT}/reports/jit.md",
        log:
            f"{OUT}/logs/page-jit.log",
        params:
            strict=STRICT,
            results=lambda wc: f"{OUT}/results",
            out=lambda wc: f"{OUT}/reports",
            root=EVIDENCE.root,
        shell:
            "python -m ncuflow pages jit --results {params.results:q} --evidence {params.root:q}"
            " {params.strict} --out-dir {params.out:q} 2> {log:q}"


# What a user types: one name a target, and the two groups of pages.
for _target in KERNEL_TARGETS:

    rule:
        name:
            _target
        input:
            f"{OUT}/reports/{_target}.md",
            f"{OUT}/tables/{_target}/measurements.csv",
        localrule: True


rule environment:
    input:
        f"{OUT}/reports/environment.md",
    localrule: True


rule reports:
    input:
        PAGES,
        [f"{OUT}/reports/{name}.md" for name in TARGET_PAGES],
    localrule: True
