# Two or more sides of evidence -> what changed, and why. Asked for by name, never by `all`:
#   snakemake -j1 compare --config base=recordings/A head=recordings/B
# head may list several, separated by commas, or by a pattern: each is then compared with the one before it.
# A side is a recording's folder, or `live`: what this machine's GPU gives now.
COMPARE = f"{SETTINGS.outputs}/compare"
SERIES_NAME = _evidence.together(SIDES) if SIDES else ""
SERIES = f"{COMPARE}/{SERIES_NAME}"
PAIRS = {
    _evidence.together((base, head)): (base, head)
    for base, head in zip(list(SIDES), list(SIDES)[1:])
}


if not PAIRS:
    # So that a side that was forgotten is said, and not that there is no such rule.
    for _name in ("compare", "compare_gate", "predict"):

        rule:
            name:
                _name
            log:
                f"{COMPARE}/logs/{_name}.log",
            localrule: True
            params:
                says=f"error: {_name} needs --config base=recordings/A head=recordings/B",
            shell:
                "echo {params.says:q} | tee {log:q} >&2; exit 1"

else:
    PAIR = {"pair": "|".join(map(re.escape, PAIRS))}
    TIMELINE = f"{OUT}/tables/{{target}}/timeline.parquet"

    rule compare_sides:
        input:
            base=side(0, rules.findings.output.results),
            head=side(1, rules.findings.output.results),
            base_tables=side(0, TIMELINE),
            head_tables=side(1, TIMELINE),
            code=jobs.inputs("compare"),
        output:
            f"{COMPARE}/{{pair}}/results/compare.json",
        log:
            f"{COMPARE}/{{pair}}/logs/compare.log",
        wildcard_constraints:
            **PAIR,
        params:
            base=lambda wc, input: Path(input.base[0]).parent,
            head=lambda wc, input: Path(input.head[0]).parent,
            base_targets=lambda wc: kernel_targets(PAIRS[wc.pair][0]),
            head_targets=lambda wc: kernel_targets(PAIRS[wc.pair][1]),
            alpha=SETTINGS.compare.alpha,
            threshold=SETTINGS.compare.threshold,
            floor=[] if SETTINGS.compare.floor is None else SETTINGS.compare.floor,
        run:
            jobs.run(
                log[0],
                "compare",
                params.base,
                params.head,
                base_targets=params.base_targets,
                head_targets=params.head_targets,
                alpha=params.alpha,
                threshold=params.threshold,
                floor=params.floor,
                format="json",
                out=output,
            )

    rule compare_figures:
        input:
            comparison=rules.compare_sides.output,
            code=jobs.inputs("compare-figures"),
        output:
            directory(f"{COMPARE}/{{pair}}/figures"),
        log:
            f"{COMPARE}/{{pair}}/logs/figures.log",
        wildcard_constraints:
            **PAIR,
        run:
            jobs.run(
                log[0],
                "compare-figures",
                comparison=input.comparison,
                out_dir=output,
            )

    rule compare_page:
        input:
            comparison=rules.compare_sides.output,
            figures=rules.compare_figures.output,
            code=jobs.inputs("compare-page", pages=["compare"]),
        output:
            f"{COMPARE}/{{pair}}/reports/compare.md",
        log:
            f"{COMPARE}/{{pair}}/logs/page.log",
        wildcard_constraints:
            **PAIR,
        run:
            jobs.run(
                log[0],
                "compare-page",
                comparison=input.comparison,
                figures=input.figures,
                out=output,
            )

    # Two measured GPUs, each predicted from the other: snakemake -j1 predict --config base=… head=…
    rule predict_page:
        input:
            base=side(0, rules.findings.output.results),
            head=side(1, rules.findings.output.results),
            code=jobs.inputs("predict-page", pages=["predictions"]),
        output:
            f"{COMPARE}/{{pair}}/reports/predictions.md",
        log:
            f"{COMPARE}/{{pair}}/logs/predictions.log",
        wildcard_constraints:
            **PAIR,
        params:
            base=lambda wc, input: Path(input.base[0]).parent,
            head=lambda wc, input: Path(input.head[0]).parent,
        run:
            jobs.run(
                log[0],
                "predict-page",
                measured=params.base,
                on=params.head,
                out=output,
            )

    rule predict:
        input:
            expand(rules.predict_page.output, pair=PAIRS),
        localrule: True

    if len(PAIRS) > 1:

        # Where there are more than two: a chart of each kernel over all sides, and one page of them.
        use rule compare_figures as compare_series_figures with:
            input:
                comparison=expand(rules.compare_sides.output, pair=PAIRS),
                code=jobs.inputs("compare-figures"),
            output:
                directory(f"{SERIES}/figures"),
            log:
                f"{SERIES}/logs/figures.log",

        rule compare_series:
            input:
                comparison=expand(rules.compare_sides.output, pair=PAIRS),
                figures=expand(rules.compare_figures.output, pair=PAIRS),
                series=rules.compare_series_figures.output,
                code=jobs.inputs("compare-page", pages=["compare"]),
            output:
                f"{SERIES}/reports/series.md",
            log:
                f"{SERIES}/logs/series.log",
            run:
                jobs.run(
                    log[0],
                    "compare-page",
                    comparison=input.comparison,
                    figures=input.figures,
                    series=input.series,
                    out=output,
                )

    # All sides in one file, to open from a disk.
    rule compare_html:
        input:
            comparison=expand(rules.compare_sides.output, pair=PAIRS),
            results=[made_of_side(name, rules.findings.output) for name in SIDES],
            listings=[path for side in SIDES.values() for path in side.listings()],
            source_index=[
                path
                for side in SIDES.values()
                for path in side.file("source_index.json")
            ],
            tables=[made_of_side(name, rules.tables.output) for name in SIDES],
            code=jobs.inputs("report"),
            files=jobs.data("templates/html"),
        output:
            f"{SERIES}/report.html",
        log:
            f"{SERIES}/logs/html.log",
        params:
            folders=[f"{SETTINGS.outputs}/{side.folder}" for side in SIDES.values()],
            roots=[side.root for side in SIDES.values()],
        run:
            jobs.run(
                log[0],
                "report",
                params.folders,
                evidence=params.roots,
                comparison=input.comparison,
                out=output,
            )

    rule compare:
        input:
            rules.compare_html.output,
            [
                made_of_side(name, rules.tables.output + rules.findings.output)
                for name in SIDES
            ],
            expand(rules.compare_sides.output, pair=PAIRS),
            expand(rules.compare_figures.output, pair=PAIRS),
            expand(rules.compare_page.output, pair=PAIRS),
            (
                rules.compare_series_figures.output + rules.compare_series.output
                if len(PAIRS) > 1
                else []
            ),
        localrule: True

    # Fails on a significant slow-down beyond the threshold; docs/ci.md shows it in a CI job.
    rule compare_gate:
        input:
            comparison=expand(rules.compare_sides.output, pair=PAIRS),
            code=jobs.inputs("check"),
        localrule: True
        params:
            threshold=SETTINGS.compare.gate_threshold,
        shell:
            "status=0; for comparison in {input.comparison:q}; do python -m ncuflow check"
            ' "$comparison" --threshold {params.threshold} || status=1; done; exit $status'
