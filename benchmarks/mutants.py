"""Damage a recorded report in every way that is known to have passed, and see that no wrong number comes of it.

    python benchmarks/mutants.py --seeds 12

Each mutant stands in the batch that its report is of, and is read as the pipeline reads it. What came of it:
refused (one clear line), same (all rows as before), named (what differs has a problem, or is null), text (a
name or a message differs), plausible (all that differs is of one counter: a double with another bit, which
nobody can see), or silent, which none may be. Exit status 1 where one is.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import reports
from ncuflow.io import BadInput, opened
from ncuflow.parsers import tables

ROOT = Path(__file__).parents[1]
BATCH = next((ROOT / "recordings/h200/0.7.2/default/merge_state").glob("b*"))
REPORT = "sweep.ncu-rep"
KEYS = {
    "kernels": (), "metrics": ("key",), "stalls": ("reason",), "breakdown": ("parent", "counter"), "rules": ("rule",),
}  # fmt: skip
Rows = dict[tuple[Any, ...], dict[str, Any]]
Blocks = tuple[bytes, list[reports.Block]]


def changed(data: bytes, at: int, new: bytes, old: int | None = None) -> bytes:
    """The bytes with `old` of them (as many as are new, by default) replaced."""
    return data[:at] + new + data[at + (len(new) if old is None else old) :]


def flipped(data: bytes, at: int, chance: random.Random) -> bytes:
    return changed(data, at, bytes([data[at] ^ 1 << chance.randrange(8)]))


def in_block(part: str) -> Callable[[bytes, Blocks, random.Random], bytes]:
    """One bit of the header, the names or the payload of a block."""

    def mutate(data: bytes, blocks: Blocks, chance: random.Random) -> bytes:
        head, found = blocks
        index = chance.randrange(len(found))
        if part == "names":
            index = max(range(len(found)), key=lambda i: len(found[i].header))
        start = len(head) + sum(len(block.bytes()) for block in found[:index])
        header = 4 + len(found[index].header)
        first, last = (header, len(found[index].bytes())) if part == "payload" else (4, header)
        return flipped(data, start + chance.randrange(first, max(last, first + 1)), chance)

    return mutate


def of_blocks(change: Callable[[list[bytes], random.Random], object]) -> Callable[..., bytes]:
    """Whole blocks lost, doubled or in another order."""

    def mutate(data: bytes, blocks: Blocks, chance: random.Random) -> bytes:
        parts = [block.bytes() for block in blocks[1]]
        change(parts, chance)
        return blocks[0] + b"".join(parts)

    return mutate


def swap(parts: list[bytes], chance: random.Random) -> None:
    one, other = chance.sample(range(len(parts)), 2)
    parts[one], parts[other] = parts[other], parts[one]


def anywhere(data: bytes, chance: random.Random) -> int:
    return chance.randrange(len(data))


KINDS: dict[str, Callable[[bytes, Blocks, random.Random], bytes]] = {
    "cut short": lambda d, b, c: d[: anywhere(d, c)],
    "bit of the file header": lambda d, b, c: flipped(d, c.randrange(len(b[0])), c),
    "bit of a block header": in_block("header"),
    "bit of the names": in_block("names"),
    "bit of a payload": in_block("payload"),
    "bit anywhere": lambda d, b, c: flipped(d, anywhere(d, c), c),
    "byte": lambda d, b, c: changed(d, anywhere(d, c), c.randbytes(1)),
    "64 zeros": lambda d, b, c: changed(d, anywhere(d, c), bytes(64)),
    "bytes added": lambda d, b, c: changed(d, anywhere(d, c), c.randbytes(c.randint(1, 8)), 0),
    "bytes lost": lambda d, b, c: changed(d, anywhere(d, c), b"", c.randint(1, 8)),
    "block lost": of_blocks(lambda parts, c: parts.pop(c.randrange(len(parts)))),
    "block twice": of_blocks(lambda parts, c: parts.append(c.choice(parts))),
    "blocks swapped": of_blocks(swap),
    "tail of another": lambda d, b, c: d + d[-c.randint(1, 5000) :],
}


def rows_of(folder: Path) -> dict[str, Rows]:
    """What the pipeline reads of a batch: table -> row by its key. A kernel is the n-th of its point."""
    found = tables.collect(folder.parent.parent, [folder])
    seen: Counter[str] = Counter()
    for row in sorted(found["kernels"], key=lambda row: row["kernel"]):
        seen[row["point"]] += 1
        row["place"] = (row["point"], seen[row["point"]])
    places = {row["kernel"]: row["place"] for row in found["kernels"]}
    return {
        name: {(places[row.pop("kernel")], *(row[key] for key in keys)): row for row in found[name]}
        for name, keys in KEYS.items()
    }


def differences(before: dict[str, Rows], after: dict[str, Rows]) -> Iterator[tuple[Any, str, Any]]:
    """(kernel, what a number is of, the number now) of all that differs; "" where it is text."""
    for name in KEYS:
        for key in {**before[name], **after[name]}:
            old, new = before[name].get(key, {}), after[name].get(key, {})
            for column in {**old, **new}:
                if old.get(column) != new.get(column) and column != "problems":
                    text = isinstance(old.get(column, new.get(column)), str)
                    of = old.get("metric") or old.get("counter") or f"{key[-1]} {column}"
                    yield key[0], "" if text else of, new.get(column)


def outcome(before: dict[str, Rows], after: dict[str, Rows]) -> str:
    """What came of a mutant whose rows are `after`."""
    found = list(differences(before, after))
    if not found:
        return "same"
    problems = {
        key[0]: row["problems"]
        for key, row in after["kernels"].items()
        if row["problems"] != before["kernels"].get(key, {}).get("problems")
    }
    unseen = [
        (kernel, of) for kernel, of, now in found if now is not None and kernel not in problems
    ]
    numbers = [of for _, of in unseen if of]
    if not unseen:
        return "named"
    if not numbers:
        return "text"
    # A sum names each counter that it is made of.
    common = set.intersection(
        *(set(re.findall(r"[\w.:]+__[\w.]+|^[\w. ]+$", of)) for of in numbers)
    )
    return "plausible" if common or len(set(numbers)) == 1 else "silent"


def run(seeds: range) -> Iterator[tuple[str, int, str]]:
    """(kind, seed, what came of it) of every mutant."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "root" / BATCH.parent.name / BATCH.name
        shutil.copytree(BATCH, folder)
        packed = folder / f"{REPORT}.xz"
        with opened(packed) as plain:
            whole = plain.read_bytes()
        packed.unlink()
        report = folder / REPORT
        report.write_bytes(whole)
        blocks, before = reports.read(report), rows_of(folder)
        for kind, mutate in KINDS.items():
            for seed in seeds:
                report.write_bytes(mutate(whole, blocks, random.Random(f"{kind} {seed}")))
                try:
                    yield kind, seed, outcome(before, rows_of(folder))
                except BadInput:
                    yield kind, seed, "refused"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12, help="mutants of each kind")
    args = parser.parse_args()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for kind, seed, came in run(range(args.seeds)):
        counts[kind][came] += 1
        if came == "silent":
            print(f"silent: {kind}, seed {seed}")
    for kind, found in counts.items():
        print(f"{kind:24}{', '.join(f'{came} {n}' for came, n in found.most_common())}")
    return int(any(found["silent"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
