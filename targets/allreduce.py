"""All-reduce of the ranks of a layer, with the residual sum and the RMSNorm that follow it.

Each rank is a process with a GPU of one host. The first is timed while its peers wait in the same call, so that its time is that
of the call once all have come; every rank's output is held against the sum in float32. One shot sends all to all; two shots sum a
part on each rank and send the sums round. Cold, what the peers send is there when the first rank begins: that time of one shot
leaves out the latency of one trip over a link. The bus bandwidth is NCCL's: of n ranks 2(n − 1)/n of the message, over the time,
here with the norm's; one shot sends up to n/2 times as much. `vllm` is `flashinfer.comm.vllm_ar.all_reduce` outside a CUDA graph,
where it first copies the message to a buffer that its peers know: in one a server has no such copy.
"""

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from ncuflow.target import ranks, reference
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, NotHereError, Params, Tensor
from ncuflow.target.source import Backend, Build, Jit, Source, Symbol, no_backend, rival

EPS = 1e-6
NCCL = "nccl"
VLLM_BYTES = 8 << 20  # of a message: the most that vLLM gives its own kernel
VLLM_BLOCKS = 36
# What the workspace of FlashInfer's kernel is made for, once for all points.
MOST = {"tokens": 8192, "hidden": 8192}
LINK_BYTES = 256 << 20  # of the copy that measures the link
# FlashInfer's kernel is for these; vLLM's has no such limit.
_FUSED = ("9.0", "10.0", "10.3", "12.0", "12.1")
BACKENDS = (
    Backend("auto", _FUSED),
    Backend("oneshot", _FUSED),
    Backend("twoshot", _FUSED),
    Backend("vllm"),
    Backend(NCCL, rival=("nvidia-nccl-cu13", "torch")),
)
# Of one shot FlashInfer takes messages up to so many MiB, all ranks' together and twice, by the number of ranks.
ONESHOT_MIB = {2: 512, 4: 64, 8: 42}


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if any(p[key] > most for key, most in MOST.items()):
        return "its workspace is for " + ", ".join(f"{most} {key}" for key, most in MOST.items())
    if p["variant"] == "twoshot" and p["tokens"] <= p["ranks"]:
        return f"two shots share out tokens: {p['tokens']} are no more than the {p['ranks']} ranks"
    if p["variant"] == "vllm" and message(p) > VLLM_BYTES:
        return f"vLLM gives its kernel messages up to {VLLM_BYTES >> 20} MiB, not {message(p) / 2**20:.0f}"
    return no_backend(BACKENDS, p["variant"], gpu)


def message(p: Params) -> int:
    """Bytes that each rank brings."""
    size: int = p["tokens"] * p["hidden"] * ITEMSIZE[p["dtype"]]
    return size


def traits(p: Params) -> dict[str, float]:
    """The message in MiB, a whole number where it is one."""
    mib = round(message(p) / 2**20, 3)
    return {"message_mib": int(mib) if mib >= 1 and mib == int(mib) else mib}


def resolves(p: Params, capability: str) -> Params:
    """Which of its two FlashInfer takes."""
    mib = 2 * p["ranks"] * message(p) / 2**20
    return {"variant": "oneshot" if mib <= ONESHOT_MIB[p["ranks"]] else "twoshot"}


def asked(p: Params) -> dict[str, Params]:
    """How FlashInfer is asked for a variant: of its fused call a setting, of vLLM's another call."""
    if p["variant"] == "vllm":
        return {"call": {"function": "vllm_ar.all_reduce"}}
    shots = {"oneshot": True, "twoshot": False}
    return {"run": {"use_oneshot": shots[p["variant"]]}} if p["variant"] in shots else {}


def sent(p: Params) -> int:
    """Bytes that each rank sends over its links at the least, whatever a variant sends: over the time, NCCL's bus bandwidth."""
    world: int = p["ranks"]
    return 2 * (world - 1) * message(p) // world


