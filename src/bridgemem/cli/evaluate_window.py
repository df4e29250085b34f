"""`bridgemem evaluate RUN --last 30`: a run measured on some steps after its fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bridgemem.cli.output import emit, say, table
from bridgemem.progress import terminal_progress


class Window(NamedTuple):
    """The first and the last time, or how many steps."""

    start: str | None
    end: str | None
    last: int | None


def evaluate_window(
    run: Path,
    window: Window,
    query: str,
    horizon: int | None,
    *,
    store: str | None,
    cells: int | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Measure who, what or whether on a window of the run's events and of those stored since."""
    from bridgemem.cli.ask import opened_run
    from bridgemem.errors import SettingsError
    from bridgemem.evaluation import window as windows
    from bridgemem.evaluation.comparison import evaluation_table
    from bridgemem.evaluation.what import DIRECTIONS, what_table
    from bridgemem.evaluation.whether import whether_table
    from bridgemem.runs import Run

    if query == "what" and horizon is not None:
        raise SettingsError("--horizon is for who and whether; what is asked of events as they come.")
    predictor, _, remark = opened_run(run, store, None, **how)
    opened = Run(run, **how)
    part = windows.window_of(opened, predictor.past, **window._asdict())
    found: list[Any]
    with terminal_progress(quiet=quiet) as progress:
        if query == "what":
            found = windows.what_in_window(opened, part, progress=progress)
            tables = [what_table(found, direction) for direction in DIRECTIONS]
        elif query == "whether":
            found = windows.whether_in_window(opened, part, horizon=horizon, progress=progress)
            tables = [whether_table(found)]
        else:
            found = windows.evaluate_window(opened, part, cells=cells, progress=progress)
            tables = [evaluation_table(found)]
    start, end = found[0].settings["from"], found[0].settings["to"]

    def text() -> None:
        for made in tables:
            table(made.title, made.header, made.rows)
        say(f"\n{tables[-1].note} Events from {start} to {end}, none of which was fitted on; the figures are not kept.")
        for sentence in filter(None, (opened.remark(), remark)):
            say(sentence)

    result: dict[str, Any] = {"records": found, "split": "test"}
    if query != "whether":
        result |= {"shard": None, "part": None}
    emit(result, as_json, text)
