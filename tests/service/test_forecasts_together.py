"""Forecasts that are asked at the same time: scored in one batch, each with its own answer or its own refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.backbones.stored import write_scores
from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.memory.past import Past
from bridgemem.residuals.scoring import Scoring
from bridgemem.service import asking
from bridgemem.service.asking import Service
from bridgemem.service.models import Forecast, ForecastQuery
from bridgemem.service.requests import MisspeltError
from builders import SMALL_READER, dataset_of, random_log
from commands import ACTORS, RELATIONS
from fits import fit_run, loaded
from precision import FLOAT32, close

pytest_plugins = ("small_runs",)


@pytest.fixture
def service(recurrence_run: Path, tmp_path: Path) -> Iterator[Service]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield Service(LiveForecaster(loaded(recurrence_run), store))


def query(subject: str, relation: str = "visit", **more: Any) -> ForecastQuery:
    return ForecastQuery(subject=subject, relation=relation, **more)


def same(found: Forecast | Exception, alone: Forecast) -> None:
    assert isinstance(found, Forecast)
    numbers = ("score", "backbone_score", "residual", "p_given_event")
    for one, other in zip(found.candidates, alone.candidates, strict=True):
        assert (one.name, one.rank, one.backbone_rank) == (other.name, other.rank, other.backbone_rank)
        assert all(close([getattr(one, n) or 0.0], [getattr(other, n) or 0.0], FLOAT32) for n in numbers)
    assert found.model_dump(exclude={"candidates"}) == alone.model_dump(exclude={"candidates"})


def test_queries_together_are_answered_as_alone_in_one_batch(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.live.add([("Arvan", "sing to", "Nova", "2024-02-10")], "wire", "1")
    asked = [query(actor, relation, top=3) for actor in ACTORS for relation in RELATIONS]
    asked += [query("Nova", "sing to"), query("Arvan", at="2024-01-20"), query("Arvan", horizon=3)]
    asked += [ForecastQuery(object="Arvan", relation="visit", top=99)]
    alone, sizes, of = [service.forecast(one) for one in asked], list[int](), Scoring.of

    def counted(self: Scoring, queries: Any) -> Any:
        sizes.append(len(queries))
        return of(self, queries)

    monkeypatch.setattr(Scoring, "of", counted)
    together = service._together(asked)
    # one for each number of answers, horizon, and kind of relation: known to the fit, or later
    assert sorted(sizes) == [1, 1, 1, 1, len(ACTORS) * len(RELATIONS)]
    for one, other in zip(together, alone, strict=True):
        same(one, other)


def test_a_query_that_cannot_be_answered_refuses_no_other(service: Service) -> None:
    asked = [query("Arvan"), query("Arvam"), query("Arvan", object="Kel"), query("Belmor"), query("Arvan", horizon=999)]
    first, misspelt, both_sides, last, too_far = service._together(asked)
    same(first, service.forecast(asked[0]))
    same(last, service.forecast(asked[3]))
    # what may have been meant is looked for by the caller, while others are answered
    assert isinstance(misspelt, MisspeltError)
    with pytest.raises(NotFoundError, match="did you mean 'Arvan'"):
        service.forecast(asked[1])
    assert isinstance(both_sides, SettingsError)
    assert isinstance(too_far, Exception)


def test_scores_that_are_stored_for_one_query_are_no_matter_of_another(tmp_path: Path) -> None:
    dataset = dataset_of(random_log(4, n=300))
    recurrence, past = Recurrence.fit(dataset), Past(dataset.events)
    write_scores(tmp_path / "scores", dataset, lambda queries: recurrence.score(queries, past))
    run, _ = fit_run(dataset, tmp_path / "scores", tmp_path / "run", SMALL_READER)
    names, last = dataset.events, len(dataset.events) - 1
    sides = (names.entities.names[names.subject[last]], names.relations.names[names.relation[last]])
    with EventStore(tmp_path / "events.duckdb") as store:
        service = Service(LiveForecaster(loaded(run), store))
        held = query(*sides, at=names.clock.label(int(names.step[last])))
        found, lacking, again = service._together([held, query(*sides), held])
        same(found, service.forecast(held))
        same(again, service.forecast(held))
        assert "no scores for" in str(lacking)


def test_a_batch_is_no_larger_than_memory_allows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, of = list[int](), Scoring.of

    def counted(self: Scoring, queries: Any) -> Any:
        sizes.append(len(queries))
        return of(self, queries)

    monkeypatch.setattr(Scoring, "of", counted)
    monkeypatch.setattr(asking, "batch_size", lambda *_: 2)
    assert len(service._together([query(actor) for actor in ACTORS[:5]])) == 5
    assert sizes == [2, 2, 1]
