"""INFER (Li et al., ICLR 2025): mined temporal rules, applied as max-product walks over facts that decay with time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Backbone, Grid
from bridgemem.backbones.rules import mine
from bridgemem.backbones.scorer import Scores
from bridgemem.config import MOST_UNITS, BelowOne, Count, Declared, Inside, NotNegative, Positive, Range
from bridgemem.equations import EPSILON
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import STEP_BITS, changes, code, expand
from bridgemem.numerics import sigmoid
from bridgemem.progress import Progress
from bridgemem.storage.tensors import TensorSpec, check_tensors, tensor_of
from bridgemem.training.checkpoint import Checkpoint, Training, shells, with_weights
from bridgemem.training.devices import moved

MOST_REFRESHES = 8192  # each is a pass over all facts for every step that is asked about
KEPT = 100  # rules of a relation that are kept, so that `top` can still be changed
FIXED_POINT = 2.0**48  # sums of whole numbers do not depend on their order, on any device
# steps of walks, and cells of a dense frontier, that are held at once
ROOM = {"cpu": 1 << 22, "cuda": 1 << 26}


Cells = tuple[Tensor, Tensor, Tensor]  # walk int64 [m], candidate int64 [m], value float32 [m]


@dataclass(frozen=True)
class InferSettings(Declared):
    """longest to min_support: mining. top to prune: applying. rank to penalty: the static embedding, none for rank 0.

    refreshes: over how many steps the weights of recurring facts build up; 1 leaves the temporal validity alone.
    unit: how many steps count as one in the temporal validity.
    """

    longest: Count = 3
    walks: Count = 200
    samples: Count = 500
    min_confidence: BelowOne = 0.01
    min_support: Count = 3
    top: Count = 40
    identity: Inside = 0.01
    temperature: Positive = 15.0
    refreshes: Annotated[int, Range(ge=1, le=MOST_REFRESHES)] = 30
    unit: Positive = 1.0
    prune: BelowOne = 1e-4
    rank: Annotated[int, Range(ge=0, le=MOST_UNITS, note="(0 for no embedding)")] = 0
    threshold: BelowOne = 5e-4
    epochs: Count = 50
    batch: Count = 1000
    learning_rate: Positive = 0.1
    penalty: NotNegative = 0.03


class ComplEx(nn.Module):
    """The static embedding (Trouillon et al., 2016): halves of a vector are its real and imaginary part."""

    def __init__(self, n_entities: int, n_relations: int, rank: int) -> None:
        super().__init__()
        self.entity = nn.Parameter(1e-3 * torch.randn(n_entities, 2 * rank))
        self.relation = nn.Parameter(1e-3 * torch.randn(2 * n_relations, 2 * rank))

    def logits(self, actor: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """Re <actor, relation, conj(candidate)> of every candidate, [n, E], and the N3 norm of actor and relation, [n].

        actor, relation int64 [n].
        """
        s, r = F.embedding(actor, self.entity), F.embedding(relation, self.relation)
        (s_re, s_im), (r_re, r_im) = s.chunk(2, dim=1), r.chunk(2, dim=1)
        query = torch.cat([s_re * r_re - s_im * r_im, s_re * r_im + s_im * r_re], dim=1)
        return query @ self.entity.T, cubes(s) + cubes(r)

    def loss(self, triple: Tensor, penalty: float) -> Tensor:
        """Cross-entropy of the candidates with the N3 penalty; triple int64 [n, 3]: actor, relation, candidate."""
        actor, relation, candidate = triple.unbind(1)
        logits, norm = self.logits(actor, relation)
        norm = norm + cubes(F.embedding(candidate, self.entity))
        return F.cross_entropy(logits, candidate) + penalty * norm.mean()


def cubes(x: Tensor) -> Tensor:
    """Sum of the cubed moduli of complex vectors [n, 2k] -> [n]."""
    re, im = x.chunk(2, dim=1)
    # the root of zero has no gradient
    return (re.square() + im.square()).clamp(min=1e-30).pow(1.5).sum(1)


def train_static(net: ComplEx, events: EventLog, settings: InferSettings, kept: Checkpoint, progress: Progress) -> None:
    """Train the embedding on the facts without their times, in both directions, for a fixed number of epochs."""
    q = Queries.of(events)
    assert q.answer is not None
    triples = torch.stack([q.actor, q.relation, q.answer], dim=1).unique(dim=0).to(net.entity.device)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=settings.learning_rate)
    done, batches = kept.resume(1, optimizer), math.ceil(len(triples) / settings.batch)
    with progress.task("training INFER's embedding", total=settings.epochs * batches) as advance:
        advance(done * batches)
        for epoch in range(done + 1, settings.epochs + 1):
            mixed = triples[torch.randperm(len(triples), device=triples.device)]
            for part in mixed.split(settings.batch):
                optimizer.zero_grad(set_to_none=True)
                net.loss(part, settings.penalty).backward()
                optimizer.step()
                advance(1)
            kept.keep(1, epoch, optimizer, whole=epoch == settings.epochs)


class Prefixes:
    """The rules of every directed relation as leaves of a tree of relations, so that bodies share their beginnings.

    first, last int64 [2R]: the slice of each head's rules, the identity rule "what it did before" always among them.
    length, node int64 [m]: the leaf of a rule, among the prefixes of its length; confidence float32 [m].
    parent, relation: for each length, int64 of all prefixes: the one shorter by one, and the relation at the end.
    """

    def __init__(self, head: Tensor, body: Tensor, confidence: Tensor, n_directed: int, s: InferSettings) -> None:
        device = head.device
        every = torch.arange(n_directed, device=device)
        rank = torch.arange(len(head), device=device) - torch.searchsorted(head, head)
        own = rank < s.top - 1
        itself = torch.full((n_directed, body.shape[1]), -1, device=device)
        itself[:, 0] = every
        head, body = torch.cat([every, head[own]]), torch.cat([itself, body[own]])
        confidence = torch.cat([confidence.new_full((n_directed,), s.identity), confidence[own]])
        head, order = head.sort(stable=True)
        body, self.confidence = body[order], confidence[order].float()
        self.first, self.last = torch.searchsorted(head, every), torch.searchsorted(head, every, right=True)
        self.length = (body >= 0).sum(1)
        self.node = torch.zeros_like(head)
        self.parent: list[Tensor] = []
        self.relation: list[Tensor] = []
        for relation in body.unbind(1):
            reaches = relation >= 0
            nodes, self.node[reaches] = torch.unique(
                self.node[reaches] * n_directed + relation[reaches], return_inverse=True
            )
            self.parent.append(nodes // n_directed)
            self.relation.append(nodes % n_directed)


@dataclass(frozen=True)
class Frontier:
    """Sparse vectors of n walks, flat: those of walk i lie in start[i] .. stop[i] - 1.

    start, stop int64 [n]; candidate int64 [m]; value float32 [m] above 0.
    """

    start: Tensor
    stop: Tensor
    candidate: Tensor
    value: Tensor


@dataclass(frozen=True)
class Weights:
    """The matrix of every directed relation at one step, sparse: row r * E + i of facts (i, r, .) with their weights.

    start, stop int64 [2R * E]: the slice of a row; candidate int64 [m]; value float32 [m].
    """

    start: Tensor
    stop: Tensor
    candidate: Tensor
    value: Tensor


class FadingFacts:
    """All facts of a history, each triple once, and what they weigh at a step from what happened before it.

    row int64 [m]: r * E + actor; candidate int64 [m]; ordered by (row, first step), so that what a row knows at any
    step comes first in it.
    """

    def __init__(self, past: Past, settings: InferSettings) -> None:
        self.past, self.settings = past, settings
        q, entities = Queries.of(past.events), past.events.n_entities
        assert q.answer is not None
        row, candidate, step = (c.numpy() for c in (q.relation * entities + q.actor, q.answer, q.step))
        order = np.lexsort((step, candidate, row))
        row, candidate, step = row[order], candidate[order], step[order]
        new = changes(row, candidate)
        once = new | changes(step)
        row, candidate, step, new = row[once], candidate[once], step[once], new[once]
        triple = new.cumsum() - 1
        by_first = np.lexsort((candidate[new], step[new], row[new]))
        place = np.empty_like(by_first)
        place[by_first] = np.arange(len(by_first))
        triple = place[triple]

        def put(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(past.device)

        self.row, self.candidate = put(row[new][by_first]), put(candidate[new][by_first])
        self.first = put(step[new][by_first])
        self.start = torch.searchsorted(
            self.row, torch.arange(2 * past.events.n_relations * entities, device=past.device)
        )
        # every occurrence twice: under its triple, to begin at any step, and under its step, to go on from there
        by_triple, by_step = np.lexsort((step, triple)), np.lexsort((triple, step))
        self.codes = code(put(triple[by_triple]), put(step[by_triple]))
        self.triple, self.steps = put(triple[by_step]), step[by_step]

    @cached_property
    def growth(self) -> Tensor:
        """b(n) sqrt(n - 1) = (sigmoid(sqrt(n - 1) / temperature) - 1/2) sqrt(n - 1) for every count n, float32."""
        root = torch.arange(-1, len(np.unique(self.steps)) + 1, device=self.row.device).clamp(min=0).double().sqrt()
        return (root * (sigmoid(root / self.settings.temperature) - 0.5)).float()

    def _known(self, step: int) -> tuple[Tensor, Tensor]:
        """How often each triple occurred before a step, int64 [m], and when last, float64 [m], -inf for never."""
        triple = torch.arange(len(self.row), device=self.row.device)
        begin = torch.searchsorted(self.codes, code(triple, 0))
        end = torch.searchsorted(self.codes, code(triple, max(step, 0)))
        last = self.codes[(end - 1).clamp(min=0)] & ((1 << STEP_BITS) - 1)
        return end - begin, last.double().masked_fill(end == begin, -torch.inf)

    def _cut(self, step: int) -> int:
        return int(self.past.cut(torch.tensor(step)))

    def at(self, step: int) -> Weights:
        """W <- min(1, V + W b(n) sqrt(n - 1)) at each of the last `refreshes` steps, with V = sqrt(unit / lag)."""
        s, begin = self.settings, step - self.settings.refreshes + 1
        count, last = self._known(self._cut(begin))
        growth, value = self.growth[count], torch.zeros_like(last, dtype=torch.float32)
        for now in range(begin, step + 1):
            if now > begin and self._cut(now) == now:
                low, high = np.searchsorted(self.steps, [now - 1, now])
                again = self.triple[low:high]
                count[again] += 1
                last[again] = now - 1
                growth[again] = self.growth[count[again]]
            validity = (s.unit / (now - last)).sqrt_().float()
            value = validity.add_(value.mul_(growth)).clamp_(max=1)
        known = self.row[self.first < self._cut(step)]
        stop = self.start.clone().index_add_(0, known, torch.ones_like(known))
        return Weights(self.start, stop, self.candidate, value)


class Walks:
    """Walks of one step over its weights, all of a length at once."""

    def __init__(self, weights: Weights, n_entities: int, prune: float) -> None:
        self.weights, self.n_entities, self.prune = weights, n_entities, prune
        device = weights.value.device
        self.room = ROOM.get(device.type, ROOM["cpu"])

    def begin(self, actor: Tensor, relation: Tensor) -> Frontier:
        """The first hop: the rows of (actor, relation), int64 [n] each."""
        w, row = self.weights, relation * self.n_entities + actor
        return Frontier(w.start[row], w.stop[row], w.candidate, w.value)

    def hop(self, x: Frontier, walk: Tensor, relation: Tensor) -> Frontier:
        """x'[o] = max over i of x[i] W_r[i, o], for each of n (walk of x, relation r), int64 [n] each."""
        found = [(walk[:0], walk[:0], x.value[:0])]
        for low, high in chunks(x.stop[walk] - x.start[walk], self.room):
            part = slice(low, high)
            task, at = expand(x.start[walk[part]], x.stop[walk[part]])
            alive = (x.value[at] >= self.prune).nonzero().squeeze(1)
            task, at = task[alive], at[alive]
            row = relation[part][task] * self.n_entities + x.candidate[at]
            found += self._merged(task, x.value[at], row, low, high - low)
        return self._frontier(found, len(walk))

    def _merged(self, task: Tensor, value: Tensor, row: Tensor, first: int, n: int) -> Iterator[Cells]:
        """The largest product value * weight of each (task, candidate); task int64, ascending, of n from `first` on."""
        w, entities = self.weights, self.n_entities
        begin, end = w.start[row], w.stop[row]
        load = task.new_zeros(n).index_add_(0, task, end - begin)
        for low, high in chunks(load.clamp(min=entities), self.room):
            a, b = torch.searchsorted(task, torch.tensor([low, high], device=task.device)).tolist()
            entry, place = expand(begin[a:b], end[a:b])
            flat = (task[a:b][entry] - low) * entities + w.candidate[place]
            dense = value.new_zeros((high - low) * entities)
            dense.scatter_reduce_(0, flat, value[a:b][entry] * w.value[place], "amax")
            yield self._nonzero(dense, first + low)

    def static(self, net: ComplEx, actor: Tensor, relation: Tensor, threshold: float) -> Frontier:
        """What the embedding expects of (actor, relation), int64 [n] each, beyond the facts: its softmax, cut off."""
        facts, found = self.begin(actor, relation), []
        size = max(1, self.room // self.n_entities)
        for low in range(0, len(actor), size):
            part = slice(low, low + size)
            p = net.logits(actor[part], relation[part])[0].softmax(1)
            row, at = expand(facts.start[part], facts.stop[part])
            p[row, facts.candidate[at]] = 0
            found.append(self._nonzero(p.masked_fill_(p < threshold, 0).view(-1), low))
        return self._frontier(found, len(actor))

    def _nonzero(self, dense: Tensor, first: int) -> Cells:
        """Walk, candidate and value of all cells of a flat [walks, E] that are not zero; its first walk is named."""
        cell = dense.nonzero().squeeze(1)
        return cell // self.n_entities + first, cell % self.n_entities, dense[cell]

    @staticmethod
    def _frontier(found: list[Cells], n: int) -> Frontier:
        """The frontier of n walks from cells in order of the walks."""
        walk, candidate, value = (torch.cat(column) for column in zip(*found, strict=True))
        every = torch.arange(n, device=walk.device)
        bounds = torch.searchsorted(walk, every), torch.searchsorted(walk, every, right=True)
        return Frontier(*bounds, candidate, value)

    def add(self, total: Tensor, x: Frontier, query: Tensor, walk: Tensor, confidence: Tensor) -> None:
        """Noisy-or in log space: total[query] += -log(1 - confidence x[walk]), for n (query, walk, confidence).

        total int64 [queries, E] in fixed point; query, walk int64 [n]; confidence float32 [n].
        """
        for low, high in chunks(x.stop[walk] - x.start[walk], self.room):
            of, at = expand(x.start[walk[low:high]], x.stop[walk[low:high]])
            y = confidence[low:high][of].double() * x.value[at]
            flat = query[low:high][of] * self.n_entities + x.candidate[at]
            total.view(-1).scatter_add_(0, flat, (torch.log1p(-y) * -FIXED_POINT).round_().long())


def chunks(load: Tensor, room: int) -> Iterator[tuple[int, int]]:
    """Bounds (low, high) of runs of items whose load, int64 [n], stays within the room, or that are a single item."""
    total = np.concatenate([[0], load.cumsum(0).cpu().numpy()])
    low, n = 0, len(load)
    while low < n:
        high = max(low + 1, int(np.searchsorted(total, total[low] + room, side="right")) - 1)
        yield low, high
        low = high


class Infer(Backbone):
    """INFER: log of the noisy-or of all rules that lead from the actor to a candidate.

    Two choices are this project's. The released code refreshes its weights in place from the first test step on, which
    would make a score depend on what was asked before: here every step starts afresh, `refreshes` steps earlier. And
    the static weights are read in bodies of one relation, where they matter, so that longer ones stay sparse.
    """

    name: ClassVar[str] = "infer"
    default: ClassVar[InferSettings] = InferSettings()
    grid: ClassVar[Grid] = {
        "longest": (3, 2),
        "top": (40, 100),
        "unit": (1.0, 4.0),
        "refreshes": (30, 1),
    }

    def __init__(self, settings: InferSettings, rules: dict[str, Tensor], net: ComplEx | None) -> None:
        """rules: head int64 [m], body int64 [m, longest], confidence float64 [m], as `Rules`; size int64 [2]: E, 2R."""
        self.settings, self.rules, self.net = settings, rules, net
        self.n_entities, self.n_directed = rules["size"].tolist()
        self.prefixes = Prefixes(rules["head"], rules["body"], rules["confidence"], self.n_directed, settings)
        self._facts: FadingFacts | None = None
        self._weights: tuple[int, Weights] | None = None

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        s, train, device, net = settings, dataset.train, training.device, None
        if s.rank:
            net = ComplEx(train.n_entities, train.n_relations, s.rank).to(device)
            state = training.state(cls.name, train.fingerprint, s, net)
            train_static(net, train, s, state, training.progress)
        asked = {name: getattr(s, name) for name in ("longest", "walks", "samples", "min_confidence", "min_support")}
        mined = mine(train, **asked, kept=max(KEPT, s.top), seed=training.seed, progress=training.progress)
        columns = {name: torch.from_numpy(column).to(device) for name, column in asdict(mined).items()}
        size = torch.tensor([train.n_entities, 2 * train.n_relations], device=device)
        return cls(s, {**columns, "size": size}, net)

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        log_p = torch.empty((len(queries), self.n_entities), dtype=torch.float64, device=queries.step.device)
        for step in queries.step.unique().tolist():
            rows = (queries.step == step).nonzero().squeeze(1)
            # a fact with several answers is asked several times
            asked, same = torch.unique(
                queries.actor[rows] * self.n_directed + queries.relation[rows], return_inverse=True
            )
            total = self._evidence(asked // self.n_directed, asked % self.n_directed, self._at(past, step))
            log_p[rows] = log_noisy_or(total)[same]
        return Scores(log_p)

    def _at(self, past: Past, step: int) -> Weights:
        """The weights at a step; those last asked for are kept."""
        if self._facts is None or self._facts.past is not past:
            self._facts, self._weights = FadingFacts(past, self.settings), None
        if self._weights is None or self._weights[0] != step:
            self._weights = step, self._facts.at(step)
        return self._weights[1]

    def _evidence(self, actor: Tensor, relation: Tensor, weights: Weights) -> Tensor:
        """-log of the probability that no rule of (actor, relation) holds, int64 [n, E] in fixed point."""
        tree, walks = self.prefixes, Walks(weights, self.n_entities, self.settings.prune)
        total = torch.zeros((len(actor), self.n_entities), dtype=torch.int64, device=actor.device)
        query, rule = expand(tree.first[relation], tree.last[relation])
        # from the longest bodies to their beginnings: every (actor, prefix) once, however often it is needed
        plans, longer = [], query.new_empty(0)
        for length in range(len(tree.parent), 0, -1):
            parent, end = tree.parent[length - 1], tree.relation[length - 1]
            own = (tree.length[rule] == length).nonzero().squeeze(1)
            leaf = actor[query[own]] * len(parent) + tree.node[rule[own]]
            walk, place = torch.unique(torch.cat([leaf, longer]), return_inverse=True)
            source, node = walk // max(len(parent), 1), walk % max(len(parent), 1)
            plans.append((source, end[node], place[len(own) :], own, place[: len(own)]))
            if length > 1:
                longer = source * len(tree.parent[length - 2]) + parent[node]
        x = into = None
        for source, end, onward, own, walk in reversed(plans):
            x = walks.begin(source, end) if x is None or into is None else walks.hop(x, into, end)
            walks.add(total, x, query[own], walk, tree.confidence[rule[own]])
            if self.net is not None and into is None:
                leaf, of_leaf = torch.unique(walk, return_inverse=True)
                expected = walks.static(self.net, source[leaf], end[leaf], self.settings.threshold)
                walks.add(total, expected, query[own], of_leaf, tree.confidence[rule[own]])
            into = onward
        return total

    def tensors(self) -> dict[str, Tensor]:
        weights = {} if self.net is None else self.net.state_dict()
        return {**self.rules, **{name: tensor.contiguous() for name, tensor in weights.items()}}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        specs = {
            "head": TensorSpec(("rules",), torch.int64),
            "body": TensorSpec(("rules", settings.longest), torch.int64),
            "confidence": TensorSpec(("rules",)),
            "size": TensorSpec((2,), torch.int64),
        }
        weights = {name: tensor for name, tensor in tensors.items() if name not in specs}
        check_tensors({name: tensor for name, tensor in tensors.items() if name in specs}, specs)
        # cloned, since memory that maps a file is not aligned as torch aligns its own, which can move a last bit
        rules = {name: tensors[name].clone() for name in specs}
        if not settings.rank:
            return cls(settings, rules, None)
        # nothing is allocated or drawn before the weights are known to fit
        with shells():
            sizes = (len(tensor_of(weights, name, 2)) for name in ("entity", "relation"))
            net = ComplEx(next(sizes), next(sizes) // 2, settings.rank)
        return cls(settings, rules, with_weights(net, weights))

    def to(self, device: str) -> Self:
        rules = {name: tensor.to(device) for name, tensor in self.rules.items()}
        return type(self)(self.settings, rules, None if self.net is None else moved(self.net, device))


def log_noisy_or(total: Tensor) -> Tensor:
    """log max{1 - exp(-total), epsilon} of sums in fixed point, float64, exact where the probability is close to 1."""
    x = total.double() / FIXED_POINT
    return torch.where(x > math.log(2), torch.log1p(-torch.exp(-x)), torch.expm1(-x).neg_().clamp_(min=EPSILON).log_())
