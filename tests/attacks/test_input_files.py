"""Input files and options made to harm, or merely spoiled: taken or refused in one sentence, and never unpacked whole.

The spoiled files are the same on every run. Most are read as the commands read them, since starting a command takes
longer than reading such a file; some go through the commands themselves.
"""

from __future__ import annotations

import gzip
import io
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spoiled_files
from bridgemem.errors import BridgeMemError, DataError, LimitError, SettingsError
from bridgemem.events import limits
from bridgemem.events.dataset import Dataset
from bridgemem.events.dates import parse_date
from bridgemem.events.loading import load
from bridgemem.events.log import Clock
from bridgemem.events.packs import pack
from bridgemem.events.readers import text
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.events.readers.table import check_rows
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.sources import describe
from commands import bridgemem, left_in
from spoiled_files import MANY_DIGITS, ROWS, text_of, zipped

pytest_plugins = ("small_runs",)

LONGEST_SENTENCE = 1000
Files = Iterator[tuple[str, bytes]]


def one_sentence(text: str) -> bool:
    return len(text.splitlines()) == 1 and len(text) < LONGEST_SENTENCE and text.endswith((".", "?"))


def taken_or_refused(call: Callable[[], Any]) -> bool:
    """Whether a call succeeds; it may fail with one sentence, and with nothing else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the report of rejected rows
            call()
    except BridgeMemError as problem:
        if not one_sentence(str(problem)):
            pytest.fail(f"not one sentence: {str(problem)[:2000]}")
        return False
    return True


def all_sound(files: Files, folder: Path, *readers: Callable[[Path], Any]) -> tuple[int, int]:
    """Read all files; how many readings succeeded, and how many were refused."""
    taken = refused = 0
    for name, content in files:
        path = folder / name.replace(" ", "-")
        path.write_bytes(content)
        for reader in readers:
            try:
                good = taken_or_refused(lambda reader=reader, path=path: reader(path))
            except Exception as problem:
                pytest.fail(f"{name}: {type(problem).__name__}: {problem}")
            taken, refused = taken + good, refused + (not good)
        path.unlink()
    return taken, refused


def checked(path: Path) -> None:
    """What `data check`, `data stats` and `fit -d` read of a file."""
    dataset = load(path)
    events = dataset.events
    events.clock.label(int(events.step[0])), events.clock.label(events.end + 1)
    events.clock.length()


# ---- spoiled files -------------------------------------------------------------------------------------------------


def test_odd_cells_are_taken_or_refused_in_one_sentence(tmp_path: Path) -> None:
    taken, refused = all_sound(spoiled_files.cells(), tmp_path, checked)
    assert taken > 100
    assert refused > 50


def test_packs_with_foreign_notes_and_arrays_are_refused_in_one_sentence(tmp_path: Path) -> None:
    packed = spoiled_files.sound_pack(tmp_path)
    taken, refused = all_sound(spoiled_files.packs(packed), tmp_path, checked)
    assert taken < 100
    assert refused > 200


def test_columns_of_any_type_in_a_parquet_file_are_taken_or_refused_in_one_sentence(tmp_path: Path) -> None:
    made = spoiled_files.parquets(tmp_path)
    taken, refused = all_sound(made, tmp_path, checked)
    assert taken > 5
    assert refused > 5


def test_damaged_files_of_every_kind_are_taken_or_refused_in_one_sentence(tmp_path: Path) -> None:
    sound = spoiled_files.seeds(spoiled_files.sound_parquet(tmp_path / "s.parquet"), spoiled_files.sound_pack(tmp_path))
    for name, content in sound.items():
        (tmp_path / name).write_bytes(content)
        assert taken_or_refused(lambda name=name: checked(tmp_path / name)) == (not name.endswith(".jsonl")), name
    taken, refused = all_sound(spoiled_files.bent_files(sound, 12, seed=3), tmp_path, checked)
    assert taken + refused == 120
    assert refused > 30


def test_a_parquet_file_whose_name_of_a_column_is_no_text_is_refused(tmp_path: Path) -> None:
    # DuckDB raises a plain RuntimeError over it
    sound = spoiled_files.sound_parquet(tmp_path / "sound.parquet")
    (tmp_path / "bad.parquet").write_bytes(sound.replace(b"subject", b"\xff\xfe\xfdject"))
    for reader in (read_events, lambda path: describe(path, ReadOptions())):
        with pytest.raises(DataError, match=r"bad.parquet cannot be read") as refusal:
            reader(tmp_path / "bad.parquet")
        assert one_sentence(str(refusal.value))


# ---- the ends of the calendar --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00"])
def test_a_time_that_leaves_the_calendar_in_utc_is_a_rejected_row(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ends.csv"
    path.write_bytes(text_of([*ROWS, ("a", "r", "b", text)]))
    reading = read_events(path)
    assert [(reject.line, text in reject.reason) for reject in reading.rejects.rows] == [(len(ROWS) + 2, True)]
    with pytest.raises(DataError, match="outside the years 1 to 9999"):
        parse_date(text)
    assert bridgemem("data", "check", path).code == 2


def test_every_step_next_to_the_ends_of_the_calendar_has_a_label(tmp_path: Path) -> None:
    path = tmp_path / "ends.csv"
    path.write_bytes(text_of([("a", "r", "b", f"{year}-12-31") for year in ("0001", "2000", "9998", "9999")]))
    for step in (None, "day", "week", 2**31 - 1):
        events = read_events(path, ReadOptions(step=step)).events
        assert events.clock.label(0)[:1] in "0-"
        assert events.clock.label(events.end)
        assert events.clock.label(2**31)
    assert bridgemem("data", "stats", path).code == 0


@pytest.mark.parametrize(
    ("kind", "origin", "unit"),
    [
        *[("date", 10**17, 1), ("date", 10**12, 1), ("date", 0, 0), ("date", 0.5, 1), ("date", [0], 1)],
        *[("integer", 10**5000, 1), ("integer", 0, 2**63), ("integer", 0, -1), ("sundial", 0, 1)],
    ],
    ids=range(9),
)
def test_a_clock_that_cannot_tell_the_time_is_refused(kind: str, origin: Any, unit: Any) -> None:
    with pytest.raises(DataError, match="a clock"):
        Clock(kind, origin, unit)


# ---- options -------------------------------------------------------------------------------------------------------

STEPS: tuple[str | int, ...] = (
    *(MANY_DIGITS, "-" + MANY_DIGITS, MANY_DIGITS + "d", "9" * 30, "0", "-1", "1e400", "nan", "", "²", "٣", "\ud800"),
    *(10**5000, -(10**5000), 10**17, 0, -1),
)


@pytest.mark.parametrize("command", ["check", "import", "stats", "fit", "mine"])
def test_a_step_of_thousands_of_digits_is_refused_in_one_sentence(command: str, own_csv: Path, tmp_path: Path) -> None:
    args: dict[str, tuple[str | Path, ...]] = {
        "check": ("data", "check", own_csv),
        "import": ("data", "import", own_csv, "-o", tmp_path / "out.npz"),
        "stats": ("data", "stats", own_csv),
        "fit": ("fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "run"),
        "mine": ("mine", own_csv, "-o", tmp_path / "mined"),
    }
    said = bridgemem(*args[command], "--step", MANY_DIGITS).refused()
    assert "is not a time step" in said
    assert len(said) < LONGEST_SENTENCE


@pytest.mark.parametrize("step", STEPS, ids=range(len(STEPS)))
@pytest.mark.parametrize("times", ["dates", "numbers"])
def test_odd_steps_are_taken_or_refused_in_one_sentence(step: str | int, times: str, tmp_path: Path) -> None:
    rows = [(*row[:3], str(i)) for i, row in enumerate(ROWS)] if times == "numbers" else ROWS
    (tmp_path / "a.csv").write_bytes(text_of(rows))
    taken_or_refused(lambda: load(tmp_path / "a.csv", step=step))


@pytest.mark.parametrize("amount", [MANY_DIGITS, "9" * 400 + "GB", "0", "-1", "nan", "1e9", "", "1GB" * 100, "²GB"])
def test_odd_amounts_of_memory_are_refused_in_one_sentence(amount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_or_refused(lambda: limits.bytes_of(amount))
    monkeypatch.setenv(limits.VARIABLE, amount)
    taken_or_refused(limits.free_bytes)


# ---- what unpacks --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits a thousand times smaller than the real ones, which only files of gigabytes reach."""
    monkeypatch.setattr(limits, "FREE", limits.FREE // 1000)
    monkeypatch.setattr(limits, "MOST_IDLE_LINES", limits.MOST_IDLE_LINES // 1000)
    monkeypatch.setattr(text, "BLOCK", text.BLOCK // 100)


def refused_early(path: Path, reader: Callable[[Path], Any] = load, most: int = 8 << 20) -> str:
    """The sentence of a refusal for which at most that many bytes were allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as refusal:
            reader(path)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert one_sentence(str(refusal.value))
    return str(refusal.value)


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def npz_of(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(spoiled_files.sound_pack(tmp_path))) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("packing", ["gz", "zip"])
@pytest.mark.parametrize("what", ["rows", "one line"])
def test_text_that_unpacks_to_more_than_the_limit_is_refused(what: str, packing: str, tmp_path: Path) -> None:
    unpacked = b"a\tb\tc\t1\n" * 400_000 if what == "rows" else text_of(ROWS) + b"x" * 4_000_000
    content = gzip.compress(unpacked) if packing == "gz" else zipped(a=unpacked)
    said = refused_early(saved(tmp_path / f"bomb.{packing}", content))
    assert "unpacks to more than" in said
    assert limits.VARIABLE in said


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("line", [b"", b" \t ", b"x", b"a,b", b'"', b"\xff,,,", b"\0"])
def test_a_file_of_blank_or_bad_lines_is_given_up(line: bytes, tmp_path: Path) -> None:
    path = saved(tmp_path / "idle.csv", text_of(ROWS) + (line + b"\n") * 100_000)
    assert "was given up after" in refused_early(path)
    assert "was given up after" in refused_early(saved(tmp_path / "blank.csv", b"\n" * 100_000 + text_of(ROWS)))


@pytest.mark.usefixtures("small_limits")
def test_blank_and_bad_lines_between_rows_are_passed_over(tmp_path: Path) -> None:
    rows = b"\n\n\nx\n".join(text_of([row], heading=False) for row in ROWS * 30)
    reading = read_events(saved(tmp_path / "sparse.csv", rows))
    assert len(reading.events) == len(ROWS) * 30
    assert reading.rejects.count == len(ROWS) * 30 - 1


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("columns", "rows"),
    [("'a' AS subject", 100_000), ("repeat('a', 10000) AS subject", 1000), ("range(200) AS subject", 1000)],
    ids=["rows", "long names", "lists"],
)
def test_a_parquet_file_that_declares_too_much_is_refused_before_it_is_read(
    columns: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    path = tmp_path / "bomb.parquet"
    table = f"SELECT {columns}, 'r' AS relation, 'b' AS object, i // 50_000 AS time FROM range({rows}) t(i)"
    duckdb.execute(f"COPY ({table}) TO '{path}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {rows})")
    assert path.stat().st_size < 4000

    def checked_rows(*args: Any) -> None:
        check_rows(*args)
        pytest.fail("rows were taken")

    monkeypatch.setattr("bridgemem.events.readers.read.check_rows", checked_rows)
    assert "unpacks to more than" in refused_early(path)
    # `mine` reads it out of core
    if "range" not in columns and rows > 1000:
        assert mine_files([path], tmp_path / "mined")["events"] == rows


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("names", [("subject", "relation", "object", "step"), ("entity_sizes",), ("relation_names",)])
def test_a_pack_that_declares_too_much_is_refused_before_it_is_unpacked(
    names: tuple[str, ...], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = npz_of(tmp_path / "bomb.npz", arrays | {name: np.zeros(2_000_000, np.uint8) for name in names})
    assert path.stat().st_size < 20_000
    assert "unpacks to more than" in refused_early(path, most=1 << 20)


def test_a_pack_whose_header_claims_more_than_there_is_is_refused(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    header = io.BytesIO()
    claim = {"descr": "|u1", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(header, claim)
    path = npz_of(tmp_path / "claims.npz", {name: array for name, array in arrays.items() if name != "subject"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("subject.npy", header.getvalue())
    assert "its subject is not a column" in refused_early(path, most=1 << 20)


def test_a_long_note_and_names_of_negative_length_in_a_pack_are_refused(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    note = np.concatenate([arrays["about"], np.full(limits.MOST_NOTE_BYTES, 32, np.uint8)])
    path = npz_of(tmp_path / "note.npz", arrays | {"about": note})
    assert "its note is longer" in refused_early(path, most=1 << 20)
    text, last = np.zeros(1000, np.uint8), np.array([1000])
    sizes = np.concatenate([np.tile([1000, -1000], 5000), last])
    path = npz_of(tmp_path / "names.npz", arrays | {"entity_names": text, "entity_sizes": sizes})
    assert "its entity names are not whole" in refused_early(path, most=4 << 20)


@pytest.mark.usefixtures("small_limits")
def test_honest_files_beyond_the_least_limit_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"a{s}", f"r{r}", f"a{o}", str(i // 50)) for i, (s, r, o) in enumerate(rng.integers(0, 90, (10_000, 3)))]
    text = text_of(rows)
    assert limits.ROW_BYTES * len(rows) > limits.FREE
    paths = [saved(tmp_path / "a.csv", text), saved(tmp_path / "a.csv.gz", gzip.compress(text))]
    paths.append(saved(tmp_path / "a.zip", zipped(a=text)))
    events = read_events(paths[0]).events
    import duckdb

    duckdb.execute(f"COPY (FROM read_csv('{paths[0]}')) TO '{tmp_path / 'a.parquet'}' (FORMAT parquet)")
    pack(Dataset.chronological("a", events), tmp_path / "a.npz")
    for path in [*paths, tmp_path / "a.parquet", tmp_path / "a.npz"]:
        assert load(path).events.fingerprint == events.fingerprint


@pytest.mark.usefixtures("small_limits")
def test_the_environment_raises_the_limit_and_several_files_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = gzip.compress(b"".join(b"a\tb\tc\t%d\n" % (i // 1000) for i in range(4000)))
    paths = [saved(tmp_path / f"{i}.tsv.gz", rows) for i in range(3)]
    assert len(read_events(paths[0]).events) == 4000
    with pytest.raises(LimitError, match=r"1.tsv.gz of .* unpacks to more than 1 MB"):
        read_events(paths)
    monkeypatch.setenv(limits.VARIABLE, "16MB")
    assert len(read_events(paths).events) == 12_000
    monkeypatch.setenv(limits.VARIABLE, "much")
    with pytest.raises(SettingsError, match=f"{limits.VARIABLE}: 'much' is not an amount of memory"):
        read_events(paths)


def test_a_polecat_file_of_crowds_becomes_no_flood_of_events(tmp_path: Path) -> None:
    sides = [";".join(f"{side}{i}" for i in range(20)) for side in "ab"]
    heading = "Event Date\tEvent Type\tActor Name\tRecipient Name\n"
    crowds = "".join(f"2024-01-{i % 28 + 1:02d}\tAID\t{sides[0]}\t{sides[1]}\n" for i in range(2000))
    path = saved(tmp_path / "crowds.txt", (heading + crowds).encode())
    assert "the row names 400 pairs of parties" in refused_early(path, read_events)


# ---- the commands --------------------------------------------------------------------------------------------------


def spoiled_few(folder: Path) -> dict[str, bytes]:
    """One file of each trouble, for the commands."""
    parquet = spoiled_files.sound_parquet(folder / "sound.parquet")
    return {
        "ends.csv": text_of([*ROWS, ("a", "r", "b", "9999-12-31T23:59-12:00")]),
        "lzma.zip": spoiled_files.bent(zipped(zipfile.ZIP_LZMA, a=text_of(ROWS)), np.random.default_rng(5)),
        "names.parquet": parquet.replace(b"subject", b"\xff\xfe\xfdject"),
    }


def test_commands_refuse_spoiled_files_in_one_sentence(recurrence_run: Path, tmp_path: Path) -> None:
    store, before = tmp_path / "store.duckdb", left_in(recurrence_run.parent)
    for name, content in spoiled_few(tmp_path).items():
        path = saved(tmp_path / name, content)
        bridgemem("ingest", store, path, "--run", recurrence_run).refused()
        if name != "ends.csv":
            bridgemem("data", "import", path, "-o", tmp_path / "out.npz").refused()
            bridgemem("fit", "-d", path, "-b", "recurrence", "-o", tmp_path / "run").refused()
    bridgemem("mine", tmp_path / "names.parquet", "-o", tmp_path / "mined").refused()
    assert not {"out.npz", "run", "mined"} & set(left_in(tmp_path))
    assert left_in(recurrence_run.parent) == before


@pytest.mark.parametrize("at", [MANY_DIGITS, "9" * 90, "9999-12-31", "0001-01-01T00:00+14:00", "\x85"])
def test_queries_at_odd_times_are_answered_or_refused(at: str, recurrence_run: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "queries.csv", f"subject,relation,time\nKel,visit,{at}\n".encode())
    outcome = bridgemem("forecast", recurrence_run, "--queries", path, "--out", tmp_path / "answers.csv")
    assert outcome.code == 0 or len(outcome.refused()) < LONGEST_SENTENCE
