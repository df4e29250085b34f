"""Checking tables in blocks: the same verdict on every row as reading them, and figures of what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.errors import DataError
from bridgemem.events.feeds import Feed, Gap
from bridgemem.events.readers import check
from bridgemem.events.readers.check import check_events
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events

HEADING = "subject,relation,object,time\n"
MESSY = (
    HEADING
    + "Ann,pays,Bob,2024-01-01\nAnn,pays,Bob,2024-01-01\nann,pays,Bob,2024-01-02\n\nBob,pays,Bob,2024-01-09\n"
    + "Cid,pays\nAnn,pays,NA,2024-01-09\nAnn,,Bob,2024-01-09\nAnn,pays,Bob,31/31/2024\nDan,pays,Ann ,2024-01-10\n"
)
POLECAT = (
    "Event Date\tEvent Type\tActor Name\tRecipient Name\n"
    + "2023-01-01\tAID\tA; B\tC\n2023-01-02\tAID\tA\tNone\n2023-01-05\tASSAULT\tB\tA; C\n2023-13-05\tAID\tA\tB\n"
)


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (MESSY, ReadOptions()),
        (MESSY, ReadOptions(step="week", na=())),
        (POLECAT, ReadOptions()),
        ("0\t0\t1\t0\n3\t1\t1\t24\n3\t1\tx\t24\n-2\t1\t1\t48\n", ReadOptions()),
        ("0\t0\t1\t0\n3\t1\t1\t24\n-2\t1\t1\t48\n0\t0\t3\t96\n", ReadOptions()),
        (HEADING + "A,r,B,1700000000\nA,r,B,1700086400\n", ReadOptions(step="day")),
    ],
    ids=["plain", "weeks", "polecat", "names", "ids", "epoch"],
)
def test_a_check_judges_every_row_as_reading_does(
    text: str, options: ReadOptions, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "BLOCK", size)
    files = [tmp_path / name for name in ("a.csv", "b.csv")]
    for file in files:
        file.write_text(text)
    found, reading = check_events(files, options), read_events(files, options)
    assert found.rejects == reading.rejects
    assert (found.dropped, found.sentence(), found.source) == (reading.dropped, reading.sentence(), reading.source())
    figures, expected = vars(found.feed), vars(Feed.of(reading.events))
    assert {**figures, "aliases": {}} == {**expected, "aliases": {}}


def test_the_figures_of_a_feed(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text(MESSY)
    feed = check_events(file).feed
    assert (feed.events, feed.entities, feed.relations, feed.once, feed.repeated, feed.loops) == (5, 4, 1, 2, 1, 1)
    assert (feed.first, feed.last, feed.steps, feed.step) == ("2024-01-01", "2024-01-10", 4, "1 day")
    assert feed.gap == Gap("2024-01-02", "2024-01-09", 6)
    assert feed.aliases == {"ann": "Ann"}
    assert feed.remarks == ()
    assert "  ann,Ann" in feed.sentences()
    assert "The largest gap: 6 steps without events between 2024-01-02 and 2024-01-09." in feed.sentences()


def test_repeated_events_are_counted_at_the_step_that_is_used(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    times = ["2024-01-01 09:00", "2024-01-01 09:00", "2024-01-01 17:30", "2024-01-02 09:00", "2024-01-02 9:00"]
    rows = [*(("B", time) for time in [*times, "soon"]), ("7", "2024-01-02"), ("7.0", "2024-01-02")]
    file.write_text(HEADING + "".join(f"A,r,{name},{time}\n" for name, time in rows))
    for step, repeated in ((None, 3), ("day", 4), ("week", 5)):
        options = ReadOptions(step=step)
        assert check_events(file, options).feed.repeated == repeated
        assert Feed.of(read_events(file, options).events).repeated == repeated


def test_a_file_without_events_is_refused_as_reading_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text(HEADING + "A,r,B,soon\n")
    with pytest.raises(DataError) as checked:
        check_events(file)
    with pytest.raises(DataError) as read:
        read_events(file)
    assert str(checked.value) == str(read.value)


def test_a_step_of_one_day_is_a_remark_and_no_error(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text(HEADING + "A,r,B,2024-01-01\n" * 3)
    assert "cannot be split" in check_events(file).feed.remarks[0]
