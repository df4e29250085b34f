"""Ask: many questions at once, from a file or from Python, answered in one table."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bridgemem.backbones.history import History
from bridgemem.errors import BridgeMemError, DataError, SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.replay import batch_size
from bridgemem.forecast import Candidate, Forecaster
from bridgemem.progress import SILENT, Progress
from bridgemem.store import whole_file

COLUMNS = ("actor", "relation", "at", "direction")
DIRECTIONS = {"": False, "forward": False, "inverse": True}
ANSWER = (
    "question",
    "actor",
    "relation",
    "direction",
    "time",
    "within",
    "candidate",
    "rank",
    "backbone_rank",
    "probability",
    "score",
    "backbone_score",
    "residual",
)
FORMATS = (".csv", ".parquet")
NAMED = 100  # bad rows that are named one by one


@dataclass(frozen=True)
class Question:
    """(actor, relation, ?) at a time, or (?, relation, actor) where inverse; without a time, the first unknown step."""

    actor: str | int
    relation: str | int
    at: str | int | None = None
    inverse: bool = False
    line: int = field(default=0, compare=False)


def read_questions(path: Path) -> list[Question]:
    """The questions of a CSV file with a header: actor, relation, and if wanted at and direction.

    direction is forward or inverse. Every row that is no question is named with its line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8.") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    questions, wrong = [], []
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        _check_header(path, header)
        for row in rows:
            line = rows.line_num
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                wrong.append(f"line {line}: it has {len(row)} cells and the header has {len(header)}")
                continue
            cells = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
            if problem := _problem(cells):
                wrong.append(f"line {line}: {problem}")
                continue
            inverse = DIRECTIONS[cells.get("direction", "").lower()]
            questions.append(Question(cells["actor"], cells["relation"], cells.get("at") or None, inverse, line))
    except csv.Error as problem:
        raise DataError(f"{path}, line {rows.line_num} is not CSV: {problem}.") from None
    if wrong:
        raise DataError(_named(str(path), wrong))
    if not questions:
        raise DataError(f"{path} holds no question; write one a line below the header actor,relation.")
    return questions


def _check_header(path: Path, header: list[str]) -> None:
    for name in ("actor", "relation"):
        if name not in header:
            raise DataError(f"{path} has no column {name!r}; its first line must name {', '.join(COLUMNS)}.")
    for name in header:
        if name not in COLUMNS:
            raise DataError(f"{path} has a column {name!r}; the columns of a question are {', '.join(COLUMNS)}.")
        if header.count(name) > 1:
            raise DataError(f"{path} has two columns called {name!r}; keep one.")


def _problem(cells: dict[str, str]) -> str | None:
    for name in ("actor", "relation"):
        if not cells[name]:
            return f"its {name} is empty; give a name"
    direction = cells.get("direction", "")
    return None if direction.lower() in DIRECTIONS else f"its direction is forward or inverse, not {direction!r}"


def _named(where: str, wrong: Sequence[str]) -> str:
    """One sentence that names every bad row."""
    more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    rows = "1 row" if len(wrong) == 1 else f"{len(wrong)} rows"
    return f"{where} has {rows} that cannot be asked, and nothing was written: {'; '.join(wrong[:NAMED])}{more}."


@dataclass(frozen=True)
class Answers:
    """Questions with the candidates of each, best first."""

    questions: Sequence[Question]
    times: Sequence[str]
    candidates: Sequence[Sequence[Candidate]]
    within: int | None

    def columns(self) -> dict[str, list[Any]]:
        """One row a candidate, as lists by column."""
        rows = [
            (n, q.actor, q.relation, "inverse" if q.inverse else "forward", time, self.within or 1, *_values(c))
            for n, (q, time, found) in enumerate(zip(self.questions, self.times, self.candidates, strict=True), start=1)
            for c in found
        ]
        return {name: [row[i] for row in rows] for i, name in enumerate(ANSWER)}

    def frame(self) -> Any:
        """The table as a pandas data frame, or, where pandas is not installed, as a dict of columns, each a list."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            return self.columns()
        return pandas.DataFrame(self.columns())

    def write(self, path: Path) -> None:
        """The table as .csv or .parquet, whole or not at all."""
        if check_format(path) == ".csv":
            columns = self.columns()
            with whole_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as handle:
                writer = csv.writer(handle, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
            return
        from bridgemem.runs import write_parquet

        write_parquet(path, {name: _array(values) for name, values in self.columns().items()})


def _values(c: Candidate) -> tuple[Any, ...]:
    return c.name, c.rank, c.backbone_rank, c.probability, c.score, c.backbone_score, c.residual


def _array(values: list[Any]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.array(values, dtype=np.int64)
    if any(isinstance(value, float) or value is None for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([str(value) for value in values], dtype=object)


def check_format(path: Path) -> str:
    """The ending of a file of answers, if it is one that can be written here."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"answers are written as {' or '.join(FORMATS)}, and {path.name} is neither.")
    if path.suffix.lower() == ".parquet":
        try:
            import duckdb  # noqa: F401
        except ImportError:
            raise SettingsError("Parquet needs DuckDB, which is not installed; write a .csv file.") from None
    return path.suffix.lower()


def answer(
    forecaster: Forecaster,
    questions: Iterable[Question],
    top: int = 10,
    within: int | None = None,
    where: str = "the list of questions",
    progress: Progress = SILENT,
) -> Answers:
    """Answer all questions, or none: every one that cannot be asked is named in one error, with its remedy."""
    asked, queries, wrong = list(questions), [], []
    if not asked:
        raise DataError("there is no question to answer; give at least one.")
    for n, q in enumerate(asked, start=1):
        try:
            queries.append(forecaster.query(q.actor, q.relation, q.at, q.inverse))
        except BridgeMemError as problem:
            wrong.append(f"{f'line {q.line}' if q.line else f'question {n}'}: {str(problem).rstrip('.')}")
    if wrong:
        raise DataError(_named(where, wrong))
    together = Queries(*(torch.cat([getattr(q, name) for q in queries]) for name in ("actor", "relation", "step")))
    found = _in_batches(forecaster, together, top, within, progress)
    clock = forecaster.events.clock
    return Answers(asked, [clock.label(step) for step in together.step.tolist()], found, within)


def _in_batches(
    forecaster: Forecaster, queries: Queries, top: int, within: int | None, progress: Progress
) -> list[list[Candidate]]:
    """The candidates of each query in the order of the queries; they are scored step by step."""
    past: History = forecaster.past
    order = queries.step.argsort(stable=True)
    found: list[list[Candidate]] = [[] for _ in range(len(queries))]
    with progress.task("forecasting", total=len(queries)) as advance:
        for rows in order.split(batch_size(past.events.n_entities, past.device)):
            for row, candidates in zip(rows.tolist(), forecaster.answers(queries.take(rows), top, within), strict=True):
                found[row] = candidates
            advance(len(rows))
    return found


def forecast(
    source: Forecaster | Path | str,
    questions: Question | Iterable[Question] | Path | str,
    top: int = 10,
    within: int | None = None,
) -> Any:
    """Answers of a forecaster or a run folder to questions, or to a CSV file of them.

    A pandas data frame, one row a candidate; a dict of columns, each a list, where pandas is not installed.
    """
    forecaster = source if isinstance(source, Forecaster) else Forecaster.open(source)
    if isinstance(questions, Question):
        return answer(forecaster, [questions], top, within).frame()
    if isinstance(questions, Path | str):
        return answer(forecaster, read_questions(Path(questions)), top, within, str(questions)).frame()
    return answer(forecaster, questions, top, within).frame()
