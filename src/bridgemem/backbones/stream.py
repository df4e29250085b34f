"""Stream: a small attention reader over an actor's own last events, which it may also copy its answer from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Bounds, Grid, NetBackbone
from bridgemem.backbones.scorer import Attended, Scores
from bridgemem.config import MOST_EVENTS, MOST_UNITS, BelowOne, Count, Declared, Positive, Range, Size
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.names import folded
from bridgemem.events.queries import Queries
from bridgemem.memory.actors import ActorEvents, LastEvents
from bridgemem.memory.past import Past
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.captured import Steps, tf32_matmul
from bridgemem.training.checkpoint import Checkpoint, Training

WARM_UP = 0.15  # share of the steps in which the learning rate grows
CLIP = 1.0  # the largest norm of a gradient
LAGS = 32  # bins of lags, each twice as long as the one before
MOST_WORDS = 8  # of one name that are read
ROWS = 8192  # queries whose events are read at once
SIZES = {"cuda": (256, 32), "cpu": (64, 16)}  # width and k: what a GPU, and two cores, train in a minute or few


@dataclass(frozen=True)
class StreamSettings(Declared):
    """k events are read of an actor. width and k are left to the device where they are 0: see SIZES.

    What training leaves out at random: numbers of what is summed up (dropout) and of an event's vector (token_dropout),
    whole events (event_dropout), and the vector of the actor (actor_dropout), so that its events have to say who it is.
    negatives: entities that a CPU draws for a batch to stand for all others, where there are more; 0 for all of them,
    which a GPU always reads.
    words: learn a vector for each word that several names share, a part of the vectors of their entities.
    most_queries: fewer epochs, but two of them, where all would read more queries than that.
    """

    width: Annotated[int, Range(ge=0, le=MOST_UNITS)] = 0
    k: Annotated[int, Range(ge=0, le=MOST_EVENTS)] = 0
    blocks: Count = 2
    heads: Count = 4
    dropout: BelowOne = 0.4
    token_dropout: BelowOne = 0.2
    event_dropout: BelowOne = 0.3
    actor_dropout: BelowOne = 0.3
    negatives: Size = 2048
    batch: Count = 512
    epochs: Count = 6
    most_queries: Count = 4_000_000
    learning_rate: Positive = 3e-3
    words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SettingsError(f"heads must divide the width {self.width}, and {self.heads} does not.")

    def epochs_on(self, queries: int) -> int:
        """How many passes are made over that many train queries."""
        return min(self.epochs, max(2, self.most_queries // max(queries, 1)))


class Words(nn.Module):
    """A vector for each word that several names share, so that "Police (India)" begins near "Army (India)"."""

    index: Tensor
    share: Tensor

    def __init__(self, names: Sequence[str], width: int) -> None:
        super().__init__()
        index, words = shared_words(names)
        self.register_buffer("index", index)
        # the mean of a name's words; the last place stands for none
        self.register_buffer("share", 1 / (index < words).sum(1, keepdim=True).clamp(min=1))
        self.word = nn.Parameter(torch.randn(words, width) / math.sqrt(width))

    def forward(self) -> Tensor:
        """What words add to the vector of every entity, [E, d]."""
        return F.embedding(self.index, F.pad(self.word, (0, 0, 0, 1))).sum(1) * self.share


def shared_words(names: Sequence[str]) -> tuple[Tensor, int]:
    """The words that names share, int64 [E, most of a name], filled up with the number of all words; that number."""
    found = [sorted(set(folded(name).split())) for name in names]
    count = Counter(word for words in found for word in words)
    place = {word: i for i, word in enumerate(sorted(word for word, names in count.items() if names > 1))}
    rows = [[place[word] for word in words if word in place][:MOST_WORDS] for words in found]
    longest = max(map(len, rows), default=0)
    padded = [row + [len(place)] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64).view(len(names), longest), len(place)


class Block(nn.Module):
    """Attention of a query over its events and one slot more that stands for none of them, and a ReLU network.

    A head compares the query with the events themselves and sums the events as they are. What usually projects every
    event is part of the projections of the query and of the sum: the same functions at a fraction of the products.
    """

    def __init__(self, settings: StreamSettings) -> None:
        super().__init__()
        d, self.heads, self.dropout = settings.width, settings.heads, settings.dropout
        self.look, self.take = nn.Linear(d, self.heads * d), nn.Linear(self.heads * d, d)
        self.inner, self.outer = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm_look, self.norm_inner = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Tensor, tokens: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, d], tokens [n, k + 1, d], visible bool [n, k + 1] -> x after the block, and the attention [n, k + 1].

        The attention is the mean of the heads'.
        """
        n, _, d = tokens.shape
        query = self.look(self.norm_look(x)).view(n, self.heads, d)
        fit = query @ tokens.transpose(1, 2) / math.sqrt(d)
        share = fit.masked_fill(~visible[:, None], -torch.inf).softmax(2)
        x = x + F.dropout(self.take((share @ tokens).view(n, -1)), self.dropout, self.training)
        inner = F.relu(self.inner(self.norm_inner(x)))
        return x + F.dropout(self.outer(inner), self.dropout, self.training), share.mean(1)


