"""Labels: words for relations that are codes, from a file or by CAMEO's roots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.pairs import read_pairs

HEADINGS = (
    frozenset({"code", "relation", "name", "id", "event code"}),
    frozenset({"label", "name", "relation name", "description", "text"}),
)
CODE = re.compile(r"(0[1-9]|1[0-9]|20)[0-9]{0,2}")
# short words of our own for the 20 roots; a code of three or four digits begins with its root
CAMEO = {
    "01": "say in public",
    "02": "appeal or ask",
    "03": "offer to cooperate",
    "04": "meet or talk",
    "05": "cooperate politically",
    "06": "cooperate in practice",
    "07": "give aid",
    "08": "give way",
    "09": "look into",
    "10": "demand",
    "11": "criticise",
    "12": "refuse",
    "13": "threaten",
    "14": "protest",
    "15": "show force",
    "16": "cut ties",
    "17": "put under pressure",
    "18": "attack or harm",
    "19": "fight",
    "20": "mass violence",
}


def labelled(relations: Vocabulary, file: Path | str | None = None) -> Vocabulary:
    """The same relations with words for their codes: those of a file, and of the root where they are CAMEO codes."""
    found = _every_code() if is_cameo(relations.names) else {}
    if file is not None:
        given = read_pairs(file, HEADINGS)
        known = {name: label for name, label in given.items() if name in relations}
        if not known:
            raise DataError(
                f"{file} labels none of the {len(relations):,} relations ({', '.join(relations.names[:3])} ...); give "
                "rows of a relation as the data has it and its label."
            )
        found |= known
    return replace(relations, labels=found) if found else relations


def _every_code() -> dict[str, str]:
    """The labels of all codes that there may be, since relations may come after these."""
    finer = ["", *map(str, range(10)), *(f"{number:02d}" for number in range(100))]
    return {root + more: label for root, label in CAMEO.items() for more in finer}


def is_cameo(names: Sequence[str]) -> bool:
    """Whether all names are CAMEO codes; leading zeros tell them from other numbers."""
    return any(name[:1] == "0" for name in names) and all(CODE.fullmatch(name) for name in names)
