"""Temporal rules "who did the body will do the head", mined from walks back in time, with sampled confidences."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from bridgemem.events.log import EventLog
from bridgemem.memory.timeline import STEP_BITS, changes
from bridgemem.progress import SILENT, Progress

SMOOTHING = 3  # bodies without a head that every rule is charged with, so that rare bodies are trusted less
CHUNK = 1 << 20  # sampled bodies that are held at once
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the numbers of a body's edges are spread over 64 bits


@dataclass(frozen=True)
class Rules:
    """head(s, o) follows from s -body[0]-> . -body[1]-> . -body[2]-> o; relations are directed, 0..2R-1.

    head int64 [m]; body int64 [m, longest], -1 after its end; confidence float64 [m]. Ordered by head, and the most
    confident first.
    """

    head: np.ndarray
    body: np.ndarray
    confidence: np.ndarray

    def __len__(self) -> int:
        return len(self.head)


class Filed:
    """Edges, at least one, filed under a key, in order of time inside it; places are positions in that order.

    order int64 [m]: the edge at each place; place int64 [m]: the place of each edge.
    """

    def __init__(self, key: np.ndarray, step: np.ndarray) -> None:
        self.order = np.lexsort((step, key))
        self.place = np.empty_like(self.order)
        self.place[self.order] = np.arange(len(key))
        key, step = key[self.order], step[self.order]
        new = changes(key)
        self._names, group = key[new], new.cumsum() - 1
        self._codes = (group << STEP_BITS) + step
        # each key begins so far above the one before that this adds nothing to its sums
        self._log_mass = np.logaddexp.accumulate(group * (1000.0 + np.ptp(step)) + step)

    def before(self, key: np.ndarray, step: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """Slices (start, stop) of places: the edges of each key with a strictly smaller step."""
        group = np.searchsorted(self._names, key)
        known = self._names[np.minimum(group, len(self._names) - 1)] == key
        start = np.searchsorted(self._codes, group << STEP_BITS)
        stop = np.searchsorted(self._codes, (group << STEP_BITS) + step)
        return start, np.where(known, stop, start)

    def since(self, key: np.ndarray, step: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """Slices (start, stop) of places: the edges of each key at the step or later."""
        _, start = self.before(key, step)
        _, stop = self.before(key, (1 << STEP_BITS) - 1)
        return start, stop

    def draw_recent(self, start: np.ndarray, stop: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A place of each slice, which begins with its key and is not empty, by weights exp(step)."""
        target = self._log_mass[stop - 1] + np.log1p(-rng.random(len(start)))
        return np.clip(np.searchsorted(self._log_mass, target), start, stop - 1)


class Graph:
    """All facts of a log in both directions, each once: subject, relation, object, step, inverse int64 [m].

    inverse is the number of the same fact seen from its other side.
    """

    def __init__(self, events: EventLog) -> None:
        self.n_entities, self.n_directed = events.n_entities, 2 * events.n_relations
        facts = np.stack([events.subject, events.relation, events.object, events.step], axis=1).astype(np.int64)
        s, r, o, t = np.unique(facts, axis=0).T
        self.subject, self.object = np.concatenate([s, o]), np.concatenate([o, s])
        self.relation, self.step = np.concatenate([r, r + events.n_relations]), np.concatenate([t, t])
        self.inverse = np.roll(np.arange(2 * len(s)), len(s))
        self.from_node = Filed(self.subject, self.step)
        self.from_node_to = Filed(self.subject * self.n_entities + self.object, self.step)
        self.of_relation = Filed(self.relation, self.step)
        self.of_relation_from = Filed(self.relation * self.n_entities + self.subject, self.step)
        triple = self._triple(self.subject, self.relation, self.object)
        order = np.lexsort((self.step, triple))
        last = np.append(changes(triple[order])[1:], True)
        self._triples, self._last = triple[order][last], self.step[order][last]

    def _triple(self, subject: np.ndarray, relation: np.ndarray, object: np.ndarray) -> np.ndarray:
        return (relation * self.n_entities + subject) * self.n_entities + object

    def happens_after(
        self, subject: np.ndarray, relation: np.ndarray, object: np.ndarray, step: np.ndarray
    ) -> np.ndarray:
        """Whether the directed fact occurs at any later step; bool [n]."""
        triple = self._triple(subject, relation, object)
        at = np.minimum(np.searchsorted(self._triples, triple), len(self._triples) - 1)
        return (self._triples[at] == triple) & (self._last[at] > step)


