"""Schema: values, files and texts of the command line, read as a dataclass declares them or refused in one sentence.

Types, names and nesting are checked by pydantic, which is imported when the first value is read; ranges are checked by
the dataclasses themselves (`config.Declared`), so that nothing but reading needs it.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from bridgemem.config import declared, read_toml, shown
from bridgemem.errors import RunError, SettingsError
from bridgemem.storage.files import read_json

T = TypeVar("T")

# how types of values are called, by the beginning of what pydantic calls an error
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "dataclass": "a table of settings",
    "too": "a list of another length",
    "json": "Unicode text",
}


def as_settings(kind: type[T], values: Any, where: str = "settings", *, whole: bool = False) -> T:
    """Plain values, as of TOML or JSON, as a declared type; a SettingsError says what is wrong in which place.

    whole: no field is left to its default, which would answer otherwise than what was written did; None is no value.
    """
    try:
        # as JSON, since a strict reading of Python's own values takes no list for a tuple
        text = json.dumps(values, default=_foreign)
        found = _validated(kind, lambda adapter: adapter.validate_json(text, strict=True))
        if whole and (lost := _left_out(kind, values)):
            raise SettingsError(f"{lost} is missing; add it.")
        return found
    except SettingsError as problem:
        raise SettingsError(f"{where}: {problem}") from None


def settings_of(kind: type[T], given: Any) -> T | None:
    """Settings as Python code gives them: of their class, None, or a dict of what differs from the defaults."""
    if given is None or isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        return as_settings(kind, dict(given), kind.__name__)
    what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
    raise SettingsError(f"settings are a {kind.__name__}(...) or a dict of its fields, not {what}.")


def read_as(path: Path, kind: type[T], remedy: str, *, missing: T | None = None, whole: bool = True) -> T:
    """A TOML or JSON file as a declared type. missing: what a file that is not there stands for."""
    if missing is not None and not path.is_file():
        return missing
    try:
        values = read_toml(path) if path.suffix == ".toml" else read_json(path)
        return as_settings(kind, values, str(path), whole=whole)
    except (RunError, SettingsError) as problem:
        said, missing_part, _ = str(problem).rstrip(".").partition(" is missing; ")  # the file has a remedy of its own
        raise RunError(f"{said}{' is missing' if missing_part else ''}; {remedy}.") from None


def override(settings: T, assignments: list[str], option: str = "--set") -> T:
    """Settings changed by 'name=value' texts, as an option of the command line gives them.

    A name with a dot, as in 'stream.width', goes to the list `changed` of settings that have one: an ensemble's.
    """
    kind: Any = type(settings)
    values = asdict(settings)  # type: ignore[call-overload]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"{option} takes name=value, not {assignment!r}.")
        if "." in name and "changed" in declared(kind):
            values["changed"] = [*values["changed"], assignment]
            continue
        hint = declared(kind).get(name)
        listed, may_be_empty = typing.get_origin(_plain(hint)) is tuple, type(None) in typing.get_args(hint)
        values[name] = [part for part in text.split(",") if part] if listed else text or (None if may_be_empty else "")
    try:
        return _validated(kind, lambda adapter: adapter.validate_python(values))
    except SettingsError as problem:
        # once, also where settings are changed inside of others
        raise SettingsError(f"{option}: {str(problem).removeprefix('--set: ')}") from None


def _left_out(kind: Any, values: Any) -> str | None:
    """The place of the first field that values leave to its default."""
    own: Any = _plain(kind)
    for field in fields(own) if is_dataclass(own) and isinstance(values, dict) else ():
        if field.name not in values:
            if field.default is not None:
                return field.name
        elif inner := _left_out(declared(own)[field.name], values[field.name]):
            return f"{field.name}.{inner}"
    return None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter, with_config

    if is_dataclass(kind) and not hasattr(kind, "__pydantic_config__"):  # the settings of another package's backbone
        with_config(extra="forbid")(kind)  # type: ignore[type-var]
    return TypeAdapter(kind)


def _validated(kind: Any, validate: Callable[[Any], T]) -> T:
    from pydantic import ValidationError

    try:
        return validate(_adapter(kind))
    except ValidationError as problem:
        raise SettingsError(f"{_sentence(kind, problem.errors(include_url=False)[0])}.") from None


def _sentence(kind: Any, error: Mapping[str, Any]) -> str:
    """What pydantic says of a value, in the words of this program and without the end of the sentence."""
    *outer, last = map(str, error["loc"] or ("it",))
    place = f"each of {'.'.join(outer)}" if last.isdecimal() and outer else ".".join((*outer, last))
    wrong = error["type"]
    if wrong == "missing":
        return f"{place} is missing"
    if wrong == "unexpected_keyword_argument":
        known = sorted(declared(_owner(kind, error["loc"])))
        close = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
        known_ones = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        return f"there is no setting called {shown(place)} ({known_ones})"
    if wrong == "literal_error":
        return f"{place} must be {error['ctx']['expected'].replace(chr(39), '')}, not {shown(error['input'])}"
    return f"{place} must be {KINDS.get(wrong.partition('_')[0], 'of another type')}, not {shown(error['input'])}"


def _owner(kind: Any, place: tuple[Any, ...]) -> Any:
    """The dataclass that would hold the last name of a place."""
    for part in place[:-1]:
        kind = _plain(kind)
        kind = typing.get_args(kind)[-1] if typing.get_origin(kind) else declared(kind)[part]
    return _plain(kind)


def _plain(hint: Any) -> Any:
    """A type without its range, and without the None that it may be instead."""
    if typing.get_origin(hint) is Annotated:
        return _plain(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _plain(next(one for one in typing.get_args(hint) if one is not type(None)))
    return hint


def _foreign(value: Any) -> Any:
    """A value that JSON does not have, such as a date of TOML, as what no field takes."""
    return {"": str(value)}
