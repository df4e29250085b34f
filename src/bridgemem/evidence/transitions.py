"""Transitions: all that the residual learned from a causal prefix, and the evidence it gives for queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Settings
from bridgemem.equations import Table, count_evidence
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.counts import CountTable, count_specs, log_prior
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.mining import counted_and_sampled
from bridgemem.evidence.reader import Reader, ReaderTraining
from bridgemem.evidence.tokens import TokenSpace, distinct_states
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import STEP_BITS, code, expand
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.tensors import TensorSpec, check_tensors, part_of, tensor_of
from bridgemem.training.checkpoint import shells, with_weights
from bridgemem.training.devices import moved

# rows and candidates -> the places of those that are wanted
Wanted = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evidence:
    """Both readers' evidence for every (query, candidate) with a dyadic state; all others have none.

    row, candidate int64 [m], ascending; a_ct, a_nn, support float64 [m]; tokens int64 [m, K]; lag int64 [m] of the
    newest event.
    """

    row: Tensor
    candidate: Tensor
    a_ct: Tensor
    a_nn: Tensor
    support: Tensor
    tokens: Tensor
    lag: Tensor


@dataclass(frozen=True)
class EpochChoice:
    """The epoch that the later tenth of the prefix chose, its likelihood curve, and how many examples were learned."""

    epochs: int
    curve: tuple[float, ...]
    examples: int = 0


class Transitions:
    """Prior, count table and reader, fitted on one prefix of events."""

    def __init__(self, settings: Settings, log_pi: Tensor, counts: CountTable, reader: Reader) -> None:
        self.settings = settings
        self.space = TokenSpace.of(settings, len(log_pi) // 2)
        self.log_pi = log_pi
        self.counts = counts
        self.reader = reader

    @classmethod
    def fit(
        cls,
        events: EventLog,
        settings: Settings,
        seed: int,
        device: str = "cpu",
        *,
        epochs: int | None = None,
        progress: Progress = SILENT,
    ) -> tuple[Transitions, EpochChoice]:
        """Fit on all given events; without a number of epochs, the last tenth of the examples chooses it first."""
        with progress.task("mining transitions"):
            counts, sample = counted_and_sampled(events, settings, seed, device)

        def prior(step: int | None) -> Tensor:
            return log_prior(events if step is None else events.prefix(step))

        return cls.of(sample, counts, prior, settings, seed=seed, device=device, epochs=epochs, progress=progress)

    @classmethod
    def of(
        cls,
        examples: Examples,
        counts: CountTable,
        prior: Callable[[int | None], Tensor],
        settings: Settings,
        *,
        seed: int,
        device: str = "cpu",
        epochs: int | None = None,
        progress: Progress = SILENT,
    ) -> tuple[Transitions, EpochChoice]:
        """Fit the reader on examples that are mined and counted; prior: log pi before a step, or of everything."""

        def training(some: Examples, before: int | None = None) -> ReaderTraining:
            return ReaderTraining(some, prior(before), settings, seed, device)

        chosen = _choose_epochs(examples, training, progress) if epochs is None else EpochChoice(epochs, ())
        reader = training(examples).train(chosen.epochs, progress)
        return cls(settings, prior(None), counts, reader).to(device), replace(chosen, examples=len(examples))

    def to(self, device: str | torch.device) -> Transitions:
        return Transitions(self.settings, self.log_pi.to(device), self.counts.to(device), moved(self.reader, device))

    @cached_property
    def p_ct(self) -> Table:
        return self.counts.smooth(self.log_pi, self.settings.smoothing)

    @cached_property
    def support(self) -> Tensor:
        return self.counts.support()

    @cached_property
    @torch.no_grad()
    def _token_tables(self) -> tuple[Tensor, Tensor]:
        # the reader is not trained any more; for a single query this would be a good part of the work
        return self.reader.token_tables()

    def evidence(self, queries: Queries, past: Past, wanted: Wanted | None = None) -> Evidence:
        """A_ct, A_nn and n_B of every candidate seen inside the window, for the relation that each query asks.

        wanted: which of them, where not all are; from row, candidate int64 [m] the places of those, ascending.
        """
        s = self.settings
        # a state depends on actor and step alone, so it is read once for all the relations asked of them
        asked_at, which = torch.unique(code(queries.actor, queries.step), return_inverse=True)
        actor, step = asked_at >> STEP_BITS, asked_at & ((1 << STEP_BITS) - 1)
        until = past.cut(step)
        states = past.partners(actor, step, s.k if wanted is None else 1, s.window)
        bounds = torch.searchsorted(states.row, torch.arange(len(asked_at) + 1, device=step.device))
        row, at = expand(bounds[which], bounds[which + 1])
        if wanted is not None:
            own = wanted(row, states.candidate[at])
            used, at = at[own].unique(return_inverse=True)
            row, pair = row[own], states.take(used)
            # of the few that are wanted, the other events too
            asked_of = actor[pair.row], pair.candidate, step[pair.row]
            states = past.dyads.read(*asked_of, s.k, s.window, until[pair.row])
        tokens = self.space.encode(states.relation, states.direction, states.lag, states.found)
        first, group = distinct_states(tokens)
        asked = queries.relation[row]
        return Evidence(
            row,
            states.candidate[at],
            count_evidence(self.p_ct, self.log_pi, tokens[at], asked, s.pooling),
            self.reader.evidence_for(tokens[first], group[at], asked, self._token_tables).double(),
            self.support[tokens].sum(1)[at],
            tokens[at],
            states.lag[:, 0][at],
        )

    def tensors(self) -> dict[str, Tensor]:
        reader = {f"reader.{name}": tensor.contiguous() for name, tensor in self.reader.state_dict().items()}
        return {"log_prior": self.log_pi, **self.counts.tensors(), **reader}

    @classmethod
    def restore(cls, settings: Settings, tensors: dict[str, Tensor]) -> Transitions:
        n_relations = len(tensor_of(tensors, "log_prior", 1)) // 2
        space = TokenSpace.of(settings, n_relations)
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("reader.")}
        check_tensors(own, {"log_prior": TensorSpec((2 * n_relations,)), **count_specs(space)})
        log_pi = own.pop("log_prior")
        counts = CountTable.restore(space, own)
        # nothing is allocated or drawn before the weights are known to fit
        with shells():
            reader = Reader(space, log_pi, settings.width, settings.hidden)
        return cls(settings, log_pi.double(), counts, with_weights(reader, part_of(tensors, "reader.")).eval())


def _choose_epochs(
    examples: Examples, training: Callable[[Examples, int], ReaderTraining], progress: Progress
) -> EpochChoice:
    """Cut at the .9 quantile of the examples' times; what comes later judges what was learned from before."""
    if not len(examples):
        return EpochChoice(1, ())
    cut = int(np.quantile(examples.step.numpy(), 0.9))
    early, late = (examples.take(side.nonzero().squeeze(1)) for side in (examples.step < cut, examples.step >= cut))
    if not len(early):
        return EpochChoice(1, ())
    epochs, curve = training(early, cut).best_epochs(late, progress)
    return EpochChoice(epochs, tuple(curve))
