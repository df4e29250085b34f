"""Corpora for the engines' tests: logs as files of every kind, and what the in-memory path makes of them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import torch

from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import open_log
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.memory.dyads import DyadMemory
from bridgemem.outofcore.mined import Mined
from builders import log_of

HEADING = ("subject", "relation", "object", "time")


def columns_of(events: EventLog) -> dict[str, np.ndarray]:
    values = (events.subject, events.relation, events.object, events.step)
    return dict(zip(HEADING, values, strict=True))


def write_parquet(path: Path, columns: Mapping[str, Sequence[object] | np.ndarray]) -> Path:
    with duckdb.connect() as connection:
        connection.register("block", {name: np.asarray(values) for name, values in columns.items()})
        connection.execute(f"COPY (FROM block) TO '{path}' (FORMAT parquet)")
    return path


def write_files(folder: Path, events: EventLog, files: int = 3) -> list[Path]:
    """The log as several Parquet files, in its order."""
    columns = columns_of(events)
    cuts = np.linspace(0, len(events), files + 1).astype(int)
    return [
        write_parquet(folder / f"part-{i}.parquet", {name: c[cuts[i] : cuts[i + 1]] for name, c in columns.items()})
        for i in range(files)
    ]


def write_text(path: Path, rows: Sequence[Sequence[object]], separator: str = ",") -> Path:
    text = "".join(separator.join(map(str, row)) + "\n" for row in [HEADING, *rows])
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def awkward_log(seed: int, hot: int = 0, n: int = 400) -> EventLog:
    """Ties, duplicates, self loops and pairs that never meet; and one pair with that many events more.

    The last entity and the last relation occur, so that sizes found from the data are those of the log.
    """
    rng = np.random.default_rng(seed)
    rows = np.stack(
        [
            (9 * rng.random(n) ** 2).astype(np.int64),
            rng.integers(4, size=n),
            (9 * rng.random(n) ** 2).astype(np.int64),
            rng.integers(90, size=n),
        ],
        axis=1,
    )
    rows[: n // 10] = rows[n // 10 : 2 * (n // 10)]
    rows[0] = (9, 4, 9, 3)
    many = np.stack(
        [np.full(hot, 2), rng.integers(5, size=hot), np.full(hot, 7), np.sort(rng.integers(90, size=hot))], axis=1
    )
    return log_of(np.concatenate([rows, many]).tolist(), 10, 5)


def assert_same_as_in_memory(mined: Mined, events: EventLog, settings: Settings) -> None:
    """Counts, prior, examples, index and events are bit for bit those of the in-memory path."""
    space = TokenSpace.of(settings, events.n_relations)
    examples = mine(events, space, settings)
    assert mined.about["events"] == len(events)
    assert mined.about["examples"] == len(examples)
    assert torch.equal(mined.counts.counts, CountTable.of(examples, space).counts)
    assert torch.equal(mined.log_prior, log_prior(events))
    if len(examples) <= settings.max_examples:
        for name in ("tokens", "target", "step"):
            found, expected = getattr(mined.examples, name), getattr(examples, name)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
    assert_same_index(mined, events)
    log = open_log(mined.folder)
    for name in ("subject", "relation", "object", "step"):
        assert np.array_equal(getattr(log, name), getattr(events, name)), name
    assert log.fingerprint == events.fingerprint


def assert_same_index(mined: Mined, events: EventLog) -> None:
    memory = DyadMemory.build(events)
    actor, candidate = memory.parties()
    (part,) = mined.segments.parts
    assert np.array_equal(part.pairs, (actor * events.n_entities + candidate).numpy())
    for name in ("step", "relation", "direction"):
        assert np.array_equal(getattr(part, name), getattr(memory, name).numpy())
    assert np.array_equal(part.starts, memory.start.numpy())
    assert mined.about["pairs"] == len(memory.pairs)
    assert mined.about["end"] == events.end
