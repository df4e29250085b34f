"""Showing: what an object is on one short line, and as a small table in a notebook."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

SHOWN = 10  # rows of a long object that a notebook shows


def first_few(names: Sequence[str], most: int = 3) -> str:
    """The first names in quotes, each cut to a bearable length, and dots where there are more."""
    listed = [repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:most]]
    return ", ".join([*listed, *(["..."] if len(names) > most else [])])


def percent(p: float) -> str:
    """A probability as people read it; a small one is not shown as none, and a large one not as certain."""
    shown = f"{p:.1%}"
    if shown == "0.0%" and p > 0:
        return "<0.1%"
    return ">99.9%" if shown == "100.0%" and p < 1 else shown


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table for a notebook. Names come from data, so everything is escaped."""

    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    after = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<p><b>{html.escape(title)}</b></p><table>{head}<tbody>{body}</tbody></table>{after}"


def as_frame(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> Any:
    """Columns as a pandas data frame, or as a dict of lists where pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return {
            name: column.tolist() if isinstance(column, np.ndarray) else list(column)
            for name, column in columns.items()
        }
    return pandas.DataFrame(dict(columns))
