"""mini-sglang at a public commit, on random weights of Llama 3 8B's shapes, step by step; its scheduler says what each launched.

    python run.py build [--source DIR]               # compile its kernels side by side
    python run.py run --out FOLDER [--source DIR] [--steps decode,graph,prefill,extend] [--profile torch]
    python run.py turns --out FOLDER [--source DIR] --change annotated,recorded,fa3,nosplit [--steps graph,prefill]

The engine is fetched from GitHub, or lies in DIR, and stays as it is. "decode" steps are launched one by one, "graph" steps are
replays of a CUDA graph, "extend" are prompts whose beginning is in the cache; the engine never mixes prompts and decodes.
FOLDER/truth.json has the sequences of each step: tokens that are new, and all. "turns" times steps with a change and without, in
turns: "annotated" needs `ncuflow step annotate -- python run.py turns …`, "recorded" is that while torch's profiler records both
sides; of prefills alone, "fa3" is FlashInfer's other backend and "nosplit" its fa2 with disable_split_kv.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

REPOSITORY = "https://github.com/sgl-project/mini-sglang"
COMMIT = "20fcd7f3c6a1898a61139fae1c97cc7a40bd8d66"
STEPS = ("decode", "graph", "prefill", "extend")
PROMPTS = (4096, 2048, 1024, 512, 512)  # tokens of those of a prefill
PREFIX, REST, SHARING = 2048, 256, 4  # of those of an extend: cached tokens, new ones, prompts
LONGEST = 16384
LEAST = 8  # turns
# Of these the engine imports its sockets and their messages, which it uses for other processes alone.
UNUSED = ("msgpack", "zmq", "zmq.asyncio")


def fetched(folder: Path | None) -> Path:
    """The engine's source: a folder, or what is fetched from GitHub at the commit."""
    if folder is None:
        folder = Path.home() / ".cache" / "mini-sglang" / COMMIT
        if not (folder / "python").is_dir():
            for command in (
                ["init"],
                ["fetch", "--depth=1", REPOSITORY, COMMIT],
                ["checkout", "FETCH_HEAD"],
            ):
                subprocess.run(["git", "-C", str(_made(folder)), *command], check=True)
    if not (folder / "python" / "minisgl").is_dir():
        raise SystemExit(f"error: {folder} is not mini-sglang's repository")
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def importable(source: Path) -> None:
    """Put the engine where Python finds it, and empty modules where those lie that a single process does not use."""
    sys.path.insert(0, str(source / "python"))
    for name in UNUSED:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = ModuleType(name)


def model(layers: int) -> SimpleNamespace:
    """Llama 3 8B's configuration, as the Hub would have it."""
    return SimpleNamespace(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        hidden_size=4096,
        intermediate_size=14336,
        vocab_size=128256,
        hidden_act="silu",
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        max_position_embeddings=LONGEST,
        rope_theta=500000.0,
        rope_scaling=None,
    )


