"""Analysis: ablations next to the run that they change, parts that make up a whole, relations from both ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table
from bridgemem.studies.analysis import ablation_table, groups_table, parts_table, relations_table, steps_table
from measurements import DATASETS, campaign, change, learned, part, relearned, reseeded, residual

CPU = "cpu 2 threads"


def column(table: Table, heading: str) -> dict[str, str]:
    at = table.header.index(heading)
    return {row[0]: row[at] for row in table.rows}


# --- ablations -------------------------------------------------------------------------------------------------------


def test_a_change_is_shown_as_its_difference_from_the_run_with_the_same_lock() -> None:
    made = [change("k=1", 0.40), change("k=32", 0.46), change("history=frozen", 0.30, history="frozen")]
    others = [residual(seed=43, lock="other", mrr=0.9), residual(lock="earlier", device=CPU, mrr=0.9)]
    table = ablation_table([*others, residual(), *made], "time")
    assert table.header == ["change", "icews14, cenet"]
    assert table.rows == [
        ["as selected: MRR", ".4500"],
        ["as selected: lambda, gate, tau", "2, uncertain, 300"],
        ["no residual", "-0.0500"],
        ["k=1", "-0.0500"],
        ["k=32", "+0.0100"],
        ["history=frozen", "-0.1500"],
    ]


def test_a_change_of_a_run_that_is_not_recorded_has_no_column() -> None:
    made = [
        residual(),
        change("k=1", 0.40),
        change("k=2", 0.40, lock="unknown"),
        change("k=3", 0.4, dataset="wiki", lock="x"),
    ]
    table = ablation_table(made, "time")
    assert table.header == ["change", "icews14, cenet"]
    assert [row[0] for row in table.rows][3:] == ["k=1"]


def test_each_data_set_and_backbone_has_its_column_and_gaps_stay_empty() -> None:
    made = [residual(), change("k=1", 0.40)]
    made += [replace(r, dataset="wiki", lock="wiki", mrr=r.mrr + 0.1) for r in (made[0], change("k=2", 0.42))]
    made += [replace(r, backbone="recurrence", lock="counting") for r in (residual(mrr=0.5), change("k=1", 0.47))]
    table = ablation_table(made, "time")
    assert table.header == ["change", "icews14, cenet", "icews14, recurrence", "wiki, cenet"]
    assert table.rows[3:] == [["k=1", "-0.0500", "-0.0300", ""], ["k=2", "", "", "-0.0300"]]


def test_a_change_read_on_validation_is_not_held_against_test() -> None:
    valid = [replace(r, split="valid") for r in (residual(mrr=0.6), change("k=1", 0.65))]
    table = ablation_table([residual(), change("k=1", 0.40), *valid], "time")
    assert column(table, "icews14, cenet")["k=1"] == "-0.0500"
    assert column(table, "icews14 (valid), cenet")["k=1"] == "+0.0500"


def test_each_filter_shows_the_changes_of_its_own_choice() -> None:
    under: dict[str, Any] = {"filter": "static", "selected_by": "static", "lock": "static"}
    made = [residual(), change("k=1", 0.40), residual(mrr=0.6, **under), change("k=1", 0.65, **under)]
    assert column(ablation_table(made, "time"), "icews14, cenet")["k=1"] == "-0.0500"
    assert column(ablation_table(made, "static"), "icews14, cenet")["k=1"] == "+0.0500"


def test_the_run_that_all_tables_show_is_preferred_and_any_other_will_do() -> None:
    usual = [residual(), change("k=1", 0.40)]
    other = [replace(reseeded(r, 7), seed=9, lock="7") for r in (residual(mrr=0.5), change("k=1", 0.49))]
    assert column(ablation_table(other + usual, "time"), "icews14, cenet")["k=1"] == "-0.0500"
    assert column(ablation_table(other, "time"), "icews14, cenet")["k=1"] == "-0.0100"
    frozen = [replace(r, history="frozen") for r in usual]
    assert ablation_table(frozen, "time").header == ["change", "icews14, cenet, frozen history"]


def test_parts_are_no_ablations() -> None:
    made = [residual(), change("k=1", 0.40)]
    assert ablation_table([*made, part("support: 1-99", 5)], "time") == ablation_table(made, "time")


@pytest.mark.parametrize(
    "records", [[], [residual()], [change("k=1", 0.4)], [residual(lock="another"), change("k=1", 0.4)]]
)
def test_without_an_ablation_of_a_recorded_run_the_command_is_named(records: list[Record]) -> None:
    with pytest.raises(DataError, match="`bridgemem ablate RUN --records FILE`"):
        ablation_table(records, "time")


def test_changes_of_a_learned_residual_are_no_changes_of_the_paper_s_one() -> None:
    made = [residual(), change("k=1", 0.40)]
    more = [learned(), relearned("plain", 0.44), relearned("without pair", 0.43)]
    assert ablation_table([*made, *more], "time") == ablation_table(made, "time")
    with pytest.raises(DataError):
        ablation_table([residual(), *more], "time")


# --- the learned residual --------------------------------------------------------------------------------------------

LADDER = [
    relearned("plain", 0.44),
    relearned("no unseen candidates, without common_neighbours", 0.445),
    relearned("no unseen candidates", 0.46),
]


def test_every_step_is_shown_with_its_gain_over_the_one_before() -> None:
    table = steps_table([*LADDER[::-1], relearned("without pair", 0.1), learned()], "time")
    assert table.header == ["step", "icews14, cenet MRR", "gain of the step"]
    assert [row[1:] for row in table.rows] == [
        [".4000", ""],
        [".4400", "+0.0400"],
        [".4450", "+0.0050"],
        [".4600", "+0.0150"],
        [".4700", "+0.0100"],
    ]
    assert table.rows[0][0] == "backbone"
    assert [row[0].partition(" ")[0] for row in table.rows[2:]] == ["+", "+", "+"]


def test_a_step_that_was_not_measured_leaves_its_gain_and_the_next_one_open() -> None:
    table = steps_table([LADDER[0], LADDER[2], learned()], "time")
    assert [row[1:] for row in table.rows[1:]] == [
        [".4400", "+0.0400"],
        ["", ""],
        [".4600", ""],
        [".4700", "+0.0100"],
    ]


def test_every_group_is_shown_with_what_it_leaves_and_what_it_takes() -> None:
    made = [learned(), relearned("without pair", 0.43), relearned("without actor", 0.471), *LADDER]
    other = [replace(r, backbone="tirgn", lock="t", mrr=r.mrr + 0.1) for r in (learned(), relearned("without x", 0.45))]
    table = groups_table(made + other, "time")
    assert table.header == ["group left out", "icews14, cenet MRR", "difference", "icews14, tirgn MRR", "difference"]
    assert table.rows == [
        ["none", ".4700", "", ".5700", ""],
        ["pair", ".4300", "-0.0400", "", ""],
        ["actor", ".4710", "+0.0010", "", ""],
        ["x", "", "", ".5500", "-0.0200"],
    ]


@pytest.mark.parametrize("make", [steps_table, groups_table])
def test_a_change_is_held_against_the_residual_learned_in_the_same_run(make: Any) -> None:
    own = [learned(), relearned("plain", 0.44), relearned("without pair", 0.43)]
    expected = make(own, "time")
    others = [learned(seed=41, mrr=0.9), learned(lock="other", mrr=0.9), learned(split="valid", mrr=0.9)]
    others += [
        learned(filter="static", selected_by="static", mrr=0.9),
        learned(subset="some", mrr=0.9),
        residual(mrr=0.9),
    ]
    others += [relearned(label, 0.1, lock="unknown") for label in ("plain", "without pair", "without moon")]
    others += [relearned(label, 0.1, filter="static", selected_by="static") for label in ("plain", "without pair")]
    assert make(others + own, "time") == expected
    assert make(own + others, "time") == expected


@pytest.mark.parametrize("make", [steps_table, groups_table])
@pytest.mark.parametrize(
    "records",
    [[], [learned()], [learned(), relearned("other", 0.4)], [relearned("plain", 0.4), relearned("without x", 0.4)]],
)
def test_without_a_change_of_a_recorded_learned_residual_the_command_is_named(make: Any, records: list[Record]) -> None:
    with pytest.raises(DataError, match="`bridgemem ablate RUN --residual learned --records FILE`"):
        make(records, "time")


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
