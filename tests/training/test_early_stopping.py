"""Early stopping: the best epoch is told, and training ends when patience does."""

from __future__ import annotations

import math

import pytest

from bridgemem.training.early_stopping import improving


@pytest.mark.parametrize(
    ("losses", "patience", "trained", "best"),
    [
        ([3.0, 2.0, 1.0, 0.5], 2, 4, 4),
        ([3.0, 2.0, 2.5, 2.6, 1.0], 2, 4, 2),
        ([3.0, 2.0, 2.5, 1.0, 1.5], 2, 5, 4),
        ([3.0, 2.9999], 1, 2, 1),
        ([math.nan, math.nan, 1.0], 1, 2, 0),
    ],
)
def test_training_ends_after_as_many_epochs_without_a_gain_as_patience_allows(
    losses: list[float], patience: int, trained: int, best: int
) -> None:
    left = iter(losses)
    found = list(improving(lambda: next(left), most=len(losses), patience=patience, least_gain=0.01))
    assert [number for number, _, _ in found] == list(range(1, trained + 1))
    assert max((number for number, _, better in found if better), default=0) == best
