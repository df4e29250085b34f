"""Commands that ask a run: forecast, explain, calibrate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.answering import answer_one
from bridgemem.cli.ledger import Issue, check_issue, issuing
from bridgemem.cli.options import (
    DataDir,
    Device,
    Duplicates,
    Force,
    Groups,
    Json,
    MaxAhead,
    MemoryDir,
    Quiet,
    RelationNames,
    Residual,
)
from bridgemem.cli.output import check_new, counted, emit, say, table, warn
from bridgemem.cli.rejects import RejectsFile, rejects_to
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.events.queries import Queries
    from bridgemem.forecasting.explanations import Explanation
    from bridgemem.forecasting.predictor import Predictor

RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
Subject = Annotated[str | None, typer.Option("--subject", help="Subject, by name; leave out to ask for it.")]
Relation = Annotated[str | None, typer.Option("--relation", help="Relation, by name; leave out to ask for it.")]
Object = Annotated[str | None, typer.Option("--object", help="Object, by name; leave out to ask for it.")]
At = Annotated[str | None, typer.Option("--at", help="Time of the event (default: the first unknown step).")]
Store = Annotated[
    str | None,
    typer.Option("--store", help="Event store, or none (default: RUN.events.duckdb)."),
]


def register(app: typer.Typer) -> None:
    for command in (forecast, explain, calibrate):
        app.command()(command)


def forecast(
    run: RunFolder,
    subject: Subject = None,
    relation: Relation = None,
    object: Object = None,
    at: At = None,
    top: Annotated[int, typer.Option(help="Answers to show (default: 10).")] = 10,
    horizon: Annotated[
        int | None, typer.Option("--horizon", help="Forecast horizon in time steps (default: 1).")
    ] = None,
    assume: Annotated[
        Path | None, typer.Option("--assume", help="Table of events to assume; they are not stored.")
    ] = None,
    max_ahead: MaxAhead = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also print what happened before, one sentence per answer.")
    ] = False,
    groups: Groups = None,
    issue: Issue = None,
    queries: Annotated[
        str | None,
        typer.Option("--queries", help="Table of queries: CSV, Parquet or a DuckDB query."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of the answers to --queries: .csv or .parquet.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes for --queries (default: 1).")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue interrupted --queries.")] = False,
    rejects: RejectsFile = None,
    force: Force = False,
    residual: Residual = None,
    store: Store = None,
    duplicates: Duplicates = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    relation_names: RelationNames = None,
    as_json: Json = False,
) -> None:
    """Forecast who, what, whether and when: what is left out of subject, relation and object is asked.

    Subject or object with a relation: who. Both without a relation: what. One of them alone: its partners. All
    three: whether and when.
    """
    from bridgemem.errors import SettingsError

    opened = partial(
        opened_run,
        run,
        store,
        duplicates,
        residual=residual,
        data_dir=data_dir,
        memory_dir=memory_dir,
        relation_names=relation_names,
    )
    if queries is not None:
        if any(value is not None for value in (subject, relation, object, at)):
            raise SettingsError("--queries holds subject, relation, object and time; leave these options out.")
        alone: dict[str, Any] = {"--assume": assume, "--why": why or None, "--issue": issue, "--groups": groups}
        alone |= {"--max-ahead": max_ahead}
        if name := next((name for name, given in alone.items() if given is not None), None):
            raise SettingsError(f"{name} is for a single forecast; leave it or --queries out.")
        if out is None:
            raise SettingsError("--queries needs --out, a .csv or .parquet file for the answers.")
        if resume and force:
            raise SettingsError("--resume continues and --force starts over; choose one.")
        _check_apart(out, queries)
        check_new(out, force)
        how = {"top": top, "horizon": horizon, "workers": workers, "resume": resume, "replace": force}
        with rejects_to(rejects) as write:
            _forecast_all(opened, run, queries, out, as_json, how)
            write(())
        return
    if workers > 1 or resume:
        raise SettingsError("--workers and --resume are for --queries; a single forecast is printed.")
    if out is not None or rejects is not None:
        name = "--out is for the answers to" if out is not None else "--rejects is for rows of"
        raise SettingsError(f"{name} --queries; a single forecast is printed.")
    if max_ahead is not None and assume is None:
        raise SettingsError("--max-ahead is for --assume; leave it out.")
    if subject is None and object is None:
        raise SettingsError("ask with --subject or --object, or with --queries and a CSV file of queries.")
    from bridgemem.forecasting.asked import Asked

    asked = Asked(subject, relation, object, at, horizon, top)
    if why and groups is not None:
        raise SettingsError("--why is for single names; leave it or --groups out.")
    if issue is None:
        answer_one(with_groups(opened(), groups), asked, assume, as_json, why=why, max_ahead=max_ahead)
        return
    check_issue(issue, store, assume, memory_dir)
    own = {"residual": residual, "data_dir": data_dir, "relation_names": relation_names}
    with issuing(run, issue, duplicates, **own) as (ready, keep):
        answer_one(with_groups(ready, groups), asked, None, as_json, why=why, issue=keep)


def opened_run(run: Path, store: str | None, duplicates: str | None, **how: Any) -> tuple[Predictor, int, str]:
    """The forecaster of a run over its own events and the stored ones, how many these are, and a sentence about them.

    The stored events are read once, as the service reads them, and the file is let go. how: as in Forecaster.load.
    """
    from bridgemem.cli.serve import default_store
    from bridgemem.errors import BridgeMemError, DataError
    from bridgemem.forecaster import Forecaster

    model = Forecaster.load(run, **how)
    place = default_store(run) if store is None else Path(store)
    if store == "none" or (store is None and not place.is_file()):
        return model.predictor, 0, ""
    from bridgemem.live.eventstore import EventStore, StoreInUseError
    from bridgemem.live.forecasting import LiveForecaster

    try:
        with EventStore(place, duplicates=duplicates, read_only=True) as events:
            live = LiveForecaster(model, events)
    except BridgeMemError as problem:
        if store is not None:
            raise
        # nobody named the store, and without it the run can be asked as it was fitted, or says why it cannot
        plain = model.predictor
        if not isinstance(problem, StoreInUseError | DataError):
            raise type(problem)(f"{str(problem).rstrip('.')}; --store none asks without the stored events.") from None
        warn(f"bridgemem: {problem} The events stored there are left out.")
        return plain, 0, ""
    count = f"{live.stored:,} stored event{' is' if live.stored == 1 else 's are'}"
    return live.view.predictor, live.stored, f"{count} read after the run's own, from {place.name}."


def with_groups(opened: tuple[Predictor, int, str], groups: Path | None) -> tuple[Predictor, int, str]:
    """What was opened, with groups where a file of them is named."""
    predictor, stored, remark = opened
    return (predictor if groups is None else predictor.with_groups(groups)), stored, remark


def _is_file(queries: str) -> bool:
    """Whether queries are named by a file, and not by a DuckDB query, which may be longer than any name."""
    try:
        return Path(queries).exists()
    except OSError:
        return False


def _check_apart(out: Path, queries: str) -> None:
    """Refuse to write answers over their queries."""
    from bridgemem.errors import SettingsError

    if out.exists() and _is_file(queries) and out.samefile(queries):
        raise SettingsError(f"--out is the file of queries itself, {queries}; choose another name.")


def _forecast_all(
    opened: Callable[[], tuple[Predictor, int, str]],
    run: Path,
    queries: str,
    out: Path,
    as_json: bool,
    how: dict[str, Any],
) -> None:
    """Answer a table of queries and write the answers to a file, or neither."""
    from bridgemem.forecasting.answer_files import check_format
    from bridgemem.forecasting.query_sources import query_source
    from bridgemem.forecasting.query_tables import answer_table, check_parts

    check_format(out)
    parts = check_parts(out, how["resume"], how["replace"])
    source = query_source(queries)
    told: list[tuple[Predictor, int, str]] = []
    opener = _Opener(opened, told)
    try:
        with terminal_progress(quiet=as_json) as progress:
            made = answer_table(opener, source, out, folder=run, progress=progress, **how)
    except KeyboardInterrupt:
        if not parts.exists():
            raise
        warn(f"bridgemem: interrupted; the answers so far are in {parts}; the same command with --resume continues.")
        raise typer.Exit(1) from None
    forecaster, stored, remark = told[0]
    meaning = forecaster.meaning(how["horizon"])

    def text() -> None:
        say(f"Answered {counted(made.queries, 'query')} in {counted(made.rows, 'row')}; see {out}.")
        if made.resumed:
            say(f"{made.resumed:,} of {counted(made.parts, 'part')} had been answered before.")
        say(meaning)
        if remark:
            say(remark)

    result = {"queries": made.queries, "rows": made.rows, "out": out, "meaning": meaning, "stored_events": stored}
    emit({**result, "parts": made.parts, "resumed": made.resumed}, as_json, text)


class _Opener:
    """Opens the model, here and in workers; told: what came with it, here alone."""

    def __init__(
        self, opened: Callable[[], tuple[Predictor, int, str]], told: list[tuple[Predictor, int, str]]
    ) -> None:
        self.opened, self.told = opened, told

    def __call__(self) -> Predictor:
        self.told.append(self.opened())
        return self.told[-1][0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Opener, (self.opened, [])


def explain(
    run: RunFolder,
    subject: Annotated[list[str], typer.Option("--subject", help="Subject, by name; repeatable if the candidate.")],
    relation: Annotated[str, typer.Option("--relation", help="Relation, by name.")],
    object: Annotated[list[str], typer.Option("--object", help="Object, by name; repeatable if the candidate.")],
    candidate: Annotated[str, typer.Option("--candidate", help="Side to explain: object or subject.")] = "object",
    at: At = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also the exact parts of the score: log scores, gates, Shapley values.")
    ] = False,
    card: Annotated[
        Path | None, typer.Option("--card", help="Also write a page with a picture: an .html or .md file.")
    ] = None,
    force: Force = False,
    residual: Residual = None,
    store: Store = None,
    duplicates: Duplicates = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    relation_names: RelationNames = None,
    as_json: Json = False,
) -> None:
    """Explain the rank of a candidate: what happened before, in plain sentences; with --parts in figures."""
    from bridgemem.forecasting.explanation_card import card_files, check_format

    asked = _asked_of(subject, object, candidate)
    chosen = object if candidate == "object" else subject
    if card is not None:
        for file in card_files(check_format(card), len(chosen)):
            check_new(file, force)
    forecaster, stored, remark = opened_run(
        run,
        store,
        duplicates,
        residual=residual,
        data_dir=data_dir,
        memory_dir=memory_dir,
        relation_names=relation_names,
    )
    # a candidate that is named twice is explained once
    names = {forecaster.events.entity_id(name): name for name in chosen}
    sides = [(asked, name) if candidate == "object" else (name, asked) for name in names.values()]
    made = (forecaster.explain(s, relation, o, at=at, candidate=candidate) for s, o in sides)
    explained = dict(zip(names, made, strict=True))
    found = list(explained.values())
    written = []
    if card is not None:
        known = {"object" if candidate == "subject" else "subject": asked}
        written = _write_card(forecaster, forecaster.query(relation=relation, at=at, **known), explained, card)

    def text() -> None:
        for one in found:
            say(str(one))
            if parts:
                _show_parts(one)
        for path in written:
            say(f"Wrote {path}.")
        if remark:
            say(remark)

    result = {"explanations": [one.as_dict() for one in found], "files": written, "stored_events": stored}
    emit(result, as_json, text)


def _asked_of(subject: list[str], object: list[str], candidate: str) -> str:
    """The side whose answer is explained, of which there is one."""
    from bridgemem.errors import SettingsError
    from bridgemem.forecasting.predictor import SIDES

    if candidate not in SIDES:
        raise SettingsError(f"--candidate is {' or '.join(SIDES)}, not {candidate!r}.")
    side = subject if candidate == "object" else object
    if len(side) > 1:
        raise SettingsError(f"--candidate {candidate} explains several {candidate}s of one other side; give that once.")
    return side[0]


def _write_card(forecaster: Predictor, query: Queries, found: dict[int, Explanation], path: Path) -> list[Path]:
    """A card of the candidates of one query, by their ids."""
    from bridgemem.forecasting.explanation_card import Shown, pair_events, write_card

    events, actor, step = forecaster.events, int(query.actor), int(query.step)
    chance = {c.name: c.p_given_event for c in forecaster.answers(query, events.n_entities)[0]}
    shown = [
        Shown(e, step, pair_events(forecaster.past, actor, candidate, step), chance[e.candidate])
        for candidate, e in found.items()
    ]
    return write_card(path, shown, events)


def calibrate(
    run: RunFolder,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Calibrate the probabilities of a run on validation, for a run that was fitted without it."""
    from bridgemem.evaluation.reliability import calibrate as calibrate_run
    from bridgemem.evaluation.tables import SHORT
    from bridgemem.runs import Run
    from bridgemem.training.devices import check_device

    opened = Run(run, data_dir=data_dir)
    with terminal_progress(quiet=quiet) as progress:
        found = calibrate_run(opened, opened.dataset, check_device(device), progress)

    def text() -> None:
        header = ["method", "temperature", "floor", "-log p of the scores", "temperature alone", "both"]
        rows = [
            [
                method.name
                if method.name == "learned"
                else f"{method.name}, selected by {SHORT[method.selected_by or '']}",
                f"{c.temperature:.3f}",
                f"{c.floor:.4f}",
                *(f"{value:.4f}" for value in (c.raw_nll, c.plain_nll, c.nll)),
            ]
            for method, c in found.items()
        ]
        asked = counted(next(iter(found.values())).queries, "query")
        table(f"Calibrated on {asked} of validation", header, rows)

    made = [{"method": m.name, "selected_by": m.selected_by, "calibration": c} for m, c in found.items()]
    emit({"calibrations": made}, as_json, text)


