from ncuflow.run.profiler import installed

# Live evidence: preflight, plan, build, check and time, trace, profile. Recorded evidence needs none of it; the
# preflight says what this machine could do all the same.
CAPTURES = f"{OUT}/captures"
# FlashInfer builds into one folder per user and machine, so that a module is compiled once. The flags are those of
# the user's own cache and line tables (-lineinfo), which cost nothing at run time; a module there has none.
_jit_cache = SETTINGS.build.folder or "${XDG_CACHE_HOME:-$HOME/.cache}/ncuflow"
JIT_ENV = f'FLASHINFER_WORKSPACE_BASE="{_jit_cache}" FLASHINFER_JIT_LINEINFO=1'

# The lanes of a GPU: what has it to itself from its start on takes all of them. Where --resources gives each job a GPU of
# its own there are none.
_known = workflow.global_resources
_lanes = _known["lane"] if "lane" in _known else 0
LANES = getattr(_lanes, "value", _lanes)  # a plain number before Snakemake 9.17


# One process, which loads what it measures with while it waits for the tools.
rule preflight:
    input:
        code=jobs.inputs("preflight"),
    output:
        environment=f"{CAPTURES}/environment.json",
        ceilings=f"{CAPTURES}/ceilings.json",
    log:
        f"{OUT}/logs/preflight.log",
    priority: 6
    resources:
        gpu=1,
        lane=LANES,
    params:
        jit_env=JIT_ENV,
        clocks=SETTINGS.ncu.clock_control,
        counters="" if SETTINGS.ncu.enabled else "--no-counters",
        # Its version does not tell that a tool works here.
        probe=" ".join(["", *sorted(RUNNING.tools - {"events"})]).replace(
            " ", " --probe "
        ),
        installed=lambda wildcards: installed(),  # it looks again where another tool or package is here
    shell:
        "{params.jit_env} python -m ncuflow preflight --clock-policy {params.clocks} {params.counters}"
        " {params.probe} --out {output.environment:q} --ceilings {output.ceilings:q} > {log:q} 2>&1"


