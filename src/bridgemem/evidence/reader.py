"""The attention reader: a small network that predicts the next directed relation of a pair from its tokens."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.config import Settings
from bridgemem.equations import memory_state, neural_evidence
from bridgemem.evidence.batches import Batch, StateTable, head_loss
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.progress import SILENT, Progress
from bridgemem.training.captured import DecoupledSteps
from bridgemem.training.early_stopping import improving

_CHUNK = 1 << 15
_CELLS = 1 << 24  # logits at a time: 64 MiB, however many relations there are
# e to this is about the smallest number with full precision
_LEAST_SALIENCE = -80.0


class Reader(nn.Module):
    """322 |R| + 8,961 parameters at the paper's width 64 and head 128."""

    log_prior: Tensor

    def __init__(self, space: TokenSpace, log_prior: Tensor, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.relation = nn.Embedding(space.n_relations, width)
        self.direction = nn.Embedding(2, width)
        self.recency = nn.Embedding(space.n_bins, width)
        for table in (self.relation, self.direction, self.recency):
            nn.init.normal_(table.weight, std=0.1)
        self.attention = nn.Linear(width, 1)
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, space.n_directed)
        )
        self.register_buffer("log_prior", log_prior.float())

    def token_tables(self) -> tuple[Tensor, Tensor]:
        """z [T+1, d] and salience [T+1] of every token; the pad's row is zero and its salience -inf."""
        z, salience = self._tokens()
        return F.pad(z, (0, 0, 0, 1)), F.pad(salience, (0, 1), value=-math.inf)

    def _tokens(self) -> tuple[Tensor, Tensor]:
        # the order of token ids, (direction * R + relation) * bins + bin, is that of the axes
        z = self.relation.weight[None, :, None] + self.direction.weight[:, None, None] + self.recency.weight
        z = z.flatten(0, 2)
        return z, self.attention(z.tanh()).squeeze(1)

    def forward(self, tokens: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """tokens int64 [n, K] -> unnormalised log odds [n, 2R], to which log pi is still to be added.

        tables: its own, where they are at hand.
        """
        m, _ = memory_state(*(tables or self.token_tables()), tokens)
        return self.head(m)

    def loss(self, batch: Batch) -> Tensor:
        """Weighted sum of -log p(target | state) over a batch; its gradients are those of Equations 1 and 2."""
        return head_loss(self.hidden(batch.states), *self.last_layer(), batch)

    def hidden(self, states: Tensor) -> Tensor:
        """What the head's last layer sees of each state, float32 [n, hidden].

        With y = e^salience every state is sum_j y_j z_j / sum_j y_j: one sum over rows of a table of y z and y.
        """
        z, salience = self._tokens()
        y = (salience - salience.detach().max()).clamp(min=_LEAST_SALIENCE).exp()[:, None]
        summed = F.embedding_bag(states, F.pad(torch.cat([y * z, y], dim=1), (0, 0, 0, 1)), mode="sum")
        weighted, total = summed.split((z.shape[1], 1), dim=1)
        norm, inner, act, _ = self.head
        return act(inner(norm(weighted / total)))

    def last_layer(self) -> tuple[Tensor, Tensor]:
        """Weight [2R, hidden] and bias [2R] that turn `hidden` into the logits of p(r | state), log pi included."""
        last = cast(nn.Linear, self.head[-1])
        return last.weight, last.bias + self.log_prior

    @torch.no_grad()
    def evidence(self, tokens: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """A_nn of every directed relation for every state, float32 [n, 2R]; tables as in `forward`."""
        tables = tables or self.token_tables()
        blocks = [neural_evidence(self(part, tables), self.log_prior) for part in tokens.split(self._rows)]
        return torch.cat(blocks) if blocks else tokens.new_empty((0, len(self.log_prior)), dtype=torch.float32)

    def evidence_for(
        self, tokens: Tensor, state: Tensor, query_relation: Tensor, tables: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """A_nn of the relation asked int64 [m] after a state, given by its row int64 [m] of the tokens: float32 [m].

        The same as looking it up in `evidence`, without all the relations that are not asked of other states.
        """
        if len(tokens) <= self._rows:
            return self.evidence(tokens, tables)[state, query_relation]
        found = self.log_prior.new_empty(len(state))
        for at, part in zip(range(0, len(tokens), self._rows), tokens.split(self._rows), strict=True):
            own = ((state >= at) & (state < at + len(part))).nonzero().squeeze(1)
            found[own] = self.evidence(part, tables)[state[own] - at, query_relation[own]]
        return found

    @property
    def _rows(self) -> int:
        """How many states are read at a time."""
        return max(1, min(_CHUNK, _CELLS // len(self.log_prior)))

    @torch.no_grad()
    def attention_weights(self, tokens: Tensor) -> Tensor:
        """alpha [n, K] of each event in its state."""
        return memory_state(*self.token_tables(), tokens)[1]


@torch.no_grad()
def mean_loss(reader: Reader, batch: Batch) -> float:
    """The weighted sum of -log p(target | state) over a batch of any size."""
    weight, bias = reader.last_layer()
    total = torch.zeros((), dtype=torch.float64, device=bias.device)
    for states, examples in batch.pieces:
        log_p = torch.log_softmax(F.linear(reader.hidden(batch.states[states]), weight, bias), dim=1)
        found = log_p[batch.state[examples] - states.start, batch.target[examples]]
        total -= found.double() @ batch.weight[examples].double()
    return float(total)


class ReaderTraining:
    """A reader being trained on examples that stay on one device; the seed fixes weights and batch order."""

    def __init__(
        self, examples: Examples, log_prior: Tensor, settings: Settings, seed: int, device: str = "cpu"
    ) -> None:
        self.settings, space = settings, TokenSpace.of(settings, len(log_prior) // 2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.reader = Reader(space, log_prior, settings.width, settings.hidden).to(device)
        self.examples = StateTable(examples.to(device), space.n_directed)
        self.shuffle = torch.Generator(device=device).manual_seed(seed)
        self.steps = DecoupledSteps(list(self.reader.parameters()), settings.learning_rate)
        self.batch = min(settings.batch, max(len(examples), 1))
        # where a recorded step finds its batch
        self.rows = torch.zeros(self.batch, dtype=torch.int64, device=device)
        self.weight = torch.zeros(self.batch, device=device)

    def train(self, epochs: int, progress: Progress = SILENT) -> Reader:
        """The reader after a fixed number of epochs."""
        with progress.task("fitting the reader", total=epochs) as advance:
            for _ in range(epochs):
                self.epoch()
                advance(1)
        return self.reader.eval()

    def best_epochs(self, late: Examples, progress: Progress = SILENT) -> tuple[int, list[float]]:
        """The number of epochs whose likelihood on later examples is best, and the curve that says so."""
        judges = StateTable(late.to(self.examples.device), len(self.reader.log_prior)).whole()

        def epoch() -> float:
            self.epoch()
            return mean_loss(self.reader, judges)

        s = self.settings
        tried = improving(
            epoch,
            most=s.max_epochs,
            patience=s.patience,
            least_gain=s.min_improvement,
            progress=progress,
            label="choosing the reader's epochs",
        )
        curve = list(tried)
        return max((n for n, _, better in curve if better), default=1), [loss for _, loss, _ in curve]

    def epoch(self) -> None:
        """One pass over all examples in random order."""
        order = torch.randperm(len(self.examples), generator=self.shuffle, device=self.examples.device)
        with self.steps.running():
            if self.steps.on_gpu:
                self._replay(order)
                return
            for batch in self.examples.batches(order, self.batch):
                self.steps.take(0, partial(self.reader.loss, batch), stays=False)

    def _replay(self, order: Tensor) -> None:
        """The epoch as one step taken again and again: all batches have one shape and come to one place."""
        for rows, weight in zip(self._filled(order), self.weights, strict=True):
            self.rows.copy_(rows)
            self.weight.copy_(weight)
            self.steps.take(0, self._step_loss, stays=True)

    @cached_property
    def weights(self) -> Tensor:
        """What each row of each batch weighs, float32 [batches, batch]."""
        real = self._filled(torch.ones(len(self.examples), device=self.examples.device))
        return real / real.sum(1, keepdim=True)

    def _step_loss(self) -> Tensor:
        return self.reader.loss(self.examples.at(self.rows, self.weight))

    def _filled(self, values: Tensor) -> Tensor:
        """One value an example as rows of one length; zeros, which are rows of no weight, fill up the last."""
        return F.pad(values, (0, -len(values) % self.batch)).view(-1, self.batch)
