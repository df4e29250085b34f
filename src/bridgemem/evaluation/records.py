"""Records: every measured figure is one JSON line that says exactly how it was measured."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bridgemem.config import parse_json
from bridgemem.errors import DataError


@dataclass(frozen=True)
class Record:
    """One row: what was measured, on what, under which filter, by which choices, at what cost."""

    dataset: str
    fingerprint: str
    split: str
    backbone: str
    method: str
    filter: str
    selected_by: str | None
    history: str
    seed: int
    queries: int
    mrr: float
    hits1: float
    hits3: float
    hits10: float
    settings: dict[str, Any] = field(default_factory=dict)
    gain: dict[str, list[float]] = field(default_factory=dict)
    fit_seconds: float | None = None
    refit_seconds: float | None = None
    device: str = "cpu"
    version: str = ""
    ties: str = "mean"
    lock: str | None = None
    subset: str | None = None
    horizon: int = 1
    cross_fit: float = 0.0

    def key(self) -> str:
        """What makes two records measurements of the same thing; a newer one replaces the older."""
        named = ("dataset", "split", "backbone", "method", "filter", "selected_by", "history", "seed", "subset")
        device = self.device.split(":")[0].split(" ")[0]
        return json.dumps(
            [getattr(self, name) for name in (*named, "horizon", "cross_fit")]
            + [device, self.settings.get("backbone_seed")]
        )


def write_records(path: Path, records: list[Record]) -> None:
    """Add records to a file of JSON lines, replacing earlier measurements of the same thing."""
    from bridgemem.storage.files import locked, whole_file

    with locked(path):
        kept = {record.key(): record for record in (read_records(path) if path.exists() else [])}
        kept.update({record.key(): record for record in records})
        with whole_file(path) as aside:
            aside.write_text("".join(json.dumps(asdict(r)) + "\n" for r in kept.values()), encoding="utf-8")


def read_records(path: Path) -> list[Record]:
    if not path.is_file():
        raise DataError(f"there is no file of records at {path}; `bridgemem reproduce` writes one.")
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = Record(**parse_json(line))
        except (ValueError, TypeError, RecursionError) as problem:
            raise DataError(f"{path}, line {number} is not a record: {problem}.") from None
        if wrong := wrong_field(record):
            raise DataError(f"{path}, line {number} is not a record: {wrong} has a value of the wrong kind.")
        records.append(record)
    return records


def wrong_field(record: Record) -> str | None:
    """The first field whose value is not of the type that it declares, or None."""
    for name, hint in _hints().items():
        if not _is(getattr(record, name), hint):
            return name
    return None if all(len(bounds) == 3 for bounds in record.gain.values()) else "gain"


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Record)


def _is(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON has a type; a whole number is a number too, true and false are none."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_is(value, one) for one in inner)
    if inner:
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, typing.get_origin(hint)) and all(_is(item, inner[-1]) for item in items)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)
