"""Client: the service from Python, with retries that never store a batch twice; nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from bridgemem.config import Positive, Size, check
from bridgemem.errors import BridgeMemError, DataError, NotFoundError, SettingsError

Events = Sequence[Sequence[Any] | Mapping[str, Any]]  # each (subject, relation, object, time) or a dict of these
AGAIN = (408, 429, 502, 503, 504)  # answered so, the same request may succeed a moment later
EVENT = ("subject", "relation", "object", "time")
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds; doubled from one try to the next


class ServiceError(BridgeMemError):
    """The service cannot be reached, or refuses a request. status: of HTTP, 0 where nothing was answered."""

    code = "service"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Ask a running `bridgemem serve`.

    Methods give the service's JSON answers as dicts. A request that fails for a moment (no connection, 408, 429, 502,
    503, 504) is sent again, after the time that the service asks for or twice the time before. To send a batch again is
    safe: its key stays the same, and the service stores a key once.

    Args:
        address: Where the service listens.
        token: The service's token.
        token_file: A file whose first line is the token.
        timeout: Seconds to wait for an answer.
        retries: How many times a request is sent again.

    Raises:
        SettingsError: The address is none, or two tokens are given.
        ServiceError: By every method: the service cannot be reached, or refused the request.

    Example:
        >>> client = Client("http://127.0.0.1:8008", retries=0)
        >>> client
        Client('http://127.0.0.1:8008')
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8008",
        *,
        token: str | None = None,
        token_file: Path | str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"{address!r} is not the address of a service; write it as http://127.0.0.1:8008.")
        if token is not None and token_file is not None:
            raise SettingsError("give the token or the file that holds it, not both.")
        check("timeout", timeout, Positive)
        check("retries", retries, Size)
        self.address, self.timeout, self.retries = address.rstrip("/"), timeout, retries
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._before = parts.path.rstrip("/")
        self._token = token if token_file is None else read_token(Path(token_file))

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def forecast(
        self,
        subject: str | None = None,
        relation: str | None = None,
        *,
        object: str | None = None,
        at: str | int | None = None,
        horizon: int | None = None,
        top: int = 10,
        assume: Events | None = None,
    ) -> dict[str, Any]:
        """Rank the candidates of (subject, relation, ?) or (?, relation, object).

        Args:
            subject: By name; left out to ask for it.
            relation: By name.
            object: By name; left out to ask for it.
            at: A time of the data set (default: the first unknown step).
            horizon: Any of that many steps from `at` on.
            top: How many candidates.
            assume: Events to answer as if they had happened; none is kept, and `assumed` tells what they change.

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.forecast(data.entities[0], "consult", top=3)
            >>> [candidate["rank"] for candidate in found["candidates"]]
            [1, 2, 3]
        """
        asked = {"subject": subject, "relation": relation, "object": object, "at": at, "horizon": horizon, "top": top}
        return self.post("/v1/forecast", _given({**asked, "assume": _rows(assume)}))

    def what(
        self,
        subject: str,
        object: str,
        *,
        at: str | int | None = None,
        horizon: int = 1,
        top: int = 10,
        assume: Events | None = None,
    ) -> dict[str, Any]:
        """Rank the events that may happen between two parties, either way round.

        Args:
            subject: By name.
            object: By name.
            at: A time of the data set (default: the first unknown step).
            horizon: Any of that many steps from `at` on (default: 1).
            top: How many.
            assume: Events to answer as if they had happened; none is kept.

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.what(data.entities[0], data.entities[1], top=2)
            >>> [candidate["rank"] for candidate in found["candidates"]]
            [1, 2]
        """
        asked = {"subject": subject, "object": object, "at": at, "horizon": horizon, "top": top}
        return self.post("/v1/what", _given({**asked, "assume": _rows(assume)}))

    def partners(
        self,
        actor: str,
        *,
        at: str | int | None = None,
        horizon: int = 1,
        top: int = 10,
        assume: Events | None = None,
    ) -> dict[str, Any]:
        """Rank those that an actor may deal with, under any relation.

        Args:
            actor: By name.
            at: A time of the data set (default: the first unknown step).
            horizon: Any of that many steps from `at` on (default: 1).
            top: How many.
            assume: Events to answer as if they had happened; none is kept.

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.partners(data.entities[0], horizon=7, top=2)
            >>> [candidate["rank"] for candidate in found["candidates"]]
            [1, 2]
        """
        asked = {"actor": actor, "at": at, "horizon": horizon, "top": top}
        return self.post("/v1/partners", _given({**asked, "assume": _rows(assume)}))

    def whether(
        self,
        subject: str | None = None,
        relation: str | None = None,
        *,
        object: str | None = None,
        at: str | int | None = None,
        horizon: int = 1,
        assume: Events | None = None,
    ) -> dict[str, Any]:
        """Tell whether and when (subject, relation, object) happens; one of them may be left out.

        `p_event` is the probability within the horizon, `within` that of other horizons.

        Args:
            subject: By name.
            relation: By name.
            object: By name.
            at: A time of the data set (default: the first unknown step).
            horizon: Any of that many steps from `at` on (default: 1).
            assume: Events to answer as if they had happened; none is kept.

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.whether(data.entities[0], "consult", horizon=7)
            >>> 0 < found["p_event"] < 1
            True
        """
        asked = {"subject": subject, "relation": relation, "object": object, "at": at, "horizon": horizon}
        return self.post("/v1/whether", _given({**asked, "assume": _rows(assume)}))

    def outlook(
        self,
        *,
        horizon: int = 7,
        top: int = 50,
        surprising: bool = False,
        watch: Sequence[str | Sequence[str]] | None = None,
        at: str | int | None = None,
    ) -> dict[str, Any]:
        """List the likeliest events of the next steps, or those whose probability rose most.

        Args:
            horizon: How many steps from `at` on.
            top: How many events.
            surprising: Those that rose most against their usual rate.
            watch: Only events of these: names of actors or relations, and pairs of actors.
            at: A time of the data set (default: the first unknown step).

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.outlook(horizon=7, top=3, watch=[data.entities[0]])
            >>> [candidate["rank"] for candidate in found["candidates"]]
            [1, 2, 3]
        """
        names = None if watch is None else [one if isinstance(one, str) else list(one) for one in watch]
        asked = {"horizon": horizon, "top": top, "surprising": surprising, "watch": names, "at": at}
        return self.post("/v1/outlook", _given(asked))

    def forecasts(
        self, queries: Sequence[Mapping[str, Any]], *, top: int = 10, horizon: int | None = None
    ) -> list[dict[str, Any]]:
        """Answer many queries at once.

        Args:
            queries: Each a dict with relation, subject or object, and if wanted `at`.
            top: How many.
            horizon: Any of that many steps from `at` on (default: 1).

        Returns:
            One answer for each query.

        Example:
            >>> queries = [{"subject": name, "relation": "consult"} for name in data.entities[:3]]
            >>> len(client.forecasts(queries, top=2))
            3
        """
        body = _given({"queries": [_given(query) for query in queries], "top": top, "horizon": horizon})
        return self.post("/v1/forecasts", body)["forecasts"]

    def explain(
        self, subject: str, relation: str, object: str, *, at: str | int | None = None, candidate: str = "object"
    ) -> dict[str, Any]:
        """Explain why one side of (subject, relation, object) has its score.

        Args:
            subject: By name.
            relation: By name.
            object: By name.
            at: A time of the data set (default: the first unknown step).
            candidate: "object" or "subject", the side that is explained.

        Returns:
            The service's JSON answer.

        Example:
            >>> best = client.forecast(data.entities[0], "consult", top=1)["candidates"][0]["name"]
            >>> client.explain(data.entities[0], "consult", best)["rank"]
            1
        """
        asked = {"subject": subject, "relation": relation, "object": object, "at": at, "candidate": candidate}
        return self.post("/v1/explain", _given(asked))

    def add(
        self,
        events: Events,
        *,
        source: str,
        key: str | None = None,
        offset: str | int | None = None,
    ) -> dict[str, Any]:
        """Store a batch of events, each (subject, relation, object, time) or a dict of these names.

        Args:
            events: The batch; it is stored as a whole or not at all.
            source: Who sends it.
            key: Its own name in its source (default: a new one). Give the same key when you call this again after an
                error, and the batch counts once.
            offset: Where in its source the batch lies.

        Returns:
            The receipt: batch, accepted, duplicates, late, replayed, ids.

        Example:
            >>> event = (data.entities[0], "consult", data.entities[1], "2030-03-02")
            >>> client.add([event], source="feed", key="day 1")["accepted"]
            1
            >>> client.add([event], source="feed", key="day 1")["replayed"]  # sent again, it counts once
            True
        """
        body = {"source": source, "key": key or uuid.uuid4().hex, "offset": offset, "events": _rows(events)}
        return self.post("/v1/events", _given(body))

    def retract(self, ids: Sequence[str], *, reason: str = "") -> dict[str, Any]:
        """Take events back by their ids, all or none.

        Args:
            ids: Of the events.
            reason: Kept with them.

        Returns:
            The service's JSON answer.

        Example:
            >>> event = (data.entities[0], "consult", data.entities[2], "2030-03-02")
            >>> ids = client.add([event], source="feed")["ids"]
            >>> client.retract(ids, reason="a mistake")["retracted"] == ids
            True
        """
        return self.post("/v1/retract", {"ids": list(ids), "reason": reason})

    def stored(self, source: str | None = None, *, last: int = 20) -> list[dict[str, Any]]:
        """List the events that were stored last, with their ids.

        Args:
            source: Of this source alone.
            last: How many.

        Returns:
            The events, the newest last.

        Example:
            >>> event = (data.entities[0], "consult", data.entities[3], "2030-03-02")
            >>> ids = client.add([event], source="feed")["ids"]
            >>> client.stored("feed", last=1)[0]["id"] == ids[0]
            True
        """
        return self.get("/v1/events", source=source, last=last)["events"]

    def stored_event(self, event_id: str) -> dict[str, Any]:
        """Describe one stored event, by its id.

        Args:
            event_id: Its id.

        Returns:
            The service's JSON answer.

        Example:
            >>> event = (data.entities[0], "consult", data.entities[4], "2030-03-02")
            >>> ids = client.add([event], source="feed")["ids"]
            >>> client.stored_event(ids[0])["source"]
            'feed'
        """
        return self.get(f"/v1/events/{quote(event_id, safe='')}")

    def backup(self, to: Path | str, *, replace: bool = False) -> dict[str, Any]:
        """Copy the event store to a file of the machine that the service runs on; needs the admin token.

        Args:
            to: The file of the copy.
            replace: Whether a file that exists is replaced.

        Returns:
            The service's JSON answer.

        Example:
            >>> from pathlib import Path
            >>> admin.backup(Path("copy.duckdb").absolute())["events"] == len(client.stored(last=1000))
            True
        """
        return self.post("/v1/backup", {"to": str(to), "replace": replace})

    def prune(self, *, before: str | int | None = None, source: str | None = None) -> dict[str, Any]:
        """Remove events before a time or of a source for good; needs the admin token.

        Args:
            before: A time of the data set.
            source: Of this source alone.

        Returns:
            The service's JSON answer.

        Example:
            >>> _ = client.add([(data.entities[0], "consult", data.entities[5], "2030-03-02")], source="trial")
            >>> admin.prune(source="trial")["events"]
            1
        """
        return self.post("/v1/prune", _given({"before": before, "source": source}))

    def erase(self, name: str) -> dict[str, Any]:
        """Remove every event that names an entity or relation for good; needs the admin token.

        Args:
            name: An entity or a relation, by name.

        Returns:
            The service's JSON answer.

        Example:
            >>> _ = client.add([("Jane Roe", "consult", data.entities[0], "2030-03-02")], source="feed")
            >>> admin.erase("Jane Roe")["events"]
            1
        """
        return self.post("/v1/erase", {"name": name})

    def rejected(self, source: str | None = None, *, last: int = 1000) -> dict[str, Any]:
        """List rows in quarantine, and how many there are; needs the admin token.

        Args:
            source: Of this source alone.
            last: How many.

        Returns:
            The rows, and how many there are.

        Example:
            >>> client.add([(data.entities[0], "consult", data.entities[1], "soon")], source="typed")
            Traceback (most recent call last):
            bridgemem.errors.DataError: event 1: 'soon' is not a date: write it as 2014-12-01 or 2014-12-01T06:00.
            >>> admin.rejected("typed", last=1)["rows"][0]["time"]
            'soon'
        """
        return self.get("/v1/rejected", source=source, last=last)

    def replay(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Store repaired rows of the quarantine, each a dict with file, line and the values of the event.

        Args:
            rows: As `rejected` gave them, with the right values.

        Returns:
            The service's JSON answer.

        Example:
            >>> client.add([(data.entities[0], "consult", data.entities[1], "later")], source="typed")
            Traceback (most recent call last):
            bridgemem.errors.DataError: event 1: 'later' is not a date: write it as 2014-12-01 or 2014-12-01T06:00.
            >>> row = admin.rejected("typed", last=1)["rows"][0]
            >>> admin.replay([{**row, "time": "2030-03-02"}])["accepted"]
            1
        """
        wanted = ("file", "line", *EVENT)  # reasons and the like stay where they are
        return self.post("/v1/replay", {"rows": [{name: row[name] for name in wanted if name in row} for row in rows]})

    def compact(self) -> dict[str, Any]:
        """Merge the new events into the service's base now; needs the admin token.

        Returns:
            The service's JSON answer.

        Example:
            >>> admin.compact()["merged"] >= 0
            True
        """
        return self.post("/v1/compact", {})

    def reload(self) -> dict[str, Any]:
        """Serve the run as it is on disk now; needs the admin token.

        Returns:
            The service's JSON answer.

        Example:
            >>> admin.reload()["changed"]
            False
        """
        return self.post("/v1/reload", {})

    def sources(self) -> list[dict[str, Any]]:
        """List who sent events, and the last key and offset of each.

        Returns:
            The sources.

        Example:
            >>> _ = client.add([(data.entities[0], "consult", data.entities[6], "2030-03-02")], source="feed")
            >>> "feed" in [one["source"] for one in client.sources()]
            True
        """
        return self.get("/v1/sources")["sources"]

    def ledger(self, *, last: int = 20, forecast: int | None = None) -> list[dict[str, Any]]:
        """List issued forecasts, and what became of them.

        Args:
            last: How many, those that were issued last.
            forecast: One alone, by the number that its answer carried as `issued`.

        Returns:
            The forecasts, the newest last.

        Example:
            >>> client.ledger(last=5)
            []
        """
        return self.get("/v1/ledger", last=last, forecast=forecast)["forecasts"]

    def ledger_score(self, by: str = "all") -> dict[str, Any]:
        """Score the issued forecasts next to naive rules.

        Args:
            by: "all", "month", "relation" or "horizon".

        Returns:
            The service's JSON answer.

        Example:
            >>> client.ledger_score(by="month")["open"]
            0
        """
        return self.get("/v1/ledger/score", by=by)

    def model(self) -> dict[str, Any]:
        """Describe what is served, and what it knows by now.

        Returns:
            The service's JSON answer.

        Example:
            >>> client.model()["backbone"]
            'recurrence'
        """
        return self.get("/v1/model")

    def limits(self) -> dict[str, Any]:
        """Tell what one request may hold.

        Returns:
            The service's JSON answer.

        Example:
            >>> client.limits()["events"]
            10000
        """
        return self.get("/v1/limits")

    def entities(self, text: str = "", *, limit: int = 20) -> list[dict[str, Any]]:
        """Find entities by what one would type.

        Args:
            text: What one would type.
            limit: How many.

        Returns:
            The names, the best first.

        Example:
            >>> client.entities(data.entities[0])[0]["name"] == data.entities[0]
            True
        """
        return self.get("/v1/entities", q=text, limit=limit)["names"]

    def relations(self, text: str = "", *, limit: int = 20) -> list[dict[str, Any]]:
        """Find relations by what one would type.

        Args:
            text: What one would type.
            limit: How many.

        Returns:
            The names, the best first.

        Example:
            >>> "consult" in [found["name"] for found in client.relations()]
            True
        """
        return self.get("/v1/relations", q=text, limit=limit)["names"]

    def get(self, path: str, **asked: Any) -> dict[str, Any]:
        """Send a GET request.

        Args:
            path: The address.
            **asked: Parameters of the query.

        Returns:
            The service's JSON answer.

        Example:
            >>> sorted(client.get("/v1/limits")) == sorted(client.limits())
            True
        """
        words = urlencode(_given(asked))
        return self._answer("GET", f"{path}?{words}" if words else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request with a JSON body.

        Args:
            path: The address.
            body: What is sent.

        Returns:
            The service's JSON answer.

        Raises:
            DataError: The body cannot be written as JSON.

        Example:
            >>> asked = {"subject": data.entities[0], "relation": "consult", "top": 1}
            >>> len(client.post("/v1/forecast", asked)["candidates"])
            1
        """
        try:
            sent = json.dumps(body, allow_nan=False, default=str).encode()
        except ValueError as problem:
            raise DataError(f"the request cannot be written as JSON: {problem}.") from None
        return self._answer("POST", path, sent)

    def _answer(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        """Send a request until it is answered, refused for good, or was sent as often as it may be."""
        for tried in range(self.retries + 1):
            last = tried == self.retries
            try:
                status, after, found = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as problem:
                if last:
                    why = f"{_why(problem)}; check that it is running"
                    raise ServiceError(f"{self.address} cannot be reached: {why}.") from None
                after = None
            else:
                if status < 400:
                    return found
                if status not in AGAIN or last:
                    raise _refused(status, found)
            time.sleep(_wait(tried, after))
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, str | None, dict[str, Any]]:
        """Status, Retry-After and JSON of one answer; a connection of its own, so that threads may share a client."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = kind(self._host, self._port, timeout=self.timeout)
        try:
            connection.request(method, self._before + path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        return answer.status, answer.headers.get("Retry-After"), found if isinstance(found, dict) else {}


def read_token(path: Path) -> str:
    """The token that clients send: the first line of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    token = lines[0].strip() if lines else ""
    if not token or not token.isascii() or not token.isprintable():
        raise SettingsError(f"{path} does not begin with a token: write a line of ASCII letters and digits into it.")
    return token


def _rows(events: Events | None) -> list[dict[str, Any]] | None:
    """Events as the service takes them."""
    if events is None:
        return None
    try:
        return [dict(e) if isinstance(e, Mapping) else dict(zip(EVENT, e, strict=True)) for e in events]
    except (TypeError, ValueError):
        raise DataError("an event must be (subject, relation, object, time), or a dict of these names.") from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refused(status: int, found: Mapping[str, Any]) -> BridgeMemError:
    """The service's own sentence, as the error that the library itself would raise."""
    said = str(found.get("error") or f"the service answered with {status}.")
    kind = {404: NotFoundError, 422: DataError}.get(status)
    problem = ServiceError(said, status) if kind is None else kind(said)
    problem.suggestions = tuple(found.get("suggestions") or ())
    return problem


def _why(problem: Exception) -> str:
    return str(getattr(problem, "strerror", None) or problem or type(problem).__name__).rstrip(".")


def _wait(tried: int, after: str | None) -> float:
    """Seconds until the next try: what the service asks for, else doubled each time; spread, so that not all come at
    once."""
    asked = float(after) if after is not None and after.isdecimal() and len(after) < 6 else FIRST_WAIT * 2**tried
    return min(asked, LONGEST_WAIT) * random.uniform(1.0, 1.25)
