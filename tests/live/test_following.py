"""ingest --follow as a user types it: exactly once, through kills, rotations and bad lines."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from bridgemem.live.eventstore import EventStore
from commands import Outcome, bridgemem

pytest_plugins = ("small_runs",)

PROGRAM = (sys.executable, "-m", "bridgemem")
WAIT = 60  # seconds for what takes a few


def line(number: int, **more: object) -> str:
    return (
        json.dumps({"subject": f"s{number}", "relation": "visit", "object": "Kel", "time": "2024-02-10", **more}) + "\n"
    )


def stored(store: Path) -> list[str]:
    """The subjects of all stored events, in the order in which they came."""
    with EventStore(store, create=False, read_only=True) as opened:
        return [event.subject for event in opened.stored()]


def expected(count: int) -> list[str]:
    return [f"s{number}" for number in range(count)]


@contextmanager
def following(*args: str | Path, **how: object) -> Iterator[subprocess.Popen[str]]:
    """The program in a process of its own, once it follows."""
    command = [*PROGRAM, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:  # type: ignore[call-overload]
        try:
            assert process.stderr is not None
            said = [process.stderr.readline()]
            while said[-1] and "following" not in said[-1]:
                said.append(process.stderr.readline())
            assert said[-1], said
            yield process
        finally:
            process.kill()


def wait_for(store: Path, count: int) -> None:
    """Until a store holds that many events; it is free whenever nothing comes."""
    deadline, found = time.monotonic() + WAIT, -1
    while time.monotonic() < deadline:
        try:
            if store.exists() and (found := len(stored(store))) >= count:
                return
        except Exception:  # it is being written
            pass
        time.sleep(0.05)
    raise AssertionError(f"{found} of {count} events were stored")


@pytest.fixture
def command(recurrence_run: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    return ("ingest", tmp_path / "store", tmp_path / "feed.jsonl", "--run", recurrence_run, "--follow")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_feed_is_taken_in_exactly_once_through_kills_and_rotation(
    command: tuple[str | Path, ...], tmp_path: Path
) -> None:
    feed, store = tmp_path / "feed.jsonl", tmp_path / "store"
    feed.write_text(line(0) + line(1) + line(2)[:20])
    with following(*command) as process:
        wait_for(store, 2)
        with feed.open("a") as writer:
            writer.write(line(2)[20:] + line(3))
        process.send_signal(signal.SIGKILL)
    feed.rename(tmp_path / "feed.jsonl.1")
    feed.write_text(line(4))
    with following(*command) as process:
        wait_for(store, 5)
        with feed.open("a") as writer:
            writer.write(line(5))
        wait_for(store, 6)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
    assert out.startswith("feed.jsonl: ")
    assert "Read up to line 2 (byte " in out
    assert "Traceback" not in err
    assert stored(store) == expected(6)


def piped(text: str, *args: str | Path) -> Outcome:
    """The command in this process with a text on its standard input."""
    out, into = os.pipe()
    os.write(into, text.encode())
    os.close(into)
    with os.fdopen(out) as stdin, mock.patch.object(sys, "stdin", stdin):
        return bridgemem(*args)


def test_standard_input_with_offsets_is_taken_in_once_however_often_it_is_sent(
    recurrence_run: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    command = ("ingest", store, "-", "--run", recurrence_run, "--source", "topic", "--offset-field", "offset")
    command += ("--event-field", "payload", "--json")

    def sent(numbers: range) -> str:
        return "".join(json.dumps({"offset": n + 100, "payload": line(n)}) + "\n" for n in numbers)

    process = [*PROGRAM, *map(str, command)]
    done = subprocess.run(process, input=sent(range(3)), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["last_offset"] == "102"
    again = piped(sent(range(1, 5)), *command).json
    assert (again["events"], again["skipped"], again["last_offset"]) == (2, 2, "104")
    assert stored(store) == expected(5)


def test_standard_input_without_offsets_is_at_least_once_and_says_so(recurrence_run: Path, tmp_path: Path) -> None:
    done = piped(line(0) + line(1).strip(), "ingest", tmp_path / "store", "-", "--run", recurrence_run)
    assert "at least once" in done.err
    assert done.out.startswith("stdin: 2 events in 1 batch.\n")
    assert stored(tmp_path / "store") == expected(2)


def test_offsets_that_shrink_are_refused(recurrence_run: Path, tmp_path: Path) -> None:
    command = ("ingest", tmp_path / "store", "-", "--run", recurrence_run, "--source", "topic")
    done = piped(line(0, offset=7) + line(1, offset=5), *command, "--offset-field", "offset")
    assert done.code == 2
    assert "line 2 has the offset 5 after 7" in done.err
    assert "--source of its own" in done.err


def test_a_bad_line_ends_it_after_the_lines_before_unless_it_may_be_set_aside(
    command: tuple[str | Path, ...], tmp_path: Path
) -> None:
    feed, store, rejects = tmp_path / "feed.jsonl", tmp_path / "store", tmp_path / "rejects.csv"
    feed.write_text(line(0) + "nonsense\n\n" + line(1, time="soon") + line(1))
    refused = bridgemem(*command, "--until-end")
    assert (refused.code, refused.out) == (2, "")
    assert f"{feed}:2: the line is not JSON. The lines before it were taken in." in refused.err
    assert stored(store) == ["s0"]
    again = bridgemem(*command, "--until-end", "--rejects", rejects)
    assert f"Rejected: 2 lines (in {rejects})." in again.out
    assert stored(store) == expected(2)
    with rejects.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["line"], row["subject"], row["row"]) for row in rows] == [("2", "", "nonsense"), ("4", "s1", "")]
    feed.open("a").write("more nonsense\n")
    assert bridgemem(*command, "--until-end", "--skip-rejected", "--json").json["rejected"] == 1
    assert len(rejects.read_text().splitlines()) == 3


def test_rejected_lines_of_a_batch_that_was_not_stored_are_written_once(
    command: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    feed, rejects = tmp_path / "feed.jsonl", tmp_path / "rejects.csv"
    feed.write_text(line(0) + "nonsense\n")
    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "append", stop)
        bridgemem(*command, "--until-end", "--rejects", rejects)
    written = rejects.read_text()
    assert "nonsense" in written
    rejects.write_text(written[:-4])  # a kill may leave half a row
    assert bridgemem(*command, "--until-end", "--rejects", rejects).code == 0
    assert rejects.read_text() == written
    assert stored(tmp_path / "store") == ["s0"]


def test_a_feed_waits_for_a_store_in_use(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    feed, store = tmp_path / "feed.jsonl", tmp_path / "store"
    feed.write_text(line(0))
    with following(*command) as process:
        wait_for(store, 1)
        time.sleep(0.5)
        with EventStore(store) as held:
            feed.open("a").write(line(1))
            assert process.stderr is not None
            assert "is open in another process; waiting for it." in process.stderr.readline()
            assert len(held.stored()) == 1
        wait_for(store, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--key", "k"), "a feed is many"),
        (("--offset-field", "offset"), "for standard input"),
        (("--format", "gdelt"), "leave it out"),
        (("--step", "day"), "leave --step out"),
    ],
    ids=["key", "offset-field", "format", "step"],
)
def test_options_that_a_feed_has_no_use_for_are_refused(
    options: tuple[str, ...], said: str, command: tuple[str | Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "feed.jsonl").write_text(line(0))
    assert said in bridgemem(*command, *options).refused()


def test_what_only_a_feed_has_needs_follow(recurrence_run: Path, tmp_path: Path) -> None:
    command = ("ingest", tmp_path / "store", tmp_path / "feed.csv", "--run", recurrence_run)
    assert "use --follow too" in bridgemem(*command, "--until-end").refused()
    assert (
        "give standard input a name"
        in bridgemem("ingest", tmp_path / "store", "-", "--run", recurrence_run, "--offset-field", "offset").refused()
    )


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kills_at_random_points_of_a_busy_feed_lose_and_repeat_nothing(
    command: tuple[str | Path, ...], tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """25 kills while a writer appends half lines and whole ones and rotates the file, several times in a row too."""
    feed, store, rejects, chance = (
        tmp_path / "feed.jsonl",
        tmp_path / "store",
        tmp_path / "rejects.csv",
        random.Random(3),
    )
    feed.touch()
    written, bad, rotations = 0, 0, 0
    for _ in range(25):
        with following(*command, "--rejects", rejects) as process:
            until = time.monotonic() + chance.random() * 2
            while time.monotonic() < until:
                with feed.open("a") as writer:
                    for _ in range(chance.randrange(1, 200)):
                        text = line(written)
                        cut = chance.randrange(len(text))
                        writer.write(text[:cut])
                        writer.flush()
                        writer.write(text[cut:])
                        written += 1
                    if chance.random() < 0.2:
                        writer.write(f"bad {bad}\n")
                        bad += 1
                if chance.random() < 0.1:
                    rotations += 1
                    feed.rename(tmp_path / f"feed.jsonl.{rotations}")
                    feed.touch()
                time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGKILL)
    assert bridgemem(*command, "--until-end", "--rejects", rejects).code == 0
    assert stored(store) == expected(written)
    with rejects.open(newline="") as handle:
        assert [row["row"] for row in csv.DictReader(handle)] == [f"bad {number}" for number in range(bad)]
    record_property("kills", 25)
    record_property("lines", written)
    record_property("rotations", rotations)


def test_a_bad_value_is_told_with_its_place_once(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    (tmp_path / "feed.jsonl").write_text(line(0) + line(1, time="soon"))
    said = bridgemem(*command, "--until-end").err
    assert said.count("feed.jsonl:2: ") == 1
    assert "'soon' is not a date" in said
