"""Parallel: the results of batches come in their order, from as many threads as torch has."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from bridgemem.backbones.typed import RecurrenceTyped
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.parallel import in_order
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Scoring, replay
from builders import small_world


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_results_come_in_order_from_several_threads_that_torch_leaves_alone() -> None:
    together = threading.Barrier(2)  # passed only by two threads at once
    seen: set[int] = set()

    def slower_first(item: int) -> int:
        together.wait(timeout=20)
        time.sleep(0.01 if item % 2 == 0 else 0)
        seen.add(torch.get_num_threads())
        return item

    assert list(in_order(slower_first, range(8))) == list(range(8))
    assert seen == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_ends_it_and_the_threads_of_torch_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // item, [1, 2, 0, 3, 4, 5]))
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_gradients_stay_off_where_they_are_off() -> None:
    with torch.no_grad():
        assert not any(in_order(lambda _: torch.is_grad_enabled(), range(4)))


def test_what_may_not_be_asked_at_once_stays_on_one_thread() -> None:
    own = threading.get_ident()
    assert set(in_order(lambda _: threading.get_ident(), range(4), several=False)) == {own}


@pytest.mark.usefixtures("two_threads")
def test_ranks_are_the_same_from_one_thread_and_from_several(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_world().dataset
    queries, filters = Queries.of(dataset.test), Filters(dataset.events)

    def ranks():
        scoring = Scoring(RecurrenceTyped.fit(dataset), Past(dataset.events))
        return replay(scoring, queries, filters=filters, cells=20 * dataset.events.n_entities).ranks

    several = ranks()
    monkeypatch.setattr(RecurrenceTyped, "parallel", False)
    assert (several == ranks()).all()
