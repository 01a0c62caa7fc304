"""A trace's steps, summarised: by kind, its median step, kernel by kernel."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import Any

import numpy as np

from ncuflow.findings import kernelname
from ncuflow.findings.kernelname import FLASHINFER, OTHER
from ncuflow.format import with_unit
from ncuflow.gpu.table import Device, device, product
from ncuflow.io import BadInput
from ncuflow.parsers.timeline import KERNEL, UNSAID, Launched, Operator, Timeline
from ncuflow.record import quartiles
from ncuflow.step import detection, reference, shapes
from ncuflow.step import rows as rows_of
from ncuflow.step.detection import DECODE, StepSpan
from ncuflow.step.record import (
    GainOfStep,
    KernelOfStep,
    ShapeOfLaunch,
    StepAnswer,
    StepGroup,
    StepTimes,
)
from ncuflow.step.reference import (
    CallsOfStep,
    Machine,
    RacedShapes,
    Reference,
    nearest,
    roof,
    roof_of,
)
from ncuflow.step.rows import share_pct
from ncuflow.step.shapes import CONTINUED, REDUCES, KnownFacts, Ranges, Shape, Stated
from ncuflow.target.launch import Host, Params

# of FlashInfer, whose launch rules are tried: a trace does not say its own
VERSIONS = ((0, 7), (0, 6))
US = 1e-3
_LAUNCHES = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
SLOWED = (
    "the profiler wrote down shapes, which slows the host: what the GPU waits for it is at most this in the engine alone "
    "(--wall, with the time of a step without it, says how much)"
)
NODE = "CUDA graphs were traced as a whole: record with `nsys profile --cuda-graph-trace=node`, and each of their kernels is told"


@dataclass
class Summary:
    """Everything that is said of one GPU of a trace. given: what the user and a dump say; advice: of `ncuflow advise`, or None;
    asked: the number of the GPU, or None for the one that ran most."""

    timeline: Timeline
    given: KnownFacts
    held: Reference
    advice: RacedShapes | None = None
    asked: int | None = None

    def answer(self) -> StepAnswer:
        steps, how = detection.found(self.timeline, self.device)
        groups = defaultdict(list)
        for number, step in enumerate(steps):
            groups[step.kind, step.replayed].append(number)
        made = [self._group(steps, numbers) for numbers in groups.values()]
        made.sort(key=lambda group: -group.step_us.median * group.steps)
        kernels = [one for group in made for one in group.kernels]
        for number, one in enumerate(kernels, 1):
            one.number = number
        ours = [one for one in kernels if one.owner == FLASHINFER]
        return StepAnswer(
            file=PurePath(self.timeline.file).name,
            tool=self.timeline.tool,
            gpu=self.gpu,
            device=None if self.device == UNSAID else self.device,
            devices=len(self.devices),
            found_by=how,
            groups=made,
            known={
                f"{name} {_between(value)}": self.given.sources[name]
                for name, value in self.given.values.items()
            },
            recording=self.held.name,
            host_slowed=self.host_slowed,
            problems=self._problems(),
            family_pct=share_pct(kernels, [one.family != OTHER for one in kernels]) or 0.0,
            roof_pct=share_pct(kernels, [rows_of.has_roof(one) for one in kernels]) or 0.0,
            unmendable_pct=share_pct(kernels, [rows_of.unmendable(one) for one in kernels]) or 0.0,
            shape_pct=share_pct(ours, [rows_of.is_told(one.shape) for one in ours]),
        )

    @cached_property
    def host_slowed(self) -> bool:
        """Whether the profiler wrote down shapes, which takes the host longer than the launches."""
        return any(one.dims for one in self.timeline.shapes)

    @cached_property
    def devices(self) -> list[int]:
        """The GPUs on which anything ran; UNSAID first, where operations do not say it."""
        return [*map(int, np.unique(self.timeline.rows["device"]))]

    @cached_property
    def device(self) -> int:
        if self.asked is None:
            return detection.busiest(self.timeline)
        if self.asked not in self.devices:
            there = ", ".join(map(str, self.devices))
            raise BadInput(self.timeline.file, f"nothing ran on GPU {self.asked}, of {there}")
        return self.asked

    @property
    def gpu(self) -> str | None:
        """Its name, or that of all; None where the trace does not say it."""
        devices = self.timeline.devices
        names = {*devices.values()}
        return devices.get(self.device) or (names.pop() if len(names) == 1 else None)

    @cached_property
    def machine(self) -> Machine:
        return Machine.of(self.gpu, self.held.measured)

    @cached_property
    def hosts(self) -> list[Host]:
        """The GPU as launch rules see it, with the registers that the trace says kernels have; none of an unknown GPU."""
        try:
            gpu: Device = device(self.gpu or "")
        except ValueError:
            return []
        registers: dict[str, int] = {}
        for one in self.timeline.kinds:
            if one.kind == KERNEL and one.registers:
                registers[kernelname.canonical(one.name)] = one.registers
                registers.setdefault(kernelname.decode(one.name).name, one.registers)

        def of(kernel: str) -> int:
            short = re.sub(r"<.*", "", kernel).split("::")[-1]
            return registers[kernel] if kernel in registers else registers[short]

        return [Host(gpu, version, of) for version in VERSIONS]

    def _problems(self) -> list[str]:
        found = list(self.timeline.problems)
        if self.host_slowed:
            found.append(SLOWED)
        if others := [one for one in self.devices if one not in (UNSAID, self.device)]:
            more = f"{len(others)} other{'s' * (len(others) > 1)}"
            found.append(
                f"GPU {self.device} is shown, and {more} ran something: --device {others[0]} shows another"
            )
        if UNSAID in self.devices:
            count = int((self.timeline.rows["device"] == UNSAID).sum())
            found.append(
                f"{with_unit(count, 'operations')} without a GPU: what was idle is not known"
            )
        if self.timeline.whole_graphs:
            found.append(NODE)
        if self.gpu is None:
            found.append(
                "the trace does not say its GPU: no ceiling, and no launch rule that asks for its size"
            )
        elif product(self.gpu) is None:
            found.append(f"{self.gpu} is not in the table of GPUs: no ceiling")
        elif self.held.folder is None:
            found.append(
                f"no recording of a {self.gpu} is here: ceilings are its datasheet's (`--recording` names one)"
            )
        if self.held.missing:
            found.append(
                f"no isolated benchmark and no gain: points of {self.held.name} need pyarrow: {self.held.missing}"
            )
        if lost := self._unseen():
            found.append(
                f"{lost} kernel launches without a kernel: captured into a graph, left out of what was read, or not "
                "recorded, as by nsys 2023 from some kernels on"
            )
        if not (self.timeline.rows["call"] >= 0).any():
            found.append("no operation has its call: why the GPU stood idle is not known")
        return found

    def _unseen(self) -> int:
        """Launches of which the trace has no kernel."""
        calls = self.timeline.calls.arrays()
        launches = [n for n, text in enumerate(self.timeline.texts) if _LAUNCHES.match(text)]
        mine = np.isin(calls["name"], launches)
        return int((~np.isin(calls["key"][mine], self.timeline.rows["key"])).sum())

    # --- one kind of step ---------------------------------------------------------------------------

    def _group(self, steps: Sequence[StepSpan], numbers: Sequence[int]) -> StepGroup:
        mine = [steps[number] for number in numbers]
        times = [detection.busy(self.timeline, step) for step in mine]
        lengths = np.array([time.span for time in times])
        order = np.argsort(lengths, kind="stable")
        middle = int(order[(len(order) - 1) // 2])
        step, time = mine[middle], times[middle]
        rows = self.timeline.rows
        plans = detection.planned(self.timeline, mine)
        kernels, gains = self._kernels(step, time, mine)
        ranked = reference.ranked(gains)
        first = [int(rows["start"][one.rows[0]]) for one in steps]
        together = {*numbers}
        periods = [first[n + 1] - first[n] for n in numbers if n + 1 in together]
        tokens = [one.said["tokens"] for one in mine if "tokens" in one.said]
        if not tokens and (known := self._facts(step).values.get("tokens")):
            tokens = [*known]
        return StepGroup.model_validate(
            {
                "kind": step.kind,
                "replayed": step.replayed,
                "steps": len(mine),
                "step_us": _spread(lengths),
                "period_us": round(float(np.median(periods)) * US, 3) if periods else None,
                "worst": numbers[int(order[-1])] + 1,
                "median_step": numbers[middle] + 1,
                "shown_us": round(time.span, 3),
                "tokens": (min(tokens), max(tokens)) if tokens else None,
                "busy_us": round(time.busy, 3),
                "gaps": None if UNSAID in self.devices else detection.gaps(self.timeline, step),
                "overlapped_us": None if time.overlapped is None else round(time.overlapped, 3),
                "dependent_us": None if time.dependent is None else round(time.dependent, 3),
                "exposed_communication_us": round(time.exposed_communication, 3),
                "plan_us": None if plans[middle] is None else round(plans[middle] or 0.0, 3),
                "families": rows_of.families(kernels, ranked, time.span),
                "kernels": kernels,
                "gains": ranked,
            }
        )

    def _facts(self, step: StepSpan) -> KnownFacts:
        """What is known of a step: given, said by its label, told by its launches of each other."""
        facts = self.given.joined(step.said, "the step's label")
        kinds = self._kinds(step)
        told = shapes.agreed(shapes.of_launch(one, facts, ()) for one in kinds)
        facts = facts.joined(told, "the step's other launches")
        attention = [
            one.name for one in kinds if "Attention" in one.name or "KVCacheKernel" in one.name
        ]
        decodes = [name for name in attention if "BatchDecodeWithPagedKVCacheKernel" in name]
        prefills = [
            name
            for name in attention
            if re.search(r"Prefill|Append", name) and "AppendPaged" not in name
        ]
        if step.kind == DECODE and "tokens" in facts.values and decodes and not prefills:
            # the kernel on CUDA cores takes a query of each sequence
            facts = facts.joined({"decodes": facts.values["tokens"]}, "the step's other launches")
        if pages := self._pages(step, facts):
            facts = facts.joined({"decodes_kv_tokens": pages}, "the page table that plan() copied")
        return facts

    def _kinds(self, step: StepSpan) -> list[Launched]:
        """What FlashInfer launched in a step, each once."""
        found = [self.timeline.kinds[n] for n in np.unique(self.timeline.rows["what"][step.rows])]
        return [
            one for one in found if one.kind == KERNEL and kernelname.owner(one.name) == FLASHINFER
        ]

    def _pages(self, step: StepSpan, facts: KnownFacts) -> tuple[int, int] | None:
        """Tokens of all caches, between, by the page table that an eager plan() of decode copies between two arrays whose
        sizes say that it is it: of one number more than there are sequences, and of as many."""
        batch, size = (facts.values.get(name, (0, -1)) for name in ("decodes", "page_size"))
        if batch[0] != batch[1] or size[0] != size[1] or step.replayed:
            return None
        rows, kinds = self.timeline.rows, self.timeline.kinds
        copied = [
            int(rows["bytes"][place])
            for place in step.rows.tolist()
            if kinds[rows["what"][place]].name == "Host-to-Device"
        ]
        n, page = batch[0], size[0]
        found = {
            between // 4
            for before, between, behind in zip(copied, copied[1:], copied[2:], strict=False)
            if (before, behind) == (4 * (n + 1), 4 * n) and between % 4 == 0 and between >= 4 * n
        }
        if len(found) != 1:
            return None
        pages = found.pop()
        return ((pages - n) * page + n, pages * page)

    # --- its kernels --------------------------------------------------------------------------------

    def _kernels(
        self, step: StepSpan, time: detection.BusyTime, alike: Sequence[StepSpan]
    ) -> tuple[list[KernelOfStep], list[GainOfStep]]:
        rows = self.timeline.rows
        facts, ranges = self._facts(step), self._ranges.of(step.rows)
        what, operators = (rows[name][step.rows].tolist() for name in ("what", "operator"))
        sizes = rows_of.sizes(self.timeline, step.rows)
        keys = list(zip(what, ranges, operators, sizes, strict=True))
        places: dict[Any, list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            places[key].append(place)
        graphs = detection.in_graphs(self.timeline, step.rows)
        found = {key: self._shape(key, facts, bool(graphs[at].any())) for key, at in places.items()}
        calls = self._calls(keys, found)
        slack = detection.slack(self.timeline, step)
        length = (rows["end"] - rows["start"])[step.rows] * US
        kernels: list[KernelOfStep] = []
        gains: list[GainOfStep] = []
        medians = self._medians(alike)
        apart = Counter((key[0], key[2]) for key in places)
        routed = self._routed(keys)
        for key, at in places.items():
            one, shape = self.timeline.kinds[key[0]], found[key]
            own = float(time.own[at].sum())
            # Of a step one launch may have been held up; of all steps of a kind most were not.
            sole = apart[key[0], key[2]] == 1
            each = medians[key[0], key[2]] if sole else float(np.median(length[at]))
            graph = bool(graphs[at].any())
            row = rows_of.row(one, shape, graph, length[at], own, each, time.span)
            operator = None if key[2] == UNSAID else self.timeline.shapes[key[2]]
            if not (shape and (shape.target or shape.finishes)):
                self._counted(row, one, operator, key[3], routed.get(key[2]))
            if shape and shape.target and not shape.finishes:
                whole = np.zeros(len(time.own))
                whole[calls.get(key, at)] = time.own[calls.get(key, at)]
                call = float(whole.sum())
                one_us = each + (call - own) / len(at)
                self._measured(row, shape, one_us)
                spent = CallsOfStep(
                    row.name,
                    call,
                    time.span,
                    time.busy,
                    partial(_gained, slack, whole),
                    partial(self._roofed, row, shape, one_us),
                )
                gains += self._gains(row, shape, spent)
            row.reason = rows_of.reason(
                row, self.machine.dram is not None, operator and operator.name
            )
            kernels.append(row)
        kernels.sort(key=lambda row: -row.time_us)
        return kernels, gains

    def _routed(self, keys: Sequence[Any]) -> dict[int, rows_of.Routed | None]:
        """By the operator, what is known of its mixture of experts."""
        launched: dict[int, set[Launched]] = defaultdict(set)
        for what, _, operator, _ in keys:
            if operator != UNSAID:
                launched[operator].add(self.timeline.kinds[what])
        shapes_of = self.timeline.shapes
        return {number: rows_of.routed(shapes_of[number], of) for number, of in launched.items()}

    def _counted(
        self,
        row: KernelOfStep,
        one: Launched,
        operator: Operator | None,
        size: int,
        routed: rows_of.Routed | None,
    ) -> None:
        """Put the roof into a row that is of no target, by what is known of its bytes."""
        if one.kind != KERNEL:
            found = rows_of.of_copy(one, size)
        elif operator is not None:
            found = (
                rows_of.of_operator(operator)
                or rows_of.of_fused(one, operator)
                or rows_of.of_experts(one, operator, routed)
            )
        else:
            found = None
        if found is None:
            return
        works = [(work, found.dtype) for work in found.works]
        tensor = bool(found.works[0].flops)
        row.roof = roof_of(works, row.each_us, row.family, self.machine, tensor=tensor)
        row.shape = ShapeOfLaunch(
            target=None, candidates=[], source=found.source, operands=found.words
        )

    def _medians(self, steps: Sequence[StepSpan]) -> dict[tuple[int, int], float]:
        """us of the median launch in these steps, by what was launched and its operator."""
        rows, every = self.timeline.rows, np.concatenate([one.rows for one in steps])
        what, operator = rows["what"][every], rows["operator"][every]
        order = np.lexsort((operator, what))
        edges = np.flatnonzero(np.diff(what[order]) | np.diff(operator[order])) + 1
        length = (rows["end"] - rows["start"])[every] * US
        return {
            (int(what[one[0]]), int(operator[one[0]])): float(np.median(length[one]))
            for one in np.split(order, edges)
        }

    def _calls(
        self, keys: Sequence[Any], found: Mapping[Any, Shape | None]
    ) -> dict[Any, list[int]]:
        """Places of the calls by the key of their first kernels, with the kernels that finish them."""
        places: dict[Any, list[int]] = defaultdict(list)
        last: Any = None
        for place, key in enumerate(keys):
            shape = found[key]
            if shape is not None and shape.finishes and last is not None:
                places[last].append(place)
                continue
            if shape is not None and (
                shape.target is None or shape.target.rules.finishers or shape.candidates
            ):
                last = key
            places[key].append(place)
        return places

    @cached_property
    def _ranges(self) -> Ranges:
        return Ranges(self.timeline)

    @cached_property
    def _eager(self) -> dict[int, list[Shape]]:
        """By what was launched outside of any graph, the shapes that the profiler or a range stated, where the launch says all
        of a shape: not of attention, whose lengths are in no launch."""
        rows, found = self.timeline.rows, defaultdict[int, dict[str, Shape]](dict)
        eager = np.flatnonzero(~detection.in_graphs(self.timeline, np.arange(len(rows["what"]))))
        texts = self._ranges.of(eager)
        pairs = zip(
            rows["what"][eager].tolist(), texts, rows["operator"][eager].tolist(), strict=True
        )
        for what, stated, operator in {*pairs}:
            shape = self._stated(self.timeline.kinds[what], stated, operator)
            if shape and shape.target and "lengths" not in shape.target.parameters:
                found[what][str(shape.candidates)] = shape
        return {what: [*shapes.values()] for what, shapes in found.items()}

    def _shape(
        self, key: tuple[int, Stated, int, int], facts: KnownFacts, graph: bool
    ) -> Shape | None:
        """The shape of a kernel's launch; None of what is no kernel."""
        what, stated, operator, _ = key
        one = self.timeline.kinds[what]
        if one.kind != KERNEL:
            return None
        if REDUCES.search(one.name) or stated[1] == CONTINUED:
            return Shape(None, refusal=shapes.FINISHES, source="the launch", finishes=True)
        if operator != UNSAID:
            said = rows_of.heads(self.timeline.shapes[operator])
            facts = facts.joined(said, f"the shapes of {self.timeline.shapes[operator].name}")
        launched = shapes.of_launch(one, facts, self.hosts, graph)
        if launched.finishes:
            return launched
        told = self._stated(one, stated, UNSAID if launched.candidates else operator)
        if told is None and graph and not launched.candidates:
            told = self._alike(what, facts)
        if told is None and stated[1] == shapes.UNEQUAL and not launched.candidates:
            return replace(launched, refusal=shapes.UNEQUAL)
        return told or launched

    def _stated(self, one: Launched, stated: Stated, operator: int) -> Shape | None:
        """By a range, or else by the operator that launched it."""
        text, source = stated
        sized = shapes.sized(text)
        of_text = shapes.of_range(text, source) or (shapes.of_operator(sized) if sized else None)
        of_operator = (
            None if operator == UNSAID else shapes.of_operator(self.timeline.shapes[operator])
        )
        return next((s for s in (of_text, of_operator) if s and shapes.is_of(one, s)), None)

    def _alike(self, what: int, facts: KnownFacts) -> Shape | None:
        """That of the eager launches of the same kernel, grid and block, of as many tokens; of several all."""
        tokens = facts.values.get("tokens")
        found = [
            one
            for one in self._eager.get(what, ())
            if tokens is None or tokens[0] <= one.candidates[0].get("m", tokens[0]) <= tokens[1]
        ]
        if not found:
            return None
        candidates = tuple(one.candidates[0] for one in found)
        return Shape(found[0].target, candidates, "an eager launch of the same kernel and grid")

    def _measured(self, row: KernelOfStep, shape: Shape, call_us: float) -> None:
        """Put the roof and the nearest point into a row of a known shape; call_us: of one call."""
        assert shape.target is not None
        candidates = list(shape.candidates)
        if not candidates:
            return  # a point that is alike in what is certain says nothing of a launch whose sizes are not
        row.roof = roof(shape.target, candidates, call_us, row.family, self.machine)
        whole = len(candidates) == 1
        results = self.held.results(shape.target.name)
        row.nearest = nearest(
            shape.target, dict(candidates[0]), call_us, row.family, self.machine, results, whole
        )

    def _roofed(self, row: KernelOfStep, shape: Shape, call_us: float, changed: Params) -> float:
        """Of a call's time what the roof of one with parameters changed takes at least; 0 where it is not known."""
        assert shape.target is not None
        candidates = [{**one, **changed} for one in shape.candidates]
        found = roof(shape.target, candidates, call_us, row.family, self.machine)
        return min(1.0, found.percent[0] / 100) if found else 0.0

    def _gains(self, row: KernelOfStep, shape: Shape, calls: CallsOfStep) -> Iterable[GainOfStep]:
        assert shape.target is not None
        params = shapes.common(shape.candidates) if shape.candidates else dict(shape.certain)
        if row.owner != FLASHINFER or not params:
            return
        results = self.held.results(shape.target.name)
        yield from reference.of_recording(shape.target, params, calls, results)
        if self.advice is not None:
            yield from reference.of_advice(self.advice, shape.target, params, calls)


def _gained(slack: detection.HostSlack, own: np.ndarray, share: float) -> float:
    return slack.gained(own * share)


def _between(value: tuple[int, int]) -> str:
    return str(value[0]) if value[0] == value[1] else f"{value[0]}–{value[1]}"


def _spread(values: np.ndarray) -> StepTimes:
    q25, median, q75 = quartiles(values.tolist())
    found = {"median": median, "q25": q25, "q75": q75, "least": values.min(), "most": values.max()}
    return StepTimes(**{name: round(float(value), 3) for name, value in found.items()})
