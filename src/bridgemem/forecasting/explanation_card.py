"""Explanation cards: why candidates have their scores, on one page for people, with a picture of each pair's past.

Every name comes from data and is escaped: a card holds no markup, link or script but its own.
"""

from __future__ import annotations

import base64
import html
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bridgemem.errors import SettingsError
from bridgemem.events.log import EventLog
from bridgemem.forecasting.explanations import BridgeMemExplanation, Explanation, LearnedExplanation
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.showing import percent
from bridgemem.storage.whole import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".md", ".html")
MOST_EVENTS = 400  # the newest that a picture shows
MOST_RELATIONS = 12
NAME_LENGTH = 32  # letters of a name that fit into a picture
COLOURS = ("#4E79A7", "#F28E2B")  # from the actor, to the actor
NO_PICTURE = "There is no picture: drawing needs matplotlib, which the extra 'plots' installs."


@dataclass(frozen=True)
class PairEvent:
    """One event between the two: step, relation by name, and whether it went from candidate to actor."""

    step: int
    relation: str
    back: bool


@dataclass(frozen=True)
class Shown:
    """One candidate of a card: its explanation, its probability if there is one, and what the picture shows."""

    explanation: Explanation
    step: int
    events: tuple[PairEvent, ...]
    p_given_event: float | None = None


def pair_events(past: Past, actor: int, candidate: int, step: int) -> tuple[PairEvent, ...]:
    """What happened between the two before a step, oldest first; the newest ones where there are very many."""
    found, shown = PairEvents.of(past, actor, candidate, step, most=MOST_EVENTS).once(), past.events.relations.shown
    columns = (column.flip(0).tolist() for column in (found.step, found.relation, found.direction))
    return tuple(PairEvent(when, shown(relation), bool(back)) for when, relation, back in zip(*columns, strict=True))


def write_card(path: Path, shown: Sequence[Shown], events: EventLog) -> list[Path]:
    """A card as .html, with its pictures inside, or as .md, with its pictures next to it; returns all files."""
    check_format(path)
    pictures = [timeline(one, events) for one in shown]
    if path.suffix.lower() == ".html":
        _write(path, _html(shown, pictures))
        return [path]
    picture_files = [
        None if picture is None else file
        for picture, file in zip(pictures, card_files(path, len(shown))[1:], strict=True)
    ]
    for file, picture in zip(picture_files, pictures, strict=True):
        if file is not None and picture is not None:
            _write(file, picture)
    _write(path, _markdown(shown, picture_files))
    return [path, *(file for file in picture_files if file is not None)]


def card_files(path: Path, candidates: int) -> list[Path]:
    """The files that a card of that many candidates may consist of."""
    if path.suffix.lower() == ".html":
        return [path]
    return [path, *(path.with_name(f"{path.stem}-{n}.svg") for n in range(1, candidates + 1))]


