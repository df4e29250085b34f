"""Causality of fitting: nothing after the prefix leaves a trace in what was learned or chosen from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bridgemem.backbones.cenet import Cenet
from bridgemem.backbones.recurrence import Recurrence
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.evidence.transitions import Transitions
from bridgemem.residuals.selection import Fitted, fit
from bridgemem.residuals.validation import Validation
from builders import SMALL_READER, TINY_CENET, futures, small_world, vocabulary

SETTINGS = replace(SMALL_READER, lambdas=(0.5, 2.0), taus=(30.0, 100.0))


def same_tensors(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def same_fit(a: Fitted, b: Fitted) -> bool:
    return (
        same_tensors(a.train.tensors(), b.train.tensors())
        and same_tensors(a.known.tensors(), b.known.tensors())
        and (a.epochs, a.curve) == (b.epochs, b.curve)
        and a.selections == b.selections
    )


def fitted(dataset: Dataset) -> Fitted:
    return fit(Validation.of(dataset, Recurrence.fit(dataset)), SETTINGS)


@cache
def honest() -> Fitted:
    return fitted(small_world().dataset)


@pytest.mark.parametrize("future", ["deleted", "permuted", "corrupted"])
@pytest.mark.parametrize("cut", [20, 45])
def test_transitions_of_a_prefix_equal_those_of_the_truncated_log(cut, future):
    events = small_world().events
    expected, choice = Transitions.fit(events.prefix(cut), SMALL_READER, seed=3)
    other, other_choice = Transitions.fit(futures(events, cut)[future].prefix(cut), SMALL_READER, seed=3)
    assert same_tensors(other.tensors(), expected.tensors())
    assert other_choice == choice
    assert expected.counts.counts.any()


@pytest.mark.parametrize("future", ["half deleted", "permuted", "corrupted", "moved to now"])
def test_fit_never_touches_the_test_split(future):
    dataset = small_world().dataset
    other = replace(dataset, events=futures(dataset.events, dataset.test_start)[future])
    assert other.events.fingerprint != dataset.events.fingerprint
    assert same_fit(fitted(other), honest())


def test_fit_without_any_test_split_is_the_same():
    assert same_fit(fitted(small_world().dataset.without_test()), honest())


def test_what_is_chosen_on_validation_does_depend_on_validation():
    dataset = small_world().dataset
    events = futures(dataset.known, dataset.valid_start)["corrupted"].append(dataset.test)
    other = fitted(replace(dataset, events=events))
    assert same_tensors(other.train.tensors(), honest().train.tensors()), "train is fitted before validation"
    assert not same_tensors(other.known.tensors(), honest().known.tensors())
    assert other.selections != honest().selections


def test_a_relation_that_first_appears_in_test_leaves_no_trace():
    dataset = small_world().dataset
    events, canary = dataset.events, dataset.events.n_relations
    relation = events.relation.copy()
    relation[np.flatnonzero(events.step >= dataset.test_start)[::2]] = canary
    marked = EventLog(
        events.subject, relation, events.object, events.step, events.entities, vocabulary("relation", canary + 1)
    )
    found = fitted(replace(dataset, events=marked))
    for transitions in (found.train, found.known):
        R = canary + 1
        counts = transitions.counts.counts.view(2, R, -1, 2, R)
        assert not counts[:, canary].any()
        assert not counts[..., canary].any()
        log_pi = transitions.log_pi.view(2, R)
        assert (log_pi[:, canary] == log_pi.min()).all()
    # the other relations keep every count they have without it
    expected = honest().known.counts.counts.view(2, canary, -1, 2, canary)
    assert torch.equal(counts[:, :canary, :, :, :canary], expected)


@pytest.mark.parametrize("future", ["half deleted", "corrupted", "moved to now"])
def test_backbones_are_trained_on_train_alone(future):
    dataset = small_world().dataset
    other = Dataset("other", futures(dataset.events, dataset.valid_start)[future], dataset.valid_start)
    for kind, settings in ((Cenet, TINY_CENET), (Recurrence, None)):
        assert same_tensors(kind.fit(other, settings).tensors(), kind.fit(dataset, settings).tensors()), kind
