# docs/sample: the pages of the shipped recording, for readers on the web. Asked for by name, never by `all`.
rule sample:
    input:
        rules.reports.input,
    output:
        touch(f"{SETTINGS.outputs}/{RUN}/sample.done"),
    log:
        of_run(f"{OUT}/logs/sample.log"),
    params:
        out=of_run(OUT),
        targets=KERNEL_TARGETS,
    shell:
        "(rm -rf docs/sample/reports docs/sample/figures docs/sample/tables docs/sample/usage"
        " docs/sample/report.html && cp -r {params.out:q}/reports {params.out:q}/figures {params.out:q}/usage"
        " {params.out:q}/report.html docs/sample/"
        " && for target in {params.targets}; do mkdir -p docs/sample/tables/$target"
        " && cp {params.out:q}/tables/$target/measurements.csv docs/sample/tables/$target/; done) 2> {log:q}"


# The pages of a GPU that is not there: snakemake -j1 sample_static --config machine=a100-static
rule sample_static:
    input:
        rules.static_pages.output,
    output:
        touch(f"{STATIC}/sample.done"),
    log:
        f"{STATIC}/logs/sample.log",
    params:
        out=f"docs/sample/{Path(STATIC).name}",
    shell:
        "(rm -rf {params.out:q} && mkdir -p {params.out:q} && cp {input:q} {params.out:q}/) 2> {log:q}"


if PAIRS:

    # The comparison of the shipped recordings: snakemake -j1 sample_compare --config base=… head=…
    rule sample_compare:
        input:
            rules.compare.input,
        output:
            touch(f"{SERIES}.sample.done"),
        log:
            f"{COMPARE}/sample.log",
        params:
            series=SERIES_NAME,
            pages=[*PAIRS, *[SERIES_NAME] * (len(PAIRS) > 1)],
            out=COMPARE,
        # The page of a series holds those of its pairs, of which it shows some figures: the others go.
        shell:
            "(for page in {params.pages:q}; do mkdir -p docs/sample/compare/$page;"
            " rm -rf docs/sample/compare/$page/figures; if [ -d {params.out:q}/$page/figures ]; then"
            " cp -r {params.out:q}/$page/figures docs/sample/compare/$page/; fi; done;"
            " cp -r {params.out:q}/{params.series:q}/reports docs/sample/compare/{params.series:q}/;"
            " find docs/sample -name .snakemake_timestamp -delete;"
            " cd docs/sample/compare && for figure in */figures/*; do pair=$(dirname $(dirname $figure));"
            ' grep -qsF "$figure)" */reports/*.md ||'
            ' grep -rqsF --include="*.md" "(../figures/$(basename $figure))" $pair || rm -f $figure; done) 2> {log:q}'
