"""Make a recording of an evidence folder: compressed, checked for secrets, with a manifest."""

import hashlib
import lzma
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ncuflow import io
from ncuflow.evidence import manifest, points, provenance, scrub
from ncuflow.model import DEEP, PAIRS
from ncuflow.origin import now
from ncuflow.parsers import lines, reader, tables
from ncuflow.private import find_path, find_secret, patterns
from ncuflow.process import CaptureError

PACKED = {".ncu-rep", ".sqlite", ".jsonl"}
LARGE_JSON = 64 << 10  # bytes from which JSON is packed too
SMALL = 256 << 10  # bytes up to which a file is no work for a process of its own
# Half a per cent larger than by the extreme preset, in half of its time.
FILTER = {"id": lzma.FILTER_LZMA2, "preset": 9, "nice_len": 200, "depth": 16}
OF_REPORTS = {"lc": 4, "pb": 0}  # whose fields lie at any byte: 3 % smaller in the median of 43
LARGEST_DICTIONARY = 64 << 20
SKIPPED = {"logs", "tables", "manifest.json"}


def record(evidence: Path, target: Path, name: str, with_modules: bool = False) -> io.JsonObject:
    """Write a recording, return its manifest. Raises CaptureError for what may not be stored.

    with_modules: reports of sweeps keep the compiled modules inside them, as deep ones always do.
    """
    if not manifest.NAMES["name"].fullmatch(name):
        raise CaptureError(f"name {name!r} does not match {manifest.NAMES['name'].pattern}")
    files = list(evidence_files(evidence))
    if not any(evidence.glob("*/*/points.json")):
        what = "no evidence in it (a live run's is outputs/<machine>/captures)"
        raise CaptureError(f"{evidence}: {what}")
    if target.exists() and any(target.iterdir()):
        raise CaptureError(f"{target}: is there and not empty; record into a new folder")
    known = patterns()
    with points.staging(target.parent, target.name) as hidden:
        stage = hidden / target.name
        of_each(files, lambda path: check(path, evidence, known))
        one_batch_per_point(evidence)
        provenance.check_origins(evidence)
        places = {path: stage / path.relative_to(evidence) for path in files}
        of_each(files, lambda path: store(path, places[path], known, with_modules))
        made = make_manifest(evidence, stage, name)
        io.write_json(stage / manifest.FILE, made)
        verify(stage)
        stage.replace(target)
    return made


def evidence_files(evidence: Path) -> Iterator[Path]:
    """Files of an evidence folder, sorted; logs, tables, listings and hidden files are not evidence, nor is the empty
    file in the place of a report where no point of a batch was good: its capture record says so.

    Raises CaptureError on a link, whose content is not of the capture, and on a device.
    """
    for path in sorted(evidence.rglob("*")):
        parts = path.relative_to(evidence).parts
        skipped = any(part in SKIPPED or part.startswith(".") for part in parts)
        if not skipped and manifest.foreign(path):
            raise CaptureError(f"{path}: no file of the evidence's own, but a link or a device")
        if not path.is_file() or skipped or path.name.endswith(lines.LISTING_SUFFIX):
            continue
        if path.suffix not in PACKED or path.stat().st_size:
            yield path


def of_each(files: Iterable[Path], work: Callable[[Path], None]) -> None:
    """Do the work for each file: reports, which NVIDIA's reader may crash on, and what is large in a child each, several at
    once and the largest first, which take the longest; a small file takes less than the start of a child."""
    sizes = {path: path.stat().st_size for path in files}
    apart = [path for path, size in sizes.items() if is_report(path) or size > SMALL]
    try:
        for _ in reader.in_children(work, sorted(apart, key=lambda path: -sizes[path])):
            pass
    except reader.ChildDied as death:
        raise CaptureError(
            f"{death.task}: its child was killed, or NVIDIA's reader crashes on it"
        ) from None
    for path in sizes:
        if path not in apart:
            work(path)


