"""The tables on scale: written from results/scale.json, which several benchmarks share, and never stale."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("benchmarks", reason="needs benchmarks/ of the repository; run python -m pytest there")

from benchmarks import mapped, report, scale, tables
from tools.publish import MARK, fill

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "results" / "scale.json"
DOCUMENTS = {
    "docs/concepts/scale.md": ["out of core", "mining", "mining growth"],
    "docs/concepts/memory-on-disk.md": ["mapped"],
    "docs/concepts/billion.md": ["out of core growth"],
}
SIZE = {"rows": 4_000_000, "memory": "1GB", "seconds": 2.6, "cpu_seconds": 3.0, "peak_mb": 1500}
SIZE |= {"examples": 1_250_000, "output_mb": 7}


@pytest.fixture
def record() -> dict[str, Any]:
    if not RECORD.is_file():
        pytest.skip("needs results/scale.json of the repository")
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def results(tmp_path: Path, record: dict[str, Any]) -> Path:
    """A folder of results of its own, with the repository's records of scale."""
    shutil.copy2(RECORD, tmp_path)
    shutil.copy2(RECORD.with_name("bench.jsonl"), tmp_path)
    return tmp_path


def measured(peak: float, opened: float, asked: float, answers: str = "a") -> dict[str, Any]:
    """What a process of benchmarks.mapped says of itself."""
    about = {"queries": 200, "threads": 1, "start": 235.4e6, "answers": answers}
    return {**about, "peak": peak, "open_cpu_s": opened, "ask_cpu_s": asked}


def line(table: Any) -> list[str]:
    (row,) = table.rows
    return list(row)


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_tables_of_a_document_are_what_the_record_gives(name: str, results: Path) -> None:
    copy = results / "document.md"
    copy.write_bytes((ROOT / name).read_bytes())
    assert report.main(["--out", str(results), "--fill", str(copy)]) == 0
    assert copy.read_bytes() == (ROOT / name).read_bytes(), f"renew it: python -m benchmarks.report --fill {name}"
    asked = [mark["name"] for mark in MARK.finditer(copy.read_text(encoding="utf-8")) if mark["kind"] == tables.KIND]
    assert asked == DOCUMENTS[name]


