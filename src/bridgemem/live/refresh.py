"""Refresh: a run brought up to date with an event store, without training its backbone or choosing again.

Everything known now, test split included, becomes what the run was fitted on. The count table is not counted again: the
pairs to which something was added, or from which something was taken back, are counted as they were and as they are,
and the difference is merged in. The reader goes on from its weights for a few epochs ("warm") or is fitted anew. The
backbone stays frozen, and selection and calibration stay those that the run's own validation made.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bridgemem import __version__
from bridgemem.config import Count, Settings, check
from bridgemem.errors import DataError
from bridgemem.evaluation.card import write_card
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.packs import pack
from bridgemem.events.queries import renumbered
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.reader import Reader, ReaderTraining
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.calibration import FILE as CALIBRATION
from bridgemem.live.eventstore import EventStore, Reading
from bridgemem.live.forecasting import MERGED, UPDATED, merged_ids
from bridgemem.memory.overlay import Overlay
from bridgemem.memory.timeline import changes
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import CONTINUES, HEADS, REFRESHES, Refreshed, Run, write_model
from bridgemem.storage.files import link_or_copy, read_config, write_json
from bridgemem.storage.tensors import write_tensors
from bridgemem.storage.whole import reserved_free, whole_folder

WARM_EPOCHS = 2


def refresh(
    run: Run,
    store: EventStore,
    out: Path | str | None = None,
    *,
    warm: bool = True,
    epochs: int | None = None,
    device: str = "cpu",
    replace_out: bool = False,
    until: int | None = None,
    progress: Progress = SILENT,
) -> Refreshed:
    """A new run folder (the next free number after the run's name, unless named) that knows what the store knows.

    epochs: of the reader; the few of a warm start, or as many as the run was fitted with. until: of the store, only
    events before this step.
    """
    target = next_name(run) if out is None else Path(out)
    check("epochs", epochs, Count | None)
    with reserved_free(target, replace_out):
        epochs = epochs or (WARM_EPOCHS if warm else max(run.config.epochs, 1))
        before = run.dataset
        reading, fresh, taken = all_known(store, run, before.events, until)
        if not fresh and not taken and before.test_start is None:
            raise DataError(
                f"{store.path} holds nothing that {run.folder} does not know; add events first, or keep the run."
            )
        after = Dataset(before.name, reading.events, before.valid_start)
        began = time.perf_counter()
        train = _brought_up(run.transitions("train"), before.train, after.train)
        counted = _brought_up(run.transitions("known"), before.known, after.events)
        reader = _refitted(counted, after.events, warm, epochs, run.config.seed, device, progress)
        fitted = Transitions(run.settings, counted.log_pi, counted.counts, reader.to("cpu"))
        old, new = before.events, after.events
        names = (new.n_entities - old.n_entities, new.n_relations - old.n_relations)
        counts = (fresh, taken, len(new), *names, reading.at.batches, reading.at.retractions)
        how = ("warm" if warm else "anew", epochs, datetime.now(UTC).isoformat(timespec="seconds"))
        origin = (store.path.name, _chosen_until(run), run.origin)
        made = Refreshed(str(target), run.folder.name, *counts, *how, *origin)
        config = replace(
            run.config,
            fingerprint=after.events.fingerprint,
            test_start=-1,
            device=device,
            epochs=run.config.epochs if warm else epochs,
            refit_seconds=time.perf_counter() - began,
            version=__version__,
        )
        parts = {"train": train.tensors(), "known": fitted.tensors()}
        for filter_name in SELECTION_FILTERS:
            run.selection(filter_name)  # refused here where it was edited
        if (heads := run.heads()) is not None:  # they go on as they are: relations that came since are not theirs
            parts["heads"] = heads.tensors()
        for fit_name in run.fit_names():
            parts |= _learned(run, fit_name, after.events.n_relations)
        with whole_folder(target, replace_out) as aside:
            write_model(aside, {**read_config(run.folder), "run": asdict(config)}, after, parts)
            _write_rest(run, aside, after, reading.ids)
            write_json(aside / REFRESHES, [*map(asdict, run.refreshes()), {**asdict(made), "run": target.name}])
            write_card(Run(aside))
        return made


def all_known(store: EventStore, run: Run, before: EventLog, until: int | None = None) -> tuple[Reading, int, int]:
    """All that is known now, how many of its events the run's data lacks, and how many of those were taken back.

    until: of the store, only events before this step.
    """
    base, known = run.past_of(before).events, merged_ids(run, before)
    if isinstance(base, Overlay):  # events that the run was updated with, which become part of its data
        known = np.concatenate([known, np.full(len(base.delta), UPDATED)])[base.order]
    store.follow(base, run.origin)
    reading = store.read(base, known=known, until=until)
    fresh = int((~np.isin(reading.ids, [-1, *known])).sum())
    return reading, fresh + len(base) - len(before), len(base) + fresh - len(reading.events)


def _chosen_until(run: Run) -> int:
    """Where the validation part ended that a run's selection was made on."""
    earlier = run.refreshes()
    return earlier[0].chosen_until if earlier else run.config.test_start


def chosen_on(run: Run, dataset: Dataset) -> EventLog:
    """Train and validation of the run that was fitted, found again among the events of one that was refreshed."""
    until, events, notes = _chosen_until(run), dataset.events, run.refreshes()
    ids, earlier = merged_ids(run, events), run.continues()
    own = ids == -1 if earlier is None else (ids >= -1) & (ids <= earlier.last)
    fitted = events.take(own).within(
        events.n_entities - sum(note.new_entities for note in notes),
        events.n_relations - sum(note.new_relations for note in notes),
    )
    return fitted if until < 0 else fitted.prefix(until)


def next_name(run: Run) -> Path:
    """The run's name with the next free number after it: run, run-2, run-3.

    A number at the end counts on only after the name of the run that was fitted: icews05-15 becomes icews05-15-2.
    """
    folder, notes = run.folder, run.refreshes()
    stem, _, number = folder.name.rpartition("-")
    first = notes[0].source if notes else run.continues() and stem
    if not (first and stem == first and number.isdecimal()):
        stem, number = folder.name, "1"
    following = int(number) + 1
    while (folder.parent / f"{stem}-{following}").exists():
        following += 1
    return folder.parent / f"{stem}-{following}"


# ---- counts and reader ---------------------------------------------------------------------------------------------


def merged_counts(
    counts: CountTable, before: EventLog, after: EventLog, space: TokenSpace, settings: Settings
) -> CountTable:
    """The counts of `before`, given as a table of `space`, turned into those of `after`.

    Examples are made pair by pair, so the pairs of whatever was added or taken back are all that has to be counted.
    """
    old, new = touched(before, after)
    for sign, part in ((-1, old), (1, new)):
        counts = counts.merge(CountTable.of(mine(part, space, settings), space), sign)
    return counts


def touched(before: EventLog, after: EventLog) -> tuple[EventLog, EventLog]:
    """All events of the pairs whose events differ between two logs with the same first ids: of each log its own."""
    names = ("subject", "relation", "object", "step")
    rows = [np.concatenate([getattr(before, name), getattr(after, name)]) for name in names]
    sign = np.where(np.arange(len(rows[0])) < len(before), -1, 1)
    order = np.lexsort(rows)
    kind = np.empty(len(order), np.int64)
    kind[order] = changes(*(column[order] for column in rows)).cumsum() - 1
    differs = np.bincount(kind, weights=sign) != 0
    changed = np.unique(_pairs(rows[0], rows[2])[differs[kind]])
    parts = []
    for log in (before, after):
        at = np.flatnonzero(np.isin(_pairs(log.subject, log.object), changed))
        columns = log.subject[at], log.relation[at], log.object[at], log.step[at]
        parts.append(EventLog(*columns, after.entities, after.relations, after.clock))
    return parts[0], parts[1]


def _pairs(subject: np.ndarray, object_: np.ndarray) -> np.ndarray:
    """One number for a pair, whichever way round."""
    first, second = np.minimum(subject, object_).astype(np.int64), np.maximum(subject, object_)
    return (first << 32) | second


def widen_transitions(transitions: Transitions, n_relations: int, log_pi: Tensor) -> Transitions:
    """The same transitions among more relations, with another prior; nothing is known of the new ones."""
    settings, old = transitions.settings, transitions.space
    space = TokenSpace.of(settings, n_relations)
    directed = _directed(old.n_relations, n_relations)
    with torch.random.fork_rng(devices=[]):
        reader = Reader(space, log_pi, settings.width, settings.hidden)
    state = {name: tensor.clone() for name, tensor in transitions.reader.state_dict().items()}
    state["log_prior"] = log_pi.float()
    relation = state["relation.weight"]
    # an unknown relation reads as the average one, and is foretold as its prior says
    unknown = relation.mean(0).expand(n_relations - len(relation), -1)
    state["relation.weight"] = torch.cat([relation, unknown])
    for name in ("head.3.weight", "head.3.bias"):
        state[name] = (
            state[name].new_zeros((space.n_directed, *state[name].shape[1:])).index_copy_(0, directed, state[name])
        )
    reader.load_state_dict(state)
    return Transitions(settings, log_pi, transitions.counts.widened(space), reader.eval())


def _directed(old: int, new: int) -> Tensor:
    """Where the directed relations of a smaller vocabulary lie in a larger one, int64 [2 old]."""
    return renumbered(torch.arange(2 * old), old, new)


def _brought_up(transitions: Transitions, before: EventLog, after: EventLog) -> Transitions:
    """Transitions with the prior and the counts of a later log, and the reader as it was."""
    wide = widen_transitions(transitions, after.n_relations, log_prior(after))
    counts = merged_counts(wide.counts, before, after, wide.space, wide.settings)
    return Transitions(wide.settings, wide.log_pi, counts, wide.reader)


def _refitted(
    transitions: Transitions, events: EventLog, warm: bool, epochs: int, seed: int, device: str, progress: Progress
) -> Reader:
    """The reader trained on all events, from its own weights or from new ones."""
    settings, space = transitions.settings, transitions.space
    with progress.task("mining transitions"):
        examples = mine(events, space, settings).sample(settings.max_examples, seed)
    training = ReaderTraining(examples, transitions.log_pi, settings, seed, device)
    if warm:
        training.reader.load_state_dict(transitions.reader.state_dict())
    return training.train(epochs, progress)


# ---- the folder ----------------------------------------------------------------------------------------------------


def _write_rest(run: Run, folder: Path, after: Dataset, ids: np.ndarray) -> None:
    """The events, with their numbers in the store, and what the run keeps as it was."""
    pack(after, folder / "data.npz")
    write_tensors(folder / MERGED, {"ids": torch.from_numpy(ids)})
    for home in run.backbone_homes():
        link_or_copy(run.folder / home, folder / home)
    for name in ("selection.json", "epochs.json", HEADS, CALIBRATION, CONTINUES):
        if (run.folder / name).is_file():
            shutil.copyfile(run.folder / name, folder / name)


def _learned(run: Run, filter_name: str, n_relations: int) -> dict[str, dict[str, Tensor]]:
    """The tensors of a learned residual, if the run has one, with the average relation in place of each new one."""
    learned = run.learned(filter_name)
    if learned is None:
        return {}
    tensors = learned.tensors()
    weight = tensors["relation.weight"]
    wide = weight.mean(0).repeat(2 * n_relations, 1)
    wide[_directed(len(weight) // 2, n_relations)] = weight
    return {f"learned.{filter_name}": {**tensors, "relation.weight": wide}}
