"""The table of a model next to what it has to beat: one row a method, each with the model's gain over it."""

from __future__ import annotations

from typing import Any

import pytest

from bridgemem.evaluation.comparison import evaluation_table, held_out_table
from bridgemem.evaluation.result import Evaluation
from bridgemem.residuals.learning import HeldOut
from measurements import backbone, learned, residual


def naive(model: str, **changed: Any) -> Any:
    return backbone(backbone="most-recent", settings={"model": model, "model_gain": [0.3, 0.2, 0.4]}, **changed)


def test_every_method_has_one_row_whatever_it_was_selected_under() -> None:
    under = ("raw", "static", "time")
    own = [backbone(filter=f) for f in under]
    own += [residual(filter=f, selected_by=s) for f in under for s in ("static", "time")]
    shown = evaluation_table([*own, *(naive("bridgemem", filter=f) for f in under)])
    assert [row[0] for row in shown.rows] == ["most-recent", "cenet", "cenet + bridgemem"]
    assert shown.rows[0][-1] == "+0.3000 [+0.2000, +0.4000]"
    assert shown.rows[-1][-1] == ""
    assert shown.note == "Forecasts use cenet + bridgemem."


@pytest.mark.parametrize("model", ["bridgemem", "learned"])
def test_gains_are_those_of_the_residual_that_forecasts_use(model: str) -> None:
    gains = {"bridgemem": {"mrr": [0.1, 0.0, 0.2]}, "learned": {"mrr": [0.2, 0.1, 0.3]}}
    over = {"model": "learned", "model_gain": [0.1, 0.05, 0.15]} if model == "learned" else {}
    own = [backbone(), residual(gain=gains["bridgemem"], settings=over), learned(gain=gains["learned"])]
    rows = {row[0]: row[-1] for row in evaluation_table([*own, naive(model)]).rows}
    assert rows["cenet"].startswith("+0.2000" if model == "learned" else "+0.1000")
    assert rows["cenet + bridgemem"] == ("+0.1000 [+0.0500, +0.1500]" if model == "learned" else "")


def test_the_note_says_why_a_residual_is_used_or_that_none_is() -> None:
    both = [backbone(), residual(), learned(), naive("learned")]
    assert evaluation_table(both).note.endswith("cenet + learned, the residual that ranked better on later validation.")
    off = residual(settings={"lambda": 0.0, "gate": "uncertain", "tau": 100.0})
    assert evaluation_table([backbone(), off, naive("bridgemem")]).note == "Forecasts use cenet alone."


def test_the_fit_shows_the_gain_over_its_own_backbone() -> None:
    held = HeldOut(50, 0.3, 0.31, 0.32, (0.01, 0.005, 0.015), {}, (0.02, 0.01, 0.03))
    rows = {row[0]: row[-1] for row in held_out_table(held, "cenet", held.better).rows}
    assert rows["cenet"] == "+0.0200 [+0.0100, +0.0300]"


def test_some_of_the_records_have_a_table_too() -> None:
    assert evaluation_table([backbone(filter="raw")]).rows == []
    assert [row[0] for row in evaluation_table([backbone()]).rows] == ["cenet"]
    assert Evaluation(()).table().rows == []
    assert "cenet + bridgemem" in str(Evaluation((backbone(), residual())))
