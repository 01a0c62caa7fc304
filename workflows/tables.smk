# Captures -> tables: one job a target reads all its reports into Parquet and CSV.
from ncuflow.model import TABLES


rule tables:
    input:
        evidence=lambda wc: EVIDENCE[wc.evidence].files(wc.target),
        code=code("tables"),
    output:
        expand(
            f"{OUT}/tables/{{target}}/{{table}}.{{form}}",
            table=list(TABLES),
            form=["parquet", "csv"],
            allow_missing=True,
        ),
    log:
        f"{OUT}/logs/tables-{{target}}.log",
    params:
        root=root,
        out=made_in("tables/{target}"),
        batches=lambda wc: [
            f"{root(wc)}/{wc.target}/{batch}"
            for batch in EVIDENCE[wc.evidence].batches(wc.target)
        ],
    run:
        jobs.run(
            log[0],
            "tables",
            params.batches,
            evidence=params.root,
            target=wildcards.target,
            out=params.out,
        )
