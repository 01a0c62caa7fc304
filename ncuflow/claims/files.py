"""Claim files: what ``claims/*.yaml`` may say (docs/claims.md explains every key), read and filled in from defaults and cases."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ncuflow.expression import names, placeholders
from ncuflow.io import BadInput, JsonObject, fault
from ncuflow.record import Strict
from ncuflow.target import contract as target


def _number(value: Any) -> float:
    """As it is written: 1000 stays a whole number, so that it is printed as one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError("not a finite number")
    return value


def _expression(value: Any) -> str:
    if not isinstance(value, str | bool | int | float):
        raise ValueError("not an expression")
    names(str(value))
    return str(value)


def _sentence(text: str) -> str:
    for expression in placeholders(text):
        names(expression)
    return text


def _known_targets() -> tuple[str, ...]:
    return (*sorted(target.known()), "jit")


def _target(name: str) -> str:
    if name not in _known_targets():
        raise ValueError(f"unknown target {name!r}; there are: {', '.join(_known_targets())}")
    return name


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Number = Annotated[float, PlainValidator(_number)]
Expression = Annotated[str, BeforeValidator(_expression)]
Target = Annotated[Text, AfterValidator(_target)]
Globs = Annotated[list[Text], BeforeValidator(_listed), Field(min_length=1)]
Architecture = Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}$")]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=100)]
SampleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$")]


class ClaimPart(Strict):
    """A record that refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Citation(ClaimPart):
    """Where the sentence stands."""

    document: Text
    section: Text
    url: Annotated[str, StringConstraints(pattern=r"^https://")] | None = None
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")] | None = None


class Published(ClaimPart):
    """The published figure, None for a claim without a number.

    range: its lower and upper end, None for an open one; architecture: None where the claim is not
    about a GPU; ceiling: the peak of that GPU in the same unit, of which the figure is then compared
    as a fraction; library: whose kernel it is of, None for FlashInfer's; expected: it is what the
    source expects of that GPU, not what it measured there.
    """

    value: Number | None
    unit: str
    range: Annotated[list[Number | None], Field(min_length=2, max_length=2)] | None = None
    convention: Text | None = None
    gpu: str | None = None
    architecture: Architecture | None = None
    ceiling: Number | None = None
    flashinfer: str | None = None
    library: Text | None = None
    expected: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Published:
        if self.ceiling is not None and self.ceiling <= 0:
            raise ValueError("a ceiling is above 0")
        low, high = self.range or (None, None)
        if low is not None and high is not None and low > high:
            raise ValueError("a range ends above where it begins")
        return self


class Selection(ClaimPart):
    """Which points: of which target, by glob patterns on the id, and where an expression is true."""

    target: Target | None = None
    points: Globs | None = None
    where: Expression | None = None


class Applies(Selection):
    """What the claim is about; ``architecture``: it can be tested on this one only."""

    target: Target
    architecture: Architecture | None = None


class Tolerance(ClaimPart):
    """How far the measurement may lie from the figure: a fraction of it, or in its unit."""

    relative: Annotated[Number, Field(ge=0)] | None = None
    absolute: Annotated[Number, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Tolerance:
        if (self.relative is None) == (self.absolute is None):
            raise ValueError("either relative or absolute")
        return self

    def slack(self, figure: float) -> float:
        """In the unit of the figure."""
        return abs(figure) * self.relative if self.relative is not None else self.absolute or 0.0


class Decision(ClaimPart):
    """An expression over measurements, and how its values decide the claim.

    limit: compared with in place of the published value; by: of several points that decide alike,
    the one with the largest value of this expression is cited.
    """

    value: Expression
    compare: Literal["within", "at least", "at most", "between", "holds"]
    over: Literal["points", "jit", "machine", "source", "arithmetic"] = "points"
    select: Selection = Selection()
    samples: Annotated[dict[SampleName, Selection], Field(min_length=2)] | None = None
    differ: list[Text] = Field(default_factory=list)
    unit: str | None = None
    aggregate: Literal["max", "min", "median", "all", "any"] = "all"
    by: Expression | None = None
    limit: Number | None = None
    tolerance: Tolerance | None = None


class ReasonText(ClaimPart):
    """A sentence that is printed where an expression is true."""

    when: Expression
    say: Annotated[Text, AfterValidator(_sentence)]


class Claim(ClaimPart):
    """One sentence that somebody wrote about the kernels, and what decides it.

    decide: tried in order, the first that the evidence can answer counts; independent: why a
    contrary result on any GPU refutes the claim; path: of its file.
    """

    id: Id
    statement: Text
    source: Citation
    published: Published
    applies: Applies
    decide: Annotated[list[Decision], BeforeValidator(_listed)] = Field(default_factory=list)
    independent: Text | None = None
    needs: Text | None = None
    reasons: list[ReasonText] = Field(default_factory=list)
    path: Path

    @model_validator(mode="after")
    def _decidable(self) -> Claim:
        for decide in self.decide:
            chosen = decide.select.target or self.applies.target
            named = [sample.target or chosen for sample in (decide.samples or {}).values()]
            if decide.over == "points" and "jit" in (named or [chosen]):
                raise ValueError("jit has no points; it needs over: jit")
            figure = self.published.value if decide.limit is None else decide.limit
            if decide.compare == "between" and self.published.range in (None, [None, None]):
                raise ValueError("compare 'between' needs published.range")
            if decide.compare in ("within", "at least", "at most") and figure is None:
                raise ValueError(f"compare {decide.compare!r} needs published.value, or a limit")
        return self


Shared = Literal["source", "published", "applies", "decide", "independent"]


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key.value, str)]
        if len(set(keys)) < len(keys):
            raise yaml.YAMLError(f"a key is given twice, line {node.start_mark.line + 1}")
        return dict(super().construct_mapping(node, deep))


class _Case(BaseModel):
    """A further claim: its id is appended, its other keys are laid over."""

    model_config = ConfigDict(extra="allow", strict=True)
    id: Id

    @property
    def rest(self) -> JsonObject:
        """The keys that are not checked yet."""
        return self.model_extra or {}


class _Stated(_Case):
    cases: list[_Case] = []


class _File(ClaimPart):
    """A file before defaults and cases are merged."""

    claims: Annotated[list[_Stated], Field(min_length=1)]
    defaults: dict[Shared, Any] = Field(default_factory=dict)


def load(folder: Path) -> list[Claim]:
    """All claims of a folder, files in name order.

    Raises BadInput naming file, claim and key for anything that the models do not allow, for an id
    that is used twice, for a target that is not there, and for an expression that does not parse.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise BadInput(folder, "a folder without claims (*.yaml)")
    seen: dict[str, Claim] = {}
    for claim in (claim for path in paths for claim in load_file(path)):
        if claim.id in seen:
            raise BadInput(
                claim.path, f"claim {claim.id!r} is already in {seen[claim.id].path.name}"
            )
        seen[claim.id] = claim
    return list(seen.values())