def check(path: Path, evidence: Path, known: Any) -> None:
    """Refuse a file that holds something private, or a report with embedded source files."""
    shown = path.relative_to(evidence)
    with io.opened(path) as plain:
        data = plain.read_bytes()
        secret = find_secret(data, known) or find_path(data)
        if secret:
            raise CaptureError(f"{shown}: holds {secret}, which no recording may")
        if not is_report(path):
            return
        if scrub.scrubbed(data) is False:
            raise CaptureError(f"{shown}: names its host; run `ncuflow record --scrub` on it first")
        sources = embedded_sources(plain)
        if sources:
            raise CaptureError(f"{shown}: embeds {sources} source files: no --import-source here")


def one_batch_per_point(evidence: Path) -> None:
    """Refuse batches that share a point, or pairs: one is left from another sweep, and would count it twice."""
    for target, members in batches(evidence).items():
        shared = tables.shared_point(members)
        if shared:
            point, names = shared
            what = f"batches {', '.join(names)} of {target} share the point {point}"
            raise CaptureError(f"{evidence}: {what}; remove the folder of the stale one")
        paired = any(io.present(evidence / target / name / "pairs.json") for name in members)
        if PAIRS in members and paired:
            what = f"{evidence}: {target}/{PAIRS} is left from an earlier version"
            raise CaptureError(f"{what}, and pairs lie with their batches; remove that folder")


def embedded_sources(path: Path) -> int:
    """Number of source files whose text an ncu report holds. 0 if the reader is not installed."""
    try:
        context = reader.load(path)
    except ImportError:
        return 0
    # Kernels of one name are of the same files, and to ask takes half a second for a large module.
    kernels = {
        action.name(action.NameBase_DEMANGLED): action for _, action in reader.actions(context)
    }
    files = (file for action in kernels.values() for file in action.source_files().items())
    return len({name for name, text in files if text})


def store(path: Path, place: Path, known: Any, with_modules: bool) -> None:
    """Copy one file, plain or `.xz`, compressed where that pays; a report with its listing, and smaller where it may be."""
    place = place.with_name(place.name.removesuffix(".xz"))
    place.parent.mkdir(parents=True, exist_ok=True)
    with io.opened(path) as plain, io.scratch() as own:
        if is_report(path) and find_spec("ncu_report"):
            smaller = without_modules(plain, own / place.name)
            bare = smaller.stat().st_size == plain.stat().st_size
            made = lines.listing_beside(path, plain) if bare else lines.listing_of(plain)
            # The hot lines of a deep report need the modules.
            if not (with_modules or place.stem == DEEP):
                plain = smaller
            if made:
                add_listing(made | {"sha256": io.digest(plain)}, place, known)
        if is_packed(plain):
            pack(plain, place)
        else:
            shutil.copyfile(plain, place)


def pack(plain: Path, place: Path) -> None:
    """Compress a file into `place`.xz."""
    filters = _filters(plain.stat().st_size, is_report(plain))
    with plain.open("rb") as source, lzma.open(f"{place}.xz", "wb", filters=filters) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)


def _filters(size: int, report: bool = False) -> list[dict[str, int]]:
    """How so many bytes are packed: a dictionary larger than a small file takes longer to clear than the file to pack."""
    found = FILTER | {"dict_size": min(max(size, 4096), LARGEST_DICTIONARY)}
    return [found | OF_REPORTS if report else found]


def without_modules(plain: Path, smaller: Path) -> Path:
    """A copy of a report without compiled modules. Raises CaptureError where its framing is not as expected."""
    try:
        smaller.write_bytes(scrub.without_modules(plain.read_bytes()))
    except ValueError as error:
        raise CaptureError(f"{plain.name}: a damaged Nsight Compute report ({error})") from None
    return smaller


def add_listing(made: io.JsonObject, place: Path, known: Any) -> None:
    """Beside a report with samples of instructions, what the disassembler says of these."""
    text = io.dump_json(made).encode("utf-8")
    # What the reader decodes need not stand in the report's bytes.
    secret = find_secret(text, known)
    if secret:
        raise CaptureError(f"{place.name}: names {secret} as a source, which no recording may")
    lines.listing_path(place).write_bytes(lzma.compress(text, filters=_filters(len(text))))


