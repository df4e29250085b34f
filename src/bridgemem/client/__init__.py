"""Client: the service from Python, with retries that never store a batch twice; nothing but the standard library."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from bridgemem.client.admin import AdminClient
from bridgemem.client.sending import EVENT, ServiceError, given, read_token
from bridgemem.errors import DataError

__all__ = ["Client", "ServiceError", "read_token"]

Events = Sequence[Sequence[Any] | Mapping[str, Any]]  # each (subject, relation, object, time) or a dict of these


class Client(AdminClient):
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
        SettingsError: The address is not a URL, or two tokens are given.
        ServiceError: By every method: the service cannot be reached, or refused the request.

    Example:
        >>> client = Client("http://127.0.0.1:8008", retries=0)
        >>> client
        Client('http://127.0.0.1:8008')
    """

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
            assume: Events to answer as if they had happened; none is kept, and `assumed` says what they change.

        Returns:
            The service's JSON answer.

        Example:
            >>> found = client.forecast(data.entities[0], "consult", top=3)
            >>> [candidate["rank"] for candidate in found["candidates"]]
            [1, 2, 3]
        """
        asked = {"subject": subject, "relation": relation, "object": object, "at": at, "horizon": horizon, "top": top}
        return self.post("/v1/forecast", given({**asked, "assume": _rows(assume)}))

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
        return self.post("/v1/what", given({**asked, "assume": _rows(assume)}))

    def partners(
        self,
        actor: str,
        *,
        at: str | int | None = None,
        horizon: int = 1,
        top: int = 10,
        assume: Events | None = None,
    ) -> dict[str, Any]:
        """Rank the next partners of an actor, under any relation.

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
        return self.post("/v1/partners", given({**asked, "assume": _rows(assume)}))

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
        """Forecast whether and when (subject, relation, object) happens; one of them may be left out.

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
        return self.post("/v1/whether", given({**asked, "assume": _rows(assume)}))

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
        return self.post("/v1/outlook", given(asked))

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
        body = given({"queries": [given(query) for query in queries], "top": top, "horizon": horizon})
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
        return self.post("/v1/explain", given(asked))

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
        return self.post("/v1/events", given(body))

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

    def sources(self) -> list[dict[str, Any]]:
        """List the sources of events, with the last key and offset of each.

        Returns:
            The sources.

        Example:
            >>> _ = client.add([(data.entities[0], "consult", data.entities[6], "2030-03-02")], source="feed")
            >>> "feed" in [one["source"] for one in client.sources()]
            True
        """
        return self.get("/v1/sources")["sources"]

    def ledger(self, *, last: int = 20, forecast: int | None = None) -> list[dict[str, Any]]:
        """List issued forecasts and their outcomes.

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
        """Describe the served model and the events it knows.

        Returns:
            The service's JSON answer.

        Example:
            >>> client.model()["backbone"]
            'recurrence'
        """
        return self.get("/v1/model")

    def limits(self) -> dict[str, Any]:
        """Get the limits of one request.

        Returns:
            The service's JSON answer.

        Example:
            >>> client.limits()["events"]
            10000
        """
        return self.get("/v1/limits")

    def entities(self, text: str = "", *, limit: int = 20) -> list[dict[str, Any]]:
        """Find entities by a few letters or words of their names.

        Args:
            text: Letters or words.
            limit: How many.

        Returns:
            The names, the best first.

        Example:
            >>> client.entities(data.entities[0])[0]["name"] == data.entities[0]
            True
        """
        return self.get("/v1/entities", q=text, limit=limit)["names"]

    def relations(self, text: str = "", *, limit: int = 20) -> list[dict[str, Any]]:
        """Find relations by a few letters or words of their names.

        Args:
            text: Letters or words.
            limit: How many.

        Returns:
            The names, the best first.

        Example:
            >>> "consult" in [found["name"] for found in client.relations()]
            True
        """
        return self.get("/v1/relations", q=text, limit=limit)["names"]


def _rows(events: Events | None) -> list[dict[str, Any]] | None:
    """Events as the service takes them."""
    if events is None:
        return None
    try:
        return [dict(e) if isinstance(e, Mapping) else dict(zip(EVENT, e, strict=True)) for e in events]
    except (TypeError, ValueError):
        raise DataError("an event must be (subject, relation, object, time), or a dict of these names.") from None
