"""Transfer: every backbone with its residuals in one row, gaps left empty, and the paper held against both filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tools.transfer import HEADER, backbones_table

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import figure, interval
from bridgemem.ranking.metrics import METRICS
from bridgemem.studies.report import paper
from measurements import GPU, backbone, campaign, change, learned, part, relearned, reseeded, residual

MATCHES = HEADER[-1]


def lines(records: list[Record]) -> dict[str, dict[str, str]]:
    table = backbones_table(records)
    assert all(len(row) == len(table.header) for row in table.rows)
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def both(**changes: Any) -> list[Record]:
    """A backbone and both residuals on it, under both filters."""
    made = [r for f in ("static", "time") for r in (backbone(filter=f, mrr=0.4 if f == "time" else 0.56),)]
    made += [make(filter=f, selected_by=f) for make in (residual, learned) for f in ("static", "time")]
    return [replace(r, **changes) for r in made]


def test_a_row_has_the_backbone_and_both_residuals_under_each_filter() -> None:
    row = lines(both(backbone="tirgn"))["icews14, tirgn"]
    assert (row["time-aware"], row["static"]) == (".4000", ".5600")
    for word in ("time-aware", "static"):
        assert row[f"{word} + BridgeMem, gain [95 %]"] == f".4500, {interval(residual().gain['mrr'])}"
        assert row[f"{word} + learned, gain [95 %]"] == f".4700, {interval(learned().gain['mrr'])}"
    assert row["published (time-aware)"] == figure(paper()["published"]["icews14"]["tirgn"]["mrr"])
    assert row["paper"] == figure(paper()["table1"]["icews14"]["tirgn"][0])
    assert row["seeds"] == "1"


def test_residuals_are_averaged_over_their_seeds_on_one_backbone() -> None:
    more = [residual(seed=43, mrr=0.47), reseeded(residual(mrr=0.9), 43), residual(device="cpu 2 threads", mrr=0.9)]
    row = lines([*both(), *more, *(replace(r, history="frozen", mrr=0.9) for r in both())])["icews14, cenet"]
    assert row["time-aware + BridgeMem, gain [95 %]"].startswith(".4600, ")
    assert row["seeds"] == "2 / 1"


def test_what_was_measured_with_a_frozen_history_only_is_no_row() -> None:
    assert list(lines([*both(), *both(backbone="est", history="frozen")])) == ["icews14, cenet"]
    with pytest.raises(DataError, match="rolling history"):
        backbones_table(both(history="frozen"))


@pytest.mark.parametrize(
    ("name", "static", "time", "said"),
    [
        ("cenet", 0.5661, 0.3838, "static (+0.0022)"),
        ("tirgn", 0.55, 0.44, "time-aware (+0.0078)"),
        ("est", 0.48, 0.40, "time-aware (-0.1496)"),
    ],
)
def test_the_paper_matches_the_filter_whose_mrr_is_nearer(name: str, static: float, time: float, said: str) -> None:
    made = [backbone(backbone=name, filter="static", mrr=static), backbone(backbone=name, mrr=time)]
    assert lines(made)[f"icews14, {name}"][MATCHES] == said


@pytest.mark.parametrize("filter_name", ["static", "time"])
def test_nothing_is_said_of_the_papers_filter_where_one_was_not_measured(filter_name: str) -> None:
    row = lines([backbone(filter=filter_name), residual(), residual(filter="static", selected_by="static")])
    assert row["icews14, cenet"]["paper"] == figure(paper()["table1"]["icews14"]["cenet"][0])
    assert row["icews14, cenet"][MATCHES] == ""


def test_cells_without_a_record_stay_empty() -> None:
    row = lines([backbone(dataset="own", backbone="mine")])["own, mine"]
    assert row.pop("time-aware") == ".4000"
    assert set(row.values()) == {"own, mine", ""}


def test_a_forecaster_of_the_paper_that_was_measured_elsewhere_has_a_row_of_gaps() -> None:
    made = [backbone(), backbone(dataset="wiki"), backbone(dataset="own"), backbone(backbone="tpar")]
    # of validation the paper has nothing but CENET, and so there is no gap
    made += [backbone(backbone="recurrence"), backbone(dataset="gdelt", split="valid")]
    found = lines(made)
    assert list(found) == [
        "gdelt (valid), cenet",
        "icews14, cenet",
        "icews14, tpar",
        "icews14, recurrence",
        "own, cenet",
        "wiki, cenet",
        "wiki, tpar",
    ]
    gap = found["wiki, tpar"]
    assert (gap["time-aware"], gap["static"], gap[MATCHES]) == ("", "", "")
    assert gap["published (time-aware)"] == figure(paper()["published"]["wiki"]["tpar"]["mrr"])


def test_backbones_come_in_the_papers_order() -> None:
    named = [name for name in paper()["table1"]["icews14"] if name != "bridgemem"]
    assert len(named) == 9
    made = [backbone(backbone=name) for name in sorted([*named, "recurrence", "aaa"])]
    assert list(lines(made)) == [f"icews14, {name}" for name in [*named, "aaa", "recurrence"]]


def test_validation_stands_next_to_the_papers_validation_figure_and_no_published_one() -> None:
    made = [*both(dataset="gdelt", split="valid"), *both(dataset="gdelt", split="valid", backbone="cygnet")]
    found = lines(made)
    assert found["gdelt (valid), cenet"]["paper"] == figure(paper()["validation_mrr"]["gdelt"][0])
    assert found["gdelt (valid), cygnet"]["paper"] == ""
    assert {row["published (time-aware)"] for row in found.values()} == {""}


def test_training_is_told_where_it_was_noted() -> None:
    note = {"backbone_seed": 42, "train_seconds": 1234.4, "train_parameters": 5_000_000, "train_device": GPU}
    slow = {**note, "train_seconds": 9.0, "train_device": "cpu 2 threads"}
    made = [backbone(), backbone(settings=slow, device="cpu 2 threads"), backbone(settings=note, filter="static")]
    row = lines(made)["icews14, cenet"]
    assert (row["training seconds"], row["parameters"]) == ("1,234 (GPU)", "5,000,000")
    assert lines([backbone(settings=slow)])["icews14, cenet"]["training seconds"] == "9 (CPU)"
    assert lines([backbone()])["icews14, cenet"]["parameters"] == ""


def test_ablations_and_parts_are_no_rows() -> None:
    whole = both()
    more = [change("k=1", 0.9), relearned("plain", 0.9), part("support: 0", 10), residual(subset="some", mrr=0.9)]
    assert backbones_table(more + whole) == backbones_table(whole)
    assert len(backbones_table(campaign()).rows) == 4


def test_the_note_says_who_chooses_on_validation_and_how_the_published_were_measured() -> None:
    note = backbones_table([backbone(backbone=name) for name in ("regcn", "hri", "infer", "est", "csi")]).note
    assert "RE-GCN and TiRGN choose their epoch on validation" in note
    published = paper()["published"]["icews14"]
    assert f"regcn, hri: {published['hri']['protocol']}" in note
    assert f"infer: {published['infer']['protocol']}" in note
    assert "csi, est: no time-aware figure was found" in note
    assert "Published" not in backbones_table([backbone(dataset="own")]).note


def test_what_was_published_is_of_the_papers_forecasters_and_data_sets_in_shares_of_one() -> None:
    table1 = paper()["table1"]
    found = [(d, name, values) for d, own in paper()["published"].items() for name, values in own.items()]
    assert len(found) > 20
    for dataset, name, values in found:
        assert name in table1[dataset]
        figures = [values[m] for m in METRICS if m in values]
        assert all(0 < value < 1 for value in figures)
        assert {"mrr", "protocol"} <= values.keys() <= {*METRICS, "protocol"}
        hits = figures[1:]
        assert hits == sorted(hits)
        assert values.get("hits1", 0) < values["mrr"] < values["hits10"]


def test_nothing_measured_is_refused() -> None:
    for records in ([], [part("support: 0", 5)]):
        with pytest.raises(DataError, match=r"^no record .* was found\.$"):
            backbones_table(records)
