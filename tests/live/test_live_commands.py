"""ingest, retract and refresh as a user types them."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.runs import Run
from commands import TINY_READER, bridgemem, left_in, write_rows
from fits import loaded

pytest_plugins = ("small_runs",)


@pytest.fixture
def news(tmp_path: Path) -> Path:
    rows = [
        ("Arvan", "visit", "Nova", "2024-02-10"),
        ("Nova", "sing to", "Kel", "2024-02-11"),
        ("Arvan", "consult", "Kel", "2024-01-11"),
    ]
    return write_rows(tmp_path / "news.csv", rows)


def test_a_file_is_taken_in_once(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.duckdb"
    command = ("ingest", store, news, "--run", recurrence_run, "--offset", "3")
    first = bridgemem(*command, "--json").json
    assert (first["events"], first["accepted"], first["late"], first["replayed"]) == (3, 3, 1, False)
    assert first["source"] == "news.csv"
    assert first["ids"] is None
    again = bridgemem(*command, "--json", "--ids").json
    assert (again["replayed"], again["ids"]) == (True, ["e1", "e2", "e3"])
    assert "nothing changed" in bridgemem(*command).out
    with EventStore(store) as opened:
        assert opened.last_offset("news.csv") == "3"
        assert len(opened.events()) == 3


def test_ingest_retract_and_refresh_make_a_run_that_forecasts_new_names(
    news: Path, recurrence_run: Path, tmp_path: Path
) -> None:
    store, new = tmp_path / "events.duckdb", tmp_path / "new"
    taken = bridgemem("ingest", store, news, "--run", recurrence_run, "--ids").out
    assert taken.startswith("Batch 1: 3 events; 3 new.\nIds, in the file's order: e1, e2, e3.\n")
    assert bridgemem("retract", store, "e3", "--reason", "wrong day").out.startswith("e3 is retracted: Arvan, consult")
    refreshed = bridgemem("refresh", recurrence_run, "--store", store, "--out", new, "-q")
    assert refreshed.code == 0, refreshed.err
    assert "2 events were added" in refreshed.out
    assert "selection was kept" in refreshed.out

    assert Run(new).predictor().forecast("Nova", "sing to")[0].name == "Kel"
    assert "exists already" in bridgemem("refresh", recurrence_run, "--store", store, "--out", new).refused()


def _without_heading(path: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_number_below_a_heading_is_a_name(recurrence_run: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "customers.csv", [("3", "visit", "1", "2024-02-10")])
    told = bridgemem("ingest", tmp_path / "s", rows, "--run", recurrence_run, "--json").json
    assert (told["new_entities"], told["new_relations"]) == (2, 0)
    with EventStore(tmp_path / "s") as opened:
        assert opened.event("e1")[:3] == ("3", "visit", "1")


def test_a_file_of_ids_is_about_those_that_the_run_calls_so(recurrence_run: Path, tmp_path: Path) -> None:
    events = Run(recurrence_run).dataset.events
    store = tmp_path / "s"
    ids = _without_heading(tmp_path / "ids.csv", [("1", "0", "2", "2024-02-10"), ("0", "visit", "1", "2024-02-10")])
    told = bridgemem("ingest", store, ids, "--run", recurrence_run, "--json").json
    # entities are told by id; of the relations one is not, so that they are names
    assert (told["new_entities"], told["new_relations"]) == (0, 1)
    ids = _without_heading(tmp_path / "all.csv", [("3", "1", "2", "2024-02-11"), ("3", "1", "2", "2024-02-12")])
    assert "New names" not in bridgemem("ingest", store, ids, "--run", recurrence_run).out
    far = _without_heading(tmp_path / "far.csv", [("3", "1", str(events.n_entities), "2024-02-13")])
    assert "New names: 2 entities, 0 relations." in bridgemem("ingest", store, far, "--run", recurrence_run).out
    names, relations = events.entities.names, events.relations.names
    with EventStore(store) as opened:
        stored = [opened.event(f"e{n}")[:3] for n in range(1, 6)]
    assert stored == [
        (names[1], "0", names[2]),
        (names[0], "visit", names[1]),
        *2 * [(names[3], relations[1], names[2])],
        ("3", relations[1], str(events.n_entities)),
    ]


def test_what_cannot_be_done_is_one_sentence_and_leaves_no_file(
    news: Path, recurrence_run: Path, tmp_path: Path
) -> None:
    before = left_in(tmp_path)
    assert "no event store" in bridgemem("retract", tmp_path / "none", "e1").refused()
    assert "no event store" in bridgemem("refresh", recurrence_run, "--store", tmp_path / "none").refused()
    bridgemem("ingest", tmp_path / "s", tmp_path / "absent.csv", "--run", recurrence_run).refused()
    bridgemem("ingest", tmp_path / "s", news, "--run", tmp_path / "absent").refused()
    bridgemem("ingest", tmp_path / "s", news, "--run", recurrence_run, "--duplicates", "maybe").refused()
    assert left_in(tmp_path) == before
    bad = write_rows(tmp_path / "bad.csv", [("a", "r", "b", "7"), ("a", "r", "b", "8")])
    bridgemem("ingest", tmp_path / "s", bad, "--run", recurrence_run).refused()
    with EventStore(tmp_path / "s") as store:
        assert not len(store.events())


def test_a_file_with_a_row_that_cannot_be_read_is_refused_as_a_whole(recurrence_run: Path, tmp_path: Path) -> None:
    rows = [("Arvan", "visit", "Nova", "2024-02-10"), ("Arvan", "", "Nova", "2024-02-10")]
    file = write_rows(tmp_path / "f.csv", rows)
    command = ("ingest", tmp_path / "s", file, "--run", recurrence_run)
    said = bridgemem(*command).refused()
    assert f"1 row without a relation (empty) was left out, the first at {file}:3." in said
    assert "--skip-rejected" in said
    assert left_in(tmp_path) == ["f.csv"]
    taken = bridgemem(*command, "--skip-rejected")
    assert taken.code == 0
    assert "1 row without a relation (empty)" in taken.err
    assert "1 row was left out" in taken.out
    again = bridgemem(*command, "--skip-rejected", "--json", "--ids").json
    assert (again["replayed"], again["left_out"], again["ids"]) == (True, 1, ["e1"])


def test_a_file_is_ingested_with_the_options_of_import(recurrence_run: Path, tmp_path: Path) -> None:
    file, store = tmp_path / "f.csv", tmp_path / "s"
    file.write_text("who;whom;when\nArvan;Nova;11/02/2024\n?;Nova;12/02/2024\n")
    command = ("ingest", store, file, "--run", recurrence_run, "--relation-is", "visit", "--subject-column", "who")
    command += ("--object-column", "whom", "--time-column", "when")
    assert "--time-format day-first" in bridgemem(*command).refused()
    command += ("--time-format", "day-first", "--na", "?")
    assert "1 row without a subject (?) was left out" in bridgemem(*command).refused()
    assert bridgemem(*command, "--skip-rejected").code == 0
    (event,) = bridgemem("stored", store, "--json").json["events"]
    assert (event["subject"], event["relation"], event["time"]) == ("Arvan", "visit", "2024-02-11")
    assert "leave --step out" in bridgemem(*command, "--step", "day").refused()


def test_rows_that_an_ingest_rejects_go_to_a_file_that_can_be_repaired_and_taken_in(
    recurrence_run: Path, tmp_path: Path
) -> None:
    days = ("2024-02-26", "2023-01-01", "soon", "2024-02-11")
    file = write_rows(tmp_path / "mix.csv", [("Arvan", "visit", "Kel", day) for day in days])
    rejects, store = tmp_path / "rejects.csv", tmp_path / "s"
    command = ("ingest", store, file, "--run", recurrence_run, "--rejects", rejects)
    assert bridgemem(*command).refused().endswith(f"The rejected rows are in {rejects}.")
    with rejects.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["line"], row["subject"], row["time"]) for row in rows] == [
        ("3", "Arvan", "2023-01-01"),
        ("4", "Arvan", "soon"),
    ]
    before = rejects.read_text()
    assert bridgemem(*command, "--skip-rejected").err.startswith(f"bridgemem: wrote 2 rejected rows to {rejects}.")
    assert rejects.read_text() == before
    repaired = tmp_path / "repaired.csv"
    repaired.write_text(before.replace(",2023-01-01,", ",2024-02-12,").replace(",soon,", ",2024-02-13,"))
    assert bridgemem("ingest", store, repaired, "--run", recurrence_run, "--json").json["accepted"] == 2


def test_events_are_numbered_by_the_rows_of_their_file(recurrence_run: Path, tmp_path: Path) -> None:
    rows = [(f"Row{day}", "visit", "Kel", f"2024-02-{day}") for day in (25, 24, 23)]
    file, store = write_rows(tmp_path / "rev.csv", rows), tmp_path / "s"
    taken = bridgemem("ingest", store, file, "--run", recurrence_run, "--ids").out
    assert "Ids, in the file's order: e1, e2, e3." in taken
    assert bridgemem("retract", store, "e1").out == "e1 is retracted: Row25, visit, Kel, 2024-02-25.\n"


def test_a_row_that_cannot_be_used_is_named_by_its_line_and_can_be_skipped(
    recurrence_run: Path, tmp_path: Path
) -> None:
    rows = [("Arvan", "visit", "Kel", day) for day in ("2024-02-26", "2023-01-01", "51", "2024-02-11")]
    file, store = write_rows(tmp_path / "mix.csv", rows), tmp_path / "s"
    said = bridgemem("ingest", store, file, "--run", recurrence_run).refused()
    assert f"the time 2023-01-01 of {file}:3 lies before the data begin, at 2024-01-01; give a later one." in said
    assert "use --skip-rejected" in said
    assert not store.exists()
    taken = bridgemem("ingest", store, file, "--run", recurrence_run, "--skip-rejected")
    assert f"{file}:3" in taken.err
    assert "2 rows were left out" in taken.out
    assert [e["time"] for e in bridgemem("stored", store, "--json").json["events"]] == ["2024-02-26", "2024-02-11"]
    old = write_rows(tmp_path / "old.csv", rows[1:2])
    assert "skip" not in bridgemem("ingest", store, old, "--run", recurrence_run, "--skip-rejected").refused()


def test_a_file_under_another_name_is_the_same_batch(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    command = ("ingest", tmp_path / "s", "--run", recurrence_run, "--json")
    assert not bridgemem(*command, news).json["replayed"]
    assert bridgemem(*command, shutil.copy(news, tmp_path / "copy.csv")).json["replayed"]


def test_what_a_store_holds_is_listed_with_its_ids(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "s"
    assert "no event store" in bridgemem("stored", store).refused()
    bridgemem("ingest", store, news, "--run", recurrence_run)
    bridgemem("retract", store, "e2", "--reason", "a slip")
    assert bridgemem("stored", store).out.splitlines() == [
        "e1: Arvan, visit, Nova, 2024-02-10 (batch 1 of news.csv)",
        "e2: Nova, sing to, Kel, 2024-02-11 (batch 1 of news.csv, retracted: a slip)",
        "e3: Arvan, consult, Kel, 2024-01-11 (batch 1 of news.csv)",
    ]
    assert [e["id"] for e in bridgemem("stored", store, "--last", "2", "--json").json["events"]] == ["e2", "e3"]
    assert "--last" in bridgemem("stored", store, "--last", "2").out
    assert bridgemem("stored", store, "--source", "wire").out == "No event of wire is stored there.\n"


def test_retracting_twice_says_so_and_keeps_the_first_reason(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "s"
    bridgemem("ingest", store, news, "--run", recurrence_run)
    assert not bridgemem("retract", store, "e1", "--reason", "wrong day", "--json").json["already"]
    again = bridgemem("retract", store, "e1", "--reason", "other")
    assert "was retracted before" in again.out
    assert "(wrong day); nothing changed" in again.out
    assert bridgemem("retract", store, "e1", "--json").json["already"]


def test_the_headings_of_a_file_can_be_named(recurrence_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("who,did,whom,when\nArvan,visit,Nova,2024-02-10\n")
    command = ("ingest", tmp_path / "s", file, "--run", recurrence_run, "--json")
    said = bridgemem(*command).refused()
    assert "--subject-column" in said
    assert "data import" not in said
    headings = (
        "--subject-column",
        "who",
        "--relation-column",
        "did",
        "--object-column",
        "whom",
        "--time-column",
        "when",
    )
    assert bridgemem(*command, *headings).json["accepted"] == 1


def test_the_last_offset_of_a_source_is_told_after_each_batch(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    other = write_rows(tmp_path / "more.csv", [("Arvan", "visit", "Kel", "2024-02-12")])
    command = ("ingest", tmp_path / "s", "--run", recurrence_run, "--source", "wire")
    assert "was read up to" not in bridgemem(*command, other).out
    assert "wire was read up to line 3." in bridgemem(*command, news, "--offset", "line 3").out
    for repeated in ((), ("--key", "another")):  # taken in before, or new but without an offset
        assert "wire was read up to line 3." in bridgemem(*command, other, *repeated).out
    assert bridgemem(*command, other, "--json").json["last_offset"] == "line 3"
    unnamed = bridgemem("ingest", tmp_path / "s", news, "--run", recurrence_run, "--json").json
    assert (unnamed["replayed"], unnamed["last_offset"]) == (True, "line 3")  # the file came before, from the wire


def test_a_stored_day_is_shown_as_a_day(recurrence_run: Path, tmp_path: Path) -> None:
    rows = [("Arvan", "visit", "Kel", "2024-02-12"), ("Arvan", "visit", "Kel", "2024-02-12T06:00")]
    file = write_rows(tmp_path / "f.csv", rows)
    assert bridgemem("ingest", tmp_path / "s", file, "--run", recurrence_run).code == 0
    assert bridgemem("retract", tmp_path / "s", "e1").out == "e1 is retracted: Arvan, visit, Kel, 2024-02-12.\n"
    assert bridgemem("retract", tmp_path / "s", "e2", "--json").json["time"] == "2024-02-12 06:00:00"


def test_another_file_in_the_place_of_the_store_is_called_what_it_is(
    news: Path, recurrence_run: Path, own_csv: Path
) -> None:
    before = own_csv.read_bytes()
    said = bridgemem("ingest", own_csv, news, "--run", recurrence_run).refused()
    assert "is no event store, but a file of another kind" in said
    assert own_csv.read_bytes() == before


# ---- asking over a store -------------------------------------------------------------------------------------------

ASKED: tuple[dict[str, Any], ...] = (
    {"subject": "Arvan", "relation": "visit"},
    {"object": "Nova", "relation": "visit"},
    {"subject": "Nova", "relation": "sing to"},
    {"subject": "Kel", "relation": "consult", "at": "2024-02-12"},
    {"subject": "Arvan", "relation": "visit", "at": "2024-01-20"},
)


def options_of(query: dict[str, Any]) -> list[str]:
    return [part for name, value in query.items() for part in (f"--{name}", value)]


def about_kel(query: dict[str, Any]) -> dict[str, Any]:
    """What explains Kel as the answer of a query."""
    asked = "object" if "subject" in query else "subject"
    return {**query, asked: "Kel", "candidate": asked}


@pytest.fixture(params=["recurrence", "cenet"])
def stored(request: pytest.FixtureRequest, news: Path, tmp_path: Path) -> Path:
    """A run with a store next to it, as `serve` keeps it."""
    found = (
        request.getfixturevalue("walk").run if request.param == "cenet" else request.getfixturevalue("recurrence_run")
    )
    run = Path(shutil.copytree(found, tmp_path / "run"))
    assert bridgemem("ingest", tmp_path / "run.events.duckdb", news, "--run", run).code == 0
    return run


def test_forecasts_and_explanations_over_a_store_are_those_of_the_service(stored: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="needs the extra 'serve'")
    from bridgemem.service.asking import Service
    from bridgemem.service.models import ExplainQuery, ForecastQuery

    file = stored.with_name("run.events.duckdb")
    with EventStore(file) as store:
        service = Service(LiveForecaster(loaded(stored), store))
        served = [service.forecast(ForecastQuery(**query, top=99)) for query in ASKED]
        why = [service.explain(ExplainQuery(**about_kel(query))) for query in ASKED]
    for query, expected, reason in zip(ASKED, served, why, strict=True):
        asked = options_of(query)
        found = bridgemem("forecast", stored, *asked, "--top", "99", "--json").json
        assert found.items() >= expected.model_dump(exclude={"model_version", "remark"}).items()
        assert bridgemem("forecast", stored, *asked, "--top", "99", "--store", file, "--json").json == found
        one = bridgemem("explain", stored, *options_of(about_kel(query)), "--json").json["explanations"][0]
        assert {name: one[name] for name in ("sentence", "score", "time")} == {
            name: getattr(reason, name) for name in ("sentence", "score", "time")
        }
    together = tmp_path / "q.csv"
    lines = [f"{q.get('subject', '')},{q['relation']},{q.get('object', '')},{q.get('at', '')}" for q in ASKED]
    together.write_text("\n".join(["subject,relation,object,time", *lines]))
    made = bridgemem("forecast", stored, "--queries", together, "--out", tmp_path / "a.csv", "--top", "99")
    assert "3 stored events are read" in made.out
    with (tmp_path / "a.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["candidate"], row["time"]) for row in rows] == [(c.name, e.time) for e in served for c in e.candidates]
    scores = [c.score for e in served for c in e.candidates]
    assert [float(row["score"]) for row in rows] == pytest.approx(scores, abs=1e-5)


def test_the_events_of_a_store_can_be_left_out_and_are_told_where_they_are_read(stored: Path) -> None:
    asked, file = options_of(ASKED[0]), stored.with_name("run.events.duckdb")
    over = bridgemem("forecast", stored, *asked)
    assert over.out.endswith("3 stored events are read after the run's own, from run.events.duckdb.\n")
    assert "at 2024-02-12" in over.out
    assert "3 stored events" in bridgemem("explain", stored, *asked, "--object", "Kel").out
    as_json = bridgemem("forecast", stored, *asked, "--json")
    assert as_json.err == ""
    assert as_json.json["stored_events"] == 3
    assert len(as_json.json["candidates"]) == 10
    without = bridgemem("forecast", stored, *asked, "--store", "none")
    assert "at 2024-02-10" in without.out
    assert "stored" not in without.out
    before = file.read_bytes()
    bridgemem("retract", file, "e2")
    assert "2 stored events are read" in bridgemem("forecast", stored, *asked).out
    file.unlink()
    assert bridgemem("forecast", stored, *asked) == without
    assert left_in(stored.parent) == ["news.csv", "run"]
    file.write_bytes(before[:2000])
    assert "--store none" in bridgemem("forecast", stored, *asked).refused()
    assert "no event store" in bridgemem("forecast", stored, *asked, "--store", stored / "absent").refused()


def test_stored_events_are_read_after_a_memory_on_disk_as_well(stored: Path, tmp_path: Path) -> None:
    assert bridgemem("memory", stored, "--out", tmp_path / "memory").code == 0
    for query in ASKED:
        plain = bridgemem("forecast", stored, *options_of(query), "--json")
        assert bridgemem("forecast", stored, *options_of(query), "--json", "--memory-dir", tmp_path / "memory") == plain
        assert plain.code == 0


def test_a_relation_that_the_run_was_not_fitted_on_has_no_probabilities(stored: Path) -> None:
    text = bridgemem("forecast", stored, *options_of(ASKED[2])).out
    assert "No probabilities: the run was fitted without this relation" in text


def test_asking_leaves_the_store_to_others_and_says_when_it_is_taken(stored: Path) -> None:
    asked, file = options_of(ASKED[0]), stored.with_name("run.events.duckdb")
    before = file.read_bytes()
    with EventStore(file, read_only=True):
        assert bridgemem("forecast", stored, *asked).code == 0
    assert file.read_bytes() == before
    with EventStore(file):
        # nobody named the store, so that the run still answers as it was fitted, and says so
        found = bridgemem("forecast", stored, *asked)
        named = bridgemem("forecast", stored, *asked, "--store", file).refused()
    assert found.code == 0
    assert found.out == bridgemem("forecast", stored, *asked, "--store", "none").out
    for said in (found.err, named):
        assert "open in another process" in said
    assert "left out" in found.err


def test_a_store_that_followed_other_data_is_not_read_after_the_run(
    recurrence_run: Path, own_csv: Path, tmp_path: Path
) -> None:
    run, asked = Path(shutil.copytree(recurrence_run, tmp_path / "run")), options_of(ASKED[0])
    file = write_rows(tmp_path / "news.csv", [("Arvan", "visit", "Kel", "2024-02-10")])
    store = tmp_path / "run.events.duckdb"
    assert bridgemem("ingest", store, file, "--run", run).code == 0
    # the run is fitted anew in its place, on data that hold the event by now
    more = tmp_path / "more.csv"
    more.write_text(own_csv.read_text(encoding="utf-8") + "Arvan,visit,Kel,2024-02-10\n", encoding="utf-8")
    assert bridgemem("fit", "-d", more, "-b", "recurrence", "-o", run, "--force", *TINY_READER).code == 0
    found = bridgemem("forecast", run, *asked)
    assert found.code == 0
    assert "other data than the run's" in found.err
    assert found.out == bridgemem("forecast", run, *asked, "--store", "none").out
    assert "other data" in bridgemem("forecast", run, *asked, "--store", store).refused()
    assert "other data" in bridgemem("ingest", store, file, "--run", run, "--key", "again").refused()
    assert "other data" in bridgemem("refresh", run, "--store", store).refused()


def test_a_refreshed_run_goes_on_with_the_store_it_was_refreshed_over(stored: Path) -> None:
    asked, store = options_of(ASKED[0]), stored.with_name("run.events.duckdb")
    assert bridgemem("refresh", stored, "--store", store).code == 0
    file = write_rows(stored.parent / "later.csv", [("Arvan", "visit", "Kel", "2024-02-20")])
    assert bridgemem("ingest", store, file, "--run", stored.with_name("run-2")).code == 0
    found = bridgemem("forecast", stored.with_name("run-2"), *asked).out
    assert "at 2024-02-21" in found
    assert "1 stored event is read after the run's own, from run.events.duckdb." in found


def test_a_new_partner_of_a_training_free_backbone_is_found_at_once_and_after_a_refresh(
    recurrence_run: Path, tmp_path: Path
) -> None:
    store, new = tmp_path / "s", tmp_path / "new"
    file = write_rows(tmp_path / "f.csv", [("Arvan", "visit", "Newtown", "2024-02-10")])
    assert bridgemem("ingest", store, file, "--run", recurrence_run).code == 0
    # the backbone's own ranks: the residual has learned that a visit is not repeated the day after
    asked = ("--subject", "Arvan", "--relation", "visit", "--top", "99", "--json")
    live = bridgemem("forecast", recurrence_run, *asked, "--store", store).json["candidates"]
    assert [c["name"] for c in live if c["backbone_rank"] == 1] == ["Newtown"]
    assert bridgemem("refresh", recurrence_run, "--store", store, "--out", new, "-q").code == 0
    refreshed = bridgemem("forecast", new, *asked).json["candidates"]
    assert [c["name"] for c in refreshed if c["backbone_rank"] == 1] == ["Newtown"]
    # the events of the store are the refreshed run's own now
    over = bridgemem("forecast", new, *asked[:-1], "--store", store)
    assert "0 stored events are read" in over.out


def test_what_is_no_table_of_events_is_refused_with_what_to_do(recurrence_run: Path, tmp_path: Path) -> None:
    command = ("ingest", tmp_path / "store")
    (tmp_path / "feed.jsonl").write_text("{}\n")
    said = bridgemem(*command, tmp_path / "feed.jsonl", "--run", recurrence_run).refused()
    assert "use --follow --until-end" in said
    assert "does not exist" in bridgemem(*command, tmp_path / "nope.csv", "--run", recurrence_run).refused()
    assert "is a folder" in bridgemem(*command, tmp_path, "--run", recurrence_run).refused()
