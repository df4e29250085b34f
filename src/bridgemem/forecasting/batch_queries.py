"""Batch queries: many queries from a file or from Python, answered in one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.events.queries import Queries
from bridgemem.events.readers.rejects import ABOUT, MOST, RejectedError
from bridgemem.events.readers.table import open_table
from bridgemem.events.readers.text import Reject
from bridgemem.forecasting.answer_files import read_cell, write_answers, write_csv, write_typed_parquet
from bridgemem.forecasting.answers import Answers as Ranked
from bridgemem.forecasting.answers import Candidate
from bridgemem.forecasting.horizon import check_horizon
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.ranking.ranks import batch_size
from bridgemem.showing import as_frame

COLUMNS = ("subject", "relation", "object", "time")
ANSWER = (
    "query",
    "subject",
    "relation",
    "object",
    "time",
    "horizon",
    "candidate",
    "rank",
    "backbone_rank",
    "p_given_event",
    "score",
    "backbone_score",
    "residual",
)
KINDS = dict.fromkeys(("query", "horizon", "rank", "backbone_rank"), int) | dict.fromkeys(
    ("p_given_event", "score", "backbone_score", "residual"), float
)
HEADER = ",".join(ANSWER) + "\n"
BLOCK = 10_000  # rows that are read at a time
NAMED = 100  # bad rows that are named one by one


@dataclass(frozen=True)
class Query:
    """(subject, relation, ?) or (?, relation, object) at a time; without a time, at the first unknown step."""

    subject: str | int | None = None
    relation: str | int | None = None
    object: str | int | None = None
    at: str | int | None = None
    line: int = field(default=0, compare=False)
    problem: str = field(default="", compare=False)  # why a line of a file cannot be asked
    row: tuple[str, ...] = field(default=(), compare=False)  # that line, where it could not be cut into cells


def read_queries(path: Path) -> list[Query]:
    """The queries of a text file with a header, all of them; see `text_queries`."""
    queries = [query for block in text_queries(path, BLOCK) for query in block]
    if not queries:
        raise DataError(f"{path} holds no query; write one query per line below the header subject,relation,object.")
    return queries


def text_queries(path: Path, size: int) -> Iterator[list[Query]]:
    """The queries of a text file with a header, in blocks: relation, subject or object, and if wanted time.

    The side that is empty is what is asked. Commas, tabs, semicolons or bars separate the cells. A line that is no
    query stands among them with its problem, so that `answer` can name all that cannot be asked at once. A name may be
    copied from a CSV file of answers as it stands there.
    """
    with open_table(path, MOST) as table:
        header = [name.lower() for name in table.headings]
        if not header:
            raise DataError(f"{path} is empty; write one query per line below the header subject,relation,object.")
        check_header(path, header)
        wrong = [Query(line=reject.line, problem=reject.reason, row=reject.row) for reject in table.rejects]
        for lines, rows in table.blocks(size):
            found = [
                query_of(header, [cell.strip() for cell in cells], line)
                for line, cells in zip(lines, rows, strict=True)
                if any(cell.strip() for cell in cells)
            ]
            before = sum(query.line < lines[-1] for query in wrong)
            yield sorted([*found, *wrong[:before]], key=lambda query: query.line)
            wrong = wrong[before:]
        yield wrong


def query_of(header: list[str], cells: list[str], line: int) -> Query:
    named = dict.fromkeys(COLUMNS, "") | dict(zip(header, map(read_cell, cells), strict=True))
    subject, relation, object_, at = (named[name] or None for name in COLUMNS)
    return Query(subject, relation, object_, at, line, query_problem(named))


def check_header(path: Path, header: list[str]) -> None:
    if "relation" not in header or not {"subject", "object"} & set(header):
        raise DataError(
            f"{path} has no column {'relation' if 'relation' not in header else 'subject or object'}; its first line "
            f"names some of {', '.join(COLUMNS)}, with commas, tabs or semicolons between them."
        )
    for name in header:
        if name not in (*COLUMNS, *ABOUT):  # the latter are those of a file of rejected rows
            raise DataError(f"{path} has a column {name!r}; the columns of a query are {', '.join(COLUMNS)}.")
        if header.count(name) > 1:
            raise DataError(f"{path} has two columns called {name!r}; keep one.")


def query_problem(cells: dict[str, str]) -> str:
    if not cells["relation"]:
        return "its relation is empty; give a name"
    if not cells["subject"] and not cells["object"]:
        return "its subject and its object are empty; give one of them"
    return (
        "it has a subject and an object; leave out the one that is asked"
        if cells["subject"] and cells["object"]
        else ""
    )


def named_problems(where: str, wrong: Sequence[str]) -> str:
    """One sentence that names every bad row."""
    more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    rows = "1 row" if len(wrong) == 1 else f"{len(wrong)} rows"
    return f"{where} has {rows} that cannot be asked, and nothing was answered: {'; '.join(wrong[:NAMED])}{more}."


@dataclass(frozen=True)
class Answers:
    """Queries with the candidates of each, best first. first: the number of the first query."""

    queries: Sequence[Query]
    times: Sequence[str]
    candidates: Sequence[Ranked]
    horizon: int | None
    first: int = 1

    def columns(self) -> dict[str, list[Any]]:
        """One row a candidate, as lists by column."""
        rows = [
            (n, q.subject, q.relation, q.object, time, self.horizon, *_values(c))
            for n, (q, time, found) in enumerate(
                zip(self.queries, self.times, self.candidates, strict=True), self.first
            )
            for c in found
        ]
        return {name: [row[i] for row in rows] for i, name in enumerate(ANSWER)}

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        return f"Answers(to {len(self):,} queries, {sum(map(len, self.candidates)):,} candidates)"

    def to_frame(self) -> Any:
        """The table as a pandas data frame, or, where pandas is not installed, as a dict of columns, each a list."""
        return as_frame(self.columns())

    def write(self, path: Path, replace: bool = True) -> None:
        """The table as .csv or .parquet, whole or not at all; replace: an existing file is replaced.

        The names in a .csv are safe in a spreadsheet.
        """
        write_answers(path, self.columns(), KINDS, replace)

    def write_part(self, path: Path) -> None:
        """The rows as a part of a table that is joined from several: as `write`, but a .csv has no header."""
        if path.suffix == ".csv":
            write_csv(path, self.columns(), True, header=False)
        else:
            write_typed_parquet(path, self.columns(), KINDS, True)


def _values(c: Candidate) -> tuple[Any, ...]:
    return c.name, c.rank, c.backbone_rank, c.p_given_event, c.score, c.backbone_score, c.residual


def answer(
    forecaster: Predictor,
    queries: Iterable[Query],
    top: int = 10,
    horizon: int | None = None,
    where: str = "the list of queries",
    first: int = 1,
) -> Answers:
    """Answer all queries, or none: every one that cannot be asked is named in one error, with its remedy.

    first: the number of the first of them.
    """
    asked = list(queries)
    together = in_ids(forecaster, asked, horizon, where, first)
    found = _in_batches(forecaster, together, top, horizon)
    clock = forecaster.events.clock
    return Answers(asked, [clock.label(step) for step in together.step.tolist()], found, horizon, first)


def in_ids(
    forecaster: Predictor,
    queries: Sequence[Query],
    horizon: int | None = None,
    where: str = "the list of queries",
    first: int = 1,
) -> Queries:
    """Queries by name in ids, or one error that names all that cannot be asked."""
    made, wrong, rejects = list[tuple[int, int, int]](), list[str](), list[Reject]()
    if not queries:
        raise DataError("there is no query to answer; give at least one.")
    if horizon is not None:
        check_horizon(horizon)
    for n, q in enumerate(queries, first):
        try:
            made.append(_asked(forecaster, q, horizon))
        except BridgeMemError as problem:
            reason = str(problem).rstrip(".")
            wrong.append(f"{f'line {q.line}' if q.line else f'query {n}'}: {reason}")
            cells = q.row or tuple("" if v is None else str(v) for v in (q.subject, q.relation, q.object, q.at))
            rejects.append(Reject(where, q.line or n, reason, " ".join(cells), cells))
    if wrong:
        raise RejectedError(named_problems(where, wrong), rejects, wrong)
    return Queries(*torch.tensor(made).T.contiguous())


def as_queries(given: Any) -> list[Query]:
    """Queries as Python code gives them.

    A `Query`; (subject, relation), (subject, relation, object) or (subject, relation, object, time) with None on the
    side asked for; a list of either; a file of queries; or a data frame or dict with columns of these names.
    """
    if isinstance(given, Query):
        return [given]
    if isinstance(given, str | Path):
        return read_queries(Path(given))
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        columns = {str(name).lower(): list(given[name]) for name in given}
        check_header(Path("the table of queries"), list(columns))
        rows = zip(*(columns.get(name, [None] * len(next(iter(columns.values())))) for name in COLUMNS), strict=True)
        return [Query(*map(_value, row)) for row in rows]
    if isinstance(given, tuple) and given and not isinstance(given[0], Query | tuple | list):
        given = [given]
    return [one if isinstance(one, Query) else _of_row(one) for one in given]


def _of_row(row: Any) -> Query:
    if not isinstance(row, tuple | list) or not 2 <= len(row) <= len(COLUMNS):
        raise DataError(
            f"{row!r:.60} is not a query: give (subject, relation), or (subject, relation, object, time) with None on "
            "the side asked for."
        )
    return Query(*map(_value, row))


def _value(value: Any) -> Any:
    """A cell of a frame: what is missing there is None here."""
    return None if value is None or value == "" or value != value else value


def _asked(forecaster: Predictor, query: Query, horizon: int | None) -> tuple[int, int, int]:
    """A query in ids, if it can be asked."""
    if query.problem:
        raise DataError(query.problem)
    ids = forecaster.query_ids(query.subject, query.relation, query.object, query.at)
    if horizon is not None:
        forecaster.check_window(Queries(*torch.tensor(ids).reshape(3, 1)), horizon)
    return ids


def _in_batches(forecaster: Predictor, queries: Queries, top: int, horizon: int | None) -> list[Ranked]:
    """The candidates of each query in the order of the queries; they are scored step by step."""
    past: Past = forecaster.past
    order = queries.step.argsort(stable=True)
    found: dict[int, Ranked] = {}
    for rows in order.split(batch_size(past.events.n_entities, past.device)):
        for row, candidates in zip(rows.tolist(), forecaster.answers(queries.take(rows), top, horizon), strict=True):
            found[row] = candidates
    return [found[row] for row in range(len(queries))]


def forecast(
    forecaster: Predictor,
    queries: Any,
    top: int = 10,
    horizon: int | None = None,
) -> Any:
    """Answers to queries as `as_queries` takes them.

    A pandas data frame, one row a candidate; a dict of columns, each a list, where pandas is not installed.
    """
    where = str(queries) if isinstance(queries, Path | str) else "the list of queries"
    return answer(forecaster, as_queries(queries), top, horizon, where).to_frame()
