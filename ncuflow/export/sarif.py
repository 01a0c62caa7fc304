"""SARIF 2.1.0, which editors and code review show beside the source: where kernels wait, and what does not hold.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html

Files are told from FlashInfer's package folder on, whose place on a machine is nobody's business: a reader maps
FLASHINFER to his own. A point that does not hold has the file of its kernel for a place, and no line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ncuflow import format as form
from ncuflow.claims.require import CheckedPoint
from ncuflow.findings import hotlines, stalltree
from ncuflow.findings.hotlines import HotLine
from ncuflow.io import dump_json
from ncuflow.model import Kernel, Results
from ncuflow.origin import package_version
from ncuflow.target.contract import known

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
BASE = "FLASHINFER"
HEADERS = "data/include/flashinfer"
WAITS, FAILS = "hot-line", "does-not-hold"
RULES = {
    WAITS: "Warps stand at this line: the line that waits, seldom the one that causes the wait.",
    FAILS: "A point does not hold what was asked of it.",
}
Json = dict[str, Any]


def sarif(results: Mapping[str, Results], cases: Iterable[CheckedPoint]) -> str:
    """The text of a SARIF file: the hot lines of every deep profile, and the cases that do not pass."""
    found = [result for one in results.values() for result in _waiting(one)]
    found += [_failed(case) for case in cases if case.why is not None]
    versions = {one["provenance"].get("flashinfer") for one in results.values()} - {None}
    driver = {
        "name": "ncuflow",
        "version": package_version("ncuflow") or "0",
        "rules": [{"id": name, "shortDescription": {"text": said}} for name, said in RULES.items()],
    }
    told = f"FlashInfer {', '.join(sorted(map(str, versions)))}".rstrip()
    base = f"the package folder of {told}: flashinfer/ in site-packages"
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {BASE: {"description": {"text": base}}},
        "columnKind": "unicodeCodePoints",
        "results": found,
    }
    return dump_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _waiting(results: Results) -> Iterator[Json]:
    """The hot lines of a target's deep profiles that lie in FlashInfer's package, the hottest of each kernel."""
    tier = results["provenance"].get("tier")
    for kernel in results["deep"]:
        lines = hotlines.hottest(kernel, most=len(kernel["lines"]))
        placed = [(line, file) for line in lines if (file := packaged(line.file))]
        for line, file in placed[: hotlines.MOST_LINES]:
            yield _hot(kernel, line, file, tier)


def packaged(file: str | None) -> str | None:
    """A file as the compiler knew it, from FlashInfer's package folder on; None of one that is not FlashInfer's."""
    if file is None or ".." in file.split("/"):
        return None
    if file.startswith("include/flashinfer/"):
        return f"data/{file}"
    return file.removeprefix("flashinfer/") if file.startswith("flashinfer/data/") else None


def _hot(kernel: Kernel, line: HotLine, file: str, tier: str | None) -> Json:
    error = form.MISSING if line.uncertainty is None else f"{100 * line.uncertainty:.1f}"
    said = (
        f"{form.percent(line.share, 1)} (± {error}) of the samples of {kernel['name']} stand here"
        f" at {kernel['point']}, on {kernel['device']}"
    )
    if line.reason is not None:
        meaning = stalltree.meaning(line.reason)
        said += f"; {form.percent(line.reason_share)} of those that wait do so for {line.reason}"
        said += f" ({meaning})" * bool(meaning)
    known_of = {
        "point": kernel["point"],
        "kernel": kernel["name"],
        "report": kernel["report"],
        "device": kernel["device"],
        "tier": tier,
        "samples": line.samples,
        "share": line.share,
        "uncertainty": line.uncertainty,
        "reason": line.reason,
        "reason_share": line.reason_share,
    }
    place = {**_file(file), "region": {"startLine": line.line}}
    return _result(WAITS, "note", f"{said}.", str(kernel["point"]), place, known_of)


def _failed(case: CheckedPoint) -> Json:
    shown = f" ({case.shown})" if case.shown else ""
    said = f"{case.point}: {case.hold}: {case.why}{shown}."
    asked = {"point": case.point, "hold": case.hold, "shown": case.shown, "why": case.why}
    header = _header(case.point)
    place = _file(f"{HEADERS}/{header}") if header else None
    return _result(FAILS, "error", said, case.point, place, asked)


def _header(point: str) -> str | None:
    """The header of the first kernel that the point's target declares; None where FlashInfer has none of it."""
    target = known().get(point.partition("/")[0])
    headers = [kernel.header for kernel in target.source.kernels] if target else []
    return next(filter(None, headers), None)


def _file(path: str) -> Json:
    return {"artifactLocation": {"uri": path, "uriBaseId": BASE}}


def _result(
    rule: str, level: str, text: str, point: str, place: Json | None, properties: Json
) -> Json:
    location: Json = {"physicalLocation": place} if place else {}
    location["logicalLocations"] = [{"fullyQualifiedName": point}]
    words = (rule, point, properties.get("kernel"), properties.get("hold"), place)
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [location],
        # the same in the next run, as long as the line stays where it is
        "partialFingerprints": {
            "ncuflow/v1": hashlib.sha256(dump_json(words).encode()).hexdigest()[:32]
        },
        "properties": properties,
    }
