"""A small decoder of Llama's shapes on FlashInfer's own calls, whose steps can be recorded and whose shapes are known.

    python engine.py run --out FOLDER [--steps prefill,decode,mixed,graph] [--profile torch] [--nvtx steps|calls]
    python engine.py alone --out FOLDER     # each launch of the steps alone: from a cold L2, a clean one, and again
    python engine.py turns --out FOLDER --change decode=tensor     # step times of two engines, in turns

The load is a prompt's tokens and a batch of sequences and their tokens: --prompt, --batch and --context.

Weights are random, layers are few; a step embeds, normalises, rotates, appends, attends, activates and samples as a server's
does. "graph" is a decode step that replays a CUDA graph. FOLDER/truth.json says what each step launched, by the names and
parameters of ncuflow's kernel targets. Needs torch, flashinfer-python and a GPU, nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import flashinfer
import torch
from flashinfer import sampling

DTYPE, TYPE = torch.float16, "f16"
WORKSPACE_BYTES = 128 << 20
TOP_P = 0.9


@dataclass(frozen=True)
class Model:
    """Shapes of Llama 3 8B, of fewer layers."""

    layers: int = 4
    hidden: int = 4096
    intermediate: int = 14336
    qo_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    page_size: int = 16


@dataclass(frozen=True)
class Choices:
    """What a caller of FlashInfer may choose. Field: its values, the first being the default."""

    decode: str = "cuda"
    prefill: str = "fa2"
    rope: str = "pos_ids"
    norm: str = "fused"


CHOICES = {
    "decode": ("cuda", "tensor"),
    "prefill": ("fa2", "fa3"),
    "rope": ("pos_ids", "cos_sin_cache"),
    "norm": ("fused", "separate"),
}


@dataclass(frozen=True)
class Step:
    """Prompts (their tokens) that are computed from the start, and sequences (their tokens, the new one among them) that
    get one token more; ``graph``: by replay of the launches that were captured."""

    prompts: tuple[int, ...] = ()
    decodes: tuple[int, ...] = ()
    graph: bool = False

    @property
    def kind(self) -> str:
        return "mixed" if self.prompts and self.decodes else "prefill" if self.prompts else "decode"

    @property
    def tokens(self) -> int:
        return sum(self.prompts) + len(self.decodes)


class Call(NamedTuple):
    """One call of FlashInfer's or torch's: a kernel target of ncuflow, and its parameters."""

    target: str
    params: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.target}({', '.join(f'{name}={value}' for name, value in self.params)})"


@dataclass
class Calls:
    """What was called, and how often; ``kept``: the calls themselves, to be made again; ``named``: each in a range."""

    named: bool = False
    counts: Counter[Call] = field(default_factory=Counter)
    kept: dict[Call, Callable[[], Any]] | None = None

    def __call__(self, target: str, function: Callable[[], Any], **params: Any) -> Any:
        call = Call(target, tuple(params.items()))
        self.counts[call] += 1
        if self.kept is not None:
            self.kept[call] = function
        with _range(str(call), self.named):
            return function()


@dataclass
class Inputs:
    """What the kernels of a step read of it; on the GPU."""

    ids: Any
    positions: Any
    sequence: Any  # of each token, and
    table: tuple[Any, Any, Any]  # indices, indptr and last_page_len of all sequences
    last: Any  # token of each sequence


class Weights:
    """Random weights, with a standard deviation that keeps activations finite, and the caches of all layers."""

    def __init__(self, model: Model, sequences: int, longest: int) -> None:
        def normal(*shape: int) -> Any:
            return torch.randn(shape, dtype=DTYPE, device="cuda") * shape[-2] ** -0.5

        m, heads = model, model.qo_heads + 2 * model.kv_heads
        self.embedding = torch.randn(m.vocab, m.hidden, dtype=DTYPE, device="cuda")
        self.head = normal(m.hidden, m.vocab)
        self.ones = torch.ones(m.hidden, dtype=DTYPE, device="cuda")
        self.qkv = [normal(m.hidden, heads * m.head_dim) for _ in range(m.layers)]
        self.out = [normal(m.qo_heads * m.head_dim, m.hidden) for _ in range(m.layers)]
        self.gate_up = [normal(m.hidden, 2 * m.intermediate) for _ in range(m.layers)]
        self.down = [normal(m.intermediate, m.hidden) for _ in range(m.layers)]
        self.pages = -(-longest // m.page_size)  # of a sequence
        shape = (sequences * self.pages, m.page_size, m.kv_heads, m.head_dim)
        self.cache = [
            tuple(torch.randn(shape, dtype=DTYPE, device="cuda") for _ in range(2))
            for _ in range(m.layers)
        ]
        shuffled = random.Random(0).sample(range(shape[0]), shape[0])
        self.page_table = torch.tensor(shuffled, dtype=torch.int32).view(sequences, self.pages)
        angle = torch.arange(longest, device="cuda")[:, None] * 1e4 ** (
            -torch.arange(0, m.head_dim, 2, device="cuda") / m.head_dim
        )
        self.cos_sin = torch.cat([angle.cos(), angle.sin()], -1).float()


class Engine:
    """Runs steps; ``graph`` of decode steps: their launches are captured once and replayed."""

    def __init__(self, model: Model, weights: Weights, choices: Choices, batch: int) -> None:
        self.model, self.weights, self.choices = model, weights, choices
        self.calls = Calls()
        tensor = choices.decode == "tensor"
        self.prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            _workspace(), "NHD", backend=choices.prefill
        )
        self.decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            _workspace(), "NHD", use_tensor_cores=tensor
        )
        most = batch * weights.pages
        buffers = [
            torch.zeros(n, dtype=torch.int32, device="cuda") for n in (batch + 1, most, batch)
        ]
        self.decode_graph = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
            _workspace(), *buffers, "NHD", tensor
        )
        self.graph: Any = None
        self.static: Inputs | None = None
        self.captured: Counter[Call] = Counter()

    def run(self, step: Step) -> Any:
        """Plan and launch a step; the tokens that were sampled."""
        inputs = self._inputs(step)
        self._plan(step, self.decode_graph if step.graph else self.decode)
        if not step.graph:
            return self._forward(step, inputs, self.decode)
        for mine, new in zip(_tensors(self.static), _tensors(inputs), strict=True):
            mine[: len(new)].copy_(new, non_blocking=True)
        self.graph.replay()
        return self.sampled

    def capture(self, step: Step) -> None:
        """The launches of a decode step as a graph, whose inputs are copied to where it reads them."""
        x = self._inputs(step)
        self._plan(step, self.decode_graph)
        spare = torch.zeros(
            len(step.decodes) * self.weights.pages, dtype=torch.int32, device="cuda"
        )
        spare[: len(x.table[0])] = x.table[0]
        self.static = Inputs(x.ids, x.positions, x.sequence, (spare, *x.table[1:]), x.last)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._forward(step, self.static, self.decode_graph)
        torch.cuda.current_stream().wait_stream(side)
        self.graph, self.calls.counts = torch.cuda.CUDAGraph(), Counter()
        with torch.cuda.graph(self.graph):
            self.sampled = self._forward(step, self.static, self.decode_graph)
        self.captured, self.calls.counts = self.calls.counts, Counter()

    def called(self, step: Step) -> list[dict[str, Any]]:
        """What the step that ran last called; a graph's is what was captured, for lengths that grew since."""
        counts, self.calls.counts = self.calls.counts, Counter()
        found = []
        for call, count in (self.captured if step.graph else counts).items():
            params = dict(call.params)
            if step.graph and call.target == "decode":
                params["kv_len"] = _length(step.decodes)
            found.append({"target": call.target, "params": params, "count": count})
        return found

    def _inputs(self, step: Step) -> Inputs:
        """Of the scheduler: made on the host and copied."""
        lengths = (*step.prompts, *step.decodes)
        new = (*step.prompts, *(1 for _ in step.decodes))
        pages = [-(-n // self.model.page_size) for n in lengths]
        table = [self.weights.page_table[i, :n] for i, n in enumerate(pages)]
        positions = [torch.arange(n - a, n) for n, a in zip(lengths, new, strict=True)]
        sequence = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new))
        made = (
            torch.randint(self.model.vocab, (step.tokens,)),
            torch.cat(positions).int(),
            sequence.int(),
            torch.cat(table),
            _starts(pages),
            _last_page(lengths, self.model.page_size),
            _starts(new)[1:].long() - 1,
        )
        ids, position, owner, *tables, last = (one.cuda(non_blocking=True) for one in made)
        return Inputs(ids, position, owner, (tables[0], tables[1], tables[2]), last)

    def _plan(self, step: Step, decode: Any) -> None:
        m, first = self.model, len(step.prompts)
        heads = (m.qo_heads, m.kv_heads, m.head_dim, m.page_size)
        if step.prompts:
            table = self._table(range(first), step.prompts)
            self.prefill.plan(_starts(step.prompts), *table, *heads, causal=True, q_data_type=DTYPE)
        if step.decodes:
            table = self._table(range(first, first + len(step.decodes)), step.decodes)
            decode.plan(*table, *heads, q_data_type=DTYPE)

    def _table(self, sequences: range, lengths: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """indptr, indices and last_page_len, on the host."""
        size = self.model.page_size
        pages = [-(-n // size) for n in lengths]
        rows = [self.weights.page_table[i, :n] for i, n in zip(sequences, pages, strict=True)]
        return _starts(pages), torch.cat(rows), _last_page(lengths, size)

    def _forward(self, step: Step, x: Inputs, decode: Any) -> Any:
        m, w = self.model, self.weights
        residual, hidden = w.embedding[x.ids], None
        for layer in range(m.layers):
            hidden = self._norm(hidden, residual)
            qkv = self._product(hidden, w.qkv[layer])
            q = self._queries(step, x, qkv, layer)
            attended = self._attention(step, decode, q, w.cache[layer])
            hidden = self._product(attended.view(step.tokens, -1), w.out[layer])
            hidden = self._norm(hidden, residual)
            both = self._product(hidden, w.gate_up[layer])
            gated = self.calls(
                "activation",
                lambda both=both: flashinfer.silu_and_mul(both),
                variant="silu", tokens=step.tokens, hidden=m.intermediate, dtype=TYPE,
            )  # fmt: skip
            hidden = self._product(gated, w.down[layer])
        hidden = self._norm(hidden, residual)
        return self._sample(self._product(hidden[x.last], w.head).float())

    def _norm(self, hidden: Any, residual: Any) -> Any:
        weight = self.weights.ones
        shape = {"rows": len(residual), "hidden": self.model.hidden, "dtype": TYPE}
        if hidden is None or self.choices.norm == "separate":
            if hidden is not None:
                residual.add_(hidden)
            return self.calls(
                "rmsnorm", lambda: flashinfer.rmsnorm(residual, weight), variant="rmsnorm", **shape
            )
        self.calls(
            "rmsnorm",
            lambda: flashinfer.fused_add_rmsnorm(hidden, residual, weight),
            variant="fused_add_rmsnorm",
            **shape,
        )
        return hidden

    def _product(self, x: Any, weight: Any) -> Any:
        (m, k), n = x.shape, weight.shape[1]
        return self.calls("gemm", lambda: x @ weight, m=m, n=n, k=k, dtype=TYPE)

    def _queries(self, step: Step, x: Inputs, qkv: Any, layer: int) -> Any:
        """Rotated queries; the keys, rotated too, and the values are appended to the cache."""
        m, w = self.model, self.weights
        sizes = [heads * m.head_dim for heads in (m.qo_heads, m.kv_heads, m.kv_heads)]
        q, k, v = (one.reshape(step.tokens, -1, m.head_dim) for one in qkv.split(sizes, -1))
        heads = {"kv_heads": m.kv_heads, "head_dim": m.head_dim, "dtype": TYPE}
        rotated = {"inplace": True, "tokens": step.tokens, "qo_heads": m.qo_heads, **heads}
        if self.choices.rope == "cos_sin_cache":
            self.calls(
                "rope",
                lambda: flashinfer.apply_rope_with_cos_sin_cache_inplace(
                    x.positions, q.view(step.tokens, -1), k.view(step.tokens, -1), m.head_dim, w.cos_sin
                ),
                variant="cos_sin_cache", **rotated,
            )  # fmt: skip
        else:
            self.calls(
                "rope",
                lambda: flashinfer.apply_rope_pos_ids_inplace(q, k, x.positions),
                variant="rope_pos_ids", **rotated,
            )  # fmt: skip
        even = not step.prompts or (not step.decodes and len(set(step.prompts)) == 1)
        sequences = len(step.prompts) or len(step.decodes)
        batch = sequences if even else step.tokens
        self.calls(
            "kv_append",
            lambda: flashinfer.append_paged_kv_cache(
                k, v, x.sequence, x.positions, w.cache[layer], *x.table
            ),
            variant="kv", batch=batch, append_len=step.tokens // batch, page_size=m.page_size, **heads,
        )  # fmt: skip
        return q

    def _attention(self, step: Step, decode: Any, q: Any, cache: Any) -> Any:
        """Of the prompts, then of the sequences that get a token; the lengths of either are even, or uneven in the truth."""
        m, first = self.model, sum(step.prompts)
        heads = {"qo_heads": m.qo_heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim}
        heads |= {"page_size": m.page_size, "dtype": TYPE}
        out = torch.empty(q.shape, dtype=DTYPE, device=q.device)
        if step.prompts:
            self.calls(
                "prefill",
                lambda: self.prefill.run(q[:first], cache, out=out[:first]),
                layout="paged", seq_len=_length(step.prompts), batch=len(step.prompts), **heads,
                backend=self.choices.prefill, causal=True,
            )  # fmt: skip
        if step.decodes:
            self.calls(
                "decode",
                lambda: decode.run(q[first:], cache, out=out[first:]),
                batch=len(step.decodes), kv_len=_length(step.decodes), **heads,
                cores=self.choices.decode, launch="graph" if decode is self.decode_graph else "eager",
            )  # fmt: skip
        return out

    def _sample(self, logits: Any) -> Any:
        shape = {"batch": len(logits), "vocab": logits.shape[1]}
        probabilities = self.calls(
            "sampling", lambda: sampling.softmax(logits), variant="softmax", **shape
        )
        return self.calls(
            "sampling",
            lambda: flashinfer.top_p_sampling_from_probs(probabilities, TOP_P, seed=1, offset=0),
            variant="top_p", percent=round(100 * TOP_P), **shape,
        )  # fmt: skip


@contextmanager
def _range(name: str, wanted: bool = True) -> Iterator[None]:
    """A range that nsys and torch's profiler show."""
    if not wanted:
        yield
        return
    with torch.cuda.nvtx.range(name), torch.profiler.record_function(name):
        yield


def _workspace() -> Any:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def _starts(counts: Any) -> Any:
    return torch.tensor([0, *counts]).cumsum(0).int()


def _last_page(lengths: tuple[int, ...], size: int) -> Any:
    return torch.tensor([(n - 1) % size + 1 for n in lengths], dtype=torch.int32)


def _length(lengths: tuple[int, ...]) -> int | str:
    return lengths[0] if len(set(lengths)) == 1 else "x".join(map(str, lengths))


def _tensors(inputs: Inputs | None) -> list[Any]:
    assert inputs is not None
    return [inputs.ids, inputs.positions, inputs.sequence, *inputs.table, inputs.last]


# --- the steps that are run -----------------------------------------------------------------------

KINDS = ("prefill", "decode", "mixed", "graph")


@dataclass(frozen=True)
class Load:
    """A prompt's tokens, and those of a shorter one beside others; sequences that get tokens, and theirs at the first step."""

    prompt: int = 2048
    chunk: int = 512
    batch: int = 32
    context: int = 2033

    def steps(self, kind: str, count: int) -> list[Step]:
        """A prompt; sequences that grow by a token; a shorter prompt beside all but one of these."""
        if kind == "prefill":
            return [Step(prompts=(self.prompt,))] * count
        grown = [(self.context + i,) for i in range(count)]
        if kind == "mixed":
            return [Step((self.chunk,), one * (self.batch - 1)) for one in grown]
        return [Step((), one * self.batch, kind == "graph") for one in grown]

    @property
    def longest(self) -> int:
        return max(self.prompt, self.context + 64)


def build(choices: Choices) -> float:
    """Compile what the steps need, all modules at once; the seconds that it took."""
    from flashinfer.jit import activation, norm, page, rope
    from flashinfer.jit import sampling as sampling_jit
    from flashinfer.jit.attention import modules

    began, attention = time.monotonic(), (*[DTYPE] * 3, torch.int32, 128, 128, 0, False, False)
    prefill = getattr(
        modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module
    )
    specs = [
        modules.gen_batch_decode_module(*attention),
        prefill("fa2", *attention, False),  # decode on tensor cores takes it too
        activation.gen_act_and_mul_module("silu"),
        norm.gen_norm_module(),
        page.gen_page_module(),
        rope.gen_rope_module(),
        sampling_jit.gen_sampling_module(),
    ]
    if choices.prefill != "fa2":
        specs.append(modules.gen_batch_prefill_module(choices.prefill, *attention, False))
    # Each as its first call would: what `build_jit_specs` compiles in one graph is compiled again when it is loaded.
    with ThreadPoolExecutor(len(specs)) as pool:
        list(pool.map(lambda spec: spec.build_and_load(), specs))
    return time.monotonic() - began


def engine(choices: Choices, load: Load, weights: Weights | None = None) -> Engine:
    """Of Llama's shapes, for the steps of a load."""
    model = Model()
    weights = weights or Weights(model, load.batch + 1, load.longest)
    return Engine(model, weights, choices, load.batch)


def warm(mine: Engine, load: Load, kinds: list[str]) -> None:
    """Each kind of step once: modules are loaded, the graph is captured."""
    for kind in kinds:
        (step,) = load.steps(kind, 1)
        if step.graph:
            mine.capture(step)
        else:
            mine.run(step)
    torch.cuda.synchronize()
    mine.calls.counts.clear()


def run(args: argparse.Namespace) -> None:
    """Warm up, then run steps and record them; the truth has an entry for each, in order."""
    load, kinds = loaded(args), args.steps.split(",")
    mine = engine(chosen(args.change), load)
    warm(mine, load, kinds)
    mine.calls.named = args.nvtx == "calls"
    truth = []
    with profiled(args.profile == "torch", args.out / f"trace{args.tag}.json"):
        for number, step in enumerate(
            one for kind in kinds for one in load.steps(kind, args.repeat)
        ):
            with _range(f"{step.kind} step {number}", args.nvtx != "none"):
                mine.run(step).cpu()  # a server looks at the tokens
            truth.append({"kind": step.kind, **asdict(step), "calls": mine.called(step)})
        torch.cuda.synchronize()
    found = {"choices": asdict(mine.choices), "load": asdict(load), "steps": truth}
    write(args.out / f"truth{args.tag}.json", found)


@contextmanager
def profiled(wanted: bool, path: Path) -> Iterator[None]:
    """Record by torch's profiler into PATH.gz."""
    if not wanted:
        yield
        return
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        yield
    profile.export_chrome_trace(str(path))
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


# --- each launch alone ------------------------------------------------------------------------------


def alone(args: argparse.Namespace) -> None:
    """Each call of each kind of step by itself, in turns: from an L2 that was emptied by writing, which it then has to write
    back ("cold"), by reading ("clean"), and right after itself ("hot")."""
    load = loaded(args)
    mine = engine(chosen(args.change), load)
    flush = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    found = {}
    for kind in (one for one in args.steps.split(",") if one != "graph"):
        warm(mine, load, [kind])
        mine.calls.kept = {}
        mine.run(*load.steps(kind, 1))
        kept = list(mine.calls.kept.items())
        path = args.out / "alone.trace.json"
        with profiled(True, path):
            for _ in range(args.repeat):
                for index in random.sample(range(len(kept)), len(kept)):
                    for state in ("cold", "clean", "hot"):
                        if state == "cold":
                            flush.zero_()
                        elif state == "clean":
                            flush.sum()
                        torch.cuda.synchronize()
                        with _range(f"{state} {index}"):
                            kept[index][1]()
            torch.cuda.synchronize()
        times = kernel_times(Path(f"{path}.gz"))
        Path(f"{path}.gz").unlink()
        found[kind] = [
            {"target": call.target, "params": dict(call.params), "kernels_us": times.get(index, {})}
            for index, (call, _) in enumerate(kept)
        ]
    write(args.out / "alone.json", {"calls": found})


def kernel_times(path: Path) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Times in us by call, kernel, and "cold", "clean" or "hot", from a trace whose ranges are named "cold 3"."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e.get("cat") == "user_annotation"
    )
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if str(e.get("cat")).startswith("cuda_") and "correlation" in e.get("args", {})
    }
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    for event in events:
        if event.get("cat") != "kernel":
            continue
        at = launched.get(event["args"]["correlation"], -1)
        name = next((n for first, last, n in spans if first <= at <= last), "")
        state, _, index = name.partition(" ")
        if index:
            kernel = found.setdefault(int(index), {}).setdefault(event["name"], {})
            kernel.setdefault(state, []).append(round(event["dur"], 3))
    return found


# --- two engines in turns ---------------------------------------------------------------------------


def turns(args: argparse.Namespace) -> None:
    """Times of the steps of an engine, and of one with the change, in turns: on the GPU, and of the host's call."""
    load, kinds = loaded(args), args.steps.split(",")
    base = engine(chosen([]), load)
    sides = {"base": base, "changed": engine(chosen(args.change), load, base.weights)}
    for mine in sides.values():
        warm(mine, load, kinds)
    times: dict[str, Any] = {
        kind: {side: {"step_us": [], "host_us": []} for side in sides} for kind in kinds
    }
    for number in range(args.repeat):
        for kind in kinds:
            step = load.steps(kind, 16)[number % 16]
            for side in random.sample(list(sides), 2):
                step_us, host_us = timed(sides[side], step)
                times[kind][side]["step_us"].append(round(step_us, 1))
                times[kind][side]["host_us"].append(round(host_us, 1))
    for kind, sided in times.items():
        base_us, changed_us = (statistics.median(sided[side]["step_us"]) for side in sides)
        print(
            f"{kind}: {base_us:.1f} us, changed {changed_us:.1f} us, {changed_us / base_us - 1:+.1%}"
        )
    found = {"load": asdict(load), "change": args.change, "times": times}
    write(args.out / f"turns{args.tag}.json", found)


def timed(mine: Engine, step: Step) -> tuple[float, float]:
    """us of a step between events on the GPU, and until the host has the tokens."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    began = time.perf_counter()
    first.record()
    tokens = mine.run(step)
    last.record()
    tokens.cpu()
    host = time.perf_counter() - began
    mine.calls.counts.clear()
    return first.elapsed_time(last) * 1e3, host * 1e6


# --- the command ------------------------------------------------------------------------------------


def chosen(changes: list[str]) -> Choices:
    """The defaults, but for "name=value" of each change."""
    made = dict(change.partition("=")[::2] for change in changes)
    for name, value in made.items():
        if value not in CHOICES.get(name, ()):
            raise SystemExit(f"error: no choice {name}={value}; there are {CHOICES}")
    return Choices(**made)


def loaded(args: argparse.Namespace) -> Load:
    return Load(prompt=args.prompt, batch=args.batch, context=args.context)


def write(path: Path, found: dict[str, Any]) -> None:
    """With the machine and versions, as JSON."""
    gpu = torch.cuda.get_device_properties(0)
    machine = {
        "gpu": gpu.name,
        "compute_capability": f"{gpu.major}.{gpu.minor}",
        "torch": torch.__version__,
        "flashinfer": flashinfer.__version__,
        "model": asdict(Model()),
    }
    path.write_text(json.dumps(machine | found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=("build", "run", "alone", "turns"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--steps", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--repeat", type=int, default=8, help="steps of each kind, or turns")
    for name in ("prompt", "batch", "context"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Load, name), metavar="N")
    parser.add_argument("--change", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--profile", choices=("none", "torch"), default="none")
    parser.add_argument("--nvtx", choices=("none", "steps", "calls"), default="none")
    parser.add_argument("--tag", default="", help="part of the files' names")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if args.mode == "build":
        print(f"built in {build(chosen(args.change)):.1f} s")
    else:
        {"run": run, "alone": alone, "turns": turns}[args.mode](args)


if __name__ == "__main__":
    main()
