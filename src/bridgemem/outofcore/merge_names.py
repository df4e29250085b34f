"""Aliases in a corpus: its events get the ids of canonical names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bridgemem.events.aliases import Aliases, canonical

if TYPE_CHECKING:
    import duckdb


def merge_names(db: duckdb.DuckDBPyConnection, names: Sequence[str], aliases: Aliases, kind: str) -> dict[str, Any]:
    """Number the events again, and keep the names that are left; what was found, as plain JSON.

    names: of the ids so far. kind: TABLE or VIEW, what the events are; a table they are after it.
    """
    place, left = canonical(names, aliases)
    both = "SELECT subject AS id FROM events UNION ALL SELECT object FROM events"
    counts = dict(db.execute(f"SELECT id, count(*) FROM ({both}) GROUP BY id").fetchall())
    merged = [[name, aliases[name], counts[i]] for i, name in enumerate(names) if name in aliases and i in counts]
    db.execute(
        "CREATE TEMP TABLE place AS SELECT unnest(?::INTEGER[]) AS old, unnest(?::INTEGER[]) AS new",
        [list(range(len(place))), place.tolist()],
    )
    db.execute(
        """CREATE TABLE renumbered AS
        SELECT ord, step, s.new AS subject, o.new AS object, relation, s.new = o.new AND subject <> object AS loop
        FROM events JOIN place AS s ON s.old = subject JOIN place AS o ON o.old = object"""
    )
    loops = db.execute("SELECT count(*) FROM renumbered WHERE loop").fetchall()[0][0]
    db.execute(f"DROP {kind} events")
    db.execute("ALTER TABLE renumbered DROP COLUMN loop")
    db.execute("ALTER TABLE renumbered RENAME TO events")
    ids = [list(left), list(range(len(left)))]
    db.execute("CREATE OR REPLACE TABLE entity AS SELECT unnest(?::VARCHAR[]) AS name, unnest(?::BIGINT[]) AS id", ids)
    return {"n_entities": len(left), "merged": {"names": merged, "rows": len(aliases), "loops": loops}}
