"""EST (Li et al., ACL 2026): an actor's last events through a Transformer, over slowly written entity states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Bounds, Grid, NetBackbone
from bridgemem.backbones.scorer import Scores
from bridgemem.config import (
    BelowOne,
    Count,
    Declared,
    NotNegative,
    Positive,
    Recent,
    Share,
    Units,
)
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.actors import ActorEvents, LastEvents
from bridgemem.memory.occurrences import first_meetings
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.captured import Steps
from bridgemem.training.checkpoint import Checkpoint, Training

WARM_UP = 2  # epochs in which the learning rate grows
MASKED = -1e9
ROWS = 8192  # queries whose events are read at once


@dataclass(frozen=True)
class EstSettings(Declared):
    """k events are read of an actor; time_unit is the length of a step in the time units that lags are measured in.

    batch counts queries: 256 are the released 128 facts, either way round. mask_past takes the answers that (actor,
    relation) had before out of the training loss. alpha, threshold and scale govern how states are written. The
    released code stops early; here the epochs are fixed: of 5, 8 and 10 validation of icews14 took 5.
    """

    width: Units = 64
    time_width: Units = 32
    k: Recent = 32
    time_unit: Positive = 24.0
    layers: Count = 2
    heads: Count = 4
    hidden: Units = 256
    dropout: BelowOne = 0.1
    alpha: Share = 0.2
    threshold: NotNegative = 0.7
    scale: Positive = 8.0
    mask_past: bool = True
    batch: Count = 256
    epochs: Count = 5
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SettingsError(f"heads must divide the width {self.width}, and {self.heads} does not.")


class EncoderLayer(nn.Module):
    """A post-norm Transformer layer: self-attention and a ReLU network, initialised as torch does its own."""

    def __init__(self, settings: EstSettings) -> None:
        super().__init__()
        d, self.heads, self.dropout = settings.width, settings.heads, settings.dropout
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.inner, self.outer = nn.Linear(d, settings.hidden), nn.Linear(settings.hidden, d)
        self.norm_attention, self.norm_outer = nn.LayerNorm(d), nn.LayerNorm(d)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """x [n, k, d]; visible bool [n, 1, 1, k], at least one slot of each row."""
        n, k, d = x.shape
        q, key, value = self.qkv(x).view(n, k, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, key, value, attn_mask=visible, dropout_p=dropped)
        x = self.norm_attention(x + self._drop(self.out(mixed.transpose(1, 2).reshape(n, k, d))))
        return self.norm_outer(x + self._drop(self.outer(self._drop(F.relu(self.inner(x))))))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class EstNet(nn.Module):
    """The network and its states. A query is (actor, directed relation, step) with the last events of the actor."""

    fast: Tensor
    slow: Tensor
    period: Tensor

    def __init__(self, n_entities: int, n_relations: int, settings: EstSettings) -> None:
        super().__init__()
        d, time, self.settings = settings.width, settings.time_width, settings
        self.entity = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_entities, d)))
        self.relation = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * n_relations, d)))
        self.delta = nn.Sequential(_linear(1, time), nn.ReLU(), _linear(time, time))
        self.query = _linear(2 * d + time, d)
        self.fusion = _linear(2 * d, d)
        self.struct = _linear(2 * d, d)
        self.token = _linear(2 * d + time, d)
        self.hyper = _linear(d, d)
        self.attention = _linear(2 * d, 1)
        self.position = nn.Parameter(nn.init.trunc_normal_(torch.empty(settings.k, d), std=0.02))
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(d)
        self.register_buffer("fast", torch.zeros(n_entities, d))
        self.register_buffer("slow", torch.zeros(n_entities, d))
        # the first step of train, and how many steps it spans
        self.register_buffer("period", torch.tensor([0.0, 1.0]))

    def elapsed(self, time: Tensor) -> Tensor:
        """The features of a span of time, float [..., time_width]; time float [...]."""
        return self.delta(time.log1p().unsqueeze(-1))

    def query_vector(self, actor: Tensor, relation: Tensor, step: Tensor) -> Tensor:
        """What the events are attended with, [n, d]; actor [n, d] and relation [n, d] vectors, step int64 [n].

        The time of a query is its place in train. All later times count as the end of it: none was ever learned.
        """
        first, span = self.period
        place = ((step - first) / span).clamp(0, 1)
        return torch.tanh(self.query(torch.cat([actor, relation, self.elapsed(place)], dim=1)))

    def nodes(self) -> Tensor:
        """Every entity as it appears in an event: its vector, fused with its slow state if it has one; [E, d]."""
        state = F.layer_norm(self.slow, (self.settings.width,))
        gate = torch.sigmoid(self.fusion(torch.cat([self.entity, state], dim=1)))
        active = self.slow.abs().sum(1, keepdim=True) > 1e-6
        return torch.where(active, torch.lerp(state, self.entity, gate), self.entity)

    def encode(self, relation: Tensor, tokens: LastEvents) -> Tensor:
        """The events after the Transformer, zero in empty slots, [n, k, d]; relation [n, d] vectors of the queries."""
        # the values of plain indexing, whose gradient costs a device far more than an embedding's
        tail, verb = F.embedding(tokens.partner, self.nodes()), F.embedding(tokens.relation, self.relation)
        tail = torch.tanh(self.struct(torch.cat([tail, verb], dim=2)))
        lag = self.elapsed(tokens.lag * self.settings.time_unit)
        x = self.token(torch.cat([tail, verb, lag], dim=2)) + self.hyper(relation)[:, None] + self.position
        # rows without any event see their last slot, since attention over nothing is not a number
        visible = tokens.found.clone()
        visible[:, -1].fill_(True)
        for layer in self.encoder:
            x = layer(x, visible[:, None, None])
        return self.norm(x) * tokens.found[:, :, None]

    def context(self, actor: Tensor, relation: Tensor, step: Tensor, tokens: LastEvents) -> tuple[Tensor, Tensor]:
        """The events of n queries pooled for them, [n, d], zero without any; and the relation's vectors [n, d].

        actor, relation, step int64 [n].
        """
        verb = F.embedding(relation, self.relation)
        asked = self.query_vector(F.embedding(actor, self.entity), verb, step)
        seq = self.encode(verb, tokens)
        of_event, of_query = self.attention.weight.chunk(2, dim=1)
        fit = torch.tanh(seq @ of_event.T + F.linear(asked, of_query, self.attention.bias)[:, None])
        share = fit.masked_fill(~tokens.found[:, :, None], MASKED).softmax(1)
        return (share * seq).sum(1), verb

    def scores(self, context: Tensor, verb: Tensor) -> Tensor:
        """DistMult of a context with every entity, [n, E]."""
        return (context * verb) @ self.entity.T

    @torch.no_grad()
    def write(self, actor: Tensor, context: Tensor) -> None:
        """Write the mean context of each distinct actor of a batch into its states; actor int64 [n], context [n, d]."""
        s = self.settings
        # a product over the batch finds the means without waiting to know how many actors are distinct
        mean = F.normalize((actor[:, None] == actor).to(context.dtype), p=1.0) @ context
        fast, slow = torch.lerp(self.fast[actor], mean, s.alpha), self.slow[actor]
        gate = torch.sigmoid(s.scale * ((fast - slow).norm(dim=1, keepdim=True) - s.threshold))
        # rows of the same actor hold the same values, so it does not matter which comes last
        self.fast.index_copy_(0, actor, fast)
        self.slow.index_copy_(0, actor, torch.lerp(slow, fast, gate))


def learning_rate(epoch: int, settings: EstSettings) -> float:
    """Of an epoch counted from 1: a linear warm-up, then a cosine down to a tenth in the last epoch."""
    if epoch <= WARM_UP:
        return settings.learning_rate * epoch / WARM_UP
    share = (epoch - WARM_UP) / (settings.epochs - WARM_UP)
    return settings.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


class _Trainer:
    """All epochs over the train queries in random order, their past read from the same split."""

    def __init__(self, net: EstNet, dataset: Dataset, checkpoint: Checkpoint) -> None:
        self.net, self.settings, self.checkpoint = net, net.settings, checkpoint
        device, n_relations = net.entity.device, dataset.events.n_relations
        train = Queries.of(dataset.train)
        assert train.answer is not None
        key = train.actor * (2 * n_relations) + train.relation
        self.events = ActorEvents.build(dataset.train, device)
        self.answers = first_meetings(key.numpy(), train.answer.numpy(), train.step.numpy(), device)
        actor, relation, step, answer = torch.stack([train.actor, train.relation, train.step, train.answer]).to(device)
        # all that is read of a query, side by side, so that an epoch is shuffled at once
        self.queries = torch.stack(
            [
                *(actor, relation, step, answer),
                *self.events.line.before(actor, step),
                *self.answers.before(key.to(device), step),
            ]
        )
        self.size = min(self.settings.batch, len(train))
        self.batches = -(-len(train) // self.size)

    def shuffled(self) -> Tensor:
        """The queries of an epoch in batches of one size, [8, batches, size]; the last is filled up from the first."""
        n = self.queries.shape[1]
        order = torch.randperm(n, device=self.queries.device)
        order = torch.cat([order, order[: self.batches * self.size - n]])
        return self.queries[:, order].view(8, self.batches, self.size)

    def loss(self, batch: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Cross-entropy of a batch [8, n] that masks `most` past answers or fewer, and its contexts, no gradient."""
        net = self.net
        actor, relation, step, answer, start, stop, first, last = batch.unbind(0)
        context, verb = net.context(actor, relation, step, self.events.in_slices(start, stop, step, self.settings.k))
        scores = net.scores(context, verb)
        if self.settings.mask_past:
            # past autograd, which would copy the gradient of all scores; a masked score has none in the softmax
            values, gold = scores.detach(), answer[:, None]
            kept = values.gather(1, gold)
            values.view(-1).index_fill_(0, self.masked(answer, first, last, most), MASKED)
            values.scatter_(1, gold, kept)
        return F.cross_entropy(scores, answer), context.detach()

    def masked(self, answer: Tensor, first: Tensor, last: Tensor, most: int) -> Tensor:
        """The places of past answers in a flat [n, E], int64 [most]; those that are too many are a gold one's.

        answer int64 [n]; first, last int64 [n]: slices of the past answers.
        """
        # one more row is as long as the others leave room for: then all batches of an epoch have one shape
        spare = most - (last - first).sum(0, keepdim=True)
        row, at = expand(F.pad(first, (0, 1)), torch.cat([last, spare]), most)
        past = self.answers.value[at.clamp(max=len(self.answers.value) - 1)]
        return torch.where(row < len(answer), row * len(self.net.entity) + past, answer[0])

    def step_loss(self, batch: Tensor, most: int, total: Tensor) -> Tensor:
        """The loss of a step, which adds it to the total and writes the contexts into the states."""
        loss, context = self.loss(batch, most)
        total += loss.detach()
        self.net.write(batch[0], context)
        return loss

    def run(self, progress: Progress) -> None:
        s, net = self.settings, self.net.train()
        # as released, gradients of any size are taken as they are
        steps = Steps(list(net.parameters()), s.learning_rate, s.weight_decay, clip=math.inf)
        done = self.checkpoint.resume(1, steps.optimizer)
        # every batch is copied here, so that for a recorded step the inputs never move
        batch = torch.empty_like(self.queries[:, : self.size])
        total = torch.zeros((), device=batch.device)
        with steps.running(), progress.task("training EST", total=s.epochs * self.batches) as advance:
            advance(done * self.batches)
            for epoch in range(done + 1, s.epochs + 1):
                steps.optimizer.param_groups[0]["lr"] = learning_rate(epoch, s)
                queries = self.shuffled()
                # one wait an epoch tells how many answers a batch masks at most; none is needed inside
                most = int((queries[7] - queries[6]).sum(1).max())
                total.zero_()
                for part in queries.unbind(1):
                    batch.copy_(part)
                    # a recorded step has the learning rate of its epoch in it
                    steps.take(epoch, partial(self.step_loss, batch, most, total), stays=True)
                    advance(1)
                advance(0, note=f"loss {float(total) / self.batches:.3f}")
                self.checkpoint.keep(1, epoch, steps.optimizer, whole=epoch == s.epochs)
        net.eval()


