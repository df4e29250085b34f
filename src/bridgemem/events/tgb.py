"""TGB: the temporal knowledge graphs of the Temporal Graph Benchmark, tkgl-*, from their edge lists under its split."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.events.readers.text import Dialect, sample
from bridgemem.events.times import epoch_parts
from bridgemem.progress import SILENT, Progress

EDGE_LIST = re.compile(r"(tkgl-[a-z0-9]+)_edgelist(?:_v[0-9]+)?\.csv(?:\.gz)?")
# the shares of validation and test, by TGB's own rule
SHARES = {"tkgl-yago": (0.1, 0.1)}
OTHERS = (0.15, 0.15)


def is_edge_list(source: object) -> bool:
    """Whether this is an edge list of TGB, or a folder that holds one, as TGB's package downloads it."""
    return isinstance(source, str | Path) and _edge_list(Path(source)) is not None


def tgb_name(source: Path | str) -> str:
    """The name that TGB gives a data set, such as tkgl-smallpedia."""
    path = _edge_list(Path(source))
    found = EDGE_LIST.fullmatch(path.name) if path else None
    if found is None:
        raise DataError(f"{source} is not a TGB edge list; give tkgl-NAME_edgelist.csv or the folder that holds it.")
    return found[1]


def load_edge_list(source: Path | str, options: ReadOptions | None = None, *, progress: Progress = SILENT) -> Dataset:
    """An edge list under TGB's split, with TGB's ids: entities and relations in the order in which the file has them.

    The columns are time, head, tail and relation, whatever they are called. The split is TGB's own: quantiles of the
    times of all events. Relations that are whole numbers keep their order, as in TGB.

    Raises:
        DataError: A row is none, or a part of the split has no events.
        SettingsError: An option of reading is given; the layout has none.
    """
    if options is not None and options != ReadOptions():
        raise SettingsError(
            f"{source} is an edge list of TGB, whose columns and steps are known; leave such options out."
        )
    name = tgb_name(source)
    path = _edge_list(Path(source))
    assert path is not None
    lines = sample(path)
    heading = Dialect(",", 0).fields(lines[0][1]) if lines else []
    if len(heading) < 4:
        raise DataError(f"{path} is not a TGB edge list: expected the columns time, head, tail and relation.")
    time, head, tail, relation = heading[:4]
    how = ReadOptions(head, relation, tail, time, format="plain", time_format="number", na=())
    reading = read_events(path, how, strict=True, progress=progress)
    events = _by_appearance(reading.events, reading.lines)
    clock = events.clock
    times = clock.origin + np.array([events.start, events.end - 1]) * clock.unit
    if epoch_parts(*times.tolist()) == 1:
        events = replace(events, clock=Clock("date", clock.origin, clock.unit))
    return _split(name, events)


def _edge_list(path: Path) -> Path | None:
    if path.is_dir():
        found = sorted(each for each in path.glob("tkgl-*_edgelist*.csv*") if EDGE_LIST.fullmatch(each.name))
        return found[-1] if found else None  # the latest version
    return path if EDGE_LIST.fullmatch(path.name) and path.is_file() else None


def _by_appearance(events: EventLog, lines: np.ndarray) -> EventLog:
    """The events with entities numbered as they first occur in the file, head before tail; so are named relations."""
    order = np.argsort(lines, kind="stable")
    pairs = np.stack([events.subject, events.object], axis=1)[order].ravel()
    place, entities = _renumbered(pairs, events.entities)
    subject, object_ = place[events.subject], place[events.object]
    relation, relations = events.relation, events.relations
    if not relations.numbers:
        by_file, relations = _renumbered(relation[order], relations)
        relation = by_file[relation]
    return EventLog(subject, relation, object_, events.step, entities, relations, events.clock)


def _renumbered(ids: np.ndarray, names: Vocabulary) -> tuple[np.ndarray, Vocabulary]:
    """The new id of each old one by first occurrence: int64 [n]; and the names in that order."""
    used, first = np.unique(ids, return_index=True)
    in_order = used[np.argsort(first)]
    place = np.zeros(len(names), np.int64)
    place[in_order] = np.arange(len(in_order))
    return place, Vocabulary(names.kind, tuple(names.names[i] for i in in_order.tolist()))


def _split(name: str, events: EventLog) -> Dataset:
    """TGB's split: train up to the quantile of the times that leaves the two shares, validation up to the next."""
    valid, test = SHARES.get(name, OTHERS)
    # each event counts twice there, once for each direction, which moves a quantile between two steps
    times = events.clock.origin + events.step.astype(np.int64) * events.clock.unit
    ends = np.quantile(np.repeat(times, 2), [1 - valid - test, 1 - test])
    later = [events.step[times > end] for end in ends]
    if not all(map(len, later)):
        raise DataError(f"{name} has too few time steps for the split of TGB; give the whole edge list.")
    return Dataset(name, events, int(later[0][0]), int(later[1][0]))
