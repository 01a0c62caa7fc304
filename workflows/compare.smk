# Two or more sides of evidence -> what changed, and why. Asked for by name, never by `all`:
#   snakemake -j1 compare --config base=recordings/A head=recordings/B
# head may list several, separated by commas: each is then compared with the one before it.
# A side is a recording's folder, or `live`: what this machine's GPU gives now.
import re

from ncuflow.capture import sides as _sides

COMPARE = f"{config['outputs']}/compare"
COMPARE_CODE = modules(
    "ncuflow.compare.verdict",
    "ncuflow.compare.attribution",
    "ncuflow.compare.decomposition",
    "ncuflow.compare.differences",
    "ncuflow.compare.gate",
    "ncuflow.findings.kernelname",
    "ncuflow.findings.statistics",
    "ncuflow.io",
)
COMPARE_PAGE = modules(
    "ncuflow.pages.compare_page",
    "ncuflow.format",
    "ncuflow.pages.filters",
    "ncuflow.pages.pages",
    "ncuflow.findings.provenance",
)
try:
    SIDES = _sides.of(config["base"], config["head"], EVIDENCE)
except ValueError as error:
    raise WorkflowError(str(error)) from None

# A live side's tables and results are those of the run itself.
SIDE_FOLDER = {
    name: OUT if side.recording is None else f"{COMPARE}/sides/{name}"
    for name, side in SIDES.items()
}
SIDE_RESULTS = {
    name: [
        f"{SIDE_FOLDER[name]}/results/{target}_results.json"
        for target in side.targets
        if target != "jit"
    ]
    for name, side in SIDES.items()
}
SERIES = f"{COMPARE}/{'-vs-'.join(SIDES)}"
PAIRS = {
    f"{base}-vs-{head}": (base, head)
    for base, head in zip(list(SIDES), list(SIDES)[1:])
}

