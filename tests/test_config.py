"""Settings: the paper's defaults, checked values, and the same names in Python, on the command line and in TOML."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.backbones import BACKBONES, backbone_class
from bridgemem.backbones.cenet import CenetSettings
from bridgemem.config import Declared, Settings, declared, parse_json, read_toml, write_toml
from bridgemem.errors import SettingsError
from bridgemem.events.world import WorldSettings
from bridgemem.residuals.learned import LearnedSettings
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


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"k": 0}, "k must be from 1 to 1024, not 0."),
        ({"k": "8"}, "k must be a whole number, not '8'."),
        ({"k": True}, "k must be a whole number, not True."),
        ({"batch": 2**63}, "batch must be a whole number of at most 64 bits, not 9223372036854775808."),
        ({"window": -1}, "window must be from 0 to 2147483647 (0 for the whole past), not -1."),
        ({"learning_rate": -1.0}, "learning_rate must be above 0, not -1.0."),
        ({"smoothing": math.nan}, "smoothing must be finite and above 0, not nan."),
        ({"min_improvement": math.inf}, "min_improvement must be finite, not inf."),
        ({"directions": 1}, "directions must be true or false, not 1."),
        ({"pooling": "max"}, "pooling must be sum or mean, not 'max'."),
        ({"gates": "none"}, "gates must be a list, not 'none'."),
        ({"gates": ("open",)}, "each of gates must be uncertain, entropy or none, not 'open'."),
        ({"lambdas": ()}, "lambdas must name at least 1 value, not 0."),
        ({"taus": (30.0, -1.0)}, "each of taus must be at least 0, not -1.0."),
    ],
    ids=str,
)
def test_the_sentence_of_a_refusal_is_made_of_the_declaration(wrong, sentence):
    with pytest.raises(SettingsError) as refused:
        Settings(**wrong)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "kind", [Settings, LearnedSettings, WorldSettings, *(type(backbone_class(name).default) for name in BACKBONES)]
)
def test_every_number_among_the_settings_declares_its_range(kind):
    assert issubclass(kind, Declared)
    assert [name for name, hint in declared(kind).items() if hint in (int, float)] == []
    assert kind() == kind()


def test_numbers_of_numpy_are_numbers_too():
    assert Settings(k=np.int64(4), smoothing=np.float32(2.0)).k == 4


def test_the_largest_values_can_be_used():
    largest = Settings(k=1024, width=8192, hidden=8192, taus=(0.0, math.inf))
    assert largest.taus == (0.0, math.inf)


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


def test_the_largest_whole_numbers_of_64_bits_are_read(tmp_path):
    path, ends = tmp_path / "settings.toml", [2**63 - 1, -(2**63)]
    path.write_text(f"ends = {ends}\n")
    assert read_toml(path) == {"ends": ends}
    assert parse_json(str(ends)) == ends
