"""Another run served between two requests: swapped when it is good, refused when it is not, rolled back by its link."""

from __future__ import annotations

import gc
import json
import math
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient

from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import refresh
from bridgemem.live.switching import RefusedRunError, Switch
from bridgemem.live.versions import history, promote, rollback
from bridgemem.runs import Run
from bridgemem.service.admin import Admin
from bridgemem.service.app import create_app
from commands import bridgemem

pytest_plugins = ("small_runs",)
ASKED = {"subject": "Arvan", "relation": "visit"}
NEWS = [("Arvan", "visit", "Kel", "2024-02-10"), ("Arvan", "visit", "Newland", "2024-02-10")]
ADMIN = {"Authorization": "Bearer boss"}


@dataclass
class Place:
    """A folder of runs with a link, and a store that both runs follow."""

    home: Path
    store: EventStore
    switch: Switch

    @property
    def link(self) -> Path:
        return self.home / "current"

    def refreshed(self) -> Path:
        refresh(Run(self.home / "mine"), self.store, self.home / "mine-2")
        self.switch._now.follow_again()
        return self.home / "mine-2"


@pytest.fixture
def place(recurrence_run: Path, tmp_path: Path) -> Iterator[Place]:
    home = tmp_path / "runs"
    shutil.copytree(recurrence_run, home / "mine")
    promote(home / "mine", home / "current")
    with EventStore(tmp_path / "events.duckdb") as store:
        switch = Switch(home / "current", store, Forecaster.load)
        switch.add(NEWS, "wire", "1")
        yield Place(home, store, switch)


def test_a_refreshed_run_is_served_from_the_next_request_on(place: Place) -> None:
    client = TestClient(create_app(place.switch, admin=Admin(place.switch, "boss")))
    first = client.post("/v1/forecast", json=ASKED)
    assert first.json()["model_version"].startswith("mine@")
    old = weakref.ref(place.switch._now), weakref.ref(place.switch.view), weakref.ref(place.switch.view.predictor.past)
    promote(place.refreshed(), place.link)
    done = client.post("/v1/reload", headers=ADMIN).json()
    assert done["changed"] is True
    assert (done["before"], done["model_version"].split("@")[0]) == (first.json()["model_version"], "mine-2")
    second = client.post("/v1/forecast", json=ASKED)
    assert second.json()["model_version"] == second.headers["bridgemem-model"] == done["model_version"]
    assert client.get("/v1/model").json()["model_version"] == done["model_version"]
    assert client.get("/v1/model").json()["events"] == 602  # the stored events are read once
    why = client.post("/v1/explain", json={**ASKED, "object": "Kel"}).json()
    many = client.post("/v1/forecasts", json={"queries": [ASKED]}).json()
    assert why["model_version"] == many["model_version"] == done["model_version"]
    told = client.get("/metrics").text
    assert f'bridgemem_model{{version="{done["model_version"]}"}} 1.0' in told
    assert first.json()["model_version"] not in told
    assert 'bridgemem_reloads_total{outcome="served"} 1.0' in told
    assert client.post("/v1/reload", headers=ADMIN).json()["changed"] is False
    gc.collect()
    assert [reference() for reference in old] == [None] * 3  # nothing of the old model is kept in memory


def test_batches_go_on_after_a_swap_and_repeats_are_known(place: Place) -> None:
    promote(place.refreshed(), place.link)
    place.switch.reload()
    assert place.switch.add(NEWS, "wire", "1").replayed
    receipt = place.switch.add([NEWS[0], ("Kel", "visit", "Arvan", "2024-02-11")], "wire", "2")
    assert (receipt.accepted, receipt.duplicates, receipt.late) == (2, 1, 0)
    assert len(place.switch.view.events) == 604
    place.switch.retract(["e1"])
    assert len(place.switch.view.events) == 603


