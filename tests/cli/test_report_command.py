"""`bridgemem report`: tables, pages and parts of the queries, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bridgemem.evaluation.records import Record, read_records, write_records
from bridgemem.evaluation.strata import PARTS
from bridgemem.evaluation.tables import Table
from bridgemem.runs import Run
from commands import Walk, bridgemem, left_in, measured_rows
from measurements import backbone, campaign, part, residual

pytest_plugins = ("small_runs",)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A file of records of every kind, alone in its folder."""
    path = tmp_path / "kept" / "records.jsonl"
    write_records(path, campaign())
    return path


def other_data() -> list[Record]:
    return [r for filter_name in ("raw", "static", "time") for r in (backbone(filter=filter_name),)]


def test_a_file_gets_the_tables_that_are_shown(records: Path, tmp_path: Path) -> None:
    shown = bridgemem("report", "--records", records, "--out", tmp_path / "new" / "report.md", "--filter", "time")
    assert shown.out.endswith(f"Wrote {tmp_path / 'new' / 'report.md'}.\n")
    text = (tmp_path / "new" / "report.md").read_text()
    assert text.startswith("### Time-aware filter")
    assert text.count("### ") == 1
    assert left_in(tmp_path / "new") == ["report.md"]


def test_a_page_replaces_no_file_unasked(records: Path, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Mine\n")
    asked = ("report", "--records", records, "--out", page)
    assert "use --force to replace it" in bridgemem(*asked).refused()
    assert page.read_text() == "# Mine\n"
    assert bridgemem(*asked, "--force").code == 0


def test_one_data_set_is_shown_alone(records: Path) -> None:
    tables = bridgemem("report", "--records", records, "--dataset", "wiki", "--json").json["tables"]
    assert {row[0].split(",")[0] for table in tables for row in table["rows"]} == {"wiki"}


# --- of runs, and as other kinds of files -----------------------------------------------------------------------------


def test_a_run_is_reported_from_its_own_figures(walk: Walk, records: Path) -> None:
    own = bridgemem("report", walk.run, "--filter", "time", "--json").json
    assert {r["backbone"] for r in own["records"]} == {"cenet"}
    both = bridgemem("report", walk.run, records, "--filter", "time", "--json").json
    assert len(both["records"]) == len(own["records"]) + len(
        bridgemem("report", records, "--filter", "time", "--json").json["records"]
    )


def test_latex_stands_in_booktabs_with_names_made_harmless(records: Path, tmp_path: Path) -> None:
    made = bridgemem("report", records, "-o", tmp_path / "t.tex")
    assert made.code == 0, made.err
    text = (tmp_path / "t.tex").read_text(encoding="utf-8")
    assert text.count("\\toprule") == text.count("\\bottomrule") == text.count("\\end{table}") >= 3
    assert "95 \\%" in text
    odd = Table("a_b & c", ["x", "y"], [["50 % of {it}", "1"], ["[z", "2"]]).latex()
    assert "\\caption{a\\_b \\& c}" in odd
    assert "50 \\% of \\{it\\} & 1 \\\\" in odd
    assert "\n{}[z & 2" in odd
    signed = Table("", ["x"], [["-.0134 [-0.0260, -2]"], ["icews05-15, 2-4 - x -y"]]).latex()
    assert "$-$.0134 [$-$0.0260, $-$2] \\\\" in signed
    assert "icews05-15, 2-4 - x -y \\\\" in signed


def test_figures_are_numbers_with_the_fields_names(walk: Walk, tmp_path: Path) -> None:
    for kind in ("csv", "json"):
        assert bridgemem("report", walk.run, "-o", tmp_path / f"t.{kind}", "--filter", "time").code == 0
    rows = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    measured = {
        (r["method"], r["selected_by"]): r for r in measured_rows(Run(walk.run))["test"] if r["filter"] == "time"
    }
    assert len(rows) == len(measured)
    for row in rows:
        assert row["hits@1"] == measured[row["method"], row["selected_by"]]["hits1"]
    with (tmp_path / "t.csv").open(encoding="utf-8") as handle:
        flat = list(csv.DictReader(handle))
    assert [float(row["hits@10"]) for row in flat] == [row["hits@10"] for row in rows]
    assert [float(row["gain.mrr.low"]) for row in flat if row["gain.mrr.low"]]


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [by for by in PARTS if by != "relation"])
def test_parts_that_were_recorded_are_shown_under_both_choices(by: str, records: Path) -> None:
    before = records.read_bytes()
    tables = bridgemem("report", "--records", records, "--by", by, "--json").json["tables"]
    assert [table["title"] for table in tables] == [
        f"Gain in MRR by {by}, {f} filter" for f in ("static", "time-aware")
    ]
    (alone,) = bridgemem("report", "--records", records, "--by", by, "--filter", "time", "--json").json["tables"]
    assert alone == tables[1]
    assert records.read_bytes() == before


