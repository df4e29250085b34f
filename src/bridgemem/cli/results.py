"""The command that shows results: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridgemem.cli.options import PUBLISHED, DataDir, Force, Json
from bridgemem.cli.output import check_new, emit, say, table
from bridgemem.cli.tables import check_kind, write_tables


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Evaluated runs or files of records (default: --records)."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", help="File of records; --by adds to it (default: results/records.jsonl if it exists)."
        ),
    ] = None,
    filters: Annotated[str, typer.Option("--filter", help="raw, static, time, or all of them.")] = "all",
    dataset: Annotated[str | None, typer.Option(help="One data set only.")] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Stratum: support, uncertainty, repeat, recency, relation, or calibration."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the tables: .tex (booktabs) or .md; .csv or .json for the figures."),
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print tables of runs or records, one per filter; with --by, gain by stratum."""
    from bridgemem.errors import NotFoundError, SettingsError
    from bridgemem.evaluation.records import read_records
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.studies.probabilities import single_step

    if out is not None:
        check_kind(out)
    for file in () if out is None else (out, out.with_suffix(".svg")) if by == "calibration" else (out,):
        check_new(file, force)
    if filters != "all" and filters not in FILTERS:
        raise SettingsError(f"--filter is all, {', '.join(FILTERS)}, not {filters!r}.")
    if by is not None:
        if filters == "raw":
            raise SettingsError("nothing is chosen under raw; use --by with --filter static, time or all.")
        if runs is not None and len(runs) > 1:
            raise SettingsError("--by takes one run apart; name one.")
        found = _parts(runs[0] if runs else None, records, by, data_dir)
    else:
        found = _records_of(runs) if runs else read_records(records or PUBLISHED)
    found = [r for r in found if dataset in (None, r.dataset)]
    if not found:
        where = ", ".join(map(str, runs)) if runs else records or PUBLISHED
        raise NotFoundError(
            f"{where} holds no record{f' of {dataset!r}' if dataset else ''}; `bridgemem evaluate RUN --records FILE` "
            "writes them."
        )
    found = single_step(found)
    made = _tables(found, by, filters, named=bool(runs))
    used = [record for record in found if filters in ("all", record.filter)]
    written = [] if out is None else _write(out, made, used, by)

    def text() -> None:
        for shown in made:
            table(shown.title, shown.header, shown.rows)
            say()
        for path in written:
            say(f"Wrote {path}.")

    emit({"records": used, "tables": made, "files": written}, as_json, text)


def _parts(run: Path | None, records: Path | None, by: str, data_dir: Path | None) -> list[Any]:
    """Parts of the queries: those of a run's ranks, which are added to the records, or those recorded before."""
    from bridgemem.errors import RunError, SettingsError
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.evaluation.reliability import reliability, reliability_records
    from bridgemem.evaluation.strata import PARTS, parts
    from bridgemem.runs import Run
    from bridgemem.storage.tables import table_file

    if by not in (*PARTS, "calibration"):
        raise SettingsError(f"--by is one of {', '.join(PARTS)}, calibration, not {by!r}.")
    if run is None:
        return read_records(records or PUBLISHED)
    opened = Run(run, data_dir=data_dir)
    split = "valid" if opened.config.test_start < 0 else "test"
    if by != "calibration" and table_file(opened.ranks_path(split)) is None:
        raise RunError(f"{run} has not been evaluated; run `bridgemem evaluate {run}`.")
    if by == "calibration":
        found = reliability_records(opened, reliability(opened, opened.dataset, split))
    else:
        found = parts(opened, by, opened.relations(), split)
    if records is not None or PUBLISHED.exists():
        write_records(records or PUBLISHED, found)
    return found


def _tables(records: list[Any], by: str | None, filters: str, *, named: bool) -> list[Any]:
    """The tables asked for: of whole splits, or of parts under the filters that choices are made under.

    named: whether the records were asked for by their file, and not all that are published; ablations are shown too.
    """
    from bridgemem.errors import DataError
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.residuals.selection import SELECTION_FILTERS
    from bridgemem.studies.ablation_tables import ablation_tables
    from bridgemem.studies.analysis import LEAKAGE, leakage_table, parts_table, relations_table
    from bridgemem.studies.headroom import HEADROOM, by_run, headroom_table
    from bridgemem.studies.probabilities import calibration_table, curve_tables
    from bridgemem.studies.report import filter_table, standard

    if by is None and all(r.method.startswith(LEAKAGE) for r in records):
        return [leakage_table(records)]
    if by is None and all(r.method.startswith(HEADROOM) for r in records):
        return [headroom_table(own) for own in by_run(records).values()]
    if by is None:
        under, whole = FILTERS if filters == "all" else (filters,), standard(records)
        changes = ablation_tables(records, under) if named or not whole else []
        return ([filter_table(whole, f) for f in under] if whole or not changes else []) + changes
    if by == "calibration":
        return [calibration_table(records), *curve_tables(records)]
    shown = SELECTION_FILTERS if filters == "all" else (filters,)
    if by == "relation":
        names = sorted({r.dataset for r in records if r.method.startswith("ablation:part=relation")})
        if not names:
            raise DataError("no record of parts by relation was found; `bridgemem report RUN --by relation` adds them.")
        return [relations_table(records, f, name) for name in names for f in shown]
    return [parts_table(records, by, f) for f in shown]


def _records_of(sources: list[Path]) -> list[Any]:
    """The records of runs that were evaluated, on test where they were, and of files."""
    from bridgemem.evaluation.records import metrics_of, read_records
    from bridgemem.runs import Run

    found = []
    for source in sources:
        if source.is_file():
            found += read_records(source)
            continue
        run = Run(source)
        found += metrics_of(run, "test") or metrics_of(run, "valid")
    return found


def _write(path: Path, made: list[Any], records: list[Any], by: str | None) -> list[Path]:
    """Tables, or the figures of them, with a picture of the curves next to it where they are asked for."""
    from bridgemem.studies.probabilities import draw_curves

    # what was chosen and which weights there are is in the file of records
    figures = [{k: v for k, v in vars(record).items() if k not in ("settings", "lock")} for record in records]
    write_tables(path, made, figures)
    drawn = draw_curves(records, path.with_suffix(".svg")) if by == "calibration" else None
    return [path] if drawn is None else [path, drawn]
