"""Spoiled run folders: every file and every value of a run, each spoiled in every way that its kind can be."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import struct
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.residuals.selection import digest

# what may stand in place of any value, as it is written in JSON; TOML has no null and writes inf and nan its own way
VALUES = {
    "5,000 digits": "9" * 5000,
    "10^400": "1" + "0" * 400,
    "10^30": "1" + "0" * 30,
    "2^63": str(2**63),
    "2^31": str(2**31),
    "10^12": "1000000000000",
    "1e400": "1e400",
    "1e300": "1e300",
    "NaN": "NaN",
    "-1": "-1",
    "0": "0",
    "0.5": "0.5",
    "text": '"x"',
    "digits": '"12"',
    "empty text": '""',
    "odd text": '"\\u0000\\n\\u202e\\ud800"',
    "null": "null",
    "true": "true",
    "list": "[1]",
    "nested": "[[[]]]",
    "table": '{"a": 1}',
}
TOML_VALUES = {
    **{how: text for how, text in VALUES.items() if how not in ("null", "NaN", "table", "odd text", "1e400")},
    "NaN": "nan",
    "inf": "inf",
    "hex of 5,000 digits": "0x" + "f" * 5000,
    "date": "2024-01-01",
    "table": "{a = 1}",
}
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "BOOL": 1, "U8": 1}
DTYPES |= {"I8": 1, "I16": 2, "I64": 8, "U16": 2, "U64": 8, "F8_E8M0": 1}
_PLACE = "@spoiled@"
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Spoiling:
    """One way to spoil one file of a run folder: what is spoiled, how, and what does it."""

    file: str
    where: str
    how: str
    spoil: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.file} {self.where} {self.how}".replace("  ", " ")

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        content = path.read_bytes()
        path.unlink()  # a file of a backbone may be linked to that of another run
        path.write_bytes(content)
        self.spoil(path)


def spoilings(folder: Path, file: str | None = None) -> Iterator[Spoiling]:
    """Every way to spoil every file of a run folder, or one of them."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if file not in (None, name):
            continue
        yield from _whole(name)
        match path.suffix:
            case ".json":
                yield from _json(path, name)
            case ".toml":
                yield from _toml(path, name)
            case ".safetensors":
                yield from _tensors(path, name)
            case ".parquet":
                yield from _table(path, name)
            case ".npz":
                yield from _packed(path, name)
            case ".txt":
                yield from _names(name)


def _whole(name: str) -> Iterator[Spoiling]:
    """What can happen to any file."""

    def folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    ways: dict[str, Callable[[Path], object]] = {
        "missing": lambda path: path.unlink(),
        "empty": lambda path: path.write_bytes(b""),
        "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
        "a folder": folder,
    }
    for how, spoil in ways.items():
        yield Spoiling(name, "", how, spoil)  # type: ignore[arg-type]


# ---- JSON and TOML -------------------------------------------------------------------------------------------------


