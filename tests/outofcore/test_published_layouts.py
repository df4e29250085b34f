"""Mining files in a published layout: the events that an import of them has."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bridgemem.config import Settings
from bridgemem.events.readers.layouts import GDELT_2, LAYOUTS
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.mined import Mined
from commands import bridgemem
from corpora import assert_same_as_in_memory

NAMES = ("Iran", "Oman", '"Army, 1st"', "", "  ", "None", "NA", "007", "Ünal", '"a ""b"" c"', "-")
CODES = ("190", "193", "36", "", '"042"')
DAYS = {
    "gdelt": ("20150218", "20150219", "20150220", "soon", ""),
    "icews": ("2018-10-01", "2018-10-02", '"2018-10-03"', "never", ""),
    "polecat": ("2023-01-02", "2023-01-03", "2023-01-04", "x", ""),
    "acled": ("01 January 2023", "2 Feb 2023", "28-Feb-2023", "y", ""),
}
SEVERAL = ("Iran;Oman", "Oman;None;Iran; Oman", "None;", ";".join(f"p{i}" for i in range(20)))


def published(kind: str, rows: int = 400) -> str:
    """A file of random rows, good and bad."""
    rng, layout = np.random.default_rng(3), LAYOUTS[kind]
    names = (*NAMES, *SEVERAL) if layout.separator else NAMES
    headings = (
        GDELT_2 if kind == "gdelt" else (*dict.fromkeys((*layout.marks, *(c[0] for c in layout.columns.values()))), "x")
    )
    wanted = [layout.columns[role][0] for role in ("subject", "relation", "object", "time")]
    lines = [] if kind == "gdelt" else ["\t".join(headings)]
    for number in range(rows):
        cells = dict.fromkeys(headings, "")
        cells[headings[0]] = str(number + 1)
        cells |= dict(zip(wanted, (rng.choice(values) for values in (names, CODES, names, DAYS[kind])), strict=True))
        if kind == "gdelt" and number == 0:
            cells |= {"SQLDATE": "20150218"}  # by which a file without a heading is told
        lines.append("\t".join(cells[heading] for heading in headings))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(step="week", na=("NA", "007"))], ids=["usual", "own"])
def test_mined_events_are_those_of_an_import(kind: str, options: ReadOptions, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(published(kind))
    found = read_events(path, options)
    assert (found.format, found.events.n_relations > 1) == (kind, True)
    done = mine_files([path], tmp_path / "mined", options=options)
    assert done["source"]["remarks"][0].startswith(f"Read as {kind}: subject from ")
    mined, read = Mined(tmp_path / "mined"), found.events
    assert mined.entities.names == read.entities.names
    assert mined.relations.names == read.relations.names
    assert mined.clock == read.clock
    assert_same_as_in_memory(mined, read, Settings())


@pytest.mark.parametrize("ending", ["gz", "zip"])
def test_packed_files_are_mined_as_they_are(ending: str, tmp_path: Path) -> None:
    text, plain, packed = published("gdelt", 50), tmp_path / "day.export.CSV", tmp_path / f"day.export.CSV.{ending}"
    plain.write_text(text)
    if ending == "gz":
        packed.write_bytes(gzip.compress(text.encode()))
    else:
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("day.export.CSV", text)
    both = [mine_files([path], tmp_path / path.suffix[1:])["fingerprint"] for path in (plain, packed)]
    assert both[0] == both[1]


def test_codes_of_a_published_layout_are_names_though_all_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "events.tsv"
    rows = [("Iran", "190", "Oman", "2018-10-01"), ("Oman", "193", "Iran", "2018-10-02")]
    lines = ["Event Date\tSource Name\tTarget Name\tCAMEO Code", *(f"{t}\t{s}\t{o}\t{r}" for s, r, o, t in rows)]
    path.write_text("\n".join(lines) + "\n")
    assert mine_files([path], tmp_path / "mined")["n_relations"] == 2
    assert (tmp_path / "mined" / "relations.txt").read_text().split() == ["190", "193"]


def test_files_of_two_formats_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(published("icews", 20))
    second.write_text("subject,relation,object,time\na,r,b,2024-01-01\n")
    said = bridgemem("mine", first, second, "-o", tmp_path / "m").refused()
    assert f"{first} is in the icews format and {second} in the plain one" in said
    assert bridgemem("mine", first, "--format", "gdelt", "-o", tmp_path / "m").code == 2
