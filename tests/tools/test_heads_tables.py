"""The page of what and whether: one row a rule and data set, and a row for each kind and horizon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tools.heads import OCCURRENCE, what_over_data, whether_over_data
from tools.publish import AHEAD, publish

from bridgemem.evaluation.records import Record
from bridgemem.evaluation.what import DIRECTIONS, RULES
from bridgemem.evaluation.whether import OccurrenceRecord, write_occurrence_records
from measurements import backbone, campaign

SKILL = {"persistence": [0.1, 0.05, 0.15], "rate": [0.2]}


def what(dataset: str = "icews14") -> list[Record]:
    plain = backbone(dataset=dataset, filter="time", backbone="relations", subset=DIRECTIONS[0])
    rules = [replace(plain, method=f"what:{name}", settings={"model_gain": [0.1, 0.09, 0.11]}) for name in RULES]
    return [*rules, replace(plain, method="what:head", mrr=0.5717, settings={})]


def whether(horizon: int) -> OccurrenceRecord:
    values = (42, 31, 1000, 1000.0, 0.02, 0.0049, 0.1, 0.9, 0.0012, SKILL, {}, {"head": 0.1, "rate": 0.2})
    return OccurrenceRecord("icews14", "f", "test", "pair", horizon, *values)


def test_the_head_stands_after_the_rules_of_its_data_set() -> None:
    rows = what_over_data([*what("wiki"), *what("icews14")], DIRECTIONS[0]).rows
    assert [row[0].partition(", ")[0] for row in rows] == ["icews14"] * 5 + ["wiki"] * 5
    assert rows[4][:2] == ["icews14, relation head", ".5717"]
    assert rows[0][-1] == "+0.1000 [+0.0900, +0.1100]"


def test_horizons_stand_in_their_order_with_what_is_known_of_their_skill() -> None:
    rows = whether_over_data([whether(14), whether(1)]).rows
    assert [row[1] for row in rows] == ["1", "14"]
    assert rows[0][5:7] == ["+0.100 [+0.050, +0.150]", "+0.200"]


def test_the_page_is_written_where_anything_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    publish(campaign(), tmp_path)
    assert not (tmp_path / AHEAD).exists()
    write_occurrence_records(tmp_path / OCCURRENCE, [whether(7)])
    publish([*campaign(), *what()], tmp_path)
    page = (tmp_path / AHEAD).read_text()
    assert "relation head" in page
    assert "seen pair interacts" in page
