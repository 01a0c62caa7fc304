"""Files of shapes become a sweep; what no target measures is refused by its name."""

from __future__ import annotations

import json
import os
import struct
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from ncuflow.cli import dispatch
from ncuflow.io import BadInput, read_json
from ncuflow.sweep import points as sweep
from ncuflow.sweep import workloads
from ncuflow.target.contract import FOLDERS, known, load
from ncuflow.target.workload import Definition

HEADS = "--num_qo_heads 64 --num_kv_heads 8 --head_dim_qk 128 --head_dim_vo 128"
LIST = f"""\
## Decode
--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2_tc cudnn --page_size 16 --batch_size 16 --s_qo 1 --s_kv 1024 {HEADS} -vv --q_dtype bfloat16 --kv_dtype bfloat16 --case_tag "Llama-3.1-70B"
--routine BatchPrefillWithRaggedKVCacheWrapper --backends cudnn fa3 --batch_size 2 --s_qo 512 --s_kv 512 {HEADS} --causal --q_dtype float16 --kv_dtype float16
--routine rmsnorm --batch_size 32 --num_heads 4 --hidden_size 128 --input_dtype bfloat16
--routine apply_rope_pos_ids --batch_size 32 --seq_len 2048 --num_qo_heads 64 --num_kv_heads 8 --head_dim 128 --input_dtype bfloat16 --interleave
--routine chunk_gated_delta_rule --batch_size 4 --s_qo 2048 --num_q_heads 16 --num_k_heads 16 --num_v_heads 32 --head_size 128

# refused, each for a reason of its own
--routine mm_fp4 --m 512 --n 1024 --k 7168
--routine BatchPrefillWithPagedKVCacheWrapper --backends fa2 --batch_size 1 --s_qo 16 --s_kv 8 {HEADS}
--routine BatchPrefillWithPagedKVCacheWrapper --backends fa2 --batch_size 1 --s_qo 16 --s_kv 1024 --causal {HEADS}
--routine BatchDecodeWithPagedKVCacheWrapper --backends cudnn trtllm-gen --batch_size 1 --s_qo 1 --s_kv 64 {HEADS}
--routine BatchDecodeWithPagedKVCacheWrapper --batch_size 1 --s_kv 64 {HEADS} --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3
--routine rmsnorm --batch_size x --hidden_size 128
"""  # noqa: E501


def read(tmp_path: Path, text: str, name: str = "cases.txt") -> Any:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return workloads.read([path])


def ids(blocks: dict[str, list[Any]]) -> list[str]:
    return [p.id for name, found in blocks.items() for p in sweep.points(load(name), found)]


def test_a_test_list_of_flashinfers_benchmarks(tmp_path: Path) -> None:
    blocks, refused, count = read(tmp_path, LIST)
    assert ids(blocks) == [
        "decode/B16_L1024_H64_K8_D128_P16_bf16_tc_fa2",
        "prefill/ragged_S512_B2_H64_K8_D128_f16_fa3_c",
        "prefill/paged_S16_C1008_B1_H64_K8_D128_bf16_fa2_c",
        "rmsnorm/rmsnorm_R128_D128_bf16",
        "rope/rope_pos_ids_T65536_B32_H64_K8_D128_bf16_interleaved",
        "gdn_prefill/B4_S2048_Q16_V32_bf16",
    ]
    assert count == 6
    assert [line.split(", ", 1)[1] for line in refused] == [
        "mm_fp4: no target measures this routine",
        "BatchPrefillWithPagedKVCacheWrapper: queries without keys of their own, and uneven lengths, are measured by no target",
        "BatchDecodeWithPagedKVCacheWrapper: backends cudnn, trtllm-gen are measured by no target",
        "BatchDecodeWithPagedKVCacheWrapper: --q_dtype fp8_e4m3 is measured by no target",
        "rmsnorm: --batch_size x is no number",
    ]
    assert refused[0].startswith("cases.txt line 9, ")


