"""The explorer over HTTP: its files are safe and come from here alone, and what it asks reads the past alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("plotly", reason="needs the extra 'explore'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from benchmarks.load import SERVE
from starlette.testclient import TestClient

from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.times import LAST_STEP
from bridgemem.explorer import views
from bridgemem.explorer.routes import CHARTS, FILES, asset, explorer_router
from bridgemem.explorer.views import outcome, overview, pair_past, quality
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.memory.past import Past
from bridgemem.runs import Run
from bridgemem.service.app import create_app
from bridgemem.storage.tables import read_table, write_table
from commands import bridgemem, measured_rows
from fits import loaded

pytest_plugins = ("small_runs",)

OWN = [name for name in FILES if name != CHARTS]
NAMED = {"subject": "Arvan", "relation": "visit"}


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def client(live: LiveForecaster) -> Iterator[Any]:
    with TestClient(create_app(live, page=explorer_router)) as made:
        yield made


def log(*rows: tuple[int, int, int, int]) -> EventLog:
    """Events (subject, relation, object, step) among a, b, c under r, s."""
    subject, relation, object_, step = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    names = Vocabulary("entity", ("a", "b", "c")), Vocabulary("relation", ("r", "s"))
    return EventLog.from_columns(subject, relation, object_, step, *names)


def test_the_overview_has_words_for_codes() -> None:
    coded = replace(log((0, 0, 1, 0)).relations, labels={"r": "visit"})
    events = log((0, 0, 1, 0))
    assert overview(events).labels == {}
    assert overview(events.with_vocabularies(events.entities, coded)).labels == {"r": "visit (r)"}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/explore", *(f"/explore/{name}" for name in FILES)])
def test_every_file_comes_with_the_policy_and_is_not_sent_twice(client: Any, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_charts_library_is_the_package_s_own_and_is_kept_by_browsers(client: Any) -> None:
    from plotly.offline import get_plotlyjs

    answer = client.get(f"/explore/{CHARTS}")
    assert answer.text == get_plotlyjs()
    assert re.fullmatch(r"max-age=\d{4,}", answer.headers["cache-control"])
    assert client.get("/explore/page.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", OWN)
def test_own_files_load_nothing_from_elsewhere_and_write_no_markup(client: Any, name: str) -> None:
    text = client.get(f"/explore/{name}").text
    assert set(re.findall(r"(?:https?:)?//[a-z]\S*?(?=[\"'\s])", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_the_page_has_no_script_or_style_of_its_own_inside(client: Any) -> None:
    text = client.get("/explore").text
    scripts = re.findall(r"<script\b([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    assert all('src="/explore/' in attributes and not inside for attributes, inside in scripts)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)


def test_every_control_of_the_page_has_a_name(client: Any) -> None:
    text = client.get("/explore").text
    labelled = set(re.findall(r'<label for="([^"]+)"', text))
    around = set(re.findall(r'<label[^>]*>[^<]+<input id="([^"]+)"', text))
    named = set(re.findall(r'<input id="([^"]+)"', text))
    assert {"actor", "relation", "step"} <= named == labelled | around
    for button in re.findall(r"<button\b(.*?)</button>", text, re.DOTALL):
        assert "aria-label=" in button or len(button.rpartition(">")[2].strip()) > 1, button


def test_the_front_door_leads_to_the_page_and_other_names_nowhere(client: Any) -> None:
    assert client.get("/").url.path == "/explore"
    for name in ("routes.py", "%2e%2e%2froutes.py", "nothing.js"):
        assert client.get(f"/explore/{name}").status_code == 404


def test_a_service_without_the_page_has_none_and_the_document_never_names_it(live: LiveForecaster) -> None:
    plain, explored = create_app(live), create_app(live, page=explorer_router)
    assert TestClient(plain).get("/explore").status_code == 404
    assert plain.openapi() == explored.openapi()


def test_a_token_guards_the_page_too(live: LiveForecaster) -> None:
    client = TestClient(create_app(live, token="secret", page=explorer_router))
    assert client.get("/explore").status_code == 401
    assert client.get("/explore/overview").status_code == 401


# --- what the page asks ----------------------------------------------------------------------------------------------


def test_the_overview_counts_every_event_once(client: Any, live: LiveForecaster) -> None:
    found = client.get("/explore/overview").json()
    assert sum(found["activity"]) == len(live.events)
    assert found["end"] == live.events.end
    assert found["clock"] == {"kind": "date", "origin": live.events.clock.origin, "unit": 86400}
    asked = {"subject": found["actor"], "relation": found["relation"]}
    assert client.post("/v1/forecast", json=asked).status_code == 200


def test_the_first_query_is_what_was_done_most_lately() -> None:
    found = overview(log(*[(0, 0, 1, step) for step in range(30)], (2, 1, 0, 30), (2, 1, 1, 31), (1, 0, 0, 31)))
    assert (found.actor, found.relation) == ("c", "s")


def test_long_times_fall_into_few_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_BINS", 4)
    found = overview(log((0, 0, 1, 0), (0, 0, 1, 2), (0, 0, 1, 3), (0, 0, 1, 9)))
    assert (found.stretch, found.activity, found.end) == (3, [2, 1, 0, 1], 10)


def test_the_overview_begins_at_the_first_event() -> None:
    found = overview(log((0, 0, 1, 1960), (0, 0, 1, 1962)))
    assert (found.start, found.end, found.stretch, found.activity) == (1960, 1963, 1, [1, 0, 1])


def test_a_log_without_events_has_nothing_to_ask() -> None:
    found = overview(log())
    assert (found.end, found.activity, found.actor, found.relation) == (0, [], None, None)


def test_a_pair_s_past_ends_before_the_step_and_tells_the_directions() -> None:
    events = log((0, 0, 1, 1), (1, 1, 0, 2), (0, 0, 2, 2), (0, 0, 1, 3), (1, 0, 0, 4))
    found = pair_past(Past(events), "a", "b", 4)
    assert [(s, found.relation[w], f) for s, w, f in zip(found.step, found.which, found.forward, strict=True)] == [
        (1, "r", True),
        (2, "s", False),
        (3, "r", True),
    ]
    assert found.total == 3
    assert pair_past(Past(events), "b", "a", 4).forward == [False, True, False]
    assert pair_past(Past(events), "a", "b", 1).total == 0


def test_a_pair_with_a_long_past_shows_its_newest_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_EVENTS", 2)
    found = pair_past(Past(log(*[(0, step % 2, 1, step) for step in range(5)])), "a", "b", 9)
    assert (found.step, found.total) == ([3, 4], 5)


def test_the_outcome_is_what_happened_at_the_step_and_unknown_beyond_the_data() -> None:
    events = log((0, 0, 1, 1), (0, 0, 2, 1), (0, 1, 2, 1), (2, 0, 0, 1), (0, 0, 1, 2))
    assert outcome(events, "r", 1, subject="a") == ["b", "c"]
    assert outcome(events, "r", 1, object="a") == ["c"]
    assert outcome(events, "s", 2, object="a") == []
    assert outcome(events, "r", 3, subject="a") is None


def test_the_backbone_s_view_has_the_ranks_of_the_forecast(client: Any, live: LiveForecaster) -> None:
    everyone = live.events.n_entities
    forecast = client.post("/v1/forecast", json={**NAMED, "top": everyone}).json()
    before = {c["name"]: c["backbone_rank"] for c in forecast["candidates"]}
    last = max(before, key=lambda name: before[name])
    params = {**NAMED, "object": last, "step": forecast["step"]}
    seen = client.get("/explore/backbone", params={**params, "top": everyone}).json()
    assert {o["name"]: o["rank"] for o in seen} == before
    assert sum(o["share"] for o in seen) == pytest.approx(1)
    short = client.get("/explore/backbone", params={**params, "top": 3}).json()
    assert [o["rank"] for o in short[:3]] == sorted(before.values())[:3]
    assert short[3:] == [o for o in seen if o["name"] == last]


def test_reasons_are_the_predictor_s_own(client: Any, live: LiveForecaster) -> None:
    predictor, step = live.view.predictor, live.view.events.end
    for names in (
        {"subject": "Arvan", "relation": "visit", "object": "Belmor"},
        {"subject": "Arvan", "object": "Belmor"},
        {"relation": "visit", "object": "Belmor"},
    ):
        three = (names.get(side) for side in ("subject", "relation", "object"))
        told = client.get("/explore/reasons", params={**names, "step": step}).json()
        assert told
        assert told == [one.sentence for one in predictor.reasons(*three)]
    assert client.get("/explore/reasons", params={"subject": "Arvan", "step": step}).status_code == 422
    assert client.get("/explore/reasons", params={**NAMED, "object": "Nobody", "step": step}).status_code == 404


def test_the_page_s_queries_see_an_event_as_soon_as_it_is_stored(client: Any) -> None:
    event = {"subject": "Arvan", "relation": "visit", "object": "<i>Newland</i>", "time": "2024-02-10"}
    stored = client.post("/v1/events", json={"source": "test", "key": "one", "events": [event]})
    assert stored.status_code == 200
    end = client.get("/explore/overview").json()["end"]
    params = {"actor": "Arvan", "candidate": "<i>Newland</i>"}
    assert client.get("/explore/pair", params={**params, "step": end}).json()["total"] == 1
    assert client.get("/explore/pair", params={**params, "step": end - 1}).json()["total"] == 0
    assert client.get("/explore/outcome", params={**NAMED, "step": end - 1}).json() == ["<i>Newland</i>"]


def test_what_cannot_be_answered_is_refused_in_the_service_s_own_way(client: Any) -> None:
    unknown = client.get("/explore/pair", params={"actor": "Arvann", "candidate": "Kel", "step": 3})
    assert unknown.status_code == 404
    assert "Arvan" in unknown.json()["error"]
    far = client.get("/explore/backbone", params={**NAMED, "object": "Kel", "step": LAST_STEP - 1})
    assert far.status_code == 200
    for step in ("-1", "x", str(2**40)):
        wrong = client.get("/explore/outcome", params={**NAMED, "step": step})
        assert wrong.status_code == 422
        assert wrong.json().keys() == {"error", "suggestions"}


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_serves_the_page_to_this_machine_alone_and_ends_well(recurrence_run: Path, tmp_path: Path) -> None:
    words = [recurrence_run, "--store", tmp_path / "events.duckdb", "--no-browser"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVE, "explore", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None, process.communicate()
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            assert b"<title>bridgemem explorer</title>" in answer.read()
        unseen = urllib.request.Request(f"{found[0]}/explore", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(unseen, timeout=60)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [" route=/explore status=421 " in line for line in err.splitlines()] == [True]


def test_the_command_opens_the_page_that_it_serves(recurrence_run: Path, tmp_path: Path) -> None:
    shown: list[str] = []
    came = threading.Event()

    def show(address: str) -> None:
        shown.append(address)
        came.set()

    def serve(*_: Any) -> None:
        came.wait(60)

    with mock.patch("webbrowser.open", show), mock.patch("bridgemem.cli.explore.listen_forever", serve):
        done = bridgemem("explore", recurrence_run, "--store", tmp_path / "events.duckdb")
    assert done.code == 0, done.err
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/explore", shown[0])


def test_without_plotly_the_command_says_what_to_install_and_opens_nothing(
    recurrence_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    asset.cache_clear()
    store = tmp_path / "events.duckdb"
    assert ".[explore]" in bridgemem("explore", recurrence_run, "--store", store).refused()
    assert not store.exists()


# --- quality ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(recurrence_run: Path, tmp_path: Path) -> Run:
    folder = Path(shutil.copytree(recurrence_run, tmp_path / "run"))
    done = bridgemem("evaluate", folder, "--records", tmp_path / "records.jsonl")
    assert done.code == 0, done.err
    return Run(folder)


def test_quality_shows_what_was_measured_and_parts_of_all_of_it(evaluated: Run) -> None:
    found = quality(evaluated)
    records = measured_rows(evaluated)["test"]
    assert (found.split, found.queries) == ("test", records[0]["queries"])
    for m in found.measured:
        chosen = None if m.method == "backbone" else "time" if m.filter == "raw" else m.filter
        (record,) = [r for r in records if (r["method"], r["filter"], r["selected_by"]) == (m.method, m.filter, chosen)]
        assert m.metrics == {name: record[name] for name in m.metrics}
        assert m.gain == record["gain"]
    assert {(m.method, m.filter) for m in found.measured} == {
        (method, f) for method in ("backbone", "bridgemem") for f in ("raw", "static", "time")
    }
    for f in ("static", "time"):
        own = [part for part in found.parts if part.filter == f]
        assert sum(part.queries for part in own) == found.queries
        for group in ("history", "entities"):
            assert sum(s.queries for s in found.strata if (s.group, s.filter) == (group, f)) == found.queries
        (whole,) = [m for m in found.measured if (m.method, m.filter) == ("bridgemem", f)]
        assert sum(p.queries * p.gain[0] for p in own) / found.queries == pytest.approx(whole.gain["mrr"][0])


def test_the_parts_of_a_cross_fitted_residual_go_by_its_name(evaluated: Run) -> None:
    rows = measured_rows(evaluated)["test"]
    rows += [{**r, "method": "learned", "cross_fit": 0.25} for r in rows if r["method"] == "bridgemem"]
    (evaluated.folder / "metrics.json").write_text(json.dumps({"test": rows}))
    columns = read_table(evaluated.ranks_path("test"))
    learned = {f"rank_{f}.learned.{f}": columns[f"rank_{f}.bridgemem.{f}"] for f in ("static", "time")}
    write_table(evaluated.ranks_path("test"), {**columns, **learned})
    assert {part.method for part in quality(evaluated).parts} == {"bridgemem", "learned"}
    assert {m.method for m in quality(evaluated).measured if m.remark == ", cross-fitted"} == {"learned"}


def test_a_residual_that_was_fitted_on_the_queries_shown_is_remarked_on(evaluated: Run) -> None:
    rows = measured_rows(evaluated)["test"]
    learned = [{**r, "method": "learned"} for r in rows if r["method"] == "bridgemem"]
    for split, marked in (("test", set[str]()), ("valid", {"learned"})):
        shown = {split: [{**r, "split": split} for r in (*rows, *learned)]}
        (evaluated.folder / "metrics.json").write_text(json.dumps(shown))
        shutil.copyfile(evaluated.ranks_path("test"), evaluated.folder / "ranks.valid.parquet")
        assert {m.method for m in quality(evaluated).measured if m.remark == ", fitted on these queries"} == marked
        assert {m.method for m in quality(evaluated).measured if m.remark} == marked


def test_quality_of_a_run_that_was_never_evaluated_says_what_to_do(recurrence_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recurrence_run, tmp_path / "run"))
    (folder / "metrics.json").unlink(missing_ok=True)
    found = quality(Run(folder))
    assert (found.split, found.measured) == (None, ())
    assert "bridgemem evaluate" in found.why


@pytest.mark.parametrize("content", [{"test": [{"mrr": 1}]}, {"test": "high"}, [1], {"test": []}, {}])
def test_figures_that_cannot_be_read_are_a_sentence_and_no_failure(evaluated: Run, content: Any) -> None:
    (evaluated.folder / "metrics.json").write_text(json.dumps(content))
    found = quality(evaluated)
    assert found.split is None
    assert found.why.endswith(".")
