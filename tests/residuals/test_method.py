"""Methods: one identity for what ranks, and one column for each filter."""

from __future__ import annotations

from bridgemem.ranking.filters import FILTERS
from bridgemem.residuals.method import BACKBONE, Method


def test_a_method_is_named_by_its_residual_and_by_whose_choice_it_uses() -> None:
    assert str(BACKBONE) == "backbone"
    assert str(Method("learned", "static")) == "learned.static"


def test_every_method_and_filter_has_a_column_of_its_own() -> None:
    methods = [BACKBONE, *(Method(name, by) for name in ("bridgemem", "learned") for by in ("static", "time"))]
    columns = {method.column(f) for method in methods for f in FILTERS}
    assert len(columns) == len(methods) * len(FILTERS)
    assert {"rank_time.backbone", "rank_static.bridgemem.time"} <= columns
