"""An explanation adds up exactly, names the very events that were read, and agrees with the forecast."""

from __future__ import annotations

import math

import pytest

from bridgemem.backbones.recurrence import Popularity, Recurrence
from bridgemem.config import Settings
from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.dates import parse_date
from bridgemem.events.log import Clock, EventLog
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.explanations import BridgeMemExplanation, LearnedExplanation
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.residuals.learning import HeldOut
from bridgemem.residuals.scoring import Choice
from builders import SMALL_READER, random_log, random_transitions, rows_of, side, triple
from fits import fit

CHOICES = [
    Choice(lam=1.0, gate="uncertain", tau=100.0),
    Choice(lam=4.0, gate="none", tau=30.0),
    Choice(lam=2.0, gate="none", tau=0.0),
    Choice(lam=2.0, gate="none", tau=math.inf),
    Choice(lam=2.0, gate="none", tau=30.0, shrinkage=False),
]
SHORT = Settings(width=8, hidden=8, k=3, window=5)


@pytest.fixture(scope="module")
def events() -> EventLog:
    return random_log(4, n=300)


def forecaster(events: EventLog, choice: Choice, settings: Settings = SMALL_READER) -> Predictor:
    dataset = Dataset.chronological("small", events)
    return Predictor(Past(events), Recurrence.fit(dataset), random_transitions(events, settings), choice)


def everything(of: Predictor, step: int) -> list[BridgeMemExplanation]:
    """Every candidate of a few queries at one step, in both directions."""
    entities = range(of.events.n_entities)
    found = [
        of.explain(at=step, **triple(actor, relation, candidate, inverse))
        for actor, relation in ((0, 1), (1, 0), (5, 2))
        for inverse in (False, True)
        for candidate in entities
    ]
    return [e for e in found if isinstance(e, BridgeMemExplanation)]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_parts_add_up(events: EventLog, choice: Choice) -> None:
    found = everything(forecaster(events, choice), 20)
    with_past = [e for e in found if e.events]
    assert len(with_past) > 20
    assert any(not e.events for e in found)
    for e in found:
        assert e.score == e.base + e.residual
        assert sum(event.part for event in e.events) == pytest.approx(e.residual, abs=1e-9)
        assert e.residual == pytest.approx(e.lam * e.gate * e.a, abs=1e-12)
    for e in with_past:
        assert sum(event.share for event in e.events) == pytest.approx(1, abs=1e-12)
        assert all(event.share >= 0 for event in e.events)
        mixed = (1 - e.rho) * math.exp(e.a_ct) + e.rho * math.exp(e.a_nn)
        assert e.a == pytest.approx(math.log(mixed), abs=1e-9)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_many_events_that_say_nothing_make_nothing_likelier(pooling: str) -> None:
    settings = Settings(width=8, hidden=8, pooling=pooling)
    log = random_log(4, n=3000)
    counts = Transitions.fit(log, settings, seed=42, epochs=1)[0]
    of = Predictor(Past(log), Popularity.fit(Dataset.chronological("small", log)), counts, Choice(1.0, "none", 30.0))
    full = [e for e in everything(of, log.end) if len(e.events) == settings.k]
    assert len(full) > 20
    assert 0.8 < sum(e.likelier for e in full) / len(full) < 1.25
    ratio = f"{math.exp(full[0].a):.3g} times"
    words = f"each of their {settings.k} remembered events add up to {ratio} the average"
    assert (words if pooling == "sum" else f"{ratio} as likely as on average") in full[0].sentence()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("inverse", [False, True])
def test_a_forecast_and_its_explanations_agree(events: EventLog, choice: Choice, inverse: bool) -> None:
    of = forecaster(events, choice)
    ranked = of.forecast(relation=1, at=20, top=events.n_entities, **side(0, inverse))
    assert len(ranked) == events.n_entities
    assert any(candidate.residual for candidate in ranked) or choice.gate == "uncertain"
    for candidate in ranked:
        why = of.explain(at=20, **triple(0, 1, candidate.name, inverse))
        assert why.base == candidate.backbone_score
        assert why.residual == pytest.approx(candidate.residual, abs=1e-12)
        assert why.score == pytest.approx(candidate.score, abs=1e-12)


@pytest.mark.parametrize("settings", [SMALL_READER, SHORT], ids=["k 8, window 65", "k 3, window 5"])
@pytest.mark.parametrize("step", [1, 9, 20, 31])
def test_the_events_are_the_latest_ones_before_the_step(events: EventLog, settings: Settings, step: int) -> None:
    of = forecaster(events, CHOICES[0], settings)
    names, relations = events.entities.names, events.relations.names
    for e in everything(of, step):
        pair = (e.actor, e.candidate)
        between = [
            (names[s], relations[r], names[o], t)
            for s, r, o, t in rows_of(events)
            if t < step and step - t <= settings.window and (names[s], names[o]) in (pair, pair[::-1])
        ]
        if e.actor == e.candidate:
            # a self loop is seen from both of its sides
            between = [event for event in between for _ in range(2)]
        expected = between[::-1][: settings.k]
        assert [(x.subject, x.relation, x.object, int(x.time)) for x in e.events] == expected
        assert all(x.lag == step - int(x.time) > 0 for x in e.events)
        if e.actor != e.candidate:
            assert all(x.direction == (x.subject != e.actor) for x in e.events)


def test_a_candidate_without_history_keeps_the_score_of_the_backbone(events: EventLog) -> None:
    of = forecaster(events, CHOICES[1])
    base = {c.name: c.backbone_score for c in of.forecast(0, 1, at=20, top=events.n_entities)}
    unseen_candidates = [e for e in everything(of, 20) if not e.events]
    assert unseen_candidates
    for e in unseen_candidates:
        assert (e.residual, e.a, e.score) == (0.0, 0.0, e.base)
        assert "no remembered event" in e.sentence()
    for candidate in of.forecast(0, 1, at=20, top=events.n_entities):
        if not of.explain(0, 1, candidate.name, at=20).events:
            assert candidate.score == candidate.backbone_score == base[candidate.name]