def test_relations_are_shown_data_set_by_data_set(records: Path) -> None:
    tables = bridgemem("report", "--records", records, "--by", "relation", "--filter", "time", "--json").json["tables"]
    assert [table["title"].split(" ")[2] for table in tables] == ["icews14", "wiki"]


@pytest.mark.parametrize("by", [by for by in PARTS if by != "relation"])
def test_a_run_taken_apart_adds_its_parts_to_the_records(by: str, walk: Walk, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(walk.records.read_bytes())
    before = read_records(path)
    tables = bridgemem("report", walk.run, "--by", by, "--records", path, "--json").json["tables"]
    for table in tables:
        shares = [float(row[1].rstrip("%")) for row in table["rows"]]
        assert sum(shares) == pytest.approx(100, abs=0.3)
    after = read_records(path)
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert {r.subset.partition(": ")[0] for r in added if r.subset} == {by}
    # twice adds nothing, and the records alone show the same
    assert bridgemem("report", walk.run, "--by", by, "--records", path, "--json").json["tables"] == tables
    assert read_records(path) == after
    assert bridgemem("report", "--by", by, "--records", path, "--json").json["tables"] == tables


def test_a_run_taken_apart_makes_the_file_of_records_that_is_named(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("report", walk.run, "--by", "support")
    done = bridgemem(*asked)
    assert done.out.startswith("Gain in MRR by support")
    assert bridgemem(*asked, "--records", tmp_path / "new.jsonl").out == done.out
    assert left_in(tmp_path) == ["new.jsonl"]
    assert {r.subset.partition(": ")[0] for r in read_records(tmp_path / "new.jsonl") if r.subset} == {"support"}


def test_the_parts_of_a_run_are_written_as_one_page(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "support.md"
    bridgemem("report", walk.run, "--by", "support", "--out", page)
    assert page.read_text().startswith("### Gain in MRR by support")
    assert left_in(tmp_path) == ["support.md"]


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.txt", "r.html", "r.md.bak", "results"])
def test_a_file_of_no_kind_is_refused_before_anything_is_done(name: str, walk: Walk, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_bytes(walk.records.read_bytes())
    asked = ("report", walk.run, "--by", "support", "--records", records, "--out", tmp_path / name)
    assert f"{name} is none of them" in bridgemem(*asked).refused()
    assert left_in(tmp_path) == ["records.jsonl"]
    assert records.read_bytes() == walk.records.read_bytes()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (("--by", "weather"), "support, uncertainty, repeat, recency, relation, calibration, not 'weather'"),
        (("--filter", "both"), "raw, static, time, not 'both'"),
        (("--by", "support", "--filter", "raw"), "static, time or all"),
        (("--by", "support", "--filter", "both"), "'both'"),
        (("--dataset", "gdelt"), "holds no record of 'gdelt'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: tuple[str, ...], phrase: str, records: Path) -> None:
    assert phrase in bridgemem("report", "--records", records, *options).refused()


@pytest.mark.parametrize("by", PARTS)
def test_parts_that_were_not_recorded_are_refused_with_the_remedy(by: str, tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [residual()])
    refusal = bridgemem("report", "--records", tmp_path / "records.jsonl", "--by", by).refused()
    assert f"`bridgemem report RUN --by {by}" in refusal


def test_relations_with_too_few_queries_are_refused(tmp_path: Path) -> None:
    few = [part("relation: visit", 9, filter=f, selected_by=f) for f in ("static", "time")]
    write_records(tmp_path / "records.jsonl", few)
    assert (
        "queries or more" in bridgemem("report", "--records", tmp_path / "records.jsonl", "--by", "relation").refused()
    )


def test_an_empty_file_of_records_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"")
    assert bridgemem("report", "--records", path).refused().startswith(f"bridgemem: {path} holds no record; ")


def test_what_is_no_run_is_refused(records: Path, tmp_path: Path) -> None:
    assert "no run at" in bridgemem("report", tmp_path / "none").refused()
    assert "no run at" in bridgemem("report", tmp_path / "none", "--by", "support", "--records", records).refused()


def test_a_run_that_was_not_evaluated_is_refused(run_copy: Path, records: Path) -> None:
    (run_copy / "ranks.parquet").unlink()
    before = records.read_bytes()
    said = bridgemem("report", run_copy, "--by", "support", "--records", records).refused()
    assert f"has not been evaluated; run `bridgemem evaluate {run_copy}`." in said
    assert records.read_bytes() == before