def broken(run: Path, how: str) -> None:
    if how == "a file is missing":
        (run / "model.safetensors").unlink()
    elif how == "no run":
        shutil.rmtree(run)
    elif how == "tensors":
        path = run / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-40])
    else:
        shutil.rmtree(run)
        rows = ["subject,relation,object,time"]
        rows += [f"A{i % 5},r{i % 3},B{i % 7},2024-01-{1 + i % 28:02}" for i in range(400)]
        (run.parent / "other.csv").write_text("\n".join(rows))
        words = ("-b", "recurrence", "--residual", "bridgemem", "--set", "max_epochs=1", "--set", "width=8")
        assert bridgemem("fit", "-d", run.parent / "other.csv", "-o", run, *words).code == 0


@pytest.mark.parametrize("how", ["a file is missing", "no run", "tensors", "other data"])
def test_a_bad_run_is_refused_and_the_old_one_serves_on(place: Place, how: str) -> None:
    run = place.refreshed()
    promote(run, place.link)
    broken(run, how)
    client = TestClient(create_app(place.switch, admin=Admin(place.switch, "boss")))
    before = client.post("/v1/forecast", json=ASKED).json()
    answer = client.post("/v1/reload", headers=ADMIN)
    assert answer.status_code == 409
    assert answer.json()["error"].startswith("mine-2 was refused (")
    assert answer.json()["error"].endswith("is served on.")
    assert client.post("/v1/forecast", json=ASKED).json() == before
    assert place.switch.add([("Kel", "visit", "Lor", "2024-02-11")], "wire", "2").late == 0
    assert 'bridgemem_reloads_total{outcome="refused"} 1.0' in client.get("/metrics").text


def test_a_model_that_cannot_answer_is_refused_before_anyone_asks_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = LiveForecaster.forecast

    def broken(self: LiveForecaster, *asked: Any, **how: Any) -> Any:
        found = forecast(self, *asked, **how)
        if self.run.folder.name == "mine-2":
            found[0] = replace(found[0], score=math.nan)
        return found

    monkeypatch.setattr(LiveForecaster, "forecast", broken)
    promote(place.refreshed(), place.link)
    with pytest.raises(RefusedRunError, match=r"its scores are not finite\); mine@\w+ is served on"):
        place.switch.reload()
    assert place.switch.run.folder.name == "mine"


def test_the_link_is_watched_and_a_refused_run_is_not_tried_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, reload = list[str](), Switch.reload

    def counted(self: Switch) -> Any:
        tried.append(self.source.resolve().name)
        return reload(self)

    monkeypatch.setattr(Switch, "reload", counted)
    run = place.refreshed()
    shutil.copytree(run, place.home / "bad")
    (place.home / "bad" / "model.safetensors").unlink()

    def until(name: str) -> None:
        for _ in range(500):
            if tried and tried[-1] == name and (name == "bad" or place.switch.run.folder.name == name):
                return
            time.sleep(0.02)
        pytest.fail(f"{name} was never served: {tried}")

    with TestClient(create_app(place.switch, admin=Admin(place.switch, "boss", watch=0.01))) as client:
        promote(place.home / "bad", place.link)
        until("bad")
        time.sleep(0.1)
        assert tried == ["bad"]
        promote(run, place.link)
        until("mine-2")
        assert client.post("/v1/forecast", json=ASKED).json()["model_version"].startswith("mine-2@")
        rollback(place.link)
        until("bad")  # which was promoted before
        rollback(place.link)
        for _ in range(500):
            if place.switch.run.folder.name == "mine":
                break
            time.sleep(0.02)
    assert place.switch.run.folder.name == "mine"


