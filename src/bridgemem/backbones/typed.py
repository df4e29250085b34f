"""RecurrenceTyped: the exact triple, then what every event of the pair leads to, then the relation's usual answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.backbones.base import Backbone, Grid
from bridgemem.backbones.scorer import Scores
from bridgemem.config import Count, Declared, Finite, NotNegative, Positive, Range, Recent, Share
from bridgemem.equations import EPSILON
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries, renumbered
from bridgemem.memory.dyads import PairStates
from bridgemem.memory.index import Occurrences
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.parallel import in_order
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.ranks import answer_ranks, batch_of
from bridgemem.storage.tensors import TensorSpec, check_tensors
from bridgemem.training.checkpoint import Training

LAGS = 32  # bins of lags, each twice as long as the one before
PASSES = 4  # over the counted events, until confidence and lags agree
MOST_EVENTS = 4_000_000  # that confidence is counted on; actors with many partners have many a query
DENSE = 1 << 20  # confidences of two relations up to which all are kept in a table, and not searched
ROWS, PIECES = 256, 8  # queries after which counting may stop, and in how many pieces they are read
KEPT_LOGS = 1 << 23  # relations times entities whose logarithms are kept
PERMUTED = 1 << 24  # queries of train up to which all are put in a random order to draw from
BLOCK = 1 << 20  # events of train read at once


@dataclass(frozen=True)
class TypedSettings(Declared):
    """score = popularity_weight * share of c among the answers of r

    + [triple seen] (triple * (1 + decay^lag) + frequency * log(1 + snapshots with it))
    + the sum over the last k events of the pair of confidence(r', r) * f(lag).

    ks, frequencies: what k and frequency are chosen from, on `trials` queries of the last tenth of train: facts that
    last want the last event alone, events that repeat want many. Confidence and f are counted on `queries` queries from
    before, as if `smoothing` more had gone as usual.
    """

    popularity_weight: Finite = 0.1
    triple: Finite = 2.0
    decay: Share = 0.5
    ks: Annotated[tuple[Recent, ...], Range(ge=1, note="number")] = (1, 16)
    frequencies: Annotated[tuple[NotNegative, ...], Range(ge=1, note="number")] = (0.0, 0.3, 1.0)
    queries: Count = 20_000
    trials: Count = 2_000
    smoothing: Positive = 10.0
    popularity_smoothing: NotNegative = 5.0


@dataclass(frozen=True)
class Confidence:
    """How often an event of a pair is followed by a query whose answer is the partner.

    k: events of a pair that are read. before, after int64 [m]: directed relations of the event and of the query,
    ascending; value float64 [m]; usual float64 []: that of all others; lag float64 [LAGS]: the factor of a lag.
    """

    k: int
    before: Tensor
    after: Tensor
    value: Tensor
    usual: Tensor
    lag: Tensor

    def sums(self, relation: Tensor, states: PairStates, n_relations: int) -> Tensor:
        """Of the pairs that were read, float64 [pairs]; relation int64 [n] of the queries."""
        at, key, lag = _events(relation, states, n_relations)
        made = torch.zeros(states.found.shape, dtype=self.lag.dtype, device=self.lag.device)
        made.view(-1).index_copy_(0, at, self._values(key, n_relations) * self.lag.index_select(0, lag))
        return made.sum(1)

    def _values(self, key: Tensor, n_relations: int) -> Tensor:
        """The confidence of (event's relation, query's relation) given as one number; float64 of the shape of key."""
        if (every := self._every.get(n_relations)) is not None:
            return every.index_select(0, key)
        codes, size = self.before * (2 * n_relations) + self.after, (2 * n_relations) ** 2
        if size <= DENSE:
            every = self._every[n_relations] = self.usual.repeat(size).index_copy_(0, codes, self.value)
            return every.index_select(0, key)
        place = torch.searchsorted(codes, key).clamp(max=len(codes) - 1)
        known = codes[place] == key if len(codes) else torch.zeros_like(key, dtype=torch.bool)
        return torch.where(known, self.value[place] if len(codes) else self.usual, self.usual)

    @cached_property
    def _every(self) -> dict[int, Tensor]:
        """The confidence of every two relations, by how many there are."""
        return {}


def _events(relation: Tensor, states: PairStates, n_relations: int) -> tuple[Tensor, Tensor, Tensor]:
    """The events of pairs, most of which have fewer than k: int64 [m] each, newest first.

    Their places among all k of all pairs, (event's relation, query's relation) in one number, and the bin of the lag.
    """
    at = states.found.flatten().nonzero().squeeze(1)
    of, direction, lag = (c.flatten().index_select(0, at) for c in (states.relation, states.direction, states.lag))
    asked = relation.index_select(0, states.row).index_select(0, at // states.found.shape[1])
    edges = 2 ** torch.arange(1, LAGS, device=at.device)
    return at, (of + direction * n_relations) * (2 * n_relations) + asked, torch.bucketize(lag, edges, right=True)


def read_events(queries: Queries, past: Past, ks: Sequence[int]) -> dict[int, Tensor]:
    """The last k events of every pair that queries ask about, for each k, until there are enough of them.

    int64 [m]: the number of `_events`, the bin of the lag, and whether the partner was the answer, in one.
    """
    parts: dict[int, list[Tensor]] = {k: [] for k in ks}
    read = dict.fromkeys(ks, 0)

    def events(some: Queries) -> tuple[int, Tensor, Tensor]:
        assert some.answer is not None
        most = max(read, default=1)  # of those that still want events
        states = past.dyads.partners(some.actor, some.step, most, 0)
        at, key, lag = _events(some.relation, states, past.events.n_relations)
        hit = states.candidate == some.answer[states.row]
        return most, at % most, (key * LAGS + lag) * 2 + hit[at // most]

    batches, several = queries.batches(ROWS // PIECES), past.device.type == "cpu"
    for number, (most, place, code) in enumerate(in_order(events, batches, several=several), start=1):
        for k in list(read):
            own = code if k == most else code[place < k]
            parts[k].append(own)
            read[k] += len(own)
            if read[k] > MOST_EVENTS and number % PIECES == 0:
                del read[k]
        if not read:
            break
    return {k: torch.cat([torch.zeros(0, dtype=torch.int64, device=past.device), *of]) for k, of in parts.items()}


def count_confidence(read: Tensor, n_relations: int, k: int, settings: TypedSettings) -> Confidence:
    """Confidence and factors of lags whose products expect as many answers as there were, of each kind.

    read: the last k events of pairs, as of `read_events`.
    """
    codes, key = _distinct(read // (2 * LAGS), (2 * n_relations) ** 2)
    lag, hits = read // 2 % LAGS, (read % 2).double()
    usual = (hits.sum() + 1) / (len(hits) + 2)
    value, factor = usual.repeat(len(codes)), torch.ones(LAGS, dtype=torch.float64, device=usual.device)
    spare = settings.smoothing * usual
    of_lag, of_key = torch.bincount(lag, hits, LAGS), torch.bincount(key, hits, len(codes))
    for _ in range(PASSES):
        factor = (of_lag + spare) / (torch.bincount(lag, value[key], LAGS) + spare)
        value = (of_key + spare) / (torch.bincount(key, factor[lag], len(codes)) + settings.smoothing)
    return Confidence(k, codes // (2 * n_relations), codes % (2 * n_relations), value, usual, factor)


def _distinct(key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The distinct keys, ascending, and which of them each is; keys are below size, and counted where those are few."""
    if size > DENSE:
        return key.unique(return_inverse=True)
    codes = torch.bincount(key, minlength=size).nonzero().squeeze(1)
    place = torch.empty(size, dtype=torch.int64, device=key.device)
    place[codes] = torch.arange(len(codes), device=key.device)
    return codes, place[key]


@dataclass(frozen=True)
class Usual:
    """The answers of every directed relation in train: slices of answer and count int64 [m]; start int64 [2R + 1].

    share float64 [E]: of all relations together.
    """

    start: Tensor
    answer: Tensor
    count: Tensor
    share: Tensor

    @classmethod
    def of(cls, train: EventLog) -> Usual:
        entities, relations = train.n_entities, train.n_relations
        codes, count = np.zeros(0, np.int64), np.zeros(0, np.int64)
        # in blocks, since the columns may be mapped and larger than the memory
        for at in range(0, len(train), BLOCK):
            answer, other = (column[at : at + BLOCK].astype(np.int64) for column in (train.object, train.subject))
            relation = train.relation[at : at + BLOCK].astype(np.int64)
            both = np.concatenate([relation * entities + answer, (relation + relations) * entities + other])
            found, many = np.unique(both, return_counts=True)
            codes, place = np.unique(np.concatenate([codes, found]), return_inverse=True)
            count = np.bincount(place, np.concatenate([count, many]), len(codes)).astype(np.int64)
        start = np.searchsorted(codes, np.arange(2 * relations + 1) * entities)
        share = train.tallies[0] / max(2 * len(train), 1)
        return cls(*map(torch.from_numpy, (start, codes % entities, count, share)))

    def to(self, device: str | torch.device) -> Usual:
        return Usual(*(column.to(device) for column in (self.start, self.answer, self.count, self.share)))

    def of_relations(self, relation: Tensor, smoothing: float, weight: float) -> Tensor:
        """The share of every entity among the answers times a weight, float64 [n, E]; relation int64 [n]."""
        asked, which = relation.unique(return_inverse=True)  # many queries of a batch ask the same
        return self._rows(asked, smoothing, weight).index_select(0, which)

    def _rows(self, relation: Tensor, smoothing: float, weight: float) -> Tensor:
        row, at = expand(self.start[relation], self.start[relation + 1])
        count = self.share.new_zeros(len(relation), len(self.share))
        count[row, self.answer[at]] = self.count[at].double()
        share = (count + smoothing * self.share) / (self._total[relation] + smoothing).clamp(min=1)[:, None]
        return weight * share

    def of_candidates(self, relation: Tensor, candidate: Tensor, smoothing: float, weight: float) -> Tensor:
        """The same of some candidates alone, bit for bit: relation, candidate int64 [m] -> float64 [m]."""
        codes, wanted = self._codes, relation * len(self.share) + candidate
        count = torch.zeros(len(wanted), dtype=self.share.dtype, device=wanted.device)
        if len(codes):
            at = torch.searchsorted(codes, wanted).clamp_(max=len(codes) - 1)
            count = torch.where(codes[at] == wanted, self.count[at], 0).double()
        share = (count + smoothing * self.share[candidate]) / (self._total[relation] + smoothing).clamp(min=1)
        return weight * share

    def log_rows(self, relation: Tensor, smoothing: float, weight: float) -> Tensor:
        """The logarithm of `of_relations`, at least log EPSILON: kept for all relations where they are not too many."""
        relations, entities = len(self.start) - 1, len(self.share)
        if relations * entities > KEPT_LOGS:
            return self.of_relations(relation, smoothing, weight).clamp_(min=EPSILON).log_()
        if (kept := self._logs.get((smoothing, weight))) is None:
            unknown = torch.zeros(relations, dtype=torch.bool, device=relation.device)
            # written to at once: memory that is taken as relations are asked looks like a leak
            table = self.share.new_full((relations, entities), 0.0)
            kept = self._logs.setdefault((smoothing, weight), (table, unknown))
        table, known = kept
        asked = relation.unique()
        missing = asked[~known[asked]]
        if len(missing):
            table[missing] = self._rows(missing, smoothing, weight).clamp_(min=EPSILON).log_()
            known[missing] = True  # last: another thread may read what is known
        return table.index_select(0, relation)

    @cached_property
    def _total(self) -> Tensor:
        """How many answers each directed relation had, int64 [2R]."""
        ends = F.pad(self.count.cumsum(0), (1, 0))[self.start]
        return ends.diff()

    @cached_property
    def _codes(self) -> Tensor:
        """Relation and answer in one number, ascending."""
        relation = torch.arange(len(self.start) - 1, device=self.start.device)
        return torch.repeat_interleave(relation, self.start.diff()) * len(self.share) + self.answer

    @cached_property
    def _logs(self) -> dict[tuple[float, float], tuple[Tensor, Tensor]]:
        """What `log_rows` keeps: its table, and which rows of it are filled."""
        return {}


def _drawn(n: int, settings: TypedSettings) -> tuple[np.ndarray, np.ndarray]:
    """Which of n queries of train confidence is counted on, and which k and frequency are tried on, in random order."""
    first, late = n // 2, n - n // 10
    if n <= PERMUTED:
        order = torch.randperm(n).numpy()
        return order[(order >= first) & (order < late)][: settings.queries], order[order >= late][: settings.trials]
    draw = np.random.default_rng(int(torch.randint(2**31, ())))
    counted = first + draw.choice(late - first, min(settings.queries, late - first), replace=False)
    return counted, late + draw.choice(n - late, min(settings.trials, n - late), replace=False)


@dataclass(frozen=True)
class Touched:
    """Whom the actors interacted with: row, candidate int64 [m] ascending, and their scores but for frequency.

    value float64 [m]. seen: the triples that were seen; at int64: the place of each of them here.
    """

    row: Tensor
    candidate: Tensor
    value: Tensor
    seen: Occurrences
    at: Tensor

    def with_frequency(self, frequency: float) -> Tensor:
        """The scores with what the number of snapshots adds to the triples that were seen."""
        added = frequency * self.seen.count.to(self.value.dtype).log1p()
        return self.value.index_add(0, self.at, added)


class RecurrenceTyped(Backbone):
    """Recurrence, then every event of the pair by what it leads to, then the relation's usual answers."""

    name: ClassVar[str] = "recurrence-typed"
    default: ClassVar[TypedSettings] = TypedSettings()
    grid: ClassVar[Grid] = {"decay": (0.5, 0.9), "triple": (2.0, 1.0)}

    def __init__(self, settings: TypedSettings, usual: Usual, confidence: Confidence, frequency: float) -> None:
        self.settings, self.usual, self.confidence, self.frequency = settings, usual, confidence, frequency

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        s, device, train = settings, training.device, dataset.train
        past, usual = Past(train, device=device), Usual.of(train).to(device)
        counted, tried = (Queries.of(train, rows).to(device) for rows in _drawn(2 * len(train), s))
        made: list[tuple[float, Self]] = []
        filters = Filters(train, device)
        with training.progress.task("counting", total=len(s.ks)) as advance:
            for k, read in read_events(counted, past, s.ks).items():
                counts = count_confidence(read, train.n_relations, k, s)
                each = [cls(s, usual, counts, frequency) for frequency in s.frequencies]
                made += zip(each[0]._trial(tried, past, filters), each, strict=True)
                advance(1)
        # of equals the first
        return max(made, key=lambda one: one[0])[1]

    def _trial(self, queries: Queries, past: Past, filters: Filters) -> list[float]:
        """The sum of reciprocal ranks with each frequency, time-aware: others true at the same step say nothing."""

        def tried(batch: Queries) -> Tensor:
            assert batch.answer is not None
            (plain, seen), mask = self._parts(batch.unanswered(), past), filters.mask("time", batch)
            order = (seen.row * plain.shape[1] + seen.candidate).argsort()
            row, candidate, times = (column[order] for column in (seen.row, seen.candidate, seen.count))
            added = times.to(plain.dtype).log1p()[:, None] * plain.new_tensor(self.settings.frequencies)
            return (1 / answer_ranks(plain, batch.answer, row, candidate, added, [mask])[0]).sum(1)

        batches, several = queries.batches(batch_of(past.events, past.device)), past.device.type == "cpu"
        nothing = torch.zeros(len(self.settings.frequencies), dtype=torch.float64, device=past.device)
        return sum(in_order(tried, batches, several=several), nothing).tolist()

    def _touched(self, queries: Queries, past: Past) -> Touched:
        """The scores of all that an actor interacted with; a triple that was seen is one of them."""
        s = self.settings
        states = past.partners(queries.actor, queries.step, self.confidence.k)
        seen = past.occurrences(queries.actor, queries.relation, queries.step)
        keys = states.row * past.events.n_entities + states.candidate
        at = torch.searchsorted(keys, seen.row * past.events.n_entities + seen.candidate)
        lag = (queries.step[seen.row] - seen.step).double()
        # e to a logarithm and not a power, whose last bit hangs on where in the tensor a lag stands
        fresh = torch.exp(lag * math.log(s.decay)) if s.decay > 0 else (lag == 0).to(lag.dtype)
        how = (s.popularity_smoothing, s.popularity_weight)
        value = self.usual.of_candidates(queries.relation[states.row], states.candidate, *how)
        value.index_add_(0, at, s.triple * (1 + fresh))
        value += self.confidence.sums(queries.relation, states, past.events.n_relations)
        return Touched(states.row, states.candidate, value, seen, at)

    def _parts(self, queries: Queries, past: Past) -> tuple[Tensor, Occurrences]:
        """All of the score but frequency, float64 [n, E], and the triples that were seen."""
        found, s = self._touched(queries, past), self.settings
        score = self.usual.of_relations(queries.relation, s.popularity_smoothing, s.popularity_weight)
        score[found.row, found.candidate] = found.value
        return score, found.seen

    @property
    def parallel(self) -> bool:
        return True

    def score(self, queries: Queries, past: Past) -> Scores:
        # most candidates have the score of the relation alone, whose logarithm is kept
        found, s = self._touched(queries, past), self.settings
        log_p = self.usual.log_rows(queries.relation, s.popularity_smoothing, s.popularity_weight)
        log_p[found.row, found.candidate] = found.with_frequency(self.frequency).clamp_(min=EPSILON).log_()
        return Scores(log_p)

    def grown(self, n_entities: int, n_relations: int) -> Self:
        own, seen = self.usual, self.confidence
        old = (len(own.start) - 1) // 2
        share = own.share.new_zeros(n_entities)
        share[: len(own.share)] = own.share
        # the slices of relations that train did not know are empty, between those of the two directions and after them
        place = torch.arange(2 * n_relations + 1, device=own.start.device)
        forward = place.clamp(max=old)
        start = own.start[torch.where(place <= n_relations, forward, (place - n_relations).clamp(max=old) + old)]
        before, after = (renumbered(r, old, n_relations) for r in (seen.before, seen.after))
        usual = Usual(start, own.answer, own.count, share)
        confidence = replace(seen, before=before, after=after)
        return type(self)(self.settings, usual, confidence, self.frequency)

    def tensors(self) -> dict[str, Tensor]:
        seen = self.confidence
        usual = {name: getattr(self.usual, name) for name in ("start", "answer", "count", "share")}
        counted = {name: getattr(seen, name) for name in ("before", "after", "value", "usual", "lag")}
        chosen = {"k": torch.tensor(seen.k), "frequency": torch.tensor(self.frequency, dtype=torch.float64)}
        return {**{name: value.to(seen.value.device) for name, value in chosen.items()}, **usual, **counted}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        whole = torch.int64
        sizes = check_tensors(
            tensors,
            {
                "k": TensorSpec((), whole),
                "frequency": TensorSpec(()),
                "start": TensorSpec(("relations and one",), whole),
                **dict.fromkeys(("answer", "count"), TensorSpec(("answers",), whole)),
                "share": TensorSpec(("entities",)),
                **dict.fromkeys(("before", "after"), TensorSpec(("pairs",), whole)),
                "value": TensorSpec(("pairs",)),
                "usual": TensorSpec(()),
                "lag": TensorSpec((LAGS,)),
            },
        )
        k, start, answer = int(tensors["k"]), tensors["start"], tensors["answer"]
        if k not in settings.ks:
            raise ValueError(f"k is {k}, which is none of the settings' {settings.ks}")
        if len(start) % 2 == 0 or int(start[0]) or int(start[-1]) != sizes["answers"] or bool((start.diff() < 0).any()):
            raise ValueError("start holds no slices of the answers")
        if sizes["answers"] and not 0 <= int(answer.min()) <= int(answer.max()) < sizes["entities"]:
            raise ValueError("answer holds entities that there are not")
        usual = Usual(start, answer, tensors["count"], tensors["share"].double())
        floats = (tensors[name].double() for name in ("value", "usual", "lag"))
        confidence = Confidence(k, tensors["before"], tensors["after"], *floats)
        return cls(settings, usual, confidence, float(tensors["frequency"]))

    def to(self, device: str) -> Self:
        return self.restore(self.settings, {name: tensor.to(device) for name, tensor in self.tensors().items()})
