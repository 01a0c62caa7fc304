"""Settings: what config.yaml and --config say, with their types, and what is wrong with them.

No setting has a default here: config/config.yaml holds them all, and says what each is for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from ncuflow.io import fault, first_fault

LONGEST = 100  # characters of a value that a message quotes: it may be a whole sweep
WORDS = {"true": True, "True": True, "false": False, "False": False}


def _spelled(pattern: str, what: str) -> AfterValidator:
    """A text that the pattern matches as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{quoted(text)} is not {what}")
        return text

    return AfterValidator(check)


def _distinct(items: list[str]) -> list[str]:
    twice = [item for item in items if items.count(item) > 1]
    if twice:
        raise ValueError(f"{quoted(twice[0])} is there twice")
    return items


def _values(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, str | int | float) for one in values):
        raise ValueError(f"{quoted(value)} is no number, text or boolean, nor a list of them")
    return value


def _architecture(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _words(value: Any) -> Any:
    """--config plan_for=5090 and plan_for=12.0 arrive as numbers."""
    return str(value) if type(value) in (int, float) else value


def _boolean(value: Any) -> Any:
    """--config strict=false arrives as text or as a boolean, depending on how it was given."""
    return WORDS.get(value, value) if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], AfterValidator(_distinct)]
# Commands of rules hold these unquoted.
Outputs = Annotated[str, _spelled(r"(?!-)[\w./@%+,=-]+", "a path of letters, digits and ./@%+,=_-")]
Machine = Annotated[str, _spelled("[a-z0-9-]+", "a name of a-z, 0-9 and -")]
Section = Annotated[str, _spelled(r"\w+", "the identifier of a section")]
# FlashInfer's ninja rules do not quote paths.
Folder = Annotated[
    str, _spelled(r"/[\w./@%+,=-]+", "an absolute path of letters, digits and ./@%+,=_-")
]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0)]  # of 1
# Target -> blocks: a block's lists are multiplied out, the blocks are added up.
Sweep = dict[str, list[dict[str, Annotated[Any, PlainValidator(_values)]]]]


class SettingsGroup(BaseModel):
    """Settings that belong together: no key is missing, none is there that is not one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class CompareSettings(SettingsGroup):
    alpha: Annotated[float, Field(gt=0, lt=1)]
    threshold: Fraction
    floor: Fraction | None
    gate_threshold: Fraction


class TimingSettings(SettingsGroup):
    repeats: Annotated[int, Field(ge=5)]
    runs: Count
    rounds: Count
    pairs: bool
    exclusive_host: bool


class NcuSettings(SettingsGroup):
    enabled: bool
    clock_control: Literal["none", "base"]
    import_source: bool
    timeout_s: Count
    sections: Annotated[list[Section], Field(min_length=1)]
    deep_sections: list[Section]


class NsysSettings(SettingsGroup):
    enabled: bool
    repeats: Count
    timeout_s: Count


class BuildSettings(SettingsGroup):
    jobs: Count | None
    folder: Folder | None


class Settings(SettingsGroup):
    """Every setting of a run, in the order of config/config.yaml."""

    source: Literal["auto", "live", "recorded"]
    recording: Text | None
    outputs: Outputs
    machine: Machine | None
    arch: Annotated[str, BeforeValidator(_architecture)]
    gpu: str | None
    plan_for: Annotated[str | None, BeforeValidator(_words)]
    targets: Annotated[Texts, Field(min_length=1)]
    target_folders: Texts
    sweep: str
    batch_size: Annotated[int, Field(ge=1, le=256)]
    strict: Annotated[bool, BeforeValidator(_boolean)]
    base: str | None
    head: str | None
    compare: CompareSettings
    timing: TimingSettings
    ncu: NcuSettings
    nsys: NsysSettings
    sweeps: dict[str, Sweep]
    deep: dict[str, Sweep]
    jit: Annotated[Texts, Field(min_length=1)]
    build: BuildSettings

    @model_validator(mode="after")
    def _sweeps_are_there(self) -> Self:
        for key, named in (("sweep", [self.sweep]), ("deep", self.deep)):
            unknown = [name for name in named if name not in self.sweeps]
            if unknown:
                known = ", ".join(self.sweeps)
                raise ValueError(f"{key}: there is no sweep {unknown[0]!r}; sweeps has {known}")
        return self


def typed(value: Any) -> Any:
    """A value of --config with numbers and booleans in it: Snakemake reads nested ones as text.

    typed({"runs": "5"}) is {"runs": 5}.
    """
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def validated(config: Mapping[str, Any]) -> Settings:
    """The settings of a configuration. Raises ValueError with one line that names the first wrong one."""
    try:
        return Settings.model_validate(dict(config))
    except ValidationError as error:
        raise ValueError(f"config: {_fault(error)}") from None


def _fault(error: ValidationError) -> str:
    """What is wrong and where; a key that is none comes first, with those that are there."""
    found, place = first_fault(error)
    at = found["loc"]
    match found["type"]:
        case "extra_forbidden":
            return f"{place}: there is no setting {at[-1]!r}; there are: {_known(at[:-1])}"
        case "model_type":
            given = quoted(found["input"])
            return f"{place}: {given} is no group of settings; there are: {_known(at)}"
        case "missing":
            return f"{place}: missing"
        case "value_error":
            return fault(error)
        case _:
            said = re.sub("^(Input|Value|List|String) | after validation, not 0$", "", found["msg"])
            return f"{place}: {quoted(found['input'])} {said}"


def _known(names: Sequence[int | str]) -> str:
    """The settings that there are in the group below these names."""
    group: Any = Settings
    for name in names:
        group = group.model_fields[name].annotation
    return ", ".join(group.model_fields)


def quoted(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
