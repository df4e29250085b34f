"""How the heads are fitted."""

from __future__ import annotations

from typing import Any

import pytest

from bridgemem.forecasting import heads
from bridgemem.forecasting.occurrence import Kind, Occurrence, OccurrenceSettings
from bridgemem.forecasting.relations import RelationSettings
from builders import small_world

QUICK = RelationSettings(hidden=8, queries=300, epochs=1), OccurrenceSettings(hidden=8, rows=2000, epochs=1, dates=4)


def test_a_kind_is_fitted_longer_where_later_validation_gains_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[Kind, int]] = []
    fit = heads.fit_hazard

    def noted(watched: Any, settings: OccurrenceSettings, *, seed: int, longer: int) -> Any:
        lengths.append((watched.kind, longer))
        return fit(watched, settings, seed=seed, longer=longer)

    seen: list[Occurrence] = []

    def stated(head: Occurrence, kind: Kind, *rest: Any) -> tuple[tuple[()], float]:
        seen.append(head)
        long = head is not seen[0]
        return (), {"pair": 1.0 - long, "triple": 1.0 + long, "role_relation": 1.0}[kind]

    monkeypatch.setattr(heads, "fit_hazard", noted)
    monkeypatch.setattr(heads, "_stated", stated)
    made = heads.fit_heads(small_world().dataset, *QUICK)
    assert made.note.longer == ("pair",)
    assert sorted(lengths[-3:]) == [("pair", heads.LONGER), ("role_relation", 1), ("triple", 1)]
