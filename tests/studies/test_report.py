"""Report: what goes into one row, which records a table shows, and how figures are printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tools.tables import efficiency_table, learned_cost_table, learned_table, main_table, short_table, spread_table

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table, figure, interval
from bridgemem.ranking.metrics import METRICS
from bridgemem.studies.report import Row, filter_table, paper, rows, selected, standard
from measurements import GPU, backbone, campaign, change, learned, part, relearned, reseeded, residual

CPU = "cpu 2 threads"
STATIC: dict[str, Any] = {"filter": "static", "selected_by": "static"}


def cells(table: Table, label: str) -> dict[str, str]:
    """The one row of a table with this label, by heading."""
    (row,) = (row for row in table.rows if row[0] == label)
    return dict(zip(table.header, row, strict=True))


# --- one row ---------------------------------------------------------------------------------------------------------


def test_a_row_is_the_mean_and_the_spread_over_seeds() -> None:
    values = (0.40, 0.43, 0.47)
    gains = [[v - 0.3, v - 0.35, v - 0.2] for v in values]
    row = Row.of(
        [residual(seed=42 + i, mrr=v, gain={"mrr": g}) for i, (v, g) in enumerate(zip(values, gains, strict=True))]
    )
    assert row.seeds == 3
    assert row.mean["mrr"] == pytest.approx(np.mean(values))
    assert row.spread["mrr"] == pytest.approx(np.std(values, ddof=1))
    assert row.gain == pytest.approx(np.mean(gains, axis=0))
    assert [row.mean[m] for m in METRICS[1:]] == pytest.approx([0.36, 0.57, 0.68])


def test_one_measurement_has_no_spread_and_a_backbone_no_gain() -> None:
    row = Row.of([backbone()])
    assert set(row.spread.values()) == {0.0}
    assert row.gain is None


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset": "wiki"},
        {"fingerprint": "other"},
        {"split": "valid"},
        {"filter": "static"},
        {"selected_by": "static"},
        {"backbone": "recurrence"},
        {"method": "learned"},
        {"history": "frozen"},
        {"subset": "repeated"},
    ],
)
def test_what_differs_in_more_than_the_seed_is_never_averaged(changed: dict[str, Any]) -> None:
    assert Row.of([residual(), residual(seed=43)]).seeds == 2
    with pytest.raises(DataError, match="2 different measurements"):
        Row.of([residual(), residual(seed=43, **changed)])


def test_seeds_whose_learned_fits_serve_under_another_filter_are_one_row() -> None:
    own = [residual(method="learned", selected_by=by, seed=seed) for by, seed in (("raw", 42), ("time", 43))]
    assert Row.of(own).seeds == 2
    with pytest.raises(DataError, match="2 different measurements"):
        Row.of([*own, residual(method="learned", selected_by="static", seed=44)])


def test_no_records_make_no_row() -> None:
    with pytest.raises(DataError):
        Row.of([])


def test_data_of_one_name_and_other_content_stay_two_rows() -> None:
    found = rows([residual(mrr=0.2), residual(mrr=0.4, seed=43, fingerprint="other")], "time")
    assert sorted(row.mean["mrr"] for row in found) == [0.2, 0.4]


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (backbone(), "icews14, cenet"),
        (residual(), "icews14, cenet + bridgemem"),
        (residual(split="valid", dataset="gdelt"), "gdelt (valid), cenet + bridgemem"),
        (backbone(history="frozen"), "icews14, cenet, frozen history"),
    ],
)
def test_a_label_says_what_is_not_usual(record: Record, label: str) -> None:
    assert Row.of([record]).label == label


def test_rows_come_in_the_order_of_data_set_backbone_and_method() -> None:
    made = [residual(), backbone(), backbone(backbone="recurrence-dyadic"), backbone(backbone="recurrence")]
    made += [replace(r, dataset="aaa") for r in made]
    names = ["recurrence", "recurrence-dyadic", "cenet", "cenet + bridgemem"]
    assert [row.label for row in rows(made, "time")] == [f"{d}, {n}" for d in ("aaa", "icews14") for n in names]


# --- which records are shown -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shown", "choice"), [("static", "static"), ("time", "time"), ("raw", "time")])
def test_a_filter_shows_the_choice_made_under_it_and_raw_that_of_the_time_aware_one(shown: str, choice: str) -> None:
    made = [residual(filter=f, selected_by=s) for f in ("raw", "static", "time") for s in ("static", "time")]
    assert [(r.filter, r.selected_by) for r in selected(made, shown)] == [(shown, choice)]


def test_backbones_are_shown_under_every_filter() -> None:
    made = [backbone(filter=f) for f in ("raw", "static", "time")]
    assert [selected(made, f) for f in ("raw", "static", "time")] == [[r] for r in made]


@pytest.mark.parametrize("order", [1, -1])
def test_a_repeat_on_the_cpu_is_shown_only_where_no_gpu_measured_it(order: int) -> None:
    made = [residual(device=CPU, mrr=0.1), residual(mrr=0.2), residual(device=CPU, mrr=0.3, seed=43)]
    assert sorted(r.mrr for r in selected(made[::order], "time")) == [0.2, 0.3]


def test_a_training_free_backbone_of_a_run_and_of_its_own_is_shown_once() -> None:
    made = [backbone(backbone="recurrence"), backbone(backbone="recurrence", seed=0, settings={})]
    assert len(selected(made, "time")) == 1


def test_seed_0_is_a_seed_like_any_other() -> None:
    assert len(selected([residual(seed=0), residual(seed=42)], "time")) == 2


def test_parts_and_ablations_are_in_no_main_table() -> None:
    whole = [backbone(), residual(), backbone(**STATIC | {"selected_by": None}), residual(**STATIC)]
    more = [r for f in ("static", "time") for r in (change("k=1", 0.9, filter=f, selected_by=f),)]
    more += [part("support: 1-99", 10, filter=f, selected_by=f) for f in ("static", "time")]
    more += [residual(subset="repeated", mrr=0.9), residual(subset="repeated", mrr=0.9, **STATIC)]
    for table in (main_table, short_table):
        assert table(more + whole) == table(whole)
    assert filter_table(more + whole, "time") == filter_table(whole, "time")


def test_seed_42_and_rolling_history_are_the_standard() -> None:
    rolling, frozen = backbone(), backbone(history="frozen")
    others = [reseeded(rolling, seed) for seed in (7, 43)]
    assert standard([frozen, *others, rolling]) == [rolling]
    assert standard([frozen, *others]) == [frozen]
    assert standard([*others[::-1], replace(others[0], history="frozen")]) == [others[0]]


def test_the_standard_is_looked_for_on_each_data_set_and_backbone() -> None:
    made = [backbone(), backbone(dataset="own", history="frozen"), reseeded(backbone(backbone="recurrence"), 5)]
    assert standard(made) == made


def test_the_standard_keeps_a_residual_with_its_own_backbone() -> None:
    made = [backbone(), residual(), residual(seed=43)]
    others = [reseeded(r, 43) for r in made[:2]]
    assert standard(others + made) == made


def test_an_ablation_of_the_history_does_not_hide_a_frozen_run() -> None:
    made = [backbone(history="frozen"), residual(history="frozen")]
    assert standard([*made, change("history=rolling", 0.5)]) == made


# --- tables ----------------------------------------------------------------------------------------------------------


def test_the_paper_stands_only_next_to_cenet_under_the_static_filter() -> None:
    methods = {"cenet": backbone(), "bridgemem": residual()}
    names = ("static", "time", "raw")
    made = [replace(r, filter=f, selected_by=r.selected_by and "static") for r in methods.values() for f in names]
    made += [residual(filter="time"), residual(filter="raw")]
    made += [replace(r, backbone="recurrence") for r in made] + [replace(r, split="valid") for r in made]
    made += [replace(r, dataset="own") for r in made]
    table = filter_table(made, "static")
    printed_cells = {row[0]: row[-4:] for row in table.rows}
    assert table.header[-4:] == ["paper MRR", "paper H@1", "paper H@3", "paper H@10"]
    printed = paper()["table1"]["icews14"]
    for label, name in (("icews14, cenet", "cenet"), ("icews14, cenet + bridgemem", "bridgemem")):
        assert [float(cell) for cell in printed_cells.pop(label)] == printed[name]
    # of validation the paper prints the MRR alone
    before, after = paper()["validation_mrr"]["icews14"]
    for label, mrr in (("icews14 (valid), cenet", before), ("icews14 (valid), cenet + bridgemem", after)):
        own, *others = printed_cells.pop(label)
        assert (float(own), others) == (mrr, ["", "", ""])
    assert len(printed_cells) > 4
    assert set(map(tuple, printed_cells.values())) == {("", "", "", "")}
    for name in ("time", "raw"):
        assert not [h for h in filter_table(made, name).header if "paper" in h]


def test_the_main_table_has_one_filter_a_column() -> None:
    made = campaign()
    table = main_table(made)
    assert len(set(table.header)) == len(table.header)
    assert all(len(row) == len(table.header) for row in table.rows)
    both = {name: {row.label: row for row in rows(standard(made), name)} for name in ("static", "time")}
    for line in table.rows:
        found = cells(table, line[0])
        for name, word in (("static", "static"), ("time", "time-aware")):
            own = both[name][line[0]]
            assert [found[f"{word} {h}"] for h in ("MRR", "H@1", "H@3", "H@10")] == [
                figure(own.mean[m]) for m in METRICS
            ]
            assert found[f"{word} gain in MRR [95 %]"] == (interval(own.gain) if own.gain else "")
        assert found["seeds"] == str(both["static"][line[0]].seeds)
    named = [h for h in table.header[2:] if not h.startswith(("static ", "time-aware ", "paper (static) "))]
    assert named == []
    printed = cells(table, "wiki, cenet + bridgemem")
    assert float(printed["paper (static) MRR"]) == paper()["table1"]["wiki"]["bridgemem"][0]
    assert cells(table, "wiki, recurrence")["paper (static) MRR"] == ""


def test_what_was_measured_under_one_filter_only_leaves_the_other_columns_empty() -> None:
    table = main_table([backbone(filter="static"), residual(**STATIC), backbone()])
    assert cells(table, "icews14, cenet")["time-aware MRR"] == ".4000"
    without = cells(table, "icews14, cenet + bridgemem")
    assert (without["static MRR"], without["time-aware MRR"]) == (".4500", "")


def test_the_short_table_has_the_mrr_of_the_main_one_and_no_residual_on_counting() -> None:
    made = campaign()
    made += [replace(r, backbone="recurrence", device=CPU) for r in made if r.method == "bridgemem" and r.device == GPU]
    short, whole = short_table(made), main_table(made)
    counting = [row[0] for row in whole.rows if row[0].endswith("recurrence + bridgemem")]
    assert len(counting) == 2
    assert [row[0] for row in short.rows] == [row[0] for row in whole.rows if row[0] not in counting]
    for row in short.rows:
        found, same = cells(short, row[0]), cells(whole, row[0])
        assert found["static MRR"] == same["static MRR"]
        assert found["paper (static)"] == same["paper (static) MRR"]
        assert found["time-aware MRR"] == same["time-aware MRR"]
        assert found["time-aware gain [95 %]"] == same["time-aware gain in MRR [95 %]"]
        assert found["static gain"] == same["static gain in MRR [95 %]"].partition(" ")[0]


def test_the_short_table_has_cenet_the_training_free_rows_and_what_is_learned_on_them() -> None:
    made = [r for f in ("static", "time") for r in (backbone(filter=f), residual(filter=f, selected_by=f))]
    made += [learned(filter=f, selected_by=f) for f in ("static", "time")]
    every = ("recurrence", "recurrence-dyadic", "cenet", "cygnet", "tirgn", "hri", "popularity", "own-model")
    short = short_table([replace(r, backbone=name) for r in made for name in every])
    names = [
        "recurrence",
        "recurrence + learned",
        *(f"{name}{on}" for name in ("recurrence-dyadic", "cenet") for on in ("", " + bridgemem", " + learned")),
    ]
    assert [row[0] for row in short.rows] == [f"icews14, {name}" for name in names]


def test_the_spread_is_that_of_the_backbone_and_of_the_residual_on_one_backbone() -> None:
    plain = [reseeded(backbone(mrr=v), seed) for seed, v in ((42, 0.40), (43, 0.42), (44, 0.47))]
    on_one = [residual(seed=seed, mrr=v) for seed, v in ((42, 0.451), (43, 0.452))]
    elsewhere = [reseeded(residual(mrr=0.9), 43)]
    frozen = [replace(r, history="frozen", mrr=0.9, seed=60 + i) for i, r in enumerate(plain)]
    repeated = [replace(r, device=CPU, mrr=0.9) for r in plain + on_one]
    table = spread_table(repeated + plain + on_one + elsewhere + frozen)
    assert table.rows == [
        [
            "icews14, cenet itself",
            "time-aware",
            "3",
            ".4300",
            f"{np.std([0.40, 0.42, 0.47], ddof=1):.4f}",
            ".4000 to .4700",
        ],
        ["icews14, bridgemem on one cenet", "time-aware", "2", ".4515", "0.0007", ".4510 to .4520"],
    ]


def test_the_spread_of_the_learned_residual_is_shown_next_to_that_of_the_paper_s_one() -> None:
    made = [r for seed, v in ((42, 0.46), (43, 0.48)) for r in (residual(seed=seed), learned(seed=seed, mrr=v))]
    table = spread_table([*made, learned(seed=44, mrr=0.9, history="frozen"), reseeded(learned(mrr=0.9), 43)])
    assert cells(table, "icews14, learned on one cenet")["range"] == ".4600 to .4800"


def test_the_spread_mixes_neither_splits_nor_filters() -> None:
    plain = [reseeded(backbone(mrr=v), seed) for seed, v in ((42, 0.40), (43, 0.42))]
    valid = [replace(r, split="valid", mrr=r.mrr + 0.2) for r in plain]
    static = [replace(r, filter="static", mrr=r.mrr + 0.3) for r in plain]
    found = {(row[0], row[1]): row[3] for row in spread_table(plain + valid + static).rows}
    assert found == {
        ("icews14, cenet itself", "time-aware"): ".4100",
        ("icews14 (valid), cenet itself", "time-aware"): ".6100",
        ("icews14, cenet itself", "static"): ".7100",
    }


def test_the_cost_is_that_of_the_quickest_run_on_each_device_next_to_the_papers() -> None:
    made = [residual(fit_seconds=9.04, refit_seconds=5.0), residual(seed=43, fit_seconds=8.0, refit_seconds=6.0)]
    made[1] = replace(made[1], settings={"epochs": 19})
    made += [residual(device=CPU, fit_seconds=30.0, refit_seconds=None)]
    made += [part("support: 1-99", 5), change("k=1", 0.4, fit_seconds=0.1, refit_seconds=0.1), backbone()]
    made += [residual(subset="some", fit_seconds=0.1, refit_seconds=0.1)]
    made += [residual(dataset="own", device=CPU, fit_seconds=1.0, refit_seconds=2.0)]
    table = efficiency_table(made)
    printed = [f"{value:,}" for value in paper()["table2"]["icews14"]]
    assert table.rows == [
        ["icews14", "", "19, 20", "", "8.0", "5.0", "30.0", "", *printed],
        ["own", "", "20", "", "", "", "1.0", "2.0", "", "", "", ""],
    ]
    assert GPU in table.note
    assert CPU in table.note


def test_the_learned_table_has_what_is_learned_its_backbone_the_paper_s_one_and_the_paper_for_scale() -> None:
    made = [backbone(), residual(), learned(), learned(seed=43, mrr=0.49)]
    made += [backbone(filter="static", mrr=0.6), learned(**STATIC, mrr=0.65)]
    others = [backbone(backbone="cygnet"), residual(backbone="cygnet"), backbone(dataset="wiki")]
    table = learned_table(others + made)
    gain = {"": "", " + bridgemem": interval(residual().gain["mrr"]), " + learned": interval(learned().gain["mrr"])}
    assert table.rows == [
        ["icews14, cenet", "1", ".4000", gain[""], ".6000", ""],
        ["icews14, cenet + bridgemem", "1", ".4500", gain[" + bridgemem"], "", ""],
        ["icews14, cenet + learned", "2 / 1", ".4800", gain[" + learned"], ".6500", gain[" + learned"]],
        ["icews14, tirgn in the paper", "", figure(paper()["table1"]["icews14"]["tirgn"][0]), "", "", ""],
        ["icews14, hri in the paper", "", figure(paper()["table1"]["icews14"]["hri"][0]), "", "", ""],
    ]
    assert table.header[2:] == ["time-aware MRR", "time-aware gain [95 %]", "static MRR", "static gain [95 %]"]


def test_the_paper_is_for_scale_once_a_data_set_and_only_on_its_test() -> None:
    made = [learned(), learned(backbone="tirgn"), learned(dataset="own"), learned(dataset="wiki", split="valid")]
    found = [row[0] for row in learned_table(made).rows]
    assert found == [
        "icews14, cenet + learned",
        "icews14, tirgn + learned",
        "icews14, tirgn in the paper",
        "icews14, hri in the paper",
        "own, cenet + learned",
        "wiki (valid), cenet + learned, fitted on these queries",
    ]


def test_what_was_learned_under_one_filter_is_never_shown_under_another() -> None:
    table = learned_table([learned(), learned(filter="static", selected_by="time", mrr=0.9)])
    assert [row[4] for row in table.rows] == ["", "", ""]


def test_changes_of_a_learned_residual_are_in_no_table_of_whole_methods() -> None:
    made = campaign()
    whole = [r for r in made if not r.method.startswith("ablation:learned=")]
    assert len(whole) < len(made)
    for make in (main_table, short_table, spread_table, efficiency_table, learned_table, learned_cost_table):
        assert make(made) == make(whole)


def test_the_cost_of_learning_is_that_of_the_quickest_fit_under_one_filter_on_each_device() -> None:
    made = [learned(fit_seconds=5.04), learned(seed=43, fit_seconds=4.0), learned(**STATIC, fit_seconds=6.0)]
    made[1] = replace(made[1], settings={**made[1].settings, "epochs": 12})
    made += [learned(device=CPU, fit_seconds=90.0), learned(backbone="tirgn", fit_seconds=7.0)]
    # a figure under another filter than it was learned for is of the same fit
    made += [learned(filter="static", fit_seconds=0.1), relearned("plain", 0.4), residual(fit_seconds=0.1)]
    table = learned_cost_table([*made, learned(dataset="wiki", fit_seconds=None)])
    assert table.rows == [
        ["icews14, cenet", "21,000", "7, 12", "4.0", "90.0"],
        ["icews14, tirgn", "21,000", "7", "7.0", ""],
    ]
    assert GPU in table.note
    assert CPU in table.note


@pytest.mark.parametrize(
    "make", [main_table, short_table, spread_table, efficiency_table, learned_table, learned_cost_table]
)
@pytest.mark.parametrize("records", [[], [part("support: 1-99", 5)]])
def test_a_table_of_nothing_is_refused_with_a_sentence(make: Any, records: list[Record]) -> None:
    with pytest.raises(DataError, match=r"^no record .* was found\.$"):
        make(records)


def test_a_filter_that_nothing_was_measured_under_is_named() -> None:
    with pytest.raises(DataError, match="under the raw filter"):
        filter_table([backbone(), residual()], "raw")


# --- how it is printed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, ".0000"), (1.0, "1.0000"), (0.59034, ".5903"), (0.99996, "1.0000"), (0.1, ".1000"), (0.00004, ".0000")],
)
def test_metrics_are_printed_with_four_places_and_no_leading_zero(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        ([0.0, 0.0, 0.0], "+0.0000 [+0.0000, +0.0000]"),
        ([1.0, -1.0, 1.0], "+1.0000 (no interval)"),
        ([-0.01234, -0.02, 0.00996], "-0.0123 [-0.0200, +0.0100]"),
    ],
)
def test_gains_are_printed_with_their_sign_and_bounds(gain: list[float], text: str) -> None:
    assert interval(gain) == text


def test_names_cannot_break_a_markdown_table() -> None:
    table = Table("a\nb", ["x|y", "z"], [["one|two", "1"], ["three\nfour\r\nfive", "2"]], "a note")
    assert table.markdown() == (
        "### a b\n\n| x\\|y | z |\n|---|---:|\n| one\\|two | 1 |\n| three four five | 2 |\n\na note\n"
    )


def test_a_table_without_a_note_ends_with_its_last_row() -> None:
    assert Table("t", ["x"], [["1"]]).markdown() == "### t\n\n| x |\n|---|\n| 1 |\n"
