"""`--rejects`: the rows that a command rejects, as a file; the same for every command that rejects any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridgemem.cli.output import counted, say, warn

if TYPE_CHECKING:
    from bridgemem.events.readers.read import Rejects
    from bridgemem.events.readers.text import Reject

SHOWN = 20
RejectsFile = Annotated[
    Path | None, typer.Option("--rejects", help="CSV file for rejected rows, with line and reason.")
]


@contextmanager
def rejects_to(path: Path | None) -> Iterator[Callable[[Sequence[Reject]], None]]:
    """What writes rejected rows to a file, if one is wanted; those that refuse everything are written too."""
    from bridgemem.events.readers.rejects import RejectedError, check_name, write_rejects

    def write(rejects: Sequence[Reject]) -> None:
        if path is not None:
            write_rejects(path, rejects)
            if rejects:
                warn(f"bridgemem: wrote {counted(len(rejects), 'rejected row')} to {path}.")

    if path is not None:
        check_name(path)
    try:
        yield write
    except RejectedError as problem:
        if path is not None:
            write_rejects(path, problem.rejects)
            raise RejectedError(f"{problem} The rejected rows are in {path}.", ()) from None
        raise


def kept(path: Path | None) -> int:
    """How many rejected rows are to be kept."""
    from bridgemem.events.readers.rejects import MOST
    from bridgemem.events.readers.text import KEPT_REJECTS

    return KEPT_REJECTS if path is None else MOST


def show_rejects(rejects: Rejects) -> None:
    """The first rejected rows, and how many there are; lines that are not UTF-8 have a sentence of their own."""
    shown = rejects.others()[:SHOWN]
    for reject in shown:
        say(f"  {reject.file}:{reject.line}: {reject.reason}")
    if more := rejects.count - len(shown):
        left = f"... and {more:,} more; --rejects FILE writes them to a file."
        say(f"  {left if shown else '--rejects FILE writes them to a file.'}")
