"""What a change reaches: modules of made caches, which ninja and the host's compiler really build."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from conftest import some

from ncuflow.experiments.build import Roots, compiling, files_read, reached, reuse
from ncuflow.experiments.variant import Overlay
from ncuflow.race.record import Module

pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a compiler"
)
INCLUDE = "data/include/flashinfer"
BUILD = """rule cuda_compile
  command = c++ {flag} -MD -MF $out.d -isystem {package}/data/include -c $in -o $out
  depfile = $out.d
  deps = gcc
rule compile
  command = c++ -MMD -MF $out.d -isystem {package}/data/include -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = c++ -shared $in -o $out
{objects}
build {folder}/{name}.so: link {names}
default {folder}/{name}.so
"""


@dataclass
class Side:
    """A package and its cache with modules: what FlashInfer makes of a target's points."""

    roots: Roots

    @classmethod
    def made(cls, folder: Path) -> Side:
        package = folder / "flashinfer"
        for name in ("a", "b", "both"):
            header = package / INCLUDE / f"{name}.cuh"
            header.parent.mkdir(parents=True, exist_ok=True)
            header.write_text(f"// {name}\n")
        return cls(Roots(package, folder / "work"))

    def module(self, name: str, *headers: str, flag: str = "-O0", hosted: bool = False) -> Module:
        """A module whose generated source reads these headers; hosted: also one of the host's compiler."""
        folder = self.roots.workspace / "cached_ops" / name
        source = self.roots.workspace / "generated" / name / f"{name}.cc"
        for path in (folder, source.parent):
            path.mkdir(parents=True, exist_ok=True)
        source.write_text("".join(f"#include <flashinfer/{h}.cuh>\n" for h in headers))
        objects = {f"{folder}/{name}.cuda.o": "cuda_compile"}
        if hosted:
            objects[f"{folder}/{name}.o"] = "compile"
        lines = "\n".join(f"build {o}: {rule} {source}" for o, rule in objects.items())
        named = {"name": name, "names": " ".join(objects), "folder": folder, "objects": lines}
        text = BUILD.format(flag=flag, package=self.roots.package, **named)
        (folder / "build.ninja").write_text(text)
        return Module(name=name, folder=folder, library=folder / f"{name}.so")

    def built(self, *modules: Module) -> list[Module]:
        for module in modules:
            command = ["ninja", "-C", str(module.folder)]
            subprocess.run(command, check=True, capture_output=True)
        return list(modules)


@dataclass
class Sides:
    base: Side
    other: Side

    def why(self, base: list[Module], other: list[Module], *changed: str) -> dict[str, str]:
        files = frozenset(PurePosixPath(name) for name in changed)
        self.overlay = Overlay(self.other.roots.package, self.other.roots.workspace, files)
        return reached(base, other, (self.base.roots, self.other.roots), self.overlay)


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(Side.made(tmp_path / "base"), Side.made(tmp_path / "other"))


def both(sides: Sides) -> tuple[list[Module], list[Module]]:
    names = {"one": ("a", "both"), "two": ("b", "both")}
    base = [sides.base.module(name, *headers) for name, headers in names.items()]
    return sides.base.built(*base), [sides.other.module(n, *h) for n, h in names.items()]


@pytest.mark.parametrize(
    ("header", "compiled"), [("a", {"one"}), ("b", {"two"}), ("both", {"one", "two"})]
)
def test_a_header_reaches_the_modules_that_read_it(sides, header, compiled):
    file = f"{INCLUDE}/{header}.cuh"
    why = sides.why(*both(sides), file)
    assert why == dict.fromkeys(compiled, f"it reads {file}")


def test_python_that_generates_the_same_reaches_no_module(sides: Sides) -> None:
    base, other = both(sides)
    assert sides.why(base, other, "decode.py") == {}
    assert reuse(base, {}, sides.overlay) == ["one", "two"]
    kept = sides.overlay.package / "data/aot/one/one.so"
    assert kept.read_bytes() == base[0].library.read_bytes()
    assert not kept.samefile(base[0].library)


