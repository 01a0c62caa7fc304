"""Claim files: ``claims/*.yaml`` read, filled in from defaults and cases, and made into claims."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ncuflow.claims.model import Claim, ClaimPart, Id
from ncuflow.io import BadInput

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
    def rest(self) -> dict[str, Any]:
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
        raise BadInput(path, _first(error)) from None
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


def _cases(claim: _Stated, content: _File) -> list[dict[str, Any]]:
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
        place = _first(error)
        at_key = error.errors()[0]["loc"] != ()
        prefix = f"claim {merged['id']!r}"
        raise BadInput(path, f"{prefix}, {place}" if at_key else f"{prefix}: {place}") from None


def _first(error: ValidationError) -> str:
    """``published.value: not a number``: the first fault, with its key."""
    fault = error.errors(include_url=False)[0]
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in fault["loc"])
    what = "no such key" if fault["type"] == "extra_forbidden" else fault["msg"]
    if fault["type"] == "string_pattern_mismatch":
        what = f"{fault['input'][:100]!r}: {what}"
    what = what.removeprefix("Value error, ")[:300]
    return f"{place.lstrip('.')}: {what}" if place else what
