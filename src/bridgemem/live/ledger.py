"""Ledger: forecasts as they were issued, kept in the event store and resolved by the events that come later.

A forecast is written once and never changed: as-of time, query, window, probabilities, model version, and what naive
rules said. It is refused if its window has begun by the store's own clock of events. A window is over once an event
after it is stored; its claims are then resolved. Late arrivals and retractions resolve them again: the last resolution
counts, and all are kept. The tables are made with the first forecast, so a store without a ledger stays as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.events.log import Clock
from bridgemem.forecasting.claims import Claim, Statement, also_known_as, stated
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore, Snapshot, now
from bridgemem.live.intake import IN_FORCE

if TYPE_CHECKING:
    import duckdb

    from bridgemem.live.track_record import TrackRecord

# names stand in subject, relation, object and member alone
TABLES = {
    "ledger_forecasts": 'id BIGINT PRIMARY KEY, "when" VARCHAR, version VARCHAR, query VARCHAR, subject VARCHAR, '
    "relation VARCHAR, object VARCHAR, as_of BIGINT, start BIGINT, horizon BIGINT, batches BIGINT, retractions BIGINT",
    "ledger_claims": "id BIGINT PRIMARY KEY, forecast BIGINT, subject VARCHAR, relation VARCHAR, object VARCHAR, "
    "measure VARCHAR, p DOUBLE, asked VARCHAR, base_rate DOUBLE, persistence DOUBLE",
    "ledger_names": "forecast BIGINT, name VARCHAR, member VARCHAR",
    "ledger_resolutions": 'id BIGINT PRIMARY KEY, claim BIGINT, hits BIGINT, total BIGINT, "when" VARCHAR, '
    "batches BIGINT, retractions BIGINT",
}
SETTLED = "settled"  # in the table about: windows that begin before this step are not resolved again
AT = "ledger"  # in the table about: the batches and retractions up to which everything is resolved

Fact = tuple[str, str, str, int]  # subject, relation, object, step


@dataclass(frozen=True)
class Issued:
    """A forecast in the ledger: when it was issued, by which model, from what was known before `as_of`.

    query: who, what, partners, whether or outlook. subject, relation, object: None stands for what was asked. time,
    until: the first and the last step of the window.
    """

    id: int
    issued: str
    version: str
    query: str
    subject: str | None
    relation: str | None
    object: str | None
    as_of: str
    time: str
    until: str
    step: int
    horizon: int
    claims: tuple[IssuedClaim, ...] = ()

    def __str__(self) -> str:
        if self.query == "outlook":
            return f"({len(self.claims)} events)"
        return f"({', '.join(name or '?' for name in (self.subject, self.relation, self.object))})"


@dataclass(frozen=True)
class IssuedClaim:
    """One probability of a forecast, and what became of it.

    probability: "p_event" or "p_given_event". state: "open" until the window is over; then "yes", "no", "partly" (some
    of the events that met the condition), or "void" where the condition was never met. hits of total: events. changes:
    how often it was resolved.
    """

    id: int
    claim: Claim
    state: str
    hits: int | None = None
    total: int | None = None
    resolved: str | None = None
    changes: int = 0

    @property
    def probability(self) -> str:
        return "p_event" if self.claim.measure == "event" else "p_given_event"


@dataclass(frozen=True)
class Resolution:
    """What was known of a claim at one time: hits of total events, after that many batches and retractions."""

    hits: int
    total: int
    when: str
    batches: int
    retractions: int


class Ledger:
    """The issued forecasts of an event store.

    Example:
        >>> import tempfile, bridgemem as bm
        >>> from bridgemem.live.eventstore import EventStore
        >>> from bridgemem.live.ledger import Ledger
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> model = bm.Forecaster("recurrence", settings=bm.Settings(max_epochs=1)).fit(world)
        >>> store = EventStore(tempfile.mkdtemp() + "/events.duckdb")
        >>> store.follow(world.events)
        >>> ledger = Ledger(store)
        >>> ledger.issue(model.whether(0, 0, object=1), predictor=model.predictor, version="v1")
        1
        >>> ledger.forecasts()[0].claims[0].state
        'open'
    """

    def __init__(self, store: EventStore) -> None:
        self.store = store

    @property
    def exists(self) -> bool:
        """Whether any forecast was ever issued."""
        with self.store.reading() as cursor:
            return _exists(cursor)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def issue(self, found: Any, *, predictor: Predictor, version: str) -> int:
        """Keep an answer of a predictor for ever; returns its number.

        Args:
            found: What `forecast`, `what`, `partners`, `whether` or `outlook` gave.
            predictor: What gave it.
            version: Of the model.

        Raises:
            SettingsError: Its window has begun by the store's clock, or it states no probability.
        """
        [number] = self.issue_all([found], predictor=predictor, version=version)
        if isinstance(number, SettingsError):
            raise number
        return number

    def issue_all(self, found: Sequence[Any], *, predictor: Predictor, version: str) -> list[int | SettingsError]:
        """Keep several answers of one predictor in one transaction: the number of each, or why it is not issued."""
        made, events = list[Statement | SettingsError](), predictor.events
        for one in found:
            try:
                statement = stated(one, predictor)
                made.append(self._begun(statement.step, events.end, events.clock) or statement)
            except SettingsError as problem:
                made.append(problem)
        if all(isinstance(one, SettingsError) for one in made):
            return [one for one in made if isinstance(one, SettingsError)]
        with self.store.writing() as cursor:
            end, numbers = _end(cursor), list[int | SettingsError]()
            for one in made:
                if isinstance(one, SettingsError):
                    numbers.append(one)
                    continue
                # a batch may have come since the forecasts were made
                late = self._begun(one.step, end, events.clock)
                numbers.append(late or _written(cursor, one, predictor, version))
        return numbers

    def _begun(self, start: int, end: int, clock: Clock) -> SettingsError | None:
        """Why a forecast from a step on cannot be issued, where the store knows events up to another one."""
        if start < end:
            return SettingsError(
                f"a forecast from {clock.label(start)} on cannot be issued: {self.store.path.name} knows events up to "
                f"{clock.label(end - 1)}, so its window has begun; ask for a window from {clock.label(end)} on."
            )
        return None

    def resolve(self) -> int:
        """Resolve what the stored events decide by now; returns how many claims were resolved or changed."""
        with self.store.reading() as cursor:
            if not _exists(cursor) or _resolved_at(cursor) == EventStore.snapshot_of(cursor):
                return 0
        with self.store.writing() as cursor:
            before, at, end = _resolved_at(cursor), EventStore.snapshot_of(cursor), _end(cursor)
            claims = _to_resolve(cursor, before, end)
            facts, names = _facts(cursor, claims), _names(cursor, {row[1] for row in claims})
            when, changed = now(), []
            for number, forecast, start, horizon, hits, total, *values in claims:
                own = facts.outcome(Claim(*values), names[forecast], start, start + horizon)
                if own != (hits, total):
                    changed.append((number, own))
            first = cursor.execute("SELECT coalesce(max(id), 0) + 1 FROM ledger_resolutions").fetchall()[0][0]
            rows = [[first + i, n, *own, when, at.batches, at.retractions] for i, (n, own) in enumerate(changed)]
            _insert(cursor, "ledger_resolutions", rows)
            cursor.execute("DELETE FROM about WHERE name = ?", [AT])
            cursor.execute("INSERT INTO about VALUES (?, ?)", [AT, json.dumps([at.batches, at.retractions])])
        return len(changed)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def forecasts(self, *, last: int | None = None, forecast: int | None = None) -> list[Issued]:
        """Issued forecasts with their claims, in the order in which they were issued.

        Args:
            last: Those that were issued last alone.
            forecast: The one of this number alone.
        """
        with self.store.reading() as cursor:
            if not _exists(cursor):
                found = []
            else:
                found = cursor.execute(
                    'SELECT id, "when", version, query, subject, relation, object, as_of, start, horizon '
                    "FROM ledger_forecasts WHERE $1 IS NULL OR id = $1 ORDER BY id DESC LIMIT $2",
                    [forecast, last],
                ).fetchall()[::-1]
            claims = _claims(cursor, [row[0] for row in found])
        if forecast is not None and not found:
            raise NotFoundError(
                f"{self.store.path.name} has no forecast {forecast}; `bridgemem ledger list` shows all."
            )
        label = (self.store.clock or Clock()).label
        made = []
        for number, when, version, query, subject, relation, object_, as_of, start, horizon in found:
            window = label(start), label(start + horizon - 1), start, horizon
            asked = (query, subject, relation, object_)
            made.append(Issued(number, when, version, *asked, label(as_of), *window, tuple(claims[number])))
        return made

    def score(self, *, by: str = "all") -> TrackRecord:
        """What the resolved claims were worth, next to naive rules; by: all, month, relation or horizon."""
        from bridgemem.live.track_record import track_record

        return track_record(self, by=by)

    def history(self, claim: int) -> list[Resolution]:
        """Every resolution of a claim, by its number, from the first on."""
        with self.store.reading() as cursor:
            found = cursor if _exists(cursor) else None
            rows = [] if found is None else found.execute(_HISTORY, [claim]).fetchall()
        return [Resolution(*row) for row in rows]


# ---- the tables ----------------------------------------------------------------------------------------------------


def _exists(cursor: duckdb.DuckDBPyConnection) -> bool:
    return bool(cursor.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'ledger_forecasts'").fetchone())


def erase_claims(cursor: duckdb.DuckDBPyConnection, name: str) -> int:
    """Delete the claims that name an entity or relation, and the forecasts that ask about it; how many claims."""
    if not _exists(cursor):
        return 0
    named = "? IN (subject, relation, object)"
    forecasts = f"SELECT id FROM ledger_forecasts WHERE {named} UNION SELECT forecast FROM ledger_names WHERE name = ?"
    gone = cursor.execute(
        f"SELECT id FROM ledger_claims WHERE {named} OR forecast IN ({forecasts})", [name] * 3
    ).fetchall()
    ids = [row[0] for row in gone]
    cursor.execute("DELETE FROM ledger_resolutions WHERE claim IN (SELECT unnest(?::BIGINT[]))", [ids])
    cursor.execute(f"DELETE FROM ledger_forecasts WHERE id IN ({forecasts})", [name] * 2)
    cursor.execute("DELETE FROM ledger_claims WHERE id IN (SELECT unnest(?::BIGINT[]))", [ids])
    cursor.execute("DELETE FROM ledger_names WHERE ? IN (name, member)", [name])
    return len(ids)


def _end(cursor: duckdb.DuckDBPyConnection) -> int:
    """The first step after all stored events in force."""
    return cursor.execute(f"SELECT coalesce(max(step) + 1, 0) {IN_FORCE}").fetchall()[0][0]


def _resolved_at(cursor: duckdb.DuckDBPyConnection) -> Snapshot:
    found = cursor.execute("SELECT value FROM about WHERE name = ?", [AT]).fetchone()
    return Snapshot(*json.loads(found[0])) if found else Snapshot(0, 0)


def _written(cursor: duckdb.DuckDBPyConnection, made: Statement, predictor: Predictor, version: str) -> int:
    """The number of a forecast that is written now."""
    for table, columns in TABLES.items():
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
    at = EventStore.snapshot_of(cursor)
    number, claim = (
        cursor.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchall()[0][0]
        for table in ("ledger_forecasts", "ledger_claims")
    )
    asked = [made.query, made.subject, made.relation, made.object]
    window = [predictor.events.end, made.step, made.horizon]
    row = [number, now(), version, *asked, *window, at.batches, at.retractions]
    known = also_known_as(made, predictor)
    _insert(cursor, "ledger_forecasts", [row])
    _insert(cursor, "ledger_claims", [_row(claim + i, number, c) for i, c in enumerate(made.claims)])
    _insert(cursor, "ledger_names", [[number, name, one] for name, all_ in known.items() for one in all_])
    return number


def _row(number: int, forecast: int, c: Claim) -> list[Any]:
    return [number, forecast, c.subject, c.relation, c.object, c.measure, c.p, c.asked, c.base_rate, c.persistence]


def _insert(cursor: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


_HISTORY = 'SELECT hits, total, "when", batches, retractions FROM ledger_resolutions WHERE claim = ? ORDER BY id'
_LAST = "(SELECT claim, count(*) AS changes, max(id) AS id FROM ledger_resolutions GROUP BY claim)"


def settle(cursor: duckdb.DuckDBPyConnection, before: int) -> None:
    """Let what was resolved of windows that begin before a step stand, since events there were removed."""
    last = max(before, _settled(cursor))
    cursor.execute("DELETE FROM about WHERE name = ?", [SETTLED])
    cursor.execute("INSERT INTO about VALUES (?, ?)", [SETTLED, str(last)])


def _settled(cursor: duckdb.DuckDBPyConnection) -> int:
    found = cursor.execute("SELECT value FROM about WHERE name = ?", [SETTLED]).fetchone()
    return int(found[0]) if found else 0


def _to_resolve(cursor: duckdb.DuckDBPyConnection, before: Snapshot, end: int) -> list[Any]:
    """Claims whose window is over and that have no resolution, or whose window holds what came or went since."""
    return cursor.execute(
        "WITH moved AS (SELECT DISTINCT step FROM events WHERE batch > $1 OR id IN (SELECT event FROM retractions "
        "WHERE id > $2)) SELECT c.id, forecast, start, horizon, r.hits, r.total, c.subject, c.relation, c.object, "
        "measure, p, asked, base_rate, persistence FROM ledger_claims c JOIN ledger_forecasts f ON f.id = forecast "
        f"LEFT JOIN {_LAST} last ON last.claim = c.id LEFT JOIN ledger_resolutions r ON r.id = last.id "
        "WHERE (r.id IS NULL AND start + horizon < $3) OR (r.id IS NOT NULL AND start >= $4 AND EXISTS "
        "(SELECT 1 FROM moved WHERE step >= start AND step < start + horizon)) ORDER BY c.id",
        [before.batches, before.retractions, end, _settled(cursor)],
    ).fetchall()


def _claims(cursor: duckdb.DuckDBPyConnection, forecasts: Sequence[int]) -> dict[int, list[IssuedClaim]]:
    made: dict[int, list[IssuedClaim]] = defaultdict(list)
    if not forecasts:
        return made
    rows = cursor.execute(
        "SELECT forecast, c.id, subject, relation, object, measure, p, asked, base_rate, persistence, r.hits, r.total, "
        f'r."when", coalesce(changes, 0) FROM ledger_claims c LEFT JOIN {_LAST} last ON last.claim = c.id '
        "LEFT JOIN ledger_resolutions r ON r.id = last.id "
        "WHERE forecast IN (SELECT unnest(?::BIGINT[])) ORDER BY c.id",
        [list(forecasts)],
    ).fetchall()
    for forecast, number, *values, hits, total, when, changes in rows:
        state = _state(hits, total)
        made[forecast].append(IssuedClaim(number, Claim(*values), state, hits, total, when, changes))
    return made


def _state(hits: int | None, total: int | None) -> str:
    if hits is None or total is None:
        return "open"
    return "void" if total == 0 else "no" if hits == 0 else "yes" if hits == total else "partly"


def _names(cursor: duckdb.DuckDBPyConnection, forecasts: Iterable[int]) -> dict[int, dict[str, list[str]]]:
    """By forecast: the names that stored events may have, of those names that have others."""
    made: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    rows = cursor.execute(
        "SELECT forecast, name, member FROM ledger_names WHERE forecast IN (SELECT unnest(?::BIGINT[]))",
        [sorted(forecasts)],
    ).fetchall()
    for forecast, name, member in rows:
        made[forecast][name].append(member)
    return made


def _facts(cursor: duckdb.DuckDBPyConnection, claims: Sequence[Any]) -> _Facts:
    """The events in force in the windows of some claims."""
    low, high = min((c[2] for c in claims), default=0), max((c[2] + c[3] for c in claims), default=0)
    return _Facts(
        cursor.execute(
            f"SELECT DISTINCT subject, relation, object, step {IN_FORCE} AND step >= ? AND step < ?", [low, high]
        ).fetchall()
    )


class _Facts:
    """Events, each once in a step, found by any two of subject, relation and object, or by all three."""

    def __init__(self, rows: Iterable[Fact]) -> None:
        self._found: dict[tuple[str | None, str | None, str | None], set[Fact]] = defaultdict(set)
        for fact in rows:
            s, r, o, _ = fact
            for key in ((s, r, o), (s, r, None), (None, r, o), (s, None, o), (o, None, s)):
                self._found[key].add(fact)

    def matching(self, claim: Claim, names: dict[str, list[str]], window: range) -> set[Fact]:
        """The facts of a window that a claim names; without a relation either way round."""
        s, r, o = (
            [name] if name is None else names.get(name, [name])
            for name in (claim.subject, claim.relation, claim.object)
        )
        return {fact for key in product(s, r, o) for fact in self._found.get(key, ()) if fact[3] in window}

    def outcome(self, claim: Claim, names: dict[str, list[str]], start: int, stop: int) -> tuple[int, int]:
        """How many events prove a claim right, of how many that could."""
        window, own = range(start, stop), self.matching(claim, names, range(start, stop))
        if claim.measure == "event":
            return int(bool(own)), 1
        met = self.matching(claim.condition, names, window)
        return (int(bool(own)), int(bool(met))) if claim.measure == "once" else (len(own), len(met))
