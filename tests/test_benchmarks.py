"""Results and lists of engines' benchmarks become the points of a model's steps, as often as they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncuflow.io import BadInput, UsageError
from ncuflow.sweep import benchmarks, workloads
from ncuflow.sweep.workloads import ServedPoint

LAYERS = 32  # of llama-3-8b


def served(
    folder: Path, *lines: Any, name: str = "bench.json", model: str | None = "llama-3-8b"
) -> tuple[dict[str, Any], list[str], list[ServedPoint]]:
    path = folder / name
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    found, refused = benchmarks.served([path], model)
    attention = ("decode", "prefill")
    counts = {
        one.point.id.partition("_H")[0]: (one.count // LAYERS, one.plans)
        for one in found
        if one.point.target in attention
    }
    return counts, refused, found


STATIC = {"run_name": "x", "batch_size": 4, "input_len": 100, "output_len": 9, "total_latency": 1}


def test_a_static_batch_is_one_prompt_step_and_one_step_for_each_further_token(
    tmp_path: Path,
) -> None:
    more = {**STATIC, "batch_size": 1, "output_len": 1}
    counts, refused, found = served(tmp_path, STATIC, more, name="result.jsonl")
    assert counts == {
        "prefill/paged_S100_B4": (1, 1),
        "decode/B4_L104": (8, 8),
        "prefill/paged_S100_B1": (1, 1),
    }
    assert not refused
    drawn = {
        p["batch"]: n.count for n in found if (p := n.point.params) and n.point.target == "sampling"
    }
    assert drawn == {4: 9, 1: 1}


def test_served_requests_are_prompts_alone_and_steps_of_as_many_as_ran_at_once(
    tmp_path: Path,
) -> None:
    lists = {"input_lens": [100, 300, 0], "output_lens": [11, 31, 0], "completed": 2}
    result = {"model_id": "m", "max_concurrency": 2, "request_rate": float("inf"), **lists}
    counts, _, _ = served(tmp_path, result)
    assert counts == {
        "prefill/paged_S100_B1": (1, 1),
        "prefill/paged_S300_B1": (1, 1),
        "decode/B2_L210": (20, 20),
    }
    # Without the lists, by what they add up to; of SGLang also where no limit was set.
    totals = {"completed": 8, "total_input_tokens": 800, "total_output_tokens": 168}
    counts, _, _ = served(tmp_path, {**totals, "max_concurrency": None, "concurrency": 3.6})
    assert counts == {"prefill/paged_S100_B1": (8, 8), "decode/B4_L110": (40, 40)}
    assert served(tmp_path, {**totals, "max_concurrency": 512})[0]["decode/B8_L110"] == (20, 20)


def test_many_prompts_are_groups_by_their_length(tmp_path: Path) -> None:
    run = {"input_lens": [*range(1, 401)], "output_lens": [1] * 400, "completed": 400}
    counts, _, _ = served(tmp_path, {**run, "max_concurrency": 8})
    assert [*counts.values()] == [(100, 100)] * benchmarks.GROUPS


LISTED = {
    "defaults": {
        "max_concurrency_list": [2, 4],
        "server_parameters": {"tensor_parallel_size": 1},
        "client_parameters": {"num_prompts": 8},
    },
    "tests": [
        {"test_name": "a", "client_parameters": {"random-input-len": 64, "random-output-len": 5}},
        {"test_name": "b", "client_parameters": {"dataset_path": "prompts.json"}},
    ],
}


def test_a_list_of_benchmarks_is_a_run_for_each_number_of_requests_at_once(tmp_path: Path) -> None:
    counts, refused, _ = served(tmp_path, LISTED)
    assert counts == {
        "prefill/paged_S64_B1": (16, 16),
        "decode/B2_L66": (16, 16),
        "decode/B4_L66": (8, 8),
    }
    assert refused == ["bench.json, b: it tells no input_len"] * 2
    latency = [{"test_name": "c", "parameters": {"tensor_parallel_size": 4, **STATIC}}]
    _, _, found = served(tmp_path, latency)
    heads = {
        (p["qo_heads"], p["kv_heads"]) for one in found if "qo_heads" in (p := one.point.params)
    }
    assert heads == {(8, 2)}


def test_what_a_benchmark_leaves_open_is_one_line(tmp_path: Path) -> None:
    for run, line in (
        ({"input_lens": [1], "output_lens": [2]}, "run 1: it tells no completed"),
        ({"input_lens": [1], "output_lens": [2], "completed": 1}, "it tells no max_concurrency"),
        ({"batch_size": "x", "input_len": 1}, "run 1: it tells no batch_size"),
        ({"test_name": "latency"}, "no run of it can be measured: bench.json, latency: it tells"),
    ):
        with pytest.raises(BadInput, match=line):
            served(tmp_path, run)
    with pytest.raises(BadInput, match="--model NAME says of which model"):
        served(tmp_path, STATIC, model=None)
    with pytest.raises(UsageError, match="choose from llama-3-8b"):
        served(tmp_path, STATIC, model="x")
    others: tuple[Any, ...] = ([], {}, "x", [1], [[]])
    for other in others:
        with pytest.raises(BadInput):
            served(tmp_path, other)


def test_without_a_benchmark_a_workload_and_a_model_count_both(tmp_path: Path) -> None:
    usual = workloads.of_model("llama-3-8b")
    assert benchmarks.served([], "llama-3-8b") == (usual, [])
    cases = tmp_path / "cases.txt"
    cases.write_text("--routine rmsnorm --batch_size 32 --num_heads 4 --hidden_size 128\n")
    found, _ = benchmarks.served([cases], "llama-3-8b")
    assert [*found[1:]] == usual