def test_a_case_is_taken_by_one_target() -> None:
    sizes = {"h": 32, "kv": 8, "d": 128, "ckv": 512, "kpe": 64, "ps": 1, "q": 32, "k": 8, "v": 100}
    axes = {"batch_size": 2, "num_tokens": 2, "nnz": 2}
    kinds = ["gqa_paged_decode", "mla_paged_decode", "gqa_paged_prefill", "gqa_ragged", "rmsnorm"]
    kinds += ["silu_and_mul", "rope_pos_ids_inplace", "top_k_top_p_sampling", "softmax"]
    entries = [Definition(kind, sizes, "float16", axes) for kind in kinds]
    own = {name: target for name, target in known().items() if not target.generic}
    owners = [n for e in entries for n, t in own.items() if t.workload.takes(e) is not None]
    assert owners == [
        "decode", "mla_decode", "prefill", "prefill", "rmsnorm", "activation", "rope", "sampling", "sampling",
    ]  # fmt: skip


OWN = """
from ncuflow.target.contract import Target, Work
from ncuflow.target.workload import Definition, Routine, Workload


def takes(entry):
    match entry:
        case Routine("acme"):
            return entry.numbers(n="size")
        case Definition("acme_call"):
            return entry.counted(n="num_tokens")


TARGET = Target(
    name="own",
    title="A kernel of ours",
    parameters={"n": 4},
    id="n{n}",
    work=lambda p: Work(0, 8 * p["n"], "ours"),
    prepare=lambda p, seed=0: None,
    workload=Workload(takes=takes),
)
"""


def test_a_target_of_a_users_own_takes_its_cases(tmp_path, monkeypatch):
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets/own.py").write_text(OWN)
    monkeypatch.setenv(FOLDERS, str(tmp_path / "targets"))
    lines = ["--routine acme --size 8", workload("acme_call", {"num_tokens": 9})]
    lines += ["--routine acme --size x", "--routine other --size 8"]
    blocks, refused, _ = read(tmp_path, "\n".join(lines))
    assert blocks == {"own": [{"n": 8}, {"n": 9}]}
    why = ["acme: --size x is no number", "other: no target measures this routine"]
    assert [line.partition(", ")[2] for line in refused] == why


def test_random_lengths_are_the_quantiles_of_their_distribution(tmp_path: Path) -> None:
    line = f"--routine BatchDecodeWithPagedKVCacheWrapper --batch_size 40 --s_kv 1600 {HEADS} --random_actual_seq_len"
    blocks, _, _ = read(tmp_path, line)
    [block] = blocks["decode"]
    assert block["lengths"].startswith("3x1600_3x1500_") and block["lengths"].endswith("_2x100")
    gpu = {"compute_capability": "9.0", "memory_bytes": 1 << 37}
    assert load("decode").skip({**load("decode").parameters, **block}, gpu) is None


def workload(definition: str, axes: Any, inputs: Any = None) -> str:
    entry = {"uuid": "u", "axes": axes, "inputs": inputs or {}}
    return json.dumps({"definition": definition, "workload": entry})


def test_the_workloads_of_a_trace(tmp_path: Path) -> None:
    lines = [
        workload("gqa_paged_decode_h32_kv8_d128_ps1", {"batch_size": 16, "num_kv_indices": 36800}),
        workload("gqa_ragged_prefill_causal_h32_kv4_d128", {"total_q": 5000, "total_kv": 5000, "len_indptr": 3}),
        workload("mla_paged_decode_h16_ckv512_kpe64_ps64", {"batch_size": 1, "num_kv_indices": 10}),
        workload("fused_add_rmsnorm_h5120", {"batch_size": 64}),
        workload("top_p_sampling_from_probs_v129280", {"batch_size": 8}),
        workload("silu_and_mul_h16384", {"num_tokens": 77}),
        workload("gqa_paged_prefill_causal_h32_kv8_d128_ps1", {"total_q": 5, "num_kv_indices": 99, "len_indptr": 2}),
        workload("gemm_n128_k2048", {"M": 3}),
    ]  # fmt: skip
    blocks, refused, _ = read(tmp_path, "\n".join(lines), "trace.jsonl")
    assert ids(blocks) == [
        "decode/B16_L2300_H32_K8_D128_P1_bf16_tc",
        "prefill/ragged_S2500_B2_H32_K4_D128_bf16_auto_c",
        "mla_decode/B1_L640_H16_P64_bf16_auto",
        "rmsnorm/fused_add_R64_D5120_bf16",
        "sampling/top_p_B8_V129280_t90_s3",
        "activation/silu_T77_D8192_bf16",
    ]
    assert refused == [
        "gqa_paged_prefill_causal_h32_kv8_d128_ps1: its keys are more than its queries, which no target measures",
        "gemm_n128_k2048: no target measures this definition",
    ]


