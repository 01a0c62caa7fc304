"""Any FlashInfer API that carries a trace template: its own inputs, its own reference.

A template (``flashinfer.trace``) makes the inputs of a decorated function and knows a reference for it. An
API that runs here becomes points as any kernel does; one that does not says why. Bytes are those of the
tensors that go in and come out, once; nobody says how many FLOPs they should cost.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from ncuflow.target.attention import resolved
from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import (
    GpuFacts,
    Inputs,
    Launch,
    NotHereError,
    Params,
    Tensor,
    Written,
    capability,
)
from ncuflow.target.reference import Compared, cloned, defaults, limited, tensors
from ncuflow.target.source import Build, Source
from ncuflow.target.workload import Block, Definition, Entry, Workload
from ncuflow.targets.api_cases import CASES

DEVICE = "cuda"
NAMES = "NCUFLOW_APIS"  # the environment variable with the names of all, as importing FlashInfer takes seconds
CONVENTION = "ncuflow: the tensors of the template once; FLOPs unknown"
BUILD_S = 120  # that the modules of an API may take
AXES: dict[str, tuple[str, ...]] = {
    "tokens": (
        "num_tokens",
        "nnz",
        "nnz_kv",
        "M",
        "seq_len",
        "num_rows",
        "total_q",
        "total_seq_len",
    )
}
AXES |= {"batch": ("batch_size", "B")}
_COUNTS = ("seq_len", "M", "nnz", "num_tokens")  # the axes of a traced call that are tokens
# Sizes of axes that the template leaves open and that are neither tokens nor sequences.
SIZES = {"kv_len": 4096, "num_states": 4, "qo_len": 256, "max_seq_len": 1024, "num_heads": 8}
SIZES |= {"K_doubled": 4096, "num_pages": 512, "num_qo_tokens": 1}
# Where an axis has a limit, or a default so small that only the launch would be measured.
SPECIAL: dict[str, dict[str, Any]] = {
    "bmm_fp8": {"batch_size": 16, "M": 512, "N": 512, "K": 512},
    "bmm_bf16": {"batch_size": 16, "M": 512, "N": 512, "K": 512},
    "gqa_paged_decode": {"num_pages_per_seq": 128},
    "gqa_paged_prefill": {"total_q": 256},
    "gqa_ragged": {"total_q": 256},
    "mla_paged_decode": {"num_pages_per_seq": 16},
    "mm_M1_16_K7168_N256": {"M": 16},
    "top_k_page_table_transform": {
        "num_rows": 64,
        "batch_size": 64,  # a row of the page table for each row, or the call reads beyond it
        "max_len": 4096,
        "max_pages_per_seq": 4096,
        "k": 256,
    },
    "top_k_ragged_transform": {"num_rows": 64, "max_len": 4096, "k": 256},
}
# Axes with a default that the inputs index by the sequence: a slot for each, or the call writes beyond them.
POOLS = {"gdn_mtp": "pool_size", "gdn_fused_decode": "num_pages"}
# Settings without which the call would need another library or a module that takes minutes to build, or would not be what
# the template's reference computes.
SETTINGS: dict[str, dict[str, Any]] = {
    "gdn_decode": {"use_qk_l2norm": False},
    "gemm_bf16": {"backend": "cublaslt"},
    "gqa_paged_prefill": {"backend": "fa2"},
    "gqa_ragged": {"backend": "fa2"},
    "single_prefill": {"backend": "fa2"},
}
# What the functions of a module of FlashInfer are built from, to be compiled ahead, and single APIs with the arguments
# that their inputs lead to; the others are built at their first call.
GENERATORS: dict[str, tuple[Any, ...]] = {
    name: (f"{name}.gen_{name}_module",) for name in ("cascade", "page", "sampling", "topk", "rope")
}
GENERATORS |= {
    f"{name}_and_mul": ("activation.gen_act_and_mul_module", name)
    for name in ("silu", "gelu", "gelu_tanh")
}
_BF16 = ("bfloat16", "bfloat16", "bfloat16")
GENERATORS |= {
    "bmm_fp8": ("gemm.gen_gemm_module",),
    "concat_mla_k": ("dsv3_optimizations.gen_concat_mla_module",),
    "fused_topk_deepseek": ("dsv3_optimizations.gen_dsv3_fused_routing_module",),
    "gqa_paged_decode": (
        "attention.gen_batch_decode_module", *_BF16, "int32", 128, 128, 0, False, False
    ),
    "layernorm_quant": ("norm.gen_norm_module",),
    "mla_paged_decode": (
        "attention.gen_batch_mla_module", "auto", *_BF16, "int32", 512, 64, False
    ),
    "selective_state_update": (
        "mamba.selective_state_update.gen_selective_state_update_sm90_module",
        "bfloat16", "bfloat16", "float32", "float32", "int32", None, 64, 128, 1, "int32", "int64",
    ),
    "single_decode": ("attention.gen_single_decode_module", *_BF16, 128, 128, 0, False, False),
    "tinygemm_bf16": ("tinygemm2.gen_tinygemm2_module",),
    "top_k_varlen": ("topk.gen_topk_module",),
}  # fmt: skip
# FlashInfer has these for compute capability 10 alone, and no is_compute_capability_supported for them: the body of what
# quantises to blocks is empty below, and leaves its output as it was, without an error (seen on an H200).
BLACKWELL = (
    "rmsnorm_sigmoid_gate",
    "gated_residual_",
    "fp4_quantize",
    "nvfp4_quantize",
    "mxfp4_quantize",
    "mxfp8_quantize",
)
# Modules of FlashInfer that an import of the rest does not need.
APART = (
    "comm",
    "testing",
    "trace",
    "cli",
    "artifacts",
    "data",
    "aot",
    "tllm_",
    "collect_env",
)
PRECISION = {
    "float32": 1e-3,
    "float16": 5e-3,
    "bfloat16": 2e-2,
    "float8_e4m3fn": 8e-2,
    "float8_e5m2": 1e-1,
}


@dataclass
class Template:
    """A function of FlashInfer and its trace template, None of one that has a case of its own (``ncuflow.targets.api_cases``)."""

    api: str
    function: Callable[..., Any]
    trace: Any

    @property
    def called(self) -> str:
        """E.g. flashinfer.norm.rmsnorm."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def absent(self) -> str | None:
        """What the template lacks to be measured; None if it has all."""
        if self.api in CASES:
            return None
        if (
            self.api.startswith(("moe_", "trtllm_", "cute_dsl_fused_moe", "mono_moe"))
            and "moe" in self.api
        ):
            return "fused MoE: its modules take CPU hours to build"
        missing = [part for part in ("init", "reference") if getattr(self.trace, part) is None]
        return f"its template has no {' and no '.join(missing)}" if missing else None

    def unable(self, gpu: GpuFacts | None) -> str | None:
        """Why FlashInfer itself would not run it on this GPU; None if it would, or does not say."""
        owner: Any = importlib.import_module(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            owner = getattr(owner, part, None)
        asked = getattr(owner, "is_compute_capability_supported", None)
        if gpu is None:
            return None
        major, minor = capability(gpu)
        if self.api.startswith(BLACKWELL) and major < 10:
            return f"FlashInfer has it for other GPUs than {major}.{minor}"
        if asked is None:
            return None
        try:
            supported = asked(10 * major + minor)
        except ValueError:  # it declares the capability of some backends alone
            return None
        return None if supported else f"FlashInfer has it for other GPUs than {major}.{minor}"


@cache
def templates() -> dict[str, Template]:
    """Every API with a trace template, by name. Needs FlashInfer, and no GPU."""
    import flashinfer
    from flashinfer.api_logging import _TRACE_REGISTRY

    for info in pkgutil.iter_modules(flashinfer.__path__):
        if not info.name.startswith((*APART, "__")):
            try:
                importlib.import_module(f"flashinfer.{info.name}")
            except Exception:  # a library that it lacks is no concern of the others
                continue
    found: dict[str, Template] = {}
    for function, trace, label in _TRACE_REGISTRY:
        name = label if label not in found else f"{label}__{function.__name__}"
        found.setdefault(name, Template(name, function, trace))
    for name, case in CASES.items():
        with suppress(ImportError, AttributeError):  # another version of FlashInfer
            found[name] = Template(name, case.function, None)
    return found


def every() -> tuple[str, ...]:
    """The names of all, found once for this process and those that it starts; without FlashInfer those that have a case."""
    if NAMES not in os.environ:
        try:
            os.environ[NAMES] = ",".join(sorted(templates()))
        except ImportError:
            return tuple(sorted(CASES))
    return tuple(os.environ[NAMES].split(","))


def point_id(p: Params) -> str:
    """E.g. silu_and_mul_T1024_B64."""
    return f"{p['api']}_T{p['tokens']}_B{p['batch']}"


def stops_tracing(p: Params) -> bool | None:
    """As of other targets: cuBLAS does, and the CuTe DSL, which norms take where it is installed."""
    if p["api"].startswith(("bmm_", "gemm_", "mm_")):
        return True
    return None if "norm" in p["api"] or p["api"].startswith("gdn_") else False


def work(p: Params) -> Work:
    """Unknown, not zero, before the template has made its tensors; FLOPs stay so."""
    return Work(None, None, CONVENTION)  # type: ignore[arg-type]


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs that the template makes, and one run; raises NotHereError, in a line, where that is not possible."""
    import torch

    template = templates().get(p["api"])
    if template is None:
        raise NotHereError("this FlashInfer has no template of that name")
    major, minor = torch.cuda.get_device_capability() if DEVICE == "cuda" else (9, 0)
    here = {"compute_capability": f"{major}.{minor}"}
    if reason := template.absent() or template.unable(here):
        raise NotHereError(reason)
    if template.api in CASES:
        return _of_case(template, p, seed)
    torch.manual_seed(seed)
    made = template.trace.init(device=DEVICE, **sizes(template.trace, p))
    made = LAYOUTS.get(p["api"], dict)(made)
    planned = "run" in made and set(made) <= {"plan", "run"}
    arguments = dict(made["run"] if planned else made)
    arguments |= _dtypes(arguments)
    before = cloned({**made.get("plan", {}), **arguments} if planned else arguments)
    call, plan = _callable(template, made.get("plan") if planned else None)
    settings = SETTINGS.get(p["api"], {}) if plan is None else {}
    arguments |= settings
    last: dict[str, Any] = {}

    def run() -> None:
        last["out"] = call(**arguments)

    with limited(BUILD_S, "its modules are not built"):
        if plan is not None:
            plan()
        run()
        torch.cuda.synchronize()
    kept = [
        (now, then)
        for now, then in _pairs(arguments, before)
        if not torch.equal(_bits(now), _bits(then))
    ]

    def reset() -> None:
        for now, then in kept:
            now.copy_(then)

    # a mask of minus infinity cannot be told from an output that was not written
    whole = all(bool(torch.isfinite(t.float()).all()) for t in tensors(last["out"]))
    known = defaults(template.function) | before
    compared = Compared(template.trace, known, arguments, last, CHOSEN.get(template.api))
    outputs = compared.actual()
    return Launch(
        run=run,
        output=compared.output,
        reference=compared.reference,
        tolerance=max(PRECISION.get(_name(t), 1e-3) for t in (*tensors(arguments), *outputs)),
        buffers=lambda: own(last["out"], arguments) if whole else (),
        allocates=last["out"] is not None and not kept,
        plan=plan,
        reset=reset if kept else None,
        info={
            "api": template.called,
            **settings,
        },
        work={**work(p)._asdict(), "bytes": _moved(arguments, outputs)},
    )


def _of_case(template: Template, p: Params, seed: int) -> Launch:
    """As ``prepare``, of a call whose inputs and reference are the project's own."""
    import torch

    made = CASES[template.api].make(p, Inputs(f"apis/{point_id(p)}", seed, DEVICE))
    last: dict[str, Any] = {}

    def run() -> None:
        last["out"] = made.run()

    with limited(BUILD_S, "its modules are not built"):
        if made.plan is not None:
            made.plan()
        run()
        torch.cuda.synchronize()

    def output() -> tuple[Tensor, ...]:
        return tuple(one.float() for one in made.read(last["out"]))

    return Launch(
        run=run,
        output=output,
        reference=lambda: tuple(one.float() for one in made.expected()),
        tolerance=made.tolerance,
        buffers=output,
        allocates=True,
        plan=made.plan,
        reset=made.reset,
        info={"api": template.called},
        work={
            **work(p)._asdict(),
            "bytes": _moved({"given": list(made.inputs)}, tensors(last["out"])),
        },
    )


def sizes(trace: Any, p: Params) -> dict[str, int]:
    """Sizes of the axes that the template's init leaves open."""
    known = {axis: p[name] for name, axes in AXES.items() for axis in axes} | SIZES
    label = trace.name_prefix or trace.op_type
    parameters = inspect.signature(trace.init).parameters.values()
    found = {
        one.name: known.get(one.name, 4)
        for one in parameters
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD and one.name != "device"
    }
    found |= SPECIAL.get(label, {})
    if label in POOLS:
        found[POOLS[label]] = found["batch_size"]
    if "batch_size_plus_1" in found:
        found["batch_size_plus_1"] = found["batch_size"] + 1
    return found


def modules(p: Params) -> list[Any]:
    """JIT modules of the point that are known ahead; needs FlashInfer and an arch list, but no GPU."""
    template = templates().get(p["api"])
    if template is None or template.absent():
        return []
    if template.api in CASES:
        return CASES[template.api].modules()
    chosen = GENERATORS.get(p["api"]) or GENERATORS.get(template.function.__module__.split(".")[1])
    if chosen is None:
        return []
    import torch

    module, _, function = chosen[0].rpartition(".")
    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    dtypes |= {"int32": torch.int32, "int64": torch.int64}
    try:
        if "auto" in chosen:
            dtypes["auto"] = resolved("auto")
        generate = getattr(importlib.import_module(f"flashinfer.jit.{module}"), function)
        return [generate(*(dtypes.get(one, one) for one in chosen[1:]))]
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return []  # another version of FlashInfer, or another GPU: at its first call


def _column_major(made: dict[str, Any]) -> dict[str, Any]:
    """As FlashInfer documents the second matrix of bmm_fp8: its template has it row by row."""
    return made | {"B": made["B"].mT.contiguous().mT}


def _one_step_per_head(made: dict[str, Any]) -> dict[str, Any]:
    """As the kernel asks for: one time step, decay, bias and skip per head, broadcast to its elements."""
    dim, states = made["A"].shape
    tied = {name: made[name][:1, None].expand(1, dim) for name in ("D", "dt_bias")}
    tied["dt"] = made["dt"][:, :1].contiguous()[..., None].expand(-1, 1, dim)
    return made | tied | {"A": made["A"][0, :1, None, None].expand(1, dim, states)}


# Templates whose inputs do not have the strides that the call asks for.
LAYOUTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "bmm_fp8": _column_major,
    "selective_state_update": _one_step_per_head,
}