def walk(graph: Graph, length: int, walks: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Heads int64 [n] and bodies int64 [n, length] of the successful walks, `walks` of them begun a directed relation.

    A walk takes an edge of its relation, and goes from its object back in time to its subject again: first to a
    strictly earlier edge, then never to a later one nor straight back over the same; recent edges are likelier.
    """
    start, stop = graph.of_relation.before(np.arange(graph.n_directed), (1 << STEP_BITS) - 1)
    start, stop = (np.repeat(bound[start < stop], walks) for bound in (start, stop))
    edge = graph.of_relation.order[rng.integers(start, stop)]
    head, origin = graph.relation[edge], graph.subject[edge]
    nodes = np.stack([origin, graph.object[edge]], axis=1)
    body = np.empty((len(edge), 0), dtype=np.int64)
    for hop in range(1, length + 1):
        node, limit = graph.object[edge], graph.step[edge] + (hop > 1)
        filed = graph.from_node_to if hop == length else graph.from_node
        key = node * graph.n_entities + origin if hop == length else node
        start, stop = filed.before(key, limit)
        back = filed.place[graph.inverse[edge]]
        # the way back has the latest step there is, and so the weight of the slice's last edge, which stands in for it
        barred = (start <= back) & (back < stop)
        stop = stop - barred
        found = start < stop
        start, stop, back, barred = start[found], stop[found], back[found], barred[found]
        at = filed.draw_recent(start, stop, rng)
        edge = filed.order[np.where(barred & (at == back), stop, at)]
        head, origin = head[found], origin[found]
        nodes = np.column_stack([nodes[found], graph.object[edge]])
        inverse = graph.relation[graph.inverse[edge]]
        body = np.column_stack([inverse, body[found]])
    # a rule says nothing of entities that are the same, so none may be; the last is the first one again
    pairs = itertools.combinations(nodes.T[:-1], 2)
    distinct = np.logical_and.reduce([one != other for one, other in pairs])
    return head[distinct], body[distinct]


@dataclass(frozen=True)
class Bodies:
    """Sampled groundings of n bodies, [n, samples] each: first and last entity, and the step of the last edge, int64.

    distinct bool [n, samples]: marks every grounding that was found, once.
    """

    first: np.ndarray
    last: np.ndarray
    step: np.ndarray
    distinct: np.ndarray


def sample(graph: Graph, body: np.ndarray, samples: int, rng: np.random.Generator) -> Bodies:
    """Ground bodies int64 [n, longest]: a uniform first edge, then uniform ones that are not earlier."""
    shape = (len(body), samples)
    relation = np.repeat(body, samples, axis=0)
    edge = np.zeros(len(relation), dtype=np.int64)
    first, code = edge.copy(), np.zeros(len(relation), dtype=np.uint64)
    alive = np.ones(len(relation), dtype=bool)
    for hop, wanted in enumerate(relation.T):
        rows = np.flatnonzero(alive & (wanted >= 0))
        before = edge[rows]
        if hop == 0:
            filed = graph.of_relation
            start, stop = filed.since(wanted[rows], 0)
        else:
            filed = graph.of_relation_from
            start, stop = filed.since(wanted[rows] * graph.n_entities + graph.object[before], graph.step[before])
        found = start < stop
        alive[rows[~found]] = False
        rows = rows[found]
        edge[rows] = filed.order[rng.integers(start[found], stop[found])]
        if hop == 0:
            first[rows] = graph.subject[edge[rows]]
        code[rows] = (code[rows] + edge[rows].astype(np.uint64) + np.uint64(1)) * MIX
    # dead ends keep the code 0 that no grounding has, and come first
    code[~alive] = 0
    code = code.reshape(shape)
    order = np.argsort(code, axis=1, kind="stable")
    ordered = np.take_along_axis(code, order, axis=1)
    distinct = ordered != 0
    distinct[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    first, last, step = (
        np.take_along_axis(column.reshape(shape), order, axis=1)
        for column in (first, graph.object[edge], graph.step[edge])
    )
    return Bodies(first, last, step, distinct)


def mine(
    events: EventLog,
    *,
    longest: int = 3,
    walks: int = 200,
    samples: int = 500,
    min_confidence: float = 0.01,
    min_support: int = 3,
    kept: int = 100,
    seed: int = 42,
    progress: Progress = SILENT,
) -> Rules:
    """Rules with bodies of 1 to `longest` relations, at most `kept` a head.

    A rule's confidence is the share of its distinct sampled bodies whose head comes true later, smoothed; only more
    than `min_confidence`, from at least `min_support` bodies, is kept.
    """
    rng, graph = np.random.default_rng(seed), Graph(events)
    candidates = []
    for length in range(1, longest + 1):
        head, body = walk(graph, length, walks, rng)
        padding = np.full((len(head), longest - length), -1)
        candidates.append(np.unique(np.column_stack([head, body, padding]), axis=0))
    rules = np.concatenate(candidates)
    body, of_rule = np.unique(rules[:, 1:], axis=0, return_inverse=True)
    order = np.argsort(of_rule.ravel(), kind="stable")
    rules, of_rule = rules[order], of_rule.ravel()[order]
    hits, support = np.zeros(len(rules), dtype=np.int64), np.zeros(len(rules), dtype=np.int64)
    size = max(1, CHUNK // samples)
    with progress.task("weighing rules", total=len(body)) as advance:
        for low in range(0, len(body), size):
            ground = sample(graph, body[low : low + size], samples, rng)
            begin, end = np.searchsorted(of_rule, [low, low + size])
            for part in range(begin, end, size):
                rows = slice(part, min(part + size, end))
                own = of_rule[rows] - low
                rule, at = np.nonzero(ground.distinct[own])
                body_at = own[rule], at
                true = graph.happens_after(
                    ground.first[body_at], rules[rows, 0][rule], ground.last[body_at], ground.step[body_at]
                )
                hits[rows] = np.bincount(rule[true], minlength=len(own))
                support[rows] = np.bincount(rule, minlength=len(own))
            advance(len(ground.first))
    confidence = hits / (support + SMOOTHING)
    good = (confidence > min_confidence) & (support >= min_support)
    return _best(Rules(rules[good, 0], rules[good, 1:], confidence[good]), kept)


def _best(rules: Rules, kept: int) -> Rules:
    """The most confident rules of each head; among equals the shorter body, then the smaller relations."""
    ties = tuple(rules.body.T[::-1])
    length = (rules.body >= 0).sum(1)
    order = np.lexsort((*ties, length, -rules.confidence, rules.head))
    head = rules.head[order]
    rank = np.arange(len(head)) - np.searchsorted(head, head)
    order = order[rank < kept]
    return Rules(rules.head[order], rules.body[order], rules.confidence[order])
