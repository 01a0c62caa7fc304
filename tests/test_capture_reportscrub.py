"""Masking of what an ncu report says about its machine."""

from __future__ import annotations

import hashlib
import lzma
import struct
from pathlib import Path

import pytest

from ncuflow.cli import dispatch
from ncuflow.evidence import manifest
from ncuflow.evidence.scrub import messages, private_spans, scrub_report, scrubbed
from ncuflow.io import dump_json, read_json, write_json
from ncuflow.parsers import lines
from ncuflow.process import CaptureError

RECORDED = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"
PRIVATE = (b"alice-laptop", b"192.0.2.7", b"fe80::1%eth0", b"/home/alice", b"--secret-option")


def text(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field."""
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + value


def make_report(*more: bytes) -> bytes:
    """A report with the messages in which ncu names the host, as found in real ones."""
    address = text(7, text(1, b"192.0.2.7") + b"\x10\x01")
    address += text(7, text(1, b"fe80::1%eth0") + b"\x10\x02")
    system = text(1, b"Linux") + text(3, b"Xeon") + text(5, b"alice-laptop") + address
    program = text(2, b"127.0.0.1") + text(3, b"/home/alice/venv/bin/python3.12")
    process = text(6, b"\x08\x07" + program)
    command = text(11, b"/opt/ncu -f -o /home/alice/x --secret-option python")
    parts = [
        b"\x08\x07",
        b"\x08\x00" + text(3, b"\x10\x05" + text(3, system)) + process,
        b"\x08\x00" + text(3, text(4, system)) + process,
        b"\x08\x00" + text(3, command) + process,
        *more,
    ]
    return b"NVR\0" + b"".join(struct.pack("<I", len(part)) + part for part in parts)


def test_no_private_byte_is_left_and_every_length_stays(tmp_path: Path) -> None:
    path = tmp_path / "sweep.ncu-rep"
    cubin = b"\x7fELF" + bytes(70_000) + b"/home/alice/src/decode.cuh\0flashinfer"
    before = make_report(cubin)
    path.write_bytes(before)
    assert all(value in before for value in PRIVATE)
    assert scrub_report(path)
    after = path.read_bytes()
    assert not [value for value in PRIVATE if value in after]
    assert list(messages(after)) == list(messages(before))
    # what is not private stays: system, program name, kernel modules
    kept = (b"Linux", b"Xeon", b"/python3.12", b"/src/decode.cuh\0flashinfer")
    assert [value for value in kept if value not in after] == []
    # A short folder of a line table is masked.
    table = b"\x00\x01/work/fi/inc\0/usr/local/cuda/include\0/w/x\0\0sampling.cuh\0\x01"
    before = make_report(b"\x7fELF" + bytes(70_000) + table)
    path.write_bytes(before)
    assert scrub_report(path)
    assert path.read_bytes().endswith(table.replace(b"/work/fi/", b"/xxxx/xx/"))
    assert list(messages(path.read_bytes())) == list(messages(before))


def test_scrubbed_tells_before_from_after(tmp_path: Path) -> None:
    path = tmp_path / "sweep.ncu-rep"
    path.write_bytes(make_report())
    assert scrubbed(path.read_bytes()) is False
    scrub_report(path)
    once = path.read_bytes()
    assert scrubbed(once) is True
    scrub_report(path)
    assert path.read_bytes() == once


@pytest.mark.parametrize(
    "data", [b"", b"NVR\0", b"NVR\0\xff\xff\xff\xff", b"ID,Kernel\n1,x\n", b"QDSS" * 100]
)
def test_another_layout_is_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(data)
    assert scrub_report(path) is False
    assert path.read_bytes() == data
    assert scrubbed(data) is None


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording of two reports, of which the first names a folder, as does its listing."""
    folder = tmp_path / "recording"
    batch = folder / "decode/b1a2b3c4d"
    batch.mkdir(parents=True)
    for name, module in (("sweep", b"\0\x01/work/fi/inc\0\0x.h\0"), ("deep", b"\0")):
        report = scrubbed_report(tmp_path, module)
        (batch / f"{name}.ncu-rep.xz").write_bytes(lzma.compress(report))
    report = lzma.decompress((batch / "sweep.ncu-rep.xz").read_bytes())
    listed = {"sha256": hashlib.sha256(report).hexdigest(), "kernels": ["/work/fi/inc/x.h"]}
    text = dump_json(listed).encode()
    packed = lzma.compress(text) if lines.LISTING_SUFFIX.endswith(".xz") else text
    lines.listing_path(batch / "sweep.ncu-rep").write_bytes(packed)
    made = {"name": "r", "targets": {"decode": {"b1a2b3c4d": ["decode/x"]}}, "kept": "as it is"}
    write_json(
        folder / manifest.FILE, manifest.sealed(made | {"files": manifest.checksums(folder)})
    )
    return folder


def scrubbed_report(folder: Path, module: bytes) -> bytes:
    """A report that was masked by somebody who did not know short folders."""
    path = folder / "made.ncu-rep"
    path.write_bytes(make_report())
    scrub_report(path)
    report = path.read_bytes()
    return report + struct.pack("<I", len(module)) + module


def test_a_recording_is_masked_and_still_matches(recording: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    batch = recording / "decode/b1a2b3c4d"
    before, untouched = ((batch / f"{name}.ncu-rep.xz").read_bytes() for name in ("sweep", "deep"))
    dispatch(["scrub", str(recording)])
    assert capsys.readouterr().out == f"{batch / 'sweep.ncu-rep.xz'}: masked\n"
    after = lzma.decompress((batch / "sweep.ncu-rep.xz").read_bytes())
    assert after == lzma.decompress(before).replace(b"/work/fi/inc", b"/xxxx/xx/inc")
    assert (batch / "deep.ncu-rep.xz").read_bytes() == untouched
    listed = read_json(lines.listing_path(batch / "sweep.ncu-rep"))
    assert listed == {"sha256": hashlib.sha256(after).hexdigest(), "kernels": ["/xxxx/xx/inc/x.h"]}
    manifest.read(recording)  # matches
    assert read_json(recording / manifest.FILE)["kept"] == "as it is"
    dispatch(["scrub", str(recording)])
    assert capsys.readouterr().out == ""


def test_a_recording_that_does_not_match_is_not_masked(recording: Path) -> None:
    (recording / "decode/b1a2b3c4d/deep.ncu-rep.xz").write_bytes(b"damaged")
    files = {path: path.read_bytes() for path in manifest.files(recording).values()}
    with pytest.raises(CaptureError, match=r"deep\.ncu-rep\.xz: does not match"):
        dispatch(["scrub", str(recording)])
    assert {path: path.read_bytes() for path in files} == files


def test_command_refuses_what_it_cannot_scrub(tmp_path: Path) -> None:
    path = tmp_path / "x.ncu-rep"
    path.write_text("ID,Kernel")
    with pytest.raises(Exception, match=r"x\.ncu-rep: not a report"):
        dispatch(["scrub", str(path)])


@pytest.mark.parametrize("name", ["rope/b*/sweep", "rmsnorm/b*/sweep", "decode/deep/deep"])
def test_a_real_report_reads_the_same_after_scrubbing(tmp_path: Path, name: str) -> None:
    reader = pytest.importorskip("ncu_report")
    (recorded,) = RECORDED.glob(f"{name}.ncu-rep.xz")
    data = bytearray(lzma.decompress(recorded.read_bytes()))
    spans = list(private_spans(data))
    for start, end in spans:  # a recording is masked, so what a machine would say is put back
        data[start:end] = (b"alice" * (end - start))[: end - start]
    path = tmp_path / "r.ncu-rep"
    path.write_bytes(data)
    before = contents(reader, path)
    assert len(spans) > 3 and scrubbed(data) is False
    assert scrub_report(path)
    assert b"alicealice" not in path.read_bytes()
    assert contents(reader, path) == before


def contents(reader, path: Path) -> list[str]:  # type: ignore[no-untyped-def]
    """Every metric of every kernel, as text (NaN equals NaN)."""
    context = reader.load_report(str(path))
    found = []
    for r in range(context.num_ranges()):
        span = context.range_by_idx(r)
        for a in range(span.num_actions()):
            action = span.action_by_idx(a)
            values = [(name, action.metric_by_name(name).value()) for name in action.metric_names()]
            found.append(f"{action.name()} {values} {len(action.rule_results_as_dicts())}")
    assert found
    return found
