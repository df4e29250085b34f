"""Mining with `--aliases` and `--rejects`: the events, the names and the rejected rows that an import has."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.events.aliases import canonical, merged
from bridgemem.events.readers.read import read_events
from bridgemem.outofcore.mined import Mined
from commands import bridgemem
from corpora import assert_same_as_in_memory, write_parquet

NAMES = "subject,relation,object,time\n"
ROWS = """Iran,meets,Oman,2024-01-01
IRAN,meets,Oman,2024-01-02
too,few
Oman,meets,,2024-01-03

Iran,meets,Oman,soon
Muscat,NA,Iran,2024-01-04
Oman,calls,Muscat,2024-01-05
Iran,"open
Muscat,calls,Iran,2024-01-06
"""
IDS = """4,0,9,1
9,-1,4,2
4,1,7,-3
7,1,x,4
-2,0,4,5
7,0,9,6
4,0,7,8
9,1,7,9
"""
ALIASES = "name,canonical name\nIRAN,Iran\nMuscat,Oman\nnobody,Iran\n"


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("text", [NAMES + ROWS, NAMES + IDS.replace("7,1,x,4\n", "")], ids=["names", "ids"])
def test_rejected_rows_are_those_of_an_import(text: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(text)
    second.write_text(text.replace("\n", "\r\n"))
    imported, mined = tmp_path / "imported.csv", tmp_path / "mined.csv"
    files = [str(first), str(second)]
    assert bridgemem("data", "import", *files, "-o", tmp_path / "e.npz", "--rejects", imported).code == 0
    done = bridgemem("mine", *files, "-o", tmp_path / "m", "--rejects", mined, "--json").json
    assert rows_of(mined) == rows_of(imported)
    assert len(rows_of(mined)) == 1 + done["source"]["rejected"] + sum(done["source"]["dropped"].values())
    assert bm.load(tmp_path / "m").identity.digest == bm.load(tmp_path / "e.npz").identity.digest


def test_rejected_rows_of_parquet_have_their_numbers(tmp_path: Path) -> None:
    columns = {"subject": [0, 1, -1, 0], "relation": [0] * 4, "object": [1, 0, 1, -7], "time": [0, 1, 2, 3]}
    file = write_parquet(tmp_path / "e.parquet", {name: np.array(values) for name, values in columns.items()})
    bridgemem("mine", file, "-o", tmp_path / "m", "--rejects", tmp_path / "r.csv")
    assert [row[1:3] for row in rows_of(tmp_path / "r.csv")[1:]] == [
        ["3", "the entity id -1 is negative"],
        ["4", "the entity id -7 is negative"],
    ]


def test_a_line_that_is_no_row_refuses_the_file_unless_rejects_are_collected(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text(NAMES + ROWS)
    assert "--rejects FILE collects" in bridgemem("mine", file, "-o", tmp_path / "m").refused()
    foreign = tmp_path / "notes.csv"
    foreign.write_text("mine\n")
    assert "holds no rejected rows" in bridgemem("mine", file, "-o", tmp_path / "m", "--rejects", foreign).refused()


@pytest.mark.parametrize("rows", [ROWS, IDS.replace("7,1,x,4\n", "")], ids=["names", "ids"])
def test_aliases_are_merged_as_by_an_import(rows: str, tmp_path: Path) -> None:
    file, aliases, own = tmp_path / "e.csv", tmp_path / "aliases.csv", rows is ROWS
    file.write_text(NAMES + rows)
    aliases.write_text(ALIASES if own else "name,canonical name\n9,4\n7,Oman\n")
    cleaned = ("--aliases", aliases, "--rejects", tmp_path / "rejects.csv")
    done = bridgemem("mine", file, "-o", tmp_path / "m", *cleaned, "--json").json
    found = read_events(file)
    table = {"IRAN": "Iran", "Muscat": "Oman", "nobody": "Iran"} if own else {"9": "4", "7": "Oman"}
    events, report = merged(found.events, table)
    loaded = bm.load(tmp_path / "m").events
    assert loaded.entities.names == events.entities.names
    assert loaded.entities.aliases == table
    assert_same_as_in_memory(Mined(tmp_path / "m"), events, Mined(tmp_path / "m").settings)
    assert sorted(done["merged"]["names"]) == sorted([each.name, each.canonical, each.events] for each in report.names)
    assert (done["merged"]["rows"], done["merged"]["loops"]) == (len(table), report.loops)
    said = bridgemem("mine", file, "-o", tmp_path / "m", *cleaned, "--force").out
    assert report.sentence() in " ".join(said.split())


def test_a_run_of_a_mined_folder_knows_its_aliases(tmp_path: Path) -> None:
    file, aliases = tmp_path / "e.csv", tmp_path / "aliases.csv"
    world = bm.simulate(bm.WorldSettings(actors=8, relations=3, steps=20, events=300)).dataset.events
    world.to_frame().to_csv(file, index=False)
    first, second = world.entities.names[:2]
    aliases.write_text(f"name,canonical name\n{second},{first}\nShort,{first}\n")
    bridgemem("mine", file, "-o", tmp_path / "m", "--aliases", aliases)
    model = bm.Forecaster(backbone="recurrence", residual="bridgemem").fit(bm.load(tmp_path / "m"))
    model.save(tmp_path / "run")
    opened = bm.Forecaster.load(tmp_path / "run")
    assert opened.forecast("Short", 0) == opened.forecast(second, 0) == opened.forecast(first, 0)


def test_spark_has_neither(tmp_path: Path) -> None:
    spark = ("--engine", "spark", "--master", "local[1]")
    said = bridgemem("mine", tmp_path / "e.parquet", "-o", tmp_path / "m", *spark, "--rejects", tmp_path / "r.csv")
    assert "--aliases and --rejects go with --engine duckdb" in said.refused()


def test_canonical_names_come_in_the_order_of_their_first_name() -> None:
    place, names = canonical(("b", "a", "c"), {"b": "c"})
    assert (place.tolist(), names) == ([0, 1, 0], ("c", "a"))
