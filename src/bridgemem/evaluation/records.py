"""Records: every measured figure is one JSON line that says exactly how it was measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bridgemem.config import parse_json
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.runs import Run
from bridgemem.storage.files import locked
from bridgemem.storage.schema import as_settings, read_as
from bridgemem.storage.whole import whole_file

STEPS = "steps"  # the setting of a record that says how few steps its intervals were resampled from


@dataclass(frozen=True)
class Record:
    """One row: what was measured, on what, under which filter, by which choices, at what cost.

    fingerprint, identity: digests of the data, as `data stats` prints them; of a measurement on validation they may be
    of the data without its test. Earlier lines have no identity.
    """

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
    identity: str = ""

    def __post_init__(self) -> None:
        if any(len(bounds) != 3 for bounds in self.gain.values()):
            raise SettingsError("gain must hold a value and both ends of its interval for each metric.")

    @property
    def as_chosen(self) -> bool:
        """Whether it is what its method has to show under its filter: what was chosen there, or under no filter.

        The paper's residual is not chosen under raw, and shows what the time-aware filter chose.
        """
        return self.selected_by in (None, "raw", "static" if self.filter == "static" else "time")

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
    with locked(path):
        kept = {record.key(): record for record in (read_records(path) if path.exists() else [])}
        kept.update({record.key(): record for record in records})
        with whole_file(path) as aside:
            aside.write_text("".join(json.dumps(asdict(r)) + "\n" for r in kept.values()), encoding="utf-8")


def metrics_of(run: Run, split: str) -> list[Record]:
    """The records of a run on a split, as its last evaluation wrote them; none where that was not evaluated."""
    path, remedy = run.folder / "metrics.json", f"run `bridgemem evaluate {run.folder}`"
    if not path.is_file():
        raise RunError(f"{run.folder} has not been evaluated; {remedy}.")
    rows = read_as(path, dict[str, Any], f"evaluate it again: {remedy}").get(split, [])
    try:
        return as_settings(list[Record], rows, f"{path}: {split}")
    except SettingsError as problem:
        raise RunError(f"{str(problem).rstrip('.')}; evaluate again: {remedy}.") from None


def read_records(path: Path) -> list[Record]:
    if not path.is_file():
        raise DataError(
            f"there is no file of records at {path}; name one that is there, or write it with `bridgemem reproduce`."
        )
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number} is not a record"
        try:
            records.append(as_settings(Record, parse_json(line), where))
        except SettingsError as problem:
            raise DataError(str(problem)) from None
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{where}: {problem}.") from None
    return records
