"""Paths from the actors of queries through the past, as flat links of whole batches, and how such backbones train."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Bounds, Grid, NetBackbone
from bridgemem.backbones.scorer import Scores
from bridgemem.config import BelowOne, Count, Declared, NotNegative, Positive, Range, Size, Units
from bridgemem.errors import BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, expand
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.checkpoint import Checkpoint, Training

MOST_STEPS = 2**16  # of a window: every lag inside it has a row in the table of relative times
ROWS = 512  # queries that are scored at once
HOST_ROOM = 2**29  # bytes of ordinary memory for the hops that training reads again in every epoch
Activation = Literal["identity", "relu", "tanh"]
ACTIVATIONS = {"identity": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class PathSettings(Declared):
    """What path encoders share. edges: for each hop, how many links an entity may pass on, the most recent first;
    on icews14's validation two hops of (128, 32) rank as well as three of (128, 16, 8), at half the cost.

    window: steps of the past that are read; time_unit: steps that count as one in the encoding of relative time.
    attention: d_a. gru: one recurrent cell, shared by the hops, carries an entity's state on; without it sums over
    hundreds of links reach the softmax as they are, and training takes many times as long.
    late: the share of the training facts, the latest, that supply training queries; most_queries: of the
    latest at the most, 0 for all.
    batch: queries; decay: of the learning rate, an epoch.
    """

    width: Units = 32
    edges: Annotated[tuple[Count, ...], Range(ge=1, note="hop")] = (128, 32)
    window: Annotated[int, Range(ge=1, le=MOST_STEPS)] = 365
    time_unit: Positive = 1.0
    attention: Units = 32
    activation: Activation = "identity"
    gru: bool = True
    dropout: BelowOne = 0.2
    late: Annotated[float, Range(gt=0, le=1)] = 0.5
    most_queries: Size = 0
    batch: Count = 64
    epochs: Count = 6
    learning_rate: Positive = 5e-3
    decay: Annotated[float, Range(gt=0, le=1)] = 0.6
    weight_decay: NotNegative = 1e-5
    clip: Positive = 1.0


@dataclass(frozen=True)
class Links:
    """Both sides of every event as links from an entity to another, in the order (source, step, place in the file).

    line: the destinations, filed under their source; relation int64 [m]: directed, of the link at the same place.
    """

    line: Timeline
    relation: Tensor
    n_entities: int
    n_relations: int

    @classmethod
    def of(cls, events: EventLog, device: str | torch.device) -> Links:
        sides = Queries.of(events)
        assert sides.answer is not None
        filed = Timeline.build(sides.actor.numpy(), sides.step.numpy(), np.arange(len(sides)), device)
        destination, relation = (column.to(device)[filed.value] for column in (sides.answer, sides.relation))
        return cls(Timeline(filed.codes, destination), relation, events.n_entities, events.n_relations)

    def recent(self, entity: Tensor, until: Tensor, most: int, window: int) -> tuple[Tensor, Tensor]:
        """Slices of the links that leave an entity before a step: the latest `most` of those inside the window."""
        _, stop = self.line.before(entity, until)
        _, too_old = self.line.before(entity, (until - window).clamp(min=0))
        return torch.maximum(too_old, stop - most), stop


@dataclass(frozen=True)
class Hop:
    """The links of one hop of a batch; a node is an entity that a query has reached, and keeps a link to itself.

    asker int64 [nodes before]: the query of each node before the hop; kept int64 [nodes before]: its place after it.
    row, entity int64 [nodes]: those reached now, in this order. first int32 [nodes]: where the links into each begin.
    parts int32 [links, 3], ordered by the node that a link enters: where the source, the relation and the lag of a
    link lie in a table that has the nodes before, the 2R + 1 relations and the lags 0..window one below the other.
    The link to itself has relation 2R and lag 0.
    """

    asker: Tensor
    kept: Tensor
    row: Tensor
    entity: Tensor
    first: Tensor
    parts: Tensor

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.asker, self.kept, self.row, self.entity, self.first, self.parts))


@torch.no_grad()
def walk(
    links: Links, actor: Tensor, step: Tensor, until: Tensor, edges: Sequence[int], window: int
) -> tuple[Hop, ...]:
    """All links that the hops of a batch use; actor, step, until int64 [n], and nothing at or after `until` is read."""
    E, n_relations = links.n_entities, 2 * links.n_relations + 1
    # half the width sorts in half the time
    narrow = torch.int32 if len(actor) * E < 2**31 else torch.int64
    row, entity, hops = torch.arange(len(actor), device=actor.device), actor, []
    for most in edges:
        asker, key = row, row * E + entity
        source, at = expand(*links.recent(entity, until[row], most, window))
        query = asker[source]
        # with frozen history a fact can be further back than the window is long
        lag = (step[query] - links.line.step[at]).clamp(max=window)
        place = torch.arange(len(key), device=actor.device)
        after = len(key) + n_relations
        itself = torch.stack([place, torch.full_like(place, after - 1), torch.full_like(place, after)], dim=1)
        link = torch.stack([source, links.relation[at] + len(key), lag + after], dim=1)
        # stable, so that sums run over the links in an order of the query's own, whatever else is in the batch
        into, order = torch.cat([key, query * E + links.line.value[at]]).to(narrow).sort(stable=True)
        node, count = into.unique_consecutive(return_counts=True)
        node = node.long()
        row, entity = node // E, node % E
        first = (count.cumsum(0) - count).int()
        parts = torch.cat([itself.int(), link.int()])[order]
        hops.append(Hop(asker, torch.searchsorted(node, key), row, entity, first, parts))
    return tuple(hops)


def link_sum(hop: Hop, weight: Tensor, h: Tensor, z: Tensor, time: Tensor) -> Tensor:
    """Sum of weight * (h_source + z_relation + time_lag) over the links into each node, [nodes, d].

    weight [links]; h [nodes before, d]; z [2R + 1, d]; time [window + 1, d]. It is one sparse product, so no message
    is ever written down, and unlike a sum by scattering it adds in the same order every time on every device.
    """
    weights = weight[:, None].expand(-1, 3).reshape(-1)
    return F.embedding_bag(
        hop.parts.view(-1), torch.cat([h, z, time]), 3 * hop.first, mode="sum", per_sample_weights=weights
    )


class RelativeTime(nn.Module):
    """h_t = sin(omega_p D + phi_p) + omega_n D + phi_n for D = -lag / time_unit."""

    def __init__(self, settings: PathSettings) -> None:
        super().__init__()
        d, self.settings = settings.width, settings
        self.omega_p = nn.Parameter(10 ** -torch.linspace(0, 4, d))
        self.phi_p = nn.Parameter(torch.randn(d))
        # small, since the linear term has no bound
        self.omega_n = nn.Parameter(0.01 * torch.randn(d))
        self.phi_n = nn.Parameter(torch.zeros(d))

    def forward(self) -> Tensor:
        """The vectors of all lags 0..window, [window + 1, d]."""
        lag = torch.arange(self.settings.window + 1, device=self.omega_p.device, dtype=self.omega_p.dtype)
        D = (-lag / self.settings.time_unit)[:, None]
        return (self.omega_p * D + self.phi_p).sin() + self.omega_n * D + self.phi_n


class LinkAttention(nn.Module):
    """Logits of links: W2 ReLU(W1 [h_source ; z_relation ; z_asked ; time_lag])."""

    def __init__(self, width: int, hidden: int, logits: int) -> None:
        super().__init__()
        # W1 in its four blocks: then a link adds up numbers of tables that are `hidden` wide, not 4d
        self.of_node, self.of_relation, self.of_query_relation, self.of_time = (
            nn.Linear(width, hidden, bias=False) for _ in range(4)
        )
        self.out = nn.Linear(hidden, logits, bias=False)

    def forward(self, hop: Hop, h: Tensor, z: Tensor, query_relation: Tensor, time: Tensor) -> Tensor:
        """[links, logits]; asked int64 [n]: the directed relation of each query; the others as in `link_sum`."""
        node = self.of_node(h) + F.embedding(query_relation[hop.asker], self.of_query_relation(z))
        table = torch.cat([node, self.of_relation(z), self.of_time(time)])
        return self.out(F.embedding_bag(hop.parts, table, mode="sum").relu())


class Update(nn.Module):
    """act(W x) with dropout; where the cell is used, it carries the state of the hop before on."""

    def __init__(self, settings: PathSettings) -> None:
        super().__init__()
        self.transform = nn.Linear(settings.width, settings.width, bias=False)
        nn.init.xavier_normal_(self.transform.weight)
        self.after = nn.Sequential(ACTIVATIONS[settings.activation](), nn.Dropout(settings.dropout))

    def forward(self, hop: Hop, x: Tensor, h: Tensor, cell: nn.GRUCell | None) -> Tensor:
        """[nodes, d] of the sums x [nodes, d] and the states h [nodes before, d]."""
        x = self.after(self.transform(x))
        return x if cell is None else cell(x, torch.zeros_like(x).index_copy(0, hop.kept, h))


def relation_table(n_relations: int, width: int) -> nn.Parameter:
    """Z of a hop: a vector for each directed relation, and one for the link of an entity to itself."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(2 * n_relations + 1, width)))