def check_format(path: Path) -> Path:
    """The path of a card, if it has an ending that can be written."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"a card must be written as {' or '.join(FORMATS)}, and {path.name} is neither.")
    return path


def _write(path: Path, text: str) -> None:
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def timeline(one: Shown, events: EventLog) -> str | None:
    """The pair's events by relation and time as SVG: colour is direction, shade is recency; None without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    rows = _relations(one.events)
    # a fixed salt and no date keep the same picture the same file; text stays text, so that every script is shown
    with mpl.rc_context({"svg.hashsalt": "bridgemem", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(7, 1.7 + 0.28 * max(len(rows), 1)), layout="constrained")
        axes = figure.add_subplot()
        _draw_events(axes, one, rows)
        e = one.explanation
        axes.axvline(one.step, color="#30343B", linestyle="--", linewidth=1)
        axes.set_yticks(range(len(rows)), [_short(name) for name in rows])
        axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        axes.invert_yaxis()
        _label_times(axes, one, events)
        title = figure.suptitle(f"{_short(e.actor)} and {_short(e.candidate)} before {e.time}", fontsize=9)
        legend = figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=8) if one.events else None
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#EEEEEE", linewidth=0.5)
        for text in (title, *axes.get_yticklabels(), *(legend.get_texts() if legend else ())):
            text.set_parse_math(False)  # a name may hold dollar signs
        drawn = io.StringIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of letters that only the reader's own font has
            figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _relations(events: Sequence[PairEvent]) -> list[str]:
    """The relations that have a row of their own, the most frequent first; the others share the last one."""
    counts: dict[str, int] = {}
    for event in events:
        counts[event.relation] = counts.get(event.relation, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return names if len(names) <= MOST_RELATIONS else [*names[: MOST_RELATIONS - 1], "other relations"]


def _draw_events(axes: Axes, one: Shown, rows: list[str]) -> None:
    from matplotlib.colors import to_rgba

    e = one.explanation
    if not one.events:
        axes.text(
            0.5, 0.5, "the two never interacted", transform=axes.transAxes, ha="center", va="center", color="#777777"
        )
        return
    oldest = max(one.step - one.events[0].step, 1)
    for back, colour, marker in ((False, COLOURS[0], ">"), (True, COLOURS[1], "<")):
        own = [event for event in one.events if event.back == back]
        if not own:
            continue
        at = [event.step for event in own]
        aside = 0.13 if back else -0.13  # so that both directions of one step are seen
        row = [aside + (rows.index(x.relation) if x.relation in rows else len(rows) - 1) for x in own]
        shades = [to_rgba(colour, 1 - 0.75 * (one.step - event.step) / oldest) for event in own]
        axes.scatter(at, row, s=36, c=shades, marker=marker, linewidths=0)
        by, to = (e.candidate, e.actor) if back else (e.actor, e.candidate)
        axes.scatter([], [], s=36, c=colour, marker=marker, label=f"{_short(by)} to {_short(to)}")


def _label_times(axes: Axes, one: Shown, events: EventLog) -> None:
    """A few steps of the axis by the times that users write."""
    first = one.events[0].step if one.events else one.step - 1
    ticks = sorted({int(t) for t in np.linspace(first, one.step, 5)})
    axes.set_xticks(ticks, [events.clock.label(tick) if tick >= 0 else "" for tick in ticks])
    axes.set_xlim(first - 0.03 * (one.step - first) - 0.5, one.step + 0.03 * (one.step - first) + 0.5)


def _short(name: str) -> str:
    """A name on one line, without what no reader shows, and not so long that it leaves the picture."""
    plain = "".join(c if c.isprintable() else " " for c in name)
    return plain if len(plain) <= NAME_LENGTH else plain[: NAME_LENGTH - 1] + "…"


def _chance(one: Shown) -> str:
    """The probability in words, with what it is a probability of."""
    p = one.p_given_event
    return "" if p is None else f"Probability {percent(p)}, given that such an event happens."


def _parts(e: Explanation) -> list[tuple[str, str]]:
    """The score as a sum, line by line."""
    lines = [("the backbone's log score", f"{e.base:+.4f}")]
    if isinstance(e, BridgeMemExplanation):
        what = f"lambda {e.lam:g} x gate {e.gate:.4f} x A {e.a:.4f}"
        lines += [(f"{what} (A_ct {e.a_ct:.4f}, A_nn {e.a_nn:.4f}, rho {e.rho:.4f})", f"{e.residual:+.4f}")]
    elif isinstance(e, LearnedExplanation) and e.groups:
        lines += [("the relation, all groups at their mean", f"{e.start:+.4f}")]
        lines += [(group, f"{part:+.4f}") for group, part in e.groups.items()]
    return [*lines, ("score", f"{e.score:+.4f}")]


def _event_lines(e: Explanation) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [(str(x), x.time, str(x.lag), f"{x.share:.1%}", f"{x.part:+.4f}") for x in e.events]
    if isinstance(e, LearnedExplanation) and e.earlier is not None:
        x = e.earlier
        many = "1 earlier event" if x.count == 1 else f"{x.count:,} earlier events"
        lines.append((many, f"{x.first} to {x.last}", "", f"{x.share:.1%}", f"{x.part:+.4f}"))
    return lines


# what Markdown reads inside a line: an underscore at the start of a word, a colon as in http: or :name:, and so on
MARKUP = re.compile(r"[\\`*{}\[\]#|~<$@^]|(?<![^\W_])_|&(?=[#\w])|:(?=[^\s\d])|=(?==)|(?<=\bwww)\.", re.IGNORECASE)
EVENT_HEADER = ("event", "when", "steps before", "share", "part")
PARTS = "Exact parts of the score"
PART_HEADER = ("part of the score", "value")


def _title(e: Explanation) -> str:
    return f"Why {e.candidate}, for {e.query()} at {e.time}"


def _alt(e: Explanation) -> str:
    return f"Timeline of the events between {e.actor} and {e.candidate} before {e.time}"


def markdown_text(text: str) -> str:
    """Text from data as plain words inside a Markdown line: nothing in it is markup, a link, a table's bar, or HTML.

    What is markup nowhere but at the start of a line, or after such a mark, stays readable as it is.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return MARKUP.sub(lambda m: f"&#{ord(m[0])};", line)


def _markdown(shown: Sequence[Shown], pictures: Sequence[Path | None]) -> str:
    def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        lines = [f"| {' | '.join(header)} |", "|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|"]
        return [*lines, *(f"| {' | '.join(markdown_text(cell) for cell in row)} |" for row in rows), ""]

    lines: list[str] = []
    for one, picture in zip(shown, pictures, strict=True):
        e = one.explanation
        lines += [f"# {markdown_text(_title(e))}", "", markdown_text(e.headline()), ""]
        lines += [*(f"- {markdown_text(str(reason))}" for reason in e.reasons), ""]
        lines += [_chance(one), ""] if one.p_given_event is not None else []
        if picture is None:
            lines += [NO_PICTURE, ""]
        else:
            # the file has our own name; only characters that a link cannot hold are spelt out
            link = re.sub(r"[^\w.-]", lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), picture.name)
            lines += [f"![{markdown_text(_alt(e))}]({link})", ""]
        lines += [f"## {PARTS}", "", markdown_text(e.sentence()), "", *table(PART_HEADER, _parts(e))]
        lines += table(EVENT_HEADER, _event_lines(e)) if e.events else []
    return "\n".join(lines)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
p, li { overflow-wrap: anywhere; }
summary { cursor: pointer; color: #4E79A7; }
img { width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _html(shown: Sequence[Shown], pictures: Sequence[str | None]) -> str:
    def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        head = "".join(f"<th scope='col'>{cell}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"

    parts = []
    for one, picture in zip(shown, pictures, strict=True):
        e = one.explanation
        parts += [f"<h1>{html.escape(_title(e))}</h1>", f"<p>{html.escape(e.headline())}</p>"]
        parts.append(f"<ul>{''.join(f'<li>{html.escape(str(reason))}</li>' for reason in e.reasons)}</ul>")
        parts += [f"<p>{html.escape(_chance(one))}</p>"] if one.p_given_event is not None else []
        if picture is None:
            parts.append(f"<p>{html.escape(NO_PICTURE)}</p>")
        else:
            # as an image: no browser runs what stands in one, and two pictures share no ids
            data = base64.b64encode(picture.encode()).decode()
            parts.append(f'<img alt="{html.escape(_alt(e))}" src="data:image/svg+xml;base64,{data}">')
        parts += [f"<details><summary>{PARTS}</summary><p>{html.escape(e.sentence())}</p>"]
        parts.append(table(PART_HEADER, _parts(e)))
        if e.events:
            parts.append(table(EVENT_HEADER, _event_lines(e)))
        parts.append("</details>")
    title = html.escape(_title(shown[0].explanation)) if shown else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )
