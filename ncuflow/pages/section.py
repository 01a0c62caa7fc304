"""A section: what pages say of one kernel target, and its opportunities, ranked, with what a trial brought; and the findings
that it is made of, read from the files of a run when a page first asks for them."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

from ncuflow import format as fmt
from ncuflow.findings import ceilings, limiter, opportunities, sanity, stored
from ncuflow.findings.choices import CHANGES, MUCH, STEPS, Effect, Tried, summary
from ncuflow.findings.join import WAITED, main_kernel, total
from ncuflow.findings.scope import Scope
from ncuflow.format import Struck, change
from ncuflow.io import BadInput
from ncuflow.model import Measurement, Point, Results
from ncuflow.pages import Context
from ncuflow.pages.series import (
    MOVED,
    PAST_DRAM,
    axis_of,
    best,
    faster,
    sent,
    spread,
    usual,
    varying,
)
from ncuflow.target.contract import Target, known, ordered
from ncuflow.target.source import Symbol


class Impossible(BadInput):
    """Results with a number that cannot be true; the first stands for all in ``first``."""

    def __init__(self, name: str, violations: Sequence[sanity.ImpossibleNumber]) -> None:
        reasons = list(map(str, violations))
        super().__init__(name, "; ".join(reasons))
        more = f" ({len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        self.first = reasons[0] + more


class Findings:
    """What the pages read: results by target and the JSON beside them, loaded when first asked for.

    names: the targets of this run, ``jit`` among them; None for all that the folder holds, which
    may be of an earlier run.
    """

    def __init__(
        self,
        results: Path,
        evidence: Path,
        strict: bool = True,
        names: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.evidence, self.strict, self.names = results, evidence, strict, names
        self.struck: list[str] = []
        self.stopped: dict[str, str] = {}  # target -> the number for which its results are left out
        self._read: dict[str, Results] = {}

    @cached_property
    def targets(self) -> dict[str, Results]:
        """target -> content of ``<target>_results.json``, in the order of pages.

        One with an impossible number is left out, and named in ``stopped``.
        """
        names = self.names
        if names is None:
            files = self.folder.glob("*_results.json")
            names = [path.name.removesuffix("_results.json") for path in files]
        found = {}
        for name in ordered([name for name in names if name != "jit"]):
            try:
                found[name] = self.target(name)
            except Impossible as error:
                self.stopped[name] = error.first
        return found

    def results(self, name: str) -> Results:
        """One target's results, read once, whatever numbers are in it."""
        if name not in self._read:
            self._read[name] = stored.results(self.folder / f"{name}_results.json", struck=False)
        return self._read[name]

    @cache  # noqa: B019 - as long as its results, which the process ends with
    def impossible(self, name: str) -> list[sanity.ImpossibleNumber]:
        """The numbers of a target that cannot be true."""
        return sanity.check(self.results(name))

    def target(self, name: str) -> Results:
        """One target's results, without those of the others.

        Raises Impossible for a number that cannot be true; without ``strict`` that number is struck
        through instead, and ``struck`` says why.
        """
        results, violations = self.results(name), self.impossible(name)
        if violations and self.strict:
            raise Impossible(f"{name}_results.json", violations)
        self.struck += map(str, violations)
        rows = {point["point"]: point["measurement"] for point in results["points"]}
        for violation in violations:
            row = rows[violation.point]
            for column in violation.struck & row.keys():
                if isinstance(row[column], int | float):
                    row[column] = Struck(row[column])
        return results

    def optional(self, name: str) -> Any:
        """A JSON finding that this run may lack (jit_analysis, claims, environment_info), or None."""
        if name == "jit_analysis" and self.names is not None and "jit" not in self.names:
            return None
        return stored.optional(self.folder / f"{name}.json")

    def required(self, name: str) -> Any:
        """A JSON finding that a page cannot do without. Raises BadInput where the run lacks it."""
        found = self.optional(name)
        if found is None:
            raise BadInput(
                self.folder, f"no results here: a run leaves {name}.json in outputs/MACHINE/results"
            )
        return found

    @cached_property
    def source_index(self) -> Any:
        """The index of the FlashInfer that was measured, or None."""
        return stored.optional(self.evidence / "source_index.json")


