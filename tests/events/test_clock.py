"""The cycle that a clock tells of."""

from __future__ import annotations

import pytest

from bridgemem.events.clock import DAY, Clock

HOUR = DAY // 24


@pytest.mark.parametrize(
    ("clock", "steps"),
    [
        (Clock("date", 0, DAY), 7),
        (Clock("date", 0, HOUR), 24),
        (Clock("date", 0, 12 * HOUR), 14),  # a week: a day of two steps has no rhythm to speak of
        (Clock("date", 0, 7 * DAY), 0),
        (Clock("date", 0, 7 * HOUR), 0),
        (Clock("integer", 0, 1), 0),
    ],
)
def test_a_cycle_is_a_week_of_days_or_a_day_of_shorter_steps(clock: Clock, steps: int) -> None:
    assert clock.cycle == steps
