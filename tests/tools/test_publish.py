"""Publish: every page and figure from the records, and documents whose marked tables are renewed and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools.publish import BENCH, PAGES, fill, publish, tables

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from commands import left_in
from measurements import ahead, campaign, residual

FIGURES = [f"gains-{f}.{kind}" for f in ("static", "time") for kind in ("svg", "png")]
DOCUMENT = (
    "# Own words\n\n<!-- table: main -->\nold\n<!-- end -->\n\n"
    "between  \n<!-- table: support time -->\n<!-- end -->\nafter"
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    folder = tmp_path_factory.mktemp("published") / "results"
    publish([*campaign(), *ahead()], folder)
    return folder


def body(make: Callable[[], object]) -> str:
    """A table as it stands in a document: without its own heading."""
    return make().markdown().partition("\n\n")[2]  # type: ignore[attr-defined]


# --- pages -----------------------------------------------------------------------------------------------------------


def test_every_page_and_figure_is_written_and_nothing_else(published: Path, tmp_path: Path) -> None:
    assert left_in(published) == sorted([*PAGES, "relations.md", *FIGURES])
    written = publish(campaign(), tmp_path / "again")
    assert sorted(path.name for path in written) == left_in(tmp_path / "again")


def test_the_same_records_give_the_same_bytes(published: Path, tmp_path: Path) -> None:
    written = publish([*campaign(), *ahead()], tmp_path / "results")
    for path in written:
        assert path.read_bytes() == (published / path.name).read_bytes(), path.name


def test_what_the_benchmarks_measured_next_to_the_pages_counts_as_cost(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    rows = [
        {"operation": "select + fit", "seconds": 0.25, "counts": {"parameters": 83_021, "transitions": 88_988}},
        {"operation": "final refit", "seconds": 0.15},
        {"operation": "final refit", "seconds": None},
        {"operation": "index build", "seconds": 0.01},
    ]
    own = {"dataset": "icews14", "machine": {"device": "cuda quick"}}
    (tmp_path / BENCH).write_text("".join(json.dumps({**own, **row}) + "\n" for row in rows))
    publish(campaign(), tmp_path)
    page = (tmp_path / "efficiency.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("| icews14 "))
    assert "| 83,021 |" in line
    assert "| 88,988 | 0.2 | 0.1 |" in line
    (tmp_path / BENCH).write_text("{}")
    with pytest.raises(DataError, match="damaged; measure again"):
        publish(campaign(), tmp_path)


def test_a_fit_on_a_sample_is_no_cost_of_the_papers_residual() -> None:
    records = campaign()
    sampled = [
        replace(r, backbone="counting+stream", fit_seconds=0.001, settings={**r.settings, "transitions": 30_000})
        for r in records
        if r.method == "bridgemem"
    ]
    assert tables([*records, *sampled])["efficiency"]() == tables(records)["efficiency"]()


def test_a_page_holds_its_tables_in_order(published: Path) -> None:
    known = tables([*campaign(), *ahead()])
    pages = {name: wanted for name, (_, wanted) in PAGES.items()}
    pages["relations.md"] = [f"relation {f} {d}" for d in ("icews14", "wiki") for f in ("static", "time")]
    for name, wanted in pages.items():
        text = (published / name).read_text()
        assert text.startswith("# ")
        assert "`python -m tools.publish --out results`" in text.splitlines()[2]
        assert text.partition("\n### ")[2] == "\n".join(known[t]().markdown() for t in wanted).removeprefix("### ")


def test_every_table_can_be_made_of_a_whole_campaign() -> None:
    for name, make in tables([*campaign(), *ahead()]).items():
        assert make().rows, name


def test_queries_of_several_steps_and_probabilities_change_no_other_table() -> None:
    plain, more = tables(campaign()), tables([*campaign(), *ahead()])
    for name in plain.keys() - {"calibration", "horizons", "other inputs"}:
        assert more[name]() == plain[name](), name


def test_what_was_not_measured_is_said_and_not_drawn(tmp_path: Path) -> None:
    counting = [replace(r, backbone="recurrence") for r in campaign() if r.method == "bridgemem"]
    publish(counting, tmp_path)
    assert left_in(tmp_path) == sorted([*PAGES, "relations.md"])
    assert "recurrence + bridgemem" in (tmp_path / "main.md").read_text()
    for name in ("main.md", "learned.md", "ablations.md", "mechanism.md", "relations.md"):
        assert "Not measured" in (tmp_path / name).read_text(), name


# --- documents -------------------------------------------------------------------------------------------------------


def test_marked_tables_are_renewed_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "own.md"
    path.write_text(DOCUMENT)
    known = tables(campaign())
    assert fill(campaign(), path) == 2
    expected = DOCUMENT.replace("old\n", f"\n{body(known['main'])}\n")
    expected = expected.replace("support time -->\n", f"support time -->\n\n{body(known['support time'])}\n")
    assert path.read_text() == expected
    assert left_in(tmp_path) == ["own.md"]


def test_a_renewed_document_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own.md"
    path.write_text(DOCUMENT)
    fill(campaign(), path)
    before, inode = path.read_bytes(), path.stat().st_ino
    assert fill(campaign(), path) == 2
    assert path.read_bytes() == before
    assert path.stat().st_ino == inode, "a document that is up to date is not written again"


def test_the_line_ends_of_a_document_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "own.md"
    path.write_bytes(DOCUMENT.replace("\n", "\r\n").encode())
    assert fill(campaign(), path) == 2
    other = tmp_path / "unix.md"
    other.write_bytes(DOCUMENT.encode())
    fill(campaign(), other)
    assert path.read_bytes() == other.read_bytes().replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "content", [b"", b"no marks\r\nat all", "<!-- end -->\n Älv\n".encode(), b"see `<!-- table: x -->`\n"]
)
def test_a_document_without_marks_is_not_touched(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "own.md"
    path.write_bytes(content)
    inode = path.stat().st_ino
    assert fill(campaign(), path) == 0
    assert path.read_bytes() == content
    assert path.stat().st_ino == inode


def test_what_was_not_measured_is_said_in_the_document(tmp_path: Path) -> None:
    path = tmp_path / "own.md"
    path.write_text("<!-- table: ablation time -->\nold\n<!-- end -->\n")
    fill([residual()], path)
    text = path.read_text()
    assert text.startswith("<!-- table: ablation time -->\n\nNot measured: no ablation")
    assert "old" not in text


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("<!-- table: weather -->\n<!-- end -->\n", "'weather'; known are .*main"),
        ("<!-- table: main -->\nwords\n", "without its <!-- end -->"),
        ("<!-- table: main -->\nwords\n<!-- table: short -->\n<!-- end -->\n", "without its <!-- end -->"),
    ],
)
def test_marks_that_cannot_be_followed_are_refused_and_the_document_kept(
    text: str, phrase: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.md"
    path.write_text("<!-- table: efficiency -->\nold\n<!-- end -->\n" + text)
    before = path.read_bytes()
    with pytest.raises(DataError, match=phrase):
        fill(campaign(), path)
    assert path.read_bytes() == before


def test_documents_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    records: list[Record] = campaign()
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.md", tmp_path, tmp_path / "bytes.md"):
        with pytest.raises(DataError, match="cannot be read"):
            fill(records, path)