MOST_ELSEWHERE = 2  # trials in other places that a row tells
COPIES = 0.4  # of its bytes that a kernel writes, from which on a copy is its roof, and not a read
CALL = "variant"  # the parameter whose values are calls of their own
MOST_ROWS = 3  # of a table on a page; the CSV beside it has them all


def title(name: str) -> str:
    """The title of a target; its name where the evidence is of one that is not here."""
    target = known().get(name)
    return target.title if target else name.replace("_", " ").capitalize()


def target_section(results: Results, index: Any = None) -> Context:
    """What pages say of one target; index: of the FlashInfer that was measured."""
    points, target = results["points"], known().get(results["target"])
    good = [p for p in points if p["status"] == "ok"]
    axis = axis_of(good)
    top, base = best(good, axis.rate), dict(usual(good, axis))
    named = {kernel["point"] for kernel in results["deep"]} | {top["point"] if top else None}
    shown = [_point_context(p) for p in spread(good, MOST_ROWS, named)]
    for one in shown:
        one["roof"] = roof(one["m"], axis.rate)
    launches = [
        floor
        for m in (p["measurement"] for p in good)
        if m["time_cold_us"] and (floor := m.get("time_floor_us")) and m["time_cold_us"] < 2 * floor
    ]
    every = opportunities.scopes(results)
    advice = opportunity_rows(results, index, every)
    return {
        "name": results["target"],
        "title": title(results["target"]),
        "calls": [
            symbol.rpartition(".")[2]
            for step, symbol in (target.source.api.items() if target else ())
            if step.startswith("python")
        ],
        "provenance": results["provenance"],
        "ceilings": results["ceilings"],
        "axis": axis,
        "base": ", ".join(f"{name} {value}" for name, value in base.items()),
        "total": len(points),
        "good": len(good),
        "warnings": results.get("warnings") or [],
        "not_good": [p for p in points if p["status"] != "ok"],
        "incomplete": _by_problem(good),
        "shown": shown,
        "roofs": {p["point"]: roof(p["measurement"], axis.rate) for p in good},
        "two_roofs": any(one["roof"]["rate"] != axis.rate for one in shown),
        "best": top and _point_context(top) | {"apart": apart(top, target, base, varying(good))},
        "faster": top and (more := faster(good, axis.rate, top)) and _point_context(more),
        "passed": top and ceilings.passed(results["ceilings"], top["measurement"], axis.rate),
        "copied": _copied(target, top, results) if target and top and axis.rate == "gbs" else None,
        "floor": median(launches) if launches else None,
        "launches": len(launches),
        "waiting": sorted((_point_context(p) for p in good if _host_bound(p)), key=_time),
        "graph": _graph(results, [p["point"] for p in good if _host_bound(p)]),
        "moved_more": [
            _point_context(p) | {"why": _why_moved(p)}
            for p in sorted((p for p in good if _moved(p) > MOVED), key=_moved)
        ],
        "past_dram": sum(
            (p["measurement"].get("bytes_beyond_dram_pct") or 0) >= PAST_DRAM for p in good
        ),
        "opportunities": advice,
        "looked": bool(target and target.opportunities),
        "undecided": opportunities.undecided(results, every=every),
        "has_counters": any(p["measurement"]["time_ncu_us"] for p in good),
        "has_trace": any(p["measurement"]["time_insitu_us"] for p in good),
    }


def _point_context(point: Point) -> Context:
    m = point["measurement"]
    return {
        "label": point["point"].split("/", 1)[1],
        "id": point["point"],
        "m": m,
        "nature": limiter.nature(m),
        "sent": sent(point),
        "params": point["params"],
        "l2_pct": _own_l2(point),
    }


def apart(
    point: Point, target: Target | None, base: Mapping[str, Any], differing: Collection[str]
) -> list[tuple[str, Any]]:
    """What a headline is of: which of a target's calls, and the settings and KV heads that most of its points have otherwise."""
    named = {*(target.choices if target else ()), "kv_heads"} & {*differing}
    of = {name: value for name, value in point["params"].items() if name in named}
    return [(n, value) for n, value in of.items() if n == CALL or value != base.get(n, value)]


