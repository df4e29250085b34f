"""Log lines: one for each request, as text or as JSON, with what its route noted; names of events at debug level only.

A line is `time level message`, then fields in the order of `FIELDS`. Whatever a client sent is escaped and cut, so that
it cannot make lines of its own.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

from bridgemem.config import LogFormat, LogLevel

FIELDS = (
    "method",
    "route",
    "path",
    "status",
    "milliseconds",
    "client",
    "model_version",
    "source",
    "key",
    "batch",
    "accepted",
    "duplicates",
    "late",
    "rejected",
    "new_entities",
    "new_relations",
    "replayed",
    "reason",
)
LONGEST = 200  # characters of a text that a client sent


@dataclass
class Noted:
    """What a route adds to the line of its request; names: what may name an event, for the level debug alone."""

    fields: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)


_NOTED: ContextVar[Noted | None] = ContextVar("_NOTED", default=None)


def begin() -> Noted:
    """Start the line of a request; whatever is noted while it is answered, in any thread, becomes part of it."""
    noted = Noted()
    _NOTED.set(noted)
    return noted


def note(**fields: Any) -> None:
    """Add fields to the line of the request that is being answered; nothing outside of one."""
    noted = _NOTED.get()
    if noted is not None:
        noted.fields.update(fields)


def note_names(**names: Any) -> None:
    """Add what names events or may do so, such as a query or the sentence of a refusal."""
    noted = _NOTED.get()
    if noted is not None:
        noted.names.update(names)


def log_fields(log: logging.Logger, level: int, message: str, noted: Noted) -> None:
    """Write one line with its fields in their order; those that are None are left out."""
    if not log.isEnabledFor(level):
        return
    own = [(name, noted.fields[name]) for name in FIELDS if name in noted.fields]
    others = [(name, value) for name, value in noted.fields.items() if name not in FIELDS]
    names = list(noted.names.items()) if log.isEnabledFor(logging.DEBUG) else []
    fields = {name: _cut(value) for name, value in (*own, *others, *names) if value is not None}
    log.log(level, message, extra={"fields": fields})


def _cut(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."


def set_up_logs(form: LogFormat, level: LogLevel, out: TextIO | None = None) -> None:
    """Send every line of the program, the server and warnings to one stream, in one format."""
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.captureWarnings(True)
    for name in ("bridgemem", "uvicorn", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        # the server writes a line for each of its own steps below a warning; those of requests are ours
        log.setLevel(level.upper() if name == "bridgemem" or level == "error" else "WARNING")


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info request method=POST route=/v1/forecast ...`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = (f"{name}={_shown(value)}" for name, value in getattr(record, "fields", {}).items())
        line = " ".join([_time(record), record.levelname.lower(), _one_line(record.getMessage()), *fields])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    """A value after an equals sign: quoted where it is not one printable word."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
