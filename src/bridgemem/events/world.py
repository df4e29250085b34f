"""The simulated world: named actors, planted transition scripts, and the exact truth about what comes next.

How an event of step t comes about, given all events of strictly earlier steps:

1. The pair {a, c} is drawn with probability
   q_t(a, c) = (1 - distractors) w_ac(t) / W(t) + distractors act_a act_c / Z,
   where w_ac(t) is the pair's own weight, raised by `boost` while its last event is recent, else zero;
   W(t) and Z sum over unordered pairs, so q_t does too. Distractors are noise in WHO meets.
2. The directed relation is drawn from the planted table T, in the row of the token of the pair's last event, or from
   the base rates where the pair has no event within the window. Noise in WHAT happens is mixed into T itself, so
   p(next directed relation | last event) = T for every event of the world, distractors included.

Seen from a, the joint of (a, c, r) at t is therefore q_t(a, c) T[token(a, c, t)][r]: no forecaster can rank better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import Annotated

import numpy as np

from bridgemem.config import Count, Declared, NotNegative, Range, Share, Size
from bridgemem.events.dataset import Dataset
from bridgemem.events.dates import parse_date
from bridgemem.events.log import Clock, EventLog, Vocabulary

WINDOW = 65  # a pair forgets its last event after this many steps
BINS = (1, 4, 16, 64)  # upper ends of the recency bins: lag 1 | 2-4 | 5-16 | 17-64 | 65 and more
DECAY = (1.0, 0.8, 0.4, 0.1, 0.0)  # what is left of a script link in each recency bin
RECENT = 3  # an event raises its pair's weight for this many steps
MAX_ACTORS = 2000  # the state is held for all pairs at once

# most frequent first: the base rates fall along this list
RELATIONS = (
    "consult", "visit", "provide aid", "criticise", "make statement", "sanction", "negotiate", "host guests",
    "praise", "request help", "promise support", "sign agreement", "protest against", "threaten", "deny claim",
    "trade goods", "deploy forces", "expel envoys", "share findings", "skirmish with", "mediate for",
    "propose ceasefire", "free detainees", "apologise to",
)  # fmt: skip


@dataclass(frozen=True)
class Link:
    """One planted transition: after `cause`, the same side or the other one does `effect` with this share."""

    cause: str
    effect: str
    reply: bool
    share: float

    def __str__(self) -> str:
        actor = "the other side answers" if self.reply else "the same side goes on"
        return f"{self.cause} -> {self.effect} ({actor})"


SCRIPTS = (
    Link("provide aid", "visit", True, 0.7),
    Link("provide aid", "praise", True, 0.2),
    Link("visit", "consult", True, 0.6),
    Link("visit", "host guests", True, 0.3),
    Link("consult", "negotiate", False, 0.5),
    Link("consult", "request help", True, 0.2),
    Link("negotiate", "sign agreement", True, 0.7),
    Link("sign agreement", "trade goods", False, 0.5),
    Link("sign agreement", "share findings", True, 0.3),
    Link("request help", "promise support", True, 0.8),
    Link("promise support", "provide aid", False, 0.8),
    Link("criticise", "sanction", False, 0.6),
    Link("criticise", "deny claim", True, 0.3),
    Link("sanction", "threaten", True, 0.5),
    Link("sanction", "protest against", True, 0.4),
    Link("threaten", "deploy forces", False, 0.6),
    Link("deploy forces", "skirmish with", True, 0.7),
    Link("skirmish with", "skirmish with", True, 0.4),
    Link("skirmish with", "propose ceasefire", True, 0.3),
    Link("propose ceasefire", "negotiate", True, 0.6),
    Link("protest against", "criticise", True, 0.6),
    Link("expel envoys", "expel envoys", True, 0.8),
    Link("mediate for", "consult", True, 0.5),
    Link("free detainees", "praise", True, 0.7),
    Link("apologise to", "consult", True, 0.6),
)


@dataclass(frozen=True)
class WorldSettings(Declared):
    """Settings of the simulated world; the defaults are the embedded data set.

    Args:
        actors: Number of entities.
        relations: Number of relations.
        steps: Number of time steps, in days.
        events: Number of events.
        seed: Of everything that is drawn.
        distractors: Share of events between two actors drawn by chance.
        strength: Probability that a script decides, one step after its cause.
        boost: Factor by which a recent event raises a pair's weight, minus one.
        partners: Mean number of others with which an actor forms a pair of its own weight.
        tail: Zipf exponent of the actors' activity.

    Raises:
        SettingsError: A value is out of its range.

    Example:
        >>> bm.WorldSettings(actors=30, events=2400).actors
        30
    """

    actors: Annotated[int, Range(ge=3, le=MAX_ACTORS)] = 300
    relations: Annotated[int, Range(ge=2, le=len(RELATIONS))] = 24
    steps: Annotated[int, Range(ge=10)] = 200
    events: Annotated[int, Range(ge=100)] = 50_000
    seed: Size = 7
    distractors: Share = 0.15  # share of events between two actors thrown together by chance
    strength: Share = 0.8  # probability that a script decides, one step after its cause
    boost: NotNegative = 4.0  # factor by which a recent event raises a pair's weight, less one
    partners: Count = 20  # with how many others an actor forms a pair of its own weight, on average
    tail: Annotated[float, Range(ge=0, le=5)] = 0.8  # Zipf exponent of the actors' activity


@dataclass(frozen=True, eq=False)
class World:
    """A simulated data set and the laws that generated it.

    Attributes:
        settings: The settings of the simulation.
        dataset: The events, split by time.
        scripts: The links whose events follow a script.
        transition: float64 [2R * 5, 2R], row (d * R + r) * 5 + bin of the last event, column d * R + r of the next one;
            d = 0 if the event went from the first of the ordered pair to the second.
        base: float64 [2R], the law of the relation for a pair without remembered events.
        weight: float64 [E, E], symmetric, the weight of each pair; zero for pairs that interact only by chance.
        activity: float64 [E], the actors' shares in chance events.

    Example:
        >>> world = bm.simulate(bm.WorldSettings(actors=20, relations=4, steps=40, events=800))
        >>> world.transition.shape, world.dataset.events.n_entities
        ((40, 8), 20)
    """

    settings: WorldSettings
    dataset: Dataset
    scripts: tuple[Link, ...]
    transition: np.ndarray
    base: np.ndarray
    weight: np.ndarray
    activity: np.ndarray

    @property
    def events(self) -> EventLog:
        """All events of the data set."""
        return self.dataset.events

    def __repr__(self) -> str:
        return f"World({self.dataset!r})"

    def _repr_html_(self) -> str:
        return self.dataset._repr_html_()

    def true_scores(
        self, actor: np.ndarray, relation: np.ndarray, step: np.ndarray, events: EventLog | None = None
    ) -> np.ndarray:
        """Compute the true log probabilities: the oracle that no forecaster can beat.

        Args:
            actor: Ids, int [n].
            relation: Directed relations in [0, 2R), int [n].
            step: Steps, int [n]; only events strictly before each are read.
            events: Events to read instead of those of the world.

        Returns:
            float64 [n, E]: that an event of the step joins actor and candidate by the relation. Impossible candidates
            get the log of the smallest normal float, so that all scores are finite.

        Example:
            >>> world = bm.simulate(bm.WorldSettings(actors=20, relations=4, steps=40, events=800))
            >>> world.true_scores([0, 1], [2, 3], [39, 39]).shape
            (2, 20)
        """
        law = np.vstack([self.transition, self.base])
        actor, relation = np.asarray(actor), np.asarray(relation)
        joint = np.empty((len(actor), self.settings.actors))
        for rows, now, pairs in self._pasts(step, events):
            chance = law[pairs.tokens(now)[actor[rows]], relation[rows, None]]
            joint[rows] = pairs.probability(now)[actor[rows]] * chance
        return np.log(np.maximum(joint, np.finfo(np.float64).tiny))

    def _pasts(self, step: np.ndarray, events: EventLog | None) -> Iterator[tuple[np.ndarray, int, _Pairs]]:
        """For each step asked about, in time order: the rows that ask, the step, the pairs as its past left them."""
        events = self.events if events is None else events
        pairs = _Pairs(self.settings, self.weight, self.activity)
        read = 0
        for now in np.unique(step):
            past = int(np.searchsorted(events.step, now))
            fresh = slice(read, past)
            pairs.remember(events.subject[fresh], events.relation[fresh], events.object[fresh], events.step[fresh])
            read = past
            yield np.flatnonzero(np.asarray(step) == now), int(now), pairs


@dataclass(eq=False)
class _Pairs:
    """The state of all pairs: each one's last event, seen from both sides, and the laws that depend on it."""

    settings: WorldSettings
    weight: np.ndarray
    activity: np.ndarray
    last_step: np.ndarray = field(init=False)
    last_directed: np.ndarray = field(init=False)
    noise: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shape = self.weight.shape
        self.last_step = np.full(shape, -WINDOW - 1, dtype=np.int64)
        self.last_directed = np.zeros(shape, dtype=np.int64)
        meetings = np.outer(self.activity, self.activity)
        np.fill_diagonal(meetings, 0.0)
        self.noise = meetings / (meetings.sum() / 2)

    def remember(self, subject: np.ndarray, relation: np.ndarray, other: np.ndarray, step: np.ndarray) -> None:
        """Take in later events, subject to other, int [n] in total order; of several on one pair the last one stays."""
        R = self.settings.relations
        low, high = np.minimum(subject, other), np.maximum(subject, other)
        backward = subject != low
        # one assignment per orientation, both in event order, so that the two views agree on which event is the last
        self.last_directed[low, high] = relation + R * backward
        self.last_directed[high, low] = relation + R * ~backward
        self.last_step[low, high] = step
        self.last_step[high, low] = step

    def probability(self, step: int) -> np.ndarray:
        """float64 [E, E], symmetric: q_t; its upper triangle sums to one."""
        eps = self.settings.distractors
        intensity = self.weight * (1.0 + self.settings.boost * (step - self.last_step <= RECENT))
        return (1.0 - eps) * intensity / (intensity.sum() / 2) + eps * self.noise

    def tokens(self, step: int) -> np.ndarray:
        """int64 [E, E]: token of the last event of (row, column), or -1 where none lies within the window."""
        lag = step - self.last_step
        token = self.last_directed * len(DECAY) + np.searchsorted(BINS, lag, side="left")
        return np.where(lag <= WINDOW, token, -1)