def _copied(target: Target, point: Point, results: Results) -> float | None:
    """The rate of a point that writes about as much as it reads over that of the fastest copy, which turns DRAM between the two
    as often; None of others, and above 1, where not all of its bytes passed DRAM."""
    row = point["measurement"]
    copy = results["ceilings"].get("measured", {}).get("series", {}).get("copy") or {}
    rates = (copy.get("value"), (copy.get("sustained") or {}).get("value"))
    roof = max((rate for rate in rates if rate), default=None)
    params = target.parameters | point["params"]
    needed = row["bytes_analytic"]
    if not (target.written and roof and needed and row["gbs"]):
        return None
    share = float(row["gbs"] / roof)
    return share if target.written(params) >= COPIES * needed and share <= 1 else None


def _host_bound(point: Point) -> bool:
    """Whether the host's call takes longer than its kernels, the inputs in DRAM; not known of a call that waits for them."""
    row = point["measurement"]
    host, gpu = row["host_launch_us"], row["time_cold_us"]
    told = host is not None and gpu is not None and WAITED not in point["problems"]
    return told and host > gpu


def _graph(results: Results, waiting: Collection[str]) -> Context | None:
    """How much longer kernels took in a CUDA graph, of 1, at the most of its pairs; at how many points one pays, at how many by a
    pair of their own; at how many of those whose call takes longer nothing tells it, at how many not. None without pairs."""
    found = opportunities.graph(results)
    if found.longer is None:
        return None
    pays = [point for point, yes in found.pays.items() if yes]
    unknown = [point for point in waiting if found.pays.get(point, False) is None]
    own = [point for point in pays if point in found.paired]
    return {
        "longer": max(found.longer, 0),
        "pays": len(pays),
        "own": len(own),
        "unknown": len(unknown),
        "lost": sum(found.pays.get(point) is False for point in waiting),
    }


def roof(row: Measurement, rate: str) -> Context:
    """{rate, share of 1, name, waited} of the roof that a point is nearest to, DRAM or products; of ``rate`` where one
    is not known. Products of a type that were not measured here have the datasheet's roof. waited: the GPU waited for the host
    in that time, whose share is None."""
    shares = {one: row.get(f"{one}_fraction_measured") for one in ("gbs", "tflops")}
    products = row.get("flop_type") not in (None, "fp32")
    by_sheet = shares["tflops"] is None and products and shares["gbs"] is not None
    if by_sheet:
        shares["tflops"] = row.get("tflops_fraction_datasheet")
    if None not in shares.values():
        rate = max(shares, key=lambda one: shares[one] or 0)
    name = (
        f"{row['flop_type'] if products else row.get('dtype')} products"
        if rate == "tflops"
        else "DRAM"
    )
    waited = WAITED in (row.get("problems") or "")
    name += ", by the datasheet" * (by_sheet and rate == "tflops")
    return {"rate": rate, "share": None if waited else shares[rate], "name": name, "waited": waited}


def _own_l2(point: Point) -> float | None:
    """How busy L2 is by its own counters: ncu's L2 throughput has the fills from DRAM in it, and follows DRAM."""
    main = main_kernel(point["kernels"])
    units = limiter.judge(main.get("breakdown") or (), main["metrics"]).units if main else ()
    return next((unit.pct for unit in units if unit.name == "l2"), None)


def _moved(point: Point) -> float:
    """The bytes that passed DRAM over those that the work needs; 0 where they were not counted."""
    return float(point["measurement"]["moved_ratio"] or 0)


def _why_moved(point: Point) -> str:
    """Which bytes pass DRAM beyond those that the work needs, as far as its kernels and counters tell."""
    row, kernels = point["measurement"], point["kernels"]
    if row["merge_pct"]:
        return "the states of the split, written and read by the merge"
    if len(kernels) > 1:
        return f"among it what its {len(kernels)} kernels hand on to each other"
    read = total(kernel["metrics"].get("dram_bytes_read") for kernel in kernels) or 0
    again = read > (row["bytes_analytic"] or 0)
    return "operands that L2 did not keep, read again" if again else "more than the result, written"


def _by_problem(points: list[Point]) -> list[tuple[str, list[str]]]:
    """(what is missing, the points that lack it), in the order of the points."""
    found: dict[str, list[str]] = {}
    for point in points:
        if problems := point["measurement"]["problems"]:
            found.setdefault(problems, []).append(point["point"])
    return list(found.items())


def _time(shown: Context) -> float:
    return float(shown["m"]["time_cold_us"] or 0)