def test_a_stale_figure_is_replaced_and_nothing_else(results: Path) -> None:
    copy, text = results / "document.md", (ROOT / "docs/concepts/scale.md").read_text(encoding="utf-8")
    assert text.count("| 1,227 |") == 1
    copy.write_text(text.replace("| 1,227 |", "| 1,228 |"), encoding="utf-8")
    assert report.main(["--out", str(results), "--fill", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == text


def test_what_a_document_quotes_next_to_its_tables_is_in_the_record(record: dict[str, Any]) -> None:
    text = " ".join((ROOT / "docs/concepts/memory-on-disk.md").read_text(encoding="utf-8").split())
    rows = {row["task"]: row for row in record["mapped"]}
    assert f"{rows['write']['disk_mb']:,} MB on disk, written in {rows['write']['write_seconds']} s" in text
    for task in mapped.TASKS:
        assert f"--events {rows[task]['events']} " in text
        assert f"the program's own {rows[task]['program_mb']} MB" in text
        assert rows[task]["same_answers"]
    seconds = {str(size["cpu_seconds"]) for size in record["sizes"]}
    quoted = re.findall(r"\((\S+) measured\)", (ROOT / "docs/concepts/scale.md").read_text(encoding="utf-8"))
    assert len(quoted) == 2
    assert set(quoted) <= seconds


def test_each_command_leaves_the_blocks_of_the_other_alone(results: Path) -> None:
    text = "<!-- benchmark: mining growth -->\nold\n<!-- end -->\n<!-- table: short -->\nold\n<!-- end -->\n"
    copy = results / "document.md"
    copy.write_text(text, encoding="utf-8")
    assert fill([], copy) == 1
    assert copy.read_text(encoding="utf-8").startswith("<!-- benchmark: mining growth -->\nold\n<!-- end -->\n<!--")
    copy.write_text(text, encoding="utf-8")
    assert report.main(["--out", str(results), "--fill", str(copy)]) == 0
    filled = copy.read_text(encoding="utf-8")
    assert filled.endswith("|\n\n<!-- end -->\n<!-- table: short -->\nold\n<!-- end -->\n")
    assert "| from | to |" in filled


@pytest.mark.parametrize(
    ("document", "kept", "said"),
    [
        ("<!-- benchmark: weather -->\n<!-- end -->\n", "{}", "'weather'; known are mapped, mining"),
        ("<!-- benchmark: mining -->\n", "{}", "without its <!-- end -->"),
        ("<!-- benchmark: mining -->\n<!-- end -->\n", "{", "is damaged"),
        ("<!-- benchmark: mining -->\n<!-- end -->\n", "[]", "is damaged"),
        ("<!-- benchmark: mining -->\n<!-- end -->\n", '{"sizes": [{"rows": 2}]}', "is damaged"),
        ("<!-- benchmark: mining -->\n<!-- end -->\n", None, "is missing"),
    ],
)
def test_what_cannot_be_filled_is_one_sentence(
    document: str, kept: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "document.md"
    copy.write_text(document, encoding="utf-8")
    if kept is not None:
        (tmp_path / "scale.json").write_text(kept, encoding="utf-8")
    assert report.main(["--out", str(tmp_path), "--fill", str(copy)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert copy.read_text(encoding="utf-8") == document


# --- tables and the record -------------------------------------------------------------------------------------------


def test_a_size_is_shown_in_events_and_millions() -> None:
    shown = line(tables.mining_table({"sizes": [SIZE]}))
    assert shown == ["4M", "2M", "1GB", "3", "3", "1,500", "1.50", "1.2M", "7"]


def test_sizes_are_in_the_order_of_their_memory_and_not_of_its_spelling() -> None:
    sizes = [SIZE | {"memory": memory} for memory in ("16GB", "2GB", "512MB")]
    assert [row[2] for row in tables.mining_table({"sizes": sizes}).rows] == ["512MB", "2GB", "16GB"]


def test_a_measured_task_becomes_a_row_of_the_table(tmp_path: Path) -> None:
    found = {"ram": measured(1234.4e6, 40.84, 1.44), "disk": measured(99.6e6, 2.71, 2.16)}
    found["cold"] = measured(98.2e6, 3.0, 2.88)
    mapped.keep(tmp_path / "scale.json", [{"task": "serve", "events": 5, **mapped.figures(found)}])
    (row,) = scale.read_section(tmp_path / "scale.json", "mapped")
    assert row["same_answers"]
    assert row["program_mb"] == 235
    shown = line(tables.mapped_table({"mapped": [row]}))
    assert shown[0] == "serve, an event added, 200 queries"
    assert shown[1:] == ["1,234 MB", "100 MB", "98 MB", "40.8 s, 2.7 s", "7.2 ms", "1.5x", "2.0x"]


def test_other_answers_are_kept_as_such() -> None:
    found = {"ram": measured(1e6, 1, 1), "disk": measured(1e6, 1, 1, "b"), "cold": measured(1e6, 1, 1)}
    assert not mapped.figures(found)["same_answers"]


def test_a_task_measured_again_replaces_its_own_row_alone(results: Path, record: dict[str, Any]) -> None:
    path = results / "scale.json"
    mapped.keep(path, [{"task": "serve", "events": 5}])
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert {row["task"]: row["events"] == 5 for row in kept["mapped"]} == {
        "write": False,
        "forecast": False,
        "serve": True,
        "evaluate": False,
    }
    assert (kept["sizes"], kept["growth"]) == (record["sizes"], record["growth"])


def test_mining_measured_again_keeps_what_the_memory_on_disk_gave(
    results: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "generate", lambda home, rows: home)
    monkeypatch.setattr(scale, "measure", lambda *_: dict(SIZE))
    path = results / "scale.json"
    monkeypatch.setattr("sys.argv", ["scale", "--memory", "1GB", "--rows", "4000000", "--out", str(path)])
    scale.main()
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["mapped"] == record["mapped"]
    assert kept["sizes"] == [SIZE, *record["sizes"]]
