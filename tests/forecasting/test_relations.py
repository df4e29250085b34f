"""Relations: what happens between two parties, ranked over both directions."""

from __future__ import annotations

import pytest
import torch

from bridgemem.forecasting.relations import (
    PairQueries,
    RelationReader,
    Relations,
    RelationSettings,
    fit_relations,
    relation_cases,
    untrained,
)
from bridgemem.memory.past import Past
from builders import log_of, small_world


def quick(**changed: int) -> RelationSettings:
    return RelationSettings(**{"hidden": 16, "epochs": 3, **changed})


def test_who_comes_first_only_swaps_the_directions() -> None:
    events = small_world().events
    reader, n = RelationReader(Past(events), events.n_relations), events.n_relations
    asked = PairQueries.of(events.between(50, 55))
    turned = PairQueries(asked.second, asked.first, asked.step)
    cases = relation_cases(reader, asked)
    head = fit_relations(cases, n, quick())
    one, two = head.scores(reader, asked), head.scores(reader, turned)
    torch.testing.assert_close(one, two.roll(n, 1), rtol=1e-5, atol=1e-5)


def test_before_a_fit_the_most_frequent_event_of_the_pair_comes_first() -> None:
    rows = [(0, 1, 1, 1), (0, 1, 1, 2), (0, 2, 1, 3), (1, 0, 0, 4), (2, 0, 3, 4)]
    events = log_of(rows)
    reader = RelationReader(Past(events), events.n_relations)
    scores = untrained(3, quick()).scores(reader, PairQueries(*(torch.tensor([v]) for v in (0, 1, 9))))
    assert int(scores.argmax()) == 1
    assert set(scores[0].topk(3).indices.tolist()) == {1, 2, 3}  # and 0 the other way round
    torch.testing.assert_close(scores.exp().sum(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_a_fit_learns_what_follows_what() -> None:
    """After a visit (0) comes aid (1), and after aid a visit; counts alone find both as likely."""
    rows = [(pair, (step + pair) % 2, pair + 10, step) for pair in range(10) for step in range(40)]
    events = log_of(rows, 20, 2)
    reader = RelationReader(Past(events), 2)
    head = fit_relations(relation_cases(reader, PairQueries.of(events.between(20, 36))), 2, quick(epochs=40))
    late = PairQueries.of(events.between(36, 40))
    assert late.answer is not None
    p = head.scores(reader, late).softmax(1).gather(1, late.answer[:, None])
    plain = untrained(2, quick()).scores(reader, late).softmax(1).gather(1, late.answer[:, None])
    assert float(plain.mean()) < 0.6
    assert float(p.mean()) > 0.8


def test_weights_come_back_as_they_were() -> None:
    events = small_world().events
    reader = RelationReader(Past(events), events.n_relations)
    asked = PairQueries.of(events.between(55, 57))
    head = fit_relations(relation_cases(reader, asked), events.n_relations, quick(epochs=1))
    back = Relations.restore(head.settings, head.tensors())
    assert torch.equal(back.scores(reader, asked), head.scores(reader, asked))
    with pytest.raises(ValueError, match="body"):
        Relations.restore(quick(hidden=17), head.tensors())
