"""Wording: what pydantic finds wrong with what was sent, in the words of this program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROWS = {"events": "event", "assume": "assumed event", "queries": "query", "ids": "id"}
NAMED = 20  # problems that are named one by one

# what is sent wrongly most often, by pydantic's name for it
PLAIN = {
    "extra_forbidden": "is no field of this request; leave it out",
    "missing": "is missing; send it",
    "too_short": "is empty; send {min_length} or more",
    "too_long": "is too long; send at most {max_length}",
    "string_too_short": "is empty; send {min_length} or more characters",
    "string_too_long": "is too long; send at most {max_length} characters",
    "string_type": "is no text; send a string",
    "int_parsing": "is no whole number; send one",
    "int_type": "is no whole number; send one",
    "int_from_float": "is no whole number; send one",
    "bool_type": "is neither true nor false; send one of them",
    "list_type": "is no list; send one",
    "literal_error": "cannot be this; send {expected}",
    "greater_than_equal": "is too small; send {ge} or more",
    "less_than_equal": "is too large; send {le} or less",
}


def in_words(problems: Sequence[str]) -> str:
    """What is wrong, each once, up to a limit."""
    told = list(dict.fromkeys(problems))
    more = f"; and {len(told) - NAMED:,} more" if len(told) > NAMED else ""
    return f"{'; '.join(told[:NAMED])}{more}."


def place_of(where: Sequence[Any]) -> str:
    """Where in what was sent something stands: rows are counted from 1, as in all messages."""
    parts: list[str] = []
    for part in (part for part in where if part != "body"):
        if isinstance(part, int) and parts:
            parts[-1] = f"{ROWS.get(parts[-1], parts[-1])} {part + 1}"
        else:
            parts.append(str(part))
    return f"{', '.join(parts)}: " if parts else ""


def said_of(problem: Any) -> str:
    """What is wrong and what to do, without repeating what was sent: that may be no number, or long."""
    plain = PLAIN.get(problem["type"])
    if plain is not None:
        return plain.format(**problem.get("ctx", {}))
    return problem["msg"].removeprefix("Value error, ").rstrip(".")
