"""The attention reader: its size, its training, and what may not matter to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bridgemem.config import Settings
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.evidence import reader as reader_module
from bridgemem.evidence import transitions as transitions_module
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.reader import Reader, ReaderTraining
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from builders import SMALL_READER, negative_log_likelihood, random_log, random_transitions, small_world
from precision import close


def world_examples() -> tuple[Examples, TokenSpace, torch.Tensor]:
    events = small_world().dataset.train
    space = TokenSpace.of(SMALL_READER, events.n_relations)
    return mine(events, space, SMALL_READER), space, log_prior(events)


@pytest.mark.parametrize("relations", [1, 24, 230])
def test_the_reader_has_the_papers_number_of_parameters(relations):
    space = TokenSpace.of(Settings(), relations)
    reader = Reader(space, torch.zeros(2 * relations))
    assert sum(p.numel() for p in reader.parameters()) == 322 * relations + 8961


def test_training_is_decided_by_the_seed():
    examples, _space, log_pi = world_examples()
    first, again, other = (ReaderTraining(examples, log_pi, SMALL_READER, seed).train(2) for seed in (5, 5, 6))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert not torch.equal(first.relation.weight, other.relation.weight)
    orders = [ReaderTraining(examples, log_pi, SMALL_READER, seed).shuffle for seed in (5, 6)]
    assert not torch.equal(*(torch.randperm(100, generator=order) for order in orders)), "the batches follow it too"


def test_training_leaves_the_global_random_state_alone():
    examples, _space, log_pi = world_examples()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    ReaderTraining(examples, log_pi, SMALL_READER, seed=9).train(1)
    assert torch.equal(torch.rand(3), expected)


def test_training_learns_the_world():
    events = simulate(WorldSettings(actors=100, events=16_000)).dataset.known
    settings = Settings(batch=1024)
    space, log_pi = TokenSpace.of(settings, events.n_relations), log_prior(events)
    examples = mine(events, space, settings)
    early, late = (examples.take(side.nonzero().squeeze(1)) for side in (examples.step < 150, examples.step >= 150))
    training = ReaderTraining(early, log_pi, settings, seed=1)
    untrained = negative_log_likelihood(training.reader, late)
    for _ in range(6):
        training.epoch()
    prior_alone = -float(log_pi[late.target].mean())
    assert negative_log_likelihood(training.reader, late) < min(untrained, prior_alone) - 0.3


def test_the_loss_is_the_mean_negative_log_probability_of_the_target():
    events = random_log(1)
    transitions = random_transitions(events)
    examples = mine(events, transitions.space, SMALL_READER)
    evidence = transitions.reader.evidence(examples.tokens.long())
    log_p = evidence.double() + transitions.log_pi
    assert close(log_p.exp().sum(1), torch.ones(len(examples)).double())
    expected = -float(log_p[torch.arange(len(examples)), examples.target].mean())
    assert negative_log_likelihood(transitions.reader, examples) == pytest.approx(expected, abs=1e-4)


def test_padding_never_matters():
    transitions = random_transitions(random_log(1))
    pad = transitions.space.pad
    short = torch.tensor([[3, 7, pad], [5, pad, pad]])
    long = torch.tensor([[3, 7, pad, pad, pad, pad], [5, pad, pad, pad, pad, pad]])
    assert close(transitions.reader.evidence(short), transitions.reader.evidence(long))
    alpha = transitions.reader.attention_weights(long)
    assert not alpha[long == pad].any()
    assert close(alpha.sum(1), torch.ones(2))


def test_the_order_of_events_does_not_matter():
    transitions = random_transitions(random_log(1))
    tokens = torch.tensor([[3, 7, 11], [11, 3, 7]])
    first, second = transitions.reader.evidence(tokens)
    assert close(first, second)


def test_evidence_in_chunks_equals_evidence_at_once(monkeypatch):
    events = random_log(1)
    transitions = random_transitions(events)
    tokens = mine(events, transitions.space, SMALL_READER).tokens.long()
    whole = transitions.reader.evidence(tokens)
    monkeypatch.setattr(reader_module, "_CHUNK", 3)
    assert close(transitions.reader.evidence(tokens), whole)
    assert transitions.reader.evidence(tokens[:0]).shape == (0, 2 * events.n_relations)


def stop_epochs(monkeypatch, curve: list[float], **changes: float) -> tuple[int, list[float]]:
    """best_epochs on a made-up likelihood curve."""
    examples, _space, log_pi = world_examples()
    some = examples.take(torch.arange(8))
    values = iter(curve)
    monkeypatch.setattr(reader_module, "mean_loss", lambda reader, late: next(values))
    return ReaderTraining(some, log_pi, Settings(width=2, hidden=2, **changes), seed=1).best_epochs(some)


def test_epoch_selection_stops_after_patience_and_takes_the_best(monkeypatch):
    curve = [3.0, 2.0, 2.5, 2.4, 2.3, 1.0]
    assert stop_epochs(monkeypatch, curve, patience=3) == (2, curve[:5])


def test_a_gain_below_the_least_improvement_does_not_count(monkeypatch):
    curve = [3.0, 3.0 - 5e-7, 3.0 - 9e-7, 3.0 - 9.5e-7, 2.0]
    assert stop_epochs(monkeypatch, curve, patience=3) == (1, curve[:4])


def test_epoch_selection_ends_at_the_largest_number(monkeypatch):
    curve = [3.0, 2.0, 1.0, 0.5]
    assert stop_epochs(monkeypatch, curve, max_epochs=3) == (3, curve[:3])


def test_epochs_are_chosen_on_the_later_tenth():
    events = small_world().dataset.train
    transitions, choice = Transitions.fit(events, SMALL_READER, seed=1)
    assert 1 <= choice.epochs <= SMALL_READER.max_epochs
    assert choice.curve[choice.epochs - 1] == min(choice.curve)
    refit, _ = Transitions.fit(events, SMALL_READER, seed=1, epochs=choice.epochs)
    for name, tensor in transitions.tensors().items():
        assert torch.equal(tensor, refit.tensors()[name]), name


def test_the_epoch_is_judged_by_what_comes_later(monkeypatch):
    events = small_world().dataset.train
    asked = {}

    class Remembering(ReaderTraining):
        def __init__(self, examples, log_pi, *rest):
            super().__init__(examples, log_pi, *rest)
            self.given = {"early": examples, "log_pi": log_pi}

        def best_epochs(self, late, progress):
            asked.update(self.given, late=late)
            return 2, [1.0, 0.5]

    monkeypatch.setattr(transitions_module, "ReaderTraining", Remembering)
    transitions, choice = Transitions.fit(events, SMALL_READER, seed=1)
    cut = int(asked["late"].step.min())
    assert choice.epochs == 2
    assert int(asked["early"].step.max()) < cut
    total = len(asked["early"]) + len(asked["late"])
    assert total == len(mine(events, transitions.space, SMALL_READER))
    assert len(asked["late"]) / total == pytest.approx(0.1, abs=0.04)
    assert torch.equal(asked["log_pi"], log_prior(events.prefix(cut))), "the later part has no say in the prior"
    assert torch.equal(transitions.log_pi, log_prior(events))


def test_only_the_reader_is_trained_on_a_sample():
    events = small_world().dataset.train
    few_examples = replace(SMALL_READER, max_examples=100)
    transitions, _ = Transitions.fit(events, few_examples, seed=1, epochs=1)
    examples, space, log_pi = world_examples()
    assert torch.equal(transitions.counts.counts, CountTable.of(examples, space).counts), "counts use all examples"
    expected = ReaderTraining(examples.sample(100, seed=1), log_pi, few_examples, seed=1).train(1)
    assert torch.equal(transitions.reader.relation.weight, expected.relation.weight)


def test_a_log_without_any_repeated_pair_can_be_fitted():
    events = random_log(1).rows(0, 1)
    transitions, choice = Transitions.fit(events, SMALL_READER, seed=1)
    assert choice.epochs == 1
    assert all(p.isfinite().all() for p in transitions.reader.parameters())
    assert not transitions.counts.counts.any()
    assert math.isfinite(float(transitions.reader.evidence(torch.tensor([[0]])).sum()))


def test_transitions_are_restored_from_their_tensors():
    events = random_log(1)
    transitions = random_transitions(events)
    again = Transitions.restore(SMALL_READER, transitions.tensors())
    tokens = mine(events, transitions.space, SMALL_READER).tokens.long()
    assert torch.equal(again.reader.evidence(tokens), transitions.reader.evidence(tokens))
    assert torch.equal(again.p_ct, transitions.p_ct)
    assert torch.equal(again.support, transitions.support)


def test_restoring_draws_nothing_and_leaves_no_empty_tensor():
    tensors = random_transitions(random_log(1)).tensors()
    state = torch.random.get_rng_state()
    reader = Transitions.restore(SMALL_READER, tensors).reader
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(t.is_meta for t in (*reader.parameters(), *reader.buffers()))
    assert {t.dtype for t in reader.parameters()} == {torch.float32}


@pytest.mark.parametrize("lie", [{"width": 8192, "hidden": 8192}, {"bins": tuple(range(1, 10**6))}])
def test_settings_that_lie_about_the_weights_are_refused_before_anything_is_built(lie):
    tensors = random_transitions(random_log(1)).tensors()
    with pytest.raises((RuntimeError, ValueError), match=r"is \w+ \[.*\], not|dimensions, not"):
        Transitions.restore(replace(SMALL_READER, **lie), tensors)


def test_what_is_asked_is_read_in_parts_where_relations_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence of all relations for all states is never held at once."""
    transitions = random_transitions(random_log(4))
    reader, draw = transitions.reader, torch.Generator().manual_seed(0)
    tokens = torch.randint(0, transitions.space.size, (40, 8), generator=draw)
    state = torch.randint(0, 40, (300,), generator=draw)
    asked = torch.randint(0, transitions.space.n_directed, (300,), generator=draw)
    whole = reader.evidence(tokens)[state, asked]
    assert torch.equal(reader.evidence_for(tokens, state, asked), whole)
    monkeypatch.setattr("bridgemem.evidence.reader._CELLS", 7 * transitions.space.n_directed)
    assert torch.allclose(reader.evidence_for(tokens, state, asked), whole, rtol=1e-5, atol=1e-6)
