"""The parts of docs/*.md that are made of the records, the registry and the columns, the schemas of answers, the pages of
recorded trials and of what they found on two GPUs, what recorded advice came to, and what changes of a step gained.

python -m scripts.docs            write them
python -m scripts.docs --check    exit 1 where a part is not what would be written

Schemas lie in ncuflow/schemas, records of trials in examples/changes. A part of a page stands behind a line such as
`<!-- scripts/docs.py: stalls -->`, up to `<!-- end -->`; the rest of the page is prose.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from textwrap import fill
from types import ModuleType
from typing import Any, TypeVar

from ncuflow import answer
from ncuflow.claims.audit import ClaimsAnswer
from ncuflow.cli import ended
from ncuflow.compare.records import CompareAnswer
from ncuflow.evidence import location
from ncuflow.experiments import audit, bisection, record, text
from ncuflow.experiments.upgrade import Upgrade
from ncuflow.explain.record import Explanation
from ncuflow.export.check import CheckAnswer
from ncuflow.findings.columns import COLUMNS
from ncuflow.findings.derivation import TraceSteps
from ncuflow.findings.sanity import SanityAnswer
from ncuflow.format import micro, number, pct
from ncuflow.io import clean, read_as, read_json, write_text
from ncuflow.model import TABLES
from ncuflow.parquet import row, schema
from ncuflow.parsers import tables as of_captures
from ncuflow.parsers.breakdown import UNITS
from ncuflow.parsers.chips import ANY, CHIPS
from ncuflow.parsers.registry import GROUPS, METRICS, Metric, Sources, counters
from ncuflow.parsers.show import ReportAnswer, TraceAnswer
from ncuflow.parsers.stalls import STALL_REASONS, StallReason
from ncuflow.race import record as race_record
from ncuflow.record import Strict
from ncuflow.run.listing import TargetsAnswer
from ncuflow.run.preflight import PreflightAnswer
from ncuflow.static.predict import PredictAnswer
from ncuflow.step.record import StepAnswer
from ncuflow.sweep.workloads import WorkloadAnswer
from ncuflow.verbs.counters import CountersAnswer
from scripts import archive, nvperf, outcomes, speedups

FOLDER = Path("docs")
SCHEMAS = Path("ncuflow/schemas")
KEPT = Path("examples")
EXAMPLES = KEPT / "changes"
APPLIED = KEPT / "engine/applied.json"
A = TypeVar("A", bound=answer.Answer)
APIS = (
    "recordings/*/*/apis",
    "recordings/*/*/cases",
)  # what the second has takes the first's place
# Templates of calls that a case measures by its own name, or a target of their own.
ELSEWHERE = frozenset(
    [
        "batch_attention_run",
        "block_sparse_run",
        "cutlass_fused_moe",
        "gemm_fp8",
        "mono_moe",
        "multi_level_cascade_run",
        "pod_run",
        "recurrent_kda",
        "segment_gemm_run",
        "var_block_sparse_run",
        "xqa_batch_decode",
    ]
)
MOST_REASON = 160  # characters
WIDTH = 120  # of a line of prose
_PART = re.compile(r"(<!-- scripts/docs\.py: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Every table with its columns."""
    return "\n".join("\n".join(_table(name)) + "\n" for name in TABLES)


def _table(name: str) -> Iterator[str]:
    yield f"## {name}\n\nA row: {row(name)}.\n"
    yield "| column | type | unit | meaning | source |\n|---|---|---|---|---|"
    for field in schema(name):
        about = {key.decode(): value.decode() for key, value in field.metadata.items()}
        null = ", null" if field.nullable else ""
        source = f"`{about['source']}`" if about["source"] else ""
        kind = f"{field.type}{null}".replace("list<element: double>", "list of double")
        yield f"| `{field.name}` | {kind} | {about['unit']} | {about['meaning']} | {source} |"


def metrics() -> str:
    """The registry, group by group."""
    return "\n".join(
        f"## {name}\n\n{''.join(map(_metric, group))}" for name, group in GROUPS.items()
    )


