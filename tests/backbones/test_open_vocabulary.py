"""A backbone on a grown vocabulary: its own scores where it can give them, something finite everywhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
from bridgemem.backbones.hri import LAST_ALPHA, LAST_LAMBDA, Hri, HriSettings
from bridgemem.backbones.open_vocabulary import OpenVocabulary
from bridgemem.backbones.recurrence import Popularity, Recurrence, RecurrenceDyadic
from bridgemem.backbones.scorer import score_queries
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import relative_entropy
from bridgemem.forecasting.calibration import Calibration
from bridgemem.memory.past import Past
from builders import small_world, tiny_cenet
from precision import same


def grown(extra: int = 200, seed: int = 1) -> EventLog:
    """The small world with three more entities and two more relations, seen at every step."""
    events, rng = small_world().dataset.events, np.random.default_rng(seed)
    n, r = events.n_entities + 3, events.n_relations + 2
    new = [rng.integers(0, top, extra) for top in (n, r, n)]
    old = events.subject, events.relation, events.object
    columns = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
    step = np.concatenate([events.step, rng.integers(0, events.end, extra)])
    entities = Vocabulary("entity", (*events.entities.names, "x", "y", "z"))
    relations = Vocabulary("relation", (*events.relations.names, "p", "q"))
    return EventLog.from_columns(columns[0], columns[1], columns[2], step, entities, relations, events.clock)


def queries(*rows: tuple[int, int, int]) -> Queries:
    return Queries(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def inner_backbones() -> dict[str, Backbone]:
    return {"cenet": tiny_cenet(), "recurrence": Recurrence.fit(small_world().dataset)}


@pytest.mark.parametrize("name", ["cenet", "recurrence"])
def test_the_contract_holds_on_the_old_and_on_the_grown_vocabulary(name: str) -> None:
    events = small_world().dataset.events
    widened = OpenVocabulary(inner_backbones()[name], events.n_entities, events.n_relations)
    check_backbone(widened, events)
    check_backbone(widened, grown())


@pytest.mark.parametrize("name", ["cenet", "recurrence"])
def test_without_growth_nothing_is_changed(name: str) -> None:
    events, backbone = small_world().dataset.events, inner_backbones()[name]
    widened = OpenVocabulary(backbone, events.n_entities, events.n_relations)
    asked = Queries.of(events.between(50, 52))
    own, wide = (score_queries(b, asked, Past(events)) for b in (backbone, widened))
    assert own.log_p.equal(wide.log_p)


def mixed() -> Ensemble:
    members = [kind.fit(small_world().dataset) for kind in (Hri, Recurrence)]
    return Ensemble(EnsembleSettings(("hri", "recurrence")), members)


@pytest.mark.parametrize("frozen_at", [None, 30])
@pytest.mark.parametrize("kind", [tiny_cenet, mixed, lambda: Hri.fit(small_world().dataset)])
def test_an_entity_that_came_later_is_a_candidate_after_its_first_event(
    kind: Callable[[], Backbone], frozen_at: int | None
) -> None:
    old, events = small_world().dataset.events, grown(extra=40)
    widened, asked = OpenVocabulary(kind(), old.n_entities, old.n_relations), Queries.of(events.between(10, 50))
    found = score_queries(widened, asked, Past(events, frozen_at))
    for row in range(0, len(asked), 7):
        known = events.prefix(min(int(asked.step[row]), frozen_at or 99))
        here = set(range(old.n_entities)) | set(known.subject.tolist()) | set(known.object.tolist())
        assert set((found.of_candidates[row] > -torch.inf).nonzero().flatten().tolist()) == here
    assert found.absent is not None
    assert 0 < found.absent.sum() < len(asked) * (events.n_entities - old.n_entities)
    assert found.log_p.isfinite().all()


@pytest.mark.parametrize("kind", [tiny_cenet, mixed, lambda: RecurrenceDyadic.fit(small_world().dataset)])
def test_names_of_later_steps_leave_uncertainty_entropy_and_probabilities_as_they_were(
    kind: Callable[[], Backbone],
) -> None:
    old, events = small_world().dataset.events, grown(extra=40)
    widened, now = OpenVocabulary(kind(), old.n_entities, old.n_relations), 40
    crowd = np.arange(200) + events.n_entities
    entities = Vocabulary("entity", (*events.entities.names, *map(str, crowd)))
    columns = (crowd, crowd % events.n_relations, crowd % 7, now + crowd % 5)
    before = events.prefix(now)
    later = EventLog.from_columns(*columns, entities, events.relations, events.clock)
    asked = Queries.of(events.between(20, now + 1))
    assert int(asked.actor.max()) >= old.n_entities
    calm, crowded = (score_queries(widened, asked, Past(log)) for log in (before, before.append(later)))
    own = slice(0, events.n_entities)
    assert calm.of_candidates.equal(crowded.of_candidates[:, own])
    assert calm.uncertainty is not None
    assert crowded.uncertainty is not None
    assert same(crowded.uncertainty, calm.uncertainty)
    assert same(relative_entropy(crowded.of_candidates), relative_entropy(calm.of_candidates))
    p = Calibration(2.0, 0.2, 1, 0.0, 0.0, 0.0).probabilities(crowded.of_candidates)
    assert same(p[:, own], Calibration(2.0, 0.2, 1, 0.0, 0.0, 0.0).probabilities(calm.of_candidates))
    assert not p[:, events.n_entities :].any()
    # a reader of all log scores, as ranks do, still finds a number for each of the later names
    assert crowded.log_p.isfinite().all()


@pytest.mark.parametrize("kind", [Popularity, Recurrence, RecurrenceDyadic, Hri])
def test_a_training_free_backbone_scores_new_names_as_a_fresh_fit_does(kind: type[Backbone]) -> None:
    world = small_world().dataset
    # after the train split, so that a fit on everything has seen the same of it
    late = grown(extra=900).between(world.valid_start, world.events.end)
    names = late.entities, late.relations
    early = world.train
    s, r, o, t = (
        np.concatenate([getattr(early, c), getattr(late, c)]) for c in ("subject", "relation", "object", "step")
    )
    events = EventLog(s, r, o, t, *names, late.clock)
    widened = OpenVocabulary(kind.fit(world), world.events.n_entities, world.events.n_relations)
    fresh = kind.fit(Dataset("fresh", events, world.valid_start))
    # from the step on at which each of the new names has come
    new = range(world.events.n_entities, events.n_entities)
    came = [events.step[(events.subject == name) | (events.object == name)][0] for name in new]
    asked = Queries.of(events.between(int(max(came)) + 1, events.end))
    assert int(asked.actor.max()) >= world.events.n_entities
    assert int((asked.relation % events.n_relations).max()) >= world.events.n_relations
    own, wide = (score_queries(b, asked, Past(events)) for b in (fresh, widened))
    assert own.log_p.equal(wide.log_p)
    assert own.uncertainty is not None
    assert wide.uncertainty is not None
    assert own.uncertainty.equal(wide.uncertainty)


def test_what_was_chosen_for_each_relation_stays_with_it_when_others_come() -> None:
    hri = Hri(HriSettings(per_relation=True), *(torch.arange(6, dtype=torch.float64) / n for n in (1, 10)))
    wide = hri.grown(9, 4)
    assert isinstance(wide, Hri)
    assert wide.lam.tolist() == [0, 1, 2, LAST_LAMBDA, 3, 4, 5, LAST_LAMBDA]
    assert wide.alpha.tolist() == pytest.approx([0, 0.1, 0.2, LAST_ALPHA, 0.3, 0.4, 0.5, LAST_ALPHA])
    assert tiny_cenet().grown(9, 4) is None


def test_known_queries_keep_the_scores_of_a_trained_backbone_and_new_candidates_come_last() -> None:
    old, backbone = small_world().dataset.events, tiny_cenet()
    # new names alone: no event with them, so that the readable past is the old one
    entities = Vocabulary("entity", (*old.entities.names, "x"))
    relations = Vocabulary("relation", (*old.relations.names, "p"))
    now = EventLog(old.subject, old.relation, old.object, old.step, entities, relations, old.clock)
    wide = OpenVocabulary(backbone, old.n_entities, old.n_relations).score(
        queries((3, 2, 50), (3, 2 + now.n_relations, 50)), Past(now)
    )
    own = backbone.score(queries((3, 2, 50), (3, 2 + old.n_relations, 50)), Past(old))
    assert wide.log_p[:, :-1].equal(own.log_p)
    assert wide.log_p[:, -1].equal(own.log_p.min(1).values)


@pytest.mark.parametrize("name", ["cenet", "recurrence"])
def test_unknown_actors_and_relations_are_answered_by_what_recurs(name: str) -> None:
    old, events = small_world().dataset.events, grown()
    actor, relation = events.n_entities - 1, events.n_relations - 1
    row = np.array([[actor], [relation], [4], [events.end]])
    names = events.entities, events.relations, events.clock
    later = EventLog(row[0], row[1], row[2], row[3], *names)
    past = Past(events.append(later))
    widened = OpenVocabulary(inner_backbones()[name], old.n_entities, old.n_relations)
    scores = score_queries(widened, queries((actor, relation, events.end + 1), (0, 0, events.end + 1)), past)
    assert int(scores.log_p[0].argmax()) == 4
    assert scores.log_p.isfinite().all()
    assert scores.uncertainty is not None
    assert ((scores.uncertainty >= 0) & (scores.uncertainty <= 1)).all()


def test_the_members_of_a_mixture_are_widened_as_it_is_itself() -> None:
    old, events = small_world().dataset.events, grown()
    widened = OpenVocabulary(mixed(), old.n_entities, old.n_relations)
    known, unknown = (3, 1, 40), (old.n_entities, 1, 40)
    for asked in (queries(known, unknown), queries(unknown)):
        found = widened.score(asked, Past(events))
        assert found.members is not None
        assert found.members.shape == (2, len(asked), events.n_entities)
        assert torch.isfinite(found.members).all()
        # a new actor is answered by recurrence, which every member repeats
        assert (found.members[:, -1] == found.log_p[-1].to(found.members.dtype)).all()
    own = widened.score(queries(known), Past(events)).members
    assert own is not None
    assert not torch.equal(own[0], own[1])


def test_a_vocabulary_of_unseen_candidates_only_is_scored_too() -> None:
    old, events = small_world().dataset.events, grown()
    widened = OpenVocabulary(tiny_cenet(), old.n_entities, old.n_relations)
    asked = queries((events.n_entities - 1, 0, 0), (0, 2 * events.n_relations - 1, 0))
    assert score_queries(widened, asked, Past(events.prefix(0))).log_p.isfinite().all()
