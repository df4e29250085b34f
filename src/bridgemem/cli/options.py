"""Options that several commands share."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from bridgemem import config
from bridgemem.cli.output import COMMAND, wants_json
from bridgemem.errors import SettingsError


def bounded(hint: Any, *names: str, help: str) -> Any:
    """An option for a whole number in the range that its type declares."""
    (own,) = hint.__metadata__
    return typer.Option(*names, min=own.ge, max=own.le if math.isfinite(own.le) else None, help=help)


def one_of(hint: Any, name: str, *, help: str) -> Any:
    """An option for one of the names that a type declares."""

    def parsed(text: str) -> str:
        config.check(name, text, hint)
        return text

    return typer.Option(name, parser=parsed, metavar="|".join(get_args(hint)), help=help)


def check_engine(engine: str, master: str, engines: tuple[str, ...]) -> None:
    """Refuse an engine that there is not, and a master without a cluster."""
    if engine not in engines:
        raise SettingsError(f"there is no engine called {engine!r}: choose {' or '.join(engines)}.")
    if bool(master) != (engine == "spark"):
        raise SettingsError("--master goes with --engine spark, and that engine needs it, as in spark://HOST:7077.")


def _note_command(context: typer.Context, wanted: bool) -> bool:
    names, at = list[str](), cast(Any, context)  # its parents are of the class that typer has it from
    while at.parent is not None:
        names.insert(0, at.info_name or "")
        at = at.parent
    COMMAND.set(" ".join(names))
    return wanted


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text; errors too.", callback=_note_command)
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Hide progress.",
        # with --json, standard error holds JSON lines alone
        callback=lambda quiet: quiet or (wants_json() and not sys.stderr.isatty()),
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of named data sets (default: $BRIDGEMEM_DATA or cache)."),
]
MemoryDir = Annotated[
    Path | None,
    typer.Option("--memory-dir", help="Folder written by `bridgemem memory` or `mine`."),
]
Aliases = Annotated[
    Path | None, typer.Option("--aliases", help="Names to merge: rows of a name and its canonical name.")
]
RelationNames = Annotated[
    Path | None, typer.Option("--relation-names", help="Labels of relations: rows of a code and its name.")
]
Groups = Annotated[
    Path | None,
    typer.Option("--groups", help="Groups of names: rows of a group and a member."),
]
Device = Annotated[str, typer.Option("--device", help="Device: cpu or cuda.")]
Seed = Annotated[int, bounded(config.Seed, "--seed", help="Random seed (default: 42).")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Setting as name=value; repeatable.")]
Step = Annotated[
    str | None, typer.Option("--step", help="Length of a time step: a whole number, or hour, day, week, 15min, 7d.")
]
Data = Annotated[
    list[str], typer.Option("--data", "-d", help="Name of a data set, file, folder or .npz; repeat for more files.")
]
SplitAt = Annotated[
    tuple[str, str] | None,
    typer.Option("--split-at", metavar="DATE DATE", help="First time of validation and of test."),
]
Residual = Annotated[
    str | None,
    typer.Option("--residual", help="bridgemem or learned (default: the better)."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
NewEvents = Annotated[Path | None, typer.Option("--store", help="Event store (default: RUN.events.duckdb).")]


Duplicates = Annotated[
    config.Duplicates | None,
    one_of(
        config.Duplicates,
        "--duplicates",
        help="Repeated events: keep or drop (default: as stored).",
    ),
]
MaxNewRelations = Annotated[
    int | None,
    bounded(config.Size, "--max-new-relations", help="Most new relations (default: 1000)."),
]
MaxNewNamesPerBatch = Annotated[
    int | None,
    bounded(config.Size, "--max-new-names", help="Most new entities per batch (default: 100000)."),
]
MaxNewNamesPerDay = Annotated[
    int | None,
    bounded(config.Size, "--max-new-names-day", help="Most new entities per day, UTC (default: 250000)."),
]
LogFormat = Annotated[
    config.LogFormat,
    one_of(config.LogFormat, "--log-format", help="Log lines as text or JSON."),
]
LogLevel = Annotated[
    config.LogLevel,
    one_of(config.LogLevel, "--log-level", help="Lowest level; debug names events too."),
]
MaxAhead = Annotated[
    int | None,
    bounded(
        config.Size,
        "--max-ahead",
        help="Most steps after the last event; 0: any (default: 5 largest gaps, at least 30).",
    ),
]
PUBLISHED = Path("results/records.jsonl")  # the records of a checkout
Records = Annotated[Path, typer.Option("--records", help="File of measured records, one JSON line each.")]


def source_of(given: list[str]) -> str | list[str]:
    """What `load` takes for one name, file or folder, or for several files."""
    return given[0] if len(given) == 1 else given


def whole_or_text(step: str | None) -> str | int | None:
    """A step as the reader takes it: whole numbers as numbers."""
    # no step has as many digits as make a number that int() refuses to read
    return int(step) if step is not None and step.isdecimal() and len(step) < 20 else step


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds from '42', '42,43' or '42-46'."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        first, last = (int(n) if n.isdecimal() and len(n) < 20 else -1 for n in (low, high if dash else low))
        if not 0 <= first <= last <= config.LAST_SEED or last - first > 1000:
            raise SettingsError(f"seeds are written as 42, as 42,43 or as 42-46, not {text!r}.")
        found += range(first, last + 1)
    return tuple(found)


def residual_of(residual: str) -> str:
    """The residual that --residual names."""
    if residual not in ("bridgemem", "learned"):
        raise SettingsError(f"residual is bridgemem or learned, not {residual!r}.")
    return residual
