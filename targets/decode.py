"""Batch decode attention over a paged KV cache: one query token per sequence."""

from typing import Any

from ncuflow.target import attention, attention_launches, contract, workload
from ncuflow.target.inputs import FP8, ITEMSIZE, TOLERANCE, PageTable, page_table, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, Params, Rules, Tensor, captured
from ncuflow.target.source import Build, Constant, Jit, Source, Symbol, Tunable, symbols

GROUPS = (1, 2, 3, 4, 8)  # query heads per KV head that the CUDA-core kernel is built for
_BACKENDS = (attention.FA3, attention.TRTLLM_GEN, attention.CUTE_DSL, attention.CUDNN)
# What a caller chooses, by FlashInfer's default.
_FREE = {"cores": "cuda", "backend": "auto", "split": "auto", "pdl": "auto", "launch": "eager"}
_NAMES = ("auto", "fa2", *(backend.name for backend in _BACKENDS))
_WRAPPER = Symbol("BatchDecodeWithPagedKVCacheWrapper", "decode.py")
_NAME = _WRAPPER.name
_LAUNCHED = Symbol("BatchDecodeWithPagedKVCacheDispatched", "attention/decode.cuh")
_KERNEL = Symbol("BatchDecodeWithPagedKVCacheKernel", "attention/decode.cuh")
_CHUNKS = "PartitionPagedKVCacheBinarySearchMinNumPagePerBatch"


def point_id(p: Params) -> str:
    """E.g. B32_L2048_H32_K32_D128_P16_f16_cc; _graph is added for a graph replay."""
    cores = {"cuda": "cc", "tensor": "tc"}.get(p["cores"], p["cores"])
    knobs = "" if p["backend"] == "auto" else f"_{p['backend'].replace('-', '_')}"
    knobs += "_graph" if p["launch"] == "graph" else ""
    knobs += "_nosplit" if p["split"] == "off" else ""
    knobs += "_nopdl" if p["pdl"] == "off" else ""
    knobs += "".join(attention.marks(p))
    return (
        f"B{p['batch']}_L{attention.length_label(p, 'kv_len')}_H{p['qo_heads']}_K{p['kv_heads']}"
        f"_D{p['head_dim']}_P{p['page_size']}_{p['dtype']}_{cores}{knobs}"
    )


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if why := attention.ungrouped(p):
        return why
    group = p["qo_heads"] // p["kv_heads"]
    if p["cores"] == "cuda" and group not in GROUPS:
        return f"the CUDA-core kernel has no group of {group} query heads per KV head"
    if p["backend"] != "auto" and p["cores"] == "cuda":
        return "a backend is chosen on tensor cores alone"
    if why := attention.refusal(p, gpu, _BACKENDS):
        return why
    if p["backend"] in attention.APART and p["split"] != "auto":
        return "split is a setting of fa2"
    if p["backend"] != "auto" and p["launch"] == "graph":
        return "the wrapper for CUDA graphs takes no backend"
    if p["backend"] == "fa3" and p["kv"] == FP8:
        return attention.FA3_FP8
    return attention.no_nvfp4(p) or attention.length_refusal(p)


