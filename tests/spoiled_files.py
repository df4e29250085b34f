"""Files of events spoiled in every way, the same ones on every run: bytes, cells, columns, members and headers."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.events.dataset import Dataset
from bridgemem.events.packs import pack
from bridgemem.events.readers.read import read_events

ROWS = [(f"actor {i % 7}", f"rel {i % 3}", f"actor {(i * 3 + 1) % 7}", f"2024-01-{i // 3 + 1:02d}") for i in range(60)]
HEADING = ("subject", "relation", "object", "time")
MANY_DIGITS = "9" * 5000

# what stands in place of a cell, in one row or in all of them
CELLS = (
    *("0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00", "0001-01-01", "9999-12-31", "9999-12-31T23:59:59.999999"),
    *("0000-01-01", "10000-01-01", "-0001-01-01", "2024-02-30", "2024-W01", "2024-W53-7", "2024-01-01T24:00"),
    *("2024-01-01T00:00+23:59", "2024-01-01T00:00-23:59", "2024-01-01T00:00+24:00", "infinity", "20240230", "99991231"),
    *("00010101", "1e400", "-1e400", "nan", "inf", "-0", "0", "-1", "1.5", "1" * 18, "9" * 18, "-" + "9" * 18),
    *("9" * 19, "9" * 30, MANY_DIGITS, "-" + MANY_DIGITS, "٣", "²", "１２", "2147483647", "2147483648", "4294967296"),
    *(
        "9223372036854775807",
        "",
        " ",
        '"',
        '""',
        '"""',
        "a\tb",
        "a,b",
        "a;b",
        "a|b",
        "=1+1",
        "#",
        "sep=,",
        "{",
        "[",
        "{}",
    ),
    *("\0", "\x1a", "\x85", "\u2028", "\ufeff", "\U0001f600", "é" * 500, "x" * 200_000, "None", "NULL", "\\N"),
    *("subject", "time", "%s", "../x", "'; DROP TABLE raw; --", "{0}", "\r", "a\rb"),
)


def text_of(rows: list[tuple[str, ...]], separator: str = ",", heading: bool = True) -> bytes:
    lines = [separator.join(row) for row in ([HEADING] if heading else []) + rows]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def cells() -> Iterator[tuple[str, bytes]]:
    """Text files with one odd cell, or a column of them."""
    for number, cell in enumerate(CELLS):
        for place, role in enumerate(HEADING):
            for where, chosen in (("one", {30}), ("all", set(range(len(ROWS))))):
                if role != "time" and place != (number + (where == "all")) % 4:
                    continue
                rows = [
                    tuple(cell if i in chosen and j == place else x for j, x in enumerate(r))
                    for i, r in enumerate(ROWS)
                ]
                yield f"{role} {number} {where}.csv", text_of(rows, "," if number % 2 else "\t", heading=number % 3 > 0)


def bent(content: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few of them changed, cut, doubled or put in."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at, size = int(rng.integers(len(data))), int(rng.integers(1, 40))
        match int(rng.integers(6)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.choice([0, 1, 127, 128, 255]))
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size]
            case 4:
                data[at:at] = bytes(rng.integers(0, 256, size, dtype=np.uint8))
            case _:
                data = data[: max(at, 8)]
    return bytes(data)


def seeds(parquet: bytes, packed: bytes) -> dict[str, bytes]:
    """Sound files of every kind, small so that most of their bytes say something."""
    text = text_of(ROWS)
    return {
        "a.csv": text,
        "a.tsv": text_of(ROWS, "\t", heading=False),
        "a.csv.gz": gzip.compress(text, mtime=0),
        "stored.zip": zipped(zipfile.ZIP_STORED, a=text),
        "deflated.zip": zipped(zipfile.ZIP_DEFLATED, a=text),
        "bz2.zip": zipped(zipfile.ZIP_BZIP2, a=text),
        "lzma.zip": zipped(zipfile.ZIP_LZMA, a=text),
        "a.parquet": parquet,
        "a.npz": packed,
        "a.jsonl": b"".join(json.dumps(dict(zip(HEADING, row, strict=True))).encode() + b"\n" for row in ROWS),
    }


def bent_files(sound: dict[str, bytes], each: int, seed: int) -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(seed)
    for name, content in sound.items():
        for number in range(each):
            yield f"{number}-{name}", bent(content, rng)


def sound_parquet(path: Path) -> bytes:
    return parquet_of(path, ", ".join(f"column{i} AS {name}" for i, name in enumerate(HEADING)))


def parquet_of(path: Path, columns: str, options: str = "") -> bytes:
    import duckdb

    values = ", ".join(str(row) for row in ROWS)
    table = f"(VALUES {values}) t(column0, column1, column2, column3)"
    duckdb.execute(f"COPY (SELECT {columns} FROM {table}) TO '{path}' (FORMAT parquet {options})")
    return path.read_bytes()


