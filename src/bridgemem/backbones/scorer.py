"""Scorer: log scores of every entity, and an uncertainty, from facts strictly before t; all that a forecast needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import NO_MEMORY, BackboneError
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import seen_mass
from bridgemem.memory.past import Past
from bridgemem.numerics import all_finite


@dataclass(frozen=True)
class Scores:
    """log_p float [n, E]: log scores, higher is likelier. uncertainty float [n] in [0, 1]; None without an oracle.

    members float [k, n, E]: the log probabilities of those that a backbone is made of, if it is made of several.
    absent bool [n, E]: entities that are no candidates, as no event before the step names them; None without any.
    """

    log_p: Tensor
    uncertainty: Tensor | None = None
    members: Tensor | None = None
    absent: Tensor | None = None

    @property
    def of_candidates(self) -> Tensor:
        """The log scores, -inf for those that are no candidates: all that forecasts, gates and features may read."""
        return self.log_p if self.absent is None else self.log_p.masked_fill(self.absent, -torch.inf)


@dataclass(frozen=True)
class Attended:
    """The past events of an actor that a scorer looked at for one query, oldest first.

    relation (directed), partner, lag int64 [m]. attention float [m]: the share of each; what is left to 1 went to none
    of them. added float [m]: what each adds to the log score of its own partner, before scores are normalised.
    """

    relation: Tensor
    partner: Tensor
    lag: Tensor
    attention: Tensor
    added: Tensor


class Scorer(Protocol):
    """Whatever scores every entity as the answer of a query.

    Scores must depend on a query, and on facts strictly before its step (or before `past.frozen_at`), alone: not on
    its answer, nor on the other queries of the batch, nor on their order.

    Example:
        >>> import bridgemem as bm, torch
        >>> class FirstNames(bm.Scorer):
        ...     name = "first names first"
        ...     def score(self, queries, past):
        ...         return -torch.arange(past.events.n_entities).float().repeat(len(queries), 1)
        >>> bm.check_backbone(FirstNames(), data.events)
        Checked('first names first': nothing failed, 1 not checkable)
    """

    @property
    def name(self) -> str:
        """What sentences and records call it."""
        raise NotImplementedError

    @property
    def own_uncertainty(self) -> bool:
        """Whether its uncertainty is its own; else it is the mass on seen candidates, and entropy is tried too."""
        return False

    @property
    def n_members(self) -> int:
        """How many scorers it is made of, if it is an ensemble of several."""
        return 0

    @property
    def parallel(self) -> bool:
        """Whether several threads may ask it at once: it keeps nothing from one batch to the next."""
        return False

    @abstractmethod
    def score(self, queries: Queries, past: Past) -> Scores:
        """Score every entity as the answer of each query.

        Args:
            queries: n queries in ids: actor, relation in [0, 2R), step.
            past: The events; read only those before each query's step.

        Returns:
            `Scores`, or a bare tensor or array [n, E] of log scores.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> from bridgemem.events.queries import Queries
            >>> from bridgemem.memory.past import Past
            >>> found = Recurrence.fit(data).score(Queries.of(data.valid), Past(data.known))
            >>> len(found.log_p) == 2 * len(data.valid)  # both sides of each event
            True
        """

    def attended(self, query: Queries, past: Past) -> Attended | None:
        """Get the past events of the actor that the scorer attended to, for one query.

        Args:
            query: One query.
            past: The events.

        Returns:
            The events with their attention; None for a scorer without attention.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> from bridgemem.events.queries import Queries
            >>> from bridgemem.memory.past import Past
            >>> Recurrence.fit(data).attended(Queries.of(data.valid.rows(0, 1)).take(slice(0, 1)), Past(data.known))
        """
        return None


# row, candidate int64 [m], each once, and what is added to their scores, float64 [m]
Added = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class SparseScores:
    """Scores that are the same in every row but for some candidates: base float64 [E], and what is added to these.

    row, candidate int64 [m], ascending and each once; added float64 [m].
    """

    base: Tensor
    row: Tensor
    candidate: Tensor
    added: Tensor

    @classmethod
    def of(cls, base: Tensor, parts: Sequence[Added]) -> SparseScores:
        """From (row, candidate, added) in any order; what is added to one candidate is summed in the order of parts."""
        keys = [row * len(base) + candidate for row, candidate, _ in parts]
        found, place = torch.cat([base.new_empty(0, dtype=torch.int64), *keys]).unique(return_inverse=True)
        added, at = base.new_zeros(len(found)), 0
        for key, (_, _, value) in zip(keys, parts, strict=True):
            added[place[at : at + len(key)]] += value.to(base.dtype)  # a candidate occurs once in a part
            at += len(key)
        return cls(base, found // len(base), found % len(base), added)


@runtime_checkable
class SparseScorer(Protocol):
    """A scorer whose scores are sparse: it is ranked without a table of all entities."""

    def sparse(self, queries: Queries, past: Past) -> SparseScores: ...


class ScorerAround(Scorer):
    """A scorer around another one, under the same name."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    @property
    def name(self) -> str:
        return self.scorer.name

    @property
    def own_uncertainty(self) -> bool:
        return self.scorer.own_uncertainty

    @property
    def n_members(self) -> int:
        return self.scorer.n_members

    @property
    def parallel(self) -> bool:
        return self.scorer.parallel

    def attended(self, query: Queries, past: Past) -> Attended | None:
        return self.scorer.attended(query, past)


