"""`bridgemem names`: find the names of a run by what one would type."""

from __future__ import annotations

from typing import Annotated

import typer

from bridgemem.cli.ask import RunFolder, Store, opened_run
from bridgemem.cli.options import DataDir, Json, MemoryDir, RelationNames
from bridgemem.cli.output import counted, emit, say, table


def register(app: typer.Typer) -> None:
    app.command()(names)


def names(
    run: RunFolder,
    text: Annotated[str, typer.Argument(help="Letters or words of the name (default: the most active).")] = "",
    relations: Annotated[bool, typer.Option("--relations", help="Search relations instead of entities.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Names to show (default: 10).")] = 10,
    store: Store = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    relation_names: RelationNames = None,
    as_json: Json = False,
) -> None:
    """Find names: equal ones first, then by beginning, words and spelling, each with its number of events."""
    forecaster, stored, remark = opened_run(
        run, store, "keep", data_dir=data_dir, memory_dir=memory_dir, relation_names=relation_names
    )
    events = forecaster.events
    known = events.relation_names if relations else events.entity_names
    found = known.search(text, top)

    kind = "relation" if relations else "entity"

    def show() -> None:
        if found:
            rows = [[label or name, f"{count:,}"] for name, count, label in found]
            table(f"{len(found):,} of {counted(len(known), kind)}", [kind, "events"], rows)
        else:
            say(f"None of {counted(len(known), kind)} matches {text!r}.")
        if remark:
            say(remark)

    result = {"names": [each._asdict() for each in found], "known": len(known), "stored_events": stored}
    emit(result, as_json, show)
