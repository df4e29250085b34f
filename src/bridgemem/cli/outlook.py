"""`bridgemem outlook`: the likeliest and the most surprising events of the coming steps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bridgemem.cli.ask import RunFolder, Store, opened_run, with_groups
from bridgemem.cli.ledger import Issue, check_issue, issuing
from bridgemem.cli.options import DataDir, Duplicates, Force, Groups, Json, MemoryDir, RelationNames
from bridgemem.cli.output import check_new, emit, say, table


def register(app: typer.Typer) -> None:
    app.command()(outlook)


def outlook(
    run: RunFolder,
    horizon: Annotated[int, typer.Option("--horizon", help="Forecast horizon in time steps (default: 7).")] = 7,
    top: Annotated[int, typer.Option(help="Events to show (default: 50).")] = 50,
    surprising: Annotated[
        bool, typer.Option("--surprising", help="Events whose probability rose most against their usual rate.")
    ] = False,
    watch: Annotated[
        Path | None,
        typer.Option("--watch", help="Watch list: rows of an actor or a relation, or of two actors (default: all)."),
    ] = None,
    groups: Groups = None,
    at: Annotated[
        str | None, typer.Option("--at", help="First step that is asked about (default: the first unknown step).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the table: .csv or .parquet.")] = None,
    force: Force = False,
    issue: Issue = None,
    store: Store = None,
    duplicates: Duplicates = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    relation_names: RelationNames = None,
    as_json: Json = False,
) -> None:
    """List the most likely events of the coming steps, or those that are likelier than usual."""
    from bridgemem.forecasting.answer_files import check_format

    if out is not None:
        check_format(out)
        check_new(out, force)
    how: dict[str, Any] = {"data_dir": data_dir, "memory_dir": memory_dir, "relation_names": relation_names}
    asked: dict[str, Any] = {"horizon": horizon, "top": top, "surprising": surprising, "watch": watch, "at": at}
    issued: int | None = None
    if issue is None:
        forecaster, stored, remark = with_groups(opened_run(run, store, duplicates, **how), groups)
        found = forecaster.outlook(**asked)
    else:
        check_issue(issue, store, memory_dir=memory_dir)
        with issuing(run, issue, duplicates, **how) as (ready, keep):
            forecaster, stored, remark = with_groups(ready, groups)
            found = forecaster.outlook(**asked)
            issued = keep(found, forecaster)
    if out is not None:
        found.write(out, replace=force)

    def text() -> None:
        if found:
            table(str(found.query), found[0].header, [one.cells() for one in found])
        else:
            say(f"{found.query}: none.")
        done = f"Wrote {out}." if out else "", f"Issued as forecast {issued}." if issued else ""
        for sentence in filter(None, (found.query.meaning, found.query.remark, remark, *done)):
            say(sentence)

    made = {**asdict(found.query), "candidates": list(map(asdict, found)), "out": out, "issued": issued}
    emit({**made, "stored_events": stored}, as_json, text)