def called(scorer: object) -> str:
    """What sentences call a scorer: its name, or that of its class where it has none."""
    name = getattr(scorer, "name", None)
    return name if isinstance(name, str) else type(scorer).__name__


def check_scorer(given: Any) -> None:
    """Refuse what cannot score, with what to give instead."""
    if isinstance(given, type):
        raise BackboneError(f"{given.__name__} is a class; give an instance, as {given.__name__}.fit(dataset) makes.")
    if callable(getattr(given, "score", None)):
        return
    if isinstance(given, str):
        raise BackboneError(f"{given!r} is a name; give the backbone itself, as its class's fit(dataset) makes.")
    remedy = "give its backbone, model.parts.backbone()" if hasattr(given, "forecast") else "give a bridgemem.Backbone"
    raise BackboneError(f"{type(given).__name__} has no score(queries, past); {remedy}.")


def as_scores(found: Any, name: str, device: str | torch.device) -> Scores:
    """What a scorer returned as scores: arrays become tensors, whole numbers floats, gradients are dropped."""
    scores = found if isinstance(found, Scores) else Scores(found)
    given = {"log_p": scores.log_p, "uncertainty": scores.uncertainty, "members": scores.members}
    used = {part: values for part, values in given.items() if part == "log_p" or values is not None}
    made = {part: _floats(values, name, device) for part, values in used.items()}
    return scores if scores is found and all(made[part] is used[part] for part in used) else replace(scores, **made)


def _floats(values: Any, name: str, device: str | torch.device) -> Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        values = torch.from_numpy(np.ascontiguousarray(values)).to(device)
    if not isinstance(values, Tensor) or values.dtype == torch.bool or values.is_complex():
        kind = f"{values.dtype} values" if isinstance(values, Tensor | np.ndarray) else type(values).__name__
        raise BackboneError(
            f"{name} returned {kind} from score; return Scores(log_p), or log_p itself: log scores as a float tensor "
            "or array of shape [queries, entities]."
        )
    if values.requires_grad:
        values = values.detach()
    # float64, so that no count is rounded
    return values if values.is_floating_point() else values.double()


def ask(scorer: Scorer, queries: Queries, past: Past) -> Scores:
    """The scores of a scorer, from any of the plain forms; for scorers that are made of others."""
    return as_scores(scorer.score(queries, past), called(scorer), past.device)


def check_scores(scores: Scores, queries: Queries, n_entities: int, name: str) -> Scores:
    """The scores of a batch, or an error that says how they break the contract."""
    expected = (len(queries), n_entities)
    if tuple(scores.log_p.shape) != expected:
        raise BackboneError(
            f"{name} returned scores of shape {tuple(scores.log_p.shape)} instead of {expected}, queries by entities; "
            "train it on this data, if it was made for other data."
        )
    if not all_finite(scores.log_p):
        raise BackboneError(f"{name} returned a score that is NaN or infinite; log scores must be finite.")
    members = scores.members
    if members is not None and (tuple(members.shape[1:]) != expected or not all_finite(members)):
        raise BackboneError(
            f"{name} returned wrong scores of its members; return finite ones of shape [members, queries, E]."
        )
    u = scores.uncertainty
    if u is not None and (u.shape != (len(queries),) or not ((u >= 0) & (u <= 1)).all()):
        raise BackboneError(f"{name} returned a wrong uncertainty; return one number in [0, 1] per query, or None.")
    return scores


def score_queries(scorer: Scorer, queries: Queries, past: Past) -> Scores:
    """Checked scores; the answers are withheld, and a backbone without an oracle gets its mass on seen candidates."""
    blind, name = queries.unanswered(), called(scorer)
    try:
        found = ask(scorer, blind, past)
    except (IndexError, RuntimeError) as problem:
        if any(words in str(problem) for words in NO_MEMORY):
            raise
        said = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        raise BackboneError(
            f"{name} cannot score the queries ({said}); train it on this data, if its weights are damaged or "
            "belong to other data."
        ) from problem
    scores = check_scores(found, blind, past.events.n_entities, name)
    if scores.uncertainty is not None:
        return scores
    return replace(scores, uncertainty=seen_mass(scores.of_candidates, *past.seen(queries.actor, queries.step)))