EVENT_HEADER = ["event", "when", "lag", "share", "part"]


def _event_rows(events: Any) -> list[list[str]]:
    return [[str(e), e.time, str(e.lag), f"{e.share:.1%}", f"{e.part:+.4f}"] for e in events]


def _show_parts(found: Explanation) -> None:
    """The exact parts of the score."""
    from bridgemem.forecasting.explanations import LearnedExplanation

    say(f"\n{found.sentence()}")
    if isinstance(found, LearnedExplanation):
        _show_learned(found)
    else:
        _show_bridgemem(found)
    _show_attended(found)
    say()


def _show_bridgemem(found: Any) -> None:
    say(
        f"  score {found.score:.4f} = {found.base:.4f} + lambda {found.lam:g} x gate {found.gate:.4f} "
        f"x A {found.a:.4f} (A_ct {found.a_ct:.4f}, A_nn {found.a_nn:.4f}, rho {found.rho:.4f})"
    )
    if found.events:
        table("Events it comes from", EVENT_HEADER, _event_rows(found.events))


def _show_attended(found: Any) -> None:
    """The events that a backbone with attention looked at most."""
    if not found.attended:
        return
    rows = [
        [f"{e.subject} - {e.relation} -> {e.object}", e.time, str(e.lag), f"{e.attention:.1%}", f"{e.added:+.4f}"]
        for e in found.attended
    ]
    heading = [*EVENT_HEADER[:3], "attention", "added to its partner"]
    table(f"\nEvents of {found.actor} that the backbone looked at most", heading, rows)


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
    table("\nParts of the score", ["part", "value", "relative to the average candidate"], rows)
    if found.seen:
        rows = [["(had the two never interacted)", "", "", "", f"{found.unseen_pair:+.4f}"], *_event_rows(found.events)]
        if found.earlier is not None:
            e = found.earlier
            rows.append(
                [counted(e.count, "earlier event"), f"{e.first} to {e.last}", "", f"{e.share:.1%}", f"{e.part:+.4f}"]
            )
        rows.append(["transitions + pair + recurrence", "", "", "", f"{found.between:+.4f}"])
        table("\nEvents it comes from", EVENT_HEADER, rows)
    if found.common_neighbours:
        rows = [[party.name, f"{party.share:.1%}"] for party in found.common_neighbours]
        table("\nCommon neighbours", ["through", "share"], rows)