def _leaves(value: Any, path: Place = ()) -> Iterator[Place]:
    """The place of every value and table; of a list its first two and its last item stand for all."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for at in sorted({0, min(1, len(value) - 1), len(value) - 1}):
            yield from _leaves(value[at], (*path, at))


def _put(values: Any, place: Place, text: str | None) -> str:
    """Nested values as JSON, with a text in one place of them, or with nothing there."""
    made = inner = json.loads(json.dumps(values))
    for key in place[:-1]:
        inner = inner[key]
    if text is None:
        del inner[place[-1]]
        return json.dumps(made)
    inner[place[-1]] = _PLACE
    return json.dumps(made).replace(f'"{_PLACE}"', text)


def _json(path: Path, name: str) -> Iterator[Spoiling]:
    values = json.loads(path.read_text())
    for how in ("5,000 digits", "10^400", "NaN", "null", "list", "text", "table"):
        yield Spoiling(name, "whole", how, lambda path, how=how: _write(path, VALUES[how]))  # type: ignore[misc]
    yield Spoiling(name, "whole", "deep", lambda path: _write(path, "[" * 100_000))
    for place in _leaves(values):
        for how, text in {**VALUES, "missing": None}.items():

            def spoil(path: Path, place: Place = place, text: str | None = text) -> None:
                _write(path, _put(values, place, text))

            yield Spoiling(name, ".".join(map(str, place)), how, spoil)


def _write(path: Path, text: str) -> None:
    """A JSON file; a selection is locked anew, since anyone who changes it can do that too, and so are calibrations."""
    if path.name == "selection.json":
        try:
            values = json.loads(text)
            locks = {name: digest(own) for name, own in values.items()}
            text = json.dumps({name: {**own, "lock": locks[name]} for name, own in values.items()})
            calibration = path.with_name("calibration.json")
            if calibration.is_file():
                made = json.loads(calibration.read_text())
                for method, own in made.items():
                    own["lock"] = locks.get(method.rpartition(".")[2], "")
                calibration.write_text(json.dumps(made))
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass  # spoiled beyond what has a lock
    path.write_text(text)


def _toml(path: Path, name: str) -> Iterator[Spoiling]:
    text = path.read_text()
    for how in ("5,000 digits", "hex of 5,000 digits", "NaN"):
        made = f"spoiled = {TOML_VALUES[how]}\n{text}"
        yield Spoiling(name, "first", how, lambda path, made=made: path.write_text(made))  # type: ignore[misc]
    yield Spoiling(name, "whole", "deep", lambda path: path.write_text("a = " + "[" * 100_000))
    for title, table in tomllib.loads(text).items():
        head, inner, rest = _parts_of_toml(text, title)
        for how, value in TOML_VALUES.items():
            made = f"{title} = {value}\n{head}{rest}"
            yield Spoiling(name, title, how, lambda path, made=made: path.write_text(made))  # type: ignore[misc]
        for key in table if isinstance(table, dict) else ():
            for how, value in TOML_VALUES.items():
                lines = re.sub(rf"(?m)^{re.escape(key)} = .*$", f"{key} = {value}", inner)
                made = head + lines + rest
                yield Spoiling(name, f"{title}.{key}", how, lambda path, made=made: path.write_text(made))  # type: ignore[misc]
            cut = head + re.sub(rf"(?m)^{re.escape(key)} = .*\n", "", inner) + rest
            yield Spoiling(name, f"{title}.{key}", "missing", lambda path, cut=cut: path.write_text(cut))  # type: ignore[misc]


def _parts_of_toml(text: str, title: str) -> tuple[str, str, str]:
    """What stands before a table, the table with its heading, and what stands after it."""
    start = text.index(f"[{title}]\n")
    after = re.search(r"(?m)^\[", text[start + 1 :])
    stop = len(text) if after is None else start + 1 + after.start()
    return text[:start], text[start:stop], text[stop:]


# ---- tensors -------------------------------------------------------------------------------------------------------


def read_raw(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors as a safetensors file writes them: type, shape and bytes."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    return {
        name: (one["dtype"], one["shape"], body[slice(*one["data_offsets"])])
        for name, one in header.items()
        if name != "__metadata__"
    }


def write_raw(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(c for _, _, c in tensors.values()))


def _tensors(path: Path, name: str) -> Iterator[Spoiling]:
    found = read_raw(path)

    def changed(tensor: str, made: tuple[str, list[int], bytes] | None) -> Callable[[Path], None]:
        rest = {key: one for key, one in found.items() if key != tensor}
        return lambda path: write_raw(path, rest if made is None else {**rest, tensor: made})

    for tensor, (dtype, shape, content) in found.items():
        n, size = int(np.prod(shape)), DTYPES.get(dtype, 4)
        made: dict[str, tuple[str, list[int], bytes] | None] = {
            other: (other, shape, b"\1" * (n * width)) for other, width in DTYPES.items() if other != dtype
        }
        row = len(content) // shape[0] if shape and shape[0] else size
        made |= {
            "missing": None,
            "of no length": (dtype, [0, *shape[1:]], b""),
            "scalar": (dtype, [], content[:size]),
            "flat": (dtype, [n], content),
            "one more dimension": (dtype, [*shape, 1], content),
            "longer": (dtype, [shape[0] + 1 if shape else 1, *shape[1:]], content + content[:row]),
            "transposed": (dtype, shape[::-1], content),
            "shape of 10^13": (dtype, [10**13], content),
        }
        if shape and shape[0] > 1:
            made["shorter"] = (dtype, [shape[0] - 1, *shape[1:]], content[row:])
        if dtype in ("F64", "F32"):
            kind = np.float64 if dtype == "F64" else np.float32
            for value in (np.nan, np.inf, -1.0, 0.0, 1e38):
                made[f"all {value:g}"] = (dtype, shape, np.full(n, value, kind).tobytes())
        elif dtype in ("I64", "I32", "BOOL"):
            kind = {"I64": np.int64, "I32": np.int32, "BOOL": np.uint8}[dtype]  # type: ignore[assignment]
            for number in (-1, 0, np.iinfo(kind).max) if dtype != "BOOL" else (0, 1, 255):
                made[f"all {number}"] = (dtype, shape, np.full(n, number, kind).tobytes())
        for how, one in made.items():
            yield Spoiling(name, tensor, how, changed(tensor, one))


# ---- tables and packed data ----------------------------------------------------------------------------------------

COLUMNS = {
    "text": "'x'",
    "null": "NULL",
    "NaN": "'nan'::DOUBLE",
    "inf": "'inf'::DOUBLE",
    "zero": "0",
    "negative": "-1",
    "2^62": "4611686018427387904",
    "10^300": "1e300::DOUBLE",
    "true": "true",
    "half": "0.5::FLOAT",
    "list": "[1, 2]",
    "struct": "{'a': 1}",
    "date": "DATE '2024-01-01'",
    "blob": "'x'::BLOB",
    "10^30": "1000000000000000000000000000000::HUGEINT",
}


def _table(path: Path, name: str) -> Iterator[Spoiling]:
    import duckdb

    with duckdb.connect() as connection:
        columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()]

    def queried(select: str) -> Callable[[Path], None]:
        def spoil(path: Path) -> None:
            made = path.with_suffix(".made")
            with duckdb.connect() as connection:
                table = f"read_parquet('{path}')"
                connection.execute(f"COPY ({select.format(table=table)}) TO '{made}' (FORMAT parquet)")
            made.rename(path)
            _note_digest(path)

        return spoil

    yield Spoiling(name, "rows", "none", queried("SELECT * FROM {table} LIMIT 0"))
    yield Spoiling(name, "rows", "one less", queried("SELECT * FROM {table} OFFSET 1"))
    yield Spoiling(name, "rows", "twice", queried("SELECT * FROM {table} UNION ALL SELECT * FROM {table}"))
    yield Spoiling(name, "columns", "foreign", queried("SELECT 1 AS a FROM {table}"))
    for column in columns:
        yield Spoiling(name, column, "missing", queried(f'SELECT * EXCLUDE ("{column}") FROM {{table}}'))
        for how, value in COLUMNS.items():
            made = value.replace("{", "{{").replace("}", "}}")
            select = f'SELECT * REPLACE ({made} AS "{column}") FROM {{table}}'
            yield Spoiling(name, column, how, queried(select))


def _note_digest(path: Path) -> None:
    """The note next to a part of an evaluation says that this very table was written."""
    note = path.with_suffix(".json")
    if note.is_file() and path.parent.name == "shards":
        made = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        note.write_text(json.dumps({**json.loads(note.read_text()), "digest": made}))


def array_bytes(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An array as .npy; shape: what its header claims in place of its own."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    if shape is None:
        return file.getvalue()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": array.dtype.str, "fortran_order": False, "shape": shape})
    return header.getvalue() + array.tobytes()


def write_packed(path: Path, arrays: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)


def _packed(path: Path, name: str) -> Iterator[Spoiling]:
    with np.load(path) as archive:
        found = {key: archive[key] for key in archive.files}
    plain = {key: array_bytes(array) for key, array in found.items()}

    def changed(key: str, content: bytes | None) -> Callable[[Path], None]:
        rest = {other: one for other, one in plain.items() if other != key}
        return lambda path: write_packed(path, rest if content is None else {**rest, key: content})

    for key, array in found.items():
        ways = {
            "missing": None,
            "of no length": array_bytes(array[:0]),
            "scalar": array_bytes(np.array(1)),
            "shorter": array_bytes(array[:-1]),
            "flat in two dimensions": array_bytes(array[None]),
            "float": array_bytes(array.astype(float)),
            "NaN": array_bytes(np.full(len(array), np.nan)),
            "text": array_bytes(np.full(len(array), "x")),
            "bool": array_bytes(array.astype(bool)),
            "complex": array_bytes(array.astype(complex)),
            "times": array_bytes(array.astype("datetime64[s]")),
            "negative": array_bytes(np.full(len(array), -1)),
            "2^62": array_bytes(np.full(len(array), 2**62)),
            "10^13 rows": array_bytes(array, (10**13,)),
            "2^70 rows": array_bytes(array, (2**70,)),
            "rows below 0": array_bytes(array, (-1,)),
            "a record": array_bytes(np.zeros(len(array), "i4,f8")),
        }
        for how, content in ways.items():
            yield Spoiling(name, key, how, changed(key, content))
    if "about" not in found:
        return
    about = json.loads(found["about"].tobytes())
    for place in _leaves(about):
        for how, text in VALUES.items():
            content = array_bytes(np.frombuffer(_put(about, place, text).encode(), np.uint8))
            yield Spoiling(name, ".".join(map(str, ("about", *place))), how, changed("about", content))


def _names(name: str) -> Iterator[Spoiling]:
    texts = {"numbers": "[1, 2]", "one name": "x\n", "no letters": "\n" * 20, "deep": "[" * 100_000, "a table": "[{}]"}
    for how, text in texts.items():
        yield Spoiling(name, "", how, lambda path, text=text: path.write_text(text))  # type: ignore[misc]


def spoiled(run: Path, spoiling: Spoiling, into: Path) -> Path:
    """A spoiled copy of a run."""
    copy = Path(shutil.copytree(run, into))
    spoiling.apply(copy)
    return copy


def claimed_table(path: Path) -> None:
    """A table of ranks as .npz, as it is written without DuckDB, whose headers claim 10^13 rows."""
    import duckdb

    with duckdb.connect() as connection:
        columns = connection.execute(f"SELECT * FROM '{path}'").fetchnumpy()
    plain = {name: np.ma.getdata(column) for name, column in columns.items()}
    write_packed(path.with_suffix(".npz"), {name: array_bytes(c, (10**13,)) for name, c in plain.items()})
    path.unlink()
