"""Little data is fitted as far as it goes, and what it does not go far enough for is told."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bridgemem.runs import Run
from commands import bridgemem, write_rows

STEPS = {"second": timedelta(seconds=37), "day": timedelta(hours=8), "year": timedelta(days=122)}
NO_CHOICE = "too few to choose a residual on (20 at least); forecasts use the backbone alone."
NO_LEARNED = "too few to compare residuals on (20 at least)"


def random_rows(count: int, unit: str) -> list[tuple[str, str, str, str]]:
    draw, rows = random.Random(count), []
    for place in range(count):
        when = datetime(1960, 1, 1) + place * STEPS[unit]
        time = {"second": when.isoformat(), "day": when.date().isoformat(), "year": str(when.year)}[unit]
        subject, object_ = draw.sample(range(10), 2)
        rows.append((f"actor {subject}", f"relation {draw.randrange(5)}", f"actor {object_}", time))
    return rows


@pytest.mark.parametrize(
    ("count", "unit", "told"),
    [(33, "day", (NO_CHOICE, NO_LEARNED)), (100, "second", (NO_LEARNED,)), (300, "year", (NO_LEARNED,))],
)
def test_few_events_fall_back_to_what_they_support_and_say_so(
    count: int, unit: str, told: tuple[str, ...], tmp_path: Path
) -> None:
    path, run = write_rows(tmp_path / "few.csv", random_rows(count, unit)), tmp_path / "run"
    fitted = bridgemem("fit", "-d", path, "-o", run, "-q")
    assert fitted.code == 0, fitted.err
    assert all(sentence in fitted.err for sentence in told)
    assert (Run(run).selection("time").choice.lam == 0) or NO_CHOICE not in told
    assert ("use alone" in fitted.out) == (NO_CHOICE in told)
    assert Run(run).fit_names() == ()
    assert Run(run).unfinished is None
    assert bridgemem("evaluate", run, "-q").code == 0
    assert bridgemem("forecast", run, "--subject", "actor 1", "--relation", "relation 1").code == 0
    assert bridgemem("audit", run, "-q").code == 0
