"""A run of `ncuflow static` goes on from what an earlier one compiled."""

from __future__ import annotations

import pytest

from ncuflow.io import UsageError
from ncuflow.static import build
from ncuflow.static.build import CompileJob, merged, save, stored
from ncuflow.target.contract import load

ORIGIN = {"arch": "sm_80", "flashinfer": "0.7.2", "tools": {"nvcc": "13.0"}}


def facts(flags=None, **built):
    """Facts of one module: name of a source -> registers of its one kernel, None where it was not compiled."""
    status = {name: "not compiled" if found is None else "built" for name, found in built.items()}
    sources = [{"module": "m", "source": name, "status": s} for name, s in status.items()]
    compiled = {name: found for name, found in built.items() if found is not None}
    kernels = [{"module": "m", "mangled": k, "registers": n} for k, n in compiled.items()]
    return {**ORIGIN, "flags": {"m": flags}, "sources": sources, "kernels": kernels}


def test_what_is_compiled_stays_and_what_was_not_is_filled_in():
    both = merged(facts(a=40, b=None), facts(b=50, c=None))
    statuses = {s["source"]: s["status"] for s in both["sources"]}
    assert statuses == {"a": "built", "b": "built", "c": "not compiled"}
    assert {k["mangled"]: k["registers"] for k in both["kernels"]} == {"a": 40, "b": 50}
    assert merged(facts(a=40), facts(a=None))["sources"][0]["status"] == "built"
    assert merged(None, facts(a=40)) == facts(a=40)


def test_facts_of_other_versions_are_not_mixed(tmp_path):
    file = tmp_path / "static.json.xz"
    assert stored(file, ORIGIN) is None
    save(file, facts(a=40))
    assert stored(file, ORIGIN) == facts(a=40)
    said = r"facts of flashinfer 0.7.2, this is 0.8.0: another --out"
    with pytest.raises(UsageError, match=said):
        stored(file, ORIGIN | {"flashinfer": "0.8.0"})


def test_a_norm_of_cute_dsl_is_compiled_by_a_command_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: name)  # installed or not
    norm = load("rmsnorm")
    p = {**norm.parameters, "variant": "add_then_rmsnorm", "hidden": 64}
    ((kernel, command),) = build.cute_commands(norm, "9.0a", [p, p, {**p, "norm": "cuda"}])
    assert (kernel.module, kernel.source) == ("norm_cute_dsl", "rmsnorm_f16_64_pdl")
    job = CompileJob(kernel.module, kernel.source, command, cute=True)
    assert job.arch == "sm_90a"
    words = ["--arguments", '["float16", 64, 0.0, true]', "--out", str(tmp_path / "x")]
    assert job.to(tmp_path / "x")[-4:] == words
    ((kernel, _),) = build.cute_commands(norm, "8.0", [p])
    assert kernel.source == "rmsnorm_f16_64"  # it has no dependent launch
    assert list(build.cute_commands(load("rope"), "8.0", [load("rope").parameters])) == []
