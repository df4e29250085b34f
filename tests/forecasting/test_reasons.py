"""Reasons: every sentence is a count of past events, which a loop over all of them finds too."""

from __future__ import annotations

import re

import pytest

from bridgemem.events.dates import parse_date
from bridgemem.events.log import Clock, EventLog
from bridgemem.forecasting.reasons import Reason, reasons, reasons_with_anybody
from bridgemem.memory.past import Past
from builders import Row, base_and_delta, futures, log_of, random_log, rows_of, small_world, together

KINDS = ["before", "pair", "followed", "after", "share", "common"]


def asked(events: EventLog, step: int) -> list[tuple[int, int | None, int]]:
    relations = [0, 1, events.n_relations, 2 * events.n_relations - 1, None]
    pairs = [(0, 1), (1, 0), (0, 0), (2, 5), (3, 11), (11, 10), (4, 0)]
    return [(actor, relation, candidate) for actor, candidate in pairs for relation in relations]


def counted_again(rows: list[Row], query: tuple[int, int | None, int], n_relations: int, one: Reason) -> int | tuple:
    """What a sentence counts, by a loop over all events before the step; a step counts once."""
    actor, directed, candidate = query
    pair = [row for row in rows if {row[0], row[2]} == {actor, candidate}]
    if one.kind == "common":
        mine, theirs = (
            {(r[2] if r[0] == who else r[0]) for r in rows if who in (r[0], r[2])} for who in (actor, candidate)
        )
        return len(mine & theirs)
    if directed is None:
        return len({row[3] for row in pair})
    inverse, relation = divmod(directed, n_relations)
    subject, object_ = (candidate, actor) if inverse else (actor, candidate)
    same = {row[3] for row in pair if row[:3] == (subject, relation, object_)}
    if one.kind == "before":
        return len(same)
    if one.kind == "pair":
        return len(pair)
    since, until = int(one.since or 0), int(one.until or 0)
    if one.kind == "share":
        side = 2 if inverse else 0
        told = {row for row in rows if row[1] == relation and row[side] == actor and since <= row[3] <= until}
        return len({s for s in same if since <= s <= until}), len(told)
    met = {row[3] for row in pair}
    if one.kind == "after":
        last = pair[-1]  # rows are in total order
        met = {row[3] for row in pair if row[:3] == last[:3]}
    assert one.within is not None
    met = {s for s in met if since <= s <= until}
    return sum(any(s < t <= s + one.within for t in same) for s in met), len(met)


def check_all(past: Past, step: int) -> set[str]:
    events, found = past.events, set()
    rows = [row for row in rows_of(events) if row[3] < step]
    for query in asked(events, step):
        actor, relation, candidate = query
        made = reasons(past, actor, relation, candidate, step=step)
        assert made
        for one in made:
            if one.kind == "share" and one.of == 0:
                assert "never did" in one.sentence or "Nobody did" in one.sentence
                continue
            again = counted_again(rows, query, events.n_relations, one)
            told = one.count if one.of is None else (one.count, one.of)
            assert again == told, (query, one)
            if one.of is not None and one.until is not None:
                assert int(one.until) + (one.within or 0) < step  # nothing is counted whose outcome is not known
            if 0 < one.count < (one.of or 0):
                unit = "times" if one.kind == "share" else "steps"
                assert f"{one.count:,} of the {one.of:,} {unit}" in one.sentence
                assert one.kind != "share" or "each partner counted once a step" in one.sentence
            found.add(one.kind)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_sentences_say_what_a_loop_over_all_events_counts(seed: int) -> None:
    found = set[str]()
    for step in (1, 9, 17, 25, 29):
        found |= check_all(Past(random_log(seed, n=400)), step)
    assert found == set(KINDS)


def test_sentences_over_base_and_delta_are_those_of_one_log() -> None:
    base, delta = base_and_delta(3)
    one, other = Past(together(base, delta)), Past(base).with_delta(delta)
    for actor, relation, candidate in asked(delta, 40):
        made = [reasons(past, actor, relation, candidate, step=40) for past in (one, other)]
        counts = [[(r.kind, r.count, r.of, r.since) for r in found if r.kind != "after"] for found in made]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("future", ["deleted", "half deleted", "permuted", "corrupted", "moved to now"])