class Engine:
    """The engine, which is asked for one step after another. truth: of each, what its scheduler launched."""

    def __init__(self, args: argparse.Namespace) -> None:
        importable(fetched(args.source))
        config = importlib.import_module("minisgl.engine.config")
        scheduler = importlib.import_module("minisgl.scheduler.scheduler")
        # What is read from the Hub: no weights are, and no text is made.
        config.cached_load_hf_config = lambda path: model(args.layers)  # type: ignore[attr-defined]
        scheduler.load_tokenizer = lambda path: SimpleNamespace(eos_token_id=-1)  # type: ignore[attr-defined]
        self.params = importlib.import_module("minisgl.core").SamplingParams
        self.args, self.batch = args, args.batch
        self.llm = importlib.import_module("minisgl.llm").LLM(
            "Llama-3-8B",
            attention_backend="fi",
            use_dummy_weight=True,
            max_seq_len_override=LONGEST,
            num_page_override=args.pages,
            cuda_graph_bs=[-(-args.batch // 8) * 8],
        )
        self.runner, self.data = self.llm.engine.graph_runner, None
        self.graphs, self.random = self.runner.max_graph_bs, random.Random(0)
        self.prefix, self.first = list[int](), 0
        self.truth: list[dict[str, Any]] = []
        own = self.llm.engine.forward_batch
        self.llm.engine.forward_batch = lambda batch, arguments: own(self._told(batch), arguments)

    def _told(self, batch: Any) -> Any:
        """A batch that is launched, written down."""
        new, tokens = (
            [getattr(r, name) for r in batch.padded_reqs] for name in ("extend_len", "device_len")
        )
        graph = self.runner.can_use_cuda_graph(batch)
        found = {
            "kind": batch.phase,
            "graph": graph,
            "sequences": batch.size,
            "new": new,
            "tokens": tokens,
        }
        self.truth.append(found)
        return batch

    def step(self) -> None:
        """Launch a step, and look at the tokens of the one before, as its server does."""
        import torch

        with torch.inference_mode():
            self.data = self.llm.overlap_loop(self.data)

    def submit(self, lengths: list[int], tokens: int = 1, prefix: list[int] | None = None) -> None:
        """Prompts of so many random tokens behind a prefix, each to be answered by so many."""
        params = self.params(self.args.temperature, ignore_eos=True, max_tokens=tokens)
        for length in lengths:
            ids = self.tokens(length)
            self.llm.pending_requests.append(([*(prefix or ()), *ids], params))

    def tokens(self, count: int) -> list[int]:
        """Random ones, the first of which no others begin with: nothing of them is in the cache."""
        self.first += 1
        return [self.first, *(self.random.randrange(100_000) for _ in range(count - 1))]

    def start(self) -> None:
        """Bring the sequences that are decoded to where they are decoded."""
        mean = self.args.context
        lengths = [mean // 2 + mean * i // self.batch for i in range(self.batch)]
        self.submit(lengths, tokens=self.args.answers)
        while self.llm.pending_requests or self.llm.prefill_manager.runnable or not self.truth:
            self.step()

    def ready(self, kind: str) -> None:
        """Before steps of a kind, and after those of another."""
        self.runner.max_graph_bs = self.graphs if kind == "graph" else 0
        if kind == "extend":
            self.prefix = self.tokens(PREFIX)
            self.submit([REST], prefix=self.prefix)
            for _ in range(3):  # it is in the cache when the step behind it has begun
                self.step()
        for _ in range(2):
            self.run(kind)

    def run(self, kind: str) -> None:
        """A step of a kind."""
        if kind == "prefill":
            self.submit([*PROMPTS])
        if kind == "extend":
            self.submit([REST] * SHARING, prefix=self.prefix)
        self.step()


# --- modes ------------------------------------------------------------------------------------------


def build(args: argparse.Namespace) -> None:
    """Compile what the steps take, each as its first call would, side by side."""
    importable(fetched(args.source))
    import torch
    from flashinfer.jit import activation, norm, rope, sampling
    from flashinfer.jit.attention import modules

    heads = (*[torch.bfloat16] * 3, torch.int32, 128, 128, 0, False, False, False)
    primary = getattr(
        modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module
    )
    store, index, radix = (
        importlib.import_module(f"minisgl.kernel.{name}") for name in ("store", "index", "radix")
    )
    jobs: list[Callable[[], Any]] = [
        lambda: primary("fa2", *heads).build_and_load(),
        lambda: activation.gen_act_and_mul_module("silu").build_and_load(),
        lambda: norm.gen_norm_module().build_and_load(),
        lambda: rope.gen_rope_module().build_and_load(),
        lambda: store._jit_store_module(2048),  # bytes of a token's keys
        lambda: index._jit_index_module(8192, num_splits=4),  # bytes of a token's embedding
        lambda: radix._load_radix_module(),
    ]
    if args.temperature > 0:
        jobs.append(lambda: sampling.gen_sampling_module().build_and_load())
    if "fa3" in args.change:
        jobs.append(lambda: modules.gen_batch_prefill_module("fa3", *heads).build_and_load())
    began = time.monotonic()

    def timed(job: Callable[[], Any]) -> float:
        job()
        return time.monotonic() - began

    with ThreadPoolExecutor(len(jobs)) as pool:
        print("built in s:", " ".join(f"{seconds:.0f}" for seconds in pool.map(timed, jobs)))


def run(args: argparse.Namespace) -> None:
    """Run steps of each kind and record them, a trace and a list of the truth for each kind."""
    engine, truth = Engine(args), {}
    engine.start()
    for kind in args.steps.split(","):
        engine.ready(kind)
        engine.truth = []
        with profiled(args.profile == "torch", args.out / f"{kind}{args.tag}.json"):
            for _ in range(args.repeat):
                engine.run(kind)
        truth[kind] = [*engine.truth]
    write(args.out / f"truth{args.tag}.json", args, steps=truth)
    engine.llm.shutdown()


@contextmanager
def profiled(wanted: bool, path: Path) -> Iterator[None]:
    """Record by torch's profiler into PATH.gz."""
    import torch

    torch.cuda.synchronize()
    if not wanted:
        yield
        torch.cuda.synchronize()
        return
    with recorder() as profile:
        yield
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


def recorder() -> Any:
    """torch's profiler, with shapes."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)


def turns(args: argparse.Namespace) -> None:
    """Times of steps with a change and without, in turns: until the GPU is done, for each step."""
    engine, found = Engine(args), {}
    engine.start()
    for name in args.change.split(","):
        ours, recorded = name in ("annotated", "recorded"), name == "recorded"
        change = annotated() if ours else prefills(engine, name)
        for kind in args.steps.split(",") if ours else ("prefill",):
            engine.ready(kind)
            with recorder() if recorded else nullcontext():
                times = pairs(engine, kind, change, args, args.seconds / (4 if recorded else 1))
            changes = [changed / base - 1 for base, changed in zip(*times.values(), strict=True)]
            base, changed = (statistics.median(own) for own in times.values())
            low, high = interval(changes)
            said = f"{statistics.median(changes):+.2%}, {low:+.2%} to {high:+.2%} of {len(changes)} pairs"
            print(f"{name}, {kind}: {base:.1f} us, changed {changed:.1f} us, {said}", flush=True)
            found[f"{name}, {kind}"] = times
        change(ours)
    write(args.out / f"turns{args.tag}.json", args, times=found)
    engine.llm.shutdown()


def pairs(
    engine: Engine,
    kind: str,
    change: Callable[[bool], None],
    args: argparse.Namespace,
    seconds: float,
) -> dict[str, list[float]]:
    """us of a step, without the change and with it, turn by turn for so many seconds."""
    times: dict[str, list[float]] = {"base": [], "changed": []}
    began, turn = time.monotonic(), 0
    while time.monotonic() - began < seconds or turn < LEAST:
        for side in ("base", "changed") if turn % 2 else ("changed", "base"):
            change(side == "changed")
            us = block(engine, kind, args.repeat if kind in ("decode", "graph") else 1)
            if turn > 1:  # in the first two something may yet be loaded
                times[side].append(round(us, 1))
        turn += 1
    return times


def block(engine: Engine, kind: str, steps: int) -> float:
    """us of each of so many steps."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        engine.run(kind)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e6


def interval(pairs: list[float]) -> tuple[float, float]:
    """Of the median, 95 %, by ranks."""
    ordered, n = sorted(pairs), len(pairs)
    rank = max(0, round(n / 2 - 0.98 * n**0.5 - 0.5))
    return ordered[rank], ordered[n - 1 - rank]


def annotated() -> Callable[[bool], None]:
    """Takes FlashInfer's calls as `ncuflow step annotate` has them, or as FlashInfer has."""
    ours = sys.modules.get("ncuflow.step.annotate")
    if ours is None or ours.installed is None:
        raise SystemExit("error: ncuflow step annotate -- python run.py turns … has such calls")
    turn: Callable[[bool], None] = ours.installed.turn
    return turn


def prefills(engine: Engine, name: str) -> Callable[[bool], None]:
    """Takes prefills by fa3, or by fa2 whose blocks never share the keys of a tile, or by the engine's own choice, fa2."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    attention = engine.llm.engine.attn_backend
    own, memory = attention.prefill_wrapper, attention.float_workspace_buffer
    backend = "fa3" if name == "fa3" else "fa2"
    other = BatchPrefillWithPagedKVCacheWrapper(memory, kv_layout="NHD", backend=backend)
    if name == "nosplit":
        other.plan = partial(other.plan, disable_split_kv=True)

    def change(changed: bool) -> None:
        attention.prefill_wrapper = other if changed else own

    return change


def write(path: Path, args: argparse.Namespace, **found: Any) -> None:
    """With the machine and versions, as JSON."""
    import flashinfer
    import torch

    machine = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "flashinfer": flashinfer.__version__,
        "engine": f"{REPOSITORY} {COMMIT}",
        "model": vars(model(args.layers)),
    }
    path.write_text(json.dumps(machine | found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=("build", "run", "turns"))
    parser.add_argument("--source", type=Path, help="mini-sglang's repository; else it is fetched")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--steps", default=",".join(STEPS), help="kinds, separated by commas")
    parser.add_argument("--repeat", type=int, default=4, help="steps of each kind, or of each turn")
    parser.add_argument("--seconds", type=float, default=15, help="of the turns of a kind of steps")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=60, help="sequences that are decoded")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each, in the mean")
    parser.add_argument("--answers", type=int, default=3000, help="tokens that each gets at most")
    parser.add_argument("--pages", type=int, default=400_000, help="tokens of the cache")
    parser.add_argument("--change", default="annotated", help="annotated, recorded, fa3, nosplit")
    parser.add_argument("--temperature", type=float, default=0.6, help="0: the likeliest token")
    parser.add_argument("--profile", choices=("none", "torch"), default="none")
    parser.add_argument("--tag", default="", help="part of the files' names")
    args = parser.parse_args()
    _made(args.out)
    {"build": build, "run": run, "turns": turns}[args.mode](args)


if __name__ == "__main__":
    main()
