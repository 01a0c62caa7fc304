"""What pages conclude from the recordings: each statement here was once wrong or misleading.

The points are found by what they are, not by name: recordings are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from conftest import ROOT, Recorded, some

from ncuflow.findings import stored
from ncuflow.findings.join import is_torchs
from ncuflow.findings.waits import stall_tree
from ncuflow.io import read_json
from ncuflow.model import Kernel, Results
from ncuflow.pages.markdown import guide_source, guide_waits
from ncuflow.target.contract import known

NOW = "0.7.2"
SHIPPED = sorted(
    (path.parent.relative_to(ROOT / "recordings").as_posix(), target)
    for path in (ROOT / "recordings").glob(f"h*/{NOW}/*/manifest.json")
    for target in read_json(path)["targets"]
)


def kernels(results: Results) -> Iterator[Kernel]:
    return (k for p in results["points"] if p["status"] == "ok" for k in p["kernels"])


@pytest.mark.parametrize(("recording", "target"), SHIPPED)
def test_the_filter_of_a_page_takes_what_ran_there_and_nothing_of_torch(
    recording: str, target: str, recorded: Recorded
) -> None:
    results = recorded(recording, target)
    launched = guide_source.launches(results["points"])
    pattern = str(guide_source.kernel_filter(target, launched)).partition("regex:")[2].strip('"')
    for kernel in some(kernels(results)):
        name = kernel["name"]
        if "(CuTe DSL)" in name:  # ncu's option is held against the mangled name
            name = str(kernel["demangled"])
        assert bool(re.search(pattern, name)) != is_torchs(kernel), name


def test_the_code_path_has_a_place_for_each_of_flashinfers_kernels_that_ran(
    recorded: Recorded,
) -> None:
    for recording, target in SHIPPED:
        if target == "apis":  # no code path: they are of many files
            continue
        results = recorded(recording, target)
        index = stored.optional(ROOT / "recordings" / recording / "source_index.json")
        path = guide_source.code_path(target, index, results)
        if path is None:
            continue
        places = {symbol: where for symbol, where, _ in path["kernels"]}
        own = {k["name"] for k in kernels(results) if "flashinfer" in (k["demangled"] or "")}
        assert all(places[name] for name in own), (recording, target)


def test_every_reason_that_a_page_names_has_a_meaning_on_the_guides_page(
    recorded: Recorded,
) -> None:
    named = set()
    for recording, target in SHIPPED:
        results = recorded(recording, target)
        for point in results["points"]:
            row = point["measurement"]
            named |= {row.get("top_stall"), row.get("second_stall")}
        for kernel in [*results["deep"], *kernels(results)]:
            if tree := stall_tree(kernel):
                named |= {reason.reason for reason in tree.top()}
    assert named - {None} <= set(guide_waits.REMEDIES)


def test_a_tree_says_whether_it_counts_hidden_waits(recorded: Recorded) -> None:
    """By samples of cycles without an issue a barrier that other warps hide weighs less than by the ratios of all warps."""
    text = (ROOT / "templates/guide/reference.md.j2").read_text()
    assert "By ratios" in text and "hidden ones too" in text
    every = [k for r, t in SHIPPED for k in recorded(r, t)["deep"]]
    bases = {tree.basis for kernel in every if (tree := stall_tree(kernel))}
    assert "samples" in bases


def test_a_variable_is_cited_where_its_default_is_read() -> None:
    recording = next(r for r, _ in SHIPPED if r.endswith("default"))
    index = stored.optional(ROOT / "recordings" / recording / "source_index.json")
    for row in some(guide_source.environment(index)):
        file, _, line = row["place"].rpartition(":")
        reads = [r for r in index["environment"][row["name"]] if r["file"] == file]
        (cited,) = [r for r in reads if r["line"] == int(line)]
        assert cited["default"] is not None or all(r["default"] is None for r in reads), row["name"]


def test_what_is_not_covered_is_no_backend_that_a_target_has() -> None:
    _, _, rest = (ROOT / "docs/kernels.md").read_text().partition("## Not covered")
    rows = re.findall(r"^\| (.+?) \|", rest.partition("## ")[0], re.M)
    names = {"cuDNN": "cudnn", "CuTe DSL": "cute-dsl", "TensorRT-LLM": "trtllm-gen", "CUTLASS": "cutlass"}  # fmt: skip
    backends = {backend.name for target in known().values() for backend in target.backends}
    for words, name in names.items():
        assert name not in backends or not any(f"{words}'s" in row for row in rows), words
    assert "4-bit caches" not in rest
