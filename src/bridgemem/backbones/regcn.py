"""RE-GCN (Li et al., SIGIR 2021): entities and relations evolve over the last snapshots, and a convolution decodes."""

from __future__ import annotations

import copy
import math
import re
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Bounds, Grid, NetBackbone
from bridgemem.backbones.convtranse import ConvTransE
from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.snapshots import Rows, Snapshot, Snapshots
from bridgemem.config import BelowOne, Count, Declared, Finite, NotNegative, Positive, Range, Recent, Share, Units
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.captured import Steps, tf32_matmul
from bridgemem.training.checkpoint import Checkpoint, Training

SLOPE = (1 / 8 + 1 / 3) / 2  # the released code calls its randomised ReLU without the training flag: a fixed slope
GAIN = math.sqrt(2)
STATES = 32  # evolved states that a backbone keeps at hand
STEPS, MOST_TOGETHER = 150, 16  # of an epoch, and snapshots in one, where the settings leave it to the data
RECORDED = 4096  # targets whose steps may be recorded for replay: each recording costs a megabyte or two
TWO_PART_NAME = re.compile(r"(.+?)[ _]\(((?:[^()]|\([^()]*\))+)\)")


@dataclass(frozen=True)
class RegcnSettings(Declared):
    """history: snapshots that are read; task_weight: share of the entity loss, the rest is the relation loss.

    static: begin with states made of the words in the entities' names, "Police (India)" of "Police" and "India", and
    hold every state k steps later within k times `angle` degrees of them; static_weight is that penalty's. Without it
    entities begin with vectors of their own. Training ends after `patience` epochs without a gain on validation.
    together: snapshots that one step learns from, evolved side by side; the released code has one. A GPU takes more of
    them in little more time, which a long train split wants; 0 takes as many as leave some 150 steps to an epoch.
    """

    width: Units = 200
    history: Recent = 3
    layers: Annotated[int, Range(ge=1, le=64)] = 2
    kernels: Units = 50
    dropout: BelowOne = 0.2
    task_weight: Share = 0.7
    static: bool = False
    angle: Finite = 10.0
    static_weight: NotNegative = 0.5
    epochs: Count = 100
    patience: Count = 5
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-5
    clip: Positive = 1.0
    together: Annotated[int, Range(ge=0, le=64)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static and self.width % 2:
            raise SettingsError(f"width must be even with static, since words are mixed two by two, not {self.width}.")


def unit(x: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays what it is. x [..., d] -> [..., d]."""
    d = x.shape[-1]
    # x / sqrt(mean of squares) is sqrt(d) times the unit vector, and one kernel each way on a GPU
    return F.rms_norm(x, (d,), weight=x.new_full((d,), d**-0.5), eps=1e-24)


def drawn(*shape: int) -> Tensor:
    """A weight matrix as the released code draws it, Xavier-uniform for rectified units."""
    return nn.init.xavier_uniform_(torch.empty(shape), GAIN)


class OwnVectors(nn.Module):
    """What the entities begin with: a learned vector each."""

    def __init__(self, n_entities: int, width: int) -> None:
        super().__init__()
        self.entity = nn.Parameter(torch.randn(n_entities, width))

    def forward(self) -> Tensor:
        return unit(self.entity)


def words_of(names: Sequence[str]) -> tuple[list[list[int]], int]:
    """Two places per entity in a table [3 roles x words] of the words that make its name, and the number of words.

    "A (B)" is made of A in the first role and B in the second; any other name is one word in the third, given twice.
    """
    ids: dict[str, int] = {}
    made: list[list[tuple[int, int]]] = []
    for name in names:
        found = TWO_PART_NAME.fullmatch(name)
        parts = [(0, found[1]), (1, found[2])] if found else [(2, name)] * 2
        made.append([(role, ids.setdefault(word, len(ids))) for role, word in parts])
    return [[role * len(ids) + word for role, word in parts] for parts in made], len(ids)


class NameVectors(nn.Module):
    """What the entities begin with: one graph layer over the words of their names, which they share with others.

    The released layer has no self loop, so of all its nodes and edges only those from words to entities matter.
    """

    index: Tensor

    def __init__(self, index: Tensor, words: int, width: int) -> None:
        """index int64 [E, 2]: places in [3 roles x words], as `words_of` gives them."""
        super().__init__()
        self.register_buffer("index", index)
        self.word = nn.Parameter(nn.init.xavier_normal_(torch.empty(words, width)))
        # drawn as part of the released [6 edge types, 2 * width], of which three types lead to entities
        self.blocks = nn.Parameter(drawn(6, 2 * width)[:3].reshape(3, width // 2, 2, 2).clone())

    def forward(self) -> Tensor:
        pairs = self.word.unflatten(1, (-1, 2))
        table = torch.einsum("wbi,rbij->rwbj", pairs, self.blocks).flatten(2).flatten(0, 1)
        parts = table.index_select(0, self.index.flatten()).unflatten(0, (-1, 2))
        return unit(F.leaky_relu(parts.mean(1), SLOPE))


class GraphLayer(nn.Module):
    """Messages of a snapshot: the mean of (A[u] + Z[r]) W_n and A[v] W_loop at an edge, A[v] W_iso elsewhere."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout
        # W_n above W_loop, since both act on the same entities
        self.connected = nn.Parameter(torch.cat([drawn(width, width), drawn(width, width)]))
        self.isolated = nn.Parameter(drawn(width, width))

    def around(self, a: Tensor, z: Tensor, snapshot: Snapshot) -> Tensor:
        """The mean message before W_n and the own state of each active entity, [active, 2 * width]."""
        return snapshot.around(torch.cat([a, z])).view(-1, 2 * self.width)

    def forward(self, a: Tensor, z: Tensor, snapshot: Snapshot) -> Tensor:
        """a [E, width], z [2R, width] -> [E, width]."""
        # few entities are active in a step, so the others' product is made for all and theirs put in its place
        active = self.around(a, z, snapshot) @ self.connected
        out = (a @ self.isolated).index_copy_(0, snapshot.active, active)
        return F.dropout(F.leaky_relu(out, SLOPE, inplace=True), self.dropout, self.training)


@dataclass(frozen=True)
class Evolved:
    """What decoding reads: entity [E, d], after tanh; relation [2R, d]. penalty: that of the static constraint."""

    entity: Tensor
    relation: Tensor
    penalty: Tensor | None = None

    def apart(self, rows: Rows) -> list[Evolved]:
        """What belongs to each of the targets whose windows were evolved side by side."""
        each = zip(rows.apart(self.entity), self.relation.chunk(len(rows.sizes)), strict=True)
        return [Evolved(entity, relation, self.penalty) for entity, relation in each]


class RegcnNet(nn.Module):
    """The network: it evolves over a window of snapshots, and decodes queries from where they end."""

    layer: ClassVar[type[GraphLayer]] = GraphLayer

    def __init__(self, start: OwnVectors | NameVectors, n_relations: int, settings: RegcnSettings) -> None:
        super().__init__()
        d, self.settings = settings.width, settings
        self.start = start
        self.relation = nn.Parameter(nn.init.xavier_normal_(torch.empty(2 * n_relations, d)))
        self.relation_cell = nn.GRUCell(2 * d, d)
        self.layers = nn.ModuleList(self.layer(d, settings.dropout) for _ in range(settings.layers))
        self._add_parts()

    def _add_parts(self) -> None:
        s = self.settings
        self.gate = nn.Parameter(drawn(s.width, s.width))
        self.gate_bias = nn.Parameter(torch.zeros(s.width))
        self.entity_decoder, self.relation_decoder = (ConvTransE(2, s.width, s.kernels, s.dropout) for _ in range(2))

    def pooled(self, h: Tensor, snapshot: Snapshot) -> Tensor:
        """What each relation sees of the entities it is between, [2R, d]."""
        return snapshot.pooled_ends(h)

    def move(self, h: Tensor, c: Tensor) -> Tensor:
        """The next state from the last h and what the graph says, c, both [E, d]: a gate between them."""
        return torch.lerp(h, c, torch.addmm(self.gate_bias, h, self.gate).sigmoid())

    def evolve(self, window: Sequence[Snapshot], rows: Rows | None = None) -> Evolved:
        """States after a window of snapshots, the oldest first; rows: whose states they are, if not all entities'."""
        begun: Tensor = self.start()
        own: Tensor = self.relation
        if rows is not None:
            begun, own = begun.index_select(0, rows.entity), own.repeat(len(rows.sizes), 1)
        h, z = begun, own
        passed: list[Tensor] = []
        for snapshot in window:
            x = self.pooled(h, snapshot)
            z = unit(self.relation_cell(torch.cat([own, x], dim=1), z))
            a = h
            for layer in self.layers:
                a = layer(a, z, snapshot)
            h = self.move(h, unit(a))
            passed.append(h)
        penalty = self._penalty(begun, passed, rows) if self.settings.static and self.training else None
        return Evolved(unit(h).tanh(), z, penalty)

    def _penalty(self, begun: Tensor, passed: list[Tensor], rows: Rows | None = None) -> Tensor:
        """How far the states are outside of their angles, summed over entities and steps, the mean of the windows."""
        steps = torch.arange(1, len(passed) + 1, device=begun.device)
        bound = torch.deg2rad(self.settings.angle * steps).cos()
        likeness = (unit(torch.stack(passed)) * begun).sum(2)
        outside = F.relu(bound[:, None] - likeness)
        return self.settings.static_weight * (outside if rows is None else outside * rows.weight).sum()

    def loss(self, evolved: Evolved, target: Snapshot) -> Tensor:
        """What training makes small: the cross entropy of the target's answers and of its relations."""
        entity, relation, weight = evolved.entity, evolved.relation, self.settings.task_weight
        actor, answer = entity.index_select(0, target.actor), entity.index_select(0, target.answer)
        asked = relation.index_select(0, target.relation)
        of_entities = F.cross_entropy(self.entity_decoder(torch.stack([actor, asked], 1), entity), target.answer)
        of_relations = F.cross_entropy(
            self.relation_decoder(torch.stack([actor, answer], 1), relation), target.relation
        )
        loss = torch.lerp(of_relations, of_entities, weight)
        return loss if evolved.penalty is None else loss + evolved.penalty

    def log_p(self, evolved: Evolved, actor: Tensor, relation: Tensor) -> Tensor:
        """Log probabilities of every entity as the answer; actor, relation int64 [n] -> [n, E]."""
        pair = torch.stack([evolved.entity[actor], evolved.relation[relation]], 1)
        return self.entity_decoder(pair, evolved.entity).log_softmax(1)


class Selection(nn.Module):
    """A network in training with its best weights so far, so that a checkpoint keeps both."""

    mrr: Tensor
    stale: Tensor

    def __init__(self, net: RegcnNet) -> None:
        super().__init__()
        self.net = net
        self.best = copy.deepcopy(net).requires_grad_(False)
        self.register_buffer("mrr", torch.tensor(-1.0, dtype=torch.float64))
        self.register_buffer("stale", torch.tensor(0))

    def offer(self, mrr: float) -> None:
        """Keep the weights of an epoch if they are better on validation than all before."""
        if mrr > float(self.mrr):
            self.best.load_state_dict(self.net.state_dict())
            self.mrr.fill_(mrr)
            self.stale.zero_()
        else:
            self.stale += 1


class Trainer:
    """One step for each snapshot of train but the first, or for some together, in random order; validation ends it."""

    def __init__(self, selection: Selection, dataset: Dataset, checkpoint: Checkpoint) -> None:
        self.selection, self.net, self.settings = selection, selection.net, selection.net.settings
        self.checkpoint = checkpoint
        self.graph = Snapshots(dataset.known, self.net.relation.device)
        self.n_train = self.graph.position(dataset.valid_start)
        self.together = self.settings.together or min(max(self.n_train // STEPS, 1), MOST_TOGETHER)

    def targets(self, first: int, last: int) -> list[range]:
        """The positions from the first up to the last, as many together as are wanted and have a whole window."""
        whole = min(max(first, self.settings.history), last)
        cuts = [*range(first, whole), *range(whole, last, self.together), last]
        return [range(*part) for part in pairwise(cuts)]

    def window(self, targets: range) -> tuple[list[Snapshot], Rows | None]:
        """What is known before each of some targets, and whose states evolve over it."""
        if len(targets) == 1:
            return self.graph.before(targets.start, self.settings.history), None
        return self.graph.before_each(targets, self.settings.history)

    def evolved(self, targets: range) -> list[tuple[Evolved, int]]:
        """The states that each target is forecast from, and its position."""
        window, rows = self.window(targets)
        evolved = self.net.evolve(window, rows)
        return list(zip([evolved] if rows is None else evolved.apart(rows), targets, strict=True))

    def loss(self, targets: range) -> Tensor:
        """The mean over the snapshots at some positions, each forecast from those before it."""
        return torch.stack([self.loss_of(*one) for one in self.evolved(targets)]).mean()

    def loss_of(self, evolved: Evolved, at: int) -> Tensor:
        return self.net.loss(evolved, self.graph[at])

    def log_p(self, evolved: Evolved, at: int) -> Tensor:
        """Of the queries of the snapshot at a position, [2n, E]."""
        target = self.graph[at]
        return self.net.log_p(evolved, target.actor, target.relation)

    @torch.no_grad()
    def valid_mrr(self) -> float:
        """Raw, over both directions of validation, each snapshot forecast from the true ones before it."""
        self.net.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.net.relation.device)
        for targets in self.targets(self.n_train, len(self.graph)):
            for evolved, at in self.evolved(targets):
                log_p, answer = self.log_p(evolved, at), self.graph[at].answer
                own = log_p.gather(1, answer[:, None])
                rank = 1 + (log_p > own).sum(1) + ((log_p == own).sum(1) - 1) / 2
                total += (1 / rank.double()).sum()
        self.net.train()
        return float(total) / int(self.graph.bounds[-1] - self.graph.bounds[self.n_train])

    @torch.no_grad()
    def prepare(self, targets: list[range]) -> None:
        """Make what multiplies each snapshot, so that a step can be recorded when it is first taken."""
        self.net.eval()
        made: set[Snapshot] = set()
        for part in targets:
            window, rows = self.window(part)
            self.net.evolve([snapshot for snapshot in window if snapshot not in made], rows)
            made.update(window)
        self.net.train()

    def run(self, title: str, progress: Progress) -> None:
        s, selection = self.settings, self.selection
        steps = Steps(list(self.net.train().parameters()), s.learning_rate, s.weight_decay, s.clip)
        epoch = self.checkpoint.resume(1, steps.optimizer)
        targets = self.targets(1, self.n_train)
        if steps.on_gpu:
            self.prepare(targets)
        quick, shown = tf32_matmul(self.net.relation.device), f"training {title}"
        with quick, steps.running(), progress.task(shown, total=s.epochs * len(targets)) as advance:
            advance(epoch * len(targets))
            while epoch < s.epochs and int(selection.stale) < s.patience:
                for i in torch.randperm(len(targets)).tolist():
                    steps.take(i, partial(self.loss, targets[i]), stays=i < RECORDED, ready=True)
                    advance(1)
                mrr = self.valid_mrr()
                selection.offer(mrr)
                epoch += 1
                advance(0, note=f"validation MRR {mrr:.4f}, best {float(selection.mrr):.4f}")
                self.checkpoint.keep(1, epoch, steps.optimizer, whole=False)


class Regcn(NetBackbone):
    """RE-GCN; as in the released code, the epoch whose weights are used is the best on the validation split."""

    name: ClassVar[str] = "regcn"
    title: ClassVar[str] = "RE-GCN"
    default: ClassVar[RegcnSettings] = RegcnSettings()
    # the histories and layers that its authors have for one data set or another, and the names' graph
    grid: ClassVar[Grid] = {
        "history": (3, 1, 2, 6, 10),
        "layers": (2, 1),
        "static": (False, True),
    }
    trial: ClassVar[Bounds] = {"epochs": 8}
    network: ClassVar[type[RegcnNet]] = RegcnNet
    trainer: ClassVar[type[Trainer]] = Trainer
    net: RegcnNet

    def __init__(self, settings: RegcnSettings, net: RegcnNet) -> None:
        super().__init__(settings, net)
        self._past: weakref.ref[Past] | None = None
        self._graph: Snapshots | None = None
        self._evolved: OrderedDict[int, Evolved] = OrderedDict()

    @classmethod
    def tunable(cls, dataset: Dataset) -> Grid:
        """Without names of two parts, such as "Police (India)", there is nothing that entities could share."""
        named = any(map(TWO_PART_NAME.fullmatch, dataset.events.entities.names))
        return {name: values for name, values in cls.grid.items() if named or name not in ("static", "angle")}

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        known = dataset.known
        if dataset.train.step[0] == dataset.train.step[-1]:
            raise DataError(
                f"{cls.title} needs at least two time steps to train on, and the train split of {dataset.name} has "
                "one: give more events, or a smaller share to validation and test."
            )
        start: OwnVectors | NameVectors
        if settings.static:
            index, words = words_of(known.entities.names)
            start = NameVectors(torch.tensor(index), words, settings.width)
        else:
            start = OwnVectors(known.n_entities, settings.width)
        selection = Selection(cls.network(start, known.n_relations, settings)).to(training.device)
        more = {"valid_start": dataset.valid_start}
        state = training.state(cls.name, known.fingerprint, settings, selection, **more)
        cls.trainer(selection, dataset, state).run(cls.title, training.progress)
        return cls(settings, selection.best)

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        cut = past.cut(queries.step)
        parts, rows = [], []
        for step in cut.unique().tolist():
            row = (cut == step).nonzero().squeeze(1)
            parts.append(self._log_p(self._evolved_before(step, past), queries.take(row), past))
            rows.append(row)
        if len(parts) == 1:
            return Scores(parts[0])
        log_p = self.net.relation.new_empty((len(queries), past.events.n_entities))
        for row, part in zip(rows, parts, strict=True):
            log_p[row] = part
        return Scores(log_p)

    def _log_p(self, evolved: Evolved, queries: Queries, past: Past) -> Tensor:
        return self.net.log_p(evolved, queries.actor, queries.relation)

    def _evolved_before(self, step: int, past: Past) -> Evolved:
        """The states at a step, from the snapshots strictly before it; the last few are kept."""
        if self._graph is None or self._past is None or self._past() is not past:
            self._past, self._graph = weakref.ref(past), Snapshots(past.events, self.net.relation.device)
            self._evolved.clear()
        position = self._graph.position(step)
        if position not in self._evolved:
            self._evolved[position] = self.net.evolve(self._graph.before(position, self.settings.history))
        self._evolved.move_to_end(position)
        if len(self._evolved) > STATES:
            self._evolved.popitem(last=False)
        return self._evolved[position]

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        start: OwnVectors | NameVectors
        if settings.static:
            index = torch.empty_like(tensor_of(tensors, "start.index", 2))
            start = NameVectors(index, len(tensor_of(tensors, "start.word", 2)), settings.width)
        else:
            start = OwnVectors(len(tensor_of(tensors, "start.entity", 2)), settings.width)
        return cls.network(start, len(tensor_of(tensors, "relation", 2)) // 2, settings)
