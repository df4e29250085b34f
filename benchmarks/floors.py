"""Counted floors: the arithmetic and the memory traffic that an operation cannot do without.

Only what has to happen is counted: matrix products over distinct states, inputs read once, results written once. The
floor of an operation is the larger of its products over the machine's matmul rate and its bytes over the bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from benchmarks.machine import Machine
from bridgemem.backbones.cenet import CenetSettings
from bridgemem.backbones.regcn import RegcnSettings
from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace

EVENT = 16  # bytes of a fact: four numbers of four bytes
ADAM = 7 * 4  # bytes a parameter moves in a step: read with its gradient and both moments, written with both moments
BACKWARD = 3  # a product forward and two backward


@dataclass(frozen=True)
class Work:
    """FLOPs of matrix products and bytes of memory traffic."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Work:
        return Work(self.flops * times, self.bytes * times)

    def seconds(self, machine: Machine) -> float:
        return max(self.flops / machine.matmul, self.bytes / machine.bandwidth)


def index(events: EventLog) -> Work:
    """Every fact read once and written under both orders of its pair."""
    return Work(bytes=3 * EVENT * len(events))


def mining(events: EventLog, examples: Examples) -> Work:
    """Every fact read from both sides, every example written once."""
    return Work(bytes=2 * EVENT * len(events) + _bytes(examples))


def counts(examples: Examples, space: TokenSpace) -> Work:
    """Tokens and targets read once, the table written once."""
    return Work(bytes=_bytes(examples) + 8 * space.size * space.n_directed)


def head_flops(space: TokenSpace, settings: Settings) -> int:
    """The head's two products for one state."""
    return 2 * (settings.width * settings.hidden + settings.hidden * space.n_directed)


def reader_parameters(space: TokenSpace, settings: Settings) -> int:
    d, h = settings.width, settings.hidden
    tables = (space.n_relations + 2 + space.n_bins) * d
    return tables + d + 1 + 2 * d + (d + 1) * h + (h + 1) * space.n_directed


def reader_epoch(examples: Examples, space: TokenSpace, settings: Settings) -> Work:
    """The head over each batch's distinct states, forward and backward, and one Adam step a batch."""
    steps = -(-len(examples) // settings.batch)
    states = len(examples) * distinct_share(examples.tokens, settings.batch)
    flops = BACKWARD * head_flops(space, settings) * states
    return Work(flops, _bytes(examples) + steps * ADAM * reader_parameters(space, settings))


def reader_judgement(examples: Examples, space: TokenSpace, settings: Settings) -> Work:
    """The likelihood of examples, each distinct state read once."""
    states = len(examples) * distinct_share(examples.tokens, len(examples))
    return Work(head_flops(space, settings) * states, _bytes(examples))


def ranking(queries: int, entities: int) -> Work:
    """Every float32 score read once, for all filters together."""
    return Work(bytes=4 * queries * entities)


def cenet_scores(queries: int, entities: int, relations: int, settings: CenetSettings) -> Work:
    """Both scorers' products with the entity table; every score written once."""
    d = settings.width
    return Work(queries * 2 * 2 * (2 * d * d + d * entities), 4 * queries * entities + 4 * (entities + relations) * d)


def cenet_steps(facts: int, steps: int, entities: int, relations: int, settings: CenetSettings) -> Work:
    """Training steps over facts: both scorers' products forward and backward, and Adam over all parameters."""
    d, queries = settings.width, 2 * facts
    scored = 2 * 2 * (2 * d * d + d * entities)
    contrast = 2 * 3 * d * d + 2 * d * min(settings.batch, facts)
    parameters = 2 * entities * d + 2 * relations * d + 8 * d * d + 3 * d * d
    return Work(BACKWARD * queries * (scored + contrast), steps * ADAM * parameters)


def regcn_gradient(queries: int, entities: int, relations: int, settings: RegcnSettings) -> Work:
    """The gradient of one step: states of all entities evolved once, and every query of its targets decoded once."""
    d = settings.width
    evolved = settings.history * 2 * d * d * (entities * (settings.layers + 1) + 2 * relations * 9)
    decoded = queries * 2 * d * (2 * settings.kernels * (d + 3) + entities + 2 * relations)
    return Work(BACKWARD * (evolved + decoded))


def distinct_share(tokens: Tensor, batch: int, draws: int = 2) -> float:
    """The share of distinct states (as multisets of tokens) in random batches of the given size."""
    n = len(tokens)
    if not n:
        return 1.0
    rng, shares = np.random.default_rng(0), []
    for _ in range(draws if batch < n else 1):
        rows = rng.choice(n, size=batch, replace=False) if batch < n else np.arange(n)
        states = np.ascontiguousarray(np.sort(tokens.cpu().numpy()[rows], axis=1))
        whole = states.view(np.dtype((np.void, states.dtype.itemsize * states.shape[1]))).ravel()
        shares.append(len(np.unique(whole)) / len(rows))
    return float(np.mean(shares))


def _bytes(examples: Examples) -> int:
    return examples.tokens.nbytes + examples.target.nbytes
