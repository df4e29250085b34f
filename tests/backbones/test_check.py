"""check_backbone: passes the backbones that keep the contract, and catches each way of breaking it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import _global_forward_pre_hooks

from bridgemem.backbones.check import check_backbone, examined
from bridgemem.backbones.recurrence import Popularity, Recurrence, RecurrenceDyadic, RecurrenceSettings
from bridgemem.backbones.scorer import Scores, check_scores
from bridgemem.errors import BackboneError, NotFoundError
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import small_world, tiny_cenet


@pytest.mark.parametrize("kind", [Popularity, Recurrence, RecurrenceDyadic])
def test_training_free_backbones_keep_the_contract(kind):
    world = small_world()
    check_backbone(kind.fit(world.dataset), world.events)


def test_cenet_keeps_the_contract():
    check_backbone(tiny_cenet(), small_world().events)


class SeesNow(Recurrence):
    """Reads the events of the very step it is asked about."""

    def score(self, queries: Queries, past: Past) -> Scores:
        return super().score(Queries(queries.actor, queries.relation, queries.step + 1), past)


class SeesAll(Recurrence):
    """Knows how often an entity will act in the whole log."""

    def score(self, queries: Queries, past: Past) -> Scores:
        totals = torch.bincount(torch.from_numpy(past.events.object.copy()), minlength=past.events.n_entities)
        return Scores(super().score(queries, past).log_p + totals / 1e6)


class SeesTheBatch(Recurrence):
    """Centres its scores over the batch, which other queries share."""

    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = super().score(queries, past).log_p
        return Scores(log_p - log_p.mean(0))


class SeesTheOrder(Recurrence):
    """Trusts the first query of a batch more."""

    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = super().score(queries, past).log_p
        return Scores(log_p + torch.linspace(1, 0, len(log_p))[:, None])


class Restless(Recurrence):
    """Draws a little noise anew at every call."""

    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = super().score(queries, past).log_p
        return Scores(log_p + 1e-9 * torch.rand_like(log_p))


class NotANumber(Recurrence):
    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = super().score(queries, past).log_p
        log_p[-1, -1] = torch.nan
        return Scores(log_p)


class Infinite(Recurrence):
    """Rules candidates out with the log of zero."""

    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = super().score(queries, past).log_p
        return Scores(log_p.masked_fill(log_p < log_p.mean(), -torch.inf))


class WrongShape(Recurrence):
    def score(self, queries: Queries, past: Past) -> Scores:
        return Scores(super().score(queries, past).log_p[:, 1:])


class TooCertain(Recurrence):
    def score(self, queries: Queries, past: Past) -> Scores:
        return Scores(super().score(queries, past).log_p, torch.full((len(queries),), 1.5))


class DriftingOracle(Recurrence):
    """Its scores are in order, but its uncertainty looks at the step itself."""

    def score(self, queries: Queries, past: Past) -> Scores:
        scores = super().score(queries, past)
        today = (past.events.step == int(queries.step[0])).sum()
        return Scores(scores.log_p, torch.full((len(queries),), float(today) / 1e4))


class Forgetful(Recurrence):
    """Comes back from disk with other settings."""

    @classmethod
    def restore(cls, settings: RecurrenceSettings, tensors: dict[str, Tensor]) -> Forgetful:
        return cls(replace(settings, decay=0.5), tensors["share"])


class HalfSaved(Recurrence):
    """Leaves out what it learned."""

    def tensors(self) -> dict[str, Tensor]:
        return {"share": torch.full_like(self.share, 1 / len(self.share))}


@pytest.mark.parametrize(
    ("cheat", "complaint"),
    [
        (SeesNow, "scores changed when the future"),
        (SeesAll, "scores changed when the future"),
        (DriftingOracle, "scores changed when the future"),
        (SeesTheBatch, "depend on the other queries"),
        (SeesTheOrder, "depend on the order"),
        (Restless, "the same batch gave different scores"),
        (NotANumber, "NaN or infinite"),
        (Infinite, "NaN or infinite"),
        (WrongShape, "shape"),
        (TooCertain, "uncertainty"),
        (Forgetful, "saving and loading"),
        (HalfSaved, "saving and loading"),
    ],
)
def test_a_backbone_that_breaks_the_contract_is_caught(cheat, complaint):
    world = small_world()
    with pytest.raises(BackboneError, match=re.escape(complaint)):
        check_backbone(cheat.fit(world.dataset), world.events)


def test_scores_are_checked_before_use():
    queries = Queries(*(torch.tensor([0, 1]) for _ in range(3)))
    good = Scores(torch.zeros(2, 5), torch.tensor([0.0, 1.0]))
    assert check_scores(good, queries, 5, "mine") is good
    with pytest.raises(BackboneError, match=re.escape("mine returned scores of shape (2, 5) instead of (2, 6)")):
        check_scores(good, queries, 6, "mine")
    with pytest.raises(BackboneError, match="uncertainty"):
        check_scores(Scores(torch.zeros(2, 5), torch.zeros(3)), queries, 5, "mine")


def test_a_name_and_a_folder_are_taken_too(tmp_path):
    world = small_world()
    assert check_backbone("recurrence", world.dataset).word == "pass"
    Recurrence.fit(world.dataset).save(tmp_path / "trained")
    for folder in (tmp_path / "trained", str(tmp_path / "trained")):
        assert check_backbone(folder, world.dataset).word == "nothing failed, 1 not checkable"
    with pytest.raises(NotFoundError, match="there is no folder and no backbone called 'nobody'"):
        check_backbone("nobody", world.dataset)


def test_a_model_of_two_arguments_is_told_what_it_is_called_with():
    class TwoArrays(torch.nn.Module):
        def forward(self, actor: Tensor, relation: Tensor) -> Tensor:
            return torch.zeros(10, 10)[actor, relation]

    with pytest.raises(BackboneError, match=r"takes 2 arguments, so it is called with \(queries, past\); for arrays"):
        check_backbone(TwoArrays(), small_world().dataset)


class Normed(torch.nn.Module):
    """A small network as researchers write them, whose score sets the mode that its normalisation is asked in."""

    def __init__(self, norm: Callable[[Tensor], Tensor], training: bool = True) -> None:
        super().__init__()
        events, generator = small_world().events, torch.Generator().manual_seed(0)
        self.entity = torch.randn(events.n_entities, 8, generator=generator)
        self.relation = torch.randn(2 * events.n_relations, 8, generator=generator)
        self.norm, self.mode = norm, training

    def score(self, queries: Queries, past: Past) -> Tensor:
        self.train(self.mode)
        with torch.no_grad():
            return self.norm(self.entity[queries.actor] * self.relation[queries.relation]) @ self.entity.T


class Trained(Recurrence):
    """The same network in a class of backbones."""

    def score(self, queries: Queries, past: Past) -> Scores:
        return Scores(Normed(torch.nn.BatchNorm1d(8)).score(queries, past))


def function_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True)


def own_norm(x: Tensor) -> Tensor:
    """Gives NaN for a query alone."""
    return (x - x.mean(0)) / x.std(0)


IN_TRAINING = "other queries of the batch: batch normalisation in training mode, so call .eval()"
POOLS = "other queries of the batch: it pools the queries"


@pytest.mark.parametrize(
    ("norm", "queries", "said"),
    [
        (torch.nn.BatchNorm1d(8), 64, IN_TRAINING),
        (torch.nn.BatchNorm1d(8), 2, IN_TRAINING),
        (torch.nn.BatchNorm1d(8), 1, IN_TRAINING),
        (torch.nn.BatchNorm1d(8, track_running_stats=False), 64, "without running statistics, so set track_running"),
        (function_norm, 64, IN_TRAINING),
        (function_norm, 2, IN_TRAINING),
        (own_norm, 64, POOLS),
        (own_norm, 2, POOLS),
    ],
)
def test_normalisation_over_the_batch_is_told_by_name_and_not_as_nan(norm, queries, said):
    with pytest.raises(BackboneError, match=re.escape(said)) as caught:
        check_backbone(Normed(norm), small_world().dataset, queries=queries)
    assert "NaN" not in str(caught.value)


def test_a_class_of_backbones_in_training_mode_is_told_the_same():
    (leak,) = (one for one in examined(Trained, small_world().dataset) if one.check == "alone in its batch")
    assert leak.passed is False
    assert IN_TRAINING in leak.seen


def test_batch_normalisation_after_eval_is_no_leak_and_no_hook_is_left():
    hooks = len(_global_forward_pre_hooks)
    model = Normed(torch.nn.BatchNorm1d(8), training=False)
    assert check_backbone(model, small_world().dataset).word.startswith("nothing failed")
    assert len(_global_forward_pre_hooks) == hooks


def test_a_score_that_is_nan_in_every_batch_is_told_as_that():
    with pytest.raises(BackboneError, match="NaN or infinite"):
        check_backbone(Normed(lambda x: x / 0), small_world().dataset, queries=2)