def _in_order(given: Mapping[str, Any], places: Tensor) -> Tensor:
    return places.sort(dim=-1).values


def _values_at(given: Mapping[str, Any], places: Tensor) -> Tensor:
    """The bits of the values at these places, in order: of two that are equal, either may be taken."""
    import torch

    logits = given["logits"]
    inside = places.long().clamp(0, logits.shape[-1] - 1)
    values = logits.gather(-1, inside).sort(dim=-1).values
    return values.view({2: torch.int16, 4: torch.int32}[values.element_size()])


def _routed(given: Mapping[str, Any], found: Tensor) -> Tensor:
    """Scores of the experts at these places, or their shares, in order: of two that score the same, either may be taken."""
    scores = given["scores"]
    whole = not found.is_floating_point()
    values = scores.gather(-1, found.long().clamp(0, scores.shape[-1] - 1)) if whole else found
    return values.sort(dim=-1).values


# What is compared of selections, whose places come in any order.
CHOSEN: dict[str, Callable[[Mapping[str, Any], Tensor], Tensor]] = {
    "fused_topk_deepseek": _routed,
    "top_k_page_table_transform": _in_order,
    "top_k_ragged_transform": _in_order,
    "top_k_varlen": _values_at,
}


def _callable(
    template: Template, planned: Mapping[str, Any] | None
) -> tuple[Callable[..., Any], Callable[[], None] | None]:
    """(what to call, its plan() or None): the function, or the method of a wrapper made here."""
    owner: Any = importlib.import_module(template.function.__module__)
    *path, name = template.function.__qualname__.split(".")
    for part in path:
        owner = getattr(owner, part)
    if not path:
        return getattr(owner, name), None
    wrapper = _wrapper(owner, SETTINGS.get(template.api, {}))
    if planned is None:
        raise NotHereError("its template does not say how to plan")
    return getattr(wrapper, name), lambda: wrapper.plan(**planned)


