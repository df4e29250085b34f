"""The page at /docs in a real browser: it shows the routes, tries one out, and asks for the token."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("playwright", reason="needs playwright, of the extra 'dev'")

from playwright.sync_api import sync_playwright

from bridgemem.cli.serve import listen
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from bridgemem.service.connections import make_server
from bridgemem.service.limits import Limits
from fits import loaded

pytest_plugins = ("small_runs",)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MODEL = "#operations-about-model_v1_model_get"


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser, such as Debian's package chromium")
def test_a_route_is_tried_out_after_the_right_token(recurrence_run: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as place, EventStore(tmp_path / "events.duckdb") as store:
        app = create_app(LiveForecaster(loaded(recurrence_run), store), token="s3cret")
        server = make_server(app, Limits())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = browser.new_page()
                said: list[str] = []
                page.on("console", lambda message: said.append(message.text))
                page.on("pageerror", lambda problem: said.append(str(problem)))
                page.goto(f"http://127.0.0.1:{place.getsockname()[1]}/docs")
                page.fill("#token", "wrong")
                page.click("#ask button")
                page.wait_for_function("document.getElementById('wrong').textContent.includes('token')")
                page.fill("#token", "s3cret")
                page.click("#ask button")
                page.click(f"{MODEL} .opblock-summary")
                page.click("text=Try it out")
                page.click("button.execute")
                page.wait_for_selector(f"{MODEL} .live-responses-table")
                assert '"events": 600' in page.inner_text(f"{MODEL} .live-responses-table")
                browser.close()
        finally:
            server.should_exit = True
            thread.join()
    assert {text for text in said if "401" not in text} == set()  # nothing was kept out by the page's policy
