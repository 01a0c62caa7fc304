# Which choice for which shape: raced on a GPU, or from what was recorded. Asked for by name, never by `all`:
#   snakemake -j1 advise
ADVICE = f"{OUT}/results/advice.json"
ADVICE_PAGE = f"{OUT}/reports/advice.html"


if LIVE:

    # The race takes the GPU itself. Status 3: some shapes have no advice, and are named.
    rule advice:
        input:
            points=expand(
                f"{CAPTURES}/{{batch}}/points.json",
                batch=[
                    f"{name}/{batch}"
                    for name in KERNEL_TARGETS
                    for batch in RUNNING.batches(name)
                ],
                allow_missing=True,
            ),
            build=ancient(f"{CAPTURES}/build.json"),
            code=jobs.inputs("advise", "worker"),
        output:
            record=ADVICE,
            page=ADVICE_PAGE,
        log:
            f"{OUT}/logs/advice.log",
        resources:
            gpu=1,
            lane=LANES,
        params:
            jit_env=JIT_ENV,
        shell:
            "{params.jit_env} python -m ncuflow advise --points {input.points:q} --out {output.record:q}"
            " --html {output.page:q} > {log:q} 2>&1 || [ $? -eq 3 ]"

else:

    rule advice:
        input:
            results=lambda wc: expand(
                rules.findings.output.results,
                target=KERNEL_TARGETS,
                evidence=wc.evidence,
            ),
            tables=lambda wc: expand(
                f"{OUT}/tables/{{target}}/timeline.parquet",
                target=KERNEL_TARGETS,
                evidence=wc.evidence,
            ),
            code=jobs.inputs("advise"),
        output:
            record=ADVICE,
            page=ADVICE_PAGE,
        log:
            f"{OUT}/logs/advice.log",
        params:
            results=made_in("results"),
            targets=KERNEL_TARGETS,
        run:
            jobs.run(
                log[0],
                "advise",
                recorded=params.results,
                target=params.targets,
                out=output.record,
                html=output.page,
            )


rule advise:
    input:
        of_run(ADVICE_PAGE),
    localrule: True
