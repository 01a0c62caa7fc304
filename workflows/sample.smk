# docs/sample: the pages of the shipped recording, for readers on the web. Asked for by name, never by `all`.
rule sample:
    input:
        pages=PAGES + [f"{OUT}/reports/{name}.md" for name in TARGET_PAGES],
        figures=[f"{OUT}/figures/roofline.svg"]
        + [f"{OUT}/figures/{name}-sweep.svg" for name in KERNEL_TARGETS],
        tables=[f"{OUT}/tables/{name}/measurements.csv" for name in KERNEL_TARGETS],
    output:
        touch(f"{OUT}/sample.done"),
    log:
        f"{OUT}/logs/sample.log",
    params:
        out=lambda wc: OUT,
    shell:
        "rm -rf docs/sample/reports docs/sample/figures docs/sample/tables"
        " && mkdir -p docs/sample && cp -r {params.out}/reports {params.out}/figures docs/sample/"
        " && for csv in {input.tables}; do t=$(basename $(dirname $csv));"
        " mkdir -p docs/sample/tables/$t && cp $csv docs/sample/tables/$t/; done 2> {log}"


if PAIRS:

    # The comparison of the shipped recordings: snakemake -j1 sample_compare --config base=… head=…
    rule sample_compare:
        input:
            pages=rules.compare.input,
        output:
            touch(f"{COMPARE}/{'-vs-'.join(SIDES)}.sample.done"),
        log:
            f"{COMPARE}/sample.log",
        params:
            pairs=list(PAIRS) + ["-vs-".join(SIDES)] * (len(PAIRS) > 1),
            out=lambda wc: COMPARE,
        shell:
            "for pair in {params.pairs}; do rm -rf docs/sample/compare/$pair;"
            " mkdir -p docs/sample/compare/$pair;"
            " cp -r {params.out}/$pair/reports docs/sample/compare/$pair/;"
            " if [ -d {params.out}/$pair/figures ]; then"
            " cp -r {params.out}/$pair/figures docs/sample/compare/$pair/; fi; done 2> {log}"
