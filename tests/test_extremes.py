"""Extreme inputs of targets and their references, on the CPU: FlashInfer's functions are written out in torch, right or wrong."""

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ncuflow.run.gpu import Gpu
from ncuflow.run.prepare import check, check_extreme
from ncuflow.sweep.points import points
from ncuflow.target import attention as attention_kit
from ncuflow.target.contract import load
from ncuflow.target.inputs import TINY, page_table
from ncuflow.target.launch import Inputs, Launch

torch = pytest.importorskip("torch")


class Cpu(Gpu):
    """What the check takes of a device, by torch on the CPU."""

    def __init__(self) -> None:
        self.torch = torch

    def synchronize(self) -> None: ...


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inputs.__init__, "__defaults__", (0, "cpu"))


def flashinfer(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    for name in ("flashinfer", "flashinfer.page", "flashinfer.norm"):
        module = ModuleType(name)
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, name, module)


def judged(target: str, **params: Any) -> dict[str, str | None]:
    """Why a launch is wrong, by the inputs it had: those of the point, then each extreme."""
    (point,) = points(load(target), [params])
    launch: Launch = load(target).prepare(point.params)
    launch.run()
    found = {"plain": check(Cpu(), launch).wrong}
    for what, put in launch.extremes.items():
        put()
        found[what] = check_extreme(Cpu(), launch).wrong
    return found


# --- states ----------------------------------------------------------------------------------


SUMS = "finite sums far below 0"


def merged(v: Any, s: Any, guarded: bool) -> tuple[Any, Any]:
    most = s.max(dim=1, keepdim=True).values
    weight = 2 ** (s - most).nan_to_num(nan=-torch.inf) if guarded else 2 ** (s - most)
    total = weight.sum(dim=1, keepdim=True)
    share = weight / total.clamp(min=1e-30) if guarded else weight / total
    value = (v.float() * share[..., None]).sum(dim=1).to(v.dtype)
    return value, (most + total.log2())[:, 0]


@pytest.mark.parametrize("variant", ["merge_state", "merge_states"])
def test_states_of_no_tokens_are_told_from_others(variant, monkeypatch):
    for guarded in (True, False):

        def many(v: Any, s: Any, guarded: bool = guarded) -> Any:
            return merged(v, s, guarded)

        def two(v_a: Any, s_a: Any, v_b: Any, s_b: Any, many: Any = many) -> Any:
            return many(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))

        flashinfer(monkeypatch, merge_states=many, merge_state=two)
        found = judged("merge_state", variant=variant, seq_len=5)
        wrong = None if guarded else "the output is not finite everywhere"
        assert found == {"plain": None, SUMS: None, "states of no tokens": wrong}


@pytest.mark.parametrize("variant", ["merge_state", "merge_states"])
def test_a_state_below_a_sentinel_is_no_state_of_no_tokens(variant, monkeypatch):
    def many(v: Any, s: Any) -> Any:
        return merged(v, s.clamp(min=-5e4), True)

    def two(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> Any:
        return many(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))

    flashinfer(monkeypatch, merge_states=many, merge_state=two)
    found = judged("merge_state", variant=variant, seq_len=5)
    assert found["plain"] is None and found[SUMS] is not None


# --- sampling --------------------------------------------------------------------------------


def drawn(probs: Any) -> Any:
    return torch.multinomial(probs, 1)[:, 0].to(torch.int32)


def test_a_token_that_is_ruled_out_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"batch": 4, "vocab": 33, "logit_std": 1}
    flashinfer(monkeypatch, sampling_from_logits=lambda x: drawn(x.softmax(-1)))
    assert set(judged("sampling", variant="from_logits", **params).values()) == {None}
    # Right until no other token than the last is left to a row.
    flashinfer(monkeypatch, sampling_from_probs=lambda x: torch.full((4,), 30, dtype=torch.int32))
    found = judged("sampling", variant="from_probs", **params)
    assert found["plain"] is None and "above" in str(found["tokens that are ruled out"])


