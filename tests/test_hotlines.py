"""Hot lines: samples by source line, the function around it, instructions without lines."""

from __future__ import annotations

import pytest
from results_data import launched

from ncuflow.findings import waits

FUNCTIONS = [[60, 137, "RMSNormKernel"], [80, 90, "inner"], [414, 504, "Fused"]]
INDEX = {"functions": {"data/include/flashinfer/norm.cuh": FUNCTIONS}}


def row(line, samples, reason="wait", opcode="FADD", file="include/flashinfer/norm.cuh", pc=0):
    return {
        "pc": pc, "sass": f"{opcode} R0", "opcode": opcode, "file": file, "line": line,
        "function": "RMSNormKernel",
        "samples": samples, "samples_not_issued": None, "reason": reason,
    }  # fmt: skip


def kernel(*rows):
    return launched("RMSNormKernel", point="rmsnorm/x", report="r", lines=list(rows))


def test_lines_are_summed_over_instructions_and_ordered():
    load = row(85, 20, "long_scoreboard", "LDG", pc=16)
    found = waits.hottest(kernel(row(85, 10), row(103, 70, "barrier", "BRA"), load), INDEX)
    assert [(h.line, h.samples) for h in found] == [(103, 70), (85, 30)]
    assert found[0].share == pytest.approx(0.7)
    assert found[1].opcodes == (("LDG", 20), ("FADD", 10))
    assert (found[1].reason, found[1].reason_share) == ("long_scoreboard", pytest.approx(2 / 3))


def test_an_instruction_is_shown_without_the_address_of_its_branch():
    branch = row(None, 1, opcode="BRA", file=None) | {"sass": "BRA `(.L_x_0) 0x7f5ab17a94c0"}
    assert [h.sass for h in waits.hottest(kernel(branch))] == ["BRA `(.L_x_0)"]


def test_the_innermost_function_is_named():
    lines = waits.hottest(kernel(*(row(line, 1) for line in (85, 103, 300))), INDEX)
    found = {line.line: line.function for line in lines}
    assert found == {85: "inner", 103: "RMSNormKernel", 300: None}


def test_issued_samples_count_for_the_share_but_are_no_reason():
    (line,) = waits.hottest(kernel(row(85, 90, "selected"), row(85, 10, "barrier")))
    assert (line.samples, line.reason, line.reason_share) == (100, "barrier", 1.0)
    (ready,) = waits.hottest(kernel(row(85, 5, "not_selected")))
    assert (ready.reason, ready.reason_share) == (None, None)


def test_without_line_tables_the_instruction_stands_for_itself():
    found = waits.hottest(kernel(row(None, 3, file=None, pc=16), row(None, 9, file=None, pc=32)))
    assert [(h.file, h.line, h.sass, h.samples) for h in found] == [
        (None, None, "FADD R0", 9), (None, None, "FADD R0", 3),
    ]  # fmt: skip
    assert waits.coverage(kernel(row(85, 3), row(None, 1, file=None))) == 0.75


def test_no_samples_no_lines():
    assert waits.hottest(kernel()) == []
    assert waits.coverage(kernel()) is None


def test_text_is_shown_only_from_an_installed_package_of_that_version(tmp_path, monkeypatch):
    header = tmp_path / "data" / "include" / "flashinfer" / "norm.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("a\n  b = c;\n")
    (tmp_path / "__init__.py").touch()
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(waits.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(waits.importlib.metadata, "version", lambda name: "0.6.18")
    for line, version, text in ((2, "0.6.18", "b = c;"), (2, "0.5.3", None), (99, "0.6.18", None)):
        (found,) = waits.hottest(kernel(row(line, 1)), version=version)
        assert found.text == text


def test_a_line_is_quoted_of_the_package_alone(tmp_path):
    package, checkout = tmp_path / "data", tmp_path / "checkout"
    for folder in (package, checkout):
        folder.mkdir()
    (tmp_path / "secret").write_text("secret\n")
    (checkout / "norm.cuh").write_text("a\nb\n")
    (package / "include").symlink_to(checkout)  # as in an editable install
    assert waits.text_of(package, "include/norm.cuh", 2) == "b"
    for file in (f"{tmp_path}/secret", "../secret", "include/../../secret", "/etc/passwd", "x\0"):
        assert waits.text_of(package, file, 1) is None
    assert waits.text_of(package, "include/norm.cuh", -1) is None


def test_a_listing_lies_in_the_evidence(tmp_path):
    (tmp_path / "deep.listing.json.xz").write_text("{}")
    for report in (f"{tmp_path}/deep.ncu-rep", "../deep.ncu-rep", "", "/"):
        assert waits.instructions({"report": report, "kernel": 0}, tmp_path / "evidence") == {}


def test_json_names_where_it_comes_from():
    (entry,) = waits.records("rmsnorm", [kernel(row(85, 4))], INDEX)
    of = [entry[name] for name in ("target", "point", "report", "samples")]
    assert of == ["rmsnorm", "rmsnorm/x", "r", 4]
    assert entry["lines"][0]["function"] == "inner"
