"""One query answered in the terminal: who, what, with whom, whether; and what assumed events change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgemem.cli.output import counted, emit, say, table, warn

if TYPE_CHECKING:
    from bridgemem.forecasting.ahead import Chance
    from bridgemem.forecasting.predictor import Answers, Candidate, Predictor


@dataclass(frozen=True)
class Asked:
    """One query as the options give it."""

    subject: str | None
    relation: str | None
    object: str | None
    at: str | None
    horizon: int | None
    top: int
    why: bool = False

    def of(self, forecaster: Predictor, top: int | None = None) -> Any:
        """Answers to who, ranked events or partners, or a chance: as what is left out asks."""
        how: dict[str, Any] = {"at": self.at, "horizon": self.horizon}
        if self.relation is not None and self.subject is not None and self.object is not None:
            return forecaster.whether(self.subject, self.relation, object=self.object, **how)
        how["top"] = self.top if top is None else top
        if self.relation is not None:
            return forecaster.forecast(self.subject, self.relation, object=self.object, **how)
        if self.subject is not None and self.object is not None:
            return forecaster.what(self.subject, self.object, **how)
        return forecaster.partners(self.subject or self.object or "", **how)


def answer_one(opened: tuple[Predictor, int, str], asked: Asked, assume: Path | None, as_json: bool) -> None:
    """Answer one query, and with assumed events tell what they change."""
    from bridgemem.events.leaps import remark_ahead

    forecaster, stored, remark = opened
    assumed, changes = None, list[list[str]]()
    if assume is not None:
        plain, forecaster = forecaster, forecaster.assume(assume)
        count = len(forecaster.events) - len(plain.events)
        # both are asked for the same step: the first after the assumed events unless a time was named
        asked = replace(asked, at=asked.at or forecaster.events.clock.label(forecaster.end))
        before = dict(_told(asked.of(plain, plain.events.n_entities)))
        made = [(answer, before.get(answer), now) for answer, now in _told(asked.of(forecaster))]
        told = [{"answer": answer, "plain": then, "assumed": now} for answer, then, now in made]
        assumed = {"events": count, "changes": told}
        changes = [[answer, _shown(then), _shown(now)] for answer, then, now in made]
        remark = " ".join(filter(None, (f"As if {counted(count, 'event')} had happened; nothing is kept.", remark)))
    found = asked.of(forecaster)
    if far := remark_ahead(forecaster.events, found.query.step):
        warn(f"bridgemem: {far}")
    result, text = _shown_as(found, forecaster, asked)
    reasons = _reasons(found, forecaster, asked) if asked.why else None

    def whole() -> None:
        text()
        _show_reasons(reasons)
        if changes:
            table("\nWhat the assumed events change", ["answer", "plain", "assumed"], changes)
        _say_all(remark)

    emit({**result, "reasons": reasons, "assumed": assumed, "stored_events": stored}, as_json, whole)


def _reasons(found: Any, forecaster: Predictor, asked: Asked) -> list[dict[str, Any]]:
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


def _told(found: Any) -> list[tuple[str, float | None]]:
    """Each answer and its probability: of a chance and of partners p_event, else p_given_event."""
    from bridgemem.forecasting.ahead import Chance, PartnerCandidate, RelationCandidate

    if isinstance(found, Chance):
        return [(f"within {counted(one.steps, 'step')}", one.p_event) for one in found.within]
    made: list[tuple[str, float | None]] = []
    for one in found:
        if isinstance(one, RelationCandidate):
            made.append((one.cells()[0], one.p_given_event))
        else:
            made.append((one.name, one.p_event if isinstance(one, PartnerCandidate) else one.p_given_event))
    return made


def _shown(p: float | None) -> str:
    from bridgemem.forecasting.ahead import percent

    return "" if p is None else percent(p)


def _shown_as(found: Any, forecaster: Predictor, asked: Asked) -> tuple[dict[str, Any], Callable[[], None]]:
    """The document of an answer, and what prints it."""
    from bridgemem.forecasting.ahead import Chance, Ranked

    if isinstance(found, Chance):
        made = {**asdict(found.query), "within": list(map(asdict, found.within)), "median": found.median}
        return made, partial(_show_chance, found)
    if isinstance(found, Ranked):
        made = {**asdict(found.query), "candidates": list(map(asdict, found))}
        return made, partial(_show_ranked, found)
    p_event = _with_anybody(found, forecaster, asked)
    return {**asdict(found.query), "candidates": found, "p_event": p_event}, partial(_show_answers, found, p_event)


def _with_anybody(found: Answers, forecaster: Predictor, asked: Asked) -> float | None:
    """p_event of such an event with anybody within a horizon; None without a horizon, or where it is not known."""
    # a relation that came after the fit has no residual, and is not foreseen; events on disk are not tallied
    if asked.horizon is None or forecaster.heads is None or found.query.residual is None or forecaster.mapped:
        return None
    who, what = {"object": asked.object, "at": asked.at}, (asked.subject, asked.relation)
    return forecaster.whether(*what, **who, horizon=asked.horizon).query.p_event


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
        say(f"{query}: nothing happened before that a partner could be known from.")
    if query.p_event is not None:
        say(f"p_event of any event between the two: {_shown(query.p_event)}, from {_times(query.past_events)}.")
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
            "" if c.p_given_event is None else f"{c.p_given_event:.1%}",
            f"{c.score:.3f}",
            f"{c.backbone_score:.3f}",
            f"{c.residual:+.3f}",
        ]
        for c in found
    ]
    table(title, header, rows)