def test_a_number_that_puts_any_token_ahead_is_a_wrong_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gumbel noise of 46, of a uniform number that rounded to one."""
    params = {"batch": 64, "vocab": 33, "logit_std": 1}

    def sample(logits: Any, ahead: float) -> Any:
        noise = -(-torch.rand_like(logits).clamp(1e-30, 1 - 1e-7).log()).log()
        noise[::8, 5] = ahead
        return (logits + noise).argmax(-1).to(torch.int32)

    wrong = {}
    for ahead in (3.0, 46.0):
        flashinfer(monkeypatch, sampling_from_logits=lambda x, ahead=ahead: sample(x, ahead))
        found = judged("sampling", variant="from_logits", **params)
        wrong[ahead] = [name for name, why in found.items() if why is not None]
    assert wrong == {3.0: [], 46.0: ["one token all but certain"]}


def test_what_is_certain_is_drawn_and_renormed(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"batch": 4, "vocab": 33, "top_k": 5, "logit_std": 1000}

    def renormed(probs: Any, k: int) -> Any:
        kept = probs * (probs >= probs.topk(k).values[:, -1:])
        return kept / kept.sum(-1, keepdim=True)

    functions = {"softmax": lambda x: x.softmax(-1), "top_k": lambda x, k: x.topk(k)}
    functions["top_k_sampling_from_probs"] = lambda probs, k: drawn(renormed(probs, k))
    flashinfer(monkeypatch, top_k_renorm_probs=renormed, **functions)
    for variant in ("top_k", "top_k_renorm", "softmax", "select"):
        assert set(judged("sampling", variant=variant, **params).values()) == {None}, variant


# --- rows and caches -------------------------------------------------------------------------


def test_an_infinity_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def rmsnorm(x: Any, weight: Any, eps: float, out: Any, leak: bool = False) -> None:
        wide = x.float()
        square = (wide * wide).mean(-1, keepdim=True)
        square = square.cumsum(0) if leak else square
        out.copy_(wide / (square + eps).sqrt() * weight)

    flashinfer(monkeypatch, rmsnorm=rmsnorm)
    found = judged("rmsnorm", rows=5, hidden=64)
    assert found == {"plain": None, TINY: None, "an infinity in a row": None}

    def leaking(x: Any, weight: Any, eps: float, out: Any) -> None:
        """Right but where the row before holds what is no number."""
        rmsnorm(x, weight, eps, out)
        out[1:] += out[:-1] * 0

    flashinfer(monkeypatch, rmsnorm=leaking)
    found = judged("rmsnorm", rows=5, hidden=64)
    assert found["plain"] is None and found["an infinity in a row"] is not None


def test_infinities_are_kept_by_what_copies_and_what_multiplies(monkeypatch):
    for limit in (torch.inf, 60000.0):

        def append(k, v, batch, place, cache, *table, limit=limit):
            indices, indptr, _ = table
            page = indices[indptr[batch.long()].long() + place.long() // 16].long()
            for new, half in zip((k, v), cache, strict=True):
                half[page, place.long() % 16] = new.clamp(-limit, limit)

        flashinfer(monkeypatch, append_paged_kv_cache=append, append_paged_mla_kv_cache=append)
        found = judged("kv_append", batch=2, append_len=17, dtype="f16")
        assert found["plain"] is None and (found["infinities"] is None) == (limit == torch.inf)

        def silu(x: Any, out: Any, limit: float = limit) -> None:
            gate, up = x.float().chunk(2, -1)
            out.copy_((torch.nn.functional.silu(gate) * up).clamp(-limit, limit))

        flashinfer(monkeypatch, silu_and_mul=silu)
        found = judged("activation", tokens=3, hidden=64)
        assert found["plain"] is None and (found["infinities"] is None) == (limit == torch.inf)


@pytest.mark.parametrize(
    ("target", "params"),
    [("activation", {"tokens": 3, "hidden": 64}), ("rmsnorm", {"rows": 3, "hidden": 64})],
)
def test_tiny_numbers_and_zeros_of_the_other_sign_are_put(target, params, monkeypatch) -> None:
    seen: list[Any] = []

    def call(x: Any, *more: Any, out: Any, **how: Any) -> None:
        seen.append(x.clone())
        out.zero_()

    flashinfer(monkeypatch, silu_and_mul=call, rmsnorm=call)
    (point,) = points(load(target), [params])
    launch = load(target).prepare(point.params)
    launch.extremes[TINY]()
    launch.run()
    row = seen[-1][0]
    assert 0 < row[0] < torch.finfo(row.dtype).smallest_normal
    assert row[1] == 0 and torch.signbit(row[1])


def test_a_logit_is_far_for_every_head_and_16_bits_hold_its_factors() -> None:
    for dim in (64, 96, 128, 192, 256):
        assert attention_kit.FAR * attention_kit.far(dim) / dim**0.5 * 1.4427 > 50_000
        for dtype in (torch.float16, torch.bfloat16):
            assert float(torch.tensor(attention_kit.far(dim), dtype=dtype)) == attention_kit.far(
                dim
            )


def test_first_and_last_token_of_pages_and_what_lies_behind() -> None:
    table = page_table(Inputs("x"), 4, [17, 0, 16, 3], 16)
    pages = table.indices.tolist()
    assert table.last_page_len.tolist() == [1, 0, 16, 3]
    assert [each.tolist() for each in table.first()] == [[pages[0], pages[2], pages[3]], [0] * 3]
    assert [each.tolist() for each in table.last()] == [pages[1:4], [0, 15, 2]]
    found, free = (each.tolist() for each in table.behind())
    assert list(zip(found, free, strict=True)) == [
        *((pages[1], place) for place in range(1, 16)),
        *((pages[3], place) for place in range(3, 16)),
    ]
    cache = torch.zeros(4, 16, 2)
    assert table.gather(cache, 1, 2).shape == (1, 0, 2)


# --- attention -------------------------------------------------------------------------------


class Wrapper:
    """Attention over pages, row by row. fault: what of it is wrong."""

    fault = ""

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._plan_info: list[int] = []

    def plan(self, *given: Any, **settings: Any) -> None:
        integers = [one for one in given if isinstance(one, torch.Tensor)]
        self.queries = integers[0] if len(integers) == 4 else None
        self.indptr, self.indices, self.last = integers[-3:]
        self.causal = settings.get("causal", False)
        self.mask = settings.get("packed_custom_mask")

    def run(self, q: Any, cache: Any, out: Any = None, return_lse: bool = False) -> Any:
        out = torch.empty_like(q) if out is None else out
        sums = torch.full(q.shape[:2], torch.nan if self.fault == "none" else -torch.inf)
        first = self.queries.tolist() if self.queries is not None else range(len(q) + 1)
        for row in range(len(self.last)):
            pages = self.indices[int(self.indptr[row]) : int(self.indptr[row + 1])].long()
            k, v = (half[pages].flatten(0, 1).float() for half in cache)
            length = (len(pages) - 1) * cache[0].shape[1] + int(self.last[row]) if len(pages) else 0
            for query in range(first[row], first[row + 1]):
                last = length - (first[row + 1] - 1 - query) * self.causal
                seen = torch.arange(length) < last
                if self.mask is not None:
                    bits = (self.mask[:, None] >> torch.arange(8)) % 2
                    seen = bits.flatten()[query * length :][:length].bool()
                out[query] = self._one(q[query].float(), k, v, seen, length)
                if return_lse and seen.any():
                    sums[query] = self._sum(q[query].float(), k[:length][seen])
                elif self.fault == "finite":
                    sums[query] = -5e4
        return (out, sums) if return_lse else out

    def _sum(self, q: Any, k: Any) -> Any:
        scores = torch.einsum("hd,lhd->hl", q, k.repeat_interleave(len(q) // k.shape[1], 1))
        found = (scores / q.shape[-1] ** 0.5).logsumexp(-1)
        if self.fault == "e":  # a natural logarithm
            return found
        return found.clamp(min=-3e4) / 0.6931472 if self.fault == "sum" else found / 0.6931472

    def _one(self, q: Any, k: Any, v: Any, seen: Any, length: int) -> Any:
        if not length:
            return float(self.fault == "empty")
        if not seen.any() and self.fault != "masked":
            return 0.0
        read = k.shape[0] if self.fault == "behind" else length
        k, v = (x[:read].repeat_interleave(len(q) // x.shape[1], 1).transpose(0, 1) for x in (k, v))
        scores = (k @ q[:, :, None])[..., 0] / q.shape[-1] ** 0.5
        hidden = torch.ones(read, dtype=torch.bool)
        hidden[:length] = ~seen
        scores[:, hidden] = -torch.inf
        if (
            self.fault == "sentinel"
        ):  # what no key was seen of begins there, and none below it raises it
            weight = (scores - scores.max(-1, keepdim=True).values.clamp(min=-5e4 * 0.6931)).exp()
            total = weight.sum(-1, keepdim=True)
            return (torch.where(total > 0, weight / total, weight)[:, :, None] * v).sum(1)
        if self.fault == "overflow":
            scores = scores.clamp(max=3e4)
        if self.fault == "key":
            scores = scores.masked_fill(k[..., 0].isinf(), 0.0)
        if self.fault == "value":
            v = v.clamp(max=60000.0)
        # A score of minus infinity in all places leaves NaN, and a token that is not seen has no value.
        weight = scores.softmax(-1)[:, :, None]
        return (weight * v.where(weight > 0, v * weight)).sum(1)


class MlaWrapper:
    """BatchMLAPagedAttentionWrapper, with an offset of so many bits and an LSE to this base."""

    bits, base = 60, 2.0

    def __init__(self, *given: Any, **settings: Any) -> None: ...

    def plan(self, rows: Any, indptr: Any, indices: Any, tokens: Any, *given: Any) -> None:
        self.indptr, self.indices, self.tokens = indptr, indices.clone(), tokens
        self.scale = given[5]

    def run(
        self, q: Any, q_pe: Any, cache: Any, cache_pe: Any, out: Any, return_lse: bool = False
    ) -> Any:
        sums = torch.empty(q.shape[:2])
        for row, count in enumerate(self.tokens.tolist()):
            pages = self.indices[int(self.indptr[row]) : int(self.indptr[row + 1])].long()
            pages = pages * cache[0].numel() % 2**self.bits // cache[0].numel()
            k, pe = (half[pages].flatten(0, 1)[:count].float() for half in (cache, cache_pe))
            scores = (q[row].float() @ k.T + q_pe[row].float() @ pe.T) * self.scale
            out[row] = scores.softmax(-1) @ k
            sums[row] = scores.logsumexp(-1) / math.log(self.base)
        return (out, sums) if return_lse else out


def test_pages_far_into_a_large_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer(monkeypatch)
    module = ModuleType("flashinfer.mla")
    module.__dict__["BatchMLAPagedAttentionWrapper"] = MlaWrapper
    monkeypatch.setitem(sys.modules, "flashinfer.mla", module)
    monkeypatch.setattr("ncuflow.target.attention.WORKSPACE_BYTES", 1)
    monkeypatch.setitem(load("mla_decode").prepare.__globals__, "plan_info", lambda wrapper: {})
    shape = {"batch": 2, "kv_len": 33, "heads": 16, "page_size": 8, "backend": "fa2"}
    far = "pages behind element 2^32 of the cache"
    assert far not in judged("mla_decode", **shape)  # for want of room
    monkeypatch.setattr("ncuflow.target.attention.LARGE", 2**17)
    for bits, wrong in ((60, False), (17, True)):
        monkeypatch.setattr(MlaWrapper, "bits", bits)
        found = judged("mla_decode", **shape)
        assert found.pop(far) is not None if wrong else found.pop(far) is None
        assert set(found.values()) == {None}
    monkeypatch.setattr(MlaWrapper, "bits", 60)
    monkeypatch.setattr(MlaWrapper, "base", math.e)
    found = judged("mla_decode", **shape)
    assert {what for what, wrong in found.items() if wrong} == {
        LSE,
        f"the LSE of {BELOW}",
        f"the LSE of {ABOVE}",
    }


LSE = "its LSE"
BELOW, ABOVE = "finite logits far below 0", "finite logits far above 0"
ALONE = "one key that is not minus infinity"
BEHIND = "NaN behind the last token"
KEY, VALUE = "a key of minus infinity", "an infinite value"
MASK, FEWER = "a mask that leaves rows one key or none", "fewer keys than queries"


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> type[Wrapper]:
    names = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")
    flashinfer(monkeypatch, **dict.fromkeys(names, Wrapper))
    monkeypatch.setattr("ncuflow.target.attention.WORKSPACE_BYTES", 1)
    for target in ("decode", "prefill"):
        space = load(target).prepare.__globals__
        monkeypatch.setitem(space, "plan_info", lambda wrapper: {"backend": "fa2"})
    return Wrapper


@pytest.mark.parametrize(
    ("target", "params", "more"),
    [
        ("decode", {"batch": 5, "lengths": "1x0_1x17_2x0_1x1"}, ()),
        ("decode", {"batch": 2, "kv_len": 33}, ()),
        ("prefill", {"batch": 2, "seq_len": 9, "causal": True}, (FEWER,)),
        ("prefill", {"batch": 1, "seq_len": 21, "cached": 8}, (MASK, FEWER)),
        ("prefill", {"batch": 3, "lengths": "1x0_1x7_1x0", "causal": False}, ()),
    ],
)
def test_attention_over_pages_at_its_extremes(target, params, more, attention, monkeypatch):
    shape = {"qo_heads": 4, "kv_heads": 2, "head_dim": 64, **params}
    sums = (LSE, f"the LSE of {BELOW}", f"the LSE of {ABOVE}")
    assert judged(target, **shape) == dict.fromkeys(
        ("plain", *sums, BELOW, ABOVE, BEHIND, KEY, VALUE, ALONE, *more)
    )
    faults = {"sentinel": sums[1:], "e": sums, "sum": sums[1:], "overflow": sums[2:]}
    faults |= {"behind": [BEHIND], "key": [KEY], "value": [VALUE], "masked": more}
    empty = "x0" in params.get("lengths", "") and target == "decode"
    faults["finite"] = sums if empty else more
    for fault, what in faults.items():
        monkeypatch.setattr(attention, "fault", fault)
        found = judged(target, **shape)
        wrong = [name for name, why in found.items() if why is not None]
        assert wrong[:1] == [*what[:1]], (fault, found)
    monkeypatch.setattr(attention, "fault", "empty")
    assert (judged(target, **shape)["plain"] is not None) == empty


class Ragged(Wrapper):
    """Of contiguous keys and values, as pages of one token."""

    def plan(self, rows: Any, tokens: Any, *given: Any, **settings: Any) -> None:
        self.queries, self.indptr = rows, tokens
        self.indices = torch.arange(int(tokens[-1]))
        self.last, self.causal = (tokens[1:] > tokens[:-1]).int(), settings["causal"]
        self.mask = settings.get("packed_custom_mask")

    def run(self, q: Any, k: Any, v: Any, out: Any = None, return_lse: bool = False) -> Any:
        return super().run(q, (k[:, None], v[:, None]), out, return_lse)


SEVERAL = {
    "cascade": {"variant": "flat", "batch": 2, "prefix": 16, "kv_len": 9},
    "pod": {"variant": "fa2", "chunk": 5, "context": 9, "batch": 2, "kv_len": 9},
    "prefill": {"layout": "ragged", "batch": 2, "seq_len": 9, "backend": "fa2"},
}


@pytest.mark.parametrize("target", SEVERAL)
def test_far_logits_in_every_kind_of_attention(target, attention, monkeypatch) -> None:
    monkeypatch.setattr(
        sys.modules["flashinfer"], "BatchPrefillWithRaggedKVCacheWrapper", Ragged, raising=False
    )
    monkeypatch.setitem(load(target).prepare.__globals__, "plan_info", lambda wrapper: {})
    shape = {"qo_heads": 4, "kv_heads": 2, "head_dim": 64, **SEVERAL[target]}
    assert set(judged(target, **shape).values()) == {None}
    for kind in (Wrapper, Ragged):
        if (kind is Ragged) != (target == "cascade") or target == "pod":
            monkeypatch.setattr(kind, "fault", "sentinel")
            found = judged(target, **shape)
            monkeypatch.setattr(kind, "fault", "")
            wrong = [name for name, why in found.items() if why is not None]
            assert wrong and BELOW in wrong[0], found


class Levels(Wrapper):
    """Attention over pages of a prefix and over a sequence's own, merged."""

    def plan(self, rows: Any, *given: Any, **settings: Any) -> None:
        self.levels = [Wrapper() for _ in rows]
        for level, each, *table in zip(self.levels, rows, *given[:3], strict=True):
            level.plan(each, *table)
            level.fault = self.fault

    def run(self, q: Any, cache: Any) -> Any:
        pairs = zip(*(level.run(q, cache, return_lse=True) for level in self.levels), strict=True)
        value, sums = (torch.stack(both, 1) for both in pairs)
        return merged(value, sums, False)[0].to(q.dtype)


