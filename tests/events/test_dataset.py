"""Dataset: the chronological split, and what each part may see."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from builders import few, log_of, logs, random_log, rows_of

EVENTS = log_of([(0, 0, 1, t) for t in (0, 0, 2, 3, 3, 5, 7)])


def test_the_parts_follow_each_other_without_overlap():
    data = Dataset("d", EVENTS, valid_start=2, test_start=5)
    assert [e.step.tolist() for e in (data.train, data.valid, data.test, data.known)] == [
        [0, 0],
        [2, 3, 3],
        [5, 7],
        [0, 0, 2, 3, 3],
    ]
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [2, 3, 2]


def test_without_test_no_test_event_is_left():
    data = Dataset("d", EVENTS, valid_start=2, test_start=5).without_test()
    assert data.events.step.tolist() == data.known.step.tolist() == [0, 0, 2, 3, 3]
    assert data.valid.step.tolist() == [2, 3, 3]
    with pytest.raises(DataError, match="no test split"):
        _ = data.test
    assert data.without_test() == data


@pytest.mark.parametrize(("valid", "test"), [(0, 5), (8, None), (4, 5), (2, 8)])
def test_an_empty_part_is_refused(valid, test):
    with pytest.raises(DataError, match="step"):
        Dataset("d", EVENTS, valid, test)


def test_an_unknown_split_is_named():
    with pytest.raises(DataError, match="'dev'"):
        Dataset("d", EVENTS, 2, 5).split("dev")


@few
@given(events=logs(min_size=3), valid=st.floats(0.01, 0.6), test=st.floats(0.01, 0.39))
def test_any_log_over_three_steps_can_be_split(events, valid, test):
    assume(len(set(events.step.tolist())) >= 3)
    data = Dataset.chronological("any", events, valid=valid, test=test)
    assert rows_of(data.train) + rows_of(data.valid) + rows_of(data.test) == rows_of(events)
    assert len(data.train)
    assert len(data.valid)
    assert len(data.test)
    assert data.train.step[-1] < data.valid.step[0] <= data.valid.step[-1] < data.test.step[0]


@few
@given(events=logs(min_size=2), valid=st.floats(0.01, 0.99))
def test_a_log_can_be_split_without_a_test_part(events, valid):
    assume(len(set(events.step.tolist())) >= 2)
    data = Dataset.chronological("any", events, valid=valid, test=0)
    assert data.test_start is None
    assert rows_of(data.train) + rows_of(data.valid) == rows_of(events)


def test_a_busy_first_step_leaves_room_for_all_three_parts():
    data = Dataset.chronological("busy", log_of([(0, 0, 1, t) for t in [0] * 10 + [100, 200]]))
    assert [sorted(set(part.step.tolist())) for part in (data.train, data.valid, data.test)] == [[0], [100], [200]]


def test_shares_are_about_those_asked_for():
    events = random_log(1, n=3000, steps=300)
    data = Dataset.chronological("even", events, valid=0.2, test=0.1)
    assert len(data.valid) / len(events) == pytest.approx(0.2, abs=0.02)
    assert len(data.test) / len(events) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("valid", "test"), [(0, 0.1), (0.5, 0.5), (1.2, 0), (0.1, -0.1)])
def test_shares_that_leave_no_room_are_refused(valid, test):
    with pytest.raises(DataError, match="shares"):
        Dataset.chronological("d", EVENTS, valid=valid, test=test)


def test_too_few_steps_are_refused():
    with pytest.raises(DataError, match="too few time steps"):
        Dataset.chronological("d", log_of([(0, 0, 1, 1), (0, 0, 1, 2)]))
    with pytest.raises(DataError, match="too few time steps"):
        Dataset.chronological("d", log_of([(0, 0, 1, 1)] * 5), valid=0.2, test=0)


DATA = Dataset("d", EVENTS, valid_start=2, test_start=5)


def renamed(**names: tuple[str, ...]) -> Dataset:
    kinds = {key: replace(getattr(EVENTS, key), names=value) for key, value in names.items()}
    return replace(DATA, events=replace(EVENTS, **kinds))


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (renamed(entities=EVENTS.entities.names[::-1]), "entities"),
        (renamed(relations=tuple(f"{name} " for name in EVENTS.relations.names)), "relations"),
        (replace(DATA, events=replace(EVENTS, clock=replace(EVENTS.clock, origin=86_400))), "clock"),
        (replace(DATA, events=replace(EVENTS, clock=replace(EVENTS.clock, unit=7))), "clock"),
        (replace(DATA, events=replace(EVENTS, clock=replace(EVENTS.clock, kind="date"))), "clock"),
        (replace(DATA, valid_start=3), "split"),
        (replace(DATA, test_start=6), "split"),
        (replace(DATA, test_start=None), "split"),
    ],
)
def test_the_identity_changes_in_the_part_that_changed_and_the_fingerprint_does_not(other: Dataset, part: str) -> None:
    own, changed = asdict(DATA.identity), asdict(other.identity)
    assert [name for name in own if own[name] != changed[name]] == [part]
    assert other.identity.digest != DATA.identity.digest
    assert other.events.fingerprint == DATA.events.fingerprint


def test_the_identity_tells_other_events_apart_and_equal_data_the_same() -> None:
    later = replace(DATA, events=log_of([(0, 0, 1, t) for t in (0, 0, 2, 3, 3, 5, 8)]))
    assert later.identity.digest != DATA.identity.digest
    assert replace(DATA, name="another name of the same data").identity == DATA.identity


def test_names_that_only_look_alike_when_joined_have_other_identities() -> None:
    joined = [renamed(entities=names).identity.digest for names in (("a b", "c"), ("a", "b c"), ("a\n", "b c"))]
    assert len(set(joined)) == 3
