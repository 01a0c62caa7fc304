# Findings -> figures and pages. A page and its figures are one job: most of either is the start of Python.
OVER_ALL = ["kernel-dev-guide", "final-report", "claims", "INDEX", "analysis"]


rule target_page:
    input:
        results=f"{OUT}/results/{{target}}_results.json",
        source_index=captured("source_index.json"),
        code=code("pages", pages=["target"]),
    output:
        page=paged(f"{OUT}/reports/{{target}}.md", page="{target}"),
        figures=[
            report(
                f"{OUT}/figures/{{target}}-{kind}.svg",
                caption="report/figure.rst",
                category="Figures",
                labels={"target": "{target}", "figure": kind},
            )
            for kind in ("roofline", "stalls", "sweep")
        ],
        usage=f"{OUT}/usage/{{target}}.py",
    log:
        f"{OUT}/logs/page-{{target}}.log",
    wildcard_constraints:
        target="|".join(KERNEL_TARGETS),
    priority: -2
    params:
        lax=not SETTINGS.strict,
        results=made_in("results"),
        out=made_in("reports"),
        figures=made_in("figures"),
        usage=made_in("usage"),
        root=root,
    run:
        jobs.run(
            log[0],
            "pages",
            "target",
            target=wildcards.target,
            results=params.results,
            evidence=params.root,
            no_strict=params.lax,
            out_dir=params.out,
            figures=params.figures,
            usage=params.usage,
        )


rule environment_page:
    input:
        environment=rules.environment_info.output,
        jit=lambda wc: rules.jit_analysis.output if wc.evidence in WITH_JIT else [],
        code=jobs.inputs("machine-page"),
    output:
        paged(f"{OUT}/reports/environment.md", page="environment"),
    log:
        f"{OUT}/logs/page-environment.log",
    run:
        jobs.run(
            log[0],
            "machine-page",
            environment=input.environment,
            jit=input.jit,
            out=output,
        )


# The pages that read all results, in one job: reading those takes as long as most of the pages.
rule pages:
    input:
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        claims=rules.claims.output,
        hotlines=rules.hotlines.output,
        source_index=captured("source_index.json"),
        build=captured("build.json"),
        records=RUNNING.records(),
        code=jobs.inputs("pages", pages=OVER_ALL),
    output:
        pages=[paged(f"{OUT}/reports/{page}.md", page=page) for page in OVER_ALL],
        figure=report(
            f"{OUT}/figures/roofline.svg",
            caption="report/roofline.rst",
            category="Figures",
            labels={"target": "all", "figure": "roofline"},
        ),
    log:
        f"{OUT}/logs/pages.log",
    params:
        pages=OVER_ALL,
        lax=not SETTINGS.strict,
        results=made_in("results"),
        targets=TARGET_PAGES,
        out=made_in("reports"),
        figures=made_in("figures"),
        root=root,
    run:
        jobs.run(
            log[0],
            "pages",
            params.pages,
            results=params.results,
            targets=params.targets,
            evidence=params.root,
            no_strict=params.lax,
            out_dir=params.out,
            figures=params.figures,
        )


if LIVE or HAS_JIT:

    rule jit_page:
        input:
            jit=rules.jit_analysis.output,
            code=jobs.inputs("pages", pages=["jit"]),
        output:
            paged(f"{OUT}/reports/jit.md", page="jit"),
        log:
            f"{OUT}/logs/page-jit.log",
        params:
            lax=not SETTINGS.strict,
            results=made_in("results"),
            out=made_in("reports"),
            root=root,
        run:
            jobs.run(
                log[0],
                "pages",
                "jit",
                results=params.results,
                evidence=params.root,
                no_strict=params.lax,
                out_dir=params.out,
            )

    rule jit:
        input:
            of_run(rules.jit_analysis.output + rules.jit_page.output),
        localrule: True

else:

    rule jit:
        log:
            of_run(f"{OUT}/logs/jit.log"),
        localrule: True
        params:
            says="error: jit needs --config source=live",
        shell:
            "echo {params.says:q} | tee {log:q} >&2; exit 1"


# Everything in one file, to open from a disk.
rule html:
    input:
        pages=rules.pages.output.pages,
        pages_of_targets=expand(
            rules.target_page.output.page, target=KERNEL_TARGETS, allow_missing=True
        ),
        page_of_jit=rules.jit_page.output if HAS_JIT else [],
        results=RESULTS,
        environment=rules.environment_info.output,
        jit=rules.jit_analysis.output if HAS_JIT else [],
        claims=rules.claims.output,
        hotlines=rules.hotlines.output,
        source_index=captured("source_index.json"),
        tables=expand(
            f"{OUT}/tables/{{target}}/{{table}}.parquet",
            target=KERNEL_TARGETS,
            table=["metrics", "timeline", "timing"],
            allow_missing=True,
        ),
        listings=RUNNING.listings(),
        code=jobs.inputs("report"),
        files=jobs.data("templates/html"),
    output:
        report(
            f"{OUT}/report.html",
            caption="report/html.rst",
            category="Everything",
            labels={"page": "report.html"},
        ),
    log:
        f"{OUT}/logs/html.log",
    params:
        lax=not SETTINGS.strict,
        folder=made_in(""),
        targets=TARGET_PAGES,
        root=root,
    run:
        jobs.run(
            log[0],
            "report",
            params.folder,
            evidence=params.root,
            targets=params.targets,
            no_strict=params.lax,
            out=output,
        )


# What a user types: one name a target, and the groups of pages. Tables and figures are asked for beside the pages, so
# that one that was lost is made again, though the pages that were made of it are newer.
MADE = {
    name: of_run(
        rules.tables.output + rules.findings.output + rules.target_page.output,
        target=name,
    )
    for name in KERNEL_TARGETS
}
for _name, _files in MADE.items():

    rule:
        name:
            _name
        input:
            _files,
        localrule: True


ENVIRONMENT = rules.environment_info.output + rules.environment_page.output


# What can be measured here, and what made the evidence of this run: one machine where it is live.
rule environment:
    input:
        of_run(ENVIRONMENT),
        expand(ENVIRONMENT, evidence=HERE.folder),
    localrule: True


rule reports:
    input:
        [*MADE.values()],
        of_run(ENVIRONMENT),
        of_run(rules.claims.output + rules.hotlines.output + rules.pages.output),
        of_run(rules.html.output),
        of_run(rules.jit_analysis.output + rules.jit_page.output) if HAS_JIT else [],
    localrule: True