@dataclass(frozen=True)
class Reading:
    """What was read for n queries. events: the last k of each actor.

    attention float [n, k]: the mean over blocks and heads; what is left to 1 looked at none of them. added float
    [n, k]: what each event adds to the log score of its own partner, before scores are normalised. state float [n, d]:
    what the vectors of all entities are multiplied with, entity float [E, d].
    """

    events: LastEvents
    attention: Tensor
    added: Tensor
    state: Tensor
    entity: Tensor


class StreamNet(nn.Module):
    """A query is an actor, a directed relation and the last events of the actor."""

    def __init__(self, n_entities: int, n_relations: int, settings: StreamSettings) -> None:
        super().__init__()
        d, self.settings = settings.width, settings

        def table(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape) / math.sqrt(d))

        self.entity, self.nothing = table(n_entities, d), table(d)
        # a relation as it is asked about, and as it happened
        self.asked, self.relation = table(2 * n_relations, d), table(2 * n_relations, d)
        # a lag longer than all of train has no more than its logarithm
        self.lag, self.log_lag = nn.Parameter(torch.zeros(LAGS, d)), nn.Parameter(torch.zeros(d))
        self.popularity = nn.Parameter(torch.zeros(n_entities))
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.blocks))
        self.norm_token, self.norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.final, self.copy = nn.Linear(d, d), nn.Linear(d, d)
        self.words: Words | None = None

    @torch.no_grad()
    def fold(self) -> None:
        """Make what words add a part of the entities' own vectors: words are of training alone."""
        if self.words is not None:
            self.entity.add_(self.words())
            self.words = None

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.settings.dropout, self.training)

    def _kept(self, found: Tensor, dropout: float) -> Tensor:
        """Those of the found that training does not leave out, bool as given."""
        return found & (torch.rand(found.shape, device=found.device) >= dropout) if self.training else found

    def tokens(self, events: LastEvents, entity: Tensor) -> Tensor:
        """The events as vectors, and last the slot that stands for none; [n, k + 1, d]. entity [E, d]."""
        edges = 2 ** torch.arange(1, LAGS, device=events.lag.device)
        span = F.embedding(torch.bucketize(events.lag, edges, right=True), self.lag)
        span = span + events.lag.float().log1p()[:, :, None] * self.log_lag
        # the values of plain indexing, whose gradient costs a device far more than an embedding's
        own = F.embedding(events.partner, entity) + F.embedding(events.relation, self.relation) + span
        tokens = self.norm_token(torch.cat([own, self.nothing.expand(len(own), 1, -1)], dim=1))
        return F.dropout(tokens, self.settings.token_dropout, self.training)

    def forward(self, actor: Tensor, relation: Tensor, events: LastEvents) -> Reading:
        """actor, relation int64 [n]."""
        entity = self.entity if self.words is None else self.entity + self.words()
        tokens, found = self.tokens(events, entity), self._kept(events.found, self.settings.event_dropout)
        known = self._kept(torch.ones_like(actor, dtype=torch.bool)[:, None], self.settings.actor_dropout)
        x = self._drop(F.embedding(actor, entity) * known + F.embedding(relation, self.asked))
        attention, visible = torch.zeros_like(tokens[:, :, 0]), F.pad(found, (0, 1), value=True)
        for block in self.blocks:
            x, share = block(x, tokens, visible)
            attention = attention + share / len(self.blocks)
        x = self.norm(x)
        added = (tokens[:, :-1] @ self.copy(x)[:, :, None]).squeeze(2) / math.sqrt(self.settings.width)
        return Reading(events, attention[:, :-1], added * found, self._drop(self.final(x)), entity)

    def scores(self, read: Reading) -> Tensor:
        """Of every entity, [n, E]."""
        scores = F.linear(read.state, read.entity, self.popularity)
        row = torch.arange(len(scores), device=scores.device)[:, None].expand_as(read.added)
        # put, not added by index: on a GPU this one sums in the same order every time
        return scores.index_put((row, read.events.partner), read.added, accumulate=True)

    def sampled_loss(self, read: Reading, answer: Tensor, drawn: Tensor, log_weight: Tensor) -> Tensor:
        """Cross-entropy among the partners of the events, the answer, and entities that stand for all others.

        answer int64 [n]; drawn int64 [s]: the same for all rows, perhaps repeated; log_weight float [s]: less the log
        of how often each of them is expected. The sum that normalises the scores is right in expectation.
        """
        partner, found = read.events.partner, read.events.found
        is_answer = (partner == answer[:, None]) & found
        gold = (F.embedding(answer, read.entity) * read.state).sum(1) + self.popularity[answer]
        gold = gold + (read.added * is_answer).sum(1)
        same = (partner[:, :, None] == partner[:, None]) & found[:, None]
        own = (F.embedding(partner, read.entity) @ read.state[:, :, None]).squeeze(2) + self.popularity[partner]
        own = own + (same.to(own.dtype) @ read.added[:, :, None]).squeeze(2)
        # of several events with one partner the first counts
        again = same.tril(-1).any(2)
        own = own.masked_fill(~found | again | is_answer, -torch.inf)
        others = F.linear(read.state, F.embedding(drawn, read.entity), self.popularity[drawn]) + log_weight
        known = torch.cat([torch.where(found, partner, answer[:, None]), answer[:, None]], dim=1)
        others = others.masked_fill(self._among(drawn, known), -torch.inf)
        return (torch.cat([gold[:, None], own, others], dim=1).logsumexp(1) - gold).mean()

    def _among(self, drawn: Tensor, known: Tensor) -> Tensor:
        """Which of the drawn entities a row knows, bool [n, s]; known int64 [n, m]."""
        place = drawn.new_full((len(self.entity),), len(drawn))
        place[drawn] = torch.arange(len(drawn), device=drawn.device)
        hit = torch.zeros(len(known), len(drawn) + 1, dtype=torch.bool, device=known.device)
        return hit.scatter_(1, place[known], True)[:, place[drawn]]


