"""One query answered in the terminal: who, what, with whom, whether; and what assumed events change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgemem.cli.output import counted, emit, say, table, warn

if TYPE_CHECKING:
    from bridgemem.forecasting.ahead import Chance
    from bridgemem.forecasting.answers import Answers, Candidate
    from bridgemem.forecasting.asked import Asked, Found
    from bridgemem.forecasting.predictor import Predictor


def answer_one(
    opened: tuple[Predictor, int, str],
    asked: Asked,
    assume: Path | None,
    as_json: bool,
    *,
    why: bool = False,
    issue: Callable[[Any, Predictor], int] | None = None,
    max_ahead: int | None = None,
) -> None:
    """Answer one query, and with assumed events say what they change.

    issue: what keeps the answer in a ledger. max_ahead: how far ahead assumed events may lie.
    """
    from bridgemem.events.leaps import remark_ahead
    from bridgemem.forecasting.asked import as_document, suppose

    forecaster, stored, remark = opened
    assumed = None
    if assume is not None:
        forecaster, asked, found, assumed = suppose(forecaster, asked, assume, max_ahead)
        told = f"As if {counted(assumed.events, 'event')} had happened; nothing is kept."
        remark = " ".join(filter(None, (told, assumed.remark, remark)))
    else:
        found = asked.of(forecaster)
    if far := remark_ahead(forecaster.events, found.query.step):
        warn(f"bridgemem: {far}")
    issued = None if issue is None else issue(found, forecaster)
    result = as_document(found, forecaster, asked)
    reasons = _reasons(found, forecaster, asked) if why else None

    def whole() -> None:
        _show(found, result)
        _show_reasons(reasons)
        if assumed is not None:
            changes = [[one.answer, _shown(one.plain), _shown(one.assumed)] for one in assumed.changes]
            table(f"\nWhat the assumed events change in {assumed.probability}", ["answer", "plain", "assumed"], changes)
        _say_all(remark, f"Issued as forecast {issued}." if issued else "")

    emit({**result, "reasons": reasons, "assumed": assumed, "issued": issued, "stored_events": stored}, as_json, whole)


def _reasons(found: Found, forecaster: Predictor, asked: Asked) -> list[dict[str, Any]]:
    """What happened before each answer, in plain sentences."""
    from bridgemem.forecasting.ahead import Chance, PartnerCandidate, RelationCandidate

    how: dict[str, Any] = {"at": asked.at}
    if isinstance(found, Chance):
        made = forecaster.reasons(asked.subject or "", asked.relation, asked.object or "", **how)
        return [{"answer": str(found.query), "reasons": made}]
    told = []
    for one in found:
        answer, triple = one.cells()[0] if isinstance(one, RelationCandidate) else one.name, _triple(one, asked)
        if asked.subject is None and not isinstance(one, PartnerCandidate):
            how["candidate"] = "subject"
        told.append({"answer": answer, "reasons": forecaster.reasons(*triple, **how)})
    return told


def _triple(one: Any, asked: Asked) -> tuple[str, str | None, str]:
    """The event that an answer stands for; without a relation any event of the two."""
    from bridgemem.forecasting.ahead import PartnerCandidate, RelationCandidate

    if isinstance(one, RelationCandidate):
        return one.subject, one.relation, one.object
    if isinstance(one, PartnerCandidate):
        return asked.subject or asked.object or "", None, one.name
    if asked.subject is None:
        return one.name, asked.relation, asked.object or ""
    return asked.subject, asked.relation, one.name


def _show_reasons(reasons: list[dict[str, Any]] | None) -> None:
    """All sentences of a single answer; of several the first two each."""
    if not reasons:
        return
    say("\nWhat happened before")
    for one in reasons:
        shown = one["reasons"] if len(reasons) == 1 else one["reasons"][:2]
        say(f"- {one['answer']}: {' '.join(map(str, shown))}")


def _shown(p: float | None) -> str:
    from bridgemem.showing import percent

    return "" if p is None else percent(p)


def _show(found: Found, result: dict[str, Any]) -> None:
    """Print an answer."""
    from bridgemem.forecasting.ahead import Chance, Ranked

    if isinstance(found, Chance):
        _show_chance(found)
    elif isinstance(found, Ranked):
        _show_ranked(found)
    else:
        _show_answers(found, result["p_event"])


def _show_answers(found: Answers, p_event: float | None) -> None:
    by = ", by the learned residual" if found.query.residual == "learned" else ""
    _show_candidates(f"{found.query}{by}", found)
    say(found.query.meaning)
    if p_event is not None:
        steps = _within(found.query.horizon or 1)
        say(f"p_event: {_shown(p_event)}, that there is such an event with anybody {steps}.")


def _show_ranked(found: Any) -> None:
    query = found.query
    if found:
        table(str(query), found[0].header, [one.cells() for one in found])
    else:
        say(f"{query}: no earlier events to rank partners from.")
    if query.p_event is not None:
        which = "any event between the two" if query.relation is None else "such an event with anybody"
        say(f"p_event of {which}: {_shown(query.p_event)}, from {_times(query.past_events)}.")
    _say_all(query.meaning, query.remark)


def _show_chance(chance: Chance) -> None:
    query = chance.query
    rows = [[str(one.steps), one.until, _shown(one.p_event)] for one in chance.within]
    table(str(query), ["steps", "until", "p_event"], rows)
    say(f"{_within(query.horizon).capitalize()}: {_shown(query.p_event)}, from {_times(query.past_events)}.")
    if chance.median is not None:
        say(f"As likely as not within {counted(chance.median, 'step')}.")
    _say_all(query.meaning, query.remark)


def _within(horizon: int) -> str:
    return "in this step" if horizon == 1 else f"within {horizon:,} steps"


def _times(events: int) -> str:
    return counted(events, "earlier event") if events else "no earlier event"


def _say_all(*sentences: str) -> None:
    for sentence in filter(None, sentences):
        say(sentence)


def _show_candidates(title: str, found: list[Candidate]) -> None:
    header = ["candidate", "rank", "backbone", "p_given_event", "score", "backbone score", "residual"]
    rows = [
        [
            c.name,
            str(c.rank),
            str(c.backbone_rank),
            _shown(c.p_given_event),
            f"{c.score:.3f}",
            f"{c.backbone_score:.3f}",
            f"{c.residual:+.3f}",
        ]
        for c in found
    ]
    table(title, header, rows)
