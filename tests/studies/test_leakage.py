"""Query-set leakage: what other queries give away, counted as a plain loop counts it, and no more than that."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tools.publish import tables
from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.recurrence import Popularity, RecurrenceDyadic, RecurrenceSettings
from bridgemem.backbones.scorer import score_queries
from bridgemem.errors import DataError
from bridgemem.evaluation.evaluate import evaluate_backbone
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.studies import leakage
from bridgemem.studies.analysis import leakage_table
from bridgemem.studies.leakage import READINGS, SMOOTHING, WEIGHTS, Asked, Reader, count, measure, read
from builders import Row, dataset_of, log_of, random_log, rows_of, small_world
from measurements import campaign, residual
from precision import FLOAT64, close


def flat(dataset: Dataset) -> Backbone:
    """A backbone to which all candidates are the same."""
    return Popularity.fit(dataset, RecurrenceSettings(popularity_weight=0.0, triple=0.0))


def found(records: Iterable[Record], method: str, filter_name: str) -> Record:
    (one,) = (r for r in records if (r.method, r.filter) == (method, filter_name))
    return one


def directed(row: Row, n_relations: int) -> list[tuple[int, int, int]]:
    """Both queries of a fact, each with its answer."""
    subject, relation, object_, _ = row
    return [(subject, relation, object_), (object_, relation + n_relations, subject)]


def plain_cues(events: EventLog, reading: str, query: tuple[int, int, int]) -> dict[int, set[int]]:
    """What every entity is asked about next to a query (actor, relation, step), by the definition."""
    actor, relation, step = query
    n, found = events.n_relations, defaultdict(set)
    for row in rows_of(events):
        for asker, about, _ in directed(row, n):
            seen = row[3] == step and (reading == "step" or (about >= n) == (relation >= n))
            if seen and (asker, about) != (actor, relation):
                found[asker].add(about)
    return dict(found)


def columns(queries: Queries) -> list[tuple[int, int, int, int]]:
    assert queries.answer is not None
    named = (queries.actor, queries.relation, queries.step, queries.answer)
    return list(zip(*(column.tolist() for column in named), strict=True))


# --- counting and reading, next to a plain loop -----------------------------------------------------------------------


@pytest.mark.parametrize("reading", READINGS)
def test_the_table_of_ratios_is_what_a_plain_count_gives(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage, "AT_ONCE", 100)  # many small batches
    events = random_log(3)
    backbone, past, queries = RecurrenceDyadic.fit(dataset_of(events)), Past(events), Queries.of(events)
    (reader,) = count(queries, backbone, past, [Asked(events, reading)])

    p0 = score_queries(backbone, queries, past).log_p.softmax(1).tolist()
    size = 2 * events.n_relations
    answers, others = np.zeros((size + 1, size)), np.zeros((size + 1, size))
    for p, (actor, relation, step, answer) in zip(p0, columns(queries), strict=True):
        cues, rest = plain_cues(events, reading, (actor, relation, step)), 1 - p[answer]
        for candidate in range(events.n_entities):
            for about in cues.get(candidate, {size}):
                if candidate == answer:
                    answers[about, relation] += 1
                else:
                    others[about, relation] += p[candidate] / rest
    marginal = (answers.sum(1, keepdims=True) + 1) / (others.sum(1, keepdims=True) + 1)
    expected = np.log((answers + SMOOTHING * marginal) / (others + SMOOTHING))
    assert close(reader.ratios.numpy(), expected, FLOAT64)


def some_ratios(events: EventLog) -> Tensor:
    size = 2 * events.n_relations
    return torch.randn((size + 1, size), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reading", READINGS)
def test_a_candidate_takes_the_strongest_of_its_cues_over_that_of_silence(reading: str) -> None:
    events = random_log(5, n=120)
    queries, ratios = Queries.of(events), some_ratios(events)
    row, candidate, cue = Reader(Asked(events, reading), ratios).cues(queries)
    keys = (row * events.n_entities + candidate).tolist()
    assert keys == sorted(set(keys))
    dense = torch.zeros((len(queries), events.n_entities), dtype=torch.float64)
    dense[row, candidate] = cue
    for values, (actor, relation, step, _) in zip(dense.tolist(), columns(queries), strict=True):
        cues = plain_cues(events, reading, (actor, relation, step))
        silence = float(ratios[-1, relation])
        for c in range(events.n_entities):
            best = max((float(ratios[about, relation]) for about in cues.get(c, ())), default=silence)
            assert values[c] == pytest.approx(best - silence, abs=1e-12)


def test_ranks_are_those_of_the_sum_and_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    events = random_log(7)
    backbone, past, filters = RecurrenceDyadic.fit(dataset_of(events)), Past(events), Filters(events)
    queries, reader = Queries.of(events), Reader(Asked(events, "pass"), some_ratios(events))
    ranks = read(queries, backbone, past, filters, [reader], [(0.0, 0.7)])
    monkeypatch.setattr(leakage, "AT_ONCE", 100)
    np.testing.assert_array_equal(read(queries, backbone, past, filters, [reader], [(0.0, 0.7)]), ranks)

    score = score_queries(backbone, queries, past).log_p.double()
    row, candidate, cue = reader.cues(queries)
    score[row, candidate] += 0.7 * cue
    assert queries.answer is not None
    own = score.gather(1, queries.answer[:, None])
    plain = 1 + (score > own).sum(1) + ((score == own).sum(1) - 1) / 2
    assert close(ranks[0, FILTERS.index("raw"), 1], plain)


# --- what a query may see -----------------------------------------------------------------------------------------


def test_its_own_query_is_no_cue_for_an_actor_but_its_other_queries_are() -> None:
    events = log_of([(0, 0, 1, 4), (0, 0, 2, 4), (3, 1, 3, 4), (3, 2, 4, 4)])
    queries, ratios = Queries.of(events), torch.ones((7, 6), dtype=torch.float64)
    ratios[-1] = 0
    row, candidate, cue = Reader(Asked(events, "pass"), ratios).cues(queries)
    given = {(int(r), int(c)): float(v) for r, c, v in zip(row, candidate, cue, strict=True)}
    # asked twice, it is still one query
    assert given[0, 0] == given[2, 0] == 0
    assert given[4, 0] == 1
    # 3 asks itself under relation 1, and is asked under relation 2 as well
    assert given[4, 3] == 1
    assert given[0, 3] == 1
    assert (0, 1) not in given
    single = log_of([(3, 1, 3, 4)])
    told, _ = Asked(single, "pass").other_relations(Queries.of(single), torch.tensor([3, 3]))
    assert told.tolist() == []
    told, about = Asked(single, "step").other_relations(Queries.of(single), torch.tensor([3, 3]))
    assert (told.tolist(), about.tolist()) == ([0, 1], [4, 1])


def test_a_pass_is_blind_to_the_queries_of_the_other_direction() -> None:
    events = random_log(11, n=300, steps=6)
    now = events.step == events.end - 1
    other = events.object.copy()
    other[now] = (other[now] + 1 + np.arange(now.sum()) % 5) % events.n_entities
    changed = replace(events, object=other)
    forward = Queries.of(events).take(torch.from_numpy(np.repeat(now, 2) & (np.arange(2 * len(events)) % 2 == 0)))
    ratios = some_ratios(events)
    for reading, same in (("pass", True), ("step", False)):
        before, after = (Reader(Asked(log, reading), ratios).cues(forward) for log in (events, changed))
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) == same


def test_steps_before_and_after_are_not_read() -> None:
    events = random_log(13)
    now = int(events.step[len(events) // 2])
    ratios, alone = some_ratios(events), events.between(now, now + 1)
    for reading in READINGS:
        whole, single = (Reader(Asked(log, reading), ratios).cues(Queries.of(alone)) for log in (events, alone))
        assert all(torch.equal(a, b) for a, b in zip(whole, single, strict=True))


# --- what it is worth ------------------------------------------------------------------------------------------------


def telling_log() -> EventLog:
    """0 meets one of 1 to 4, and that one goes on to meet 5 in the same step."""
    seen = np.random.default_rng(2).integers(1, 5, size=60).tolist()
    return log_of([row for t, b in enumerate(seen) for row in ((0, 0, b, t), (b, 1, 5, t))], n_relations=2)


def test_answers_that_are_asked_something_are_found() -> None:
    dataset = dataset_of(telling_log())
    records = measure(dataset, flat(dataset))
    # six candidates alike: rank 3.5
    assert found(records, "backbone", "time").mrr == pytest.approx(1 / 3.5)
    # of a pass: (0, r) -> b and (5, r') -> b are told by b's query; the answers of the other two are not asked
    # anything, and stay among five alike
    told = found(records, "leakage:pass", "time")
    assert told.mrr == pytest.approx((1 + 1 / 3 + 1 / 3 + 1) / 4)
    assert told.settings["answers_asked"] == 0.5
    # of both directions: every answer asks back
    whole = found(records, "leakage:step", "time")
    assert whole.mrr == 1
    assert whole.settings["answers_asked"] == 1
    assert whole.gain["mrr"] == pytest.approx([1 - 1 / 3.5] * 3)


def test_queries_that_know_nothing_are_worth_nothing() -> None:
    rng = np.random.default_rng(4)
    rows = np.stack([rng.integers(20, size=3000), rng.integers(3, size=3000), rng.integers(20, size=3000)], axis=1)
    step = np.sort(rng.integers(100, size=3000))
    dataset = dataset_of(log_of(np.column_stack([rows, step]).tolist(), n_entities=20))
    # no two candidates alike: whatever breaks ties, even at random, gains on the mean rank of the tied
    records = measure(dataset, Popularity(Popularity.default, torch.from_numpy(rng.random(20))))
    for name in SELECTION_FILTERS:
        gain, low, _ = found(records, "leakage:pass", name).gain["mrr"]
        assert low <= 0
        assert abs(gain) < 0.01
        # but a fact that is asked both ways gives itself away
        assert found(records, "leakage:step", name).gain["mrr"][1] > 0.1


# --- the protocol ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    dataset = small_world().dataset
    return measure(dataset, RecurrenceDyadic.fit(dataset))


def test_the_backbone_has_the_figures_of_its_evaluation(measured: list[Record]) -> None:
    expected = evaluate_backbone("recurrence-dyadic", small_world().dataset)
    assert [r for r in measured if r.method == "backbone"] == expected


def test_a_reading_is_recorded_under_the_filters_that_its_weight_was_chosen_for(measured: list[Record]) -> None:
    own = [r for r in measured if r.method != "backbone"]
    assert [(r.method, r.filter, r.selected_by) for r in own] == [
        (f"leakage:{reading}", name, name) for reading in READINGS for name in SELECTION_FILTERS
    ]
    for r in own:
        base = found(measured, "backbone", r.filter)
        assert r.mrr - r.gain["mrr"][0] == pytest.approx(base.mrr)
        assert r.settings["weight"] in WEIGHTS
        assert (r.queries, r.split, r.fingerprint) == (base.queries, "test", base.fingerprint)


def test_nothing_is_chosen_on_test(measured: list[Record]) -> None:
    dataset = small_world().dataset
    assert dataset.test_start is not None
    rng = np.random.default_rng(0)
    test = dataset.events.step >= dataset.test_start
    garbage = np.where(test, rng.integers(dataset.events.n_entities, size=len(test)), dataset.events.object)
    spoiled = replace(dataset, events=replace(dataset.events, object=garbage))
    made = measure(spoiled, RecurrenceDyadic.fit(spoiled))
    assert found(made, "backbone", "time").mrr != found(measured, "backbone", "time").mrr
    chosen = [r.settings.get("weight") for r in made]
    assert chosen == [r.settings.get("weight") for r in measured]
    on_validation = measure(dataset.without_test(), RecurrenceDyadic.fit(dataset))
    assert chosen == [r.settings.get("weight") for r in on_validation]
    assert {r.split for r in on_validation} == {"valid"}


def test_the_table_is_counted_on_as_much_of_train_as_validation_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, counted = small_world().dataset, []

    def watched(queries: Queries, *rest: Any) -> list[Reader]:
        counted.extend(queries.step.tolist())
        return count(queries, *rest)

    monkeypatch.setattr(leakage, "count", watched)
    measure(dataset, RecurrenceDyadic.fit(dataset))
    start, end = dataset.valid_start, dataset.test_start
    assert end is not None
    assert (min(counted), max(counted)) == (start - (end - start), start - 1)


def test_the_weight_is_the_best_of_validation_and_the_smallest_of_equals() -> None:
    ranks = np.full((len(FILTERS), 3, 4), 2.0)
    assert leakage._best(ranks, "time") == 0
    ranks[FILTERS.index("time"), 2] = 1
    assert (leakage._best(ranks, "time"), leakage._best(ranks, "static")) == (2, 0)


def test_a_trained_backbone_is_recorded_with_its_seed() -> None:
    dataset = dataset_of(telling_log())
    assert {(r.seed, r.settings.get("backbone_seed")) for r in measure(dataset, flat(dataset), 7)} == {(7, 7)}
    assert {(r.seed, r.settings.get("backbone_seed")) for r in measure(dataset, flat(dataset))} == {(0, None)}


def test_too_many_relations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage, "MOST_CELLS", 10)
    dataset = dataset_of(telling_log())
    with pytest.raises(DataError, match="merge or drop rare ones"):
        measure(dataset, flat(dataset))


def test_one_entity_alone_is_read_without_harm() -> None:
    dataset = dataset_of(log_of([(0, 0, 0, t) for t in range(20)], n_entities=1, n_relations=1))
    assert all(r.mrr == 1 and math.isfinite(r.gain.get("mrr", [0])[0]) for r in measure(dataset, flat(dataset)))


# --- the table -------------------------------------------------------------------------------------------------------


def reading(name: str, **changes: Any) -> Record:
    settings = {"weight": 0.5, "answers_asked": 0.25}
    own = {"method": f"leakage:{name}", "backbone": "recurrence", "settings": settings, "lock": None, "seed": 0}
    return residual(**{**own, **changes})


def test_both_readings_stand_next_to_the_past_alone() -> None:
    static = {"filter": "static", "selected_by": "static", "mrr": 0.65}
    more = reading("step", mrr=0.55, gain={"mrr": [0.15, 0.14, 0.16]}, settings={"weight": 16, "answers_asked": 1.0})
    table = leakage_table([residual(), reading("pass", **static), more, reading("pass")])
    one, two = "+0.0500 [+0.0400, +0.0600]", "+0.1500 [+0.1400, +0.1600]"
    assert table.rows == [
        ["icews14, recurrence, time-aware", ".4000", ".4500", one, "0.5", "25.0%", ".5500", two, "16", "100.0%"],
        ["icews14, recurrence, static", ".6000", ".6500", one, "0.5", "25.0%", "", "", "", ""],
    ]
    assert "No forecasts" in table.note


def test_readings_of_queries_are_in_no_other_table() -> None:
    others = [r for r in campaign() if not r.method.startswith(leakage.LEAKAGE)]
    made = [*others, *(reading(name, backbone="cenet") for name in READINGS)]
    for name, table in tables(others).items():
        if name == "leakage":
            with pytest.raises(DataError, match="`bridgemem leakage DATA --records FILE`"):
                table()
            continue
        try:
            expected = table()
        except DataError:
            continue
        assert tables(made)[name]() == expected, name
