"""Pages of a GPU: what a machine's is, what it reaches and can measure, without a kernel's results; of one that was not
there its launches, its kernels beside another architecture's, predictions, open claims; of two that were measured each
predicted from the other.

ncuflow machine-page --environment environment_info.json [--jit jit_analysis.json] --out FILE.md
ncuflow static-page --results DIR --facts static.json.xz --measured DIR [--beside static.json.xz]
                    [--modules static.json.xz…] --out FILE.md
ncuflow predict-page --measured DIR --on DIR --out FILE.md
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ncuflow.claims.audit import OPEN, UNDECIDABLE, biases, interval_side, of_another_gpu, once
from ncuflow.claims.decision import CONFIRMED, REFUTED
from ncuflow.findings import stored
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.kernelname import DecodedName, Decoder, canonical
from ncuflow.findings.limiter import occupancy_limit
from ncuflow.io import UsageError, read_json, write_text
from ncuflow.model import Kernel, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown.rendering import environment
from ncuflow.parsers import sass
from ncuflow.static.results import Facts
from ncuflow.target.contract import known, load, ordered

ClaimRow = Mapping[str, Any]  # a claim as `ncuflow check claims` wrote it
# Column -> which instructions of the hot loop it counts.
LOOP = {
    "tensor": sass.FAMILIES[0],
    "LDSM": "LDSM",
    "tensor memory": "LDTM|STTM|UTCCP",
    "async copies": "LDGSTS|UTMALDG|UBLKCP",
    "global loads": r"LDG\b",
    "barriers": "BAR|SYNCS|WARPSYNC|UTCBAR",
    "MUFU": "MUFU",
}
OTHER = "other"  # what no column counts: addresses, conversions, branches, and what a newer architecture brings


def context(
    results: Path, facts: Facts, beside: Facts | None, measured: Path, built: Sequence[Facts]
) -> Context:
    """What the template is given."""
    found = stored.folder(results)
    predicted = read_json(results / "predictions.json")
    decoder = Decoder()
    launched = [k for one in found.values() for p in one["points"] for k in p["kernels"]]
    kernels = list(_kernels(launched, facts, beside))
    sides = [side for kernel in kernels for side in kernel["sides"] if side]
    loops = [side["loop"] for side in sides if side["loop"]]
    return {
        "provenance": next(iter(found.values()))["provenance"],
        "content": facts.content,
        "beside": beside.content if beside else None,
        "chapters": [
            {"title": load(name).title, **_chapter(found[name], predicted, decoder)}
            for name in ordered(list(found))
        ],
        "columns": [name for name in (*LOOP, OTHER) if any(loop[name] for loop in loops)],
        "tensor": _tensor(sides),
        "kernels": kernels,
        "predicted": predicted,
        **_modules(built),
        "claims": _claims(
            read_json(results / "claims.json"),
            read_json(measured / "claims.json"),
            read_json(results / "claims_predicted.json"),
        ),
        "measured": read_json(measured / "claims_summary.json")["provenance"],
    }


def _chapter(found: Results, predicted: Mapping[str, Any], decoder: Decoder) -> Context:
    times = {point["point"]: point for point in predicted["points"]}
    rows, decoded = [], {}
    for point in found["points"]:
        for kernel in point["kernels"]:
            name = kernel["demangled"] or kernel["name"]
            shown = _described(name)
            if shown is None:  # CuTe DSL's have no template arguments
                decoded[name] = decoder.decode(name)
                shown = decoded[name].name
            limit = occupancy_limit(kernel["metrics"])
            rows.append({**kernel, "point": point["point"], "shown": shown, "limit": limit})
    why: dict[str, list[str]] = {}
    for p in found["points"]:
        if p["status"] == "skipped" or p["problems"]:
            why.setdefault(p["reason"] or "; ".join(p["problems"]), []).append(p["point"])
    untimed: dict[str, list[str]] = {}
    said = {point for points in why.values() for point in points}
    for name in (p["point"] for p in found["points"] if p["point"] not in said):
        if reason := predicted["not_predicted"].get(name):
            untimed.setdefault(reason, []).append(name)
    return {
        "untimed": untimed,
        "rows": rows,
        "arguments": _arguments(list(decoded.values())),
        "times": [
            times[p["point"]] | {"id": p["point"]} for p in found["points"] if p["point"] in times
        ],
        "unsaid": why,
    }


def _arguments(decoded: Sequence[DecodedName]) -> Context:
    """Kernel -> parameter -> its values in these launches, and what it means."""
    kernels: dict[str, Context] = {}
    for one in decoded:
        parameters = kernels.setdefault(one.name, {}) if one.arguments else {}
        for argument in (*one.arguments, *one.derived):
            entry = parameters.setdefault(argument.parameter, {"values": {}, "meaning": None})
            entry["values"][argument.value] = None
            entry["meaning"] = argument.meaning or entry["meaning"]
    return kernels


def _kernels(launched: Sequence[Kernel], facts: Facts, beside: Facts | None) -> Iterator[Context]:
    """Each launched kernel that was compiled, once: its facts on both architectures."""
    for name in dict.fromkeys(canonical(k["demangled"]) for k in launched if k["demangled"]):
        if name not in facts.kernels:
            continue
        found = [(one.content["arch"], one.kernels.get(name)) for one in (facts, beside) if one]
        yield {
            "name": _short(name),
            "sides": [s and {**s, "arch": arch, "loop": _loop(s)} for arch, s in found],
        }


def _modules(built: Sequence[Facts]) -> Context:
    """Module -> architecture -> what came of compiling it there; the architectures from the oldest on."""
    modules: dict[str, dict[str, Context]] = {}
    for module in (m for one in built for m in one.modules()):
        modules.setdefault(module["module"], {}).setdefault(module["arch"], module)
    names = {arch for of_arch in modules.values() for arch in of_arch}
    archs = sorted(names, key=lambda arch: int(re.sub(r"\D", "", arch)))
    return {"modules": dict(sorted(modules.items())), "archs": archs}


def _tensor(sides: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Tensor instructions of the hot loops, as PTX calls them -> the architectures where they are these."""
    found: dict[str, set[str]] = {}
    for side in sides:
        found.setdefault(side["arch"], set()).update(side["loop"]["by"] if side["loop"] else ())
    alike: dict[str, list[str]] = {}
    for arch, names in found.items():
        words = " and ".join(name for name in sass.TENSOR if name in names) or "none"
        alike.setdefault(words, []).append(arch)
    return alike


