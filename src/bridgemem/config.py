"""Settings, with the paper's values as defaults; the same field names in Python, on the command line and in TOML."""

from __future__ import annotations

import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from bridgemem.errors import SettingsError

T = TypeVar("T")

GATES = ("uncertain", "entropy", "none")
# far beyond any use, and small enough that no setting asks for more memory than there is
MOST_EVENTS = 1024
MOST_UNITS = 8192
MOST_STEPS = 2**31 - 1  # no two events lie further apart
WHOLE = 2**63  # no file of the program holds a whole number of more than 64 bits


@dataclass(frozen=True)
class Settings:
    """The dyadic residual. A window of 0 keeps the whole past; bins are the upper edges of the recency bins."""

    # what a pair remembers
    k: int = 8
    window: int = 65
    # what an event is reduced to
    bins: tuple[int, ...] = (1, 4, 16, 64)
    directions: bool = True
    # the count reader
    smoothing: float = 10.0
    pooling: str = "sum"
    # the attention reader
    width: int = 64
    hidden: int = 128
    learning_rate: float = 1e-3
    batch: int = 8192
    max_epochs: int = 20
    patience: int = 3
    min_improvement: float = 1e-6
    max_examples: int = 2_000_000
    # the grid that validation chooses from
    lambdas: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
    gates: tuple[str, ...] = ("uncertain", "none")
    taus: tuple[float, ...] = (30.0, 100.0, 300.0)

    def __post_init__(self) -> None:
        for name in ("k", "width", "hidden", "batch", "max_epochs", "patience", "max_examples"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}.")
        limits = {"k": MOST_EVENTS, "width": MOST_UNITS, "hidden": MOST_UNITS, "window": MOST_STEPS}
        for name, most in limits.items():
            if getattr(self, name) > most:
                raise SettingsError(f"{name} must be at most {most}, not {getattr(self, name)}.")
        if self.window < 0:
            raise SettingsError(f"window must be a number of steps, or 0 for the whole past, not {self.window}.")
        if list(self.bins) != sorted(set(self.bins)) or any(not 1 <= edge <= MOST_STEPS for edge in self.bins):
            raise SettingsError(f"bins must be growing lags from 1 to {MOST_STEPS}, not {self.bins}.")
        if self.pooling not in ("sum", "mean"):
            raise SettingsError(f"pooling must be 'sum' or 'mean', not {self.pooling!r}.")
        # written so that NaN, which no comparison holds for, is refused too
        if not (0 < self.smoothing < math.inf and 0 < self.learning_rate < math.inf):
            raise SettingsError("smoothing and learning_rate must be finite numbers above 0.")
        if not math.isfinite(self.min_improvement):
            raise SettingsError(f"min_improvement must be a finite number, not {self.min_improvement}.")
        if not (self.lambdas and self.gates and self.taus):
            raise SettingsError("lambdas, gates and taus must each name at least one value.")
        if not all(0 <= lam < math.inf for lam in self.lambdas):
            raise SettingsError(f"lambdas must be finite and not negative, not {self.lambdas}.")
        if not all(tau >= 0 for tau in self.taus):
            raise SettingsError(f"taus must be numbers that are not negative, or inf, not {self.taus}.")
        unknown = set(self.gates) - set(GATES)
        if unknown:
            raise SettingsError(f"there is no gate called {sorted(unknown)[0]!r}: choose uncertain, entropy or none.")


def as_settings(kind: type[T], values: Mapping[str, Any], where: str = "settings") -> T:
    """Build a frozen settings class from plain values, refusing unknown names and wrong types."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where} must be a table of settings, not {shown(values)}.")
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise SettingsError(f"{where} has no setting called {unknown[0]!r}; known are {', '.join(sorted(known))}.")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _coerce(value, hints[name], f"{where}: {name}") for name, value in values.items()})


def shown(value: Any) -> str:
    """A value as an error names it: no longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _coerce(value: Any, hint: Any, where: str) -> Any:
    """One value as the type that its field declares; text from the command line is parsed."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in typing.get_args(hint) if a is not type(None))
        return None if value is None or value == "" else _coerce(value, inner, where)
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise SettingsError(f"{where} must be a list, not {shown(value)}.")
        return tuple(_coerce(item, typing.get_args(hint)[0], where) for item in items if item != "")
    if hint is bool:
        named = {"true": True, "false": False, True: True, False: False}
        key = value.lower() if isinstance(value, str) else value
        if isinstance(key, bool | str) and key in named:
            return named[key]
        raise SettingsError(f"{where} must be true or false, not {shown(value)}.")
    if hint is str:
        if isinstance(value, str):
            return value
        raise SettingsError(f"{where} must be text, not {shown(value)}.")
    try:
        if isinstance(value, bool) or (hint is int and isinstance(value, float) and value != int(value)):
            raise ValueError
        made = hint(value)
        if hint is int and not -WHOLE <= made < WHOLE:
            raise ValueError
        return made
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(
            f"{where} must be {'a whole number' if hint is int else 'a number'}, not {shown(value)}."
        ) from None


def override(settings: T, assignments: list[str]) -> T:
    """Settings changed by 'name=value' texts, as `--set` on the command line gives them."""
    values = asdict(settings)  # type: ignore[call-overload]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes name=value, not {assignment!r}.")
        if name not in values:
            raise SettingsError(f"there is no setting called {name!r}; known are {', '.join(sorted(values))}.")
        values[name] = text
    return as_settings(type(settings), values, "--set")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_whole(values)
    except FileNotFoundError:
        raise SettingsError(f"there is no settings file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{path} is not valid TOML: {problem}.") from None
    except ValueError:  # also of Python itself, which reads no number of thousands of digits
        raise SettingsError(f"{path} is not valid TOML: a whole number has more than 64 bits.") from None
    except RecursionError:
        raise SettingsError(f"{path} is not valid TOML: it is nested too deep.") from None
    return values


def _check_whole(value: Any) -> None:
    """Refuse whole numbers of more than 64 bits, which TOML does not have; in base 16 they may have any length."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_whole(inner)
    elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
        raise ValueError


def parse_json(text: str | bytes) -> Any:
    """The values of a JSON text; whole numbers of more than 64 bits, which nothing can be done with, are refused."""
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -WHOLE <= int(digits) < WHOLE:
        raise ValueError(f"a whole number of {len(digits.lstrip('-')):,} digits has more than 64 bits")
    return int(digits)


def write_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Flat tables of plain values as TOML text; None is left out, since TOML has no word for it."""
    lines: list[str] = []
    for title, table in tables.items():
        lines.append(f"[{title}]")
        lines += [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(c if c >= " " and c not in '"\\\x7f' else f"\\u{ord(c):04x}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
