"""What cuobjdump and ptxas say of a cubin."""

from __future__ import annotations

from ncuflow.findings.kernelname import canonical
from ncuflow.pages.markdown import gpu_pages
from ncuflow.parsers import sass
from ncuflow.static.build import read

LISTING = """
\t\tFunction : _Z4workPf
\t.headerflags\t@"EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   MOV R1, c[0x0][0x28] ;            /* 0x00000a0000017a02 */
                                                                     /* 0x000fe40000000f00 */
        /*0010*/                   LDG.E.128 R4, [R2.64] ;           /* 0x0000000a02047981 */
        /*0020*/                   LDSM.16.M88.4 R8, [R3] ;          /* 0x0000000a02047981 */
        /*0030*/                   HMMA.16816.F32 R4, R8, R6, R4 ;   /* 0x0000000a02047981 */
        /*0040*/                   HMMA.16816.F32 R4, R8, R6, R4 ;   /* 0x0000000a02047981 */
        /*0050*/              @P0 BRA 0x20 ;                         /* 0x000011b000008947 */
        /*0060*/                   LDG.E R4, [R2.64] ;               /* 0x0000000a02047981 */
        /*0070*/              @!P1 BRA 0x10 ;                        /* 0x000011b000008947 */
        /*0080*/                   EXIT ;                            /* 0x000000000000794d */
        /*0090*/                   BRA 0x90;                         /* 0xfffffff000007947 */
        /*00a0*/                   NOP;                              /* 0x0000000000007918 */
\t\tFunction : _Z4copyPf
        /*0000*/                   STG.E [R2.64], R4 ;               /* 0x0000000a02047981 */
        /*0010*/                   EXIT ;                            /* 0x000000000000794d */
"""
USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z4workPf:
  REG:40 STACK:8 SHARED:2048 LOCAL:0 CONSTANT[0]:396 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z4copyPf:
  REG:8 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:396 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
COMPILED = """
ptxas info    : Compiling entry function '_Z4workPf' for 'sm_80'
ptxas info    : Function properties for _Z4workPf
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 396 bytes cmem[0]
"""


def test_the_hot_loop_is_the_innermost_with_the_most_tensor_instructions():
    work, copy = sass.kernels(LISTING).values()
    mix = {"BRA": 1, "HMMA.16816.F32": 2, "LDSM.16.M88.4": 1}
    assert work["hot_loop"] == {"instructions": 4, "mix": mix}
    assert copy["hot_loop"] is None


def test_the_opcodes_of_every_generation_are_known():
    """Names as cuobjdump lists them: of Ampere, Hopper, and Blackwell with its tensor memory."""
    generations = {
        "mma.sync": ("HMMA.16816.F32", "IMMA.16832.S8.S8", "QMMA.16832.F32.E4M3.E4M3", "OMMA.SF.16864.F32"),
        "wgmma": ("HGMMA.64x128x16.F32", "QGMMA.64x64x32.F32.E4M3.E4M3"),
        "tcgen05": ("UTCHMMA", "UTCHMMA.2CTA", "UTCQMMA", "UTCOMMA.4X", "UTCIMMA"),
    }  # fmt: skip
    for name, opcodes in generations.items():
        for opcode in opcodes:
            mix = {opcode: 1}
            assert [k for k, family in sass.TENSOR.items() if sass.count(mix, family)] == [name]
            assert sass.count(mix, sass.FAMILIES[0]) == 1
    assert not sass.count({"FMMA_": 1, "IMAD": 1, "UTCBAR": 1, "UTCCP": 1}, sass.FAMILIES[0])


def test_architectures_with_the_same_tensor_instructions_are_named_together():
    def sides(*by):
        return [{"arch": arch, "loop": names and {"by": names}} for arch, names in by]

    alike = sides(
        ("sm_80", ["mma.sync"]), ("sm_90a", ["mma.sync"]), ("sm_90a", []), ("sm_80", None)
    )
    assert gpu_pages._tensor(alike) == {"mma.sync": ["sm_80", "sm_90a"]}
    three = sides(("sm_80", ["mma.sync"]), ("sm_90a", ["wgmma", "mma.sync"]), ("sm_75", None))
    assert gpu_pages._tensor(three) == {
        "mma.sync": ["sm_80"], "mma.sync and wgmma": ["sm_90a"], "none": ["sm_75"],
    }  # fmt: skip


def test_each_instruction_of_a_loop_is_counted_once_and_what_is_strange_is_other():
    mix = {"UTCHMMA": 2, "LDTM.x32": 3, "STTM.x16": 1, "UBLKCP.S.G": 1, "UTCBAR": 1}
    mix |= {"SYNCS.PHASECHK": 2, "UTMALDG.4D": 2, "IADD3": 5, "UNHEARDOF.NEW": 7}
    loop = gpu_pages._loop({"hot_loop": {"instructions": sum(mix.values()), "mix": mix}})
    of = ("tensor", "tensor memory", "async copies", "barriers")
    assert [loop[name] for name in of] == [2, 4, 3, 3]
    assert loop["other"] == 12 and loop["by"] == ["tcgen05"]
    counted = {name: loop[name] for name in (*gpu_pages.LOOP, gpu_pages.OTHER)}
    assert sum(counted.values()) == loop["instructions"]


def test_padding_is_no_instruction_and_code_has_its_bytes():
    work = sass.kernels(LISTING)["_Z4workPf"]
    assert (work["instructions"], work["code_bytes"]) == (10, 176)
    assert work["mix"]["BRA"] == 3 and "NOP" not in work["mix"]


def test_labels_are_targets_too():
    with_labels = LISTING.replace("        /*0020*/", ".L_x_1:\n        /*0020*/").replace(
        "BRA 0x20", "BRA `(.L_x_1)"
    )
    assert sass.kernels(with_labels) == sass.kernels(LISTING)


def test_resources_and_spills_meet_by_name():
    found = read("sm_80", USAGE, LISTING, COMPILED)
    work = found["_Z4workPf"]
    assert work["name"] == "work(float*)"
    assert (work["registers"], work["stack_bytes"], work["shared_bytes"]) == (40, 8, 2048)
    assert (work["spill_store_bytes"], work["spill_load_bytes"], work["barriers"]) == (4, 12, 2)
    copy = found["_Z4copyPf"]  # ptxas said nothing of it: what is not known is not zero
    assert (copy["barriers"], copy["spill_store_bytes"]) == (None, 0)  # no stack, so nothing in it


def test_what_the_driver_reserves_is_no_shared_memory_of_the_kernel():
    assert read("sm_90a", USAGE, LISTING, COMPILED)["_Z4workPf"]["shared_bytes"] == 1024
    none = USAGE.replace("SHARED:2048", "SHARED:0")
    assert read("sm_90a", none, LISTING, COMPILED)["_Z4workPf"]["shared_bytes"] == 0


def test_one_name_however_it_is_written():
    ncu = "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __half>(T2 *, T2 *, float)"
    cxxfilt = "void flashinfer::norm::RMSNormKernel<8u, __half>(__half*, __half*, float)"
    assert canonical(ncu) == canonical(cxxfilt) == "flashinfer::norm::RMSNormKernel<8, __half>"
    nested = "void f<g<(flashinfer::MaskMode)1, (bool)0, h<(bool)1> >, P>(T1)"
    assert canonical(nested) == "f<g<(flashinfer::MaskMode)1, false, h<true>>, P>"
