"""Checksums: CRC-32 of every file of a memory on disk or a mined folder, and of weights, noted when it is written.

CRC-32, of zlib, because a flipped byte is what it is made to find, always, and because it is quick: 2 GB/s, where
BLAKE2b reaches 0.4 and SHA-256 0.9. It shows damage, and not who changed a file on purpose.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from bridgemem.errors import RunError
from bridgemem.storage.files import read_json, write_json

VERIFIED = 256 << 20  # bytes up to which all of a memory is read and verified when it is opened
BLOCK = 1 << 20


def checksum(content: bytes | memoryview, before: str = "") -> str:
    """The checksum of bytes, or of bytes that follow those of another checksum."""
    return f"{crc32(content, int(before or '0', 16)):08x}"


def file_checksum(path: Path, header: int = 0) -> str:
    """The checksum of a file; the first `header` bytes, which may be written last, count as if they were at its end."""
    found = 0
    with path.open("rb") as file:
        first = file.read(header)
        for block in iter(partial(file.read, BLOCK), b""):
            found = crc32(block, found)
    return f"{crc32(first, found):08x}"


def verify_file(path: Path, expected: Any, remedy: str, header: int = 0) -> None:
    """Refuse a file that is not what was written, naming it."""
    try:
        found = file_checksum(path, header)
    except OSError as problem:
        why = "is missing" if isinstance(problem, FileNotFoundError) else f"cannot be read: {problem.strerror}"
        raise RunError(f"{path} {why}; {remedy}.") from None
    if found != expected:
        raise RunError(f"{path} is damaged, its checksum is not the one noted when it was written; {remedy}.")


def write_manifest(path: Path, values: dict[str, Any]) -> None:
    """Write the file that makes a folder whole, with a checksum of its own text."""
    write_json(path, {**values, "checksum": checksum(_text(values))})


def read_manifest(path: Path, wanted: int, what: str, remedy: str) -> dict[str, Any]:
    """What `write_manifest` wrote, refused if it is of another format or not the same to the byte.

    what: the folder is, in words.
    """
    try:
        values = read_json(path)
    except RunError as problem:
        raise RunError(f"{str(problem).rstrip('.')}; {remedy}.") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != wanted:
        raise RunError(f"{path.parent} is {what} of format {found}, and this program reads {wanted}; {remedy}.")
    own = {name: value for name, value in values.items() if name != "checksum"}
    if values.get("checksum") != checksum(_text(own)) or path.read_bytes() != _text(values):
        raise RunError(f"{path} is damaged, its checksum is not the one noted when it was written; {remedy}.")
    return own


def _text(values: dict[str, Any]) -> bytes:
    """As `write_json` writes it."""
    return (json.dumps(values, indent=1) + "\n").encode()
