"""Tables as files: LaTeX, CSV, Markdown and numeric JSON, by the end of the file's name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgemem.cli.output import plain
from bridgemem.config import either
from bridgemem.errors import SettingsError

if TYPE_CHECKING:
    from bridgemem.evaluation.tables import Table

HITS = {"hits1": "hits@1", "hits3": "hits@3", "hits10": "hits@10"}
KINDS = (".tex", ".csv", ".md", ".json")


def check_kind(path: Path) -> None:
    """Refuse the name of a file that is of no kind that tables are written as."""
    if path.suffix.lower() not in KINDS:
        raise SettingsError(f"tables are written as {either(KINDS)}, and {path.name} is none of them; name it *.tex.")


def write_tables(path: Path, tables: Sequence[Table], rows: Sequence[Any], replace: bool = True) -> None:
    """Write tables as cells (.tex, .md), or their figures, unrounded, one row each (.csv, .json).

    rows: dataclasses or dicts, one a figure; nested values become columns with a dot.
    """
    from bridgemem.storage.whole import whole_file

    check_kind(path)
    kind = path.suffix.lower()
    if kind == ".tex":
        text = "% \\usepackage{booktabs}\n" + "\n".join(table.latex() for table in tables)
    elif kind == ".md":
        text = "\n".join(table.markdown() for table in tables)
    elif kind == ".csv":
        text = _csv([_flat(_named(plain(row))) for row in rows])
    else:
        text = json.dumps([_named(plain(row)) for row in rows], indent=2, allow_nan=False) + "\n"
    with whole_file(path, replace) as aside:
        aside.write_text(text, encoding="utf-8")


def _named(value: Any) -> Any:
    """Metrics by the names that other tools of the field read: hits@1 for hits1, as PyKEEN has it."""
    if isinstance(value, dict):
        return {HITS.get(name, name): _named(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    return HITS.get(value, value) if isinstance(value, str) else value


def _flat(row: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A row without rows in it: {"gain": {"low": 1}} as {"gain.low": 1}; a value with its interval is three."""
    made: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            made |= _flat(value, f"{before}{name}.")
        else:
            ends = {"value": 0, "low": 1, "high": 2} if isinstance(value, list) and len(value) == 3 else {}
            made |= {f"{before}{name}.{end}": value[i] for end, i in ends.items()}
            if not ends:
                made[f"{before}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return made


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    header = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
