"""Plain references: the same method as a careful user would write it in numpy and PyTorch, one thing at a time."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import wait
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.residuals.features import FeatureReader
from bridgemem.residuals.learned import SCALES
from bridgemem.residuals.scoring import Choice

PairIndex = dict[tuple[int, int], np.ndarray]


@dataclass(frozen=True)
class Sampled:
    """Seconds of the whole work, and the share of it that was really done; the rest is extrapolated linearly."""

    seconds: float
    share: float = 1.0

    @classmethod
    def of(cls, measured: float, share: float = 1.0) -> Sampled:
        return cls(measured / share, share)

    def __add__(self, other: Sampled) -> Sampled:
        return Sampled(self.seconds + other.seconds, min(self.share, other.share))


# --- memory, examples, counts ----------------------------------------------------------------------------------------


def pair_index(events: EventLog) -> PairIndex:
    """The events of every ordered pair, int64 [m, 3] of step, relation, direction, in a dictionary."""
    rows: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    columns = (events.subject.tolist(), events.relation.tolist(), events.object.tolist(), events.step.tolist())
    for s, r, o, t in zip(*columns, strict=True):
        rows[s, o].append((t, r, 0))
        rows[o, s].append((t, r, 1))
    return {pair: np.array(own, dtype=np.int64) for pair, own in rows.items()}


def mine(index: PairIndex, space: TokenSpace, settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [n, K], targets [n] and steps [n] of all examples, pair by pair."""
    edges, back = np.array(space.edges), np.arange(1, settings.k + 1)
    tokens, targets, steps = [], [], []
    for pair in sorted(index):
        step, relation, direction = index[pair].T
        if step[0] == step[-1]:  # all at once: nobody has a past
            continue
        end = np.searchsorted(step, step)  # the past of an event ends where its own step starts
        position = end[:, None] - back
        lag = step[:, None] - step[position.clip(0)]
        found = position >= 0
        if settings.window:
            found &= lag <= settings.window
        keep = found[:, 0]
        position, lag, found = position[keep].clip(0), lag[keep], found[keep]
        directed = relation[position] + (direction[position] * space.n_relations if space.directions else 0)
        tokens.append(np.where(found, directed * space.n_bins + np.searchsorted(edges, lag), space.pad))
        targets.append((relation + direction * space.n_relations)[keep])
        steps.append(step[keep])
    if not tokens:
        return np.empty((0, settings.k), np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(tokens), np.concatenate(targets), np.concatenate(steps)


def count_table(tokens: np.ndarray, target: np.ndarray, space: TokenSpace) -> np.ndarray:
    """How often each directed relation followed each token, int64 [tokens, 2R]."""
    table = np.zeros((space.size + 1, space.n_directed), dtype=np.int64)
    np.add.at(table, (tokens, np.broadcast_to(target[:, None], tokens.shape)), 1)
    return table[: space.size]


# --- the reader ------------------------------------------------------------------------------------------------------


class PlainReader(nn.Module):
    """Equations 1 and 2 event by event: embed all K events of all states, attend, and read the head."""

    log_prior: Tensor

    def __init__(self, space: TokenSpace, log_prior: Tensor, settings: Settings) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
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

    def forward(self, events: Tensor) -> Tensor:
        """events int64 [n, K, 4] of direction, relation, recency, found -> log odds [n, 2R]."""
        direction, relation, recency, found = events.unbind(2)
        z = self.relation(relation) + self.direction(direction) + self.recency(recency)
        salience = self.attention(z.tanh()).squeeze(2).masked_fill(found == 0, -math.inf)
        return self.head((salience.softmax(1)[:, :, None] * z).sum(1))

    def log_p(self, events: Tensor) -> Tensor:
        return F.log_softmax(self(events) + self.log_prior, dim=1)


def token_parts(tokens: Tensor, space: TokenSpace) -> Tensor:
    """Direction, relation, recency and found of every token, int64 [n, K, 4]."""
    tokens = tokens.long()
    found = tokens != space.pad
    tokens = torch.where(found, tokens, 0)
    directed, recency = tokens // space.n_bins, tokens % space.n_bins
    return torch.stack([directed // space.n_relations, directed % space.n_relations, recency, found.long()], dim=2)


class PlainTraining:
    """AdamW over random batches; the seed fixes the first weights and the order of the examples."""

    def __init__(
        self, examples: Examples, space: TokenSpace, log_prior: Tensor, settings: Settings, seed: int, device: str
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.reader = PlainReader(space, log_prior, settings).to(device)
        self.events = token_parts(examples.tokens, space).to(device)
        self.target = examples.target.to(device)
        self.batch = settings.batch
        self.shuffle = torch.Generator(device=device).manual_seed(seed)
        self.optimizer = torch.optim.AdamW(self.reader.parameters(), lr=settings.learning_rate)

    def epoch(self) -> None:
        for rows in torch.randperm(len(self.target), generator=self.shuffle, device=self.target.device).split(
            self.batch
        ):
            loss = F.cross_entropy(self.reader(self.events[rows]) + self.reader.log_prior, self.target[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def _warm_up(examples: Examples, space: TokenSpace, log_prior: Tensor, settings: Settings, device: str) -> None:
    """One step that does not count, since the first of a process loads what the others find loaded."""
    some = examples.take(torch.arange(min(settings.batch, len(examples))))
    PlainTraining(some, space, log_prior, settings, 0, device).epoch()
    wait(device)


@torch.no_grad()
def judge(reader: PlainReader, events: Tensor, target: Tensor, batch: int) -> float:
    """Mean -log p(target | state)."""
    total = 0.0
    for part, own in zip(events.split(batch), target.split(batch), strict=True):
        total -= reader.log_p(part).gather(1, own[:, None]).sum().item()
    return total / max(len(target), 1)


def fit_reader(
    examples: Examples,
    space: TokenSpace,
    log_prior: Tensor,
    settings: Settings,
    epochs: int,
    seed: int,
    device: str,
    budget: float,
) -> tuple[PlainReader, int, Sampled]:
    """A reader trained for as many of the epochs as the budget of seconds allows, how many, and what they took."""
    _warm_up(examples, space, log_prior, settings, device)
    began = time.perf_counter()
    training = PlainTraining(examples, space, log_prior, settings, seed, device)
    done = 0
    while done < epochs and (not done or time.perf_counter() - began < budget):
        training.epoch()
        wait(device)
        done += 1
    return training.reader, done, Sampled.of(time.perf_counter() - began, done / epochs)


def choose_epochs(
    early: Examples,
    late: Examples,
    space: TokenSpace,
    log_prior: Tensor,
    settings: Settings,
    seed: int,
    device: str,
    budget: float,
) -> tuple[int, list[float], bool, float]:
    """The chosen epoch, the curve, whether it went to its end inside the budget of seconds, and what it took."""
    _warm_up(early, space, log_prior, settings, device)
    began = time.perf_counter()
    training = PlainTraining(early, space, log_prior, settings, seed, device)
    events, target = token_parts(late.tokens, space).to(device), late.target.to(device)
    curve: list[float] = []
    best, best_epoch = math.inf, 1
    for epoch in range(1, settings.max_epochs + 1):
        training.epoch()
        curve.append(judge(training.reader, events, target, settings.batch))
        if curve[-1] < best - settings.min_improvement:
            best, best_epoch = curve[-1], epoch
        elif epoch - best_epoch >= settings.patience:
            break
        if time.perf_counter() - began > budget and epoch < settings.max_epochs:
            return best_epoch, curve, False, time.perf_counter() - began
    return best_epoch, curve, True, time.perf_counter() - began


# --- evaluation ------------------------------------------------------------------------------------------------------


def dense_ranks(
    log_p: Tensor,
    answer: Tensor,
    row: Tensor,
    candidate: Tensor,
    delta: Tensor,
    masks: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Mean-tie ranks float64 [filters, corrections, n] from dense float64 scores, one filter after the other."""
    n, results = len(answer), []
    for mask_row, mask_candidate in masks:
        columns = []
        for own in delta.T:
            scores = log_p.double()
            scores[row, candidate] += own
            true = scores.gather(1, answer[:, None])
            scores[mask_row, mask_candidate] = -math.inf
            greater, equal = (scores > true).sum(1), (scores == true).sum(1)
            columns.append(1 + greater.double() + (equal.double() - 1) / 2)
        results.append(torch.stack(columns) if columns else log_p.new_zeros((0, n)).double())
    return torch.stack(results)


class PlainFilters:
    """Sets of true answers under (actor, relation), and under (actor, relation, step)."""

    def __init__(self, events: EventLog) -> None:
        self.static: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.time: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        columns = (events.subject.tolist(), events.relation.tolist(), events.object.tolist(), events.step.tolist())
        for s, r, o, t in zip(*columns, strict=True):
            for actor, relation, answer in ((s, r, o), (o, r + events.n_relations, s)):
                self.static[actor, relation].add(answer)
                self.time[actor, relation, t].add(answer)

    def mask(self, name: str, queries: Queries) -> tuple[Tensor, Tensor]:
        """(row, candidate) of the other true answers."""
        rows: list[int] = []
        candidates: list[int] = []
        assert queries.answer is not None
        columns = (queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), queries.answer.tolist())
        for row, (actor, relation, step, answer) in enumerate(zip(*columns, strict=True)):
            known: set[int] = set()
            if name != "raw":
                known = self.time[actor, relation, step] if name == "time" else self.static[actor, relation]
            others = known - {answer}
            rows += [row] * len(others)
            candidates += others
        device = queries.actor.device
        return torch.tensor(rows, dtype=torch.long, device=device), torch.tensor(
            candidates, dtype=torch.long, device=device
        )


class PlainResidual:
    """Equations 3 to 5 for every (query, candidate) on its own, nothing shared between queries."""

    def __init__(self, transitions: Transitions, device: str) -> None:
        self.settings, self.space = transitions.settings, transitions.space
        self.log_pi = transitions.log_pi.to(device)
        counts = transitions.counts.counts.to(device).double()
        smoothing = self.settings.smoothing
        self.support = F.pad(counts.sum(1), (0, 1))
        p = (counts + smoothing * self.log_pi.exp()) / (counts.sum(1, keepdim=True) + smoothing)
        self.p_ct = F.pad(p, (0, 0, 0, 1))
        self.reader = PlainReader(self.space, self.log_pi, self.settings).to(device).eval()
        weights = transitions.tensors()
        own = {name: weights[f"reader.{name}"].to(device) for name in self.reader.state_dict()}
        self.reader.load_state_dict(own)

    @torch.no_grad()
    def of(self, queries: Queries, past: Past, uncertainty: Tensor, choice: Choice) -> tuple[Tensor, Tensor, Tensor]:
        """(row, candidate, value) of what the choice adds."""
        s = self.settings
        states = past.dyads.partners(queries.actor, queries.step, s.k, s.window)
        tokens = self.space.encode(states.relation, states.direction, states.lag, states.found)
        query_relation = queries.relation[states.row]
        log_pi = self.log_pi[query_relation]
        a_ct = self.p_ct[tokens, query_relation[:, None]].sum(1).log() - log_pi
        events = token_parts(tokens, self.space)
        log_p = [
            self.reader.log_p(part).gather(1, own[:, None]).squeeze(1)
            for part, own in zip(events.split(s.batch), query_relation.split(s.batch), strict=True)
        ]
        a_nn = (torch.cat(log_p).double() if log_p else log_pi) - log_pi
        rho = choice.tau / (self.support[tokens].sum(1) + choice.tau)
        mixed = ((1 - rho) * a_ct.exp() + rho * a_nn.exp()).log()
        u = uncertainty.double()[states.row]
        gate = 4 * u * (1 - u) if choice.gate == "uncertain" else torch.ones_like(u)
        return states.row, states.candidate, choice.lam * gate * mixed


def evaluate(
    batches: Iterator[Queries],
    backbone: Backbone,
    past: Past,
    filters: PlainFilters,
    residual: PlainResidual,
    choices: Sequence[Choice],
) -> Tensor:
    """Ranks float64 [filters, 1 + choices, n]: batch after batch, choice after choice, filter after filter."""
    parts = []
    for batch in batches:
        assert batch.answer is not None
        scores = score_queries(backbone, batch, past)
        assert scores.uncertainty is not None
        masks = [filters.mask(name, batch) for name in FILTERS]
        nothing = batch.actor.new_empty(0)
        columns = [dense_ranks(scores.log_p, batch.answer, nothing, nothing, scores.log_p.new_zeros((0, 1)), masks)]
        for choice in choices:
            row, candidate, value = residual.of(batch, past, scores.uncertainty, choice)
            columns.append(dense_ranks(scores.log_p, batch.answer, row, candidate, value[:, None], masks))
        parts.append(torch.cat(columns, dim=1))
    return torch.cat(parts, dim=2)


def best(
    query: Queries,
    backbone: Backbone,
    past: Past,
    residual: PlainResidual,
    choice: Choice,
    events: EventLog,
    top: int = 10,
) -> list[str]:
    """The names of the likeliest answers to a single query."""
    scores = score_queries(backbone, query, past)
    assert scores.uncertainty is not None
    row, candidate, value = residual.of(query, past, scores.uncertainty, choice)
    dense = scores.log_p.double()
    dense[row, candidate] += value
    return [events.entities.names[c] for c in dense[0].argsort(descending=True, stable=True)[:top].tolist()]


# --- the learned residual: every validation query, every candidate that is read, every epoch ------------------------


@dataclass(frozen=True)
class PlainSettings:
    """Of the fit loop that the sampled one replaced: all candidates, the scale learned too, epochs chosen."""

    hidden: int = 64
    relation_width: int = 16
    dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    batch: int = 256
    max_epochs: int = 20
    fit_share: float = 0.8


@dataclass(frozen=True)
class PlainCase:
    """One query: x [k, features] and log p0 [k] of its candidates, which of them a filter removes, and the rest.

    answer: its place among the candidates, or None where it is not read. own: its log p0. rest [scales]: log of the
    summed p0^w of all candidates that are neither read nor removed.
    """

    x: Tensor
    log_p: Tensor
    removed: Tensor
    answer: int | None
    own: float
    rest: Tensor
    relation: int
    step: int


class PlainLearned(nn.Module):
    """w log p0 + f(standardised features, relation): two hidden layers."""

    def __init__(self, n_directed: int, mean: Tensor, deviation: Tensor, settings: PlainSettings) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation
        self.relation = nn.Embedding(n_directed, settings.relation_width)
        nn.init.normal_(self.relation.weight, std=0.1)
        width = len(mean) + settings.relation_width
        self.first, self.second = nn.Linear(width, settings.hidden), nn.Linear(settings.hidden, settings.hidden)
        self.last = nn.Linear(settings.hidden, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.dropout = nn.Dropout(settings.dropout)
        self.log_scale = nn.Parameter(torch.zeros(()))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp().clamp(SCALES[0], SCALES[-1])

    def forward(self, x: Tensor, relation: Tensor) -> Tensor:
        """f of candidates: x [n, features], relation int64 [n]."""
        x = ((x.float() - self.mean) / self.deviation).clamp(-8, 8)
        inputs = torch.cat([x, self.relation(relation)], dim=1)
        return self.last(F.gelu(self.second(self.dropout(F.gelu(self.first(inputs)))))).squeeze(1)

    def loss(self, cases: Sequence[PlainCase]) -> Tensor:
        """The mean of -log of the answer's share among all candidates that the filter leaves."""
        w, sizes = self.scale, [len(case.x) for case in cases]
        relation = torch.tensor([case.relation for case in cases]).repeat_interleave(torch.tensor(sizes))
        f = self(torch.cat([case.x for case in cases]), relation).split(sizes)
        place = int(torch.searchsorted(torch.tensor(SCALES), w.detach()).clamp(1, len(SCALES) - 1))
        share = (w - SCALES[place - 1]) / (SCALES[place] - SCALES[place - 1])
        losses = []
        for case, own_f in zip(cases, f, strict=True):
            own = w * case.own + (0.0 if case.answer is None else own_f[case.answer])
            logits = (w * case.log_p + own_f).masked_fill(case.removed, -torch.inf)
            rest = torch.lerp(case.rest[place - 1], case.rest[place], share)
            losses.append(torch.cat([logits, rest[None]]).logsumexp(0) - own)
        return torch.stack(losses).mean()


def learned_cases(
    dataset: Dataset, backbone: Backbone, transitions: Transitions, queries: Queries, filter_name: str, unseen: int
) -> list[PlainCase]:
    """Validation queries scored, read and masked one batch after the other."""
    past, filters = Past(dataset.known), Filters(dataset.known)
    reader, cases = FeatureReader(past, transitions, unseen), list[PlainCase]()
    for batch in queries.batches(256):
        assert batch.answer is not None
        scores = score_queries(backbone, batch, past)
        log_p, found = scores.log_p.float().log_softmax(1), reader.read(batch, scores)
        removed = torch.zeros_like(log_p, dtype=torch.bool)
        removed[filters.mask(filter_name, batch)] = True
        for row in range(len(batch)):
            own = found.row == row
            candidate, answer = found.candidate[own], int(batch.answer[row])
            outside = log_p[row].masked_fill(removed[row], -torch.inf)
            outside[candidate] = -torch.inf
            rest = torch.stack([(outside * s).logsumexp(0) for s in SCALES]).clamp(min=-1e4)
            place = (candidate == answer).nonzero().flatten().tolist()
            cases.append(
                PlainCase(
                    found.x[own].half(),
                    log_p[row, candidate],
                    removed[row, candidate],
                    place[0] if place else None,
                    float(log_p[row, answer]),
                    rest,
                    int(batch.relation[row]),
                    int(batch.step[row]),
                )
            )
    return cases


def fit_learned(
    cases: Sequence[PlainCase], n_directed: int, settings: PlainSettings, seed: int, budget: float
) -> tuple[list[float], int, float]:
    """The likelihood curve on the later queries, how many epochs were trained within the budget, and their seconds.

    The earlier share of the queries is fitted on, epoch after epoch.
    """
    cut = math.ceil(float(np.quantile([case.step for case in cases], settings.fit_share)))
    began = time.perf_counter()
    early, late = [c for c in cases if c.step < cut], [c for c in cases if c.step >= cut]
    _, curve = train_learned(early, late, n_directed, settings, seed=seed, epochs=settings.max_epochs, budget=budget)
    return curve, len(curve), time.perf_counter() - began


def train_learned(
    early: Sequence[PlainCase],
    late: Sequence[PlainCase],
    n_directed: int,
    settings: PlainSettings,
    *,
    seed: int,
    epochs: int,
    budget: float = math.inf,
) -> tuple[PlainLearned, list[float]]:
    """A network fitted on the early queries for some epochs, and the mean loss of the late ones after each."""
    x = torch.cat([case.x for case in early])
    some = x[:: max(1, len(x) // 1_000_000)].double()  # a million candidates tell their mean and spread
    torch.manual_seed(seed)
    net = PlainLearned(n_directed, some.mean(0).float(), some.var(0).clamp(min=1e-6).sqrt().float(), settings)
    steps = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    draw, curve, began = torch.Generator().manual_seed(seed), list[float](), time.perf_counter()
    for _ in range(epochs):
        net.train()
        for rows in torch.randperm(len(early), generator=draw).split(settings.batch):
            loss = net.loss([early[row] for row in rows.tolist()])
            steps.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            steps.step()
        net.eval()
        if late:
            with torch.no_grad():
                parts = [late[at : at + settings.batch] for at in range(0, len(late), settings.batch)]
                curve.append(sum(float(net.loss(part)) * len(part) for part in parts) / len(late))
        if time.perf_counter() - began > budget:
            break
    return net, curve