def test_sentences_do_not_see_the_future(future: str) -> None:
    events = small_world().events
    pasts = Past(events), Past(futures(events, 50)[future])
    for actor, relation, candidate in asked(events, 50):
        one, other = (reasons(past, actor, relation, candidate, step=50) for past in pasts)
        assert one == other


def test_a_sentence_reads_like_one() -> None:
    rows = [(0, 0, 1, s) for s in (1, 4, 8, 12)] + [(1, 1, 0, s) for s in (2, 5, 9)] + [(0, 1, 2, 3)]
    events = log_of(rows, 4, 2)
    events = EventLog(
        events.subject, events.relation, events.object, events.step, events.entities, events.relations,
        Clock("date", parse_date("2024-01-01"), 86_400),
    )  # fmt: skip
    said = [str(one) for one in reasons(Past(events), 0, 1 + 2, 1, step=13)]
    assert said[0] == "entity 1 did 'relation 1' to entity 0 on 3 earlier days, last at 2024-01-10, 4 days before."
    assert said[1] == (
        "After 3 of the 6 days on which the two interacted from 2024-01-02 to 2024-01-12, entity 1 did 'relation 1' to "
        "entity 0 within the next day."
    )
    assert said[2] == (
        "After all of the 3 days on which entity 0 did 'relation 0' to entity 1 from 2024-01-02 to 2024-01-12, "
        "entity 1 did 'relation 1' to entity 0 within the next day."
    )
    assert said[3].startswith("All of the 3 times that anybody did 'relation 1' to entity 0 from 2024-01-03")
    assert said[3].endswith("to 2024-01-13, each partner counted once a day, it was entity 1.")
    (never, common, share) = reasons(Past(events), 1, 0, 2, step=13)
    assert never.sentence == "entity 1 and entity 2 never interacted before."
    assert common.sentence == "Both interacted with 1 other before."
    assert share.sentence == "entity 1 never did 'relation 0' to anybody before."


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (Clock("date", 0, 86_400), "on 2 earlier days"),
        (Clock("date", 0, 3600), "in 2 earlier hours"),
        (Clock("date", 0, 7 * 86_400), "in 2 earlier weeks"),
        (Clock("date", 0, 10 * 86_400), "on 2 earlier steps"),
        (Clock(), "on 2 earlier steps"),
    ],
)
def test_the_unit_of_a_count_is_said_and_a_step_counts_once(clock: Clock, said: str) -> None:
    log = log_of([(0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 1, 3)], 2, 1)
    columns = (log.subject, log.relation, log.object, log.step, log.entities, log.relations)
    past = Past(EventLog(*columns, clock))
    (before, *_) = reasons(past, 0, 0, 1, step=5)
    assert (before.count, said in before.sentence) == (2, True)
    assert said in reasons(past, 0, None, 1, step=5)[0].sentence
    assert said in reasons_with_anybody(past, 0, 0, step=5)[0].sentence
    (once, *_) = reasons(past, 0, 0, 1, step=2)
    assert f"{said[:2]} one earlier {said.split()[-1][:-1]}, at" in once.sentence


def test_no_sentence_holds_a_greek_letter_or_a_log_score() -> None:
    for actor, relation, candidate in asked(small_world().events, 50):
        for one in reasons(Past(small_world().events), actor, relation, candidate, step=50):
            assert not re.search("[α-ωΑ-Ω]|score|gate|log", one.sentence)


def test_with_anybody_counts_steps_before_the_one_asked_for() -> None:
    events = small_world().events
    past, step = Past(events), events.end - 5
    for actor, directed in ((0, 0), (1, events.n_relations), (3, 1)):
        inverse, relation = divmod(directed, events.n_relations)
        side = 2 if inverse else 0
        when = sorted(
            {row[3] for row in rows_of(events) if row[1] == relation and row[side] == actor and row[3] < step}
        )
        found = {one.kind: one for one in reasons_with_anybody(past, actor, directed, step=step)}
        assert found["role"].count == len(when)
        if not when:
            assert set(found) == {"role"}
            continue
        assert found["lately"].count == sum(s >= step - 30 for s in when)
        assert (found["role"].since, found["role"].until) == tuple(map(events.clock.label, (when[0], when[-1])))
        cut = Past(events.prefix(step))
        assert reasons_with_anybody(cut, actor, directed, step=step) == tuple(found.values())
