# Live evidence: preflight, plan, check and time, trace, profile. Nothing here runs on recorded evidence.
CAPTURES = f"{OUT}/captures"
BLOCKS = config["sweeps"].get(config["sweep"], {})
# FlashInfer builds into a folder of this run, with line tables: those cost nothing at run time, and a
# module built with other flags in the user's own cache would have none.
JIT_ENV = f"FLASHINFER_WORKSPACE_BASE=$PWD/{OUT}/jit-cache FLASHINFER_JIT_LINEINFO=1"
RUNNER = modules(
    *(
        f"targets.{name}"
        for name in ("run", "launch", "timing", "gpu", "reference", "check", "faults", "pages")
    )
)
PROFILER = modules("capture.points", "capture.process", "capture.gpulock", "capture.progress")


def blocks_of(wildcards):
    """The blocks of a batch's sweep as JSON: what the plan of that batch depends on."""
    import json

    source = config["deep"] if wildcards.batch == "deep" else BLOCKS
    return json.dumps(source.get(wildcards.target, []))


if LIVE:

    rule preflight:
        output:
            f"{CAPTURES}/environment.json",
        log:
            f"{OUT}/logs/preflight.log",
        params:
            clocks=config["ncu"]["clock_control"],
        resources:
            gpu=1,
        shell:
            "{JIT_ENV} {PYTHON} -m capture.environment --clock-policy {params.clocks}"
            " --out {output} 2> {log}"

    rule ceilings:
        input:
            code=modules("targets.ceilings"),
        output:
            f"{CAPTURES}/ceilings.json",
        log:
            f"{OUT}/logs/ceilings.log",
        resources:
            gpu=1,
        shell:
            "{PYTHON} -m capture.gpulock -- {PYTHON} -m targets.run ceilings --out {output} 2> {log}"

    rule source_index:
        input:
            code=modules("capture.sourceindex"),
        output:
            f"{CAPTURES}/source_index.json",
        log:
            f"{OUT}/logs/source_index.log",
        shell:
            "{PYTHON} -m capture.sourceindex --out {output} 2> {log}"

    rule plan:
        input:
            code=modules("capture.plan", "targets.sweep"),
            target="targets/{target}.py",
        output:
            CAPTURES + "/{target}/{batch}/points.json",
        log:
            OUT + "/logs/plan-{target}-{batch}.log",
        params:
            blocks=blocks_of,
            size=config["batch_size"],
        shell:
            "{PYTHON} -m capture.plan {wildcards.target} {wildcards.batch} --blocks {params.blocks:q}"
            " --size {params.size} --out {output} 2> {log}"

    # Compile what the points need before a GPU is held; modules of one target side by side.
    rule build:
        input:
            points=CAPTURES + "/{target}/{batch}/points.json",
        output:
            CAPTURES + "/{target}/{batch}/build.json",
        log:
            OUT + "/logs/build-{target}-{batch}.log",
        shell:
            "{JIT_ENV} {PYTHON} -m targets.run {wildcards.target} --mode build"
            " --points {input.points} --out {output} 2> {log}"

    # Status 3: some points are wrong or failed, and named. Status 4: the GPU was lost in mid-sweep; the batch
    # is tried once more, and then stands as far as it came.
    rule time:
        input:
            points=CAPTURES + "/{target}/{batch}/points.json",
            build=CAPTURES + "/{target}/{batch}/build.json",
            code=RUNNER,
        output:
            CAPTURES + "/{target}/{batch}/timing.jsonl",
        log:
            OUT + "/logs/time-{target}-{batch}.log",
        params:
            repeats=config["timing"]["repeats"],
            exclusive="--exclusive-host" if config["timing"]["exclusive_host"] else "",
        retries: 1
        resources:
            gpu=1,
            attempt=lambda wc, attempt: attempt,
        shell:
            "{JIT_ENV} {PYTHON} -m capture.gpulock {params.exclusive} --"
            " {PYTHON} -m targets.run {wildcards.target} --mode time --repeats {params.repeats}"
            " --points {input.points} --out {output} 2> {log}"
            " || {{ rc=$?; [ $rc -eq 3 ] || [ $rc -eq 4 -a {resources.attempt} -gt 1 ]; }}"

    # Further runs of the same points, each in a process of its own: how far a figure moves between runs.
    use rule time as time_again with:
        output:
            CAPTURES + "/{target}/{batch}/timing.{run}.jsonl",
        log:
            OUT + "/logs/time-{target}-{batch}-{run}.log",

    rule trace:
        input:
            points=CAPTURES + "/{target}/{batch}/points.json",
            timing=CAPTURES + "/{target}/{batch}/timing.jsonl",
            code=PROFILER + modules("capture.nsys", "capture.tracescrub"),
        output:
            CAPTURES + "/{target}/{batch}/trace.sqlite",
            CAPTURES + "/{target}/{batch}/trace.json",
        log:
            OUT + "/logs/trace-{target}-{batch}.log",
        params:
            out=CAPTURES + "/{target}/{batch}",
            repeats=config["nsys"]["repeats"],
            timeout=config["nsys"]["timeout_s"],
        retries: 1
        resources:
            gpu=1,
        shell:
            "{JIT_ENV} {PYTHON} -m capture.nsys {wildcards.target} --points {input.points}"
            " --timing {input.timing} --out {params.out} --name trace --repeats {params.repeats}"
            " --flush --timeout {params.timeout} 2> {log} || [ $? -eq 3 ]"

    rule profile:
        input:
            points=CAPTURES + "/{target}/{batch}/points.json",
            timing=CAPTURES + "/{target}/{batch}/timing.jsonl",
            code=PROFILER + modules("capture.ncu"),
        output:
            CAPTURES + "/{target}/{batch}/sweep.ncu-rep",
            CAPTURES + "/{target}/{batch}/sweep.json",
        log:
            OUT + "/logs/profile-{target}-{batch}.log",
        params:
            out=CAPTURES + "/{target}/{batch}",
            sections=",".join(config["ncu"]["sections"]),
            clocks=config["ncu"]["clock_control"],
            timeout=config["ncu"]["timeout_s"],
        retries: 1
        resources:
            gpu=1,
        shell:
            "{JIT_ENV} {PYTHON} -m capture.ncu {wildcards.target} --points {input.points}"
            " --timing {input.timing} --out {params.out} --name sweep --sections {params.sections}"
            " --clock-control {params.clocks} --timeout {params.timeout} 2> {log} || [ $? -eq 3 ]"

    rule profile_deep:
        input:
            points=CAPTURES + "/{target}/deep/points.json",
            build=CAPTURES + "/{target}/deep/build.json",
            code=PROFILER + modules("capture.ncu"),
        output:
            CAPTURES + "/{target}/deep/deep.ncu-rep",
            CAPTURES + "/{target}/deep/deep.json",
        log:
            OUT + "/logs/profile-{target}-deep.log",
        params:
            out=CAPTURES + "/{target}/deep",
            clocks=config["ncu"]["clock_control"],
            timeout=config["ncu"]["timeout_s"],
            source="--import-source" if config["ncu"]["import_source"] else "",
        retries: 1
        resources:
            gpu=1,
        shell:
            "{JIT_ENV} {PYTHON} -m capture.ncu {wildcards.target} --points {input.points}"
            " --out {params.out} --name deep --deep {params.source} --clock-control {params.clocks}"
            " --timeout {params.timeout} 2> {log} || [ $? -eq 3 ]"

    rule jit_measure:
        input:
            code=modules("capture.jit"),
        output:
            f"{CAPTURES}/jit/jit_analysis.json",
        log:
            f"{OUT}/logs/jit.log",
        resources:
            gpu=1,
        shell:
            "{PYTHON} -m capture.jit --out {output} 2> {log}"

    # What a live run compiles, ahead of it: snakemake -j4 build_all
    rule build_all:
        input:
            [
                f"{CAPTURES}/{name}/{batch}/build.json"
                for name in KERNEL_TARGETS
                for batch in EVIDENCE.batches(name)
            ],
        localrule: True
