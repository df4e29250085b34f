"""AdminClient: what the operator of a service may ask of it, with the admin token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bridgemem.client.sending import EVENT, BaseClient, given


class AdminClient(BaseClient):
    """The requests that need the admin token."""

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
        """Permanently remove events before a time or of a source; needs the admin token.

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
        return self.post("/v1/prune", given({"before": before, "source": source}))

    def erase(self, name: str) -> dict[str, Any]:
        """Permanently remove every event that names an entity or relation; needs the admin token.

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
