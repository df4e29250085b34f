"""Relations: what happens next between two parties, (s, ?, o), given that they interact.

Every directed relation is a candidate: r from the first to the second, r + R from the second to the first. Its score is
the log of a smoothed share of the pair's past events plus f, a small network that reads how often and how lately the
pair, its reverse, both actors and everybody had this relation. A softmax makes it a probability, over both directions
or over one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from bridgemem.config import Count, Declared, Inside, NotNegative, Positive, Units
from bridgemem.events.log import EventLog
from bridgemem.events.queries import sample_rows
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from bridgemem.memory.tally import DECAYS, Tallied
from bridgemem.memory.timeline import STEP_BITS, code, drained, expand
from bridgemem.parallel import in_order
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.checkpoint import seeded, shells, with_weights
from bridgemem.training.one_cycle import OneCycle

_NEVER = 10.0  # the log lag of what never happened
_CELLS = 1 << 18  # candidates that are read at once
_RATE, _KEEP = 0.02, 20.0  # a candidate is learned from with probability rate + keep times its share
_PRIOR = 2.0  # events that the shares of the two actors count for, next to those of the pair
_ALL = slice(None)
_COUNT, _LAG, _LATEST, _RECENT = 0, 1, 3, 4  # columns of what is read of a key: its count, lag, levels T = 7 and T = 30
NAMES = (
    *("triple count", "triple lag", *(f"triple level {decay:g}" for decay in DECAYS)),
    *("reverse count", "reverse lag", "reverse level"),
    *("share of the link", "recent share of the link"),
    *("share of the subject", "its recent share", "its latest share", "lag of the subject"),
    *("share of the object", "recent share of the object", "latest share of the object", "lag of the object"),
    *("overall share", "recent overall share", "latest overall share"),
    *("link count", "link lag", "reverse link count", "reverse link lag", "subject count", "object count"),
)


@dataclass(frozen=True)
class RelationSettings(Declared):
    """A small network. queries: the most that it is fitted on, drawn from the last share of the known events."""

    hidden: Units = 64
    relation_width: Units = 16
    epochs: Count = 5
    batch: Count = 256
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 1e-3
    queries: Count = 20_000
    share: Inside = 0.25


@dataclass(frozen=True)
class PairQueries:
    """What happens between two parties at a step: first, second, step int64 [n]; answer: a directed relation, or None.

    A relation r below R goes from the first to the second, r + R from the second to the first.
    """

    first: Tensor
    second: Tensor
    step: Tensor
    answer: Tensor | None = None

    @classmethod
    def of(cls, events: EventLog, rows: Tensor | slice = _ALL) -> PairQueries:
        """One query an event, or each of some, whose subject comes first."""
        at = rows.numpy() if isinstance(rows, Tensor) else rows
        columns = (events.subject, events.object, events.step, events.relation)
        return cls(*(torch.from_numpy(column[at].astype("int64")) for column in columns))

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: Tensor | slice) -> PairQueries:
        answer = None if self.answer is None else self.answer[rows]
        return PairQueries(self.first[rows], self.second[rows], self.step[rows], answer)

    def batches(self, size: int) -> Iterator[PairQueries]:
        for at in range(0, len(self), size):
            yield self.take(slice(at, at + size))


@dataclass(frozen=True)
class Read:
    """What was known of every candidate of n pairs: counts, log lags and levels, float32.

    triple [n, 2R, 6]: of the candidate itself. link [n, 2, 6]: of all relations together, from the first to the second
    and back. roles [actors, 2R, 6]: of the actors, each once a step, by directed relation; all_roles [actors, 2, 6]: of
    all relations, as subject and as object; ends int64 [2, n]: which of them is the first, and the second, of a pair.
    overall [steps, R, 3]: shares among all events; step int64 [n]: which of them. base [n, 2R]: the log of a smoothed
    share of the pair's events.
    """

    triple: Tensor
    link: Tensor
    roles: Tensor
    all_roles: Tensor
    ends: Tensor
    overall: Tensor
    step: Tensor
    base: Tensor

    @property
    def seen(self) -> Tensor:
        """Whether the pair had the relation, either way round; bool [n, 2R]."""
        known = self.triple[..., _COUNT] > 0
        return known | known.roll(self.overall.shape[1], 1)

    @property
    def x(self) -> Tensor:
        """The features of all candidates, float32 [n, 2R, columns]."""
        n, directed = self.base.shape
        row = torch.arange(n, device=self.base.device).repeat_interleave(directed)
        relation = torch.arange(directed, device=self.base.device).repeat(n)
        return self.columns(row, relation).view(n, directed, -1)

    def columns(self, row: Tensor, relation: Tensor) -> Tensor:
        """The features of candidates, float32 [m, columns]; row, directed relation int64 [m]."""
        relations = self.overall.shape[1]
        way, back = relation // relations, (relation + relations) % (2 * relations)
        acts, acted_on = self.ends[way, row], self.ends[1 - way, row]
        triple, reverse = _at(self.triple, row, relation), _at(self.triple, row, back)
        subject = _at(self.roles, acts, relation % relations)
        object_ = _at(self.roles, acted_on, relation % relations + relations)
        link, reverse_link = _at(self.link, row, way), _at(self.link, row, 1 - way)
        of_subject, of_object = self.all_roles[acts, 0], self.all_roles[acted_on, 1]
        overall = _at(self.overall, self.step[row], relation % relations)
        at = (_COUNT, _RECENT, _LATEST)
        shares_s = (subject[:, at] + overall) / (of_subject[:, at] + 1)
        shares_o = (object_[:, at] + overall) / (of_object[:, at] + 1)
        both = (shares_s[:, 0] + shares_o[:, 0]) / 2
        own = [((triple[:, k] + both) / (link[:, k] + 1)).log() for k in (_COUNT, _RECENT)]
        columns = [
            *(triple[:, _COUNT].log1p(), triple[:, _LAG], *triple[:, 2:].log1p().unbind(1)),
            *(reverse[:, _COUNT].log1p(), reverse[:, _LAG], reverse[:, _RECENT].log1p()),
            *own,
            *(*shares_s.log().unbind(1), subject[:, _LAG]),
            *(*shares_o.log().unbind(1), object_[:, _LAG]),
            *overall.log().unbind(1),
            *(link[:, _COUNT].log1p(), link[:, _LAG]),
            *(reverse_link[:, _COUNT].log1p(), reverse_link[:, _LAG]),
            *(of_subject[:, _COUNT].log1p(), of_object[:, _COUNT].log1p()),
        ]
        return torch.stack(columns, dim=1)


def _at(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """table[first, second], quicker; [a, b, columns] -> [m, columns]."""
    return table.flatten(0, 1).index_select(0, first * table.shape[1] + second)


class RelationReader:
    """Reads the features of all directed relations of a batch of pairs, strictly before their steps."""

    def __init__(self, past: Past, n_relations: int) -> None:
        """n_relations: the candidates are the first that many, and the past is read among these alone."""
        self.past, self.relations = past.within(past.events.n_entities, n_relations), n_relations
        self.tallies = PastTallies(self.past)

    @property
    def batch(self) -> int:
        """How many pairs are read at once."""
        return max(1, min(256, _CELLS // (2 * self.relations)))

    def read(self, queries: PairQueries) -> Read:
        a, b, t, n = queries.first, queries.second, queries.step, self.relations
        triple, link = self._links(torch.cat([a, b]), torch.cat([b, a]), t.repeat(2))
        roles, all_roles, ends = self._roles(torch.cat([a, b]), t.repeat(2))
        overall, step = self._overall(t)
        usual = overall[step, :, 0].repeat(1, 2)
        counts, totals = roles[..., _COUNT], all_roles[..., _COUNT]
        both = sum(
            (torch.cat([counts[one, side], counts[two, side]], dim=1) + usual)
            / (torch.stack([totals[one, role], totals[two, role]], dim=1).repeat_interleave(n, 1) + 1)
            for role, side, (one, two) in ((0, slice(n), ends), (1, slice(n, None), ends.flip(0)))
        )
        in_all = link[..., _COUNT].sum(1, keepdim=True)
        # half of what the actors' shares expect goes to either direction, and each share is half of it
        base = ((triple[..., _COUNT] + _PRIOR * both / 4) / (in_all + _PRIOR)).log()
        return Read(triple, link, roles, all_roles, ends, overall, step, base)

    def _links(self, subject: Tensor, object: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Of 2n links, those of n pairs and then the same reversed: [n, 2R, 6] by relation, and of all [n, 2, 6]."""
        row, relation, found = self.tallies.relations_of("triple", subject, object, step)
        total = _values(self.tallies.before("link", subject, torch.zeros_like(step), object, step), step)
        made, n = _scattered(row, relation, found, step, self.relations), len(step) // 2
        return torch.cat([made[:n], made[n:]], dim=1), torch.stack([total[:n], total[n:]], dim=1).float()

    def _roles(self, actor: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of 2n actors, the first and then the second of n pairs: roles, all_roles and ends of what is read.

        An actor is read once a step.
        """
        asked, which = torch.unique(code(actor, step), return_inverse=True)
        who, at = asked >> STEP_BITS, asked & ((1 << STEP_BITS) - 1)
        row, relation, found = self.tallies.relations_of("role_relation", who, who, at)
        made = _scattered(row, relation, found, at, 2 * self.relations)
        roles = (torch.full_like(who, role) for role in (0, 1))
        totals = [_values(self.tallies.before("role", who, role, who, at), at) for role in roles]
        return made, torch.stack(totals, dim=1).float(), which.view(2, -1)

    def _overall(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The share of each relation among all events: in all, of the last months and days; float32 [steps, R, 3].

        And int64 [n]: which of the steps is that of each query.
        """
        steps, which = torch.unique(step, return_inverse=True)
        relation = torch.arange(self.relations, device=step.device).repeat(len(steps))
        at = steps.repeat_interleave(self.relations)
        found = _values(self.tallies.before("relation", relation, relation, relation, at), at)
        found = found[:, (_COUNT, _RECENT, _LATEST)].view(len(steps), self.relations, 3) + 1 / self.relations
        return (found / found.sum(1, keepdim=True)).float(), which


def _values(tallied: Tallied, step: Tensor) -> Tensor:
    """Count, log lag and levels float64 [n, 6]."""
    lag = torch.where(tallied.events > 0, (step - tallied.last).double().log1p(), _NEVER)
    return torch.cat([tallied.events.double()[:, None], lag[:, None], tallied.level], dim=1)


def _scattered(row: Tensor, relation: Tensor, found: Tallied, step: Tensor, relations: int) -> Tensor:
    """What was found as [n, relations, 6]; what a base and its delta know adds up, and the later lag counts."""
    flat, values = row * relations + relation, _values(found, step[row]).float()
    made = torch.zeros((len(step) * relations, 2 + len(DECAYS)), device=step.device).index_add_(0, flat, values)
    never = torch.full((len(made),), _NEVER, device=step.device)
    made[:, _LAG] = never.scatter_reduce_(0, flat, values[:, _LAG], "amin")
    return made.view(len(step), relations, -1)


class RelationNet(nn.Module):
    """f: features and an embedding of the relation -> one number."""

    mean: Tensor
    inverse: Tensor

    def __init__(self, n_relations: int, settings: RelationSettings) -> None:
        super().__init__()
        self.relation = nn.Embedding(n_relations, settings.relation_width)
        nn.init.normal_(self.relation.weight, std=0.1)
        width = len(NAMES) + settings.relation_width
        hidden = settings.hidden
        self.body = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )
        # f starts at zero: before the first step the score is the share
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.register_buffer("mean", torch.zeros(len(NAMES)))
        self.register_buffer("inverse", torch.ones(len(NAMES)))

    def standardise(self, x: Tensor) -> None:
        """Learn mean and deviation of the features from examples float32 [m, columns]."""
        for place, column in enumerate(x.unbind(1)):  # one at a time, since there may be millions of examples
            wide = column.double()
            self.mean[place] = wide.mean()
            self.inverse[place] = wide.var(correction=0).clamp(min=1e-6).rsqrt()

    def forward(self, x: Tensor, relation: Tensor) -> Tensor:
        """x float32 [m, columns], relation int64 [m] directed -> [m]."""
        x = ((x - self.mean) * self.inverse).clamp(-8, 8)
        return self.body(torch.cat([x, self.relation(relation % len(self.relation.weight))], dim=1)).squeeze(1)