def _wrapper(kind: Any, settings: Mapping[str, Any]) -> Any:
    import torch

    arguments = dict(settings)
    for name, one in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if one.default is one.empty and "workspace" in name:
            arguments[name] = torch.zeros(128 << 20, dtype=torch.uint8, device=DEVICE)
        elif one.default is one.empty and name == "num_levels":
            arguments[name] = 1
    return kind(**arguments)


def _dtypes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that should be a torch dtype and that the template gives as a number: bfloat16."""
    import torch

    named = [name for name in arguments if name in ("dtype", "out_dtype")]
    return {name: torch.bfloat16 for name in named if isinstance(arguments[name], int)}


def _moved(arguments: Mapping[str, Any], outputs: list[Tensor]) -> int:
    """Bytes of all tensors, each once; a workspace is none of the work."""
    given = {
        k: v for k, v in arguments.items() if not any(w in k for w in ("workspace", "semaphore"))
    }
    each = {t.data_ptr(): _size(t) for t in (*tensors(given), *outputs)}
    return sum(each.values())


def own(out: Any, arguments: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The floats that the call made: one that it was given and hands back is an input, such as a pool of states."""
    given = {t.untyped_storage().data_ptr() for t in tensors(arguments)}
    return tuple(
        t
        for t in tensors(out)
        if t.is_floating_point() and t.untyped_storage().data_ptr() not in given
    )


