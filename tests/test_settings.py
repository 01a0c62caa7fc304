"""Settings: the default configuration is one, and what is none is refused in one line."""

import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import some

from ncuflow.flow import settings
from ncuflow.flow.settings import Settings, SettingsGroup
from ncuflow.io import read_yaml

CONFIG = read_yaml(Path(__file__).parents[1] / "config/config.yaml")
MISSING = object()


def keys(group: type[SettingsGroup]) -> dict[str, Any]:
    """The settings that a class has, group by group."""
    kinds = {name: field.annotation for name, field in group.model_fields.items()}
    return {
        name: keys(kind) if isinstance(kind, type) and issubclass(kind, SettingsGroup) else None
        for name, kind in kinds.items()
    }


def written(config: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return {
        name: written(value, known[name] or {}) if known.get(name) else None
        for name, value in config.items()
    }


def test_the_default_configuration_has_every_setting_and_no_other() -> None:
    known = keys(Settings)
    assert written(CONFIG, known) == known
    assert list(CONFIG) == list(known)


def test_the_default_configuration_says_what_each_setting_is() -> None:
    assert settings.validated(CONFIG).model_dump() == CONFIG


def test_no_setting_has_a_default_beside_that_of_the_configuration() -> None:
    for group in (Settings, *SettingsGroup.__subclasses__()):
        fields = some(group.model_fields.values())
        assert all(field.is_required() for field in fields), group


def refused(place: str, value: object) -> str:
    """What is said where the default configuration has this value at that place."""
    config = copy.deepcopy(CONFIG)
    *groups, key = place.split(".")
    inner = config
    for name in groups:
        inner = inner[name]
    inner[key] = value
    if value is MISSING:
        del inner[key]
    with pytest.raises(ValueError, match=r"^config: ") as caught:
        settings.validated(config)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 400
    return said.removeprefix("config: ")


PATH = "a path of letters, digits and ./@%+,=_-"


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("timing.repeat", 5, "there is no setting 'repeat'; there are: repeats, runs, rounds, pairs, exclusive_host"),
        ("timing", 5, "5 is no group of settings; there are: repeats, runs, rounds, pairs, exclusive_host"),
        ("timing.runs", MISSING, "missing"),
        ("source", "alive", "'alive' should be 'auto', 'live' or 'recorded'"),
        ("recording", "", "'' should have at least 1 character"),
        ("outputs", "a b", f"'a b' is not {PATH}"),
        ("outputs", "a\n", f"'a\\n' is not {PATH}"),
        ("machine", "a\n", "'a\\n' is not a name of a-z, 0-9 and -"),
        ("arch", True, "True should be a valid string"),
        ("targets", "decode", "'decode' should be a valid list"),
        ("targets", ["decode", "decode"], "'decode' is there twice"),
        ("batch_size", 257, "257 should be less than or equal to 256"),
        ("batch_size", True, "True should be a valid integer"),
        ("strict", "maybe", "'maybe' should be a valid boolean"),
        ("head", ["a"], "['a'] should be a valid string"),
        ("compare.alpha", 1, "1 should be less than 1"),
        ("compare.alpha", float("nan"), "nan should be a finite number"),
        ("compare.threshold", -0.1, "-0.1 should be greater than or equal to 0"),
        ("timing.rounds", 1.5, "1.5 should be a valid integer"),
        ("ncu.clock_control", "boost", "'boost' should be 'none' or 'base'"),
        ("sweeps.default", None, "None should be a valid dictionary"),
        ("sweeps.default.decode", {"batch": 1}, "{'batch': 1} should be a valid list"),
        ("build.folder", "here", "'here' is not an absolute path of letters, digits and ./@%+,=_-"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place(place: str, value: object, said: str) -> None:
    assert refused(place, value) == f"{place}: {said}"


@pytest.mark.parametrize("value", [None, [], {}, [None], [[1]], [{}]])
def test_a_value_of_a_block_is_a_scalar_or_a_list_of_them(value: object) -> None:
    found = refused("sweeps.default.decode", [{"batch": 1}, {"batch": value}])
    what = f"{value!r} is no number, text or boolean, nor a list of them"
    assert found == f"sweeps.default.decode[1].batch: {what}"


def test_what_is_no_setting_is_said_before_what_is_wrong_with_another() -> None:
    with pytest.raises(ValueError, match=r"^config: sauce: there is no setting 'sauce'; .* build$"):
        settings.validated({**CONFIG, "batch_size": 0, "sauce": 1})


def test_a_long_value_is_cut() -> None:
    assert refused("batch_size", "x" * 5000).endswith("x… should be a valid integer")


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [("arch", 90, "90"), ("strict", "False", False), ("strict", "true", True)],
)
def test_a_value_may_be_spelled_in_two_ways(key: str, given: object, meant: object) -> None:
    assert getattr(settings.validated({**CONFIG, key: given}), key) == meant
