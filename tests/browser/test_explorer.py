"""The explorer in a real browser: asked by hand and by keyboard, on a phone and in the dark, with hostile names."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("plotly", reason="needs the extra 'explore'")
pytest.importorskip("playwright", reason="needs playwright, of the extra 'dev'")

import uvicorn
from playwright.sync_api import BrowserContext, Dialog, Page, sync_playwright

from bridgemem.cli.serve import listen
from bridgemem.evaluation.strata import read_strata
from bridgemem.events.log import Clock
from bridgemem.explorer.routes import explorer_router
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.ledger import Ledger
from bridgemem.runs import Run
from bridgemem.service.app import create_app
from bridgemem.showing import percent
from commands import TINY_READER, bridgemem, measured_rows
from fits import loaded

pytest_plugins = ("small_runs",)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("needs a Chromium browser, such as Debian's package chromium", allow_module_level=True)

HOSTILE = "<script>alert(1)</script>"
IMAGE = '<b>bold</b><img src="x" onerror="alert(2)">'
DESK, PHONE = (1280, 900), (375, 812)
DRAWN = "#timeline .main-svg, #timeline.empty"
PAGES = {
    "quality": "#support .main-svg",
    "outlook": "#outlook-chart .main-svg",
    "record": "#record-asked:not(:empty)",
}
WAIT = 20_000


@contextmanager
def served(run: Path, store: Path, residual: str) -> Iterator[tuple[str, LiveForecaster]]:
    """The address of a run's page, which a thread of this process serves."""
    with listen("127.0.0.1", 0) as place, EventStore(store) as events:
        live = LiveForecaster(loaded(run, residual=residual), events)
        server = uvicorn.Server(uvicorn.Config(create_app(live, page=explorer_router), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}/explore", live
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def run(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run with both residuals."""
    home = tmp_path_factory.mktemp("explored")
    folder = home / "run"
    for words in (
        ("fit", "-d", own_csv, "-b", "recurrence", "-o", folder, *TINY_READER, "--residual", "learned"),
        ("evaluate", folder, "--records", home / "records.jsonl"),
    ):
        done = bridgemem(*words)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def learned(run: Path) -> Iterator[tuple[str, LiveForecaster]]:
    with served(run, run.with_name("learned.duckdb"), "learned") as found:
        yield found


@pytest.fixture(scope="module")
def papers(run: Path) -> Iterator[tuple[str, LiveForecaster]]:
    with served(run, run.with_name("fixed.duckdb"), "bridgemem") as found:
        yield found


@pytest.fixture(scope="module")
def window() -> Iterator[BrowserContext]:
    # the superuser, which containers run as, can have no sandbox
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield browser.new_context()
        browser.close()


@pytest.fixture
def opened(window: BrowserContext) -> Iterator[Callable[..., Page]]:
    """Opens pages; afterwards none may have failed, complained, shown a dialog or asked anyone but its own server."""
    problems: list[str] = []

    def dismissed(dialog: Dialog) -> None:
        problems.append(f"a dialog said {dialog.message}")
        dialog.dismiss()

    def open_page(address: str, size: tuple[int, int] = DESK, dark: bool = False, **asked: str | int) -> Page:
        page = window.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", dismissed)
        origin = address.removesuffix("/explore")
        page.on("request", lambda r: None if r.url.startswith((origin, "data:")) else problems.append(r.url))
        page.goto(f"{address}#{urlencode(asked)}")
        page.wait_for_selector(PAGES.get(str(asked.get("page")), "#ahead-chart .main-svg" if "ask" in asked else DRAWN))
        return page

    yield open_page
    for page in window.pages:
        page.close()
    assert problems == []


def shown(page: Page) -> list[tuple[str, str]]:
    """(name, "before → after") of the candidates in the list."""
    rows = page.locator("#list li")
    return [(row.locator(".name").inner_text(), row.locator(".ranks").inner_text()) for row in rows.all()]


def expected(live: LiveForecaster, *asked: Any, **how: Any) -> list[tuple[str, str]]:
    return [(c.name, f"{c.backbone_rank} → {c.rank}") for c in live.forecast(*asked, **how)]


def settle(page: Page, candidate: str | None = None) -> None:
    """Wait until the list is as the query says, and the panel next to it as the candidate says."""
    page.wait_for_selector("#list:not([aria-busy])")
    name = candidate or page.locator("#list li[aria-selected=true]").get_attribute("data-name")
    page.wait_for_function("name => document.getElementById('why-title').textContent === `Why ${name}?`", arg=name)


def exact(page: Page) -> None:
    """Open the exact parts of the score."""
    page.locator("#exact").evaluate("box => box.open = true")
    page.wait_for_selector("#backbone .main-svg")


def total(page: Page) -> tuple[float, float]:
    """The sum of the parts in the table after the bars, and the score."""
    cells = page.locator("#parts tbody tr td:last-child").all_text_contents()
    *parts, score = (float(cell.replace("\u2212", "-")) for cell in cells)
    assert len(parts) > 1
    return sum(parts), score


def test_the_page_opens_on_a_forecast_that_is_the_service_s_own(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, live = learned
    page = opened(address)
    actor, relation = page.input_value("#actor"), page.input_value("#relation")
    assert shown(page) == expected(live, actor, relation)
    first = live.forecast(actor, relation)[0].name
    assert page.locator("#list li[aria-selected=true]").get_attribute("data-name") == first
    why = live.explain(actor, relation, first)
    assert page.locator("#headline").inner_text() == why.headline()
    assert page.locator("#reasons li").all_inner_texts() == [reason.sentence for reason in why.reasons]
    exact(page)
    assert page.locator("#sentence").inner_text() == why.sentence()
    assert page.locator("#backbone .main-svg").count()
    assert "nobody knows yet" in page.locator("#asked").inner_text()


@pytest.mark.parametrize("kind", ["papers", "learned"])
def test_no_greek_letter_is_seen_before_the_exact_parts_are_opened(
    kind: str, opened: Callable[..., Page], request: pytest.FixtureRequest
) -> None:
    page = opened(request.getfixturevalue(kind)[0], subject="Arvan", relation="visit")
    words = page.locator("#ask").inner_text()
    assert not set(words) & set("αβγδελμρστλΛΣ")
    assert "log score" not in words
    assert "gate" not in words


@pytest.mark.parametrize("kind", ["papers", "learned"])
def test_the_bars_add_up_to_the_score(kind: str, opened: Callable[..., Page], request: pytest.FixtureRequest) -> None:
    address, live = request.getfixturevalue(kind)
    page = opened(address, subject="Arvan", relation="visit")
    for row in range(3):
        name = page.locator("#list li").nth(row).get_attribute("data-name")
        assert name is not None
        page.locator("#list li").nth(row).click()
        settle(page, name)
        exact(page)
        page.locator("section:has(#parts) summary").evaluate("s => s.parentElement.open = true")
        added, score = total(page)
        assert added == pytest.approx(score, abs=2e-5)
        assert score == pytest.approx(live.explain("Arvan", "visit", name).score, abs=1e-6)


def test_a_name_is_found_by_a_few_letters_and_the_keyboard_alone(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, live = learned
    page = opened(address, subject="Arvan", relation="visit")
    page.focus("#actor")
    page.keyboard.type("esk")
    page.wait_for_selector("#actor-list li:has-text('Eskara')")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")  # the other direction
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "relation"
    page.keyboard.type("sanc")
    page.wait_for_selector("#relation-list li:has-text('sanction')")
    page.keyboard.press("Enter")
    wanted = expected(live, relation="sanction", object="Eskara")
    page.wait_for_function("name => document.querySelector('#list li').dataset.name === name", arg=wanted[0][0])
    settle(page)
    assert shown(page) == wanted
    assert page.input_value("#actor") == "Eskara"
    page.focus("#actor")
    page.keyboard.type("nobody at all")
    page.keyboard.press("Escape")
    assert page.input_value("#actor") == "Eskara"


def test_arrows_move_through_the_candidates_and_the_focus_is_seen(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, live = learned
    page = opened(address, subject="Arvan", relation="visit")
    names = [c.name for c in live.forecast("Arvan", "visit")]
    page.focus("#latest")
    page.focus("#later")
    page.keyboard.press("Tab")
    page.locator("#list li[aria-selected=true]").focus()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 9), ("Home", 0), ("ArrowUp", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.name") == names[place]
    settle(page, names[0])
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator("#list li[tabindex='0']").count() == 1
    page.focus("#tab-ask")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#support .main-svg")
    assert page.evaluate("document.activeElement.id") == "tab-quality"


def test_the_slider_goes_back_to_what_was_known_then(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, live = learned
    page = opened(address, subject="Arvan", relation="visit", step=20)
    assert page.locator("#time").inner_text() == "2024-01-21"
    assert shown(page) == expected(live, "Arvan", "visit", at="2024-01-21")
    page.focus("#step")
    page.keyboard.press("ArrowLeft")
    wanted = expected(live, "Arvan", "visit", at="2024-01-20")
    page.wait_for_function("() => document.getElementById('asked').textContent.includes('at 2024-01-20')")
    settle(page)
    assert shown(page) == wanted
    assert "step=19" in page.url
    log = live.events.between(19, 20)
    happened = {
        log.entities.names[o] for o in log.object[(log.subject == log.entities.id("Arvan")) & (log.relation == 1)]
    }
    marked = page.locator("#list li:has(.happened)").evaluate_all("rows => rows.map(row => row.dataset.name)")
    assert set(marked) == happened & {name for name, _ in wanted}
    page.click("#latest")
    page.wait_for_function("() => document.getElementById('asked').textContent.includes('nobody knows yet')")


def test_hostile_names_are_only_text(opened: Callable[..., Page], run: Path, tmp_path: Path) -> None:
    with served(run, tmp_path / "hostile.duckdb", "bridgemem") as (address, live):
        rows = [(HOSTILE, "visit", "Arvan", "2024-02-10"), ("Arvan", IMAGE, HOSTILE, "2024-02-10")]
        live.add([*rows, (HOSTILE, "visit", IMAGE, "2024-02-11")], source="test", key="hostile")
        page = opened(address, subject=HOSTILE, relation="visit", candidate=IMAGE)
        assert page.input_value("#actor") == HOSTILE
        listed = page.locator("#list .name").all_text_contents()
        assert IMAGE in listed
        page.goto(f"{address}#{urlencode({'subject': 'Arvan', 'relation': IMAGE, 'candidate': HOSTILE})}")
        settle(page, HOSTILE)
        page.focus("#actor")
        page.keyboard.type("<")
        page.wait_for_selector("#actor-list li")
        assert HOSTILE in page.locator("#actor-list li span").all_text_contents()
        words = page.locator("#timeline").get_attribute("aria-label")
        assert words is not None
        assert HOSTILE in words
        page.wait_for_function("() => document.querySelector('#timeline svg').textContent.includes('<b>bold</b>')")
        # nothing but the page's own two scripts, and no element that a name asked for
        assert page.locator("script").count() == 2
        assert page.locator("img, main b b, #list b, [onerror]").count() == 0


@pytest.mark.parametrize("which", ["ask", "outlook", "record", "quality"])
def test_a_phone_shows_everything_without_scrolling_sideways(
    which: str, opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    page = opened(learned[0], PHONE, page=which)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    boxes = page.locator(f"#{which} .card:visible, #{which} .asked").evaluate_all(
        "cards => cards.map(card => card.getBoundingClientRect().right)"
    )
    assert boxes
    assert max(boxes) <= PHONE[0]


def test_the_page_is_dark_where_the_reader_wants_it_and_its_charts_too(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    page = opened(learned[0], dark=True)
    exact(page)
    colours = (
        "[getComputedStyle(document.body).backgroundColor, document.querySelector('#evidence .ytick text').style.fill]"
    )
    dark = page.evaluate(colours)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"before => {colours}[1] !== before", arg=dark[1])
    light = page.evaluate(colours)
    assert brightness(dark[0]) < 60 < 200 < brightness(light[0])
    assert brightness(light[1]) < 60 < 200 < brightness(dark[1])


def brightness(colour: str) -> float:
    """0 to 255, of rgb(r, g, b)."""
    return sum(float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3


def test_quality_shows_the_figures_that_were_measured(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster], run: Path
) -> None:
    page = opened(learned[0], page="quality")
    (record,) = [
        r
        for r in measured_rows(Run(run))["test"]
        if (r["method"], r["filter"], r["selected_by"]) == ("learned", "time", "raw")
    ]
    shown = [float(text) for text in page.locator(".tile strong").all_inner_texts()]
    # within the last digit: a browser rounds halves up, Python to the even digit
    assert shown == pytest.approx([record[m] for m in ("mrr", "hits1", "hits3", "hits10")], abs=0.00051)
    rows = page.locator("#figures tbody tr").all_text_contents()
    assert len(rows) == 9
    assert any(f"{record['hits10']:.4f}" in row and "learned" in row for row in rows)
    page.locator("#metric input[value=hits10]").check()
    page.wait_for_function("() => document.getElementById('filters').getAttribute('aria-label').startsWith('Hits@10')")
    page.locator("#support-filter input[value=static]").check()
    assert page.locator("#support-table tbody tr").count() > 2
    strata = page.locator("#strata-table tbody tr td:first-child").all_text_contents()
    assert {"seen triple", "both seen"} <= set(strata)
    kept = read_strata(Run(run), "test")
    assert kept is not None
    shown = [
        f"{one.rows['learned']['mrr']:.4f}" for one in kept.strata if (one.group, one.filter) == ("history", "time")
    ]
    own = page.locator("#strata-table tbody tr td:nth-child(6)").all_text_contents()
    assert [float(text) for text in own[: len(shown)]] == pytest.approx(list(map(float, shown)), abs=0.00011)


def test_the_page_reads_the_clock_as_the_service_does(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    page = opened(learned[0])
    told = "async ([clock, step]) => (await import('/explore/ask.js')).label(clock, step)"
    for clock in (
        Clock("integer", 3, 7),
        Clock("date", 1_388_534_400, 86_400),
        Clock("date", 1_388_556_000, 86_400),
        Clock("date", -86_400 * 900, 604_800),
        Clock("date", 1_388_534_400, 900),
    ):
        for step in (0, 97):
            assert page.evaluate(told, [vars(clock), step]) == clock.label(step)


def cells(page: Page, column: int) -> list[str]:
    """A column of the table of answers."""
    return page.locator(f"#ahead-table tbody tr td:nth-child({column})").all_text_contents()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_what_whom_and_whether_show_the_predictor_s_own_answers(
    size: tuple[int, int], opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, predictor = learned[0], learned[1].view.predictor
    page = opened(address, size, ask="what", subject="Arvan", relation="visit", other="Belmor", horizon=7)
    what = predictor.what("Arvan", "Belmor", horizon=7)
    assert cells(page, 2) == [percent(c.p_given_event) for c in what]
    assert cells(page, 3) == [percent(c.p_event) for c in what]
    assert percent(what.query.p_event) in page.locator("#ahead-sentence").inner_text()
    pair = [one.sentence for one in predictor.reasons("Arvan", None, "Belmor")]
    page.wait_for_function("n => document.querySelectorAll('#ahead-reasons li').length > n", arg=len(pair))
    told = page.locator("#ahead-reasons li").all_text_contents()
    best = predictor.reasons(what[0].subject, what[0].relation, what[0].object)
    assert told == list(dict.fromkeys([*pair, *(one.sentence for one in best)]))
    page.locator("input[name=kind][value=whom]").check(force=True)
    whom = [c.name for c in predictor.partners("Arvan", horizon=7)]
    page.wait_for_function("name => document.querySelector('#ahead-table tbody td')?.textContent === name", arg=whom[0])
    assert cells(page, 1) == whom
    page.locator("input[name=kind][value=whether]").check(force=True)
    page.wait_for_function("() => document.getElementById('ahead-title').textContent === 'Whether and when'")
    page.fill("#horizon", "5")
    page.locator("#horizon").blur()
    page.wait_for_function("() => [...document.querySelectorAll('#ahead-table td')].some(td => td.textContent === '5')")
    wanted = predictor.whether("Arvan", "visit", object="Belmor", horizon=5)
    assert cells(page, 3) == [percent(w.p_event) for w in wanted.within]
    assert "ask=whether" in page.url
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_what_if_is_shown_next_to_the_plain_answer_and_stored_nowhere(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    address, live = learned
    events = len(live.view.events)
    page = opened(address, ask="whether", subject="Arvan", relation="visit", other="Belmor")
    page.locator("#assume > summary").click()
    assert page.input_value("#assume-subject") == "Arvan"
    page.click("#assume-add")
    page.wait_for_selector("#changes-table tbody tr")
    assert page.locator("#changes-table tbody tr").count() > 3
    assert page.locator("#changes-title").inner_text() == "As if 1 event had happened"
    assert len(live.view.events) == events
    page.click("#assume-clear")
    page.wait_for_selector("#changes", state="hidden")


def test_the_outlook_lists_the_events_to_come(opened: Callable[..., Page], learned: tuple[str, LiveForecaster]) -> None:
    address, live = learned
    page = opened(address, page="outlook")
    own = live.view.predictor.outlook(horizon=7, top=50)
    first = page.locator("#outlook-table tbody tr td:first-child").first.text_content()
    assert first == f"{own[0].subject} → {own[0].relation} → {own[0].object}"
    page.locator("#outlook-kind input").nth(1).check(force=True)
    page.wait_for_function("() => document.getElementById('outlook-asked').textContent.startsWith('Most surprising')")


def test_the_track_record_is_that_of_the_ledger(opened: Callable[..., Page], run: Path, tmp_path: Path) -> None:
    with served(run, tmp_path / "issued.duckdb", "learned") as (address, live):
        page = opened(address, page="record")
        assert "No forecast was issued yet" in page.locator("#record-asked").inner_text()
        predictor, ledger = live.view.predictor, Ledger(live.store)
        ledger.issue(predictor.outlook(horizon=1, top=10), predictor=predictor, version=live.view.version)
        after = live.events.clock.label(live.events.end + 3)
        live.add([("Arvan", "visit", "Kel", after)], source="test", key="later")
        page = opened(address, page="record")
        page.wait_for_selector("#record-table tbody tr")
        (score,) = ledger.score().scores
        assert float(page.locator(".tile strong").first.inner_text()) == pytest.approx(score.brier, abs=0.00051)


def test_an_axis_of_probabilities_never_repeats_a_tick(
    opened: Callable[..., Page], learned: tuple[str, LiveForecaster]
) -> None:
    page = opened(learned[0], PHONE, ask="whom", subject="Arvan")
    draw = """async (most) => {
      const { barChart } = await import("/explore/probability.js");
      const rows = [{ name: "x", value: most }, { name: "y", value: most / 3 }];
      await barChart(document.getElementById("ahead-chart"), rows, "t");
      return [...document.querySelectorAll("#ahead-chart .xtick text")].map((tick) => tick.textContent);
    }"""
    for most in (1.0, 0.4, 0.07, 0.012, 0.004, 0.0003, 0.00001):
        ticks = page.evaluate(draw, most)
        assert len(ticks) > 1
        assert len(set(ticks)) == len(ticks), (most, ticks)
