"""A recording multiplied: as many points as wanted, every copy marked as synthetic.

    python benchmarks/synthetic.py --recording recordings/h200 --points 1000 --out /tmp/syn1000

A copy of a batch links the real report and trace, so that each is read again, and renames the points:
``decode/B32_L2048_H32_K32_cc`` becomes ``decode/B32_L2048_H32_K32_cc~syn7``. A report's own ranges cannot be
renamed; ``alias.json`` beside it says which point each one stands for, and ``parsers.tables`` applies it and
notes ``synthetic: a copy of …`` as a problem of the point. No number is invented: the copies of a point are equal
in everything but the name. Never publish what is made of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINKED = ("sweep.ncu-rep", "sweep.json", "trace.sqlite", "trace.json")
MARK = "~syn"


def multiply(source: Path, points: int, out: Path) -> dict[str, Any]:
    """Write the multiplied recording to `out`, which must not exist. Returns its manifest.

    Whole batches are copied until there are at least `points` points, so there may be a few more.
    """
    manifest = json.loads((source / "manifest.json").read_text())
    out.mkdir(parents=True)
    for path in source.glob("*.json"):
        shutil.copy(path, out / path.name)
    if (source / "jit").is_dir():
        shutil.copytree(source / "jit", out / "jit")
    copied: dict[str, dict[str, list[str]]] = {name: {} for name in manifest["targets"]}
    for number, target, batch in rounds(manifest["targets"]):
        if sum(len(ids) for batches in copied.values() for ids in batches.values()) >= points:
            break
        name, ids = copy_batch(source / target / batch, out / target, number)
        copied[target][name] = ids
    manifest |= {
        "name": f"{manifest['name']}-synthetic-{points}",
        "synthetic": f"made by benchmarks/synthetic.py from {manifest['name']}; not measured",
        "targets": copied,
    }
    manifest.pop("files", None)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def rounds(targets: dict[str, Any]) -> Iterator[tuple[int, str, str]]:
    """(copy number, target, batch), for ever: all batches with sweep reports once, then all again."""
    number = 0
    while True:
        number += 1
        for target, batches in targets.items():
            for batch in batches:
                if batch != "deep":
                    yield number, target, batch


def copy_batch(batch: Path, folder: Path, number: int) -> tuple[str, list[str]]:
    """One copy of a batch below `folder`: its name and its point ids."""
    name = "b" + hashlib.sha256(f"{batch.name}{MARK}{number}".encode()).hexdigest()[:8]
    copy = folder / name
    copy.mkdir(parents=True)
    alias = {}
    points = json.loads((batch / "points.json").read_text())
    for point in points:
        alias[point["id"]] = point["id"] = f"{point['id']}{MARK}{number}"
    (copy / "points.json").write_text(json.dumps(points))
    (copy / "alias.json").write_text(json.dumps(alias, indent=1) + "\n")
    with (copy / "timing.jsonl").open("w") as lines:
        for line in (batch / "timing.jsonl").read_text().splitlines():
            record = json.loads(line)
            record["point"] = alias[record["point"]]
            lines.write(json.dumps(record) + "\n")
    for path in batch.iterdir():
        if path.name.removesuffix(".xz") in LINKED:
            link(path, copy / path.name)
    return name, list(alias.values())


def link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the two lie on different file systems."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recording", type=Path, default=Path("recordings/h200"))
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder that does not exist yet")
    args = parser.parse_args()
    targets = multiply(args.recording, args.points, args.out)["targets"]
    found = sum(len(ids) for batches in targets.values() for ids in batches.values())
    print(f"{found} synthetic points in {sum(map(len, targets.values()))} batches: {args.out}")


if __name__ == "__main__":
    main()