def safetensors(path: Path, values: list[int]) -> dict[str, str]:
    tensor = {"dtype": "I32", "data_offsets": [0, 4 * len(values)]}
    header = json.dumps({"kv_indptr": tensor}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = struct.pack(f"<{len(values)}i", *values)
    path.write_bytes(struct.pack("<Q", len(header)) + header + packed)
    return {"type": "safetensors", "path": str(path.name), "tensor_key": "kv_indptr"}


def decode(batch: int, indptr: dict[str, str], **axes: int) -> str:
    """A workload of decode, whose lengths are in a file."""
    given = {"batch_size": batch, **axes}
    return workload("gqa_paged_decode_h32_kv8_d128_ps1", given, {"kv_indptr": indptr})


def test_lengths_come_from_the_indices_of_a_workload(tmp_path: Path) -> None:
    given = safetensors(tmp_path / "one.safetensors", [0, 7, 7, 307])
    blocks, _, _ = read(tmp_path, decode(3, given), "workloads/gqa_paged/it.jsonl")
    assert blocks["decode"][0]["lengths"] == "1x300_1x7_1x1"
    # Many are averaged with their neighbours.
    indptr = [*accumulate([0, *range(100, 164)])]
    given = safetensors(tmp_path / "one.safetensors", indptr)
    blocks, _, _ = read(tmp_path, decode(64, given), "it.jsonl")
    found = blocks["decode"][0]["lengths"].split("_")
    assert len(found) == 16 and found[0] == "4x162" and found[-1] == "4x102"


HOSTILE = "--routine rmsnorm --batch_size {} --hidden_size 64 --num_heads 1 --input_dtype bfloat16"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("4 5", "--batch_size has 2 values"), ("9" * 5000, f"--batch_size {'9' * 5000} is no number"),
        ("2147483648", "it is a number from 1 to 2^31 - 1"), ("\x1b[31m", "--batch_size ?[31m is no number"),
    ],
)  # fmt: skip
def test_a_size_is_one_number_that_an_index_can_hold(tmp_path: Path, size: str, why: str) -> None:
    blocks, (line,), _ = read(tmp_path, HOSTILE.format(size), "a.txt")
    assert not blocks and line.endswith(why)
    assert read(tmp_path, "\ufeff" + HOSTILE.format(4) + "\r\n", "a.txt")[1] == []


def test_a_line_is_split_only_where_it_may_be_a_case(tmp_path: Path, monkeypatch: Any) -> None:
    """shlex takes a word apart letter by letter, and copies it at each."""
    split: list[int] = []
    whole = workloads.shlex.split
    monkeypatch.setattr(
        workloads.shlex, "split", lambda text, **how: split.append(len(text)) or whole(text, **how)
    )
    said = r"line 2 has 10000\d\d characters, more than a case has"
    for word in ("a" * 1_000_000, '"' + "a" * 1_000_000 + '"'):
        with pytest.raises(BadInput, match=said):
            read(tmp_path, f"# one\n--routine {word}\n")
    assert split == []
    long = 'rmsnorm --case_tag "' + "a" * 16_000 + '" --batch_size 1 --hidden_size 8'
    assert read(tmp_path, f"--routine {long}\n")[2] == 1
    assert split == [len(f"--routine {long}")]
    assert read(tmp_path, "--routine rmsnorm\t--batch_size  2 --hidden_size 8")[2] == 1
    assert len(split) == 1


