"""Trouble on the way: one sentence that names the file, exit code 2, and nothing that could be taken for a result."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from bridgemem.config import Settings
from bridgemem.errors import RunError
from bridgemem.outofcore.duckdb import Limits, mine_files
from bridgemem.outofcore.mined import Mined
from builders import random_log
from commands import bridgemem, left_in, small_files_only
from corpora import assert_same_as_in_memory, awkward_log, columns_of, write_files, write_parquet, write_text


def refused(tmp_path: Path, *sources: str | Path, options: tuple[str, ...] = ()) -> str:
    """The sentence of a refused mining, after which the folder is no result."""
    sentence = bridgemem("mine", *sources, "--out", tmp_path / "out", *options).refused()
    assert not (tmp_path / "out" / "mined.json").exists()
    with pytest.raises(RunError, match="not to the end"):
        Mined(tmp_path / "out")
    return sentence


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def scrambled(content: bytes) -> bytes:
    """The footer as it was, the pages before it overwritten."""
    footer = int.from_bytes(content[-8:-4], "little") + 8
    noise = np.random.default_rng(0).bytes(len(content) - footer - 4)
    return content[:4] + noise + content[-footer:]


@pytest.mark.parametrize("damage", [truncated, scrambled, lambda content: b"", lambda content: b"not Parquet at all"])
def test_a_damaged_parquet_file_among_many_is_named(tmp_path, damage):
    files = write_files(tmp_path, awkward_log(1, hot=20_000), files=5)
    files[3].write_bytes(damage(files[3].read_bytes()))
    sentence = refused(tmp_path, tmp_path / "*.parquet")
    assert str(files[3]) in sentence
    assert not any(str(file) in sentence for file in files if file != files[3])


def test_mining_goes_on_without_the_damaged_file_or_with_a_new_copy_of_it(tmp_path):
    events = awkward_log(1)
    files = write_files(tmp_path, events)
    whole = files[1].read_bytes()
    files[1].write_bytes(scrambled(whole))
    refused(tmp_path, *files)
    files[1].write_bytes(whole)
    mine_files(files, tmp_path / "out")
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, Settings())


def test_a_schema_that_drifts_is_named(tmp_path):
    files = write_files(tmp_path, awkward_log(2))
    columns = columns_of(awkward_log(2))
    write_parquet(files[2], {**columns, "subject": np.array([f"actor {i}" for i in columns["subject"]])})
    sentence = refused(tmp_path, *files)
    assert f"{files[2]} holds texts as the subject where {files[0]} holds whole numbers" in sentence


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    files = write_files(tmp_path, awkward_log(3))
    columns = columns_of(awkward_log(3))
    write_parquet(files[1], {name: column for name, column in columns.items() if name != "object"})
    sentence = refused(tmp_path, *files)
    assert f"{files[1]} has no column for object; it has 'subject', 'relation', 'time'" in sentence
    assert f"{files[0]} has no column for whom" in refused(tmp_path, *files, options=("--object-column", "whom"))


def test_columns_of_fractions_are_refused(tmp_path):
    columns = columns_of(awkward_log(4))
    file = write_parquet(tmp_path / "e.parquet", {**columns, "time": columns["time"] + 0.5})
    assert f"{file} has a column 'time' of DOUBLE" in refused(tmp_path, file)


def test_a_broken_line_of_a_text_file_is_named(tmp_path):
    good = write_text(tmp_path / "a.csv", [("a", "r", "b", 1), ("b", "r", "a", 2)])
    bad = write_text(tmp_path / "b.csv", [("a", "r", "b", 1), ("a", "r", "b"), ("b", "r", "a", 2)])
    assert f"{bad}:3 cannot be read" in refused(tmp_path, good, bad)


def test_a_gz_that_is_cut_short_is_named(tmp_path):
    file = write_text(tmp_path / "a.csv.gz", [(f"a{i}", "r", f"b{i * i}", i) for i in range(50_000)])
    file.write_bytes(truncated(file.read_bytes()))
    assert str(file) in refused(tmp_path, file)


SOURCES = {
    "missing.parquet": "does not exist",
    "nothing-*.parquet": "does not exist",
    "folder": "is a folder",
    "events.xlsx": "is of no kind that can be mined",
    "empty.csv": "is empty",
}


@pytest.mark.parametrize("source", SOURCES)
def test_sources_that_are_none_are_named(tmp_path, source):
    (tmp_path / "folder").mkdir()
    (tmp_path / "events.xlsx").write_bytes(b"PK")
    (tmp_path / "empty.csv").touch()
    sentence = refused(tmp_path, tmp_path / source)
    assert f"{tmp_path / source} {SOURCES[source]}" in sentence
    assert not (tmp_path / "out").exists()


def test_a_file_named_twice_is_refused(tmp_path):
    files = write_files(tmp_path, awkward_log(5))
    assert f"{files[0]} is named twice" in refused(tmp_path, files[0], tmp_path / "*.parquet")


def test_files_without_any_event_are_refused(tmp_path):
    file = write_text(tmp_path / "e.csv", [("", "r", "b", 1), ("a", "r", "b", "soon")])
    assert "no row has a time that can be used" in refused(tmp_path, file)
    none = write_parquet(tmp_path / "none.parquet", {name: c[:0] for name, c in columns_of(awkward_log(6)).items()})
    assert f"no event was found in 1 files, {none} first" in refused(tmp_path, none)


def test_an_empty_file_among_others_is_no_trouble(tmp_path):
    events = awkward_log(6)
    files = write_files(tmp_path, events)
    none = write_parquet(tmp_path / "none.parquet", {name: c[:0] for name, c in columns_of(events).items()})
    mine_files([none, *files], tmp_path / "out")
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, Settings())


@pytest.mark.parametrize("most", [1 << 12, 1 << 18, 1 << 20])
def test_a_full_disk_is_told_and_the_same_command_goes_on_when_there_is_room(tmp_path, most):
    events = random_log(2, n=30_000, n_entities=200, steps=300)
    files = write_files(tmp_path, events)
    with small_files_only(most):
        said = bridgemem("mine", *files, "--out", tmp_path / "out")
    assert said.code == 2, said.err
    (line,) = said.err.splitlines()
    assert str(tmp_path / "out") in line
    assert "free some space" in line or "File too large" in line
    assert not (tmp_path / "out" / "mined.json").exists()
    mine_files(files, tmp_path / "out")
    assert_same_as_in_memory(Mined(tmp_path / "out"), events, Settings())


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    files = write_files(tmp_path, awkward_log(7))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for options in ((), ("--force",)):
        assert "holds other things" in refused(tmp_path, *files, options=options)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"
    assert "is a file" in bridgemem("mine", *files, "--out", files[0]).refused()


def test_a_folder_that_another_process_is_mining_into_is_refused(tmp_path):
    files = write_files(tmp_path, awkward_log(8))
    (tmp_path / "out" / "work").mkdir(parents=True)
    held = duckdb.connect(str(tmp_path / "out" / "work" / "corpus.duckdb"))
    held.execute("CREATE TABLE held (i INTEGER)")
    try:
        sentence = _in_another_process(files, tmp_path / "out")
    finally:
        held.close()
    assert "is being mined by another process" in sentence


def _in_another_process(files: list[Path], out: Path) -> str:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from bridgemem.outofcore.corpus import Corpus;"
        "from bridgemem.errors import RunError\n"
        "try: Corpus(Path(sys.argv[1]) / 'work' / 'corpus.duckdb', 1 << 29, 1, Path(sys.argv[1]))\n"
        "except RunError as problem: sys.stdout.write(str(problem))"
    )
    return subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True).stdout


def test_damage_to_a_result_is_told(tmp_path):
    mine_files(write_files(tmp_path, awkward_log(9)), tmp_path / "out")
    counts, shard = tmp_path / "out" / "counts.safetensors", tmp_path / "out" / "examples-00000.npz"
    counts.write_bytes(truncated(counts.read_bytes()))
    shard.write_bytes(truncated(shard.read_bytes()))
    mined = Mined(tmp_path / "out")
    with pytest.raises(RunError, match=r"counts\.safetensors is damaged"):
        _ = mined.counts
    with pytest.raises(RunError, match=r"examples-00000\.npz is damaged.*; mine again"):
        _ = mined.examples


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--engine", "abacus"), "there is no engine called 'abacus'"),
        (("--engine", "spark"), "--master goes with --engine spark"),
        (("--memory", "plenty"), "is not an amount of memory"),
        (("--memory", "1MB"), "(512 MB), not"),
        (("--set", "k=0"), "k must be from 1 to 1024"),
        (("--step", "fortnightly"), "is not a step of these times"),
    ],
)
def test_wrong_options_are_told(tmp_path, options, reason):
    files = write_files(tmp_path, awkward_log(9))
    assert reason in refused(tmp_path, *files, options=options)


def test_ranges_that_fit_no_memory_are_not_asked_for():
    assert Limits(memory=1 << 29).for_duckdb(Settings()) >= 1 << 27


def test_a_source_that_cannot_be_fetched_leaves_no_folder(tmp_path):
    assert "names no Iceberg table" in bridgemem("mine", "iceberg://news", "--out", tmp_path / "out").refused()
    assert left_in(tmp_path) == []
