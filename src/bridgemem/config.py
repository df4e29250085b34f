"""Settings: each field declares its type, range and default once; names are the same in Python, the CLI and TOML."""

from __future__ import annotations

import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from bridgemem.errors import SettingsError

Gate = Literal["uncertain", "entropy", "none"]
HistoryMode = Literal["rolling", "frozen"]
Duplicates = Literal["keep", "drop"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
# far beyond any use, and small enough that no setting asks for more memory than there is
MOST_EVENTS = 1024
MOST_UNITS = 8192
MOST_STEPS = 2**31 - 1  # no two events lie further apart
LAST_SEED = 2**32 - 1
WHOLE = 2**63  # no file of the program holds a whole number of more than 64 bits
_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}


@dataclass(frozen=True)
class Range:
    """The numbers that a field takes, or of a tuple its length. Numbers are finite, unless `finite` is False.

    note: what the sentence of a refusal adds to the bounds, such as a unit or a reason.
    """

    ge: float = -math.inf
    le: float = math.inf
    gt: float = -math.inf
    lt: float = math.inf
    note: str = ""
    finite: bool = True

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range; NaN, which no comparison holds for, lies in none."""
        bounded = self.ge <= value <= self.le and (value > self.gt or self.gt == -math.inf)
        return bounded and (value < self.lt or self.lt == math.inf) and (math.isfinite(value) or not self.finite)

    def __str__(self) -> str:
        if math.isfinite(self.ge) and math.isfinite(self.le):
            bounds = f"from {self.ge} to {self.le}"
        else:
            said = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
            bounds = " and ".join(f"{word} {bound}" for word, bound in said.items() if math.isfinite(bound))
        return f"{bounds} {self.note}".strip()


Size = Annotated[int, Range(ge=0)]
Count = Annotated[int, Range(ge=1)]
Recent = Annotated[int, Range(ge=1, le=MOST_EVENTS)]
Units = Annotated[int, Range(ge=1, le=MOST_UNITS)]
Seed = Annotated[int, Range(ge=0, le=LAST_SEED)]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
Share = Annotated[float, Range(ge=0, le=1)]
BelowOne = Annotated[float, Range(ge=0, lt=1)]
Inside = Annotated[float, Range(gt=0, lt=1)]


@cache
def declared(kind: Any) -> Mapping[str, Any]:
    """The annotated type of every field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


class Declared:
    """A frozen dataclass whose values are checked against the types and ranges that its fields declare."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # where `storage.schema` reads one from a file

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in declared(kind).items():
            check(name, getattr(self, name), hint)


def check(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not fit a declared type."""
    if wrong := fault(name, value, hint):
        raise SettingsError(f"{wrong}.")


def fault(name: str, value: Any, hint: Any) -> str | None:
    """What is wrong with a value of a declared type, as a sentence without its end; None where nothing is."""
    kind, marks = (hint.__origin__, hint.__metadata__) if hasattr(hint, "__metadata__") else (hint, ())
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else fault(name, value, next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return None if value in inner else f"{name} must be {either(inner)}, not {shown(value)}"
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return f"{name} must be a list, not {shown(value)}"
        for mark in marks:
            if not mark.holds(len(value)):
                return f"{name} must name {mark}, not {len(value)}"
        wrong = (fault(f"each of {name}", item, inner[0]) for item in value)
        return next(filter(None, wrong), None)
    if kind not in _KINDS:
        return None
    wanted, words = _KINDS[kind]
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        return f"{name} must be {words}, not {shown(value)}"
    if kind is int and not -WHOLE <= value < WHOLE:
        return f"{name} must be a whole number of at most 64 bits, not {shown(value)}"
    for mark in marks:
        if not mark.holds(value):
            words = str(mark) if math.isfinite(value) else f"finite and {mark}".removesuffix(" and ")
            return f"{name} must be {words}, not {value}"
    return None


def either(names: Iterable[Any]) -> str:
    """Names as a choice: a, b or c."""
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: Any) -> str:
    """A value as an error names it: no longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class Settings(Declared):
    """Settings of the paper's residual.

    Args:
        k: How many events of a pair are read, the last ones.
        window: How many steps back; 0 for the whole past.
        bins: Upper edges of the recency bins, in steps.
        directions: Whether a token tells who acted.
        smoothing: Pseudo-counts of the count reader.
        pooling: "sum" or "mean" over the events of a pair.
        width: Of the attention reader's vectors.
        hidden: Units of its hidden layer.
        learning_rate: Of the attention reader.
        batch: Examples in a batch.
        max_epochs: The most epochs.
        patience: Epochs without improvement before it stops.
        min_improvement: What counts as an improvement of the held-out loss.
        max_examples: The most examples that it is trained on.
        max_queries: The most queries of validation that the grid is chosen on.
        lambdas: Scales to choose from.
        gates: Gates to choose from.
        taus: Supports to choose from.

    Raises:
        SettingsError: A value is out of its range.

    Example:
        >>> bm.Settings(k=4, window=7).bins
        (1, 4, 16, 64)
    """

    # what a pair remembers
    k: Recent = 8
    window: Annotated[int, Range(ge=0, le=MOST_STEPS, note="(0 for the whole past)")] = 65
    # what an event is reduced to
    bins: tuple[Annotated[int, Range(ge=1, le=MOST_STEPS)], ...] = (1, 4, 16, 64)
    directions: bool = True
    # the count reader
    smoothing: Positive = 10.0
    pooling: Literal["sum", "mean"] = "sum"
    # the attention reader
    width: Units = 64
    hidden: Units = 128
    learning_rate: Positive = 1e-3
    batch: Count = 8192
    max_epochs: Count = 20
    patience: Count = 3
    min_improvement: Finite = 1e-6
    max_examples: Count = 2_000_000
    # the grid that validation chooses from, on this many of its queries at most
    max_queries: Count = 10_000_000
    lambdas: Annotated[tuple[NotNegative, ...], Range(ge=1, note="value")] = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
    gates: Annotated[tuple[Gate, ...], Range(ge=1, note="gate")] = ("uncertain", "none")
    taus: Annotated[tuple[Annotated[float, Range(ge=0, finite=False)], ...], Range(ge=1, note="value")] = (
        30.0,
        100.0,
        300.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.bins) != sorted(set(self.bins)):
            raise SettingsError(f"bins must grow, not {self.bins}.")


# next to the learned residual, which does not need it, the paper's is fitted and chosen on samples
SAMPLED = Settings(max_examples=15_000, max_queries=5_000)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_whole(values)
    except FileNotFoundError:
        raise SettingsError(f"there is no settings file {path}; check its name.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{path} is not valid TOML: {problem}.") from None
    except ValueError:  # also of Python itself, which reads no number of thousands of digits
        raise SettingsError(f"{path} is not valid TOML: a whole number has more than 64 bits.") from None
    except RecursionError:
        raise SettingsError(f"{path} is not valid TOML: it is nested too deep; write it flatter.") from None
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
