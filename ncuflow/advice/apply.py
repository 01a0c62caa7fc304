"""An advice as a module of Python that a server imports: choose(target, shape) -> FlashInfer's arguments."""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from typing import Any

from ncuflow.advice.record import Advice, AdvisedShape
from ncuflow.io import CommandError
from ncuflow.target.contract import Target

# What the record says stands in it as literals alone: whoever wrote the record writes no code.
TEMPLATE = '''"""Which arguments FlashInfer is called with, shape by shape: what `ncuflow advise` measured.

Made by a program, not by hand.

choose(target, shape) gives the arguments by call ("wrapper", "plan", "run") and, in "settings", what they stand for. A size
between those measured has the arguments of the nearest one; outside of what was measured it is FlashInfer's default, and a
warning says so once a shape. explain(target, shape) says in a sentence why.
"""

import math
import warnings

GPU = {gpu!r}
VERSIONS = {versions}
MEASURED = {measured!r}  # UTC
RECORDING = {recording!r}  # None: measured there

# target -> what its shapes are: "kinds" are equal or it is another kernel, "sizes" lie between those measured.
TARGETS = {targets}

_told = set()


def choose(target, shape):
    """{{"wrapper": {{…}}, "plan": {{…}}, "run": {{…}}, "settings": {{…}}}} for a shape, by the target's parameters; one that is
    left out has the value that all measured shapes have."""
    entry, why = _look(target, shape)
    if entry is None:
        known = (target, tuple(sorted(shape.items())))
        if known not in _told:
            _told.add(known)
            warnings.warn(why, stacklevel=2)
        return {{"settings": {{}}}}
    return {{**entry["asked"], "settings": dict(entry["settings"])}}


def explain(target, shape):
    """Why choose() says what it says."""
    return _look(target, shape)[1]


def _look(target, shape):
    """(the entry of a shape or None, why)."""
    about = TARGETS.get(target)
    if about is None:
        return None, f"{{target}}: not measured, so FlashInfer's default"
    known = [*about["kinds"], *about["sizes"]]
    strange = [name for name in shape if name not in known]
    if strange:
        return None, f"{{target}}: {{strange[0]!r}} is no parameter of a shape, so FlashInfer's default"
    entries = about["shapes"]
    for name in known:
        values = {{entry["shape"][name] for entry in entries}}
        if name not in shape and len(values) > 1:
            return None, f"{{target}}: {{name}} is not given, so FlashInfer's default"
    asked = {{name: shape.get(name, entries[0]["shape"][name]) for name in known}}
    alike = [e for e in entries if all(e["shape"][n] == asked[n] for n in about["kinds"])]
    if not alike:
        return None, f"{{target}}: nothing of this kind was measured, so FlashInfer's default"
    for name in about["sizes"]:
        low, high = (end(e["shape"][name] for e in alike) for end in (min, max))
        if not low <= asked[name] <= high:
            return None, f"{{target}}: {{name}} = {{asked[name]}} is outside of {{low}} to {{high}}, so FlashInfer's default"
    near = min(alike, key=lambda e: sum(abs(math.log(e["shape"][n] / asked[n])) for n in about["sizes"]))
    return near, f"{{target}}: {{near['why']}}"
'''


def module(advice: Advice, targets: dict[str, Target]) -> str:
    """The module's text. targets: by name, those of the advice. Raises CommandError where a shape lacks what it is called by."""
    return TEMPLATE.format(
        gpu=advice.gpu,
        versions=pprint.pformat(advice.versions, width=100),
        measured=advice.date,
        recording=advice.recording,
        targets=pprint.pformat(_targets(advice, targets), width=110, sort_dicts=False),
    )


def _targets(advice: Advice, targets: dict[str, Target]) -> dict[str, Any]:
    found = {}
    for name, target in targets.items():
        shapes = [s for s in advice.shapes if s.target == name and s.advised is not None]
        if shapes:
            found[name] = _entries(target, shapes)
    return found


def _entries(target: Target, shapes: Sequence[AdvisedShape]) -> dict[str, Any]:
    """The parameters that make a shape, and the advice of each. What a step varies is a size; heads and dimensions are a model's,
    and choose the kernel."""
    free = {name for shape in shapes for one in shape.choices for name in one.settings}
    names = [name for name in target.parameters if name not in free]
    return {
        "kinds": [name for name in names if name not in target.small],
        "sizes": [name for name in names if name in target.small],
        "shapes": [_entry(shape, names) for shape in shapes],
    }


def _entry(shape: AdvisedShape, names: Sequence[str]) -> dict[str, Any]:
    chosen = shape.choice(shape.advised)
    if chosen is None or not shape.params.keys() >= set(names):
        raise CommandError(f"{shape.shape}: the advice lacks its choice, or a parameter of it")
    return {
        "shape": {name: shape.params[name] for name in names},
        "settings": chosen.settings,
        "asked": chosen.asked,
        "why": _why(shape),
    }


def _why(shape: AdvisedShape) -> str:
    if shape.advised == shape.shape:
        return (
            f"{shape.outcome}: no other choice is surely faster than the default at {shape.shape}"
        )
    if shape.regret is None:
        return f"{shape.outcome} at {shape.shape}, where the default could not be timed"
    low, high = (100 * bound for bound in (shape.regret.low, shape.regret.high))
    return f"{shape.outcome} at {shape.shape}, where the default takes {low:.1f} to {high:.1f} % longer"