def test_forecasts_and_batches_go_on_while_runs_are_swapped(place: Place) -> None:
    run, ended = place.refreshed(), threading.Event()
    client = TestClient(create_app(place.switch, admin=Admin(place.switch, "boss")))
    seen: set[str] = set()
    wrong: list[str] = []

    def ask() -> None:
        while not ended.is_set():
            answer = client.post("/v1/forecast", json={**ASKED, "at": "2024-02-10", "top": 1})
            if answer.status_code != 200 or answer.json()["model_version"] != answer.headers["bridgemem-model"]:
                wrong.append(answer.text)
            seen.add(answer.json()["model_version"].split("@")[0])

    def post() -> None:
        for number in range(30):
            event = {"subject": "Kel", "relation": "visit", "object": "Lor", "time": "2024-02-12"}
            sent = {"source": "p", "key": str(number), "events": [event]}
            if client.post("/v1/events", json=sent).status_code != 200:
                wrong.append("post")

    asking, posting = (threading.Thread(target=work, daemon=True) for work in (ask, post))
    asking.start()
    posting.start()
    try:
        for name in ("mine-2", "mine", "mine-2", "mine"):
            promote(place.home / name, place.link)
            assert client.post("/v1/reload", headers=ADMIN).status_code == 200
        posting.join(60)
    finally:
        ended.set()
        asking.join(60)
    assert wrong == []
    assert seen == {"mine", "mine-2"}
    assert len(place.switch.view.events) == 600 + 2 + 30
    assert run.is_dir()


def test_admin_routes_need_the_admin_token(place: Place) -> None:
    app = create_app(place.switch, "everyone", admin=Admin(place.switch, "boss"))
    client = TestClient(app)
    for header in ({}, {"Authorization": "Bearer everyone"}, {"Authorization": "Bearer wrong"}):
        answer = client.post("/v1/reload", headers=header)
        assert (answer.status_code, "admin token" in answer.json()["error"]) == (401, True)
    assert client.post("/v1/reload", headers=ADMIN).status_code == 200
    assert client.get("/v1/model", headers=ADMIN).status_code == 200
    # without a token for clients it is asked for all the same
    assert TestClient(create_app(place.switch, admin=Admin(place.switch, "boss"))).post("/v1/reload").status_code == 401


# --- the link --------------------------------------------------------------------------------------------------------


def test_promote_and_rollback_move_a_link_and_remember_it(recurrence_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(recurrence_run, tmp_path / name)
    link = tmp_path / "current"
    for name in ("a", "b", "c"):
        assert bridgemem("promote", tmp_path / name, "--link", link).code == 0
    assert [one.run for one in history(link)] == ["a", "b", "c"]
    moved = bridgemem("rollback", link, "--json").json
    assert (moved["run"], moved["before"]) == ("b", "c")
    assert moved["version"].startswith("b@")
    assert link.resolve() == tmp_path / "b"
    assert bridgemem("rollback", link).out.startswith(f"{link} is now a, version a@")
    assert "no earlier run that is still there" in bridgemem("rollback", link).refused()


def test_only_the_last_runs_of_the_link_are_kept(recurrence_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "unrelated"):
        shutil.copytree(recurrence_run, tmp_path / name)
    link = tmp_path / "current"
    for name in ("a", "b"):
        promote(tmp_path / name, link)
    said = bridgemem("promote", tmp_path / "c", "--link", link, "--keep", "2").out
    assert "Deleted, as older than what is kept: a." in said
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["b", "c", "current", "unrelated"]
    assert [one.run for one in history(link)] == ["b", "c"]


def test_what_cannot_be_promoted_is_refused(recurrence_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recurrence_run, tmp_path / "runs" / "a"))
    with pytest.raises(SettingsError, match="does not lie next to"):
        promote(run, tmp_path / "current")
    with pytest.raises(SettingsError, match="is not a link"):
        promote(run, run)
    assert "there is no run" in bridgemem("promote", run / "none", "--link", run / "current").refused()
    with pytest.raises(NotFoundError, match="there is no link"):
        rollback(tmp_path / "runs" / "current")
    (tmp_path / "runs" / "current.history.json").write_text("[{]")
    assert "begin a new history" in bridgemem("promote", run, "--link", tmp_path / "runs" / "current").refused()


def test_a_version_changes_with_what_answers_depend_on(recurrence_run: Path, tmp_path: Path) -> None:
    one, other = (Path(shutil.copytree(recurrence_run, tmp_path / name / "run")) for name in ("a", "b"))
    assert Run(one).version == Run(other).version
    (other / "README.md").write_text("another card")
    assert Run(one).version == Run(other).version
    path = other / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert Run(one).version != Run(other).version