def _short(name: str) -> str:
    """A kernel's name and template arguments without namespaces."""
    return _described(name) or name.replace("flashinfer::", "").replace("norm::", "")


def _described(kernel: str) -> str | None:
    """A kernel's name as its target says it for people; None where no target does."""
    said = (target.rules.described(kernel) for target in known().values())
    return next(filter(None, said), None)


def _loop(kernel: Mapping[str, Any]) -> Context | None:
    """Of the hot loop: instructions, and how many of each column of LOOP."""
    hot = kernel["hot_loop"]
    if hot is None:
        return None
    counted = {name: sass.count(hot["mix"], family) for name, family in LOOP.items()}
    other = hot["instructions"] - sum(counted.values())
    tensor = [name for name, family in sass.TENSOR.items() if sass.count(hot["mix"], family)]
    return {"instructions": hot["instructions"], **counted, OTHER: other, "by": tensor}


def _claims(
    static: Sequence[ClaimRow], measured: Sequence[ClaimRow], predicted: Mapping[str, ClaimRow]
) -> Context:
    """Claims by what decides them: here without a run, a measurement that holds on any GPU, a prediction, nothing.

    A claim that was confirmed on another GPU is open here, unless it says why the GPU does not matter.
    """
    decided = {CONFIRMED, REFUTED}
    there = {
        r["id"]
        for r in measured
        if r["verdict"] in decided and (r["independent"] or r["published"]["gpu"] is None)
    }
    groups: dict[str, list[ClaimRow]] = {
        name: [] for name in ("here", "there", "predicted", "elsewhere", "unstated", "open")
    }
    for record in static:
        found = predicted.get(record["id"])
        if record["verdict"] in decided:
            name = "here"
        elif record["id"] in there:
            name = "there"
        elif of_another_gpu(record["published"], record["architecture"]):
            name = "elsewhere"
        elif record["reason"].startswith(UNDECIDABLE):
            name = "unstated"
        else:
            name = "predicted" if found and found["verdict"] != OPEN else "open"
        groups[name].append({**record, "predicted": found, "lacking": _lacking(record)})
    said = [r for group in ("predicted", "open") for r in groups[group] if r["predicted"]]
    published = [r for r in said if r["predicted"]["figure"] is not None]
    figures = {
        kind: [r for r in published if r["predicted"]["expected"] is expected]
        for kind, expected in (("measured", False), ("expected", True))
    }
    held = {kind: _beside_published(rows) for kind, rows in figures.items()}
    return {"total": len(static), **groups, "figures": figures, "held": held}