class Relations:
    """The fitted head."""

    def __init__(self, settings: RelationSettings, net: RelationNet) -> None:
        self.settings, self.net = settings, net.eval()

    @property
    def n_relations(self) -> int:
        """How many relations it was fitted on; later ones are no candidates."""
        return len(self.net.relation.weight)

    @torch.no_grad()
    def scores(self, reader: RelationReader, queries: PairQueries) -> Tensor:
        """The log score of every directed relation, float64 [n, 2R]; a softmax makes it a probability."""
        return torch.cat([self.of(reader.read(batch)) for batch in queries.batches(reader.batch)])

    @torch.no_grad()
    def of(self, read: Read) -> Tensor:
        """The same of features that were read."""
        n, directed = read.base.shape
        relation = torch.arange(directed, device=read.base.device).repeat(n)
        return (read.base + self.net(read.x.flatten(0, 1), relation).view(n, directed)).double()

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items()}

    @classmethod
    def restore(cls, settings: RelationSettings, tensors: dict[str, Tensor]) -> Self:
        """Refuses with a ValueError what is not the weights of such a network."""
        with shells():
            net = RelationNet(len(tensor_of(tensors, "relation.weight", 2)), settings)
        return cls(settings, with_weights(net, tensors))


@dataclass(frozen=True)
class RelationCases:
    """Queries with a sample of their candidates, flat; each counts 1 / (its probability of being kept) times.

    Of m candidates: x float32 [m, columns], base float32 [m], relation int64 [m] directed, log_weight float32 [m],
    is_answer bool [m]. start int64 [n + 1]: where the candidates of a query begin.
    """

    x: Tensor
    base: Tensor
    relation: Tensor
    log_weight: Tensor
    is_answer: Tensor
    start: Tensor


