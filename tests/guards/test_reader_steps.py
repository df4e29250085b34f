"""A guard for the reader's training: operators and bytes of a step, counted and not timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from counting import OperatorCount

from bridgemem.evidence.counts import log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.reader import ReaderTraining
from bridgemem.evidence.tokens import TokenSpace
from builders import SMALL_READER, small_world

MOST_OPERATORS = 115  # of a step; 103 when it was written
MOST_BYTES = 1_200  # that a step writes for each example, at width 8 and 16 directed relations; 945 when it was written


def epoch_of(examples: int, batch: int) -> OperatorCount:
    """What the second epoch over that many examples counts; the first has made the optimizer's state."""
    settings = replace(SMALL_READER, batch=batch)
    events = small_world().dataset.train
    space = TokenSpace.of(settings, events.n_relations)
    some = mine(events, space, settings).take(torch.arange(examples))
    training = ReaderTraining(some, log_prior(events), settings, seed=1)
    training.epoch()
    with OperatorCount() as count:
        training.epoch()
    return count


def per_step(batch: int) -> tuple[float, float]:
    """Operators and bytes of one more step: an epoch of eight less one of four."""
    more, less = epoch_of(8 * batch, batch), epoch_of(4 * batch, batch)
    return (more.calls.total() - less.calls.total()) / 4, (more.bytes - less.bytes) / 4


def test_a_step_takes_few_operators() -> None:
    operators, _ = per_step(128)
    assert 20 <= operators <= MOST_OPERATORS


def test_the_operators_of_a_step_do_not_grow_with_its_examples() -> None:
    assert per_step(64)[0] == pytest.approx(per_step(256)[0], abs=2)


def test_a_step_writes_few_bytes_for_each_example() -> None:
    small, large = per_step(64)[1], per_step(256)[1]
    assert 100 <= (large - small) / 192 <= MOST_BYTES


def test_the_counter_sees_operators_and_leaves_views_out() -> None:
    x = torch.ones(4, 8)
    with OperatorCount() as count:
        y = (x.t() @ x).view(-1)
    assert list(count.calls) == ["aten.mm.default"]
    assert count.bytes == y.nbytes