def opportunity_rows(
    results: Results, index: Any, every: Mapping[str, Scope] | None = None
) -> list[Context]:
    """[{group, what, where, at, points, more, shown, source, change, most, brought, reason, saved, bound, changed, changed_at,
    pairs, turned, spread, same_work}], in the order of the findings.

    All is text but for the points, how many more than the one shown they are, how many pairs were timed, and what they saved
    and the bound, of 1; changed_at: where it was measured, if not there; turned: what went the other way elsewhere;
    same_work: whether the bound is of the time of this work, not of a step or of less work; group is
    one of ``GROUPS``.
    """
    found = opportunities.found(results, every=every)
    return [_opportunity(one, results["target"], index) for one in found]


def _opportunity(one: opportunities.MeasuredOpportunity, target: str, index: Any) -> Context:
    declared, label = one.opportunity, one.point.split("/", 1)[1]
    return {
        "group": one.group,
        "what": declared.what,
        "where": one.where,
        "points": one.told,
        "at": label,
        "shown": opportunities.worded(declared, one.facts) + " (times of the pair)" * _on_its_host(one.effect),
        "more": len(one.told) - 1,
        "source": file_and_line(declared.symbol, target, index) if declared.symbol else "",
        "change": declared.change,
        "same_work": declared.metric not in STEPS and not declared.other_work,
        "most": _most(one),
        "sets": ", ".join(_asked(one, target)),
        "brought": brought(one),
        "reason": one.reason,
        "saved": one.saved,
        "bound": one.most if one.bounded else 0.0,
        "changed": change(told.change) if (told := one.effect or next((t.at(label) for t in one.elsewhere), None)) else None,
        "changed_at": "" if one.effect or not one.elsewhere else _placed(one.elsewhere[0].at(label).at, label),
        "calls": f"; slower outside a CUDA graph at `{_worst(one.calls).base_point.split('/', 1)[1]}`" if one.calls else "",
        "patch": one.effect is None and bool(one.elsewhere) and one.elsewhere[0].source.startswith(CHANGES),
        "on_host": _on_its_host(one.effect),
        "pairs": len(one.counted),
        "turned": turned(one.elsewhere) if one.effect else "",
        "spread": ranged(over) if (over := summary(one.counted)) else "",
    }  # fmt: skip


def _most(one: opportunities.MeasuredOpportunity) -> str:
    """What it can bring at most, and where it could bring much more to callers who set something else."""
    if not one.bounded:
        return fmt.MISSING
    text: str = fmt.percent(one.most) + " of the call" * (one.opportunity.metric in STEPS)
    top = max(one.mosts, key=lambda point: one.mosts[point])
    more = one.effect is None and one.mosts[top] >= one.most + MUCH
    return text + f" ({fmt.percent(one.mosts[top])} at `{top.split('/', 1)[1]}`)" * more


def _placed(measured: str, label: str) -> str:
    """Where a change was measured, if that is not the point beside it."""
    return "" if measured == label else measured


def turned(elsewhere: Sequence[Tried]) -> str:
    """What went the other way in other places: the first, in short."""
    return ", ".join(f"{change(t.told.change)} at `{t.told.at}`" for t in elsewhere[:1])


def _asked(one: opportunities.MeasuredOpportunity, target: str) -> list[str]:
    """What callers set to have the points of an opportunity, as they write it."""
    declared = known().get(target)
    if declared is None:
        return [f"{name}={value}" for name, value in one.departs]
    usual = {name: one.facts.get(name) for name in declared.parameters}
    usual |= declared.resolves(usual, "") | declared.free(usual)
    words: list[str] = []
    for name, value in one.departs:
        asked = declared.asked({**usual, name: value})
        told = [
            f"flashinfer.autotune({key}={to})"
            if call == "autotune"
            else f"{key}={to}"
            if call == "environment" or not isinstance(to, str)
            else f'{key}="{to}"'
            for call, settings in asked.items()
            for key, to in settings.items()
            if declared.asked(usual).get(call, {}).get(key) != to
        ]
        words += told or [f"{name}={value}"]
    return words


