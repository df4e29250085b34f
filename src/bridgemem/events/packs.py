"""Packs: a data set, a named one or a user's own, as one compact file."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.config import parse_json
from bridgemem.errors import DataError, LimitError, NotFoundError
from bridgemem.events.aliases import Aliases, merged, resolved
from bridgemem.events.arrays import check_columns, read_column
from bridgemem.events.dataset import Dataset
from bridgemem.events.limits import MOST_NOTE_BYTES
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.readers.text import short

PACK_FORMAT = 1
COLUMNS = ("subject", "relation", "object", "step")
# for the limits: how many rows an entry of each array of a pack is worth
ENTRIES = dict.fromkeys(COLUMNS, 1 / 4) | {
    "entity_names": 0,
    "relation_names": 0,
    "entity_sizes": 1,
    "relation_sizes": 1,
}
# arrays that a pack may hold besides
MORE = {
    f"{key}_{part}": size
    for key in ("alias", "entity_type", "relation_type")
    for part, size in (("names", 0), ("sizes", 1))
}
# whatever zipfile, numpy and json raise over bytes that are cut, foreign or made to harm
BROKEN_PACK: tuple[type[Exception], ...] = (OSError, EOFError, LookupError, TypeError, ValueError, ArithmeticError)
BROKEN_PACK += (MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error, DataError)


def pack(dataset: Dataset, path: str | Path, replace: bool = True, *, aliases: Aliases | None = None) -> None:
    """Write a data set, a named one or a user's own, to one compressed .npz; the file appears whole or not at all.

    replace: an existing file, or one that appears meanwhile, is replaced. aliases: those to be applied when it
    is read, instead of those that were applied already; the events keep the names that they have.
    """
    from bridgemem.storage.whole import whole_file

    events = dataset.events
    about = {
        "format": PACK_FORMAT,
        "name": dataset.name,
        "valid_start": dataset.valid_start,
        "test_start": dataset.test_start,
        "clock": [events.clock.kind, events.clock.origin, events.clock.unit],
        "kinds": [events.entities.kind, events.relations.kind],
        "fingerprint": events.fingerprint,
    }
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for column in COLUMNS[:3]:
        arrays[column] = _smallest(getattr(events, column))
    # steps rise slowly, so their differences are mostly zeros
    arrays["step"] = _smallest(np.diff(events.step, prepend=0))
    for key, vocabulary in (("entity", events.entities), ("relation", events.relations)):
        arrays |= _packed_names(key, vocabulary.names)
        if vocabulary.types:
            arrays |= _packed_names(f"{key}_type", [vocabulary.types.get(name, "") for name in vocabulary.names])
    table = events.entities.aliases if aliases is None else aliases
    if table:
        arrays |= _packed_names("alias", [text for row in table.items() for text in row])
    try:
        with whole_file(Path(path), replace) as aside, aside.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}.") from None


def unpack(path: str | Path) -> Dataset:
    """Read a data set that ``pack`` has written, under its canonical names; nothing but numpy is needed."""
    dataset, table = unpack_unmerged(path)
    return replace(dataset, events=merged(dataset.events, table)[0]) if table else dataset


def unpack_unmerged(path: str | Path) -> tuple[Dataset, dict[str, str]]:
    """A packed data set under the names that its events came with, and its aliases."""
    if not Path(path).is_file():
        raise NotFoundError(f"{path} does not exist; check its name.")
    try:
        return _unpacked(Path(path))
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except LimitError:
        raise
    except BROKEN_PACK as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"{path} is not a whole packed data set, write or fetch it again: {short(reason, 300)}."
        ) from None


def _about(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The note in a packed data set, with values of the types that it must have."""
    if archive.getinfo("about.npy").file_size > MOST_NOTE_BYTES:
        raise DataError(f"its note is longer than {MOST_NOTE_BYTES:,} bytes")
    about = parse_json(read_column(archive, "about").tobytes())
    if not isinstance(about, dict) or about["format"] != PACK_FORMAT:
        found = short(str(about["format"])) if isinstance(about, dict) else "unknown"
        raise DataError(f"its format is {found}, and this version reads {PACK_FORMAT}")
    texts = [about["name"], about["fingerprint"], *about["kinds"], about["clock"][0]]
    numbers = [about["valid_start"], *about["clock"][1:]]
    numbers += [] if about["test_start"] is None else [about["test_start"]]
    typed = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers)
    if not typed or (len(about["kinds"]), len(about["clock"])) != (2, 3):
        raise DataError("its note holds a value of another type than it is written with")
    about["name"].encode()  # no half of a character, which no file could be named after
    return about


def _unpacked(path: Path) -> tuple[Dataset, dict[str, str]]:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise DataError("it is a single array")
    with zipfile.ZipFile(path) as archive:
        aliased = "alias_names.npy" in archive.namelist()
        held = {name.removesuffix(".npy") for name in archive.namelist()}
        check_columns(path, archive, ENTRIES | {name: size for name, size in MORE.items() if name in held})
        about = _about(archive)
        subject, relation, object_, step = (read_column(archive, column) for column in COLUMNS)
        events = EventLog(
            subject,
            relation,
            object_,
            np.cumsum(step, dtype=np.int64),
            _unpacked_vocabulary(archive, "entity", about["kinds"][0]),
            _unpacked_vocabulary(archive, "relation", about["kinds"][1]),
            Clock(*about["clock"]),
        )
        texts = _unpacked_names(archive, "alias", "alias").names if aliased else ()
        if len(texts) % 2:
            raise DataError("its aliases are not whole")
        table = resolved(dict(zip(texts[::2], texts[1::2], strict=True)), "its aliases")
    if events.fingerprint != about["fingerprint"]:
        raise DataError("its content does not have the fingerprint that was noted when it was written")
    return Dataset(about["name"], events, about["valid_start"], about["test_start"]), table


def _packed_names(key: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
    names = [text.encode() for text in texts]
    sizes = np.array([len(name) for name in names], np.int64)
    return {f"{key}_names": np.frombuffer(b"".join(names), np.uint8), f"{key}_sizes": _smallest(sizes)}


def _unpacked_vocabulary(archive: zipfile.ZipFile, key: str, kind: str) -> Vocabulary:
    names = _unpacked_names(archive, key, kind)
    if f"{key}_type_names.npy" not in archive.namelist():
        return names
    types = _unpacked_names(archive, f"{key}_type", kind).names
    if len(types) != len(names):
        raise DataError(f"its {key} types are not whole")
    return replace(names, types={name: text for name, text in zip(names, types, strict=True) if text})


def _unpacked_names(archive: zipfile.ZipFile, key: str, kind: str) -> Vocabulary:
    text = read_column(archive, f"{key}_names").tobytes()
    sizes = read_column(archive, f"{key}_sizes")
    # sizes below zero could make many long names of a short text
    sound = not len(sizes) or (sizes.min() >= 0 and sizes.max() <= len(text))
    ends = np.cumsum(sizes, dtype=np.int64).tolist() if sound else []
    if not sound or (ends[-1] if ends else 0) != len(text):
        raise DataError(f"its {key} names are not whole")
    return Vocabulary(kind, tuple(text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)))


def _smallest(values: np.ndarray) -> np.ndarray:
    """The same non-negative numbers in the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