def _size(tensor: Tensor) -> int:
    """Bytes of the elements of a tensor; those that it repeats count once."""
    own = [n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    size: int = math.prod(own) * tensor.element_size()
    return size


def _pairs(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a call beside their copies from before it."""
    return [
        pair
        for name, value in now.items()
        if name in then
        for pair in zip(tensors(value), tensors(then[name]), strict=True)
    ]


def _bits(tensor: Tensor) -> Tensor:
    """Its bytes: equal also where a float is NaN."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Definition(kind) if not kind.startswith("gemm"):  # published, and no name of an API
            tokens = next((entry.counted(tokens=a) for a in _COUNTS if a in entry.axes), {})
            return {"api": kind, **tokens, **entry.counted(batch="batch_size")}
    return None


def listed(facts: GpuFacts | None) -> Iterator[tuple[str, str, str | None]]:
    """(API, its function, why it cannot be tried on this GPU) of each. Raises ImportError without FlashInfer."""
    for name, template in templates().items():
        yield name, template.called, template.absent() or template.unable(facts)


# FlashInfer's areas by the weight that its own development gives them, the most first: how their folders and files begin.
AREAS = {
    "MoE": ("fused_moe", "moe", "mega", "deep_gemm", "grouped_mm", "kimi_k3_latent"),
    "attention": (
        *("attention", "cascade", "cudnn", "decode", "mla", "pod", "prefill", "sparse", "xqa", "page", "dsa", "msa", "cake_fmha"),
        *("paged_m", "dense_mqa", "parallel_att", "deepseek", "cake_vsa", "cake_dcp", "nvfp4_att", "attn", "sm110_xqa"),
    ),
    "linear attention": ("gdn", "gdp", "kda", "mamba", "flash_kda", "cake_kda"),
    "matrix products": ("gemm", "fp4_", "fp8_", "trtllm_low", "chunked_lm", "mega_gate"),
    "communication": ("comm",),
}  # fmt: skip

TARGET = Target(
    name="apis",
    title="Any FlashInfer API",
    heading="Other APIs",
    order=90,
    parameters={
        "api": "silu_and_mul",  # the name of its template: `ncuflow targets` lists them
        "tokens": 1024,  # of the template's axes, those that count tokens or rows
        "batch": 64,  # those that count sequences
    },
    choices={"api": Written(("silu_and_mul",), r"[A-Za-z]\w*", "top_k_varlen", every)},
    small={"tokens": 16, "batch": 4},
    id=point_id,
    stops_tracing=stops_tracing,
    work=work,
    memory=lambda p: 0,
    prepare=prepare,
    workload=Workload(takes=takes, listed=listed, areas=AREAS),
    build=Build(generate=modules),
    source=Source(
        api={"python": "flashinfer.api_logging.flashinfer_api"},
    ),
)