def brought(one: opportunities.MeasuredOpportunity) -> str:
    """What the trial changed, with its interval and the range over all; or why there is none, and how to try."""
    effect = one.effect
    if effect is None:
        label = one.point.split("/", 1)[1]
        tried = "; ".join(t.words(one.where, label=label) for t in one.elsewhere)
        return tried or f"not tried: {one.reason}"
    text = f"{change(effect.change)}"
    if effect.low is not None and effect.high is not None:
        text += f" ({change(effect.low)} to {change(effect.high)})"
    text += ", within noise" if effect.verdict == "within noise" else ""
    text += "" if effect.in_turns else ", not timed in turns"
    text += ", in two sessions" * effect.apart
    text += " on the pair's host" * _on_its_host(effect)
    text += _over_all(one.counted)
    if one.alike:
        text += f"; no difference where `{one.alike}`"
    if one.layers:
        few, many = one.layers
        launches = (
            "1 launch pays"
            if many == 1
            else f"{few} to {many} launches pay"
            if few < many
            else f"{many} launches pay"
        )
        text += f"; its plan() takes longer, which {launches} for"
    if one.calls:
        text += _calls(one.calls)
    if one.elsewhere:
        text += f"; counterexample: {'; '.join(t.words(short=True) for t in one.elsewhere[:MOST_ELSEWHERE])}"
    if one.untried:
        text += f"; not tried at `{one.untried[0].split('/', 1)[1]}`, at most {fmt.percent(one.untried[1])}"
    return text


def _calls(calls: Sequence[Effect]) -> str:
    """At which points the host's call takes what the GPU saves."""
    worst = _worst(calls)
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    longer = f"{fmt.quantity(worst.other, 'µs')} instead of {fmt.quantity(worst.base, 'µs')}"
    at = f"at `{worst.base_point.split('/', 1)[1]}`{more}"
    return f"; {at} the host takes {longer} for the call: slower outside a CUDA graph"


def _worst(calls: Sequence[Effect]) -> Effect:
    return max(calls, key=lambda call: call.change)


def _over_all(effects: Sequence[Effect]) -> str:
    """How all trials fared."""
    found = summary(effects)
    if found is None or len(effects) < 2:
        return ""
    within = f", {found['within']} of them within noise" if found["within"] else ""
    changed = {effect.change > 0 for effect in effects if effect.verdict != "within noise"}
    turning = ", and no parameter tells which gain" if len(changed) > 1 else ""
    return f"; over {len(effects)} pairs {ranged(found)}{within}{turning}"


def fared(found: Context) -> str:
    """How a choice fared, by its summary: each part for itself where parameters tell how pairs fare."""
    if not found["parts"]:
        within = int(found["within"])
        told = ranged(found) + f", {within} within noise" * (0 < within < int(found["pairs"]))
        return told + f", {found['apart']} in two sessions" * bool(found["apart"])
    return "; ".join(
        f"{ranged(part)}{', within noise' * (part['within'] == part['pairs'])} where `{where}`"
        for where, part in found["parts"]
    )


def ranged(found: Context) -> str:
    """Changes as their median and range, of two or of opposite signs as the range alone."""
    if found["least"] == found["most"]:
        return change(found["least"])
    ends = f"{change(found['least'])} to {change(found['most'])}"
    if found["median"] is None or found["pairs"] < 3:
        return ends
    return f"{change(found['median'])} in the median, {ends}"


def _on_its_host(effect: Effect | None) -> bool:
    """Whether a price is that of a step timed in turns: what a host takes for a call is the host's own."""
    return effect is not None and effect.in_turns and effect.metric in STEPS


def file_and_line(symbol: Symbol, target: str, index: Any) -> str:
    """``pos_enc.cuh:1594`` where the index of the measured FlashInfer has the symbol, or reads that variable, else its file."""
    known = index or {}
    for read in (known.get("environment") or {}).get(symbol.name) or ():
        if read["file"] == symbol.header:
            return f"{symbol.header}:{read['line']}"
    for name, functions in (known.get("functions") or {}).items():
        if name.endswith(f"/flashinfer/{symbol.header}"):
            line = next((line for line, _, function in functions if function == symbol.name), None)
            return f"{symbol.header}:{line}" if line else symbol.header
    entry = (known.get("targets") or {}).get(target) or {}
    for step in (entry.get("api") or {}).values():
        if step["symbol"].endswith(f".{symbol.name}"):
            return f"{step['file']}:{step['line']}"
    return symbol.header
