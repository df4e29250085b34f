"""Commands that show results: report, forecast, explain."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
Method = Annotated[
    str | None,
    typer.Option("--method", help="Which residual: fixed or learned; the learned one where the run has it."),
]


def register(app: typer.Typer) -> None:
    for command in (report, forecast, explain):
        app.command()(command)


def report(
    run: Annotated[Path | None, typer.Argument(help="With --by: a run whose ranks are taken apart.")] = None,
    records: Records = Path("results/records.jsonl"),
    filters: Annotated[str, typer.Option("--filter", help="raw, static, time, or all of them.")] = "all",
    dataset: Annotated[str | None, typer.Option(help="One data set only.")] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Gain by support, uncertainty, repeat, recency or relation.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write Markdown: one .md file, or a folder for all pages and figures."),
    ] = None,
    fill: Annotated[
        list[Path] | None,
        typer.Option("--fill", help="Renew the marked tables of a document; may be given several times."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tables from the records, one filter a table; with --by, where the gain comes from."""
    from bridgemem.errors import NotFoundError, SettingsError
    from bridgemem.evaluation import publish
    from bridgemem.evaluation.filters import FILTERS
    from bridgemem.evaluation.records import read_records

    if filters != "all" and filters not in FILTERS:
        raise SettingsError(f"--filter is all, {', '.join(FILTERS)}, not {filters!r}.")
    if by is not None:
        if filters == "raw":
            raise SettingsError("nothing is chosen under raw, so --by shows --filter static, time or all.")
        found = _parts(run, records, by)
    elif run is not None:
        raise SettingsError("a run is taken apart with --by, as in --by support; its figures are in metrics.json.")
    else:
        found = read_records(records)
    found = [r for r in found if dataset in (None, r.dataset)]
    if not found:
        raise NotFoundError(f"{records} holds no record{f' of {dataset!r}' if dataset else ''}.")
    made = _tables(found, by, filters)
    if run is not None and records.exists():
        # pages and documents show all that is recorded, not only what this run has added
        found = [r for r in read_records(records) if dataset in (None, r.dataset)]
    written = []
    if out is not None and out.suffix == ".md":
        written.append(_write(out, made))
    elif out is not None:
        written += publish.publish(found, out)
    for document in fill or []:
        publish.fill(found, document)
        written.append(document)

    def text() -> None:
        for shown in made:
            table(shown.title, shown.header, shown.rows)
            say()
        for path in written:
            say(f"Wrote {path}.")

    emit([asdict(shown) for shown in made], as_json, text)


def _parts(run: Path | None, records: Path, by: str) -> list[Any]:
    """Parts of the queries: those of a run's ranks, which are added to the records, or those recorded before."""
    from bridgemem.errors import SettingsError
    from bridgemem.evaluation.mechanism import PARTS, parts
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.runs import Run

    if by not in PARTS:
        raise SettingsError(f"--by is one of {', '.join(PARTS)}, not {by!r}.")
    if run is None:
        return read_records(records)
    opened = Run(run)
    split = "valid" if opened.config.test_start < 0 else "test"
    found = parts(opened, by, opened.relations(), split)
    if records.exists():
        write_records(records, found)
    return found


def _tables(records: list[Any], by: str | None, filters: str) -> list[Any]:
    """The tables asked for: of whole splits, or of parts under the filters that choices are made under."""
    from bridgemem.errors import DataError
    from bridgemem.evaluation.analysis import parts_table, relations_table
    from bridgemem.evaluation.filters import FILTERS
    from bridgemem.evaluation.report import filter_table, standard
    from bridgemem.fitting import SELECTION_FILTERS

    if by is None:
        return [filter_table(standard(records), f) for f in (FILTERS if filters == "all" else (filters,))]
    shown = SELECTION_FILTERS if filters == "all" else (filters,)
    if by == "relation":
        names = sorted({r.dataset for r in records if r.method.startswith("ablation:part=relation")})
        if not names:
            raise DataError("no record of parts by relation was found; `bridgemem report RUN --by relation` adds them.")
        return [relations_table(records, f, name) for name in names for f in shown]
    return [parts_table(records, by, f) for f in shown]