def work(p: Params) -> contract.Work:
    """FLOPs and bytes, as FlashInfer's testing/utils.py counts them.

    FLOPs: 2*T*H*(D+D), T the KV tokens of all sequences that their windows leave. Bytes: q, o, and of
    these tokens k and v, once.
    """
    h, d, found = p["qo_heads"], p["head_dim"], attention.lengths(p, "kv_len")
    # window_left tokens before its own, and that
    tokens = sum(min(length, p["window"] + 1) if p["window"] else length for length in found)
    return contract.Work(
        flops=2 * tokens * h * 2 * d,
        bytes=2 * p["batch"] * h * d * ITEMSIZE[p["dtype"]]
        + round(2 * tokens * p["kv_heads"] * d * attention.kv_bytes(p)),
        convention="FlashInfer attention_flops with one query row; q, k, v, o once"
        + attention.counted(p, "tokens"),
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id, planned; with launch "graph", captured.

    The reference covers the whole output.
    """
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype = torch_dtype(p["dtype"])
    cached = attention.kv_dtype(p)
    q = inputs.normal(p["batch"], p["qo_heads"], p["head_dim"], dtype=dtype)
    table = page_table(inputs, p["batch"], attention.lengths(p, "kv_len"), p["page_size"])
    shape = (len(table.indices), p["page_size"], p["kv_heads"], p["head_dim"])
    k, v = (attention.cache(p, inputs, *shape) for _ in range(2))
    out = torch.empty_like(q)
    wrapper = _wrapper(p, table, q)
    settings = attention.masking(p) | asked(p)["plan"]
    words = attention.scale_factors(k, v) | asked(p)["run"]

    def plan() -> None:
        wrapper.plan(
            *table.planned,
            *attention.sizes(p),
            pos_encoding_mode="NONE",
            q_data_type=dtype,
            kv_data_type=cached,
            **settings,
        )

    asked_too: dict[str, bool] = {}
    sums: list[Tensor] = []

    def run() -> None:
        found = wrapper.run(q, (k.held, v.held), out=out, **words, **asked_too)
        if asked_too:
            sums[:] = found[1:]

    def expected() -> tuple[Tensor, ...]:
        given = (q, k.values, v.values, table, p["soft_cap"], p["window"])
        first = attention.decoded(*given)
        return (first, attention.decoded(*given, sums=True)) if asked_too else (first,)

    plan()
    put = attention.extremes(p, q, k, v, table)
    if p["launch"] == "eager" and p["backend"] in ("auto", "fa2"):
        put = attention.with_sums(asked_too, put)
    return Launch(
        run=captured(run) if p["launch"] == "graph" else run,
        output=lambda: (out, *sums) if asked_too else (out,),
        reference=expected,
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
        plan=plan,
        info=attention.plan_info(wrapper),
        extremes=put,
    )


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU.

    On tensor cores decode runs a prefill module; "auto" is fa2, on sm_90 too.
    """
    if p["cores"] == "tensor":
        backend = "fa2" if p["backend"] == "auto" else p["backend"]
        return attention.modules({**p, "backend": backend, "qk": "f32"})
    from flashinfer.jit.attention import gen_batch_decode_module

    return [gen_batch_decode_module(*attention.arguments(p))]


def takes(entry: workload.Entry) -> workload.Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case workload.Routine("BatchDecodeWithPagedKVCacheWrapper"):
            entry.only(s_qo=1)
            block, chosen = entry.attention("kv_len"), entry.backend(("fa2_tc", *workload.BACKENDS))
            if chosen == "fa2":
                return block | {"cores": "cuda"}
            return block | {"cores": "tensor", "backend": chosen.removesuffix("_tc")}
        case workload.Definition("gqa_paged_decode"):
            block = entry.heads() | {"cores": "tensor", "dtype": entry.element}
            return block | entry.pages("kv_len")
    return None


def called(a: Params) -> workload.Block:
    """The point that an engine planned, by the arguments of plan()."""
    found = workload.cached_tokens(a["indptr"], a["last_page_len"], a["page_size"])
    tensor = getattr(a["self"], "use_tensor_cores", a["self"]._use_tensor_cores)
    return workload.of_lengths(found, "kv_len") | {
        **attention.called(a, "head_dim"),
        "page_size": a["page_size"],
        "cores": "tensor" if tensor else "cuda",
    }


def _wrapper(p: Params, table: PageTable, q: Tensor) -> Any:
    import flashinfer
    import torch

    memory, settings = attention.workspace(q), asked(p)["wrapper"]
    if p["launch"] == "eager":
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", **settings)
    # the graph reads the page table from these buffers; plan() copies into them
    buffers = [torch.empty_like(t) for t in table.planned]
    return flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        memory, *buffers, "NHD", settings["use_tensor_cores"]
    )


def asked(p: Params) -> dict[str, Params]:
    """Arguments of the wrapper, of plan() and of run(): what a point chooses beside its shape. A replay of a CUDA graph has a
    wrapper of its own; of what is not asked for FlashInfer's default stands, which an older one may lack."""
    return {
        "wrapper": {"use_tensor_cores": p["cores"] == "tensor"}
        | ({} if p["backend"] == "auto" else {"backend": p["backend"]}),
        "plan": {"disable_split_kv": True} if p["split"] == "off" else {},
        "run": {"enable_pdl": False} if p["pdl"] == "off" else {},
    }


_SCHEDULER = "data/include/flashinfer/attention/scheduler.cuh"
_ESTIMATED = "BatchDecodeWithPagedKVCacheWorkEstimationDispatched"