# the columns of a Parquet file in types that hold no events, or odd ones
TYPES = (
    *(
        "NULL",
        "true",
        "1.5::DOUBLE",
        "'nan'::DOUBLE",
        "'inf'::DOUBLE",
        "1e300::DOUBLE",
        "[1, 2]",
        "{'a': 1}",
        "'x'::BLOB",
    ),
    *(
        "'\\xff\\x00'::BLOB",
        "MAP {'a': 1}",
        "INTERVAL 1 DAY",
        "TIME '12:00'",
        "uuid()",
        "1::HUGEINT",
        "1.25::DECIMAL(9, 2)",
    ),
    *(
        "'infinity'::TIMESTAMP",
        "'-infinity'::DATE",
        "DATE '5000000-01-01'",
        "TIMESTAMP '290000-01-01'",
        "'44-03-15 (BC)'::DATE",
    ),
    *(
        "TIMESTAMPTZ '9999-12-31 23:59:00-12:00'",
        "TIMESTAMP '0001-01-01'",
        "9223372036854775807",
        "-9223372036854775808",
    ),
    *("18446744073709551615::UBIGINT", "repeat('9', 5000)", "chr(0)", "''", "'a'::ENUM('a', 'b')", "[]::INTEGER[]"),
)


def parquets(folder: Path, where: int = 3) -> Iterator[tuple[str, bytes]]:
    """Parquet files with each odd type in one of the columns; where is the first that has it."""
    for number, value in enumerate(TYPES):
        place = (number + where) % 4
        columns = ", ".join(f"{value if i == place else f'column{i}'} AS {name}" for i, name in enumerate(HEADING))
        yield f"{place}-{number}.parquet", parquet_of(folder / "made.parquet", columns)


def sound_pack(folder: Path) -> bytes:
    (folder / "sound.csv").write_bytes(text_of(ROWS))
    pack(Dataset.chronological("sound", read_events(folder / "sound.csv").events), folder / "sound.npz")
    return (folder / "sound.npz").read_bytes()


# what stands in place of a value of a pack's note
NOTED: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**17, 10**400, 1.5, float("nan"), float("inf"), 1e17, "", "x", "1"),
    *([], {}, [[]], ["a"], {"a": 1}, "\ud800", "x" * 100_000),
)
CLOCKS: tuple[Any, ...] = (
    *(["date", 10**17, 86_400], ["date", -(10**17), 86_400], ["date", 0, 0], ["date", 0, -1], ["date", 0, 10**17]),
    *(["integer", 10**30, 1], ["integer", 10**5000, 1], ["integer", 0, 0], ["sundial", 0, 1], ["date", 0], [1, 2, 3]),
    *(
        ["date", 253402300799, 86_400],
        ["date", -62135596800, 1],
        ["date", 0.5, 1],
        ["date", "0", "1"],
        [["date"], 0, 1],
    ),
)
ARRAYS: tuple[np.ndarray, ...] = (
    *(
        np.zeros(0, np.uint8),
        np.zeros(60),
        np.full(60, np.nan),
        np.full(60, -1),
        np.full(60, 2**40),
        np.zeros((60, 2), int),
    ),
    *(
        np.array(3),
        np.zeros(60, bool),
        np.zeros(60, "U4"),
        np.zeros(60, "S4"),
        np.zeros(60, "M8[s]"),
        np.zeros(60, complex),
    ),
    *(
        np.zeros(60, [("a", "i4")]),
        np.full(60, 255, np.uint8),
        np.full(60, 2**64 - 1, np.uint64),
        np.ones(59, np.uint8),
    ),
)


def packs(packed: bytes) -> Iterator[tuple[str, bytes]]:
    """Packed data sets with a value of the note, or an array, that is none of theirs."""
    with np.load(io.BytesIO(packed)) as archive:
        sound = {name: archive[name] for name in archive.files}
    about = json.loads(sound["about"].tobytes())

    def written(**changed: np.ndarray) -> bytes:
        file = io.BytesIO()
        np.savez(file, **(sound | changed))
        return file.getvalue()

    def noted(note: Any) -> bytes:
        text = note if isinstance(note, bytes) else _json(note)
        return written(about=np.frombuffer(text, np.uint8))

    for key in about:
        for number, value in enumerate(NOTED):
            yield f"{key}-{number}.npz", noted(about | {key: value})
        yield f"no-{key}.npz", noted({k: v for k, v in about.items() if k != key})
    for number, clock in enumerate(CLOCKS):
        yield f"clock-{number}.npz", noted(about | {"clock": clock})
    for place in range(3):
        for number, value in enumerate(NOTED):
            clock = [value if i == place else x for i, x in enumerate(about["clock"])]
            yield f"clock-{place}-{number}.npz", noted(about | {"clock": clock})
    for number, text in enumerate((b"", b"[]", b"3", b"null", b"{", b"\xff", b"[" * 100_000, b'"' + b"x" * 9 + b'"')):
        yield f"note-{number}.npz", noted(text)
    for name in sound:
        for number, array in enumerate(ARRAYS):
            yield f"{name}-array-{number}.npz", written(**{name: array})


def _json(value: Any) -> bytes:
    """JSON also of numbers that have more digits than json writes."""
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value).encode()
    finally:
        sys.set_int_max_str_digits(before)