def _write(path: Path, made: list[Any]) -> Path:
    from bridgemem.store import whole_file

    with whole_file(path) as aside:
        aside.write_text("\n".join(shown.markdown() for shown in made), encoding="utf-8")
    return path


def forecast(
    run: RunFolder,
    actor: Actor,
    relation: Relation,
    at: At = None,
    top: Annotated[int, typer.Option(help="How many candidates to show.")] = 10,
    inverse: Inverse = False,
    selection: Choice = "time",
    method: Method = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Who comes next: the likeliest answers, with their ranks before and after the residual."""
    from bridgemem.forecast import Forecaster

    forecaster = Forecaster.open(run, selection, data_dir, method)
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
        by = "" if forecaster.learned is None else ", by the learned residual"
        table(f"{asked} at {when}{by}", ["candidate", "rank", "backbone", "score", "backbone score", "residual"], rows)

    emit([asdict(c) for c in found], as_json, text)


def explain(
    run: RunFolder,
    actor: Actor,
    relation: Relation,
    candidate: Annotated[str, typer.Option("--candidate", help="The candidate to explain, by name.")],
    at: At = None,
    inverse: Inverse = False,
    selection: Choice = "time",
    method: Method = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Why a candidate has its score: parts that add up, and the events behind them."""
    from bridgemem.explain import FixedExplanation, LearnedExplanation
    from bridgemem.forecast import Forecaster

    found = Forecaster.open(run, selection, data_dir, method).explain(actor, relation, candidate, at, inverse)

    def text() -> None:
        say(found.sentence())
        if isinstance(found, FixedExplanation):
            _show_fixed(found)
        elif isinstance(found, LearnedExplanation):
            _show_learned(found)

    emit({**asdict(found), "sentence": found.sentence()}, as_json, text)


EVENT_HEADER = ["event", "when", "lag", "share", "part"]


def _event_rows(events: Any) -> list[list[str]]:
    return [
        [f"{e.subject} - {e.relation} -> {e.object}", e.time, str(e.lag), f"{e.share:.1%}", f"{e.part:+.4f}"]
        for e in events
    ]


def _show_fixed(found: Any) -> None:
    say(
        f"  score {found.score:.4f} = {found.base:.4f} + lambda {found.lam:g} x gate {found.gate:.4f} "
        f"x A {found.a:.4f} (A_ct {found.a_ct:.4f}, A_nn {found.a_nn:.4f}, rho {found.rho:.4f})"
    )
    if found.events:
        table("Events behind it", EVENT_HEADER, _event_rows(found.events))


def _show_learned(found: Any) -> None:
    say(
        f"  score {found.score:.4f} = {found.base:.4f} + f / w {found.residual:+.4f} "
        f"(log p0 {found.log_p0:.4f}, uncertainty {found.uncertainty:.4f}, w {found.scale:.4f})"
    )
    if not found.groups:
        return
    rows = [
        ["the backbone's log score", f"{found.base:+.4f}", ""],
        ["the relation, all groups at their mean", f"{found.start:+.4f}", ""],
        *([group, f"{part:+.4f}", f"{found.apart[group]:+.4f}"] for group, part in found.groups.items()),
        ["score", f"{found.score:+.4f}", ""],
    ]
    table("\nParts of the score", ["part", "value", "beside the average candidate"], rows)
    if found.met:
        rows = [["(had the two never met)", "", "", "", f"{found.never_met:+.4f}"], *_event_rows(found.events)]
        if found.earlier is not None:
            e = found.earlier
            rows.append([f"{e.count} earlier ones", f"{e.first} to {e.last}", "", f"{e.share:.1%}", f"{e.part:+.4f}"])
        rows.append(["transitions + pair + recurrence", "", "", "", f"{found.between:+.4f}"])
        table("\nEvents behind it", EVENT_HEADER, rows)
    if found.company:
        rows = [[party.name, f"{party.share:.1%}"] for party in found.company]
        table("\nCompany they share", ["through", "share"], rows)
