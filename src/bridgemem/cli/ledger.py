"""`bridgemem ledger`: the forecasts that were issued to a store, and what they were worth."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.live import StoreFile
from bridgemem.cli.options import Json
from bridgemem.cli.output import counted, emit, say, table
from bridgemem.cli.running import store_to_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridgemem.forecasting.predictor import Predictor
    from bridgemem.live.ledger import Issued

app = typer.Typer(help="List and score the forecasts issued to a store.", no_args_is_help=True)
Issue = Annotated[Path | None, typer.Option("--issue", help="Event store to read, whose ledger records this forecast.")]


@app.command("list")
def list_(
    store: StoreFile,
    last: Annotated[int, typer.Option("--last", min=1, help="Forecasts to list, the latest ones (default: 50).")] = 50,
    forecast: Annotated[
        int | None, typer.Option("--forecast", help="One forecast, with all its probabilities.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List issued forecasts and their outcomes."""
    from bridgemem.live.ledger import Ledger

    with store_to_read(store) as opened:
        ledger = Ledger(opened)
        ledger.resolve()
        found = ledger.forecasts(last=last, forecast=forecast)
        history = {c.id: ledger.history(c.id) for f in found for c in f.claims} if forecast is not None else {}

    def text() -> None:
        if forecast is not None:
            _show_one(found[0], history)
        elif found:
            header = ["forecast", "issued", "query", "from", "until", "probabilities"]
            header += ["open", "void", "came true", "partly", "model"]
            table(f"Issued to {store.name}", header, [_summary(one) for one in found])
        else:
            say(f"No forecast was issued to {store.name}; `bridgemem forecast RUN ... --issue {store}` issues one.")

    made = [{**asdict(one), "claims": [_claim(c, history.get(c.id)) for c in one.claims]} for one in found]
    emit({"store": store, "forecasts": made}, as_json, text)


def _claim(claim: Any, history: Any) -> dict[str, Any]:
    flat = asdict(claim)
    return {**flat.pop("claim"), **flat, "probability": claim.probability, "history": list(map(asdict, history or ()))}


def _summary(one: Issued) -> list[str]:
    states = [claim.state for claim in one.claims]
    counts = [str(len(states)), *(str(states.count(state)) for state in ("open", "void", "yes", "partly"))]
    return [str(one.id), one.issued[:19], f"{one.query} {one}", one.time, one.until, *counts, one.version]


def _outcome(measure: str, resolution: Any) -> str:
    """What a resolution found: of a share how many of the events, of the others whether it happened."""
    if not resolution.total:
        return "void"
    if measure == "share":
        return f"{resolution.hits:,} of {counted(resolution.total, 'event')}"
    return "yes" if resolution.hits else "no"


def _show_one(one: Issued, history: dict[int, Any]) -> None:
    from bridgemem.showing import percent

    rows = []
    for c in one.claims:
        event = f"{c.claim.subject or '?'} - {c.claim.relation or 'anything'} -> {c.claim.object or '?'}"
        changes = "; ".join(f"{_outcome(c.claim.measure, h)} at {h.when[:19]}" for h in history[c.id])
        rules = [percent(p) for p in (c.claim.p, c.claim.base_rate, c.claim.persistence)]
        rows.append([event, c.probability, *rules, c.state, changes])
    title = f"Forecast {one.id}, {one.query} {one}, from {one.time} to {one.until}, by {one.version}"
    header = ["event", "probability", "stated", "base rate", "persistence", "came true", "resolved"]
    table(title, header, rows)
    say(f"Issued at {one.issued} from the events before {one.as_of}.")


@app.command()
def score(
    store: StoreFile,
    by: Annotated[str, typer.Option("--by", help="all, month, relation or horizon (default: all).")] = "all",
    as_json: Json = False,
) -> None:
    """Score issued forecasts next to naive rules: Brier score, log score, calibration."""
    from bridgemem.live.ledger import Ledger

    with store_to_read(store) as opened:
        found = Ledger(opened).score(by=by)

    def text() -> None:
        if found.scores:
            table(f"Track record of {store.name}", found.header, found.rows())
        say(f"{found.sentence()}.")

    emit({"store": store, **asdict(found)}, as_json, text)


# ---- issuing -------------------------------------------------------------------------------------------------------


def check_issue(issue: Path, store: str | None, assume: Path | None = None, memory_dir: Path | None = None) -> None:
    """Refuse what an issued forecast must not rest on."""
    from bridgemem.errors import SettingsError

    if assume is not None:
        raise SettingsError("a forecast on assumed events cannot be issued; leave --assume or --issue out.")
    if memory_dir is not None:
        raise SettingsError("a forecast is issued from events in memory; leave --memory-dir or --issue out.")
    if store is not None and Path(store) != issue:
        raise SettingsError(f"a forecast is issued from the events of {issue}; leave --store out.")


@contextmanager
def issuing(
    run: Path, store: Path, duplicates: str | None, **how: Any
) -> Iterator[tuple[Any, Callable[[Any, Any], int]]]:
    """The run over a store, as `opened_run` gives it, and what issues an answer of it to that store."""
    from bridgemem.forecaster import Forecaster
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.forecasting import LiveForecaster
    from bridgemem.live.ledger import Ledger

    model = Forecaster.load(run, **how)
    with EventStore(store, duplicates=duplicates) as events:
        live = LiveForecaster(model, events)
        view = live.view

        def issue(found: Any, asked: Predictor) -> int:
            return Ledger(events).issue(found, predictor=asked, version=view.version)

        remark = f"{counted(live.stored, 'stored event')} read after the run's own, from {store.name}."
        yield (view.predictor, live.stored, remark), issue
