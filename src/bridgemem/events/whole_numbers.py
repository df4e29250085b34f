"""Whole numbers with a fraction of zero: what programs write, as 107.0, in a column of numbers that lacks a value.

Such a text is the number without the fraction, wherever a table holds it. Codes with leading zeros are no numbers.
"""

from __future__ import annotations

import re

PATTERN = "^(-?(0|[1-9][0-9]{0,17}))[.]0+$"  # for Python, DuckDB and Spark alike
FRACTION = re.compile(PATTERN)


def plain_number(text: str) -> str:
    """A text without the space around it, and without a fraction of zero if it is a whole number."""
    text = text.strip()
    found = FRACTION.match(text) if text.endswith("0") else None
    return found[1] if found else text


def plain_number_sql(text: str, group: str = r"\1") -> str:
    """SQL of a text as `plain_number` gives it, apart from the space; group: how the engine names the first group."""
    return f"regexp_replace({text}, '{PATTERN}', '{group}')"