def recent_queries(events: EventLog, settings: RelationSettings, seed: int) -> PairQueries:
    """What happened between pairs in the last share of some events, all of it or a sample."""
    first = min(int(len(events) * (1 - settings.share)), max(len(events) - 1, 0))
    return PairQueries.of(events, sample_rows(len(events) - first, settings.queries, seed) + first)


def relation_cases(
    reader: RelationReader, queries: PairQueries, *, seed: int = 42, progress: Progress = SILENT
) -> RelationCases:
    """Read the queries, keeping the answer, all relations that the pair had, and a sample of the others."""
    draw = torch.Generator().manual_seed(seed)
    examples: list[Tensor] = []
    parts, counts = [], [torch.zeros(1, dtype=torch.int64)]
    with progress.task("reading what happened between pairs", total=len(queries)) as advance:
        batches = list(queries.batches(reader.batch))
        for batch, read in zip(batches, in_order(reader.read, batches), strict=True):
            assert batch.answer is not None
            keep = (_RATE + _KEEP * read.base.softmax(1)).clamp(max=1.0)
            keep[read.seen] = 1.0
            keep[torch.arange(len(batch)), batch.answer] = 1.0
            row, relation = (torch.rand(keep.shape, generator=draw) < keep).nonzero().unbind(1)
            examples.append(read.columns(row, relation))
            kept = (read.base[row, relation], relation, -keep[row, relation].log())
            parts.append((*kept, relation == batch.answer[row]))
            counts.append(torch.bincount(row, minlength=len(batch)))
            advance(len(batch))
    base, relation, log_weight, is_answer = (torch.cat(column) for column in zip(*parts, strict=True))
    del parts
    return RelationCases(
        drained(examples, reader.past.return_freed), base, relation, log_weight, is_answer, torch.cat(counts).cumsum(0)
    )


