"""`bridgemem data aliases`: the aliases of a packed data set or of a run, shown, added and undone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridgemem.cli.options import DataDir, Json
from bridgemem.cli.output import emit, say, table

if TYPE_CHECKING:
    from bridgemem.events.aliases import Merged

SHOWN = 20


def aliases(
    place: Annotated[Path, typer.Argument(metavar="DATA", help="A packed .npz, or a run folder.")],
    add: Annotated[Path | None, typer.Option("--add", help="Table to add: a name and its canonical name.")] = None,
    undo: Annotated[list[str] | None, typer.Option("--undo", help="Name to take out of the table; repeatable.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the aliases of a packed data set or a run, add some, or undo some; no event is ever lost."""
    from bridgemem.events.aliases import read_aliases

    new = {} if add is None else read_aliases(add)
    gone = tuple(undo or ())
    known, report = _of_run(place, new, gone, data_dir) if place.is_dir() else _of_pack(place, new, gone)

    def text() -> None:
        if report is not None:
            show_merged(report)
        elif known:
            table("Aliases", ["name", "canonical name"], [*map(list, known.items())])
        else:
            say(f"{place} has no aliases.")

    emit({"aliases": known, "merged": report and report.names, "loops": report and report.loops}, as_json, text)


def show_merged(report: Merged) -> None:
    """What was merged, the names with the most events first."""
    say(report.sentence())
    found = sorted(report.names, key=lambda each: -each.events)
    if found:
        rows = [[each.name, each.canonical, f"{each.events:,}"] for each in found[:SHOWN]]
        more = f" (the first {SHOWN} of {len(found):,}; --json lists all)" if len(found) > SHOWN else ""
        table(f"Merged names{more}", ["name", "canonical name", "events"], rows)


def _changed(known: dict[str, str], new: dict[str, str], gone: tuple[str, ...], place: Path) -> dict[str, str]:
    from bridgemem.errors import NotFoundError
    from bridgemem.events.aliases import resolved

    for name in gone:
        if name not in known:
            raise NotFoundError(f"{place} has no alias {name!r}; `bridgemem data aliases {place}` lists them.")
    return resolved({name: last for name, last in {**known, **new}.items() if name not in gone}, str(place))


def _of_pack(place: Path, new: dict[str, str], gone: tuple[str, ...]) -> tuple[dict[str, str], Merged | None]:
    from bridgemem.events.aliases import merged
    from bridgemem.events.packs import pack, unpack_unmerged

    dataset, known = unpack_unmerged(place)
    now = _changed(known, new, gone, place)
    if now != known:
        pack(dataset, place, aliases=now)
    return now, merged(dataset.events, now)[1] if now else None


def _of_run(
    place: Path, new: dict[str, str], gone: tuple[str, ...], data_dir: Path | None
) -> tuple[dict[str, str], Merged | None]:
    from bridgemem.events.aliases import write_aliases
    from bridgemem.runs import ALIASES, Run, check_aliases
    from bridgemem.storage.files import locked

    run = Run(place, data_dir=data_dir)
    with locked(place / ALIASES):
        known = dict(run.dataset.events.entities.aliases)
        now = _changed(known, new, gone, place)
        if now != known:
            check_aliases(now, run.dataset.events, str(place / ALIASES))
            write_aliases(place / ALIASES, now)
    return now, None
