"""Files of answers: columns as .csv, whose names are safe in a spreadsheet, or as .parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.errors import SettingsError
from bridgemem.storage.whole import whole_file

FORMATS = (".csv", ".parquet")
# What a spreadsheet would calculate: a text that begins so, also in full width and after spaces. A CSV file has a
# single quote before it. Quotes that stand there already are passed over, so that taking one away gives the text.
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")


def check_format(path: Path) -> str:
    """The ending of a file of answers, if it is one that can be written here."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"answers must be written as {' or '.join(FORMATS)}, and {path.name} is neither.")
    if path.suffix.lower() == ".parquet":
        try:
            import duckdb  # noqa: F401
        except ImportError:
            raise SettingsError("Parquet needs DuckDB, which is not installed; write a .csv file.") from None
    return path.suffix.lower()


def csv_line(values: Iterable[Any]) -> str:
    """A line of a CSV file that people open: a name that a spreadsheet would calculate has a quote before it."""
    safe = (f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value for value in values)
    line = io.StringIO(newline="")
    # with any other end of a line, not every version of the module quotes a name that holds a carriage return
    csv.writer(line, lineterminator="\r\n").writerow(safe)
    return line.getvalue().removesuffix("\r\n") + "\n"


def read_cell(text: str) -> str:
    """The name that `csv_line` put a quote before, or any other as it is."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]], replace: bool, header: bool = True) -> None:
    """Columns of equal length as a .csv, whole or not at all; replace: an existing file is replaced."""
    with whole_file(path, replace) as aside, aside.open("w", encoding="utf-8", newline="") as handle:
        if header:
            handle.write(",".join(columns) + "\n")
        handle.writelines(map(csv_line, zip(*columns.values(), strict=True)))


def write_answers(path: Path, columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, type], replace: bool) -> None:
    """Columns as .csv or .parquet. kinds: int or float; a column that is not named holds texts."""
    if check_format(path) == ".csv":
        write_csv(path, columns, replace)
    else:
        write_typed_parquet(path, columns, kinds, replace)


def write_typed_parquet(
    path: Path, columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, type], replace: bool
) -> None:
    """Columns as .parquet, null where a number has no value. kinds: as in `write_answers`."""
    from bridgemem.storage.tables import write_parquet

    write_parquet(path, {name: _array(values, kinds.get(name)) for name, values in columns.items()}, replace)


def _array(values: Sequence[Any], kind: type | None) -> np.ndarray:
    if kind is None:
        return np.array(["" if value is None else str(value) for value in values], dtype=object)
    kept = [0 if value is None else value for value in values]
    return np.ma.array(kept, dtype=np.int64 if kind is int else np.float64, mask=[value is None for value in values])