def _beside_published(rows: Sequence[ClaimRow]) -> Context:
    """Predictions beside published figures: each row's place, and of independent figures how many lie where, and the bias."""
    independent = once(rows)
    sources = Counter(row["source"]["document"] for row in independent)
    return {
        "places": {row["id"]: interval_side(row["predicted"]) for row in rows},
        "count": Counter(interval_side(row["predicted"]) for row in independent),
        "independent": len(independent),
        "most": sources.most_common(1)[0] if sources else None,
        "biases": biases(independent),
    }


def _lacking(record: ClaimRow) -> str:
    """What kind of evidence an open claim needs, of the columns that its reason names; else what it says itself."""
    words = set(re.findall(r"\w+", record["reason"]))
    columns = [
        c for name, c in BY_NAME.items() if any(w == name or w.endswith(f"_{name}") for w in words)
    ]
    sources = {column.source for column in columns}
    if any(column.name.endswith("_measured") for column in columns):
        return "a ceiling measured on this GPU"
    if any(word.startswith("stall_") for word in words):
        return "stall reasons, which are counters"
    if "ncu" in sources:
        return "counters"
    if {"events", "nsys"} & sources:
        return "a measured time"
    return str(record["needs"] or record["reason"])


def static_page(
    *,
    results: Path,
    facts: Path,
    measured: Path,
    out: Path,
    beside: Path | None = None,
    modules: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
) -> None:
    """The page of static evidence.

    Args:
        results: of tier S, with claims and predictions
        facts: static facts of the architecture
        beside: those of another one
        modules: facts to list modules of, if any
        measured: results of the measured GPU
    """
    other = Facts(read_json(beside)) if beside else None
    built = [Facts(read_json(path)) for path in modules or ()]
    given = context(results, Facts(read_json(facts)), other, measured, built)
    text = environment().get_template("static.md.j2").render(given)
    write_text(out, text.rstrip() + "\n")


def render(machine: Path, jit: Path | None = None) -> str:
    """The text of the page of what `ncuflow environment` wrote; jit: what `ncuflow jit-results` wrote, if it was measured."""
    found = stored.written(machine, "environment_info.json")
    given = {
        "provenance": found["provenance"],
        "machine": found,
        "jit": stored.written(jit, "jit_analysis.json") if jit else None,
    }
    return environment().get_template("environment.md.j2").render(given).rstrip() + "\n"


def machine_page(*, environment: Path, out: Path, jit: Path | None = None) -> None:
    """The page of a machine.

    Args:
        environment: environment_info.json
        jit: jit_analysis.json, where it was measured
    """
    write_text(out, render(environment, jit))


def predict_page(*, measured: Path, on: Path, out: Path) -> None:
    """The page of predictions beside what was measured.

    Args:
        measured: results of a measured GPU
        on: results of another measured GPU
    """
    # It needs numpy, which a machine's page does without.
    from ncuflow.static.predict import predictions

    here, there = ([*stored.folder(place).values()] for place in (measured, on))
    try:
        both = [predictions(here, there), predictions(there, here)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not all(one["crossed"] for one in both):
        raise UsageError(f"{measured} and {on}: not both measured, or of other points")
    text = environment().get_template("predictions.md.j2").render(directions=both)
    write_text(out, text.rstrip() + "\n")
