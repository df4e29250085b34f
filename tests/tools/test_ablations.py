"""Published ablations: each change next to the run that it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tools.ablations import ablation_table, groups_table, steps_table

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table
from measurements import change, learned, part, relearned, reseeded, residual

CPU = "cpu 2 threads"


def column(table: Table, heading: str) -> dict[str, str]:
    at = table.header.index(heading)
    return {row[0]: row[at] for row in table.rows}


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