class Est(NetBackbone):
    """EST as released, for both directions: states are written in training and stay as its last batch left them."""

    name: ClassVar[str] = "est"
    default: ClassVar[EstSettings] = EstSettings()
    grid: ClassVar[Grid] = {
        "time_unit": (24.0, 1.0, 15.0),
        "k": (32, 16, 64),
        "mask_past": (True, False),
    }
    trial: ClassVar[Bounds] = {"epochs": 2}
    net: EstNet

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        train = dataset.train
        net = EstNet(train.n_entities, train.n_relations, settings)
        net.period.copy_(torch.tensor([int(train.step[0]), max(int(train.step[-1]) - int(train.step[0]), 1)]))
        net = net.to(training.device)
        _Trainer(net, dataset, training.state(cls.name, train.fingerprint, settings, net)).run(training.progress)
        return cls(settings, net)

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        net, log_p = self.net, []
        for q in queries.batches(ROWS):
            tokens = past.last_events(q.actor, q.step, self.settings.k)
            log_p.append(net.scores(*net.context(q.actor, q.relation, q.step, tokens)).log_softmax(1))
        return Scores(torch.cat(log_p) if log_p else net.entity.new_empty(0, len(net.entity)))

    def tensors(self) -> dict[str, Tensor]:
        # the fast state is only ever read to write the slow one
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items() if name != "fast"}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        return super().restore(settings, {**tensors, "fast": torch.zeros_like(tensor_of(tensors, "slow", 2))})

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        return EstNet(len(tensor_of(tensors, "entity", 2)), len(tensor_of(tensors, "relation", 2)) // 2, settings)
