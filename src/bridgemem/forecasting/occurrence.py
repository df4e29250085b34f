"""Occurrence: whether an event happens within the next h steps, and when the next one comes.

A discrete-time hazard: for a query at step t a small network reads what was known before t and gives, for each of a few
spans of steps ahead, the probability that the event comes at a step of the span, given that it has not come yet. What
is not over by the end of the known events is censored there. Probabilities grow with the horizon by construction.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bridgemem.config import Count, Declared, Inside, NotNegative, Positive, Units
from bridgemem.events.clock import CYCLES, DAY, DAYS_OF_WEEK
from bridgemem.events.log import EventLog
from bridgemem.events.queries import renumbered
from bridgemem.memory.disk.tallies import MappedTally
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PAIR_BITS, PastTallies, Tallies
from bridgemem.memory.tally import DECAYS, Tallied, Tally
from bridgemem.storage.tensors import part_of
from bridgemem.training.checkpoint import seeded, shells, with_weights
from bridgemem.training.one_cycle import OneCycle

# what may happen: the two parties interact, either way round; this very triple; the actor under a directed relation
Kind = Literal["pair", "triple", "role_relation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPANS = (1, 2, 3, 5, 8, 15, 31, 61)  # the first steps ahead of the spans of one hazard; the last has no end
# what else is read, next to what happened under the key itself
PARENTS: dict[Kind, tuple[str, ...]] = {
    "pair": ("more active", "less active"),
    "triple": ("pair", "subject", "object", "role_relation", "object_relation", "relation"),
    "role_relation": ("subject", "relation"),
}
# the last steps whose events are counted: what went on at each of them until now is told apart from what just ended
WINDOWS = (1, 2, 3, 7, 14)
# the rhythm of a key: the steps of the next cycle, (first, end), that are told apart
PHASES = ((0, 1), (1, 2), (2, 4), (4, 7))
_NEVER = 10.0  # the log lag of what never happened
CHUNK = 1 << 16  # keys that are read at once
_SECOND = (1 << PAIR_BITS) - 1  # of a key of two parties, the bits of the second
LATELY = 30  # steps: half of the keys of a sample are among those that occurred in as many
_DRAWN = threading.Lock()  # the first weights are drawn from the process's random numbers, by one fit at a time
LEAST_STEPS = 100  # of all keys together in a span, below which it has the hazard of the span before
LEAST_UPDATES = 60  # of the weights, with fewer of which the fit of few events is not done
MOST_ROWS = 4  # keys that are learned from, for each event: few events tell little, however often they are asked about


@dataclass(frozen=True)
class OccurrenceSettings(Declared):
    """A small network for each kind of query.

    epochs: more where the events are few, or where later validation gains by it. dates: how many steps it is fitted on,
    from the last share of the known ones, the closer the later. rows: the most keys in all, half of them among those
    that occurred lately; each counts as many times as there are keys that it was drawn from.
    """

    hidden: Units = 64
    epochs: Count = 4
    batch: Count = 1024
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 1e-3
    dates: Count = 32
    rows: Count = 300_000
    share: Inside = 0.7


@dataclass(frozen=True)
class Keys:
    """What may happen at or after a step, as ids: subject, relation, object, step int64 [n] each.

    Of a pair the relation is not read, and of a role_relation, whose relation is directed, the object is not.
    """

    kind: Kind
    subject: Tensor
    relation: Tensor
    object: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: Tensor | slice) -> Keys:
        return Keys(self.kind, self.subject[rows], self.relation[rows], self.object[rows], self.step[rows])

    def parts(self, size: int = CHUNK) -> Iterator[Keys]:
        for at in range(0, len(self), size):
            yield self.take(slice(at, at + size))


def wholes(keys: Keys, relations: int) -> tuple[Keys, ...]:
    """What each triple is a part of: its pair interacts; all subjects, then all objects, have their relation at all."""
    if keys.kind != "triple":
        return ()
    s, r, o, t = keys.subject, keys.relation, keys.object, keys.step
    roles = (torch.cat(columns) for columns in ((s, o), (r, r + relations), (o, s), (t, t)))
    return Keys("pair", s, r, o, t), Keys("role_relation", *roles)


def columns_of(tallied: Tallied, step: Tensor, *, own: bool) -> Tensor:
    """Logs of count, lag and levels, and of a key of its own age and mean gap: float32 [n, 6 or 8]."""
    count, known = tallied.events.double(), tallied.events > 0
    lag = torch.where(known, (step - tallied.last).double().log1p(), _NEVER)
    columns = [count.log1p(), lag]
    if own:
        age = torch.where(known, (step - tallied.first).double(), 0.0)
        gap = (tallied.last - tallied.first).clamp(min=0).double() / (count - 1).clamp(min=1)
        columns += [age.log1p(), gap.log1p()]
    return torch.cat([torch.stack(columns, dim=1), tallied.level.log1p()], dim=1).float()


def features(keys: Keys, tallies: PastTallies) -> Tensor:
    """What was known before the step of each key, float32 [n, columns].

    Nothing but the weekday is the same for all keys of a step: a fit on few steps would tell them apart by it.
    """
    s, r, o, t = keys.subject, keys.relation, keys.object, keys.step
    relations = tallies.past.events.n_relations
    own = tallies.before(keys.kind, s, r, o, t)
    made = [columns_of(own, t, own=True), _in_windows(keys, tallies, own.events), _in_phase(keys, tallies)]

    def read(name: str) -> Tensor:
        if name == "pair":
            return columns_of(tallies.before("pair", s, r, o, t), t, own=True)
        if name == "object_relation":
            return columns_of(tallies.before("role_relation", o, r + relations, s, t), t, own=False)
        if name in ("subject", "object"):
            return columns_of(tallies.before("actor", s if name == "subject" else o, r, o, t), t, own=False)
        asked = r % relations if name == "relation" else r
        return columns_of(tallies.before(name, s, asked, o, t), t, own=False)

    if keys.kind == "pair":  # which of the two is named first tells nothing
        one, two = read("subject"), read("object")
        made += [torch.maximum(one, two), torch.minimum(one, two)]
    else:
        made += [read(name) for name in PARENTS[keys.kind]]
    clock = tallies.past.events.clock
    # where a step is no day, seven of them are no cycle, and would only tell the dates of a fit apart
    week = F.one_hot(t % DAYS_OF_WEEK, DAYS_OF_WEEK).float() * float(clock.kind == "date" and clock.unit == DAY)
    return torch.cat([*made, week], dim=1)


def _in_windows(keys: Keys, tallies: PastTallies, events: Tensor) -> Tensor:
    """Logs of how often each key occurred in its last steps, of all its events int64 [n]: float32 [n, windows]."""
    many = len(WINDOWS)
    s, r, o = (column.repeat(many) for column in (keys.subject, keys.relation, keys.object))
    back = torch.tensor(WINDOWS, device=keys.step.device)[:, None]
    then = tallies.before(keys.kind, s, r, o, (keys.step - back).clamp(min=0).flatten(), levels=False).events
    return (events - then.view(many, -1)).T.float().log1p()


def _in_phase(keys: Keys, tallies: PastTallies) -> Tensor:
    """In what share of its last cycles each key occurred at the steps that come next: float32 [n, phases]."""
    cycle, t, ahead = tallies.past.events.clock.cycle, keys.step, PHASES[-1][1]
    occurred = torch.zeros((len(keys), CYCLES, ahead), device=t.device)
    if cycle:
        since = (t - cycle * CYCLES).clamp(min=0)
        row, step = tallies.steps(keys.kind, keys.subject, keys.relation, keys.object, since, t)
        back = t[row] - step - 1
        place = cycle - 1 - back % cycle  # the last step of the cycle before has that of the last step of this one
        soon = place < ahead
        occurred[row[soon], (back // cycle)[soon], place[soon]] = 1
    return torch.stack([occurred[..., first:end].amax(2).mean(1) for first, end in PHASES], dim=1)


def width_of(kind: Kind) -> int:
    """How many columns the features of a kind have."""
    own, other = 4 + len(DECAYS), 2 + len(DECAYS)
    parents = sum(own if name == "pair" else other for name in PARENTS[kind])
    return own + len(WINDOWS) + len(PHASES) + parents + DAYS_OF_WEEK


class HazardNet(nn.Module):
    """Features -> the logit of the hazard in each span."""

    mean: Tensor
    inverse: Tensor
    span: Tensor

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        # whose hazard each span has: its own, unless the known events do not reach it
        self.register_buffer("span", torch.tensor(range(len(SPANS))))
        self.body = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, len(SPANS))
        )
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("inverse", torch.ones(width))

    def reach(self, steps: Tensor) -> None:
        """Learn which spans are known, from the steps that keys were watched in each: float [spans]."""
        known = (steps >= LEAST_STEPS).nonzero()
        self.span.clamp_(max=int(known.max()) if len(known) else 0)

    def begin_at(self, rate: Tensor) -> None:
        """Give the same hazards to all keys, float [spans], which a fit starts from."""
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.logit(rate.clamp(1e-6, 1 - 1e-6)))

    def standardise(self, x: Tensor, weight: Tensor) -> None:
        """Learn mean and deviation of the features from weighted examples: x float32 [m, columns], weight [m]."""
        share = (weight / weight.sum()).double()
        # block by block: as doubles all would take twice the memory
        blocks = list(zip(share.split(CHUNK), x.split(CHUNK), strict=True))
        mean = torch.stack([of @ part.double() for of, part in blocks]).sum(0)
        variance = torch.stack([of @ part.double().sub_(mean).square_() for of, part in blocks]).sum(0)
        self.mean.copy_(mean)
        self.inverse.copy_(variance.clamp(min=1e-6).rsqrt())

    def scaled(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * self.inverse).clamp_(-8, 8)

    def of_scaled(self, x: Tensor) -> Tensor:
        return self.body(x).index_select(1, self.span)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_scaled(self.scaled(x))


@dataclass(frozen=True)
class Outcomes:
    """Keys with what came: steps until the event, from 1 on, and how many steps ahead are known; int64 [n] each.

    weight float32 [n]: how many keys each one stands for.
    """

    keys: Keys
    after: Tensor
    known: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Tensor) -> Outcomes:
        return Outcomes(self.keys.take(rows), self.after[rows], self.known[rows], self.weight[rows])

    @classmethod
    def joined(cls, parts: list[Outcomes]) -> Outcomes:
        kind = parts[0].keys.kind
        columns = [torch.cat([getattr(p.keys, n) for p in parts]) for n in ("subject", "relation", "object", "step")]
        rest = (torch.cat([getattr(p, name) for p in parts]) for name in ("after", "known", "weight"))
        return cls(Keys(kind, *columns), *rest)


def seen_keys(kind: Kind, tallies: Tallies, step: int) -> Keys:
    """Every key of a kind that occurred before a step, in one log."""
    tally: Tally | MappedTally = getattr(tallies, kind)
    return keys_at(kind, tallies, torch.cat([torch.zeros(0, dtype=torch.int64), *seen_ranks(tally, step)]), step)


def seen_ranks(tally: Tally | MappedTally, step: int) -> Iterator[Tensor]:
    """The ranks of the keys that occurred before a step, int64 [n], in blocks."""
    for at, begun in tally.begun(step):
        yield begun.nonzero().squeeze(1) + at


def keys_at(kind: Kind, tallies: Tallies, rank: Tensor, step: int) -> Keys:
    """Keys of one log by their ranks, int64 [n], asked at a step."""
    key, relations = getattr(tallies, kind).keys[rank], tallies.events.n_relations
    nobody = torch.zeros_like(key)
    at = torch.full_like(key, step)
    if kind == "pair":
        return Keys(kind, key >> PAIR_BITS, nobody, key & _SECOND, at)
    if kind == "triple":
        link = tallies.link.keys[key // relations]
        return Keys(kind, link >> PAIR_BITS, key % relations, link & _SECOND, at)
    return Keys(kind, key // (2 * relations), key % (2 * relations), nobody, at)


def all_seen(kind: Kind, tallies: PastTallies, step: int) -> Keys:
    """Every key of a kind that occurred before a step, in base or delta, each once."""
    found = [seen_keys(kind, part, step) for part in tallies.parts]
    if len(found) == 1:
        return found[0]
    now = tallies.past.events.n_relations
    rows = []
    for keys, part in zip(found, tallies.parts, strict=True):
        own = part.events.n_relations
        relation = renumbered(keys.relation, own, now) if kind == "role_relation" else keys.relation
        rows.append(torch.stack([keys.subject, relation, keys.object]))
    subject, relation, object_ = torch.unique(torch.cat(rows, dim=1), dim=1)
    return Keys(kind, subject, relation, object_, torch.full_like(subject, step))


def outcomes(kind: Kind, past: Past, dates: list[int], most: int, seed: int, *, until: int | None = None) -> Outcomes:
    """A sample of the seen keys of each date with what came after it, up to a step, or the end of the events.

    Where there are more than `most` at a date, half of those drawn are among keys that occurred in the last 30 steps;
    each stands for as many as it was drawn from.
    """
    tallies, draw = PastTallies(past), np.random.default_rng(seed)
    (own,) = tallies.parts
    end, made = past.events.end if until is None else until, []
    for date in dates:
        rank, weight = _drawn(getattr(own, kind), date, most, draw)
        keys = keys_at(kind, own, rank, date)
        after = tallies.next(kind, keys.subject, keys.relation, keys.object, keys.step) - keys.step + 1
        made.append(Outcomes(keys, after, torch.full_like(after, end - date), weight))
    return Outcomes.joined(made)


def _drawn(tally: Tally | MappedTally, date: int, most: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The ranks of the keys of a date, int64 [n] ascending, and how many keys each stands for, float32 [n]."""
    seen = sum(int(begun.sum()) for _, begun in tally.begun(date))
    if seen <= most:
        return torch.cat([torch.zeros(0, dtype=torch.int64), *seen_ranks(tally, date)]), torch.ones(seen)
    active = tally.active(date - LATELY, date)
    ranks, weights = [], []
    for lately in (True, False):
        # a mask of all keys, and the places of those drawn, are all that is held of them
        stratum = [(at, begun & (active[at : at + len(begun)] == lately)) for at, begun in tally.begun(date)]
        sizes = [int(mask.sum()) for _, mask in stratum]
        total = sum(sizes)
        size = min(total, most // 2)
        if not size:
            continue
        places = torch.from_numpy(np.sort(draw.choice(total, size, replace=False)))
        first = 0
        for (at, mask), own in zip(stratum, sizes, strict=True):
            inside = places[(places >= first) & (places < first + own)] - first
            ranks.append(mask.nonzero().squeeze(1)[inside] + at)
            first += own
        weights.append(torch.full((size,), total / size))
    rank, order = torch.cat(ranks).sort()
    return rank, torch.cat(weights)[order]


def _spans() -> tuple[Tensor, Tensor]:
    """The first and the last step ahead of each span, int64 [spans] each."""
    return torch.tensor(SPANS), torch.tensor([*(first - 1 for first in SPANS[1:]), 2**31])


@lru_cache(8)
def steps_of(horizons: tuple[int, ...]) -> Tensor:
    """Horizons as float64 [horizons]; the thousands that a median is looked for among are made once."""
    return torch.tensor(horizons, dtype=torch.float64)


def steps_in_spans(horizons: tuple[int, ...]) -> Tensor:
    """How many steps of each horizon lie in each span, float64 [horizons, spans]."""
    first, last = (bound.double() for bound in _spans())
    return (torch.minimum(steps_of(horizons)[:, None], last) - first + 1).clamp(min=0)


def exposure(after: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Steps survived in each span, and whether the event came in it: float32 [n, spans] each."""
    first, last = _spans()
    came = after <= known
    until = torch.where(came, after - 1, known)
    survived = (torch.minimum(until[:, None], last) - first + 1).clamp(min=0)
    event = came[:, None] & (after[:, None] >= first) & (after[:, None] <= last)
    return survived.float(), event.float()


class Occurrence:
    """The fitted hazards of every kind of query."""

    def __init__(self, settings: OccurrenceSettings, nets: dict[Kind, HazardNet]) -> None:
        self.settings = settings
        self.nets = {kind: net.eval() for kind, net in nets.items()}

    @torch.no_grad()
    def rates(self, keys: Keys, tallies: PastTallies) -> Tensor:
        """How fast each key comes about in each span: - log of surviving one of its steps, float64 [n, spans]."""
        parts = [-F.logsigmoid(-self.nets[keys.kind](features(part, tallies)).double()) for part in keys.parts()]
        return torch.cat(parts) if parts else torch.zeros((0, len(SPANS)), dtype=torch.float64)

    def log_survival(
        self,
        keys: Keys,
        tallies: PastTallies,
        horizons: tuple[int, ...],
        raised: Tensor | None = None,
        pair: Tensor | None = None,
    ) -> Tensor:
        """log of the probability that nothing comes within each horizon, float64 [n, horizons].

        A triple is no likelier than that its pair interacts, or that either party has this relation with anybody.
        raised: how many times its own each rate is. pair: the rates of the pairs of triples, where they are known; both
        float64 [n, spans].
        """
        steps = steps_in_spans(horizons).T
        own = self.rates(keys, tallies)
        made = -(own if raised is None else own * raised) @ steps
        for whole in wholes(keys, tallies.past.events.n_relations):
            bound = pair if whole.kind == "pair" and pair is not None else self.rates(whole, tallies)
            for part in (-bound @ steps).split(max(len(keys), 1)):
                made = torch.maximum(made, part)
        return made

    def probability(self, keys: Keys, tallies: PastTallies, horizons: tuple[int, ...]) -> Tensor:
        """The probability of at least one event within each horizon, float64 [n, horizons]."""
        return -torch.expm1(self.log_survival(keys, tallies, horizons))

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{kind}.{name}": tensor.contiguous()
            for kind, net in self.nets.items()
            for name, tensor in net.state_dict().items()
        }

    @classmethod
    def restore(cls, settings: OccurrenceSettings, tensors: dict[str, Tensor]) -> Self:
        """Refuses with a ValueError what is not the weights of such networks."""
        if unknown := sorted(name for name in tensors if name.partition(".")[0] not in KINDS):
            raise ValueError(f"nothing is known of {unknown[0]}")
        with shells():
            nets = {kind: HazardNet(width_of(kind), settings.hidden) for kind in KINDS}
        own = {kind: with_weights(net, part_of(tensors, f"{kind}.")) for kind, net in nets.items()}
        if any(((net.span < 0) | (net.span >= len(SPANS))).any() for net in own.values()):
            raise ValueError(f"there are {len(SPANS)} spans, and other ones are named")
        return cls(settings, own)


def fit_dates(events: EventLog, settings: OccurrenceSettings) -> list[int]:
    """Steps from the last share of some events' steps; the first step of all has no past.

    Half of them are in the last quarter: the newest tell most, and the old ones keep a season from passing for a rule.
    """
    start = max(events.end - math.ceil((events.end - events.start) * settings.share), events.start + 1)
    last = max(events.end - 1, start)
    back = (last - start) * np.linspace(0, 1, settings.dates) ** 2
    return sorted({int(step) for step in (last - back).round()})


def sampled_outcomes(
    kind: Kind, past: Past, settings: OccurrenceSettings, seed: int, until: int | None = None
) -> Outcomes:
    """What a fit of one kind learns from: all events, or those before a step."""
    events = past.events if until is None else past.events.prefix(until)
    dates = fit_dates(events, settings)
    rows = min(settings.rows, MOST_ROWS * len(events))
    return outcomes(kind, past, dates, max(rows // len(dates), 2), seed, until=events.end)


class Watched(NamedTuple):
    """What hazards are fitted on: features of keys float32 [n, columns], survived and event [n, spans], weight [n]."""

    kind: Kind
    x: Tensor
    survived: Tensor
    event: Tensor
    weight: Tensor

    @classmethod
    def of(cls, found: Outcomes, tallies: PastTallies) -> Watched:
        kind = found.keys.kind
        # filled as it is read: parts and their sum would take twice as much
        x = torch.empty((len(found), width_of(kind)))
        for part, room in zip(found.keys.parts(), x.split(CHUNK), strict=True):
            room.copy_(features(part, tallies))
        return cls(kind, x, *exposure(found.after, found.known), found.weight / found.weight.mean())


def fit_hazard(watched: Watched, settings: OccurrenceSettings, *, seed: int = 42, longer: int = 1) -> HazardNet:
    """Fit the hazards of one kind by likelihood; what has not come by the end of the events is censored there.

    longer: how many times the usual epochs.
    """
    kind, x, survived, event, weight = watched
    with _DRAWN, seeded(seed, "cpu"):
        net = HazardNet(width_of(kind), settings.hidden)
    net.standardise(x, weight)
    net.reach((event + survived).sum(0))
    net.begin_at(((event * weight[:, None]).sum(0) + 0.5) / (((event + survived) * weight[:, None]).sum(0) + 10))
    x = net.scaled(x)  # once for all epochs
    draw = torch.Generator().manual_seed(seed)
    batches = math.ceil(len(x) / settings.batch)
    epochs = longer * max(settings.epochs, math.ceil(LEAST_UPDATES / batches))
    steps = OneCycle(net, settings.learning_rate, settings.weight_decay, epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=draw).split(settings.batch):
            batch = (part.index_select(0, rows) for part in (x, survived, event, weight))
            steps.take(partial(_loss, net, *batch))
    return net


def _loss(net: HazardNet, x: Tensor, survived: Tensor, event: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of -log of the probability of what came, or of nothing until the end of the events."""
    logit = net.of_scaled(x)
    return -((event * F.logsigmoid(logit) + survived * F.logsigmoid(-logit)).sum(1) * weight).mean()
