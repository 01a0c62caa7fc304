# Captures -> tables: one job a target reads all its reports into Parquet and CSV.
TABLES = [
    "kernels",
    "metrics",
    "stalls",
    "rules",
    "lines",
    "timeline",
    "ranges",
    "timing",
    "lost",
]


rule tables:
    input:
        evidence=lambda wc: EVIDENCE.files(wc.target),
        code=package("parsers"),
    output:
        expand(f"{OUT}/tables/{{{{target}}}}/{{table}}.parquet", table=TABLES),
        expand(f"{OUT}/tables/{{{{target}}}}/{{table}}.csv", table=TABLES),
    log:
        f"{OUT}/logs/tables-{{target}}.log",
    params:
        root=EVIDENCE.root,
        out=lambda wc: f"{OUT}/tables/{wc.target}",
        batches=lambda wc: [
            f"{EVIDENCE.root}/{wc.target}/{b}" for b in EVIDENCE.batches(wc.target)
        ],
    shell:
        "python -m ncuflow tables --evidence {params.root:q} --target {wildcards.target}"
        " --out {params.out:q} {params.batches:q} 2> {log:q}"
