"""A recording multiplied: as many points as wanted, every one of them marked as synthetic.

    python benchmarks/synthetic.py --recording recordings/h200/0.7.2/default --points 1000 --out /tmp/syn1000

A copy of a batch holds the real report, trace and times under other names: the point
``decode/B32_L2048_H32_K32_cc`` becomes ``decode/B32_L2048_H32_K32_cc~syn7`` in the plan, in the
times and in the NVTX ranges of report and trace, and its timing record says of which point it is
a copy. No number is changed or invented; the copies of a point are equal in everything but the
name. The manifest and the name of the recording, which every page prints, say synthetic too. Only
for measuring the pipeline: never publish its pages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import reports
from ncuflow.evidence import location
from ncuflow.evidence.manifest import checksums, sealed
from ncuflow.io import opened
from ncuflow.model import SHARED

MARK = "~syn"
PRESET = 1  # of xz: ten times faster than the default for a tenth more bytes
EXPORT, REPORT = "trace.sqlite", "sweep.ncu-rep"


def multiply(source: Path, points: int, out: Path) -> dict[str, Any]:
    """Write the multiplied recording to `out`, which must not exist. Returns its manifest.

    Whole batches are copied until there are at least `points` points, so there may be a few more.
    Deep batches and pairs are left out: they share their points with the others.
    """
    manifest: dict[str, Any] = json.loads((source / "manifest.json").read_text("utf-8"))
    out.mkdir(parents=True)
    for path in source.glob("*.json*"):
        shutil.copy(path, out / path.name)
    if (source / "jit").is_dir():
        shutil.copytree(source / "jit", out / "jit")
    copied: dict[str, dict[str, list[str]]] = {name: {} for name in manifest["targets"]}
    found = 0
    for number, target, batch in rounds(manifest["targets"]):
        if found >= points:
            break
        name, ids = copy_batch(source / target / batch, out / target, number)
        copied[target][name] = ids
        found += len(ids)
    manifest |= {
        "name": f"{manifest['name']}-synthetic-{points}",
        "synthetic": f"made by benchmarks/synthetic.py from {manifest['name']}, not measured",
        "targets": copied,
        "points": found,
        "files": checksums(out),
    }
    write_json(out / "manifest.json", sealed(manifest))
    return manifest


def rounds(targets: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[int, str, str]]:
    """(number of the copy, target, batch), without end: every sweep batch once, then again."""
    batches = [(t, b) for t, found in targets.items() for b in found if b not in SHARED]
    if not batches:
        raise ValueError("the recording has no sweep batch")
    number = 0
    while True:
        number += 1
        for target, batch in batches:
            yield number, target, batch


def copy_batch(batch: Path, folder: Path, number: int) -> tuple[str, list[str]]:
    """One copy of a batch below `folder`: its name and its point ids."""
    name = "b" + hashlib.sha256(f"{batch}{MARK}{number}".encode()).hexdigest()[:8]
    copy = folder / name
    copy.mkdir(parents=True)
    points = json.loads((batch / "points.json").read_text("utf-8"))
    names = {point["id"]: f"{point['id']}{MARK}{number}" for point in points}
    write_json(copy / "points.json", [point | {"id": names[point["id"]]} for point in points])
    for path in batch.glob("timing*.jsonl*"):
        with opened(path) as plain:
            (copy / path.name.removesuffix(".xz")).write_text(renamed_times(plain, names))
    for tool in ("sweep", "trace"):
        if (batch / f"{tool}.json").exists():
            write_json(copy / f"{tool}.json", renamed_record(batch / f"{tool}.json", names))
    copy_evidence(batch, copy, names)
    return name, list(names.values())


def copy_evidence(batch: Path, copy: Path, names: Mapping[str, str]) -> None:
    """Report and trace with renamed ranges, compressed."""
    for path in batch.iterdir():
        kind = path.name.removesuffix(".xz")
        if kind == REPORT:
            data = reports.rename(path, names)
        elif kind == EXPORT:
            data = renamed_trace(path, names)
        else:
            continue
        (copy / f"{kind}.xz").write_bytes(lzma.compress(data, preset=PRESET))


def renamed_times(path: Path, names: Mapping[str, str]) -> str:
    """Timing records of the renamed points, each with the point that it is a copy of."""
    lines = []
    for record in map(json.loads, path.read_text("utf-8").splitlines()):
        old = record["point"]
        record |= {"point": names[old], "reason": f"synthetic: a copy of {old}"}
        lines.append(json.dumps(record, allow_nan=False) + "\n")
    return "".join(lines)


def renamed_record(path: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """A capture record of the renamed points."""
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    record["points"] = [names.get(point, point) for point in record["points"]]
    for key in ("kernels", "failed"):
        if record.get(key):
            record[key] = {names.get(point, point): n for point, n in record[key].items()}
    record["lost"] = [
        lost | {"point": names.get(lost["point"], lost["point"])} for lost in record["lost"]
    ]
    return record


def renamed_trace(path: Path, names: Mapping[str, str]) -> bytes:
    """An nsys export with its NVTX ranges renamed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / EXPORT
        export.write_bytes(data)
        database = sqlite3.connect(export)
        with database:
            for table, column in (("StringIds", "value"), ("NVTX_EVENTS", "text")):
                database.executemany(
                    f"UPDATE {table} SET {column} = ? WHERE {column} = ?",
                    [(new, old) for old, new in names.items()],
                )
        database.close()
        return export.read_bytes()


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recording", type=Path, default=location.default())
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder that does not exist yet")
    args = parser.parse_args()
    manifest = multiply(args.recording, args.points, args.out)
    batches = sum(map(len, manifest["targets"].values()))
    print(f"{manifest['points']} synthetic points in {batches} batches: {args.out}")


if __name__ == "__main__":
    main()