NORM = "--routine rmsnorm --hidden_size 8 --batch_size {}"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cases that were looked at."""
    found: list[Any] = []
    whole = sweep.points
    monkeypatch.setattr(sweep, "points", lambda *given: found.append(given) or whole(*given))
    return found


def test_a_case_that_stands_there_often_is_looked_at_once(tmp_path, looked):
    _, refused, count = read(tmp_path, f"{NORM.format(1)}\n" * 20_000)
    assert (len(looked), count, refused) == (1, 1, [])
    two = [workload("rmsnorm_h8", {"batch_size": n}) for n in (1, 2)]
    calls = [two[n % 2].replace('"uuid": "', f'"uuid": "{n}') for n in range(20_000)]
    assert len(set(calls)) == 20_000
    assert read(tmp_path, "\n".join(calls), "a.jsonl")[2] == 2
    assert len(looked) == 3
    assert len(read(tmp_path, "--routine mm_fp4\n" * 100)[1]) == 1
    assert len(looked) == 3


def test_more_cases_than_can_be_measured_are_one_line(tmp_path, monkeypatch, looked):
    monkeypatch.setattr(workloads, "MOST_CASES", 5)
    lines = [NORM.format(n) for n in range(1, 200)]
    assert read(tmp_path, "\n".join(lines[:5]))[2] == 5
    looked.clear()
    for text in ("\n".join(lines), "\n".join(f"--routine mm{n}" for n in range(200))):
        with pytest.raises(BadInput, match=r"cases\.txt: more than 5 different cases in all"):
            read(tmp_path, text)
    assert len(looked) == 5
    (tmp_path / "dump").mkdir()
    for n in range(6):
        definition(tmp_path / "dump", f"rmsnorm_h{n + 1}", {}, "bfloat16")
    with pytest.raises(BadInput, match="dump: 6 definitions, of at most 5"):
        workloads.read([tmp_path / "dump"])


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "cases.txt"
    with path.open("wb") as file:
        file.truncate(workloads.MOST_BYTES + 1_000_000)
    monkeypatch.setattr(Path, "read_text", lambda *given, **how: pytest.fail("it was read"))
    with pytest.raises(BadInput, match=r"cases\.txt: 65 MB, of at most 64"):
        workloads.read([path])
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(BadInput, match="not a regular file"):
        workloads.read([tmp_path / "a.txt"])


def definition(folder: Path, name: str, axes: dict[str, int | None], dtype: str) -> None:
    """As FlashInfer leaves one: constant axes with their value, where the call told it, and the type of its tensors."""
    whole = {axis: {"type": "const"} | ({"value": v} if v else {}) for axis, v in axes.items()}
    inputs = {"q": {"shape": ["rows"], "dtype": dtype}}
    inputs["scale"] = {"shape": None, "dtype": "float32"}
    found = {"name": name, "axes": whole | {"rows": {"type": "var"}}, "inputs": inputs}
    (folder / f"{name}.json").write_text(json.dumps(found))


def test_what_a_server_dumped(tmp_path: Path) -> None:
    sizes = {"num_qo_heads": 32, "head_dim": 128, "num_kv_heads": None, "page_size": None}
    definition(tmp_path, "gqa_paged_decode_h32_d128", sizes, "float16")
    for page in (16, 32):
        sizes = {"num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": page}
        definition(tmp_path, f"gqa_paged_decode_plan_h32_kv8_d128_ps{page}", sizes, "int32")
    other = {"num_qo_heads": 64, "num_kv_heads": 64, "head_dim": 128, "page_size": 1}
    definition(tmp_path, "gqa_paged_decode_plan_h64_kv64_d128_ps1", other, "int32")
    definition(tmp_path, "silu_and_mul_h28672", {"hidden_size": 28672}, "float16")
    definition(tmp_path, "rope_pos_ids_inplace_q32_k8_d128", {}, "float16")
    definition(tmp_path, "rmsnorm_h512", {"hidden_size": 512}, "float8_e4m3fn")
    definition(tmp_path, "concat_mla_k", {}, "bfloat16")
    blocks, refused, _ = workloads.read([tmp_path])
    assert ids(blocks) == [
        "apis/concat_mla_k_T1024_B64",
        "decode/B32_L2048_H32_K8_D128_P16_f16_tc",
        "decode/B32_L2048_H32_K8_D128_P32_f16_tc",
        "rope/rope_pos_ids_inplace_T4096_H32_K8_D128_f16_neox",
        "activation/silu_T4096_D14336_f16",
    ]
    assert refused == ["rmsnorm_h512: of float8_e4m3fn, which no target measures"]


def test_a_definition_that_was_cut_off_does_not_take_the_others_with_it(tmp_path, capsys):
    """A killed server leaves one half-written."""
    dump, out = tmp_path / "dump", tmp_path / "mine.json"
    dump.mkdir()
    for hidden in (512, 4096, 8192):
        definition(dump, f"rmsnorm_h{hidden}", {"hidden_size": hidden}, "float16")
    cut = dump / "rmsnorm_h4096.json"
    cut.write_text(cut.read_text()[:30])
    assert dispatch(["workload", str(dump), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "2 points of rmsnorm; 1 refused" in told.out
    assert told.err.splitlines()[0] == f"refused: {cut}: no definition: a JSON object with a name"
    with pytest.raises(BadInput, match="no definition"):  # asked for by its own name
        dispatch(["workload", str(cut), "--out", str(out)])


def test_a_dumped_call_without_its_plan_is_refused(tmp_path: Path) -> None:
    sizes = {"num_qo_heads": 32, "num_kv_heads": None}
    definition(tmp_path, "gqa_paged_decode_h32_d128", sizes, "float16")
    definition(tmp_path, "rmsnorm_h512", {"hidden_size": 512}, "float16")
    _, refused, count = workloads.read([tmp_path])
    said = "it does not say its kv_heads, and no definition of its plan() does"
    assert (refused, count) == ([f"gqa_paged_decode_h32_d128: {said}"], 1)


def test_a_plan_is_found_among_files_that_are_named_one_by_one(tmp_path: Path) -> None:
    cache = {"num_kv_heads": None, "page_size": None}
    definition(tmp_path, "gqa_paged_decode_h32_d128", cache, "float16")
    definition(tmp_path, "gqa_paged_decode_plan_h32_kv8_d128_ps16", {}, "int32")
    definition(tmp_path, "gqa_paged_prefill_plan_h32_kv4_d128_ps16", {}, "int32")  # of another
    blocks, refused, _ = workloads.read(sorted(tmp_path.iterdir()))
    assert (ids(blocks), refused) == (["decode/B32_L2048_H32_K8_D128_P16_f16_tc"], [])


@pytest.mark.parametrize(
    ("name", "axes", "dtype", "line"),
    [
        ("gqa_paged_prefill_h32_d128", {}, "bfloat16", "it does not say its kv_heads"),
        ("gqa_ragged_kv8", {}, "bfloat16", "it does not say its qo_heads, head_dim"),
        ("mla_paged_decode_ckv512_kpe64_ps1", {}, "bfloat16", "it does not say its heads"),
        ("mla_paged_decode_h16_ckv256_kpe64_ps1", {}, "bfloat16", "only heads of 512 and 64"),
        ("rmsnorm_h8", {}, ["float16"], "of ['float16'], which no target measures"),
        ("rmsnorm_h8", {}, "\x1b[31m\n", "of ?[31m , which no target measures"),
        ("rmsnorm", {"hidden_size": -8}, "float16", "'hidden' cannot be -8"),
        ("rmsnorm", {"hidden_size": 10**12}, "float16", "it is a number from 1 to 2^31 - 1"),
    ],
)
def test_a_definition_that_cannot_be_measured_is_one_line(tmp_path, name, axes, dtype, line):
    definition(tmp_path, name, axes, dtype)
    blocks, (refused,), _ = workloads.read([tmp_path])
    assert not blocks and refused.startswith(f"{name}: ") and line in refused
    assert refused.isprintable()


def test_what_names_no_file_is_no_definition_and_an_axis_may_have_any_name(tmp_path: Path) -> None:
    for name in (None, ["rmsnorm_h8"], "rmsnorm_h" + "9" * 5000):
        with pytest.raises(BadInput, match="no definition"):
            read(tmp_path, json.dumps({"name": name}), "a.json")
        with pytest.raises(BadInput, match="line 1: a definition without a name"):
            read(tmp_path, workload(name, {"batch_size": 8}), "a.jsonl")
    axes = {"batch_size": 8, "sizes": 3, "dtype": 3, "indptr": 3}
    blocks, refused, _ = read(tmp_path, workload("rmsnorm_h64", axes), "a.jsonl")
    assert (ids(blocks), refused) == (["rmsnorm/rmsnorm_R8_D64_bf16"], [])


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("hello", "a.txt", "line 1 is neither a case of a test list nor a workload"),
        ("{]", "a.jsonl", "line 1 is no workload"),
        (workload("rmsnorm_h8", {"batch_size": 0}), "a.jsonl", "line 1: an axis that is no number from 1"),
        (workload("rmsnorm_h8", {"batch_size": "8"}), "a.jsonl", "an axis that is no number from 1"),
        ("--s_kv 8", "a.txt", "line 1 names no --routine"),
        ('--routine "x', "a.txt", "line 1: No closing quotation"),
        ("[1]", "a.json", "no definition"),
        ('{"a": ' + "[" * 16_000, "a.json", "no definition"),
        ('{"a": ' + "[" * 16_000, "a.jsonl", "is no workload"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(tmp_path, text, name)


@pytest.mark.parametrize("values", [[0, 5, 3], [1, 2], [0]])
def test_bad_indices_are_refused_before_they_reach_a_gpu(tmp_path: Path, values: list[int]) -> None:
    line = decode(1, safetensors(tmp_path / "one.safetensors", values))
    with pytest.raises(BadInput, match="indices that do not begin at 0 or that fall"):
        read(tmp_path, line, "it.jsonl")


@pytest.mark.parametrize(
    "named",
    ["/proc/kmsg", "{}/aside.safetensors", "../aside.safetensors", "link", "none", "a\0b", "."],
)
def test_lengths_that_are_not_in_the_workloads_folder_are_refused_and_never_made_up(
    tmp_path: Path, named: str
) -> None:
    given = safetensors(tmp_path / "aside.safetensors", [0, 64])
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "aside.safetensors")
    given["path"] = named.format(tmp_path)
    blocks, (why,), points = read(folder, decode(1, given, num_kv_indices=64), "it.jsonl")
    assert (blocks, points) == ({}, 0) and "line 1" in why and "its lengths are missing" in why


def test_a_data_set_in_the_hubs_cache_has_its_lengths(tmp_path: Path) -> None:
    given = safetensors(tmp_path / "blobs/0a", [0, 7])
    snapshot = tmp_path / "snapshots/1f"
    snapshot.mkdir(parents=True)
    (snapshot / "one").symlink_to("../../blobs/0a")
    given["path"] = "./one"
    blocks, _, _ = read(snapshot, decode(1, given), "workloads/gqa_paged/it.jsonl")
    assert blocks["decode"][0]["lengths"] == "1x7"


def test_the_command_writes_a_configuration_and_names_what_it_refused(tmp_path, capsys):
    (tmp_path / "cases.txt").write_text(LIST)
    out = tmp_path / "mine.json"
    assert dispatch(["workload", str(tmp_path / "cases.txt"), "--out", str(out)]) == 0
    written = read_json(out)
    assert written["sweep"] == "mine"
    assert [*written["sweeps"]["mine"]] == ["decode", "prefill", "rmsnorm", "rope", "gdn_prefill"]
    told = capsys.readouterr()
    assert "6 points of decode, prefill, rmsnorm, rope, gdn_prefill; 5 refused" in told.out
    assert "refused: cases.txt line 9, mm_fp4: no target measures this routine" in told.err
    out.unlink()
    (tmp_path / "cases.txt").write_text("--routine mm_fp4 --m 5\n")
    with pytest.raises(BadInput, match="holds no case that can be measured"):
        dispatch(["workload", str(tmp_path / "cases.txt"), "--out", str(out)])
    assert not out.exists()
