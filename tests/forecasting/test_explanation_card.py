"""Explanation cards: one sentence a candidate, a picture of the pair, and names that can do no harm."""

from __future__ import annotations

import base64
import html
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.forecasting.explanation_card import MOST_EVENTS, Shown, markdown_text, pair_events, timeline, write_card
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.residuals.scoring import Choice
from builders import log_of, random_log, random_transitions, rows_of
from commands import left_in

EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "| a | [link](javascript:alert(1)) `code` **bold** ![x](y)",
    "$\\frac{1}{0}$ & <!-- --> ]]>",
    "]]><script>alert(2)</script>\n# heading",
    "Älvdalen 日本 \u202eturned",
)


@pytest.fixture(scope="module")
def forecaster() -> Predictor:
    plain = random_log(4, n=300)
    names = (*EVIL, *(f"entity {i}" for i in range(len(EVIL), plain.n_entities)))
    relations = ("<b>meet</b>", "$x_1$ & co", "visit", "</svg><script>alert(3)</script>")
    columns = (plain.subject, plain.relation, plain.object, plain.step)
    events = EventLog(*columns, Vocabulary("entity", names), Vocabulary("relation", relations))
    backbone = Recurrence.fit(Dataset.chronological("small", events))
    return Predictor(Past(events), backbone, random_transitions(events), Choice(lam=4.0, gate="none", tau=30.0))


def shown(of: Predictor, actor: int = 0, candidates: tuple[int, ...] = (1, 2, 3, 4, 5), step: int = 25) -> list[Shown]:
    return [
        Shown(of.explain(actor, 1, c, at=step), step, pair_events(of.past, actor, c, step), 0.25) for c in candidates
    ]


class Page(HTMLParser):
    """The tags, attributes and text that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_holds_its_own_tags_and_no_others(forecaster: Predictor, tmp_path: Path) -> None:
    made = shown(forecaster)
    assert write_card(tmp_path / "card.html", made, forecaster.events) == [tmp_path / "card.html"]
    page = Page((tmp_path / "card.html").read_text(encoding="utf-8"))
    own = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "p",
        "ul",
        "li",
        "details",
        "summary",
        "img",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert {tag for tag, _ in page.tags} <= own
    assert {name for tag, given in page.tags for name in given} <= {
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "alt",
        "src",
        "scope",
    }
    for one in made:
        assert one.explanation.sentence() in page.text
        assert all(reason.sentence in page.text for reason in one.explanation.reasons)
    assert "Probability 25.0%, given that such an event happens." in page.text


def test_a_picture_is_sound_xml_and_its_names_are_text(forecaster: Predictor, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    write_card(tmp_path / "card.html", shown(forecaster), forecaster.events)
    pictures = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", (tmp_path / "card.html").read_text("utf-8"))
    assert len(pictures) == 5
    everything = ""
    for picture in pictures:
        root = ET.fromstring(base64.b64decode(picture))
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert not tags & {"script", "foreignObject", "image", "a"}
        everything += "".join(root.itertext())
    assert "<script>alert(1)</script>" in everything
    assert "$x_1$ & co" in everything


def test_a_markdown_card_has_its_pictures_next_to_it_and_no_markup_of_names(
    forecaster: Predictor, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    made = shown(forecaster)
    files = write_card(tmp_path / "a card.md", made, forecaster.events)
    assert left_in(tmp_path) == sorted(path.name for path in files)
    assert len(files) == 6
    text = (tmp_path / "a card.md").read_text(encoding="utf-8")
    assert "<" not in text
    assert "`" not in text
    assert text.count("\n# ") + text.startswith("# ") == 5
    assert re.findall(r"\]\((.*?)\)", text) == [f"a%20card-{n}.svg" for n in range(1, 6)]
    for one in made:
        # reading the references back gives the very words
        assert " ".join(one.explanation.sentence().replace("\u202e", " ").split()) in html.unescape(text)


def test_text_for_markdown_is_one_line_without_markup() -> None:
    for name in EVIL:
        made = markdown_text(name)
        assert not set(made) & set("<|`*[]\n$\\")
        assert html.unescape(made) == " ".join(name.replace("\u202e", " ").split())


def test_text_for_markdown_stays_readable_where_nothing_is_markup() -> None:
    for plain in ("(A, visit, ?) at 2024-02-22 12:30: +1.50 - no! -> A & B", "Citizen_(India)", "x = 3 + 4 > 6; so"):
        assert markdown_text(plain) == plain
    for markup in (
        "_word_",
        "a __b__",
        "see http://x.org",
        "www.x.org",
        "me@x.org",
        ":smile:",
        "&lt;b",
        "==x==",
        "~~x~~",
    ):
        assert markdown_text(markup) != markup
        assert html.unescape(markdown_text(markup)) == markup


def test_the_timeline_holds_the_pairs_events_before_the_step_and_no_others(forecaster: Predictor) -> None:
    names = forecaster.events.relations.names
    for candidate in (0, 1, 4):
        expected = [
            (t, names[r], s != 0)
            for s, r, o, t in rows_of(forecaster.events)
            if t < 20 and (s, o) in ((0, candidate), (candidate, 0))
        ]
        found = pair_events(forecaster.past, 0, candidate, 20)
        assert [(e.step, e.relation, e.back) for e in found] == expected
    many = log_of([(0, 0, 1, t) for t in range(MOST_EVENTS + 5)])
    assert pair_events(Past(many), 0, 1, MOST_EVENTS + 5)[0].step == 5


def test_the_same_card_is_the_same_file_and_unseen_candidates_have_one_too(
    forecaster: Predictor, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    one = shown(forecaster, candidates=(1,))[0]
    assert timeline(one, forecaster.events) == timeline(one, forecaster.events)
    unseen = shown(forecaster, candidates=(1,), step=0)[0]
    assert unseen.events == ()
    assert "the two never interacted" in (timeline(unseen, forecaster.events) or "")


def test_a_card_without_matplotlib_says_so(
    forecaster: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("card.md", "card.html"):
        assert write_card(tmp_path / name, shown(forecaster), forecaster.events) == [tmp_path / name]
        assert "drawing needs matplotlib" in (tmp_path / name).read_text(encoding="utf-8").replace("&#x27;", "'")


def test_other_endings_are_refused(forecaster: Predictor, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\.md or \.html, and card\.pdf is neither"):
        write_card(tmp_path / "card.pdf", shown(forecaster), forecaster.events)
    assert left_in(tmp_path) == []
