"""Several ranks that launch what the first one launches, on stand-ins that need no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import Recorded

from ncuflow.expression import holds
from ncuflow.findings.choices import effects
from ncuflow.findings.opportunities import WON, found, scopes
from ncuflow.gpu import use
from ncuflow.model import Results
from ncuflow.pages.markdown import figures, guide
from ncuflow.pages.markdown.pages import to_try
from ncuflow.pages.markdown.rendering import environment
from ncuflow.pages.section import target_section
from ncuflow.target import ranks
from ncuflow.target.contract import load

STAND_IN = "rank_stand_in:program"
Started = Callable[..., ranks.Peers]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made: list[ranks.Peers] = []

    def start(world: int, **how: Any) -> ranks.Peers:
        made.append(ranks.Peers(STAND_IN, world, **how))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_every_rank_does_what_the_first_was_told_as_often_and_in_order(started: Started) -> None:
    peers = started(3)
    first = peers.open({"name": "a", "runs": 5})
    second = peers.open({"name": "b", "runs": 1})
    for _ in range(3):
        peers.go(first)
    peers.board.issue(ranks.RESET, first)
    for _ in range(5):
        peers.go(first)
    peers.go(second)
    assert peers.ask(ranks.CHECK, first) == [1, 1] and peers.ask(ranks.CHECK, second) == [1, 1]
    opened = {path.name for path in peers.folder.glob("opened*")}
    assert opened == {f"opened{rank}-{name}" for rank in (1, 2) for name in "ab"}
    peers.go(second)  # once too often
    assert peers.ask(ranks.CHECK, second) == [0, 0]


def test_more_commands_than_a_peer_may_be_behind_wait_for_it(started: Started) -> None:
    peers, runs = started(2), 3 * ranks.RING
    member = peers.open({"name": "a", "runs": runs})
    for _ in range(runs):
        peers.go(member)
    assert peers.ask(ranks.CHECK, member) == [1]


def test_a_rank_that_dies_ends_all_with_one_line_and_leaves_nothing(started: Started) -> None:
    said: list[str] = []
    peers = started(3, on_death=said.append)
    member = peers.open({"name": "a", "runs": 1, "dies": 2})
    peers.go(member)
    with pytest.raises(RuntimeError, match="a rank does not answer"):
        peers.ask(ranks.CHECK, member)
    peers.watching.join(10)
    assert said == ["error: rank 2 of 3 ended with status 7: the kernel of this rank is lost"]
    assert not peers.folder.exists() and all(one.poll() is not None for one in peers.processes)


def test_ncu_is_known_by_the_job_that_it_is_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(use.JOB, raising=False)
    assert ranks.JOB == use.JOB and not ranks.counted()
    for job, counted in (("ncu allreduce sweep", True), ("nsys allreduce trace", False)):
        monkeypatch.setenv(use.JOB, job)
        assert ranks.counted() is counted


@pytest.mark.parametrize(
    ("world", "tokens", "chosen", "parts"),
    [
        (2, 128, "oneshot", 1),
        (2, 8192, "oneshot", 1),
        (4, 512, "oneshot", 1.5),
        (4, 1024, "twoshot", 1.5),  # all but its own part goes round twice
    ],
)
def test_what_is_chosen_goes_by_the_message_and_what_has_to_be_sent_by_the_ranks_alone(
    world, tokens, chosen, parts
):
    """A variant that sends twice as much in as long has the same bus bandwidth."""
    target = load("allreduce")
    p = {**target.parameters, "ranks": world, "tokens": tokens}
    assert target.resolves(p, "9.0") == {"variant": chosen}
    module = __import__("ncuflow.targets.allreduce", fromlist=["sent"])
    for variant in ("auto", "oneshot", "twoshot", "vllm", "nccl"):
        assert module.sent({**p, "variant": variant}) == parts * tokens * 8192 * 2


# --- what pages say of it ---------------------------------------------------------------------


@pytest.fixture
def measured(recorded: Recorded) -> Results:
    return recorded("h200/0.7.2/ranks", "allreduce")


def page(results: Results) -> str:
    shown = target_section(results) | guide.chapter(results, None)
    given = {"provenance": results["provenance"], "t": shown}
    return environment().get_template("target.md.j2").render(given)


def _shots(rows):
    return [r for r in rows if r.group == WON and r.opportunity.choice == "allreduce_shots"]


def test_two_shots_are_advised_nowhere_where_a_pair_that_meets_the_condition_loses(measured):
    """On 2 GPUs they lose at the sizes at which they win on 4; the boundary is the message, not the tokens alone."""
    (won,) = _shots(found(measured))
    every = scopes(measured)
    shots = next(c for c in load("allreduce").compared if c.key == "allreduce_shots")
    pairs = [pair for pair in effects(shots, measured) if pair.metric == "time_cold_us"]
    met = [pair for pair in pairs if holds(won.opportunity.where, every[pair.base_point])]
    assert met and all(pair.change < 0 for pair in met)
    assert any(pair.change > 0.02 for pair in pairs if every[pair.base_point]["tokens"] >= 512)
    assert {every[pair.base_point]["ranks"] for pair in met} == {4}  # of 8 none was timed


def test_a_default_caller_is_told_of_the_pairs_at_which_flashinfer_takes_the_other(measured):
    """From 16 MiB on FlashInfer itself takes two shots on 4 GPUs: what these bring is no gain over its choice."""
    tried = to_try({"allreduce": target_section(measured)})
    (row,) = [r for r in tried if r["what"].startswith("two shots")]
    sizes = {scopes(measured)[point]["message_mib"] for point in row["points"]}
    assert sizes == {4, 8} and row["pairs"] == len(row["points"]) == row["more"] + 1 == 2
    (won,) = _shots(found(measured))
    gains = sorted(pair.change for pair in won.counted)
    assert gains == pytest.approx([-0.334, -0.245], abs=0.002)
    assert won.saved == pytest.approx(-sum(gains)) and len(won.effects) == 2
    assert "over 2 pairs" in row["brought"] and "40.9" not in row["brought"]
    # The points were asked for one shot: that FlashInfer takes it by itself is said.
    target = load("allreduce")
    for point in row["points"]:
        params = next(p["params"] for p in measured["points"] if p["point"] == point)
        assert target.resolves({**params, "variant": "auto"}, "9.0") == {"variant": "oneshot"}
    assert "where trtllm_allreduce_fusion (mnnvl was not timed) takes one" in row["what"]


def test_what_ranks_send_is_held_against_a_copy_between_gpus_and_not_against_dram(measured):
    rows = [point["measurement"] for point in measured["points"]]
    assert all(row["ceiling_dram_gbs_datasheet"] is None for row in rows)
    (axes,) = figures.sweep(measured).axes
    assert not [line for line in axes.lines if "ceiling" in str(line.get_label())]
    text = page(measured)
    best = target_section(measured)["best"]
    info = next(p["info"] for p in measured["points"] if p["point"] == best["id"])
    assert (
        best["label"] == "auto_R4_T8192_D8192_bf16"
    )  # forced to one shot it sends more, and longer
    gbs = 1.5 * 2 * 8192 * 8192 / best["m"]["time_cold_us"] / 1e3
    share = f"{100 * gbs / info['link_gb_s']:.0f} % of a copy between two GPUs"
    said = f"{gbs:.0f} GB/s of bus bandwidth, {share}"
    assert said in text.replace("\u202f", " ").replace("\u00a0", " ")
    assert "copy or read" not in text and "of measured peak" not in text
    quick = guide.performance(guide_row(measured))
    assert quick and quick["best"]["measurement"]["gbs"] == pytest.approx(gbs)


def guide_row(results: Results) -> Any:
    return guide.kernel(load("allreduce"), results, target_section(results))


def test_the_page_says_which_is_the_fastest_at_which_size(measured: Results) -> None:
    """Each cell is the fastest row of its size and ranks, cold or hot, or FlashInfer's choice where that takes as long."""
    text = page(measured).replace("\u202f", " ").replace("\u00a0", " ")
    table = text.split("## Fastest by Size of the Message")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if " × " in line and "tokens" not in line]
    assert len(lines) == 12
    for line in lines:
        tokens, hidden = map(int, line.split("|")[2].split(" × "))
        kinds = product((2, 4), ("time_cold_us", "time_hot_us"))
        for (world, time), cell in zip(kinds, line.split("|")[3:7], strict=True):
            shape = {"ranks": world, "tokens": tokens, "hidden": hidden}
            here = {
                p["params"]["variant"]: p["measurement"][time]
                for p in measured["points"]
                if p["status"] == "ok" and shape.items() <= p["params"].items()
            }
            least = min(here.values())
            own = "**" not in cell
            said = "auto" if own else cell.split("**")[1]
            assert here[said] <= least * (1.03 if own else 1.001)
            assert own or f"{100 * (1 - least / here['auto']):.0f} % less" in cell
    of = {line.split("|")[1].strip(): line.split("|")[3:7] for line in lines}
    assert "auto (oneshot)" in of["4 MiB"][0] and "**twoshot**" in of["4 MiB"][2]
    assert "auto" in of["2 MiB"][2] and "**vllm**" in of["2 MiB"][3]  # cold as fast, hot not
    assert "than twoshot" in of["16 MiB"][2]  # what FlashInfer takes there


def test_the_page_says_what_a_time_among_waiting_peers_leaves_out(measured: Results) -> None:
    text = " ".join(page(measured).split())
    assert "that time of one shot leaves out the latency of one trip over a link" in text
    assert (
        "in turns, but not under *vLLM's and a norm apart, or trtllm_allreduce_fusion* and *vLLM's or NCCL"
        in text
    )
    assert "`vllm` is `flashinfer.comm.vllm_ar.all_reduce` outside a CUDA graph" in text
    assert "points: the best of FlashInfer's, and others" in text  # NCCL's below it is better
    assert "hot as cold" not in text  # hot launches follow each other, each after its peers' last
    assert "`fp32_acc` is `False`, and whether NCCL uses NVLS is not recorded" in text
