"""Labels: words for relations that are codes, from a file or by CAMEO's roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.labels import CAMEO, is_cameo, labelled
from bridgemem.events.log import Vocabulary
from bridgemem.events.names import Names
from bridgemem.events.naming import extended

CODES = Vocabulary("relation", ("043", "190", "1041"))


def test_a_cameo_code_stands_under_the_label_of_its_root() -> None:
    found = labelled(CODES)
    assert [found.shown(i) for i in range(3)] == ["meet or talk (043)", "fight (190)", "demand (1041)"]
    assert found == CODES
    assert found.names == CODES.names
    assert sorted(CAMEO) == [f"{root:02d}" for root in range(1, 21)]


@pytest.mark.parametrize("names", [("190", "112"), ("043", "visit"), ("210", "043"), ("00", "01"), ()])
def test_other_names_are_no_cameo_codes(names: tuple[str, ...]) -> None:
    assert not is_cameo(names)
    relations = Vocabulary("relation", names)
    assert labelled(relations) is relations


@pytest.mark.parametrize(
    "text",
    [
        "043,host a visit\n190,use force\n",
        "\ufeffcode,label\n043,host a visit\n190,use force\n\n",
        "Relation\tName\n043\thost a visit\n190\tuse force\n",
        'code;name\n043;"host a visit"\n190;use force;\n999;of other data\n',
    ],
)
def test_a_file_gives_labels_and_the_roots_the_rest(text: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(text, encoding="utf-8")
    found = labelled(CODES, file)
    assert [found.shown(i) for i in range(3)] == ["host a visit (043)", "use force (190)", "demand (1041)"]
    assert found.first(1).shown(0) == "host a visit (043)"


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"7,x\n", r"labels none of the 3 relations \(043, 190, 1041 \.\.\.\)"),
        (b"043\n", "line 1: expected two texts, found '043'"),
        (b"043,a\n043,b\n", "line 2: '043' stands there already, as 'a'"),
        (b"043,caf\xe9\n", "not a text file in UTF-8"),
        (b"043,a,b\n", "line 1: expected two texts"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(content: bytes, phrase: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=phrase):
        labelled(CODES, file)
    with pytest.raises(NotFoundError, match="does not exist"):
        labelled(CODES, tmp_path / "none.csv")


def test_a_code_that_comes_later_has_the_label_of_its_root_too() -> None:
    grown, _ = extended(labelled(CODES), ["0233", "20"])
    assert [grown.shown(i) for i in (3, 4)] == ["appeal or ask (0233)", "mass violence (20)"]


def test_a_relation_is_found_by_its_label_and_by_its_code() -> None:
    shown = labelled(CODES)
    names = Names("relation", shown.names, labels=[shown.label(name) for name in shown.names])
    assert names.search("talk", 3) == [("043", 0, "meet or talk (043)")]
    assert names.search("190", 3)[0].name == "190"
    assert names.unknown("figth").suggestions == ["190"]
