"""What an advice becomes: a module of Python that a server imports."""

import pprint
from collections.abc import Sequence

from ncuflow.experiments.record import Advice, AdvisedShape
from ncuflow.io import CommandError, resource
from ncuflow.pages import Context
from ncuflow.target.contract import Target


def python_module(advice: Advice, targets: dict[str, Target]) -> str:
    """The module's text. targets: by name, those of the advice. Raises CommandError where a shape lacks what it is called by."""
    # What the record says stands in it as literals alone: whoever wrote the record writes no code.
    template = resource("templates/advised.py.txt").read_text(encoding="utf-8")
    return template.format(
        gpu=advice.gpu,
        versions=pprint.pformat(advice.versions, width=100),
        measured=advice.date,
        recording=advice.recording,
        targets=pprint.pformat(_targets(advice, targets), width=110, sort_dicts=False),
    )


def _targets(advice: Advice, targets: dict[str, Target]) -> Context:
    found = {}
    for name, target in targets.items():
        shapes = [s for s in advice.shapes if s.target == name and s.advised is not None]
        if shapes:
            found[name] = _entries(target, shapes)
    return found


def _entries(target: Target, shapes: Sequence[AdvisedShape]) -> Context:
    """The parameters that make a shape, and the advice of each. What a step varies is a size; heads and dimensions are a model's,
    and choose the kernel."""
    free = {name for shape in shapes for one in shape.choices for name in one.settings}
    names = [name for name in target.parameters if name not in free]
    return {
        "kinds": [name for name in names if name not in target.small],
        "sizes": [name for name in names if name in target.small],
        "shapes": [_entry(shape, names) for shape in shapes],
    }


def _entry(shape: AdvisedShape, names: Sequence[str]) -> Context:
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
        return f"{shape.outcome}: no other choice is significantly faster than the default at {shape.shape}"
    if shape.regret is None:
        return f"{shape.outcome} at {shape.shape}, where the default could not be timed"
    low, high = (100 * bound for bound in (shape.regret.low, shape.regret.high))
    return f"{shape.outcome} at {shape.shape}, where the default takes {low:.1f} to {high:.1f} % longer"