def _metric(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    chips: dict[Sources, list[str]] = defaultdict(list)
    for chip, listed in metric.sources.items():
        chips[listed].append(chip)
    sources = "".join(
        f"  - {'' if on == [ANY] else _chips(on) + ': '}`{source}`\n"
        for listed, on in chips.items()
        for source in listed
    )
    about = f"- **`{metric.key}`** ({metric.label}{unit}): {metric.meaning}."
    return f"{fill(about, WIDTH, subsequent_indent='  ', break_on_hyphens=False)}\n{sources}"


@cache
def chips() -> str:
    """The chips, with what a sweep collects there and in how many passes; NVIDIA's library counts these."""
    rows = []
    for name, chip in CHIPS.items():
        asked = counters(name)
        passes = nvperf.ChipCounters(name).passes(asked)
        lacks = [f"`{key}`" for key, metric in METRICS.items() if not metric.candidates(name)]
        capabilities = ", ".join(chip.capabilities)
        rows.append(
            f"| `{name}` | {chip.products} | {capabilities} | {len(asked)} | {passes} | {', '.join(lacks)} |"
        )
    return _rows("chip | GPUs | compute capability | counters | passes | not counted there", rows)


def stalls() -> str:
    """The stall reasons, with the names of the samples that differ."""
    rows = (
        f"| `{r.reason}` | {r.kind.replace('_', ' ')} | {r.meaning} | {f'`{r.pcsamp}`' if r.pcsamp else ''} | {_on(r)} |"
        for r in STALL_REASONS.values()
    )
    return _rows("reason | kind | a warp waits for | name in the samples | where not on all", rows)


def _on(reason: StallReason) -> str:
    """The chips that have a stall reason where some have it; of none it is no counter of its own."""
    on = [chip for chip in CHIPS if reason.on(chip)]
    return _chips(on) if 0 < len(on) < len(CHIPS) else ""


def _chips(on: Sequence[str]) -> str:
    """Chips, or those that are not among them where these are fewer."""
    off = [chip for chip in CHIPS if chip not in on]
    return ", ".join(on) if len(on) <= len(off) else f"not on {', '.join(off)}"


def units() -> str:
    """The hardware units of breakdowns."""
    rows = (
        f"| `{name}` | {u.label} | {u.meaning} | {', '.join(f'`{p}`' for p in u.prefixes if p)} |"
        for name, u in UNITS.items()
    )
    return _rows("unit | on pages | what its counters count | counters that begin with", rows)


def columns() -> str:
    """The columns of the measurement."""
    rows = (f"| `{c.name}` | {c.unit} | {c.source} | {c.formula} |" for c in COLUMNS)
    return _rows("column | unit | from | formula", rows)


def apis() -> str:
    """The APIs with a trace template, measured on the recorded GPU or with the reason why not."""
    points = {
        str(point["point"]): point
        for folder in APIS
        for path in sorted(location.matching(folder)[-1].rglob("timing.jsonl.xz"))
        for point in of_captures.read(path)
    }
    measured, others = [], defaultdict(list)
    for _, point in sorted(points.items()):
        name = json.loads(point["params"])["api"]
        api = f"`{name}`"
        if point["status"] == "ok":
            rate = point["bytes"] / point["cold_us"] / 1e3
            whose = "" if point["cold_queued"] else ", the host's"
            measured.append(f"| {api} | {micro(point['cold_us'])}{whose} | {number(rate)} GB/s |")
        elif name in ELSEWHERE:
            others["measured by another name here, or as a target of its own"].append(api)
        else:
            others[_reason(point)].append(api)
    why = sorted(others.items(), key=lambda one: (-len(one[1]), one[0]))
    rows = (f"| {reason} | {len(names)} | {', '.join(names)} |" for reason, names in why)
    return (
        f"{len(measured)} of {len(points)} were measured:\n\n"
        + _rows("API | cold time | bytes of its tensors, each once, over it", measured)
        + "\n"
        + _rows("why not | APIs | which", rows)
    )


def _reason(point: dict[str, Any]) -> str:
    """Why an API was not measured, in one line that a cell holds."""
    whole = " ".join(clean(str(point["reason"])).split())
    text = whole if len(whole) <= MOST_REASON else f"{whole[:MOST_REASON]}…"
    said = {"skipped": "", "wrong": "wrong: "}.get(point["status"], "it fails: ")
    return said + text.replace("|", "\\|")


def trial() -> str:
    """The models of a trial's record, field by field."""
    return _models(record.Trials, race_record, record)


def search() -> str:
    """The models of a search's record, field by field."""
    return _models(record.Search, record)


def _models(root: type[Strict], *modules: ModuleType) -> str:
    """The models of some modules that a record holds, the outermost first."""
    held = {root.__name__, *root.model_json_schema().get("$defs", {})}
    models = [
        model
        for module in modules
        for model in vars(module).values()
        if isinstance(model, type)
        and issubclass(model, Strict)
        and model.__module__ == module.__name__
        and model.__name__ in held
    ]
    return "\n".join(
        f"**{model.__name__}**: {(model.__doc__ or '').strip()}\n\n"
        + _rows(
            "field | meaning",
            (
                f"| `{name}` | {f.description} |".replace("\n", " ")
                for name, f in model.model_fields.items()
            ),
        )
        for model in reversed(models)
    )


def _rows(heads: str, rows: Iterable[str]) -> str:
    line = "|---" * (heads.count("|") + 1) + "|"
    return "\n".join([f"| {heads} |", line, *rows]) + "\n"


def advice() -> str:
    """What the advice that is kept says, and how it held."""
    return archive.report(archive.FOLDER) + "\n"


def gains() -> str:
    """Changes of a step that were made, beside what was predicted of them before."""
    found = read_json(APPLIED)
    rows = (
        f"| {one['step']} | {one['target']}: {one['change']} | {pct(one['share_pct'], 1)} |"
        f" {' to '.join(f'{end:.1f}' for end in one['predicted_pct'])} % | {pct(_saved(one), 1)} |"
        for one in found
    )
    origin = dict.fromkeys(
        f"{one['gpu']}, torch {one['torch']}, FlashInfer {one['flashinfer']}, {one['date']}"
        for one in found
    )
    heads = "step | change | the kernel's share | predicted | measured, in turns"
    return f"{'; '.join(origin)}:\n\n" + _rows(heads, rows)


def bisections() -> str:
    """What bisections that are kept found."""
    return _screens("bisect", bisection.Bisection, bisection.report)


def searches() -> str:
    """What searches that are kept found."""
    return _screens("search", record.Search, text.search_text)


def _screens(kind: str, record: type[A], screen: Callable[[A], str]) -> str:
    """The screens of the records that examples/ keeps of a command."""
    files = sorted((KEPT / kind).glob("*.json.xz"))
    found = (screen(read_as(file, record, f"a record of {kind}")).rstrip() for file in files)
    return "\n\n".join(f"```text\n{text}\n```" for text in found) + "\n"


def _saved(one: Mapping[str, Any]) -> float:
    """% by which the median step is shorter."""
    base, changed = (float(median(one[side])) for side in ("base_us", "changed_us"))
    return 100 * (1 - changed / base)


PARTS = {
    part.__name__: part
    for part in (
        tables,
        chips,
        metrics,
        stalls,
        units,
        columns,
        apis,
        trial,
        search,
        advice,
        gains,
        bisections,
        searches,
    )
}


def made(page: str) -> str:
    """The text of a page with its parts as they are now."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().rstrip()}\n\n", page)


# What commands print with --json, by the last word of their names.
ANSWERS: dict[str, Any] = {
    "advise": record.Advice | audit.Audit | audit.StoreComparison | record.Search,
    "bisect": bisection.Bisection,
    "check": CheckAnswer,
    "claims": ClaimsAnswer,
    "compare": CompareAnswer,
    "counters": CountersAnswer,
    "explain": Explanation,
    "predict": PredictAnswer,
    "preflight": PreflightAnswer,
    "sanity": SanityAnswer,
    "show": ReportAnswer | TraceAnswer,
    "step": StepAnswer,
    "targets": TargetsAnswer,
    "trace": TraceSteps,
    "try": record.Trial | record.Trials,
    "upgrade": Upgrade,
    "workload": WorkloadAnswer,
}


def schemas() -> dict[Path, str]:
    """The JSON Schema of every command's answer, by the file that ships it."""
    return {SCHEMAS / f"{name}.json": answer.schema(of) for name, of in ANSWERS.items()}


def _held(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def run(check: bool) -> int:
    """Write the parts, or with `check` say which page is out of date and return 1."""
    wanted = {path: made(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.md"))}
    wanted |= schemas() | outcomes.pages(EXAMPLES)
    wanted |= speedups.pages(EXAMPLES, FOLDER / "findings")
    stale = [path for path, text in wanted.items() if _held(path) != text]
    for path in stale:
        if check:
            print(f"{path} is out of date: run python -m scripts.docs", file=sys.stderr)
        else:
            write_text(path, wanted[path])
    return 1 if stale and check else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    told = parser.parse_args()
    sys.exit(ended(lambda: run(told.check)))