def work(p: Params) -> Work:
    """FLOPs: a sum of each element of the others, 6 of the norm. Bytes of one GPU's memory: two matrices read, two written."""
    elements = p["tokens"] * p["hidden"]
    return Work(
        flops=elements * (p["ranks"] - 1 + 6),
        bytes=4 * message(p) + p["hidden"] * ITEMSIZE[p["dtype"]],
        convention="ncuflow: x and residual of one rank read, the sum and its norm written; what links carry is not in it",
    )


def drawn(p: Params, rank: int, device: str = "cuda") -> Tensor:
    """What a rank brings: any rank can draw it."""
    inputs = Inputs(f"{TARGET.point_id(p)}#{rank}", device=device)
    return inputs.normal(p["tokens"], p["hidden"], dtype=torch_dtype(p["dtype"]))


def expected(
    p: Params, residual: Tensor, weight: Tensor, device: str = "cuda"
) -> tuple[Tensor, Tensor]:
    """(the norm, the sum) that every rank has, in float32."""
    total = residual.float()
    for rank in range(p["ranks"]):
        total = total + drawn(p, rank, device).float()
    return reference.rmsnorm(total, weight.float(), EPS), total


class Member:
    """A rank's tensors of a point, and its call."""

    def __init__(self, p: Params, rank: int, device: str = "cuda") -> None:
        import torch

        self.p, self.rank, self.device = p, rank, device
        common = Inputs(TARGET.point_id(p), device=device)
        dtype = torch_dtype(p["dtype"])
        self.given = drawn(p, rank, device)
        self.start = common.normal(p["tokens"], p["hidden"], dtype=dtype)
        self.weight = common.normal(p["hidden"], dtype=dtype)
        self.x, self.residual = self.given.clone(), self.start.clone()
        self.norm, self.total = torch.empty_like(self.x), torch.empty_like(self.x)
        self.call: Callable[[], None] = lambda: None

    def run(self) -> None:
        self.call()

    def reset(self) -> None:
        self.x.copy_(self.given)
        self.residual.copy_(self.start)

    def right(self) -> bool:
        """Whether the last run gave what every rank should have."""
        pairs = zip(
            (self.norm, self.total),
            expected(self.p, self.start, self.weight, self.device),
            strict=True,
        )
        return all(
            float((a.float() - b).norm() / b.norm()) < TOLERANCE[self.p["dtype"]] for a, b in pairs
        )