if not PAIRS:
    # So that a side that was forgotten is said, and not that there is no such rule.
    for _name in ("compare", "compare_gate"):

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
    SIDE = {"side": "|".join(map(re.escape, SIDES))}
    PAIR = {"pair": "|".join(map(re.escape, PAIRS))}

    rule compare_tables:
        input:
            evidence=lambda wc: SIDES[wc.side].files(wc.target),
            code=package("parsers"),
        output:
            [
                f"{COMPARE}/sides/{{side}}/tables/{{target}}/{table}.parquet"
                for table in TABLES
            ],
            [
                f"{COMPARE}/sides/{{side}}/tables/{{target}}/{table}.csv"
                for table in TABLES
            ],
        log:
            f"{COMPARE}/sides/{{side}}/logs/tables-{{target}}.log",
        wildcard_constraints:
            **SIDE,
        params:
            root=lambda wc: SIDES[wc.side].root,
            out=lambda wc: f"{COMPARE}/sides/{wc.side}/tables/{wc.target}",
            batches=lambda wc: [
                f"{SIDES[wc.side].root}/{wc.target}/{batch}"
                for batch in SIDES[wc.side].batches(wc.target)
            ],
        shell:
            "python -m ncuflow tables --evidence {params.root:q} --target {wildcards.target}"
            " --out {params.out:q} {params.batches:q} 2> {log:q}"

    rule compare_findings:
        input:
            tables=rules.compare_tables.output,
            environment=lambda wc: f"{SIDES[wc.side].root}/environment.json",
            code=FINDING_CODE,
        output:
            results=f"{COMPARE}/sides/{{side}}/results/{{target}}_results.json",
            measurements=f"{COMPARE}/sides/{{side}}/tables/{{target}}/measurements.parquet",
            csv=f"{COMPARE}/sides/{{side}}/tables/{{target}}/measurements.csv",
        log:
            f"{COMPARE}/sides/{{side}}/logs/findings-{{target}}.log",
        wildcard_constraints:
            **SIDE,
        params:
            tables=lambda wc: f"{COMPARE}/sides/{wc.side}/tables/{wc.target}",
            root=lambda wc: SIDES[wc.side].root,
        shell:
            "python -m ncuflow results --target {wildcards.target} --tables {params.tables:q}"
            " --evidence {params.root:q} --recording {wildcards.side:q} --out {output.results:q}"
            " --measurements {output.measurements:q} 2> {log:q}"

    rule compare_sides:
        input:
            base=lambda wc: SIDE_RESULTS[PAIRS[wc.pair][0]],
            head=lambda wc: SIDE_RESULTS[PAIRS[wc.pair][1]],
            code=COMPARE_CODE,
        output:
            f"{COMPARE}/{{pair}}/results/compare.json",
        log:
            f"{COMPARE}/{{pair}}/logs/compare.log",
        wildcard_constraints:
            **PAIR,
        params:
            base=lambda wc: f"{SIDE_FOLDER[PAIRS[wc.pair][0]]}/results",
            head=lambda wc: f"{SIDE_FOLDER[PAIRS[wc.pair][1]]}/results",
            alpha=config["compare"]["alpha"],
            threshold=config["compare"]["threshold"],
            floor=(
                f"--floor {config['compare']['floor']}"
                if config["compare"]["floor"]
                else ""
            ),
        shell:
            "python -m ncuflow compare {params.base:q} {params.head:q}"
            " --alpha {params.alpha} --threshold {params.threshold} {params.floor}"
            " --out {output:q} 2> {log:q}"

    rule compare_figures:
        input:
            comparison=rules.compare_sides.output,
            code=modules(
                "ncuflow.pages.compare_figures",
                "ncuflow.pages.compare_page",
                "ncuflow.pages.figures",
            ),
        output:
            directory(f"{COMPARE}/{{pair}}/figures"),
        log:
            f"{COMPARE}/{{pair}}/logs/figures.log",
        wildcard_constraints:
            **PAIR,
        shell:
            "python -m ncuflow compare-figures --comparison {input.comparison:q}"
            " --out-dir {output:q} 2> {log:q}"

    rule compare_page:
        input:
            comparison=rules.compare_sides.output,
            figures=rules.compare_figures.output,
            code=COMPARE_PAGE,
            template="templates/compare.md.j2",
        output:
            f"{COMPARE}/{{pair}}/reports/compare.md",
        log:
            f"{COMPARE}/{{pair}}/logs/page.log",
        wildcard_constraints:
            **PAIR,
        shell:
            "python -m ncuflow compare-page --comparison {input.comparison:q}"
            " --figures {input.figures:q} --out {output:q} 2> {log:q}"

    # One page of all sides, where there are more than two.
    rule compare_series:
        input:
            comparison=[f"{COMPARE}/{pair}/results/compare.json" for pair in PAIRS],
            figures=[f"{COMPARE}/{pair}/figures" for pair in PAIRS],
            code=COMPARE_PAGE,
            template="templates/compare.md.j2",
        output:
            f"{SERIES}/reports/series.md",
        log:
            f"{SERIES}/logs/series.log",
        shell:
            "python -m ncuflow compare-page --comparison {input.comparison:q}"
            " --figures {input.figures:q} --out {output:q} 2> {log:q}"

    rule compare:
        input:
            [f"{COMPARE}/{pair}/reports/compare.md" for pair in PAIRS],
            rules.compare_series.output if len(PAIRS) > 1 else [],
        localrule: True

    # Fails on a significant slow-down beyond the threshold; docs/ci.md shows it in a CI job.
    rule compare_gate:
        input:
            comparison=[f"{COMPARE}/{pair}/results/compare.json" for pair in PAIRS],
            code=COMPARE_CODE,
        localrule: True
        params:
            threshold=config["compare"]["gate_threshold"],
        shell:
            "status=0; for comparison in {input.comparison:q}; do python -m ncuflow gate"
            ' "$comparison" --threshold {params.threshold} || status=1; done; exit $status'
