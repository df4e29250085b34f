"""Ids of removed events: no id is given twice, so a missing id is a removed event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import duckdb


NONE_REMOVED = np.zeros((0, 2), np.int64)


def last_removal(cursor: duckdb.DuckDBPyConnection) -> int:
    """The number of the last removal; 0 where nothing was removed."""
    return cursor.execute("SELECT coalesce(max(id), 0) FROM removals").fetchall()[0][0]


def removed_ranges(cursor: duckdb.DuckDBPyConnection) -> np.ndarray:
    """The ids that were given and are no longer there, as ranges in order: the first and the last of each, [n, 2]."""
    found = cursor.execute(
        "SELECT id + 1, next - 1 FROM (SELECT id, lead(id) OVER (ORDER BY id) AS next FROM (SELECT 0 AS id UNION ALL "
        "SELECT id FROM events UNION ALL SELECT coalesce(max(first + size), 1) FROM batches)) WHERE next > id + 1 "
        "ORDER BY id"
    ).fetchall()
    return np.array(found, np.int64).reshape(-1, 2)


def in_ranges(ids: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Which ids, int64 [n], lie in one of several ranges in order, int64 [r, 2]; bool [n]."""
    if not len(ranges):
        return np.zeros(len(ids), bool)
    place = np.searchsorted(ranges[:, 0], ids, side="right") - 1
    return (place >= 0) & (ids <= ranges[place, 1])
