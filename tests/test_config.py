"""Settings: the paper's defaults, checked values, and the same names in Python, on the command line and in TOML."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.backbones.cenet import CenetSettings
from bridgemem.config import Settings, as_settings, override, parse_json, read_toml, write_toml
from bridgemem.errors import SettingsError
from builders import few


def test_defaults_are_the_papers():
    s = Settings()
    assert (s.k, s.window, s.bins, s.smoothing) == (8, 65, (1, 4, 16, 64), 10.0)
    assert (s.width, s.hidden, s.batch, s.learning_rate, s.patience) == (64, 128, 8192, 1e-3, 3)
    assert (s.lambdas, s.gates, s.taus) == ((0.25, 0.5, 1, 2, 4, 10), ("uncertain", "none"), (30, 100, 300))
    c = CenetSettings()
    assert (c.width, c.alpha, c.history_bias, c.batch, c.epochs, c.oracle_epochs) == (200, 0.2, 2, 1024, 30, 20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"window": -1},
        {"window": 10**20},
        {"bins": (1, 10**20)},
        {"bins": (4, 1)},
        {"bins": (1, 1)},
        {"bins": (0, 4)},
        {"pooling": "max"},
        {"smoothing": 0.0},
        {"learning_rate": -1.0},
        {"lambdas": ()},
        {"lambdas": (-1.0,)},
        {"taus": (-1.0, 3.0)},
        {"gates": ("uncertain", "open")},
        {"max_examples": 0},
        {"k": 1025},
        {"width": 8193},
        {"hidden": 10**12},
        *(
            {name: value}
            for name in ("smoothing", "learning_rate", "min_improvement")
            for value in (math.nan, math.inf)
        ),
        {"lambdas": (1.0, math.nan)},
        {"lambdas": (math.inf,)},
        {"taus": (30.0, math.nan)},
    ],
)
def test_values_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong)).rstrip("s")):
        Settings(**wrong)


def test_the_largest_values_can_be_used():
    largest = Settings(k=1024, width=8192, hidden=8192, taus=(0.0, math.inf))
    assert largest.taus == (0.0, math.inf)


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
    assert as_settings(Optional, {"seed": ""}).seed is None
    assert as_settings(Optional, {"seed": None}).seed is None
    assert as_settings(Optional, {"seed": "3"}).seed == 3


def test_settings_survive_toml(tmp_path):
    settings = Settings(k=3, bins=(1, 2), lambdas=(0.1, 1e-7), gates=("none",), directions=False)
    path = tmp_path / "config.toml"
    path.write_text(write_toml({"residual": asdict(settings), "cenet": asdict(CenetSettings())}))
    tables = read_toml(path)
    assert as_settings(Settings, tables["residual"]) == settings
    assert as_settings(CenetSettings, tables["cenet"]) == CenetSettings()


plain = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text())


@few
@given(values=st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), plain))
def test_any_plain_value_survives_toml(values):
    assert tomllib.loads(write_toml({"table": values})) == {"table": values}


def test_none_is_left_out_of_toml():
    assert tomllib.loads(write_toml({"a": {"x": None, "y": 1}})) == {"a": {"y": 1}}


def test_a_file_that_is_not_toml_is_one_clear_error(tmp_path):
    path = tmp_path / "config.toml"
    with pytest.raises(SettingsError, match="no settings file"):
        read_toml(path)
    path.write_text("[open")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_toml(path)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, str(2**63), str(-(2**63) - 1)])
def test_whole_numbers_of_more_than_64_bits_are_refused_wherever_they_stand(number, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f"[a]\nb = [1, [{number}]]\n")
    with pytest.raises(SettingsError, match="more than 64 bits"):
        read_toml(path)
    if not number.startswith("0x"):
        with pytest.raises(ValueError, match="more than 64 bits"):
            parse_json(f'{{"a": [{number}]}}')
        with pytest.raises(SettingsError, match="k must be a whole number") as refused:
            override(Settings(), [f"k={number}"])
        assert len(str(refused.value)) < 200


def test_the_largest_whole_numbers_of_64_bits_are_read(tmp_path):
    path, ends = tmp_path / "settings.toml", [2**63 - 1, -(2**63)]
    path.write_text(f"ends = {ends}\n")
    assert read_toml(path) == {"ends": ends}
    assert parse_json(str(ends)) == ends


@pytest.mark.parametrize("values", [3, "k", [1], None])
def test_what_is_no_table_holds_no_settings(values):
    with pytest.raises(SettingsError, match="must be a table of settings"):
        as_settings(Settings, values)
