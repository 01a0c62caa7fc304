"""Settings: what config.yaml and --config say, with their types, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import yaml

from ncuflow.io import read_yaml

LONGEST = 200  # characters of a message: it quotes the value, which may be a whole sweep


def typed(value: Any) -> Any:
    """A value of --config with numbers and booleans in it: Snakemake reads nested ones as text.

    typed({"runs": "5"}) is {"runs": 5}.
    """
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def check(config: dict[str, Any], schema: Path) -> None:
    """Raises ValueError with one line that names the first setting that the schema refuses."""
    validator = jsonschema.Draft202012Validator(read_yaml(schema))
    error = jsonschema.exceptions.best_match(validator.iter_errors(config))
    if error is None:
        return
    place = error.json_path.removeprefix("$").removeprefix(".")
    if error.validator == "pattern" and "description" in error.schema:
        raise ValueError(
            f"config: {place}: {error.instance!r} is not {error.schema['description']}"
        )
    says = error.message if len(error.message) <= LONGEST else f"{error.message[:LONGEST]}…"
    raise ValueError(f"config: {place}: {says}" if place else f"config: {says}")