def spread(hop: Hop, values: Tensor, n: int, n_entities: int, elsewhere: float = 0.0) -> Tensor:
    """Values [nodes] as a dense [n, E], with one value for what was not reached."""
    dense = values.new_full((n * n_entities,), elsewhere)
    return dense.scatter(0, hop.row * n_entities + hop.entity, values).view(n, n_entities)


class PathNet(nn.Module, ABC):
    """An encoder of a batch's hops; it knows relations and times, and no entity."""

    def __init__(self, n_relations: int, settings: Any) -> None:
        super().__init__()
        self.n_relations, self.settings = n_relations, settings
        self.time = RelativeTime(settings)

    @abstractmethod
    def loss(self, hops: Sequence[Hop], query_relation: Tensor, answer: Tensor, n_entities: int) -> Tensor:
        """What training makes small; asked, answer int64 [n]."""

    @abstractmethod
    def forward(self, hops: Sequence[Hop], query_relation: Tensor) -> Tensor:
        """The score f of every node after the last hop, [nodes]."""

    def walk(self, links: Links, queries: Queries, until: Tensor) -> tuple[Hop, ...]:
        s = self.settings
        return walk(links, queries.actor, queries.step, until, s.edges, s.window)


def late_queries(train: EventLog, share: float, most: int = 0) -> Queries:
    """Both queries of the last share of the facts, of one at least; most: queries at the most, 0 for all."""
    first = max(int(len(train) * (1 - share)), len(train) - most // 2 if most else 0)
    return Queries.of(train.rows(min(first, len(train) - 1), len(train)))


class Batches:
    """Training queries in batches that are the same in every epoch, each with the strict past of its queries.

    Walking makes a device wait several times a hop, so hops are walked once, and kept as long as there is room.
    """

    def __init__(self, net: PathNet, links: Links, queries: Queries) -> None:
        self.net, self.links = net, links
        self.queries = list(queries.batches(net.settings.batch))
        self.kept: dict[int, tuple[Hop, ...]] = {}
        device = queries.actor.device
        self.room = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else HOST_ROOM

    def hops(self, number: int) -> tuple[Hop, ...]:
        if number in self.kept:
            return self.kept[number]
        batch = self.queries[number]
        hops = self.net.walk(self.links, batch, batch.step)
        size = sum(hop.nbytes for hop in hops)
        if size <= self.room:
            self.room -= size
            self.kept[number] = hops
        return hops

    def loss(self, number: int) -> Tensor:
        batch = self.queries[number]
        assert batch.answer is not None
        return self.net.loss(self.hops(number), batch.relation, batch.answer, self.links.n_entities)


def train(net: PathNet, batches: Batches, checkpoint: Checkpoint, title: str, progress: Progress) -> None:
    """All epochs, or those that are left: the batches in random order."""
    s, sizes = net.settings, [len(batch) for batch in batches.queries]
    optimizer = torch.optim.Adam(net.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay, fused=True)
    done = checkpoint.resume(1, optimizer)
    net.train()
    with progress.task(title, total=s.epochs * sum(sizes)) as advance:
        advance(done * sum(sizes))
        for epoch in range(done + 1, s.epochs + 1):
            for group in optimizer.param_groups:
                group["lr"] = s.learning_rate * s.decay ** (epoch - 1)
            # drawn on the host, whose random numbers are the same wherever the network lives
            for number in torch.randperm(len(sizes)).tolist():
                optimizer.zero_grad(set_to_none=True)
                batches.loss(number).backward()
                nn.utils.clip_grad_norm_(net.parameters(), s.clip)
                optimizer.step()
                advance(sizes[number])
            checkpoint.keep(1, epoch, optimizer, whole=False)
    net.eval()


class PathBackbone(NetBackbone):
    """A path encoder under the contract; what it has not reached from the actor ranks after all that it has."""

    grid: ClassVar[Grid] = {
        "activation": ("identity", "relu"),
        "window": (365, 60, 1000),
        "time_unit": (1.0, 24.0),
        "late": (0.5, 0.25),
    }
    trial: ClassVar[Bounds] = {"epochs": 2}
    network: ClassVar[type[PathNet]]
    net: PathNet

    def __init__(self, settings: Any, net: PathNet) -> None:
        super().__init__(settings, net)
        self._read: tuple[weakref.ref[Past], Links] | None = None

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        events, device = dataset.train, training.device
        net = cls.network(events.n_relations, settings).to(device)
        queries = late_queries(events, settings.late, settings.most_queries)
        # drawn before a checkpoint brings its own random numbers, so that it finds the same batches
        queries = queries.take(torch.randperm(len(queries))).to(device)
        state = training.state(cls.name, events.fingerprint, settings, net)
        batches = Batches(net, Links.of(events, device), queries)
        train(net, batches, state, f"training {cls.name.upper()}", training.progress)
        return cls(settings, net)

    def _links(self, past: Past) -> Links:
        """The links of a history, which the next batch most likely asks for again."""
        if past.events.n_relations != self.net.n_relations:
            raise BackboneError(
                f"{self.name} was trained with {self.net.n_relations} relations and is asked about "
                f"{past.events.n_relations}: train it on this data."
            )
        device = self.net.time.omega_p.device
        if self._read is None or self._read[0]() is not past:
            self._read = weakref.ref(past), Links.of(past.events, device)
        return self._read[1]

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        links, net = self._links(past), self.net
        log_p = net.time.omega_p.new_empty(len(queries), links.n_entities)
        for at in range(0, len(queries), ROWS):
            rows = slice(at, at + ROWS)
            part = queries.take(rows)
            hops = net.walk(links, part, past.cut(part.step))
            f = spread(hops[-1], net(hops, part.relation), len(part), links.n_entities, elsewhere=math.inf)
            lowest = f.amin(1, keepdim=True)
            # also below the lowest after rounding, whatever its size
            below = lowest - 1 - lowest.abs() / 1024
            log_p[rows] = torch.where(f == math.inf, below, f).log_softmax(1)
        return Scores(log_p)

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        return cls.network((len(tensor_of(tensors, "layers.0.relation", 2)) - 1) // 2, settings)
