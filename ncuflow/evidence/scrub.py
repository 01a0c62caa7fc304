"""Mask what stored reports say about their machine, and hold on to what knows them by their sha256."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Mapping
from pathlib import Path

from ncuflow.evidence import manifest
from ncuflow.evidence.recording import FILTERS, is_report
from ncuflow.evidence.reportscrub import mask_paths, masked_report
from ncuflow.io import opened, read_json, replacing, write_json
from ncuflow.parsers import lines
from ncuflow.process import CaptureError


def changes(report: Path) -> dict[Path, bytes]:
    """What masking changes: {file: its content, unpacked}; nothing, or a report first and its listing after it.

    Raises CaptureError where the report's layout is not known.
    """
    before = _content(report)
    after = masked_report(before)
    if after is None:
        raise CaptureError(f"{report}: not a report whose layout is known")
    if after == before:
        return {}
    beside = lines.listing_path(report)
    if not beside.is_file():
        return {report: after}
    known, new = (hashlib.sha256(data).hexdigest().encode() for data in (before, after))
    listed = bytearray(_content(beside).replace(known, new))
    mask_paths(listed)
    return {report: after, beside: bytes(listed)}


def scrub(report: Path) -> list[Path]:
    """Mask a report in place; the report, or nothing where there was nothing to mask."""
    changed = changes(report)
    _write(changed)
    return [report] if changed else []


def scrub_recording(folder: Path) -> list[Path]:
    """Mask the reports of a recording and mend its manifest; the reports that changed.

    Raises CaptureError, with nothing written, where it does not match its manifest as it is.
    """
    try:
        manifest.read(folder)
    except ValueError as error:
        raise CaptureError(str(error)) from None
    reports = [path for path in manifest.files(folder).values() if is_report(path)]
    changed = {path: data for report in reports for path, data in changes(report).items()}
    _write(changed)
    if changed:
        place = folder / manifest.FILE
        content = read_json(place)
        content["files"] = manifest.checksums(folder)
        write_json(place, content)
    return [path for path in changed if is_report(path)]


def _content(path: Path) -> bytes:
    with opened(path) as plain:
        return plain.read_bytes()


def _write(changed: Mapping[Path, bytes]) -> None:
    for place, content in changed.items():
        with replacing(place) as temporary:
            packed = place.suffix == ".xz"
            temporary.write_bytes(lzma.compress(content, filters=FILTERS) if packed else content)
