"""Batches: examples by state, so that a state that repeats is read once and its targets are weighed together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import distinct_states

# that many logits stay in the cache from one product to the next, and are worth sharing out; a GPU wants few launches
_CACHED = 1 << 20
_GPU_ROWS = 1 << 16


@dataclass(frozen=True)
class Batch:
    """Weighted examples, grouped by state.

    states int32 [u, K]; mass float32 [u], the weight of all examples of a state together; state int64 [n], ascending,
    target int64 [n] and weight float32 [n] of each example, or of equal examples together. pieces: ranges of states
    with their ranges of examples.
    """

    states: Tensor
    mass: Tensor
    state: Tensor
    target: Tensor
    weight: Tensor
    pieces: tuple[tuple[slice, slice], ...]


def piece_rows(width: int, device: torch.device) -> int:
    """How many states are read at a time where each has that many outputs."""
    return _GPU_ROWS if device.type == "cuda" else max(_CACHED // width, 64)


class StateTable:
    """All examples of a training or a judgement on one device: each distinct state once, and who is in it.

    states int32 [s, K]; group int64 [n], the state of each example; target int64 [n].
    """

    def __init__(self, examples: Examples, n_directed: int) -> None:
        first, self.group = distinct_states(examples.tokens)
        self.states, self.target = examples.tokens[first].int(), examples.target
        self.n_directed, self.device = n_directed, self.target.device
        # a code holds all there is to know of an example, so sorted codes are grouped without looking anything up
        code = self.group * n_directed + self.target
        self.code = code.int() if len(first) * n_directed < 2**31 else code

    def __len__(self) -> int:
        return len(self.target)

    def whole(self) -> Batch:
        """All examples as one batch, each with the same weight."""
        return self._grouped(np.sort(self.code.cpu().numpy()))

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """The examples in that order, that many at a time; on the host, where the number of states may vary."""
        code = self.code.index_select(0, order).numpy()
        full = len(code) // size * size
        for row in np.sort(code[:full].reshape(-1, size), axis=1):
            yield self._grouped(row)
        if full < len(code):
            yield self._grouped(np.sort(code[full:]))

    def at(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples at rows int64 [n] with weights [n], ungrouped: the shapes depend on the number of rows alone."""
        state = torch.arange(len(rows), device=self.device)
        whole = slice(0, len(rows))
        states = self.states.index_select(0, self.group[rows])
        return Batch(states, weight, state, self.target[rows], weight, ((whole, whole),))

    def _grouped(self, code: np.ndarray) -> Batch:
        """A batch of sorted codes [n]."""
        first = _starts(code)
        many = np.diff(first, append=len(code))
        state, target = np.divmod(code[first], self.n_directed)
        begin = _starts(state)
        own = np.diff(begin, append=len(state))
        mass = np.add.reduceat(many, begin) if len(begin) else many
        cuts = [*range(0, len(begin), piece_rows(self.n_directed, self.device)), len(begin)]
        bounds = [*begin[cuts[:-1]].tolist(), len(state)]
        pieces = zip((slice(*c) for c in pairwise(cuts)), (slice(*b) for b in pairwise(bounds)), strict=True)
        share = 1 / max(len(code), 1)

        def here(column: np.ndarray) -> Tensor:
            return torch.from_numpy(column).to(self.device)

        return Batch(
            states=self.states.index_select(0, here(state[begin])),
            mass=here(mass).float() * share,
            state=here(np.repeat(np.arange(len(begin)), own)),
            target=here(target).long(),
            weight=here(many).float() * share,
            pieces=tuple(pieces),
        )


def _starts(ascending: np.ndarray) -> np.ndarray:
    """Where each value of an ascending array first stands, int64."""
    new = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return np.flatnonzero(new)


class _HeadLoss(torch.autograd.Function):
    """The head's last layer and the cross entropy in one, piece by piece, its gradients made on the way."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, batch: Batch) -> Tensor:
        n_directed = len(bias)
        loss = bias.new_zeros(())
        into_hidden, into_weight, into_bias = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        for states, examples in batch.pieces:
            p = torch.softmax(torch.addmm(bias, hidden[states], weight.t()), dim=1)
            state, share = batch.state[examples], batch.weight[examples]
            cell = (state - states.start) * n_directed + batch.target[examples]
            mass = batch.mass[state].clamp(min=torch.finfo(p.dtype).tiny)
            flat = p.view(-1)
            loss -= share @ flat[cell].clamp(min=torch.finfo(p.dtype).tiny).log()
            flat.index_add_(0, cell, share / mass, alpha=-1)
            torch.mm(p, weight, out=into_hidden[states])
            # the mass of a state scales its row of every gradient, and a row of `hidden` is shorter than one of p
            into_weight.addmm_(p.t(), hidden[states] * batch.mass[states, None])
            into_bias.addmv_(p.t(), batch.mass[states])
        ctx.save_for_backward(into_hidden, batch.mass, into_weight, into_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        into_hidden, mass, into_weight, into_bias = ctx.saved_tensors
        return into_hidden * (grads[0] * mass)[:, None], grads[0] * into_weight, grads[0] * into_bias, None


def head_loss(hidden: Tensor, weight: Tensor, bias: Tensor, batch: Batch) -> Tensor:
    """Weighted sum of -log softmax(W h + b) at the targets: hidden [u, h], weight [2R, h], bias [2R] -> scalar.

    The same as a linear layer with F.cross_entropy over all examples, at the cost of the distinct states and without a
    pass over [u, 2R] that leaves the cache. Where p is too small for a float the loss is cut off, its gradient is not.
    """
    return _HeadLoss.apply(hidden, weight, bias, batch)
