"""What a change does to compiled code: listings of a disassembler that is none."""

import os
from pathlib import Path

import pytest
import trial_data

from ncuflow.experiments import why
from ncuflow.experiments.record import KernelCode, ModuleTrial
from ncuflow.experiments.text import trial_text

HEAD = '\t\tFunction : {name}\n\t.headerflags\t@"EF_CUDA_SM90"\n'
LINE = "        /*{at:04x}*/                   {text} ;   /* 0x{word:016x} */\n"
USAGE = " Function {name}:\n  REG:{registers} STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:396 TEXTURE:0\n"
CUOBJDUMP = """#!/bin/sh
cat "$2$1"
"""


@pytest.fixture(autouse=True)
def disassembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cuobjdump that prints what lies beside the library."""
    program = tmp_path / "bin/cuobjdump"
    program.parent.mkdir()
    program.write_text(CUOBJDUMP)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def library(path: Path, registers: int = 32, stack: int = 0, **kernels: list[str]) -> Path:
    """A library with kernels of these instructions."""
    listing = "".join(
        HEAD.format(name=name)
        + "".join(LINE.format(at=16 * n, text=text, word=n) for n, text in enumerate(lines))
        for name, lines in kernels.items()
    )
    Path(f"{path}-sass").write_text(listing, encoding="utf-8")
    usage = "".join(USAGE.format(name=name, registers=registers, stack=stack) for name in kernels)
    Path(f"{path}-res-usage").write_text(usage, encoding="utf-8")
    return path


def compared(base: Path, change: Path) -> ModuleTrial:
    module = ModuleTrial(name="norm", compiled=True, why="it reads norm.cuh")
    why.compare_code(module, base, change)
    return module


def told(module: ModuleTrial) -> str:
    """The screen of a trial of this module."""
    return trial_text(trial_data.trial(outcome="same", modules=[module], points=[]))


WIDE = ["LDG.E.128 R4, [R2.64]", "FADD R4, R4, R5", "STG.E.128 [R2.64], R4", "EXIT"]
NARROW = ["LDG.E R4, [R2.64]", "LDG.E R5, [R2.64+4]", "FADD R4, R4, R5", "STL [R1], R4", "EXIT"]


def test_a_change_that_compiles_to_the_same_code_changes_no_kernel(tmp_path: Path) -> None:
    sides = [library(tmp_path / name, _Z4copyPf=WIDE, _Z4workPf=NARROW) for name in ("a", "b")]
    module = compared(*sides)
    assert (module.same_kernels, module.kernels, module.not_compared) == (2, [], None)


def test_another_operand_alone_is_another_code(tmp_path: Path) -> None:
    other = [*WIDE[:1], "FADD R4, R4, R6", *WIDE[2:]]
    module = compared(
        library(tmp_path / "a", _Z4copyPf=WIDE), library(tmp_path / "b", _Z4copyPf=other)
    )
    assert module.same_kernels == 0 and module.kernels[0].opcodes == {}
    assert "copy: other operands or order" in told(module)


def test_narrow_loads_a_spill_and_registers_are_told(tmp_path: Path) -> None:
    base = library(tmp_path / "a", _Z4copyPf=WIDE, _Z4workPf=WIDE)
    change = library(tmp_path / "b", 40, 8, _Z4copyPf=NARROW, _Z5otherPf=WIDE)
    copy, work, other = compared(base, change).kernels
    assert copy.base == KernelCode(
        registers=32, shared_bytes=1024, stack_bytes=0, local_instructions=0, instructions=4
    )
    assert copy.change == KernelCode(
        registers=40, shared_bytes=1024, stack_bytes=8, local_instructions=1, instructions=5
    )
    assert copy.opcodes == {"LDG.E": 2, "LDG.E.128": -1, "STG.E.128": -1, "STL": 1}
    assert (work.change, other.base) == (None, None)
    said = told(compared(base, change))
    assert "the code of 3 of 3 kernels differs" in said
    assert "copy: registers 32 to 40, stack 0 to 8, loads and stores of local memory 0 to 1" in said
    assert "work: gone" in said and "other: new" in said


def test_without_a_disassembler_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("ncuflow.process.shutil.which", lambda *a, **k: None)
    module = compared(tmp_path / "a", tmp_path / "b")
    assert module.same_kernels is None and "cuobjdump: not found" in str(module.not_compared)
    assert "code not compared: cuobjdump: not found" in told(module)
