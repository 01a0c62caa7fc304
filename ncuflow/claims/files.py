"""Claim files: ``claims/*.yaml`` read, filled in from defaults and cases, checked by the schema."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from ncuflow import targets
from ncuflow.claims.expression import ExpressionError, names
from ncuflow.io import BadInput, resource

Claim = dict[str, Any]
SCHEMA = resource("claims/schema.json")


def load(folder: Path) -> list[Claim]:
    """All claims of a folder, files in name order, with their ``path``, and ``file``, its name.

    Raises BadInput naming the file and the key for anything the schema does not allow, for an id
    used twice, for a target that is not there, and for an expression that cannot be parsed.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise BadInput(folder, "a folder without claims (*.yaml)")
    claims = [claim for path in paths for claim in load_file(path)]
    seen: dict[str, str] = {}
    for claim in claims:
        if claim["id"] in seen:
            what = f"claim {claim['id']!r} is already in {seen[claim['id']]}"
            raise BadInput(folder / claim["file"], what)
        seen[claim["id"]] = claim["file"]
    return claims


def load_file(path: Path) -> list[Claim]:
    """The claims of one file, a claim with cases expanded to one claim a case."""
    try:
        content = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise BadInput(path, f"not YAML ({' '.join(str(error).split())})") from None
    _outline(path, content)
    defaults = content.get("defaults", {})
    expanded = [
        _merge({k: v for k, v in defaults.items() if k != "decide" or "decide" in claim}, one)
        for claim in content["claims"]
        for one in _cases(claim)
    ]
    _validate(path, {"claims": expanded} | {k: v for k, v in content.items() if k != "claims"})
    known = [*targets.names(), "jit"]
    for claim in expanded:
        claim |= {"path": path, "file": path.name, "decide": _listed(claim.get("decide"))}
        _check_targets(path, claim, known)
        _parse(path, claim)
    return expanded


def _outline(path: Path, content: Any) -> None:
    """What must hold before defaults can be merged."""
    if not isinstance(content, dict) or not isinstance(content.get("claims"), list):
        raise BadInput(path, "not a file of claims: no list under 'claims'")
    for index, claim in enumerate(content["claims"]):
        if not isinstance(claim, dict):
            raise BadInput(path, f"claims[{index}]: not a mapping")


def _cases(claim: Claim) -> list[Claim]:
    """A claim for each of its cases:

    the id with the case's appended, other keys laid over the claim's.
    """
    cases = claim.get("cases")
    if not cases:
        return [claim]
    base = {key: value for key, value in claim.items() if key != "cases"}
    return [_merge(base, case | {"id": f"{claim['id']}-{case['id']}"}) for case in cases]


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


def _listed(decide: Any) -> list[Claim]:
    if decide is None:
        return []
    return decide if isinstance(decide, list) else [decide]


def _validate(path: Path, content: Any) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    error = jsonschema.exceptions.best_match(validator.iter_errors(content))
    if error is None:
        return
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
    index = next((p for p in error.absolute_path if isinstance(p, int)), None)
    named = content["claims"][index].get("id") if isinstance(index, int) else None
    prefix = f"claim {named!r}, " if named else ""
    raise BadInput(path, f"{prefix}{where.lstrip('.') or 'top level'}: {error.message[:300]}")


def _check_targets(path: Path, claim: Claim, known: Sequence[str]) -> None:
    """Every target must be one of those known, and one with points where points decide."""
    stated = claim["applies"]["target"]
    named = [stated]
    for decide in claim["decide"]:
        chosen = decide.get("select", {}).get("target", stated)
        samples = [sample.get("target", chosen) for sample in decide.get("samples", {}).values()]
        if decide.get("over", "points") == "points" and "jit" in (samples or [chosen]):
            raise BadInput(path, f"claim {claim['id']!r}: jit has no points; it needs over: jit")
        named += [chosen, *samples]
    for name in named:
        if name not in known:
            what = f"claim {claim['id']!r}: unknown target {name!r}; there are: {', '.join(known)}"
            raise BadInput(path, what)


def _parse(path: Path, claim: Claim) -> None:
    """Every expression must parse; what its names mean is known only with the evidence."""
    texts = [claim["applies"].get("where"), *(r["when"] for r in claim.get("reasons", ()))]
    for decide in claim["decide"]:
        texts += [decide["value"], decide.get("by"), decide.get("select", {}).get("where")]
        texts += [sample.get("where") for sample in decide.get("samples", {}).values()]
    for text in texts:
        try:
            if text is not None:
                names(str(text))
        except ExpressionError as error:
            raise BadInput(path, f"claim {claim['id']!r}: {error}") from None