def simulate(settings: WorldSettings | None = None) -> World:
    """Simulate a world of events; the same settings give the same events, bit for bit.

    Args:
        settings: Sizes and laws of the world (default: the embedded data set, 50,000 events).

    Returns:
        A `World`: its `dataset`, and the laws that made it.

    Example:
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400))
        >>> world.dataset.sizes
        {'train': 1903, 'valid': 249, 'test': 248}
    """
    settings = settings or WorldSettings()
    rng = np.random.default_rng(settings.seed)
    names, activity = _actors(settings, rng)
    weight = _weights(settings, activity, rng)
    base = _base(settings.relations)
    scripts = tuple(link for link in SCRIPTS if {link.cause, link.effect} <= set(RELATIONS[: settings.relations]))
    transition = _transition(settings, base, scripts)
    columns = _run(settings, _Pairs(settings, weight, activity), np.vstack([transition, base]), rng)
    entities = Vocabulary("entity", names)
    relations = Vocabulary("relation", RELATIONS[: settings.relations])
    clock = Clock("date", parse_date("2030-01-01"), 86400)
    dataset = Dataset.chronological("world", EventLog(*columns, entities, relations, clock))
    return World(settings, dataset, scripts, transition, base, weight, activity)


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _run(settings: WorldSettings, pairs: _Pairs, law: np.ndarray, rng: np.random.Generator) -> _Columns:
    """The columns subject, relation, object, step, drawn step by step; law: float64 [2R * 5 + 1, 2R], base last."""
    R = settings.relations
    first, second = np.triu_indices(settings.actors, 1)
    cumulative = law.cumsum(axis=1)
    parts = []
    for step, n in enumerate(rng.multinomial(settings.events, np.full(settings.steps, 1 / settings.steps))):
        chance = pairs.probability(step)[first, second].cumsum()
        drawn = np.searchsorted(chance, rng.random(n) * chance[-1], side="right").clip(max=len(first) - 1)
        a, c = first[drawn], second[drawn]
        level = cumulative[pairs.tokens(step)[a, c]]
        directed = (level <= rng.random((n, 1)) * level[:, -1:]).sum(axis=1).clip(max=2 * R - 1)
        forward = directed < R
        event = (np.where(forward, a, c), directed % R, np.where(forward, c, a), np.full(n, step))
        pairs.remember(*event)
        parts.append(event)
    subject, relation, other, step_column = (np.concatenate(column) for column in zip(*parts, strict=True))
    return subject, relation, other, step_column


