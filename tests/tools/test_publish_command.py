"""`python -m tools.publish`: pages and documents of this repository, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.publish import PAGES, fill, main, publish

from bridgemem.evaluation.records import read_records, write_records
from commands import left_in
from measurements import campaign


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A file of records of every kind, alone in its folder."""
    path = tmp_path / "kept" / "records.jsonl"
    write_records(path, campaign())
    return path


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_a_folder_gets_every_page_and_figure(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    assert run("--records", records, "--out", tmp_path / "results") == 0
    said = capsys.readouterr().out
    written = publish(read_records(records), tmp_path / "same" / "results")
    assert left_in(tmp_path / "results") == sorted(path.name for path in written)
    for path in written:
        assert (tmp_path / "results" / path.name).read_bytes() == path.read_bytes()
        assert f"Wrote {tmp_path / 'results' / path.name}." in said


def test_a_folder_is_published_where_there_is_nothing_to_draw(records: Path, tmp_path: Path) -> None:
    kept = [r for r in read_records(records) if r.method == "backbone"]
    write_records(tmp_path / "records.jsonl", kept)
    assert run("--records", tmp_path / "records.jsonl", "--out", tmp_path / "pages") == 0
    assert left_in(tmp_path / "pages") == sorted([*PAGES, "relations.md"])


def test_a_folder_is_filled_again_and_again_but_a_page_of_somebody_else_is_kept(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--records", records, "--out", tmp_path / "results")
    for _ in range(2):
        assert run(*asked) == 0
    (tmp_path / "results" / "main.md").write_text("# Mine\n")
    assert run(*asked) == 2
    assert "main.md exists already" in capsys.readouterr().err
    assert (tmp_path / "results" / "main.md").read_text() == "# Mine\n"
    assert run(*asked, "--force") == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gains-time.svg").write_text("mine")
    assert run(*asked[:-1], tmp_path / "other") == 2


def test_documents_are_filled(records: Path, tmp_path: Path) -> None:
    names = ("one.md", "two.md")
    for name in names:
        (tmp_path / name).write_text("before\n<!-- table: short -->\n<!-- end -->\nafter\n")
    assert run("--records", records, "--fill", tmp_path / "one.md", "--fill", tmp_path / "two.md") == 0
    expected = tmp_path / "expected.md"
    expected.write_text("before\n<!-- table: short -->\n<!-- end -->\nafter\n")
    assert fill(campaign(), expected) == 1
    for name in names:
        assert (tmp_path / name).read_text() == expected.read_text()


def test_what_cannot_be_filled_is_one_sentence(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.md"
    path.write_text("<!-- table: weather -->\n<!-- end -->\n")
    assert run("--records", records, "--fill", path) == 2
    assert "'weather'" in capsys.readouterr().err
    assert path.read_text() == "<!-- table: weather -->\n<!-- end -->\n"
    assert run("--records", records, "--fill", tmp_path / "no.md") == 2
    assert "cannot be read" in capsys.readouterr().err
