"""What commands print: JSON for programs, tables and sentences for people; nothing else prints."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from bridgemem import __version__
from bridgemem.errors import SettingsError

COMMAND = ContextVar("COMMAND", default="")  # the one that runs with --json, as it is typed after the program's name


REPEATED = "Repeated within their step"  # events, of the file itself or of what is known


def emit(value: Mapping[str, Any], as_json: bool, text: Callable[[], None]) -> None:
    """The value as one JSON document, as `schemas` declares it, or the text for people."""
    if as_json:
        _write_json(sys.stdout, {"command": COMMAND.get(), "version": __version__, **value})
    else:
        text()


def wants_json() -> bool:
    """Whether the command was called with --json, known also where its options could not be read."""
    return "--json" in sys.argv[1:]


def _write_json(out: TextIO, value: Any) -> None:
    out.write(json.dumps(plain(value), allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as JSON knows them; what is not a number becomes null."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def visible(text: str) -> str:
    """Names come from data: what would move a terminal's cursor, colour it or turn its text around is written out."""
    return "".join(c if c.isprintable() or c in "\n\u00a0" else c.encode("unicode_escape").decode() for c in text)


def counted(n: int, what: str) -> str:
    """1 event, 2,000 events; 1 query, 2 queries."""
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{n:,} {what if n == 1 else many}"


def check_new(path: Path, force: bool) -> None:
    """Refuse the name of a file to write that is taken, unless it is to be replaced."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file.")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists already; choose another name, or use --force to replace it.")


def say(text: str = "") -> None:
    sys.stdout.write(visible(text) + "\n")


def warn(text: str) -> None:
    """A remark next to the result, where it cannot spoil a pipe."""
    if wants_json():
        _write_json(sys.stderr, {"warning": text.removeprefix("bridgemem: ")})
    else:
        sys.stderr.write(visible(text) + "\n")


def fail(code: str, sentence: str, suggestions: Sequence[str] = ()) -> None:
    """Why a command ends without a result."""
    if wants_json():
        _write_json(sys.stderr, {"error": sentence, "code": code, "suggestions": list(suggestions)})
    else:
        sys.stderr.write(visible(f"bridgemem: {sentence}") + "\n")


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """A table as wide as its cells; rich fits it to a terminal, a pipe gets plain aligned columns."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        shown = Table(title=visible(title), title_justify="left", header_style="bold")
        for i, heading in enumerate(header):
            shown.add_column(heading, justify="left" if i == 0 else "right")
        for row in rows:
            shown.add_row(*map(visible, row))
        # brackets in a name are no markup
        Console(markup=False, emoji=False, highlight=False).print(shown)
        return
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        return "  ".join(padded).rstrip()

    say(title)
    say(line(header))
    say("  ".join("-" * w for w in widths))
    for row in rows:
        say(line(row))