def _base(relations: int) -> np.ndarray:
    """float64 [2R]: uneven base rates, the same in both directions."""
    rate = (np.arange(relations) + 3.0) ** -0.8
    return np.tile(rate / rate.sum() / 2, 2)


def _transition(settings: WorldSettings, base: np.ndarray, scripts: tuple[Link, ...]) -> np.ndarray:
    """The planted table T, float64 [2R * 5, 2R]: each link moves its share from the base rates to its effect."""
    R = settings.relations
    table = np.tile(base, (2 * R * len(DECAY), 1))
    for link, direction, (recency, rate) in product(scripts, (0, 1), enumerate(DECAY)):
        row = (direction * R + RELATIONS.index(link.cause)) * len(DECAY) + recency
        share = settings.strength * rate * link.share
        table[row] -= share * base
        table[row, (direction ^ link.reply) * R + RELATIONS.index(link.effect)] += share
    return table


def _weights(settings: WorldSettings, activity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Own weights of a sparse set of pairs, float64 [E, E]: heavy-tailed; busy actors have more and busier partners."""
    E = settings.actors
    first, second = np.triu_indices(E, 1)
    affinity = np.sqrt(activity[first] * activity[second])
    # the smallest of exponential keys over weights are a weighted draw without replacement
    key = np.full((E, E), np.inf)
    key[first, second] = key[second, first] = rng.exponential(size=len(first)) / affinity
    count = min(E * settings.partners // 2, len(first))
    chosen = key <= np.partition(key[first, second], count - 1)[count - 1]
    # nobody is left without a partner
    nearest = key.argmin(axis=1)
    chosen[np.arange(E), nearest] = chosen[nearest, np.arange(E)] = True
    weight = np.zeros((E, E))
    weight[first, second] = affinity * rng.lognormal(sigma=0.8, size=len(first)) * chosen[first, second]
    return weight + weight.T


def _actors(settings: WorldSettings, rng: np.random.Generator) -> tuple[tuple[str, ...], np.ndarray]:
    """Unique names and Zipf activities, float64 [E]: countries are the busiest; ids are in no order."""
    E = settings.actors
    order = rng.permutation(E)
    names = np.array(_names(E, rng))[order]
    rate = (np.arange(E) + 2.0) ** -settings.tail
    return tuple(str(name) for name in names), (rate / rate.sum())[order]


def _names(count: int, rng: np.random.Generator) -> list[str]:
    """Invented names: countries first, then the offices, groups and people of each."""
    stems = ["".join(s) for s in product(
        ("Vel", "Tor", "Kesh", "Bri", "Sol", "Quen", "Dra", "Hul", "Fen", "Lys", "Ost", "Yar"),
        ("ka", "do", "mi", "ru", "va", "the", "lo", "ba", "ne", "gu"),
    )]  # fmt: skip
    offices = (
        "Government", "Foreign Ministry", "Army", "Citizens", "Parliament", "Trade Board", "Opposition", "Press",
        "Relief Society", "Court", "Student Union", "Police",
    )  # fmt: skip
    given = ("Ada", "Berin", "Calo", "Dessa", "Emrik", "Ilva", "Joram", "Katla", "Noro", "Sefa", "Tilde", "Umar")
    endings = ("nia", "ria", "land", "mar", "stan")
    rng.shuffle(stems)
    countries = [stem + endings[i % len(endings)] for i, stem in enumerate(stems[: max(count // 5, 1)])]
    # shifted by one each round: neighbours in the list differ in both parts, and no combination comes twice
    rounds = range(len(offices))
    members = [f"{offices[(i + k) % len(offices)]} ({c})" for k in rounds for i, c in enumerate(countries)]
    people = [f"{given[(i + k) % len(given)]} {stem}sson" for k in rounds for i, stem in enumerate(reversed(stems))]
    trios = zip_longest(members[::2], members[1::2], people)
    return [*countries, *(name for trio in trios for name in trio if name)][:count]
