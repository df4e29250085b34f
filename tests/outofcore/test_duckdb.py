"""Mining by DuckDB is the in-memory path over again: any files, any ranges, names, dates, and stops in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bridgemem.config import Settings
from bridgemem.errors import RunError, SettingsError
from bridgemem.events.limits import bytes_of
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.dyads import DyadMemory
from bridgemem.outofcore import corpus
from bridgemem.outofcore.duckdb import Limits, mine_files
from bridgemem.outofcore.mined import Mined
from builders import SMALL_READER, few, logs, random_log
from commands import bridgemem, planted_rows
from corpora import HEADING, assert_same_as_in_memory, awkward_log, columns_of, write_files, write_parquet, write_text

ROWS = {"one range": 0, "some ranges": 150, "a range for nearly every actor": 20}


def ranged(rows: int) -> Limits:
    return Limits(rows=rows, threads=1)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("window", [0, 20])
def test_parquet_files_give_the_in_memory_result_in_any_number_of_ranges(tmp_path, rows, window):
    events, settings = awkward_log(1), Settings(window=window)
    mine_files(write_files(tmp_path, events), tmp_path / "out", settings, limits=ranged(rows))
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, settings)
    assert not (tmp_path / "out" / "work").exists()


@settings(few, max_examples=6, phases=[Phase.generate])  # each example is a whole mining
@given(events=logs(min_size=1), rows=st.integers(0, 30), k=st.integers(1, 9))
def test_random_logs_give_the_in_memory_result(tmp_path_factory, events, rows, k):
    home, asked = tmp_path_factory.mktemp("corpus"), Settings(k=k)
    mine_files(write_files(home, events, files=2), home / "out", asked, limits=ranged(rows))
    mined = Mined(home / "out")
    # ids beyond those that occur are not known to a reader who sees the files only
    seen = read_events({name: c.tolist() for name, c in columns_of(events).items()}).events
    assert_same_as_in_memory(mined, seen, asked)


@pytest.mark.parametrize(("block", "rows"), [(1 << 11, 50_000), (1 << 14, 0), (1 << 17, 50_000)])
def test_a_pair_with_100_000_events_is_read_in_blocks(tmp_path, monkeypatch, block, rows):
    monkeypatch.setattr(corpus, "FETCH", block)
    events, settings = awkward_log(2, hot=100_000), Settings()
    mine_files(write_files(tmp_path, events), tmp_path / "out", settings, limits=ranged(rows))
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, settings)


def test_unsorted_files_are_put_in_the_order_of_time_and_ties_in_the_order_of_files(tmp_path):
    events = awkward_log(3)
    mixed = np.random.default_rng(0).permutation(len(events))
    columns = {name: c[mixed] for name, c in columns_of(events).items()}
    files = [write_parquet(tmp_path / f"{i}.parquet", {n: c[i::2] for n, c in columns.items()}) for i in (0, 1)]
    mine_files([tmp_path / "*.parquet"], tmp_path / "out", Settings(), limits=ranged(100))
    assert_same_as_in_memory(Mined(tmp_path / "out"), read_events(files).events, Settings())


def test_names_and_dates_in_text_files_are_numbered_as_the_reader_numbers_them(tmp_path):
    rows = planted_rows()
    files = [
        write_text(tmp_path / "a.csv", rows[:200]),
        write_text(tmp_path / "b.csv.gz", rows[200:400]),
        write_text(tmp_path / "c.tsv", rows[400:], "\t"),
    ]
    mine_files(files, tmp_path / "out", limits=ranged(200))
    mined, read = Mined(tmp_path / "out"), read_events(files).events
    assert mined.entities.names == read.entities.names
    assert mined.relations.names == read.relations.names
    assert mined.clock == read.clock
    assert_same_as_in_memory(mined, read, Settings())


TIMES = {
    "days as numbers": [20140101 + i % 28 for i in range(120)],
    "numbers with a common step": [15 * (i % 40) for i in range(120)],
    "dates": [date(2014, 1, 1) + timedelta(days=7 * (i % 9)) for i in range(120)],
    "moments": [datetime(2014, 1, 1, 6) + timedelta(minutes=15 * (i % 50)) for i in range(120)],
    "texts": [f"2014-02-{1 + i % 28:02d}" for i in range(120)],
}


@pytest.mark.parametrize("step", [None, "given"])
@pytest.mark.parametrize("kind", TIMES)
def test_times_of_every_kind_fall_into_the_steps_of_the_reader(tmp_path, kind, step):
    times = TIMES[kind]
    wanted: str | int | None = (60 if kind.startswith("numbers") else "week") if step else None
    rng = np.random.default_rng(0)
    columns = {
        "subject": rng.integers(4, size=120),
        "relation": rng.integers(3, size=120),
        "object": rng.integers(4, size=120),
        "time": np.array(times, dtype="datetime64[us]") if kind in ("dates", "moments") else np.array(times),
    }
    file = write_parquet(tmp_path / "events.parquet", columns)
    mine_files([file], tmp_path / "out", options=ReadOptions(step=wanted), limits=ranged(0))
    mined, read = Mined(tmp_path / "out"), read_events(file, ReadOptions(step=wanted)).events
    assert mined.clock == read.clock
    assert_same_as_in_memory(mined, read, Settings())


def test_whole_numbers_with_wide_gaps_are_names(tmp_path):
    rows = [(70_000_000 + i % 3, 4, 90_000_000 + i % 5, i // 4) for i in range(40)]
    file = write_parquet(tmp_path / "e.parquet", dict(zip(HEADING, map(list, zip(*rows, strict=True)), strict=True)))
    mine_files([file], tmp_path / "out")
    mined, read = Mined(tmp_path / "out"), read_events(file).events
    assert mined.entities.names == read.entities.names
    assert len(mined.entities) == 8
    assert_same_as_in_memory(mined, read, Settings())


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "texts"])
def test_ids_that_do_not_occur_are_not_numbered(tmp_path, text):
    rows = [(70 + 3 * (i % 3), (36, 2042)[i % 2], 900 + i % 5, i // 4) for i in range(40)]
    columns = dict(zip(HEADING, map(list, zip(*rows, strict=True)), strict=True))
    if text:
        columns |= {name: [str(value) for value in columns[name]] for name in HEADING[:3]}
    file = write_parquet(tmp_path / "e.parquet", columns)
    mine_files([file], tmp_path / "out")
    mined, read = Mined(tmp_path / "out"), read_events(file).events
    assert mined.relations.names == read.relations.names == ("36", "2042")
    assert mined.entities.names == read.entities.names
    assert len(mined.entities) == 8
    assert_same_as_in_memory(mined, read, Settings())


@pytest.mark.parametrize("named", [True, False], ids=["names", "ids"])
def test_known_vocabularies_give_their_ids_and_leave_out_what_they_do_not_know(tmp_path, named):
    rows = planted_rows()
    people, links = (sorted({row[i] for row in rows}, reverse=True) for i in (0, 1))
    known = {
        "entities": Vocabulary("entity", ("nobody", *people[:-2])),
        "relations": Vocabulary("relation", (*links, "never seen")),
    }
    if not named:
        rows = [(str(people.index(a)), str(links.index(r)), str(people.index(b)), t) for a, r, b, t in rows]
    file = write_text(tmp_path / "e.csv", rows)
    done = mine_files([file], tmp_path / "out", **known)
    reading = read_events(file, **known)
    assert done["source"]["rejected"] == reading.rejects.count > 0
    mined = Mined(tmp_path / "out")
    assert (mined.entities, mined.relations) == (known["entities"], known["relations"])
    assert_same_as_in_memory(mined, reading.events, Settings())


def test_rows_that_are_no_events_are_left_out_and_counted_as_the_reader_does(tmp_path):
    rows = [list(row) for row in planted_rows()[:200]]
    rows[3][0], rows[50][3], rows[70][1], rows[90][2] = "", "soon", " ", ""
    file = write_text(tmp_path / "e.csv", rows)
    done = mine_files([file], tmp_path / "out")
    reading = read_events(file)
    assert done["source"]["rejected"] == reading.rejects.count == 1
    assert done["source"]["dropped"] == reading.dropped
    assert sum(reading.dropped.values()) == 3
    assert_same_as_in_memory(Mined(tmp_path / "out"), reading.events, Settings())


def test_other_headings_are_named(tmp_path):
    events = awkward_log(4)
    renamed = dict(zip(("who", "what", "whom", "when"), columns_of(events).values(), strict=True))
    file = write_parquet(tmp_path / "e.parquet", {**renamed, "note": np.zeros(len(events))})
    mine_files([file], tmp_path / "out", options=ReadOptions("who", "what", "whom", "when"))
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, Settings())


def test_the_result_does_not_depend_on_ranges_threads_or_files_and_does_on_the_seed(tmp_path):
    events, settings = awkward_log(5), Settings(max_examples=100)
    found = set()
    for i, (files, limits) in enumerate([(1, ranged(0)), (3, ranged(90)), (2, Limits(rows=200, threads=2))]):
        (tmp_path / str(i)).mkdir()
        done = mine_files(write_files(tmp_path / str(i), events, files), tmp_path / f"out{i}", settings, limits=limits)
        found.add(done["fingerprint"])
        assert done["sampled"] == 100
    assert len(found) == 1
    other = mine_files([tmp_path / "0" / "*.parquet"], tmp_path / "other", settings, seed=7)
    assert other["fingerprint"] not in found


def test_transitions_of_a_mined_folder_are_those_fitted_on_the_log(tmp_path):
    events = random_log(3, n=1500)
    mine_files(write_files(tmp_path, events), tmp_path / "out", SMALL_READER, limits=ranged(500))
    mined, chosen = Mined(tmp_path / "out").transitions(seed=7)
    fitted, expected = Transitions.fit(events, SMALL_READER, 7)
    assert chosen == expected
    assert mined.tensors().keys() == fitted.tensors().keys()
    assert all(torch.equal(tensor, fitted.tensors()[name]) for name, tensor in mined.tensors().items())


def test_the_memory_of_a_mined_folder_reads_as_the_one_built(tmp_path):
    events = awkward_log(6)
    mine_files(write_files(tmp_path, events), tmp_path / "out", limits=ranged(100))
    mapped, built = Mined(tmp_path / "out").memory, DyadMemory.build(events)
    actor, step = torch.arange(10), torch.full((10,), 60)
    one, two = (memory.partners(actor, step, 8, 65) for memory in (mapped, built))
    assert torch.equal(one.found, two.found)
    for name in ("row", "candidate", "count"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    for name in ("relation", "direction", "lag"):
        assert torch.equal(getattr(one, name)[one.found].long(), getattr(two, name)[two.found])


# ---- stops ---------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """A stop that no handler expects."""


def test_a_run_that_was_cut_off_goes_on_and_sorts_only_what_is_left(tmp_path, monkeypatch):
    events, files = awkward_log(7), write_files(tmp_path, awkward_log(7))
    whole = mine_files(files, tmp_path / "whole", limits=ranged(100))
    ranges = len(_bounds(events)) - 1
    sort, done = corpus.Corpus.sort, []

    def failing(self, cursor, start, stop, n_entities):
        done.append(start)
        if len(done) == 4:
            raise Stop
        return sort(self, cursor, start, stop, n_entities)

    monkeypatch.setattr(corpus.Corpus, "sort", failing)
    with pytest.raises(Stop):
        mine_files(files, tmp_path / "out", limits=ranged(100))
    with pytest.raises(RunError, match="not to the end"):
        Mined(tmp_path / "out")
    finished = len(list((tmp_path / "out" / "work" / "parts").glob("*.safetensors")))
    assert finished == 3
    done.extend([0] * 10)
    before = len(done)
    assert mine_files(files, tmp_path / "out", limits=ranged(100)) == whole
    assert len(done) - before == ranges - finished
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, Settings())


def _bounds(events) -> list[int]:
    """The cuts that ranges of 100 rows give."""
    rows = np.bincount(np.concatenate([events.subject, events.object]), minlength=10)
    total = np.cumsum(rows)
    ranges = -(-int(total[-1]) // 100)
    ends = np.searchsorted(total, total[-1] * np.arange(1, ranges) / ranges)
    return sorted({0, *(ends + 1).tolist(), 10})


def test_an_unfinished_mining_of_other_settings_is_not_taken_for_this_one(tmp_path, monkeypatch):
    files = write_files(tmp_path, awkward_log(8))

    def failing(self, number, blocks, advance):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr("bridgemem.outofcore.duckdb._Ranges._range", failing)
        with pytest.raises(Stop):
            mine_files(files, tmp_path / "out", limits=ranged(100))
    with pytest.raises(RunError, match="other files or settings"):
        mine_files(files, tmp_path / "out", Settings(k=4))
    mine_files(files, tmp_path / "out", Settings(k=4), force=True)
    assert_same_as_in_memory(Mined(tmp_path / "out"), awkward_log(8), Settings(k=4))
    with pytest.raises(RunError, match="mined already"):
        mine_files(files, tmp_path / "out", Settings(k=4))


def started(files: list[Path], out: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, which waits after its first part for the signal that ends it."""
    code = (
        # a shell that runs these tests in the background has its children ignore Ctrl-C
        "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from bridgemem.outofcore import duckdb; duckdb.ROW_BYTES = 1 << 16;"
        "duckdb._Ranges._passed = lambda *_: time.sleep(60);"
        "from bridgemem.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code, "mine", *map(str, files), "--out", str(out), "--threads", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(found: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not list(found.glob(pattern)) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> tuple[list[Path], str]:
    """Enough events that a stop falls into the work, and the fingerprint they are mined to."""
    home = tmp_path_factory.mktemp("many")
    files = write_files(home, random_log(1, n=150_000, n_entities=300, steps=400))
    return files, mine_files(files, home / "out")["fingerprint"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["int", "term", "kill"])
def test_a_stopped_command_says_so_and_the_same_command_finishes(tmp_path, many, sent):
    files, fingerprint = many
    process = started(files, tmp_path / "out")
    wait_for(tmp_path / "out" / "work" / "parts", "*.safetensors", process)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0, "it was done before the signal came"
    assert not (tmp_path / "out" / "mined.json").exists()
    assert out == ""
    if sent != signal.SIGKILL:
        assert process.returncode == 1
        assert err == (
            f"bridgemem: interrupted; {tmp_path / 'out'} is not whole yet, and the same command continues where "
            "this one stopped.\n"
        )
    mine_files(files, tmp_path / "out")
    assert Mined(tmp_path / "out").about["fingerprint"] == fingerprint


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_mines_and_tells(tmp_path):
    files = write_files(tmp_path, awkward_log(9))
    told = bridgemem("mine", *files, "--out", tmp_path / "out", "--json").json
    assert told["events"] == len(awkward_log(9))
    assert f"bridgemem fit -d {tmp_path / 'shown'}" in bridgemem("mine", *files, "--out", tmp_path / "shown").out
    names = tmp_path / "names.txt"
    names.write_text("".join(f"entity {i}\t{i}\n" for i in range(12)))
    said = bridgemem("mine", str(tmp_path / "*.parquet"), "--out", tmp_path / "again", "--entities", names)
    assert said.code == 0
    assert "Mined 400 events" in said.out
    assert "12 entities, 5 relations" in said.out


def test_memory_is_written_as_people_write_it():
    assert bytes_of("2GB") == bytes_of("2 gib") == bytes_of(2 << 30) == 2 << 30
    assert bytes_of("1.5G") == 3 << 29
    for wrong in ("much", "-1GB", "2 XB", ""):
        with pytest.raises(SettingsError, match="write it as 2GB"):
            bytes_of(wrong)
    with pytest.raises(SettingsError, match=r"at least .*\(512 MB\)"):
        Limits(memory=1 << 20)
