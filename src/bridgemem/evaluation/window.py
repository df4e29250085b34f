"""Window: a model measured on steps after its fit, such as last month.

Nothing is fitted or chosen: the locked selection ranks every query from the events before its step. A window may reach
beyond the data of the fit, into events that were added since; of these, relations that came later are not asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bridgemem.config import Count, check
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.evaluate import all_records, queries_of, read
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.what import evaluate_what
from bridgemem.evaluation.whether import OccurrenceRecord, evaluate_whether
from bridgemem.events.dataset import Dataset
from bridgemem.forecasting.model import Parts
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.selection import SELECTION_FILTERS


def window_of(
    run: Parts,
    past: Past,
    *,
    start: str | int | None = None,
    end: str | int | None = None,
    last: int | None = None,
) -> Dataset:
    """The known events up to the end of a window, which is their test split.

    Args:
        run: What is measured.
        past: All that is known, with the events that were added since the fit.
        start: The first time of the window; that of the first event that was not fitted on when left out.
        end: Its last time; that of the last event when left out.
        last: In place of start: how many steps the window has.
    """
    run.refuse_frozen()
    check("last", last, Count | None)
    if last is not None and start is not None:
        raise SettingsError("give the first time of the window or the number of its steps, not both.")
    own, clock = run.dataset, past.events.clock
    first = own.events.end if own.test_start is None else own.test_start
    known = past.within(past.events.n_entities, own.events.n_relations).events
    if start is not None and end is not None and clock.step(start) > clock.step(end):
        raise SettingsError(f"--from {start} lies after --to {end} (start and end in Python); exchange them.")
    stop = known.end if end is None else min(clock.step(end) + 1, known.end)
    begin = first if start is None and last is None else stop - last if last is not None else clock.step(start or 0)
    if begin < first:
        if first >= known.end:
            raise DataError(
                f"the run was fitted on all events that are known, up to {clock.label(known.end - 1)}: none is left to "
                "measure it on; add later ones with `bridgemem ingest` or `update`."
            )
        most = f", of at most {stop - first:,} steps" if stop > first else ""
        raise DataError(
            f"the run was fitted on the events before {clock.label(first)}, which cannot measure it; choose a window "
            f"from then on{most}."
        )
    if begin >= stop or not len(known.between(begin, stop)):
        raise DataError(
            f"there is no event from {clock.label(begin)} to {end or clock.label(max(stop - 1, begin))}, and the last "
            f"one is at {clock.label(known.end - 1)}; choose an earlier window."
        )
    return Dataset(own.name, known.prefix(stop).take(slice(None)), own.valid_start, begin)


def evaluate_window(
    run: Parts, window: Dataset, *, device: str = "cpu", cells: int | None = None, progress: Progress = SILENT
) -> list[Record]:
    """Metrics of who on a window, under all filters, next to naive forecasters; nothing is written into the run."""
    for name in SELECTION_FILTERS:
        run.selection(name)
    reading = read(run, window, "test", queries_of(window, "test"), device, progress, cells)
    return [_within(one, window) for one in all_records(run, window, "test", reading, device)]


def what_in_window(run: Parts, window: Dataset, *, progress: Progress = SILENT) -> list[Record]:
    """Metrics of what on a window."""
    return [_within(one, window) for one in evaluate_what(run, window, "test", progress)]


def whether_in_window(
    run: Parts, window: Dataset, *, horizon: int | None = None, progress: Progress = SILENT
) -> list[OccurrenceRecord]:
    """What p_event was worth on a window."""
    return [_within(one, window) for one in evaluate_whether(run, window, "test", horizon, progress)]


def _within(record: Any, window: Dataset) -> Any:
    """A record that says which steps it is of."""
    label, start = window.events.clock.label, window.test_start or 0
    told = {"from": label(start), "to": label(window.events.end - 1)}
    return replace(record, settings={**record.settings, **told})
