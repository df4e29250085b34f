"""The day of the week is read where a step is a day, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bridgemem.events.clock import DAY, DAYS_OF_WEEK, Clock
from bridgemem.forecasting.occurrence import Keys, features
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from builders import random_log


@pytest.mark.parametrize(
    ("clock", "read"),
    [(Clock("date", 0, DAY), True), (Clock("date", 0, 7 * DAY), False), (Clock(), False)],
    ids=["days", "weeks", "numbers"],
)
def test_weekdays_are_read_of_days_alone(clock: Clock, read: bool) -> None:
    events = replace(random_log(1), clock=clock)
    step = torch.arange(20, 27)
    keys = Keys("pair", torch.zeros_like(step), torch.zeros_like(step), torch.ones_like(step), step)
    week = features(keys, PastTallies(Past(events)))[:, -DAYS_OF_WEEK:]
    assert week.sum(1).tolist() == [float(read)] * DAYS_OF_WEEK