class Group:
    """A rank among its peers: NCCL's group, and the memory that kernels of all ranks reach."""

    def __init__(self, rank: int, world: int, folder: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world = rank, world
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
        dist.init_process_group(
            NCCL,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            device_id=device,
        )
        self._made: dict[Any, Any] = {}

    def open(self, p: Params) -> Member:
        """A rank's member of a point; all ranks do so at the same time."""
        member = Member(p, self.rank)
        made = {NCCL: self._nccl, "vllm": self._vllm}.get(p["variant"], self._fused)
        member.call = made(member)
        return member

    def _norm(self, member: Member, source: Tensor) -> Callable[[], None]:
        """The residual sum and the norm as engines call them: both in place, and named as the fused call names them."""
        import flashinfer

        member.norm, member.total = source, member.residual
        return lambda: flashinfer.fused_add_rmsnorm(source, member.residual, member.weight, EPS)

    def _nccl(self, member: Member) -> Callable[[], None]:
        import torch.distributed as dist

        norm = self._norm(member, member.x)

        def call() -> None:
            dist.all_reduce(member.x)
            norm()

        return call

    def _vllm(self, member: Member) -> Callable[[], None]:
        import torch
        from flashinfer.comm import vllm_ar

        if "vllm" not in self._made:
            signals, buffers = (
                self._shared(n) for n in (vllm_ar.meta_size() + VLLM_BYTES, VLLM_BYTES)
            )
            data = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
            handle = vllm_ar.init_custom_ar(signals, data, self.rank, True)
            vllm_ar.register_buffer(handle, buffers)
            self._made["vllm"] = handle, buffers, data
        handle, buffers, _ = self._made["vllm"]
        out = torch.empty_like(member.x)
        norm, mine = self._norm(member, out), buffers[self.rank]

        def call() -> None:
            vllm_ar.all_reduce(handle, member.x, out, mine, VLLM_BYTES, VLLM_BLOCKS)
            norm()

        return call

    def _fused(self, member: Member) -> Callable[[], None]:
        from flashinfer.comm import trtllm_ar

        p = member.p
        workspace = self._workspace()
        oneshot = {"oneshot": True, "twoshot": False}.get(p["variant"])
        pattern = trtllm_ar.AllReduceFusionPattern.kARResidualRMSNorm
        sizes = (member.x, self.world, self.rank, p["tokens"], p["hidden"], workspace)
        outs = (None, member.residual, member.total, member.norm, None, None)
        return lambda: trtllm_ar.trtllm_allreduce_fusion(
            *sizes, True, True, False, pattern, oneshot, *outs, member.weight, EPS, None, None
        )

    def _workspace(self) -> Tensor:
        """FlashInfer's workspace, in memory that ranks share by CUDA's IPC handles: its own default maps it by torch's symmetric
        memory, which asks for NVLink's multicast as well."""
        from flashinfer.comm import trtllm_ar

        if "fused" not in self._made:
            trtllm_ar._alloc_symm_buffer_bytes = lambda size, *_: (self._shared(size), None, None)
            create = trtllm_ar.trtllm_create_ipc_workspace_for_all_reduce_fusion
            self._made["fused"] = create(self.rank, self.world, MOST["tokens"], MOST["hidden"])
        found: Tensor = self._made["fused"][1]
        return found

    def _shared(self, size: int) -> list[int]:
        """Addresses of zeros on each rank that this one reaches."""
        import torch.distributed as dist
        from flashinfer.comm import cuda_ipc

        pointers: list[int] = cuda_ipc.create_shared_buffer(size)
        cuda_ipc.cudart.cudaMemset(ctypes.c_void_p(pointers[self.rank]), 0, size)
        dist.barrier()
        return pointers


def program(rank: int, world: int, folder: str) -> ranks.Opened:
    """A peer."""
    group = Group(rank, world, folder)
    return lambda _, p: group.open(p)


class Session:
    """The first rank and its peers, for all points of a process."""

    def __init__(self, world: int) -> None:
        self.peers = ranks.Peers("ncuflow.targets.allreduce:program", world)
        self.group = Group(0, world, str(self.peers.folder))
        self.link_gb_s = self._link()

    def _link(self) -> float:
        """GB/s of a copy from the second GPU, the fastest of five."""
        import torch

        there = torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda:1")
        here = torch.empty_like(there, device="cuda:0")
        times: list[float] = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            here.copy_(there)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return LINK_BYTES / min(times) / 1e6


_SESSIONS: dict[int, Session] = {}  # one at most: NCCL's group is a process's own


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of point id and rank. The reference covers the whole output of this rank, and each peer says of its own."""
    import torch

    if ranks.counted():
        raise NotHereError(
            "ncu runs a kernel several times, and its peers run it once: it would wait for ever"
        )
    there = torch.cuda.device_count()
    if there < p["ranks"]:
        raise NotHereError(f"needs {p['ranks']} GPUs of one host, here are {there}")
    if _SESSIONS and p["ranks"] not in _SESSIONS:
        raise NotHereError("a process has one number of ranks: another is for a batch of its own")
    if not _SESSIONS:
        _SESSIONS[p["ranks"]] = Session(p["ranks"])
    session = _SESSIONS[p["ranks"]]
    number = session.peers.open(p)
    member = session.group.open(p)
    session.peers.wait()

    def run() -> None:
        session.peers.go(number)
        member.run()

    def reset() -> None:
        session.peers.board.issue(ranks.RESET, number)
        member.reset()

    def output() -> tuple[Tensor, ...]:
        told = session.peers.ask(ranks.CHECK, number)
        return member.norm, member.total, torch.tensor(told, dtype=torch.float32)

    def wanted() -> tuple[Tensor, ...]:
        return *expected(p, member.start, member.weight), torch.ones(p["ranks"] - 1)

    weakref.finalize(run, session.peers.board.issue, ranks.CLOSE, number)
    return Launch(
        run=run,
        output=output,
        reference=wanted,
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (member.norm, member.total),
        reset=reset,
        info={"link_gb_s": round(session.link_gb_s, 1)} | rival(BACKENDS, p),
    )


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
    from flashinfer.jit import comm, norm

    made = {"vllm": comm.gen_vllm_comm_module, NCCL: None}.get(
        p["variant"], comm.gen_trtllm_comm_module
    )
    apart = [norm.gen_norm_module()] if p["variant"] in ("vllm", NCCL) else []
    return [made(), *apart] if made else apart


TARGET = Target(
    name="allreduce",
    title="All-reduce and norm",
    heading="All-reduce Kernels",
    order=13,
    parameters={
        # the fused call's own choice of shots first; vllm, nccl: the norm apart
        "variant": tuple(one.name for one in BACKENDS),
        "ranks": 2,
        "tokens": 128,
        "hidden": 8192,
        "dtype": "bf16",
    },
    choices={"dtype": tuple(ITEMSIZE), "ranks": tuple(ONESHOT_MIB)},
    small={"tokens": 16},
    id="{variant}_R{ranks}_T{tokens}_D{hidden}_{dtype}",
    unable=unable,
    ranks=lambda p: int(p["ranks"]),
    sent=sent,
    free=lambda p: {"variant": "auto"},
    traits=traits,
    resolves=resolves,
    asked=asked,
    backends=BACKENDS,
    memory=lambda p: 12 * message(p) + (4 << 30),
    work=work,
    written=lambda p: 2 * message(p),
    prepare=prepare,
    build=Build(
        generate=modules,
        jit=(
            Jit("allreduce", "flashinfer.comm.trtllm_ar:get_trtllm_comm_module"),
            Jit("vllm_allreduce", "flashinfer.comm.vllm_ar:get_vllm_comm_module"),
        ),
    ),
    source=Source(
        api={
            "python": "flashinfer.comm.trtllm_ar.trtllm_allreduce_fusion",
            "python_vllm": "flashinfer.comm.vllm_ar.all_reduce",
            "jit": "flashinfer.jit.comm.gen_trtllm_comm_module",
            "binding": "csrc/trtllm_allreduce_fusion.cu",
        },
        kernels=(
            Symbol("allreduce_fusion_kernel_oneshot_lamport", "comm/trtllm_allreduce_fusion.cuh"),
            Symbol("allreduce_fusion_kernel_twoshot_sync", "comm/trtllm_allreduce_fusion.cuh"),
            Symbol("cross_device_reduce_1stage", "comm/vllm_custom_all_reduce.cuh"),
            Symbol("cross_device_reduce_2stage", "comm/vllm_custom_all_reduce.cuh"),
        ),
        sources=("trtllm_allreduce_fusion.cu", "vllm_custom_all_reduce.cu"),
    ),
    compared=(
        Choice("allreduce_shots", "One shot or two", "variant", "oneshot", "twoshot"),
        Choice(
            "allreduce_nccl",
            "trtllm_allreduce_fusion, or NCCL and a norm apart",
            "variant",
            "auto",
            NCCL,
        ),
        Choice(
            "allreduce_vllm",
            "vLLM's and a norm apart, or trtllm_allreduce_fusion",
            "variant",
            "vllm",
            "auto",
        ),
        Choice("allreduce_vllm_nccl", "vLLM's or NCCL, a norm apart", "variant", "vllm", NCCL),
    ),
)