def test_a_level_without_a_token_adds_nothing(attention: type[Wrapper], monkeypatch) -> None:
    monkeypatch.setattr(
        sys.modules["flashinfer"], "MultiLevelCascadeAttentionWrapper", Levels, raising=False
    )
    monkeypatch.setitem(load("cascade").prepare.__globals__, "plan_info", lambda wrapper: {})
    shape = {"qo_heads": 4, "kv_heads": 2, "head_dim": 64, **SEVERAL["cascade"]}
    shape |= {"variant": "cascade", "batch": 3}
    assert set(judged("cascade", **shape).values()) == {None}
    monkeypatch.setattr(Levels, "fault", "none")
    wrong = [name for name, why in judged("cascade", **shape).items() if why is not None]
    assert wrong == ["sequences without a token of their own"]


def test_the_worst_of_a_result_of_infinities_is_one_that_is_asked_for() -> None:
    inf, nan = float("inf"), float("nan")
    expected = torch.tensor([[1.0, inf], [nan, -inf]])
    output = expected.clone()

    def wrong() -> tuple[Any, Any]:
        launch = Launch(lambda: None, lambda: (output.clone(),), lambda: (expected,), 3e-2, tuple)
        found = check_extreme(Cpu(), launch)
        return found.wrong, found.worst

    assert wrong() == (None, None)
    output[0, 0], output[1, 0] = 1.5, 2.0  # of the reference that is no number nothing is asked
    worst = {"output": 0, "index": [0, 0], "got": 1.5, "expected": 1.0}
    assert wrong() == ("relative L2 error 0.5 is above 0.03", worst)
    output[1, 1] = 3.0
    worst = {"output": 0, "index": [1, 1], "got": 3.0, "expected": None}
    assert wrong() == ("the output is not finite everywhere", worst)


def test_a_window_leaves_the_value_that_not_every_row_sees(attention: type[Wrapper]) -> None:
    (point,) = points(load("prefill"), [{"batch": 1, "seq_len": 9, "window": 1024}])
    names = load("prefill").prepare(point.params).extremes.keys()
    sums = {LSE, f"the LSE of {BELOW}", f"the LSE of {ABOVE}"}
    assert names == {*sums, BELOW, ABOVE, BEHIND, KEY}