def is_report(path: Path) -> bool:
    """Whether a file is an Nsight Compute report, plain or .xz."""
    return path.name.removesuffix(".xz").endswith(".ncu-rep")


def is_packed(path: Path) -> bool:
    """Whether a file is stored as .xz."""
    large = path.suffix == ".json" and path.stat().st_size >= LARGE_JSON
    return path.suffix in PACKED or path.name == "pairs.json" or large


def make_manifest(evidence: Path, stage: Path, name: str) -> io.JsonObject:
    """Provenance, targets → batches → points, the sha256 of each stored file, and a digest of it all."""
    origin = manifest.provenance(evidence)
    made = {
        "name": name,
        "provenance": {**origin, "tier": "C", "recording": name},
        "date": origin.get("date") or now(),
        "recorded": now(),
        "targets": batches(evidence),
        "files": manifest.checksums(stage),
    }
    return manifest.sealed(made)


def batches(evidence: Path) -> dict[str, dict[str, list[str]]]:
    """{target: {batch: [point ids]}} from the points files."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(evidence.glob("*/*/points.json")):
        ids = [point["id"] for point in io.read_json(path)]
        found.setdefault(path.parent.parent.name, {})[path.parent.name] = ids
    return found


def verify(folder: Path) -> int:
    """Number of files of a recording, checked; CaptureError names the one that differs."""
    try:
        return len(manifest.read(folder).files)
    except ValueError as error:
        raise CaptureError(str(error)) from None


def judge(folder: Path) -> str:
    """What a recording that matches its manifest holds, in a line.

    CaptureError for what no recording may hold, whoever made it: a private value, sources, a point in
    two batches, and what `measured` refuses.
    """
    known = patterns()
    of_each(evidence_files(folder), lambda path: check(path, folder, known))
    one_batch_per_point(folder)
    path = folder / manifest.FILE
    return measured(folder, io.read_json(path).get("provenance") or {}, path)


def measured(folder: Path, origin: io.JsonObject, said: Path) -> str:
    """What captures are of and came to, in a line; said: the file that their origin is of.

    CaptureError without a GPU or a version that the numbers could be of, with others than the captures name, or
    where no point has a good result.
    """
    lacking = [key for key in ("gpu", "driver", "flashinfer", "date") if not origin.get(key)]
    if lacking:
        raise CaptureError(f"{said}: does not say {', '.join(lacking)}")
    provenance.check_origins(folder)
    status: Counter[str] = Counter()
    for path in folder.glob("*/*/timing.jsonl*"):
        with io.opened(path) as plain:
            status.update(str(record.get("status")) for record in points.read_records(plain))
    if not status["ok"]:
        raise CaptureError(f"{folder}: no point has a good result")
    counted = ", ".join(f"{n} {what}" for what, n in status.most_common())
    return f"{origin['gpu']}, FlashInfer {origin['flashinfer']}: points {counted}"


def changes(report: Path) -> dict[Path, bytes]:
    """What masking changes: {file: its content, unpacked}; nothing, or a report first and its listing after it.

    Raises CaptureError where the report's layout is not known.
    """
    before = _content(report)
    after = scrub.masked_report(before)
    if after is None:
        raise CaptureError(f"{report}: not a report whose layout is known")
    if after == before:
        return {}
    beside = lines.listing_path(report)
    if not beside.is_file():
        return {report: after}
    known, new = (hashlib.sha256(data).hexdigest().encode() for data in (before, after))
    listed = bytearray(_content(beside).replace(known, new))
    scrub.mask_paths(listed)
    return {report: after, beside: bytes(listed)}


def scrub_report(report: Path) -> list[Path]:
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
        content = io.read_json(place) | {"files": manifest.checksums(folder)}
        io.write_json(place, manifest.sealed(content))
    return [path for path in changed if is_report(path)]


def _content(path: Path) -> bytes:
    with io.opened(path) as plain:
        return plain.read_bytes()


def _write(changed: Mapping[Path, bytes]) -> None:
    for place, content in changed.items():
        with io.replacing(place) as temporary:
            if place.suffix == ".xz":
                content = lzma.compress(content, filters=_filters(len(content), is_report(place)))
            temporary.write_bytes(content)
