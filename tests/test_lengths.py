"""Uneven lengths: as many tokens as even ones, from few words, refused before they reach a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from ncuflow.sweep import points as sweep
from ncuflow.target.attention import LENGTHS, length_edges, length_refusal, lengths
from ncuflow.target.contract import known, load


def of(kind: str, batch: int, mean: int = 0) -> list[int]:
    return lengths({"lengths": kind, "batch": batch, "kv_len": mean}, "kv_len")


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(("batch", "mean"), [(1, 1), (3, 2), (32, 2048), (256, 77)])
def test_a_distribution_has_as_many_tokens_as_even_lengths(
    kind: str, batch: int, mean: int
) -> None:
    found = of(kind, batch, mean)
    assert len(found) == batch and sum(found) == batch * mean and min(found) >= 1
    assert found == sorted(found, reverse=True)


def test_zipf_falls_as_one_over_the_rank_and_log_normal_about_its_median() -> None:
    zipf = of("zipf", 64, 4096)
    assert zipf[0] / zipf[1] == pytest.approx(2, rel=0.01)
    assert zipf[0] / zipf[3] == pytest.approx(4, rel=0.01)
    normal = of("lognormal", 101, 4096)  # quantiles p and 1-p lie e^(±z) from the median
    assert normal[10] / normal[50] == pytest.approx(normal[50] / normal[90], rel=0.01)
    assert normal[0] / normal[50] > 8
    narrow = of("lognormal_narrow", 101, 4096)
    assert narrow[0] / narrow[50] == pytest.approx((normal[0] / normal[50]) ** 0.5, rel=0.01)


def test_a_list_names_each_sequence() -> None:
    assert of("1x32768_3x512", 4) == [32768, 512, 512, 512]
    target = load("decode")
    [point] = sweep.points(target, [{"batch": 4, "lengths": "1x32768_3x512", "kv_len": [64, 2048]}])
    assert point.id == "decode/B4_L1x32768_3x512_H32_K32_D128_P16_f16_cc"
    tokens, heads = 32768 + 3 * 512, 32 * 128
    assert target.work(point.params).bytes == 2 * (2 * 4 * heads + 2 * tokens * heads)
    assert target.work(point.params).flops == 2 * tokens * 32 * 2 * 128


def test_causal_prefill_counts_the_square_of_each_length() -> None:
    target = load("prefill")
    p = {**target.parameters, "batch": 2, "lengths": "1x100_1x300"}
    assert target.work(p).flops == (100**2 + 300**2) * 32 * 2 * 128


def test_a_chunk_of_a_prompt_reads_what_is_cached_before_it() -> None:
    p = load("prefill").completed({"seq_len": 512, "cached": 1536, "batch": 2, "kv_heads": 8})
    work = load("prefill").work(p)
    assert work.flops == 2 * 512 * (2 * 2048 - 512) * 32 * 2 * 128
    assert work.bytes == 2 * 2 * 128 * (2 * 512 * 32 + 2 * 2048 * 8)
    assert "S512_C1536_B2" in load("prefill").point_id(p)


@pytest.mark.parametrize("bad", ["", "0x5", "5", "1x", "1x5_", "gaussian", "1x-5", "1x5 1x6"])
def test_a_bad_list_is_one_line_that_shows_a_good_one(bad: Any) -> None:
    said = "even, lognormal_narrow, lognormal, zipf, or such as 1x32768_31x512"
    with pytest.raises(ValueError, match=said):
        sweep.points(load("decode"), [{"lengths": bad}])


def test_a_list_of_another_batch_is_refused_before_the_gpu() -> None:
    target = load("decode")
    p = {**target.parameters, "batch": 3, "lengths": "1x9_1x5"}
    gpu = {"compute_capability": "9.0", "memory_bytes": 1 << 36}
    assert target.skip(p, gpu) == "lengths 1x9_1x5 are those of 2 sequences, not of 3"
    assert target.skip({**p, "batch": 2}, gpu) is None


def test_pages_of_uneven_sequences_are_gathered_in_order() -> None:
    torch = pytest.importorskip("torch")
    from ncuflow.target.inputs import page_table
    from ncuflow.target.launch import Inputs

    table = page_table(Inputs("point", device="cpu"), 3, [33, 5, 5], 16)
    assert table.indptr.tolist() == [0, 3, 4, 5]
    assert table.last_page_len.tolist() == [1, 5, 5]
    cache = torch.arange(5 * 16).view(5, 16, 1)
    first, others = table.gather(cache, 0, 1), table.gather(cache, 1, 3)
    assert first.shape == (1, 33, 1) and others.shape == (2, 5, 1)
    pages = table.indices.tolist()
    assert first[0, 32, 0] == pages[2] * 16
    assert others[1, 4, 0] == pages[4] * 16 + 4


@pytest.mark.parametrize("page", [1, 2, 16])
def test_edges_are_one_token_what_is_around_a_page_and_uneven_lengths(page: int) -> None:
    p = {"batch": 3, "kv_len": 64, "page_size": page, "lengths": "even"}
    found = [{**p, **edge} for edge in length_edges(p, "kv_len")]
    assert all(length_refusal(edge) is None for edge in found)
    each = [lengths(edge, "kv_len") for edge in found]
    assert {1, page, page + 1} <= {one for tokens in each for one in tokens}
    assert any(len(set(tokens)) > 1 and page + 1 in tokens for tokens in each)
    assert lengths({**p, "lengths": "zipf"}, "kv_len") in each
    # without a token: in front, in a row between others, and behind all
    empty = [tokens for tokens in each if 0 in tokens]
    assert any(tokens[0] == 0 and tokens[2:4] == [0, 0] and tokens[-1] for tokens in empty)
    assert any(tokens[0] and tokens[-1] == 0 for tokens in empty)


def test_the_edges_of_every_target_are_points_of_it() -> None:
    having = set()
    for target in known().values():
        for edge in target.edges(target.parameters):
            having.add(target.name)
            block = {**target.parameters, **edge}
            (params,) = sweep.expand([block], target.parameters, target.choices)
            assert target.unable(params, {"compute_capability": "9.0"}) is None
            assert target.point_id(params) != target.point_id(target.parameters)
    others = {"kv_append", "merge_state", "rmsnorm", "rope", "activation", "sampling"}
    assert having >= {"decode", "mla_decode", "prefill", "cascade"} | others


def test_lengths_of_no_token_at_all_are_refused() -> None:
    assert "1x0" in LENGTHS and "1x00" not in LENGTHS and "0x1" not in LENGTHS
    p = {"batch": 2, "kv_len": 64, "page_size": 16, "lengths": "2x0"}
    assert length_refusal(p) == "lengths 2x0 leave no sequence a token"
    assert length_refusal(p | {"lengths": "1x0_1x1"}) is None
