"""Reading a growing file: whole lines, once each, through every kind of rotation."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.live import tail as tail_module
from bridgemem.live.tail import LostFeedError, Position, Tail


class Reader:
    """What reads a file and keeps its position, as a store does."""

    def __init__(self, path: Path) -> None:
        self.path, self.remarks, self.kept = path, list[str](), None
        self.open()

    def open(self, **how: bool) -> None:
        """Begin as a new process does: with the position that was kept, as text."""
        position = None if self.kept is None else Position.of(self.kept, "feed")
        self.tail = Tail(self.path, position, remark=self.remarks.append, **how)

    def read(self) -> list[str]:
        found: list[str] = []
        while (block := self.tail.block()) is not None:
            found += [line.decode().rstrip("\n") for line in block.lines]
            self.kept = self.tail.advanced(block, len(block.lines)).text()
        return found


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    path = tmp_path / "feed.jsonl"
    path.write_text("1\n2\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_half_a_line_waits_for_its_end(feed: Path) -> None:
    reader = Reader(feed)
    append(feed, "3")
    assert reader.read() == ["1", "2"]
    assert reader.tail.half_line() == 1
    assert reader.read() == []
    append(feed, "4\n")
    assert reader.read() == ["34"]


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_renamed_file_is_read_to_its_end_before_the_new_one(feed: Path, restarted: bool) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    append(feed, "3\n")
    feed.rename(feed.with_name("feed.jsonl.1"))
    feed.write_text("4\n")
    if restarted:
        reader.open()
    assert reader.read() == ["3", "4"]
    assert Position.of(reader.kept or "", "feed").line == 1


def test_the_writer_may_go_on_in_the_renamed_file_until_the_new_one_has_lines(feed: Path) -> None:
    reader = Reader(feed)
    with feed.open("a") as writer:
        feed.rename(feed.with_name("feed.jsonl.1"))
        assert reader.read() == ["1", "2"]
        feed.touch()
        assert reader.read() == []
        writer.write("3\n")
    feed.write_text("4\n")
    assert reader.read() == ["3", "4"]


def test_a_last_line_without_an_end_is_read_when_its_file_is_left(feed: Path) -> None:
    reader = Reader(feed)
    append(feed, "3")
    assert reader.read() == ["1", "2"]
    feed.rename(feed.with_name("feed.jsonl.1"))
    feed.write_text("4\n")
    assert reader.read() == ["3", "4"]


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_files_that_were_rotated_while_nobody_read_are_read_in_their_order(feed: Path, restarted: bool) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    for number, text in enumerate(("3\n", "4\n", "5\n")):
        old, new = feed.with_name("feed.jsonl.2"), feed.with_name("feed.jsonl.1")
        if number:
            if new.exists():
                new.rename(old)
            feed.rename(new)
        append(feed, text)
        os.utime(feed, ns=(0, (number + 1) * 10**9))  # as if hours lay between
    if restarted:
        reader.open()
    assert reader.read() == ["3", "4", "5"]


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("now", ["4\n", "4\n5\n6\n7\n8\n"], ids=["shorter", "longer"])
def test_a_copied_and_truncated_file_is_read_in_its_copy_first(feed: Path, restarted: bool, now: str) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    append(feed, "3\n")
    shutil.copyfile(feed, feed.with_name("feed.jsonl.1"))
    feed.write_text(now)  # the same inode
    if restarted:
        reader.open()
    assert reader.read() == ["3", *now.split()]
    assert "feed.jsonl.1" in reader.remarks[0]


def test_a_file_that_is_truncated_without_a_copy_is_read_anew_with_a_remark(feed: Path) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    feed.write_text("3\n")
    assert reader.read() == ["3"]
    assert "no copy of it" in reader.remarks[0]


def test_a_file_that_is_gone_is_given_up_only_when_told_so(feed: Path) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    feed.unlink()
    feed.write_text("something else\n")
    with pytest.raises(DataError, match="--from-start"):
        reader.open()
    reader.open(from_start=True)
    assert reader.read() == ["something else"]
    assert Position.of(reader.kept or "", "feed").file == 2


def test_a_line_longer_than_a_block_is_one_line(feed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "CHUNK", 8)
    monkeypatch.setattr(tail_module, "FIRST_OF_LINE", 4)
    reader = Reader(feed)
    append(feed, "x" * 30)
    assert reader.read() == ["1", "2"]
    append(feed, "x\n3\n")
    assert reader.read() == ["xxxx", "3"]
    reader.open()
    assert reader.read() == []


def test_what_cannot_be_followed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        Reader(tmp_path / "none")
    with pytest.raises(SettingsError, match="pipe it"):
        Reader(tmp_path)
    for text in ("7", '{"file": "1"}', "null", '{"file": 1, "other": 2}'):
        with pytest.raises(DataError, match="another name with --source"):
            Position.of(text, "feed")


@pytest.mark.parametrize("from_start", [False, True])
def test_a_file_that_was_truncated_while_nobody_read_is_read_anew_with_a_remark(feed: Path, from_start: bool) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    feed.write_text("3\n")  # the same inode
    reader.open(from_start=from_start)
    assert reader.read() == ["3"]
    assert "no copy of it" in reader.remarks[0]
    reader.open()
    assert reader.read() == []


def test_from_start_reads_nothing_twice_where_the_file_is_found(feed: Path) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    append(feed, "3\n")
    reader.open(from_start=True)
    assert reader.read() == ["3"]
    feed.rename(feed.with_name("feed.jsonl.1"))
    feed.write_text("4\n")
    reader.open(from_start=True)
    assert reader.read() == ["4"]


def test_a_feed_whose_folder_is_gone_is_lost(feed: Path, tmp_path: Path) -> None:
    reader = Reader(feed)
    assert reader.read() == ["1", "2"]
    shutil.rmtree(tmp_path)
    for from_start in (False, True):
        with pytest.raises(LostFeedError, match="no file next to it"):
            reader.open(from_start=from_start)