def learning_rate(done: float, settings: StreamSettings) -> float:
    """After a share of all steps: a linear warm-up, then a cosine down to a hundredth."""
    if done < WARM_UP:
        return settings.learning_rate * (0.01 + 0.99 * done / WARM_UP)
    return settings.learning_rate * (0.01 + 0.495 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))))


class _Trainer:
    """All epochs over the train queries in random order, their past read from the same split."""

    def __init__(self, net: StreamNet, dataset: Dataset, checkpoint: Checkpoint) -> None:
        self.net, self.settings, self.checkpoint = net, net.settings, checkpoint
        train = Queries.of(dataset.train).to(net.entity.device)
        assert train.answer is not None
        self.events = ActorEvents.build(dataset.train, net.entity.device)
        # all that is read of a query, side by side, so that an epoch is shuffled at once
        columns = (train.actor, train.relation, train.step, train.answer)
        self.queries = torch.stack([*columns, *self.events.line.before(train.actor, train.step)])
        self.size = min(self.settings.batch, len(train))
        self.batches = -(-len(train) // self.size)
        self.epochs = self.settings.epochs_on(len(train))
        count = torch.bincount(train.answer, minlength=len(net.entity)).double()
        if checkpoint.epochs == 0:
            with torch.no_grad():
                net.popularity.copy_((count + 0.5).log() - (count + 0.5).log().mean())
        self.chance = F.normalize((count + 1) ** 0.75, p=1.0, dim=0)
        self.chances = self.chance.cumsum(0)

    def shuffled(self) -> Tensor:
        """The queries of an epoch in batches of one size, [6, batches, size]; the last is filled up from the first."""
        n = self.queries.shape[1]
        order = torch.randperm(n, device=self.queries.device)
        order = torch.cat([order, order[: self.batches * self.size - n]])
        return self.queries[:, order].view(len(self.queries), self.batches, self.size)

    def loss(self, batch: Tensor) -> Tensor:
        """What training makes small, on a batch [6, n]."""
        net, s = self.net, self.settings
        actor, relation, step, answer, start, stop = batch.unbind(0)
        read = net(actor, relation, self.events.in_slices(start, stop, step, s.k))
        if batch.is_cuda or not 0 < s.negatives < len(net.entity):
            return F.cross_entropy(net.scores(read), answer)
        at = torch.rand(s.negatives, dtype=torch.float64, device=batch.device)
        # rounding may leave the last sum just below 1
        drawn = torch.searchsorted(self.chances, at).clamp(max=len(self.chances) - 1)
        return net.sampled_loss(read, answer, drawn, -(s.negatives * self.chance[drawn]).log().float())

    def step_loss(self, batch: Tensor, total: Tensor) -> Tensor:
        """The loss of a step, which adds it to the total."""
        loss = self.loss(batch)
        total += loss.detach()
        return loss

    def run(self, progress: Progress) -> None:
        s, net = self.settings, self.net.train()
        steps = Steps(list(net.parameters()), s.learning_rate, weight_decay=0.0, clip=CLIP)
        done = self.checkpoint.resume(1, steps.optimizer)
        # every batch is copied here, so that for a recorded step the inputs never move; nor does the learning rate
        batch = torch.empty_like(self.queries[:, : self.size])
        total, rate = torch.zeros((), device=batch.device), torch.zeros((), device=batch.device)
        steps.optimizer.param_groups[0]["lr"] = rate
        everything = self.epochs * self.batches
        with tf32_matmul(batch.device), steps.running(), progress.task("training stream", total=everything) as advance:
            advance(done * self.batches)
            for epoch in range(done + 1, self.epochs + 1):
                total.zero_()
                for number, part in enumerate(self.shuffled().unbind(1), start=(epoch - 1) * self.batches):
                    batch.copy_(part)
                    rate.fill_(learning_rate(number / everything, s))
                    steps.take(0, partial(self.step_loss, batch, total), stays=True)
                    advance(1)
                advance(0, note=f"loss {float(total) / self.batches:.3f}")
                self.checkpoint.keep(1, epoch, steps.optimizer, whole=epoch == self.epochs)
        net.eval()


class Stream(NetBackbone):
    """An attention reader over an actor's own last events, in either role.

    The score of an entity is its vector times what was read, and what every event with it adds. Epochs are fixed, and
    validation is never read.
    """

    name: ClassVar[str] = "stream"
    default: ClassVar[StreamSettings] = StreamSettings()
    grid: ClassVar[Grid] = {"k": (16, 32, 64), "event_dropout": (0.3, 0.0)}
    trial: ClassVar[Bounds] = {"epochs": 3}
    net: StreamNet

    @classmethod
    def sized(cls, settings: StreamSettings, device: str) -> StreamSettings:
        width, k = SIZES[torch.device(device).type]
        return replace(settings, width=settings.width or width, k=settings.k or k)

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        train = dataset.train
        net = StreamNet(train.n_entities, train.n_relations, settings)
        net.words = Words(train.entities.names, settings.width) if settings.words else None
        net = net.to(training.device)
        state = training.state(cls.name, train.fingerprint, settings, net)
        _Trainer(net, dataset, state).run(training.progress)
        net.fold()
        return cls(settings, net)

    @torch.no_grad()
    def read(self, queries: Queries, past: Past) -> Reading:
        """The events that each query looked at and how much."""
        return self.net(queries.actor, queries.relation, past.last_events(queries.actor, queries.step, self.settings.k))

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        net = self.net
        log_p = [net.scores(self.read(part, past)).log_softmax(1) for part in queries.batches(ROWS)]
        return Scores(torch.cat(log_p) if log_p else net.entity.new_empty(0, len(net.entity)))

    def attended(self, query: Queries, past: Past) -> Attended:
        read = self.read(query, past)
        found = read.events.found[0]
        columns = (read.events.relation, read.events.partner, read.events.lag, read.attention, read.added)
        return Attended(*(column[0][found] for column in columns))

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        return StreamNet(len(tensor_of(tensors, "entity", 2)), len(tensor_of(tensors, "relation", 2)) // 2, settings)