def test_before_the_first_event_nothing_is_remembered(events: EventLog) -> None:
    of = forecaster(events, CHOICES[1])
    assert all(not e.events and e.residual == 0 for e in everything(of, 0))


def test_what_lies_outside_the_window_is_forgotten(events: EventLog) -> None:
    of = forecaster(events, CHOICES[1], SHORT)
    assert all(not e.events for e in everything(of, events.end + SHORT.window))
    assert any(e.events for e in everything(of, events.end))


def test_what_happens_at_the_step_itself_changes_no_explanation(events: EventLog) -> None:
    later = events.rows(0, len(events))
    now = 20
    past = later.prefix(now)
    transitions = random_transitions(past)
    dataset = Dataset.chronological("small", past)
    backbone = Recurrence.fit(dataset)
    whole = Predictor(Past(later), backbone, transitions, CHOICES[0])
    cut = Predictor(Past(past), backbone, transitions, CHOICES[0])
    assert everything(whole, now) == everything(cut, now)


def test_the_sentence_names_the_main_event(events: EventLog) -> None:
    of = forecaster(events, CHOICES[1])
    why = max(everything(of, 20), key=lambda e: e.residual)
    main = max(why.events, key=lambda event: event.share)
    sentence = why.sentence()
    assert why.candidate in sentence
    assert f"{main.subject} did '{main.relation}' to {main.object}" in sentence
    assert ("1 step before" in sentence) == (main.lag == 1)
    asked = f"(?, {why.relation}, {why.actor})" if why.inverse else f"({why.actor}, {why.relation}, ?)"
    assert asked in sentence


def test_a_residual_that_validation_switched_off_gives_no_reason(events: EventLog) -> None:
    of = forecaster(events, Choice(lam=0.0))
    for e in everything(of, 20):
        assert e.score == e.base
        assert "mostly because" not in e.sentence()


def test_popularity_alone_ranks_alike_for_every_actor(events: EventLog) -> None:
    dataset = Dataset.chronological("small", events)
    of = Predictor(Past(events), Popularity.fit(dataset), random_transitions(events), Choice(lam=0.0))
    assert [c.name for c in of.forecast(0, 0)] == [c.name for c in of.forecast(3, 2)]


def test_queries_outside_the_data_are_refused(events: EventLog) -> None:
    of = forecaster(events, CHOICES[0])
    with pytest.raises(NotFoundError, match="did you mean"):
        of.forecast("entitty 3", 0)
    with pytest.raises(NotFoundError):
        of.forecast(-1, 0)
    with pytest.raises(NotFoundError):
        of.forecast(0, events.n_relations)
    with pytest.raises(NotFoundError):
        of.explain(0, 0, events.n_entities)
    with pytest.raises(DataError, match="before the data set begins"):
        of.forecast(0, 0, at=-1)
    with pytest.raises(DataError, match="too far ahead"):
        of.forecast(0, 0, at=2**31)
    with pytest.raises(SettingsError, match="at least 1"):
        of.forecast(0, 0, top=0)


def test_the_data_begin_at_the_first_event_where_times_are_whole_numbers(events: EventLog) -> None:
    columns = (events.subject, events.relation, events.object, events.step + 1960)
    of = forecaster(EventLog(*columns, events.entities, events.relations), CHOICES[0])
    first, steps = 1960 + events.start, events.end - events.start
    assert of.forecast(0, 0, at=first)
    with pytest.raises(DataError, match=f"'1200' lies before the data set begins, at {first}"):
        of.forecast(0, 0, at="1200")
    assert of.forecast(0, 0, horizon=steps)
    with pytest.raises(DataError, match=f"there are {steps} steps"):
        of.forecast(0, 0, horizon=steps + 1)


def test_a_calendar_that_ends_after_the_last_event_is_told(events: EventLog) -> None:
    clock = Clock("date", parse_date("9999-12-31") - (events.end - 1) * 86400, 86400)
    columns = (events.subject, events.relation, events.object, events.step)
    of = forecaster(EventLog(*columns, events.entities, events.relations, clock), CHOICES[0])
    assert of.forecast(0, 0, at="9999-12-31")
    with pytest.raises(DataError, match=r"last event, which is at 9999-12-31, lies too far ahead: .* --at, or take"):
        of.forecast(0, 0)
    with pytest.raises(DataError, match="before the data set begins"):
        of.forecast(0, 0, at="0001-01-01")


def test_fit_forecasts_and_explains_with_the_learned_residual_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.chronological("small", random_log(5, n=400), valid=0.2, test=0.2)
    settings = Settings(width=8, hidden=8, max_epochs=1)
    monkeypatch.setattr(HeldOut, "better", "bridgemem")
    own = Forecaster("recurrence", residual="learned", settings=settings).fit(dataset)
    with pytest.warns(UserWarning, match="the learned residual does not rank better than the paper.s"):
        assert own.predictor.learned is None
    model = fit(dataset, "recurrence", settings, residual="learned")
    best = model.forecast(0, 1, top=1)[0]
    why = model.explain(0, 1, best.name)
    assert isinstance(why, LearnedExplanation)
    assert why.score == pytest.approx(best.score, rel=1e-9)
    assert isinstance(fit(dataset, "recurrence", settings).explain(0, 1, best.name), BridgeMemExplanation)
    with pytest.raises(SettingsError, match="residual is bridgemem or learned"):
        fit(dataset, "recurrence", settings, residual="magic")
