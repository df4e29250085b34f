"""The command line run in process, and a small own data set with a planted script to run it on."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import typer

from bridgemem.cli import schemas
from bridgemem.cli.main import app, main
from bridgemem.cli.schemas import Failure, Remark
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG, Benchmark
from bridgemem.runs import Run

ACTORS = (
    "Arvan",
    "Belmor",
    "Castel",
    "Dunhal",
    "Eskara",
    "Farlow",
    "Gorland",
    "Hestia",
    "Ithia",
    "Jorvik",
    "Kel",
    "Lor",
)
RELATIONS = ("provide aid", "visit", "consult", "criticise", "sanction")
FIRST_DAY = date(2024, 1, 1)
DAYS = 40

TINY_CENET = ("--set", "width=8", "--set", "epochs=1", "--set", "oracle_epochs=1")
# of a fit whose test is not about the learned residual; one that is says so after it
TINY_READER = ("--set", "width=8", "--set", "hidden=8", "--set", "max_epochs=2", "--residual", "bridgemem")
MADE_SPLIT = "has no split, so it was split by time"  # said of every file that is not split
# typer would make it anew at each call, which takes longer than many a command
COMMANDS = typer.main.get_command(app)


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed; split: the lines that say that it made a split, which err leaves out."""

    code: int
    out: str
    err: str
    split: tuple[str, ...] = ()

    @property
    def json(self) -> Any:
        """The one JSON document on stdout; fails where anything else is printed with it."""
        assert self.code == 0, self.err
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return document(self.out)

    @property
    def remarks(self) -> list[str]:
        """What was remarked on standard error next to the JSON document."""
        return [Remark.model_validate_json(line, strict=True).warning for line in self.err.splitlines()]

    @property
    def failure(self) -> Failure:
        """What --json says of a failure: one line, and nothing on stdout."""
        assert (self.out, self.err.count("\n")) == ("", 1), (self.out, self.err)
        return Failure.model_validate_json(self.err, strict=True)

    def refused(self) -> str:
        """The one sentence of a refusal: exit code 2, nothing on stdout, no traceback."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        said = f"bridgemem: {self.failure.error}" if lines[0].startswith("{") else lines[0]
        assert said.startswith("bridgemem: ")
        assert said.endswith((".", "?")), said
        return said


def document(text: str) -> Any:
    """What a command printed with --json, if it is what its schema says, to the type of every number."""
    found = json.loads(text)
    schemas.document(found["command"]).validate_json(text, strict=True)
    return found


def measured_rows(run: Run) -> dict[str, list[dict[str, Any]]]:
    """What metrics.json of a run holds, by split."""
    return json.loads((run.folder / "metrics.json").read_text())


def bridgemem(*args: str | Path) -> Outcome:
    """What the installed program does, with its exit code and streams; an error that no command foresees is raised."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["bridgemem", *map(str, args)]),
        mock.patch("bridgemem.cli.main.app", COMMANDS),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    if ended.value.__cause__ is not None:
        raise ended.value.__cause__
    code = ended.value.code
    assert code is None or isinstance(code, int)
    lines = err.getvalue().splitlines(keepends=True)
    split = tuple(line for line in lines if MADE_SPLIT in line)
    return Outcome(code or 0, out.getvalue(), "".join(line for line in lines if line not in split), split)


def planted_rows(seed: int = 7) -> list[tuple[str, str, str, str]]:
    """600 events: who gets aid is visited the day after and consulted the day after that, amid noise."""
    rng = np.random.default_rng(seed)
    found: list[tuple[int, int, int, int]] = []
    for day in range(DAYS):
        for _ in range(4):
            a, b = rng.choice(len(ACTORS), 2, replace=False)
            found += [(day + later, a, later, b) for later in range(3) if day + later < DAYS]
    while len(found) < 600:
        a, b = rng.choice(len(ACTORS), 2, replace=False)
        found.append((int(rng.integers(DAYS)), a, int(rng.integers(len(RELATIONS))), b))
    found.sort(key=lambda row: row[0])
    return [(ACTORS[a], RELATIONS[r], ACTORS[b], str(FIRST_DAY + timedelta(days=day))) for day, a, r, b in found]


def write_rows(path: Path, rows: list[tuple[str, str, str, str]], separator: str = ",") -> Path:
    lines = [separator.join(row) for row in [("subject", "relation", "object", "time"), *rows]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def named_own(dataset: Dataset, name: str, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A small data set that the catalogue knows as a benchmark of this name."""
    events, sizes = dataset.events, {split: len(dataset.split(split)) for split in ("train", "valid", "test")}
    known = Benchmark(
        name=name,
        title="a small one",
        unit=1,
        clock=events.clock,
        entities=events.n_entities,
        relations=events.n_relations,
        train=sizes["train"],
        valid=sizes["valid"],
        test=sizes["test"],
        fingerprint=events.fingerprint,
        source="made up",
    )
    monkeypatch.setitem(CATALOG, name, known)
    return replace(dataset, name=name)


def compared(run: Path, gain: tuple[float, float, float] | None) -> Path:
    """The run with this noted as the learned residual's gain over the paper's; None: as one that did not measure."""
    path = run / "epochs.json"
    values = json.loads(path.read_text())
    for fit in values["learned"].values():
        held = fit.pop("held_out")
        if gain is not None:
            fit["held_out"] = {name: {**of, "gain": gain} for name, of in held.items()}
    path.write_text(json.dumps(values))
    return run


@contextmanager
def small_files_only(most: int) -> Iterator[None]:
    """A disk that is all but full: no file may grow beyond that many bytes."""
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def left_in(folder: Path) -> list[str]:
    """Everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


@dataclass(frozen=True)
class Walk:
    """The whole path over the small data set, command by command."""

    home: Path
    outcomes: dict[str, Outcome]

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def backbone(self) -> Path:
        return self.home / "backbone"

    @property
    def records(self) -> Path:
        return self.home / "records.jsonl"
