"""Analysis: parts that make up a whole, relations from both ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table
from bridgemem.studies.analysis import parts_table, relations_table
from measurements import DATASETS, campaign, part, reseeded, residual

CPU = "cpu 2 threads"


def column(table: Table, heading: str) -> dict[str, str]:
    at = table.header.index(heading)
    return {row[0]: row[at] for row in table.rows}


# --- parts -----------------------------------------------------------------------------------------------------------


def shares(table: Table, heading: str) -> float:
    return sum(float(cell.rstrip("%")) for cell in column(table, heading).values() if cell)


def test_a_part_shows_its_share_what_the_backbone_had_and_the_gain() -> None:
    made = [part("support: 0", 250, -0.02, mrr=0.3), part("support: 1-99", 750, 0.05, mrr=0.5)]
    table = parts_table([*made, part("repeat: seen", 1000), residual()], "support", "time")
    assert table.header == ["support", "icews14 share", "backbone MRR", "gain [95 %]"]
    assert table.rows == [
        ["0", "25.0%", ".3200", "-0.0200 [-0.0300, -0.0100]"],
        ["1-99", "75.0%", ".4500", "+0.0500 [+0.0400, +0.0600]"],
    ]


@pytest.mark.parametrize("by", ["support", "uncertainty", "repeat", "recency"])
@pytest.mark.parametrize("name", ["static", "time"])
def test_the_shares_of_all_parts_make_up_the_whole(by: str, name: str) -> None:
    made = campaign()
    # what else may have been recorded of the same data: other devices, seeds, histories, splits and backbones
    parts = [r for r in made if r.subset]
    made += [replace(r, device=CPU) for r in parts] + [replace(r, seed=43, lock="43") for r in parts]
    made += [replace(r, history="frozen") for r in parts] + [reseeded(r, 43) for r in parts]
    made += [replace(r, split="valid") for r in parts] + [replace(r, backbone="recurrence", lock="c") for r in parts]
    table = parts_table(made[::-1], by, name)
    kinds = ("{}, cenet", "{}, recurrence", "{} (valid), cenet")
    headings = [h for h in table.header if h.endswith(" share")]
    assert sorted(headings) == sorted(f"{kind.format(d)} share" for d in DATASETS for kind in kinds)
    for heading in headings:
        assert shares(table, heading) == pytest.approx(100, abs=0.2)


def test_parts_that_a_data_set_lacks_stay_empty() -> None:
    made = [part("support: 0", 10), part("support: 1-99", 30), part("support: 1-99", 10, dataset="wiki")]
    table = parts_table(made, "support", "time")
    assert column(table, "icews14 share") == {"0": "25.0%", "1-99": "75.0%"}
    assert column(table, "wiki share") == {"0": "", "1-99": "100.0%"}


def test_what_an_earlier_fit_left_after_is_not_counted() -> None:
    made = [part("support: 0", 10, lock="earlier"), part("support: 1-99", 100), part("support: 100-999", 100)]
    assert column(parts_table(made, "support", "time"), "icews14 share") == {"1-99": "50.0%", "100-999": "50.0%"}


def test_parts_of_a_run_with_other_seeds_or_a_frozen_history_are_shown_too() -> None:
    other = replace(reseeded(part("support: 0", 10), 5), seed=9)
    assert parts_table([other], "support", "time").rows[0][:2] == ["0", "100.0%"]
    frozen = replace(other, history="frozen")
    assert parts_table([frozen], "support", "time").header[1] == "icews14, frozen history share"


@pytest.mark.parametrize("records", [[], [residual()], [part("support: 0", 10)]])
def test_parts_that_were_not_recorded_are_refused_with_the_remedy(records: list[Record]) -> None:
    with pytest.raises(DataError, match="`bridgemem report RUN --by repeat --records FILE`"):
        parts_table(records, "repeat", "time")


# --- relations -------------------------------------------------------------------------------------------------------


def related(n: int, **changes: Any) -> list[Record]:
    """Relations r00, r01, ... that gain the more the higher their number, in an order of no meaning."""
    made = [part(f"relation: r{i:02d}", 50 + i, i / 1000, **changes) for i in range(n)]
    return made[1::2] + made[::2]


def test_relations_are_shown_from_the_top_and_from_the_bottom() -> None:
    table = relations_table(related(30), "time", "icews14", most=3)
    assert [row[0] for row in table.rows] == ["r29", "r28", "r27", "r02", "r01", "r00"]
    assert table.rows[0] == ["r29", "79", ".4210", "+0.0290 [+0.0190, +0.0390]"]


@pytest.mark.parametrize("n", [1, 5, 6, 7])
def test_no_relation_is_shown_twice(n: int) -> None:
    shown = [row[0] for row in relations_table(related(n), "time", "icews14", most=3).rows]
    assert len(shown) == len(set(shown)) == min(n, 6)


def test_relations_with_few_queries_of_other_data_and_other_filters_are_left_out() -> None:
    made = [*related(4), part("relation: rare", 49, 0.9), *related(9, dataset="wiki")]
    made += [part("relation: static", 99, 0.9, filter="static", selected_by="static")]
    table = relations_table(made, "time", "icews14")
    assert [row[0] for row in table.rows] == ["r03", "r02", "r01", "r00"]
    assert "icews14" in table.title
    assert "at least 50 queries" in table.title


def test_relations_of_one_run_are_shown() -> None:
    made = related(3) + related(3, device=CPU) + related(3, split="valid") + related(3, backbone="recurrence")
    table = relations_table(made[::-1], "time", "icews14")
    assert [row[0] for row in table.rows] == ["r02", "r01", "r00"]
    assert "icews14, cenet" in table.title


def test_relations_that_were_not_recorded_or_are_too_rare_are_refused() -> None:
    with pytest.raises(DataError, match="parts by relation was found for wiki"):
        relations_table(related(3), "time", "wiki")
    with pytest.raises(DataError, match="no relation of icews14 has 99 queries"):
        relations_table(related(3), "time", "icews14", least=99)