if LIVE:
    from ncuflow.parsers import chips, registry

    # What a profiler reads of the preflight, which comes first. As an input it would have all captured again with it.
    PREFLIGHT = of_run(f"{CAPTURES}/environment.json")

    # A sweep asks for these counters, so another list captures again; another label or meaning in the catalogues does not.
    REGISTRY = ["ncuflow.parsers.registry"]
    COUNTERS = [registry.counters(chip) for chip in chips.CHIPS]

    rule source_index:
        input:
            code=jobs.inputs("source-index"),
        output:
            f"{CAPTURES}/source_index.json",
        log:
            f"{OUT}/logs/source_index.log",
        shell:
            "python -m ncuflow source-index --out {output:q} 2> {log:q}"

    rule plan:
        input:
            code=code("plan"),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/points.json",
        log:
            f"{OUT}/logs/plan-{{target}}-{{batch}}.log",
        priority: 5
        params:
            points=plan_of("plans"),
        shell:
            "python -m ncuflow plan --points {params.points:q} --out {output:q} 2> {log:q}"

    # What the process that times a batch times in turns as well: a list of no points where nothing is to be.
    rule plan_pairs:
        input:
            code=code("plan"),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/pairs.json",
        log:
            f"{OUT}/logs/plan-{{target}}-{{batch}}-pairs.log",
        priority: 5
        params:
            pairs=plan_of("pairs"),
        shell:
            "python -m ncuflow plan --pairs {params.pairs:q} --out {output:q} 2> {log:q}"

    # Compile what all points need before a GPU is held: one ninja graph, on all cores whatever -j says, which whatever is
    # profiled meanwhile comes before (`nice`). Status 3: some modules do not compile; the points that need them fail on
    # their own, and are named. What is captured takes it as `ancient`: a further module is no reason to measure again what
    # needs others. Snakemake (9.27) asks nothing else of a job below one that runs, so an edit of code must not run this
    # one: what it builds is FlashInfer's code, not ours. Nothing is timed beside compilers.
    rule build:
        input:
            points=built_of(KERNEL_TARGETS),
            code=ancient(jobs.inputs("build")),
        output:
            f"{CAPTURES}/build.json",
        log:
            f"{OUT}/logs/build.log",
        priority: 4
        params:
            jit_env=JIT_ENV,
            jobs=f"--jobs {SETTINGS.build.jobs}" * bool(SETTINGS.build.jobs),
        shell:
            "{params.jit_env} nice -n 10 python -m ncuflow build --points {input.points:q} {params.jobs}"
            " --out {output:q} 2> {log:q} || [ $? -eq 3 ]"

    # Those that are timed start together, and measure one after the other; neither where one has all GPUs to itself, nor
    # where each has a GPU of its own.
    EXCLUSIVE = "--exclusive-host" * SETTINGS.timing.exclusive_host
    # A process that times pairs times their points with them, unless further processes visit those alone.
    VISITS = "--visit-all" * (SETTINGS.timing.runs > 1)
    TOGETHER = LANES and not EXCLUSIVE

    # The points of a batch, and in the same process the pairs of which it has the base: what drifts falls on both sides of
    # a pair alike. Status 3: some points are wrong or failed, and named; what breaks its process's CUDA context is one of them. Status 4:
    # the GPU was lost in mid-sweep, for every process; the batch is tried once more, and then stands as far as it came.
    rule time:
        input:
            points=f"{CAPTURES}/{{target}}/{{batch}}/points.json",
            pairs=f"{CAPTURES}/{{target}}/{{batch}}/pairs.json",
            build=ancient(f"{CAPTURES}/build.json"),
            code=code("lock", "launch"),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/timing.jsonl",
            pairs=f"{CAPTURES}/{{target}}/{{batch}}/pairs.jsonl",
        log:
            f"{OUT}/logs/time-{{target}}-{{batch}}.log",
        priority: 3
        retries: 1
        resources:
            gpu=1,
            lane=lambda wc: 1 if TOGETHER and not gpus_of(wc) else LANES,
            slot=lambda wc: "--slot" if TOGETHER and not gpus_of(wc) else "",
            attempt=lambda wc, attempt: attempt,
        params:
            jit_env=JIT_ENV,
            repeats=SETTINGS.timing.repeats,
            rounds=SETTINGS.timing.rounds,
            order=lambda wc: wc.get("run", 0),
            in_turns=lambda wc, input, output: in_turns(input.pairs, output.pairs),
            visits=VISITS,
            exclusive=lambda wc: gpus_of(wc) or EXCLUSIVE,
        shell:
            "{params.jit_env} python -m ncuflow lock {params.exclusive} {resources.slot} --"
            " python -m ncuflow launch {wildcards.target} --mode time --repeats {params.repeats}"
            " --rounds {params.rounds} --order {params.order} --points {input.points:q} --out {output[0]:q}"
            " {params.in_turns} {params.visits} 2> {log:q}"
            " || or_give_up $? {resources.attempt} time {wildcards.target} --points {input.points:q}"
            " --out {output[0]:q} {params.in_turns} --log {log:q} 2>> {log:q}"

    # Further runs of the same points, each in a process and an order of its own: how far a figure moves between runs.
    use rule time as time_again with:
        input:
            points=f"{CAPTURES}/{{target}}/{{batch}}/points.json",
            build=ancient(f"{CAPTURES}/build.json"),
            code=code("lock", "launch"),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/timing.{{run}}.jsonl",
        log:
            f"{OUT}/logs/time-{{target}}-{{batch}}-{{run}}.log",
        params:
            in_turns="",
            visits="",

    # Of a target that is profiled beside the build it has its libraries by the time when nobody compiles any more, and as a rule
    # comes before what is timed, which compares its points: of one that is not right there, the tables take nothing.
    rule trace:
        input:
            points=f"{CAPTURES}/{{target}}/{{batch}}/points.json",
            timing=timed_before,
            code=code("nsys", given=REGISTRY),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/trace.sqlite",
            f"{CAPTURES}/{{target}}/{{batch}}/trace.json",
        log:
            f"{OUT}/logs/trace-{{target}}-{{batch}}.log",
        priority: 1
        retries: 1
        resources:
            gpu=1,
            lane=1,
            attempt=lambda wc, attempt: attempt,
        params:
            jit_env=JIT_ENV,
            preflight=PREFLIGHT,
            timing=lambda wc, input: after_timing(input.timing) or "--unchecked",
            out=f"{CAPTURES}/{{target}}/{{batch}}",
            repeats=SETTINGS.nsys.repeats,
            timeout=SETTINGS.nsys.timeout_s,
        shell:
            "{params.jit_env} python -m ncuflow nsys {wildcards.target} --points {input.points:q}"
            " {params.timing} --out {params.out:q} --name trace --repeats {params.repeats}"
            " --preflight {params.preflight:q} --flush --timeout {params.timeout} 2> {log:q}"
            " || or_give_up $? {resources.attempt} nsys {wildcards.target} --points {input.points:q}"
            " --out {output[0]:q} --log {log:q} 2>> {log:q}"

    rule profile:
        input:
            points=f"{CAPTURES}/{{target}}/{{batch}}/points.json",
            timing=timed_before,
            build=built_for,
            code=code("ncu", given=REGISTRY),
        output:
            f"{CAPTURES}/{{target}}/{{batch}}/sweep.ncu-rep",
            f"{CAPTURES}/{{target}}/{{batch}}/sweep.json",
        log:
            f"{OUT}/logs/profile-{{target}}-{{batch}}.log",
        priority: 2
        retries: 1
        resources:
            gpu=1,
            lane=1,
            attempt=lambda wc, attempt: attempt,
        params:
            jit_env=JIT_ENV,
            preflight=PREFLIGHT,
            timing=lambda wc, input: after_timing(input.timing),
            out=f"{CAPTURES}/{{target}}/{{batch}}",
            sections=",".join(SETTINGS.ncu.sections),
            counters=COUNTERS,  # of which --registry stands for those that the target can have
            clocks=SETTINGS.ncu.clock_control,
            timeout=SETTINGS.ncu.timeout_s,
        shell:
            "{params.jit_env} python -m ncuflow ncu {wildcards.target} --points {input.points:q}"
            " {params.timing} --out {params.out:q} --name sweep --registry --sections {params.sections}"
            " --preflight {params.preflight:q} --clock-control {params.clocks}"
            " --timeout {params.timeout} 2> {log:q}"
            " || or_give_up $? {resources.attempt} ncu {wildcards.target} --points {input.points:q}"
            " --out {output[0]:q} --log {log:q} 2>> {log:q}"

    rule profile_deep:
        input:
            points=f"{CAPTURES}/{{target}}/deep/points.json",
            build=built_for,
            code=code("ncu", given=REGISTRY),
        output:
            f"{CAPTURES}/{{target}}/deep/deep.ncu-rep",
            f"{CAPTURES}/{{target}}/deep/deep.json",
        log:
            f"{OUT}/logs/profile-{{target}}-deep.log",
        priority: 2
        retries: 1
        resources:
            gpu=1,
            lane=1,
            attempt=lambda wc, attempt: attempt,
        params:
            jit_env=JIT_ENV,
            preflight=PREFLIGHT,
            out=f"{CAPTURES}/{{target}}/deep",
            sections=",".join([*SETTINGS.ncu.sections, *SETTINGS.ncu.deep_sections]),
            counters=COUNTERS,
            clocks=SETTINGS.ncu.clock_control,
            timeout=SETTINGS.ncu.timeout_s,
            source="--import-source" if SETTINGS.ncu.import_source else "",
        shell:
            "{params.jit_env} python -m ncuflow ncu {wildcards.target} --points {input.points:q}"
            " --out {params.out:q} --name deep --registry --sections {params.sections} --rules {params.source}"
            " --preflight {params.preflight:q} --clock-control {params.clocks}"
            " --timeout {params.timeout} 2> {log:q}"
            " || or_give_up $? {resources.attempt} ncu {wildcards.target} --points {input.points:q}"
            " --out {output[0]:q} --log {log:q} 2>> {log:q}"

    # Compilation is what is asked for, so modules that came prebuilt are passed over. Status 3: some modules
    # failed, and are named. No code among the inputs: `all` shows what was measured, and must not measure it again.
    rule jit_measure:
        output:
            f"{CAPTURES}/jit/jit_analysis.json",
        log:
            f"{OUT}/logs/jit.log",
        resources:
            gpu=1,
            lane=LANES,
        params:
            modules=",".join(SETTINGS.jit),
        shell:
            "python -m ncuflow jit --ignore-aot --modules {params.modules} --out {output:q} 2> {log:q}"
            " || [ $? -eq 3 ]"

    # What a live run compiles, ahead of it.
    rule build_all:
        input:
            of_run(rules.build.output),
        localrule: True

    # Everything that was captured here, kept as a recording and verified: its GPU and FlashInfer and the sweep say where.
    rule contribute:
        input:
            of_run([*rules.preflight.output, *rules.source_index.output]),
            [path for name in KERNEL_TARGETS for path in RUNNING.files(name)],
        log:
            of_run(f"{OUT}/logs/contribute.log"),
        localrule: True
        params:
            captures=of_run(CAPTURES),
            sweep=SETTINGS.sweep,
        shell:
            "python -m ncuflow record {params.captures:q} --sweep {params.sweep:q} 2>&1 | tee {log:q}"

else:

    rule contribute:
        log:
            of_run(f"{OUT}/logs/contribute.log"),
        localrule: True
        params:
            says="error: contribute needs --config source=live",
        shell:
            "echo {params.says:q} | tee {log:q} >&2; exit 1"

    rule build_all:
        log:
            of_run(f"{OUT}/logs/build_all.log"),
        localrule: True
        params:
            says="error: build_all needs --config source=live",
        shell:
            "echo {params.says:q} | tee {log:q} >&2; exit 1"
