"""The attention reader: a small network that predicts the next directed relation of a pair from its tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.config import Settings
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.progress import SILENT, Progress
from bridgemem.residual import memory_state, neural_evidence

_CHUNK = 1 << 15


class Reader(nn.Module):
    """322 |R| + 8,961 parameters at the paper's width 64 and head 128."""

    parts: Tensor
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
        direction, relation, recency = (torch.from_numpy(p) for p in space.parts())
        self.register_buffer("parts", torch.stack([direction, relation, recency]), persistent=False)
        self.register_buffer("log_prior", log_prior.float())

    def token_tables(self) -> tuple[Tensor, Tensor]:
        """z [T+1, d] and salience [T+1] of every token; the pad's row is zero and its salience -inf."""
        direction, relation, recency = self.parts.unbind(0)
        z = self.relation(relation) + self.direction(direction) + self.recency(recency)
        salience = self.attention(z.tanh()).squeeze(1)
        return F.pad(z, (0, 0, 0, 1)), F.pad(salience, (0, 1), value=-math.inf)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [n, K] -> unnormalised log odds [n, 2R], to which log pi is still to be added."""
        m, _ = memory_state(*self.token_tables(), tokens)
        return self.head(m)

    def loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self(tokens) + self.log_prior, target)

    @torch.no_grad()
    def evidence(self, tokens: Tensor) -> Tensor:
        """A_nn of every directed relation for every state, float32 [n, 2R]."""
        tables = self.token_tables()
        blocks = [
            neural_evidence(self.head(memory_state(*tables, part)[0]), self.log_prior) for part in tokens.split(_CHUNK)
        ]
        return torch.cat(blocks) if blocks else tokens.new_empty((0, len(self.log_prior)), dtype=torch.float32)

    @torch.no_grad()
    def attention_weights(self, tokens: Tensor) -> Tensor:
        """alpha [n, K] of each event in its state."""
        return memory_state(*self.token_tables(), tokens)[1]


@torch.no_grad()
def negative_log_likelihood(reader: Reader, examples: Examples) -> float:
    """Mean -log p(target | state) over the examples, in nats."""
    total = 0.0
    for tokens, target in zip(examples.tokens.split(_CHUNK), examples.target.split(_CHUNK), strict=True):
        total += float(reader.loss(tokens.long(), target)) * len(target)
    return total / max(len(examples), 1)


class ReaderTraining:
    """A reader being trained on examples that stay on one device; the seed fixes weights and batch order."""

    def __init__(
        self, examples: Examples, space: TokenSpace, log_prior: Tensor, settings: Settings, seed: int, device: str
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.reader = Reader(space, log_prior, settings.width, settings.hidden).to(device)
        self.examples = examples.to(device)
        self.batch = settings.batch
        self.shuffle = torch.Generator(device=device).manual_seed(seed)
        fused = device.startswith("cuda") or None
        self.optimizer = torch.optim.AdamW(self.reader.parameters(), lr=settings.learning_rate, fused=fused)

    def epoch(self) -> None:
        """One pass over all examples in random order."""
        order = torch.randperm(len(self.examples), generator=self.shuffle, device=self.examples.target.device)
        for rows in order.split(self.batch):
            self.optimizer.zero_grad(set_to_none=True)
            self.reader.loss(self.examples.tokens[rows].long(), self.examples.target[rows]).backward()
            self.optimizer.step()


def select_epochs(
    early: Examples,
    late: Examples,
    space: TokenSpace,
    log_prior: Tensor,
    settings: Settings,
    seed: int,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> tuple[int, list[float]]:
    """The number of epochs whose likelihood on the later examples is best, and the curve that says so."""
    training = ReaderTraining(early, space, log_prior, settings, seed, device)
    late = late.to(device)
    curve: list[float] = []
    best, best_epoch = math.inf, 1
    with progress.task("choosing the reader's epochs", total=settings.max_epochs) as advance:
        for epoch in range(1, settings.max_epochs + 1):
            training.epoch()
            curve.append(negative_log_likelihood(training.reader, late))
            advance(1, note=f"nll {curve[-1]:.4f}")
            if curve[-1] < best - settings.min_improvement:
                best, best_epoch = curve[-1], epoch
            elif epoch - best_epoch >= settings.patience:
                break
    return best_epoch, curve


def train_reader(
    examples: Examples,
    space: TokenSpace,
    log_prior: Tensor,
    settings: Settings,
    epochs: int,
    seed: int,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Reader:
    """A reader trained anew for a fixed number of epochs."""
    training = ReaderTraining(examples, space, log_prior, settings, seed, device)
    with progress.task("fitting the reader", total=epochs) as advance:
        for _ in range(epochs):
            training.epoch()
            advance(1)
    return training.reader.eval()
