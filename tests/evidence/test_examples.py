"""Examples: what is mined from a prefix equals a slow walk over it, and sampling is a matter of the seed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.config import Settings
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.tokens import TokenSpace
from builders import few, log_of, logs, random_log, rows_of

Plain = tuple[tuple[int, ...], int, int]


def slow_examples(events, settings: Settings) -> list[Plain]:
    """(tokens newest first, target, step) by looking back from every side of every fact."""
    rows, R, bins = rows_of(events), events.n_relations, len(settings.bins) + 1
    examples = []
    for s, r, o, t in rows:
        for (a, c), target in (((s, o), r), ((o, s), r + R)):
            tokens = []
            for s2, r2, o2, t2 in rows:
                lag = t - t2
                if lag < 1 or (settings.window and lag > settings.window):
                    continue
                recency = sum(lag > edge for edge in settings.bins)
                tokens += [r2 * bins + recency] if (s2, o2) == (a, c) else []
                tokens += [(r2 + R) * bins + recency] if (o2, s2) == (a, c) else []
            if tokens:
                examples.append((tuple(tokens[::-1][: settings.k]), target, t))
    return examples


def plain(examples: Examples, pad: int) -> list[Plain]:
    tokens = (tuple(t for t in row if t != pad) for row in examples.tokens.tolist())
    return list(zip(tokens, examples.target.tolist(), examples.step.tolist(), strict=True))


@few
@given(events=logs(), k=st.integers(1, 9), window=st.sampled_from([0, 1, 5, 65]))
def test_mining_equals_a_slow_walk(events, k, window):
    settings = Settings(k=k, window=window)
    space = TokenSpace.of(settings, events.n_relations)
    mined = mine(events, space, settings)
    assert Counter(plain(mined, space.pad)) == Counter(slow_examples(events, settings))
    assert mined.tokens.shape == (len(mined), k)


def test_a_fact_gives_one_example_for_each_side():
    settings = Settings()
    events = log_of([(0, 0, 1, 1), (1, 2, 0, 3)])
    space = TokenSpace.of(settings, 3)
    forward, backward = 0 * 5 + 1, 3 * 5 + 1
    assert sorted(plain(mine(events, space, settings), space.pad)) == [((forward,), 5, 3), ((backward,), 2, 3)]


def test_first_meetings_and_same_step_events_give_no_example():
    settings = Settings()
    space = TokenSpace.of(settings, 3)
    alone = log_of([(0, 0, 1, 1), (0, 1, 1, 1), (2, 0, 3, 5), (4, 1, 4, 2)])
    assert len(mine(alone, space, settings)) == 0
    assert len(mine(log_of([]), space, settings)) == 0
    too_late = log_of([(0, 0, 1, 1), (0, 0, 1, 67)])
    assert len(mine(too_late, space, settings)) == 0
    in_time = log_of([(0, 0, 1, 1), (0, 0, 1, 66)])
    assert len(mine(in_time, space, settings)) == 2


def test_many_relations_still_fit_the_narrow_column():
    settings = Settings()
    events = log_of([(0, 3499, 1, 1), (0, 3499, 1, 2)], n_relations=3500)
    space = TokenSpace.of(settings, 3500)
    assert sorted(plain(mine(events, space, settings), space.pad)) == [
        ((3499 * 5,), 3499, 2),
        (((3499 + 3500) * 5,), 3499 + 3500, 2),
    ]


def test_mining_in_blocks_equals_mining_at_once(monkeypatch):
    settings = Settings()
    events = random_log(4)
    space = TokenSpace.of(settings, events.n_relations)
    whole = mine(events, space, settings)
    monkeypatch.setattr("bridgemem.memory.sorted_rows.BLOCK", 7)
    assert torch.equal(mine(events, space, settings).tokens, whole.tokens)


def test_sampling_is_bounded_and_decided_by_the_seed():
    settings = Settings()
    events = random_log(4)
    examples = mine(events, TokenSpace.of(settings, events.n_relations), settings)
    some = examples.sample(50, seed=1)
    assert len(some) == 50
    for name in ("tokens", "target", "step"):
        assert torch.equal(getattr(some, name), getattr(examples.sample(50, seed=1), name))
    assert not torch.equal(some.tokens, examples.sample(50, seed=2).tokens)
    assert examples.sample(len(examples), seed=1) is examples
    every, drawn = Counter(plain(examples, -1)), Counter(plain(some, -1))
    assert not drawn - every, "drawn without replacement from the examples themselves"


@pytest.mark.parametrize("window", [0, 65])
def test_examples_of_a_prefix_are_examples_of_the_whole(window):
    settings = Settings(window=window)
    events = random_log(9)
    space = TokenSpace.of(settings, events.n_relations)
    early = [e for e in plain(mine(events, space, settings), space.pad) if e[2] < 20]
    assert Counter(early) == Counter(plain(mine(events.prefix(20), space, settings), space.pad))