def test_what_is_compiled_anew_is_not_reused(sides: Sides) -> None:
    base, other = both(sides)
    why = sides.why(base, other, f"{INCLUDE}/a.cuh")
    assert reuse(base, why, sides.overlay) == ["two"]
    assert not (sides.overlay.package / "data/aot/one").exists()


def test_other_flags_and_other_generated_sources_reach_a_module(sides: Sides) -> None:
    base, _ = both(sides)
    other = [sides.other.module("one", "a", "both", flag="-O3")]
    other += [sides.other.module("two", "b"), sides.other.module("three", "a")]
    assert sides.why(base, other, "jit/core.py") == {
        "one": "its flags or sources differ",
        "two": "its generated two.cc differs",
        "three": "the base has none of this name",
    }


def test_without_what_ninja_noted_every_module_is_compiled(sides: Sides) -> None:
    base, other = both(sides)
    (base[0].folder / ".ninja_deps").unlink()
    (base[1].folder / "two.cuda.o").write_text("another")  # stale: of an earlier build
    unknown = "which files the base's read is not known"
    assert sides.why(base, other, "decode.py") == {"one": unknown, "two": unknown}


def test_an_object_that_ninja_noted_nothing_of_is_not_known(sides: Sides) -> None:
    (module,) = sides.base.built(sides.base.module("one", "a"))
    assert files_read(module.folder) is not None
    sides.base.module("one", "a", hosted=True)  # written, not built
    assert files_read(module.folder) is None


def test_of_the_hosts_compiler_a_header_is_in_doubt(sides: Sides) -> None:
    """It notes no system headers (-MMD), and FlashInfer's own are such."""
    (module,) = sides.base.built(sides.base.module("one", "a", hosted=True))
    other = [sides.other.module("one", "a", hosted=True)]
    why = sides.why([module], other, f"{INCLUDE}/b.cuh")
    assert "the host's compiler does not tell" in why["one"]
    assert sides.why([module], other, "decode.py") == {}


def test_a_new_header_may_stand_before_another(sides: Sides) -> None:
    base, other = both(sides)
    why = sides.why(base, other, f"{INCLUDE}/new.cuh")
    assert set(why) == {"one", "two"} and "is new" in why["one"]


def test_a_path_that_leads_from_the_overlay_into_the_base_is_no_other_flag(sides: Sides) -> None:
    """FlashInfer resolves the overlay's link to a folder that the change leaves alone."""
    base, other = both(sides)
    build = other[0].folder / "build.ninja"
    include = sides.other.roots.package / "data/include"
    base_s = str(sides.base.roots.package / "data/include")
    build.write_text(build.read_text().replace(str(include), base_s))
    assert sides.why(base, other, "decode.py") == {}


def test_an_installation_from_source_has_its_headers_behind_a_link(sides: Sides) -> None:
    data = sides.base.roots.package / "data"
    data.rename(sides.base.roots.package.parent / "repository")
    data.symlink_to(sides.base.roots.package.parent / "repository")
    assert set(sides.why(*both(sides), f"{INCLUDE}/a.cuh")) == {"one"}


def test_how_long_files_were_compiled_is_what_ninja_noted_last_of_each(tmp_path: Path) -> None:
    side = Side.made(tmp_path)
    module = side.module("one", "a", hosted=True)
    other = side.module("two", "a")
    assert compiling(module) == {}
    side.built(module)
    folder = module.folder
    files = {folder / "one.cuda.o", folder / "one.o", module.library}
    noted = compiling(module)
    assert set(noted) == files and all(0 <= start <= end for start, end in some(noted.values()))
    # One graph for several modules has one log, which each of them is given.
    lines = [(0, 1500, "one.cuda.o"), (100, 20000, "one.o"), (20000, 20500, "one.so")]
    log = "".join(f"{a}\t{b}\t1\t{folder / name}\tabc\n" for a, b, name in lines)
    log += f"5\t6\t1\t{other.folder / 'two.cuda.o'}\tabc\n7\t9\t1\tone.cuda.o\tabc\n"
    (folder / ".ninja_log").write_text(f"# ninja log v6\n{log}")
    assert compiling(module) == {
        folder / "one.cuda.o": (0.007, 0.009),
        folder / "one.o": (0.1, 20.0),
        module.library: (20.0, 20.5),
    }
