"""Commands that show results: report, forecast, explain."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.options import DataDir, Json, Records
from bridgemem.cli.output import emit, say, table

RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
Actor = Annotated[str, typer.Option("--actor", help="Who acts, by name.")]
Relation = Annotated[str, typer.Option("--relation", help="The relation asked for, by name.")]
At = Annotated[str | None, typer.Option("--at", help="The time asked for; the first unknown step when left out.")]
Inverse = Annotated[
    bool, typer.Option("--inverse", help="Ask for (?, relation, actor) instead of (actor, relation, ?).")
]
Choice = Annotated[str, typer.Option("--selection", help="Whose choice to use: time or static.")]


def register(app: typer.Typer) -> None:
    for command in (report, forecast, explain):
        app.command()(command)


def report(
    records: Records = Path("results/records.jsonl"),
    filters: Annotated[str, typer.Option("--filter", help="raw, static, time, or all of them.")] = "all",
    dataset: Annotated[str | None, typer.Option(help="One data set only.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the tables as Markdown.")] = None,
    as_json: Json = False,
) -> None:
    """Tables from the records, one filter a table."""
    from bridgemem.errors import NotFoundError, SettingsError
    from bridgemem.evaluation.filters import FILTERS
    from bridgemem.evaluation.records import read_records
    from bridgemem.evaluation.report import main_table
    from bridgemem.store import whole_file

    if filters != "all" and filters not in FILTERS:
        raise SettingsError(f"--filter is all, {', '.join(FILTERS)}, not {filters!r}.")
    found = [r for r in read_records(records) if dataset in (None, r.dataset)]
    if not found:
        raise NotFoundError(f"{records} holds no record of {dataset!r}.")
    tables = [main_table(found, f) for f in (FILTERS if filters == "all" else (filters,))]
    if out is not None:
        with whole_file(out) as aside:
            aside.write_text("\n".join(made.markdown() for made in tables), encoding="utf-8")

    def text() -> None:
        for made in tables:
            table(made.title, made.header, made.rows)
            say()

    emit([asdict(made) for made in tables], as_json, text)


def forecast(
    run: RunFolder,
    actor: Actor,
    relation: Relation,
    at: At = None,
    top: Annotated[int, typer.Option(help="How many candidates to show.")] = 10,
    inverse: Inverse = False,
    selection: Choice = "time",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Who comes next: the likeliest answers, with their ranks before and after the residual."""
    from bridgemem.forecast import Forecaster

    forecaster = Forecaster.open(run, selection, data_dir)
    found = forecaster.forecast(actor, relation, at, top, inverse)

    def text() -> None:
        rows = [
            [
                c.name,
                str(c.rank),
                str(c.backbone_rank),
                f"{c.score:.3f}",
                f"{c.backbone_score:.3f}",
                f"{c.residual:+.3f}",
            ]
            for c in found
        ]
        asked = f"(?, {relation}, {actor})" if inverse else f"({actor}, {relation}, ?)"
        when = forecaster.events.clock.label(int(forecaster.query(actor, relation, at, inverse).step))
        table(f"{asked} at {when}", ["candidate", "rank", "backbone", "score", "backbone score", "residual"], rows)

    emit([asdict(c) for c in found], as_json, text)


def explain(
    run: RunFolder,
    actor: Actor,
    relation: Relation,
    candidate: Annotated[str, typer.Option("--candidate", help="The candidate to explain, by name.")],
    at: At = None,
    inverse: Inverse = False,
    selection: Choice = "time",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Why a candidate has its score: parts that add up, and the events behind them."""
    from bridgemem.forecast import Forecaster

    found = Forecaster.open(run, selection, data_dir).explain(actor, relation, candidate, at, inverse)

    def text() -> None:
        say(found.sentence())
        say(
            f"  score {found.score:.4f} = {found.base:.4f} + lambda {found.lam:g} x gate {found.gate:.4f} "
            f"x A {found.a:.4f} (A_ct {found.a_ct:.4f}, A_nn {found.a_nn:.4f}, rho {found.rho:.4f})"
        )
        rows = [
            [f"{e.subject} - {e.relation} -> {e.object}", e.time, str(e.lag), f"{e.share:.1%}", f"{e.part:+.4f}"]
            for e in found.events
        ]
        if rows:
            table("Events behind it", ["event", "when", "lag", "share", "part"], rows)

    emit({**asdict(found), "sentence": found.sentence()}, as_json, text)