def load_file(path: Path) -> list[Claim]:
    """The claims of one file, a claim with cases expanded to one claim per case."""
    try:
        found = _File.model_validate(content(path))
    except ValidationError as error:
        raise BadInput(path, fault(error)) from None
    return [_claim(path, merged) for claim in found.claims for merged in _cases(claim, found)]


def content(path: Path) -> Any:
    """What a YAML file says. Raises BadInput where it is none."""
    if not path.is_file():
        raise BadInput(path, "not a file")
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Beside YAMLError, what PyYAML lets through from a value that a tag promises.
        raise BadInput(path, f"not YAML ({' '.join(str(error).split())[:300]})") from None


def _cases(claim: _Stated, content: _File) -> list[JsonObject]:
    """The claim for each of its cases, over the defaults; ``decide`` fills in one that is there."""
    decides = "decide" in claim.rest
    defaults = {k: v for k, v in content.defaults.items() if k != "decide" or decides}
    base = _merge(defaults, claim.rest)
    if not claim.cases:
        return [base | {"id": claim.id}]
    return [_merge(base, case.rest) | {"id": f"{claim.id}-{case.id}"} for case in claim.cases]


def _merge(base: Any, over: Any) -> Any:
    """Mappings key by key, the second over the first; ``where`` of both must hold."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return copy.deepcopy(over)
    out = copy.deepcopy(base)
    for key, value in over.items():
        if key == "where" and key in out:
            out[key] = f"({out[key]}) and ({value})"
        else:
            out[key] = _merge(out.get(key), value)
    return out


def _claim(path: Path, merged: Mapping[str, Any]) -> Claim:
    try:
        return Claim.model_validate({"path": path, **merged})
    except ValidationError as error:
        of_whole = error.errors()[0]["loc"] == ()
        prefix = f"claim {merged['id']!r}{':' if of_whole else ','}"
        raise BadInput(path, f"{prefix} {fault(error)}") from None