def fit_relations(
    cases: RelationCases, n_relations: int, settings: RelationSettings, *, seed: int = 42, progress: Progress = SILENT
) -> Relations:
    """Fit f by cross-entropy over all directed relations, estimated from the candidates that were kept."""
    n = len(cases.start) - 1
    batches = math.ceil(n / settings.batch)
    with seeded(seed, "cpu"):
        net = RelationNet(n_relations, settings)
        net.standardise(cases.x)
        steps = OneCycle(net, settings.learning_rate, settings.weight_decay, settings.epochs * batches)
        with progress.task("fitting what comes next", total=settings.epochs * batches) as advance:
            for _ in range(settings.epochs):
                for rows in torch.randperm(n).split(settings.batch):
                    steps.take(partial(_loss, net, cases, rows))
                    advance(1)
    return Relations(settings, net)


def _loss(net: RelationNet, cases: RelationCases, rows: Tensor) -> Tensor:
    """The mean of -log p of the answers of some queries."""
    row, at = expand(cases.start[rows], cases.start[rows + 1])
    logit = cases.base[at] + net(cases.x[at], cases.relation[at])
    own = torch.zeros(len(rows)).index_add(0, row, logit * cases.is_answer[at])
    logit = logit + cases.log_weight[at]
    top = torch.full((len(rows),), -torch.inf).scatter_reduce(0, row, logit.detach(), "amax")
    total = torch.zeros(len(rows)).index_add(0, row, (logit - top[row]).exp())
    return (total.log() + top - own).mean()


def untrained(n_relations: int, settings: RelationSettings) -> Relations:
    """The head before any fit: the smoothed shares alone."""
    with seeded(0, "cpu"):
        return Relations(settings, RelationNet(n_relations, settings))
