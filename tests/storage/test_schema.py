"""Schema: values of files and of the command line as what a dataclass declares, or one sentence that says why not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest

from bridgemem.backbones.cenet import CenetSettings
from bridgemem.config import Count, Declared, Settings, read_toml, write_toml
from bridgemem.errors import RunError, SettingsError
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import as_settings, override, read_as


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("k=4", "k", 4),
        ("window=0", "window", 0),
        ("bins=1,7", "bins", (1, 7)),
        ("directions=False", "directions", False),
        ("smoothing=2", "smoothing", 2.0),
        ("gates=none", "gates", ("none",)),
        ("lambdas=0.5,1e1", "lambdas", (0.5, 10.0)),
        ("pooling=mean", "pooling", "mean"),
    ],
)
def test_text_from_the_command_line_becomes_the_declared_type(assignment, name, value):
    changed = override(Settings(), [assignment])
    assert getattr(changed, name) == value
    assert type(getattr(changed, name)) is type(value)
    others = {f.name for f in fields(Settings)} - {name}
    assert all(getattr(changed, other) == getattr(Settings(), other) for other in others)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("k", "name=value"),
        ("depth=3", "no setting called 'depth'"),
        ("k=four", "whole number"),
        ("k=4.5", "whole number"),
        ("smoothing=much", "a number"),
        ("directions=maybe", "true or false"),
        ("bins=1,x", "whole number"),
        ("k=", "whole number"),
    ],
)
def test_assignments_that_make_no_sense_are_refused(assignment, complaint):
    with pytest.raises(SettingsError, match=complaint):
        override(Settings(), [assignment])


@pytest.mark.parametrize(
    "values",
    [
        {"k": True},
        {"k": 2.5},
        {"k": math.inf},
        {"k": None},
        {"bins": 3},
        {"pooling": 3},
        {"directions": 1.0},
        {"deep": 1},
    ],
)
def test_plain_values_of_the_wrong_type_are_refused(values):
    with pytest.raises(SettingsError):
        as_settings(Settings, values)


@dataclass(frozen=True)
class Optional:
    seed: int | None = None


def test_an_optional_setting_may_be_left_open():
    assert as_settings(Optional, {}).seed is None
    assert as_settings(Optional, {"seed": None}).seed is None
    assert override(Optional(), ["seed=3"]).seed == 3
    assert override(Optional(3), ["seed="]).seed is None


def test_settings_survive_toml(tmp_path):
    settings = Settings(k=3, bins=(1, 2), lambdas=(0.1, 1e-7), gates=("none",), directions=False)
    path = tmp_path / "config.toml"
    path.write_text(write_toml({"residual": asdict(settings), "cenet": asdict(CenetSettings())}))
    tables = read_toml(path)
    assert as_settings(Settings, tables["residual"]) == settings
    assert as_settings(CenetSettings, tables["cenet"]) == CenetSettings()


@pytest.mark.parametrize("values", [3, "k", [1], None])
def test_what_is_no_table_holds_no_settings(values):
    with pytest.raises(SettingsError, match="must be a table of settings"):
        as_settings(Settings, values)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, str(2**63), str(-(2**63) - 1)])
def test_a_whole_number_of_more_than_64_bits_is_refused_in_one_line(number: str) -> None:
    with pytest.raises(SettingsError, match="k must be a whole number") as refused:
        override(Settings(), [f"k={number}"])
    assert len(str(refused.value)) < 200


@dataclass(frozen=True)
class Part(Declared):
    size: Count


@dataclass(frozen=True)
class Whole(Declared):
    parts: dict[str, Part]
    name: str = ""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"parts": {"a": {"size": 1}}, "nmae": "x"}, "there is no setting called 'nmae' (did you mean name?)"),
        ({"parts": {"a": {"size": 1, "sizes": 2}}}, "there is no setting called 'parts.a.sizes' (did you mean size?)"),
        ({"parts": {"a": {"size": "one"}}}, "parts.a.size must be a whole number, not 'one'"),
        ({"parts": {"a": {"size": 0}}}, "size must be at least 1, not 0"),
        ({"parts": {"a": {}}}, "parts.a.size is missing"),
        ({"parts": [1]}, "parts must be a table, not [1]"),
        ({}, "parts is missing"),
        ({"parts": {}}, "name is missing"),
    ],
)
def test_a_file_is_read_as_its_type_or_refused_in_one_sentence(values, sentence, tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    write_json(path, {"parts": {"a": {"size": 2}}, "name": ""})
    assert read_as(path, Whole, "write it anew") == Whole({"a": Part(2)})
    write_json(path, values)
    with pytest.raises(RunError) as refused:
        read_as(path, Whole, "write it anew")
    assert str(refused.value) == f"{path}: {sentence}; write it anew."


def test_a_file_that_may_be_absent_stands_for_what_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is missing; write it anew\."):
        read_as(tmp_path / "no.json", Whole, "write it anew")
    assert read_as(tmp_path / "no.json", Whole, "write it anew", missing=Whole({})) == Whole({})
