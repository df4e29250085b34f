"""How the heads are fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bridgemem.events.dataset import Dataset
from bridgemem.forecasting import heads
from bridgemem.forecasting.occurrence import Kind, Occurrence, OccurrenceSettings
from bridgemem.forecasting.relations import RelationSettings
from builders import small_world

QUICK = RelationSettings(hidden=8, queries=300, epochs=1), OccurrenceSettings(hidden=8, rows=2000, epochs=1, dates=4)

USUAL = np.array([0.5, 0.6, 0.4, 0.5])


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Kind, int]]:
    """The kind of every fit of hazards that is made, and how many times the usual epochs it took."""
    made: list[tuple[Kind, int]] = []
    fit = heads.fit_hazard

    def noted(watched: Any, settings: OccurrenceSettings, *, seed: int, longer: int) -> Any:
        made.append((watched.kind, longer))
        return fit(watched, settings, seed=seed, longer=longer)

    monkeypatch.setattr(heads, "fit_hazard", noted)
    return made


def test_a_kind_is_fitted_longer_where_later_validation_gains_by_it(
    lengths: list[tuple[Kind, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Occurrence] = []

    def stated(head: Occurrence, kind: Kind, *rest: Any) -> tuple[tuple[()], list[np.ndarray]]:
        seen.append(head)
        long = head is not seen[0]
        return (), [{"pair": USUAL - 0.2 * long, "triple": USUAL + 0.2 * long, "role_relation": USUAL}[kind]]

    monkeypatch.setattr(heads, "_stated", stated)
    made = heads.fit_heads(small_world().dataset, *QUICK)
    assert made.note.longer == ("pair",)
    assert sorted(lengths[-3:]) == [("pair", heads.LONGER), ("role_relation", 1), ("triple", 1)]


@pytest.mark.parametrize(
    ("loss", "gains"),
    [
        ([USUAL - 0.1], True),
        ([USUAL - 0.1, USUAL + 0.01], True),
        ([USUAL - 0.1, USUAL + 0.2], False),  # lost further ahead
        ([USUAL - np.array([0.3, -0.2, 0.2, -0.1])], False),  # as may be by chance
        ([USUAL + 0.1], False),
    ],
)
def test_a_gain_is_one_beyond_chance_and_over_all_horizons(loss: list[np.ndarray], gains: bool) -> None:
    assert heads._gains([USUAL] * len(loss), loss) == gains


def test_nothing_is_fitted_longer_where_no_gain_could_be_told(lengths: list[tuple[Kind, int]]) -> None:
    events = small_world().dataset.known
    for steps, longer in ((2, 0), (8, 3)):  # of validation, the later 40 % of which are measured on
        lengths.clear()
        made = heads.fit_heads(Dataset("short", events, events.end - steps), *QUICK)
        assert [times for _, times in lengths[:6]].count(heads.LONGER) == longer
        assert made.note.whether["pair"]


def test_two_dates_tell_no_gain() -> None:
    assert not heads._gains([USUAL[:2]], [USUAL[:2] - 0.1])
    assert not heads._gains([], [])
