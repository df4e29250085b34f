"""Query sources: tables of queries of any size, read in blocks: text files, Parquet, lake tables, DuckDB queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.events.readers.lakes import in_lake, local_files
from bridgemem.events.readers.table import PARQUET, connect, reading
from bridgemem.events.readers.text import literal, open_bytes
from bridgemem.forecasting.batch_queries import COLUMNS, Query, as_queries, check_header, query_problem, text_queries

SQL = re.compile(r"\s*(select|with|from|attach)\s", re.IGNORECASE)


@dataclass(frozen=True)
class QuerySource:
    """Queries that can be read again and again, in the same order. name: what messages call them."""

    name: str
    read: Callable[[int], Iterator[list[Query]]]

    def blocks(self, size: int) -> Iterator[list[Query]]:
        """The queries in blocks of this size, the last one shorter."""
        held: list[Query] = []
        for part in self.read(size):
            held += part
            while len(held) >= size:
                yield held[:size]
                held = held[size:]
        if held:
            yield held


def query_source(given: Any) -> QuerySource:
    """Queries from a text or Parquet file, a lake table, a DuckDB query as text, or what `as_queries` takes."""
    if isinstance(given, str) and SQL.match(given):
        return QuerySource("the query", lambda size: _from_duckdb("the query", given, size))
    if isinstance(given, str | Path):
        path = Path(given)
        if in_lake(given):
            return QuerySource(str(given), lambda size: _from_lake(given, size))
        if path.suffix.lower() in PARQUET:
            open_bytes(path).close()
            return QuerySource(
                str(path), lambda size: _from_duckdb(str(path), f"FROM read_parquet({literal(path)})", size)
            )
        return QuerySource(str(path), lambda size: text_queries(path, size))
    listed = as_queries(given)
    return QuerySource("the list of queries", lambda size: iter([listed]))


def _from_lake(source: str | Path, size: int) -> Iterator[list[Query]]:
    """The queries of a table that is fetched for as long as they are read."""

    def columns(names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if name.lower() in COLUMNS] or names

    with local_files([source], columns) as files:
        for path, name in files.items():
            if path.suffix.lower() in PARQUET:
                yield from _from_duckdb(name, f"FROM read_parquet({literal(path)})", size)
            else:
                yield from text_queries(path, size)


def _from_duckdb(name: str, sql: str, size: int) -> Iterator[list[Query]]:
    """The queries that a DuckDB query gives, as it gives them."""
    with connect() as db:
        with reading(name):
            found = db.execute(sql)
            header = [str(column[0]).lower() for column in found.description or ()]
        check_header(Path(name), header)
        start = 1
        while True:
            with reading(name):
                rows = found.fetchmany(size)
            if not rows:
                return
            yield _of_cells(header, rows, start)
            start += len(rows)


def _of_cells(header: Sequence[str], rows: Sequence[Sequence[Any]], start: int) -> list[Query]:
    """Queries from rows of values; the line of each is its number."""
    made = []
    for line, row in enumerate(rows, start):
        cells = dict.fromkeys(COLUMNS, "") | {
            name: _text(value) for name, value in zip(header, row, strict=True) if name in COLUMNS
        }
        subject, relation, object_, at = (cells[name] or None for name in COLUMNS)
        made.append(Query(subject, relation, object_, at, line, query_problem(cells)))
    return made


def _text(value: Any) -> str:
    """A value of a table as a name or a time is written; empty where it is missing."""
    if value is None or value != value:
        return ""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()