_CUDA = "cores == 'cuda'"
_GROUPED = "kv_heads < qo_heads and backend in ('auto', 'fa2')"


def _twice(pattern: str) -> tuple[Constant, ...]:
    """The place of a constant where the kernel is launched, and where plan() asks how many of its blocks fit."""
    header = f"data/include/flashinfer/{_LAUNCHED.header}"
    return Constant(_SCHEDULER, _ESTIMATED, pattern), Constant(header, _LAUNCHED.name, pattern)


TARGET = contract.Target(
    name="decode",
    title="Decode attention",
    heading="Decode Attention Kernel",
    order=2,
    parameters={
        "batch": 32,
        "kv_len": 2048,  # KV tokens of each sequence
        "qo_heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "page_size": 16,
        "dtype": tuple(ITEMSIZE),
        "cores": ("cuda", "tensor"),
        "backend": _NAMES,  # on tensor cores: FlashInfer's choice, or where FlashInfer has another
        "lengths": attention.LENGTHS,  # even; lognormal, lognormal_narrow, zipf: as many tokens, unevenly; 1x32768_31x512: a list
        "launch": ("eager", "graph"),  # graph: replay of a CUDA graph
        "split": ("auto", "off"),  # of the KV cache over blocks: plan() chooses
        "pdl": ("auto", "off"),  # programmatic dependent launch: where the GPU has it
        "kv": attention.KV,  # fp8, nvfp4: a cache of 8 bits (e4m3), or of 4 with its scales, under queries of dtype
        "soft_cap": attention.SOFT_CAPS,  # logits_soft_cap; 0: none
        "window": attention.WINDOWS,  # window_left: tokens before its own that a query sees; 0: all
    },
    choices={"head_dim": (64, 128, 256)},
    small={"batch": 1, "kv_len": 128},
    id=point_id,
    unable=unable,
    edges=lambda p: attention.edges(p, "kv_len", kv_heads=16),
    free=lambda p: dict(_FREE),
    traits=attention.traits("kv_len"),
    asked=asked,
    # on tensor cores a prefill kernel runs; "auto" has been fa3 in some versions
    stops_tracing=lambda p: (
        attention.STOPS_TRACING.get(p["backend"]) if p["cores"] == "tensor" else False
    ),
    backends=_BACKENDS,
    memory=lambda p: work(p).bytes + attention.values_bytes(p, work) + attention.WORKSPACE_BYTES,
    work=work,
    written=lambda p: p["batch"] * p["qo_heads"] * p["head_dim"] * ITEMSIZE[p["dtype"]],
    prepare=prepare,
    part=lambda p: attention.part(p, "decode", p["batch"]),
    workload=workload.Workload(
        takes=takes,
        calls=(workload.EngineCall("flashinfer.decode", f"{_NAME}.run", called, plan="plan"),),
    ),
    rules=Rules(
        launches=attention_launches.decode_launches,
        splits=lambda p, kernel, argument: attention_launches.split(
            p, kernel, argument, p["kv_len"]
        ),
        shapes=attention_launches.decode_shapes,
        named=attention_launches.GENERATION,
        finishers=(attention.MERGE.name,),
        tells=attention.tells,
    ),
    build=Build(
        early=True,
        generate=modules,
        jit=(Jit("decode", "flashinfer.decode:get_batch_decode_module", attention.arguments),),
    ),
    source=Source(
        api={
            "python": "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper",
            "python_graph": "flashinfer.decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
            "jit": "flashinfer.jit.attention.gen_batch_decode_module",
            "binding": "csrc/batch_decode.cu",
            "scheduler": "include/flashinfer/attention/scheduler.cuh",
        },
        kernels=(_KERNEL, attention.PAGED, attention.MERGE),  # the second on tensor cores
        functions=symbols("attention/scheduler.cuh", _CHUNKS, _ESTIMATED, "DecodePlan"),
        sources=(
            "batch_decode.cu",
            "batch_decode_jit_binding.cu",
            "batch_decode_customize_config.jinja",
            "batch_decode_kernel_inst.jinja",
            # on tensor cores
            "batch_prefill.cu",
            "batch_prefill_jit_binding.cu",
            "batch_prefill_customize_config.jinja",
            "batch_prefill_paged_kernel_inst.jinja",
            "batch_prefill_ragged_kernel_inst.jinja",
        ),
        tunables=(
            Tunable(
                "chunk",  # tokens that a chunk of a split KV cache has at least
                (Constant(_SCHEDULER, _ESTIMATED, r"std::max\((\d+) / page_size, 1U\)"),),
                (64, 256, 32),
                _CUDA,
            ),
            Tunable(
                "stages",
                (
                    Constant(
                        "data/include/flashinfer/utils.cuh",
                        "",
                        r"first >= 8\) \{\s*\\\s*constexpr uint32_t NUM_STAGES_SMEM = (\d+);",
                    ),
                ),
                (3, 1, 4),
                _CUDA,
            ),
            Tunable(
                "threads", _twice(r"num_threads = std::max\((\d+)U, bdx \* bdy\)"), (256, 64), _CUDA
            ),
            Tunable(
                "tile",
                _twice(
                    r"tile_size_per_bdx = GROUP_SIZE == 1 \? \(sizeof\(DTypeKV\) == 1 \? 2U : (\d+)U\)"
                ),
                (2, 8, 1),
                where="cores == 'cuda' and qo_heads == kv_heads and kv == 'same'",
            ),
            Tunable(
                "tile_of_groups",
                _twice(
                    r"tile_size_per_bdx = GROUP_SIZE == 1 \? \(sizeof\(DTypeKV\) == 1 \? 2U : \d+U\) : (\d+)U"
                ),
                (2, 4),
                where="cores == 'cuda' and qo_heads > kv_heads",
            ),
        ),
        meanings={
            "num_stages_smem": "K/V tiles in flight in shared memory",
            "tile_size_per_bdx": "KV tokens of a tile for each row of bdx threads",
            "BatchDecodeWithPagedKVCacheKernel.bdy": "rows of threads: a query head of the group each",
            "bdz": "groups of rows that share the KV tokens of a tile",
        },
        computed={
            "threads": (
                "threads per block: bdx × bdy × bdz",
                lambda n: n["bdx"] * n["bdy"] * n["bdz"],
            ),
            "tile": (
                "KV tokens per stage: tile_size_per_bdx × bdy × bdz",
                lambda n: n["tile_size_per_bdx"] * n["bdy"] * n["bdz"],
            ),
            # The tile size only marks the kernel family.
            "head dimension": (
                "bdx × vec_size",
                lambda n: n["bdx"] * n["vec_size"] if n["tile_size_per_bdx"] else 0,
            ),
        },
        apart={"BatchDecodeWithPagedKVCacheKernel": "bdy"},
    ),
    compared=(
        # a backend is one of tensor cores; both split a single sequence, of many the CUDA cores' plan() alone does
        *(
            contract.Choice(
                key,
                f"CUDA cores or tensor cores, {what}",
                "cores",
                "cuda",
                "tensor",
                where,
                ignoring,
            )
            for key, what, where, ignoring in (
                ("cores", "one query head per KV head", "kv_heads == qo_heads", ()),
                ("cores_grouped", "GQA", f"{_GROUPED} and batch > 1", ("backend",)),
                ("cores_single", "GQA, one sequence", f"{_GROUPED} and batch == 1", ("backend",)),
            )
        ),
        contract.Choice("decode_backend", "fa2 or fa3 on tensor cores", "backend", "fa2", "fa3"),
        contract.Choice(
            "decode_trtllm",
            "FlashInfer's choice or trtllm-gen on tensor cores",
            "backend",
            "auto",
            "trtllm-gen",
        ),
        *contract.uneven("decode"),
        contract.Choice("decode_page", "Page size 16 or 1", "page_size", 16, 1),
        contract.Choice("decode_kv", "KV cache of 16 bits or of 8 (fp8)", "kv", "same", FP8),
        attention.soft_cap("decode_cap"),
        attention.window("decode_window"),
        # CUDA-core decode ignores the flag.
        contract.Choice(
            "decode_split",
            "KV cache split over blocks or not, on tensor cores",
            "split",
            "auto",
            "off",
            where="cores == 'tensor'",
        ),
        contract.dependent_launch("decode_pdl"),
        contract.Choice(
            "launch",
            "Eager or CUDA graph",
            "launch",
            "eager",
            "graph",
            metrics=("host_launch_us", "time_hot_us", "time_cold_us"),
        ),
    ),
)
