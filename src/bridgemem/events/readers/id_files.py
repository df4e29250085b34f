"""Id files of the standard layout: entity2id.txt and relation2id.txt, of two or more columns, and stat.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.table import INTEGER
from bridgemem.events.readers.text import fault, short, text_lines

MOST_NAMES = 1 << 27  # of a vocabulary without names, of which a file tells the size alone


def read_vocabulary(path: str | Path, kind: str) -> Vocabulary:
    """Names from a file of ``name<TAB>id`` lines in any order; the ids must be 0..n-1, each once.

    Further columns, such as a type, are kept as `Vocabulary.types`; the id is then in the second column, the last or
    the first, whichever holds 0..n-1. A first line that only counts the others is passed over. Of names that occur
    twice, the later ones get their type, or else their id, in brackets.
    """
    lines = [(number, line) for number, line in text_lines(Path(path)) if line.strip()]
    for number, line in lines:
        if fault(line):
            raise _no_id(path, number, line)
    if len(lines) > 1 and "\t" not in lines[0][1] and lines[0][1].strip() == str(len(lines) - 1):
        lines = lines[1:]
    if not lines:
        raise DataError(f"{path} holds no names: expected lines of a name, a tab and an id.")
    rows = [[field.strip() for field in line.split("\t")] for _, line in lines]
    at = _id_column(rows)
    if at is None:
        return Vocabulary(kind, _told_apart(_last_ids(path, lines), {}))
    names = {int(row[at]): row[1 if at == 0 else 0] for row in rows}
    name_at = 1 if at == 0 else 0
    more = {int(row[at]): "\t".join(row[i] for i in range(len(row)) if i not in (at, name_at)) for row in rows}
    unique = _told_apart(names, more)
    types = {name: more[i] for i, name in enumerate(unique) if more[i].strip()}
    return Vocabulary(kind, unique, types=types)


def read_stat(path: Path) -> tuple[int, int]:
    """How many entities and relations there are, from the first two numbers of a stat.txt."""
    for number, line in text_lines(path):
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 2 or not all(INTEGER.fullmatch(field) and 0 < int(field) < MOST_NAMES for field in fields[:2]):
            raise DataError(f"{path}:{number}: expected the numbers of entities and relations, found {short(line)!r}.")
        return int(fields[0]), int(fields[1])
    raise DataError(f"{path} is empty: expected the numbers of entities and relations.")


def with_size(vocabulary: Vocabulary | None, kind: str, size: int) -> Vocabulary:
    """A vocabulary of at least this size: ids without a name are called by their number."""
    known = vocabulary or Vocabulary(kind, ())
    taken = set(known.names)
    added = (str(i) if str(i) not in taken else f"{kind} {i}" for i in range(len(known), size))
    return known.followed_by(list(added)) if size > len(known) else known


def _id_column(rows: Sequence[Sequence[str]]) -> int | None:
    """Which of three or more columns holds the ids 0..n-1, each once; None where there are two, or none does."""
    width = len(rows[0])
    if width < 3 or any(len(row) != width for row in rows):
        return None
    wanted = set(map(str, range(len(rows))))
    return next((at for at in (1, width - 1, 0) if {row[at] for row in rows} == wanted), None)


def _last_ids(path: str | Path, lines: Sequence[tuple[int, str]]) -> dict[int, str]:
    """The names by id, where a line is a name, a tab and an id; the name may hold tabs itself."""
    names: dict[int, str] = {}
    for number, line in lines:
        name, tab, text = line.rpartition("\t")
        if not tab or not INTEGER.fullmatch(text.strip()):
            raise _no_id(path, number, line)
        if int(text) in names:
            raise DataError(f"{path}:{number}: the id {int(text)} is given twice; give each id once.")
        names[int(text)] = name.strip()
    if min(names) != 0 or max(names) != len(names) - 1:
        raise DataError(f"{path} has {len(names)} names, so its ids must be 0..{len(names) - 1}, each once.")
    return names


def _told_apart(names: dict[int, str], more: dict[int, str]) -> tuple[str, ...]:
    """The names in the order of ids; of equal ones the first keeps its name."""
    taken, found = set(names.values()), dict[str, int]()
    for i in range(len(names)):
        name = names[i]
        if name in found:
            choices = (f"{name} ({part})" for part in (*reversed(more.get(i, "").split("\t")), str(i)) if part)
            free = (each for each in choices if each not in taken and each not in found)
            name = next(free, f"{name} (id {i})")
        found[name] = i
    return tuple(found)


def _no_id(path: str | Path, number: int, line: str) -> DataError:
    return DataError(f"{path}:{number}: expected a name in UTF-8, a tab and an id, found {short(line)!r}.")
