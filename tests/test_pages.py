"""The pages of docs/: one idea with a small table, commands that exist, and Python that runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import bridgemem as bm
from commands import bridgemem

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"^<!-- (?:table|benchmark): .*?^<!-- end -->", re.DOTALL | re.MULTILINE)
MOST_ROWS = 12  # of a generated table on a concept page
# run where what they need is there: a service, other packages, a file that a command writes
ELSEWHERE = {"how-to/own-model.md", "how-to/serve.md"}
PAGES = [
    path
    for folder in ("concepts", "how-to")
    for path in sorted((DOCS / folder).glob("*.md"))
    if BLOCK.search(path.read_text(encoding="utf-8")) and path.relative_to(DOCS).as_posix() not in ELSEWHERE
]
CONCEPTS = sorted((DOCS / "concepts").glob("*.md"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: events.csv, queries.csv and a run."""
    folder = tmp_path_factory.mktemp("pages")
    names, relations = ("Iran", "China", "Iraq", "Oman"), ("Consult", "Make_a_visit")
    rows = [
        (names[day % 4], relations[day % 2], names[(day + 1 + day % 3) % 4], f"2014-{month:02}-{day:02}")
        for month in range(1, 13)
        for day in range(1, 29)
    ]
    lines = [",".join(row) for row in (("subject", "relation", "object", "time"), *rows)]
    (folder / "events.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "queries.csv").write_text("subject,relation,object,time\nIran,Consult,,\n", encoding="utf-8")
    model = bm.Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1))
    model.fit(folder / "events.csv").save(folder / "RUN")
    (folder / "week.csv").write_text("\n".join([lines[0], "Iran,Consult,Oman,2015-01-01"]) + "\n", encoding="utf-8")
    store = folder / "runs" / "mine.events.duckdb"
    store.parent.mkdir()
    assert bridgemem("ingest", store, folder / "week.csv", "--run", folder / "RUN").code == 0
    return folder


@pytest.mark.parametrize("page", PAGES, ids=[path.stem for path in PAGES])
def test_the_python_of_a_page_runs(page: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(home)
    names: dict[str, object] = {}
    for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
        path = tmp_path / f"block{number}.py"
        path.write_text(match["code"], encoding="utf-8")
        names = runpy.run_path(str(path), init_globals=names)


def test_the_page_on_leakage_shows_what_the_check_says(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = DOCS / "how-to" / "leakage.md"
    if not page.is_file():
        pytest.skip("needs docs/ of the repository")
    (code,) = BLOCK.findall(page.read_text(encoding="utf-8"))
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "block.py"))
    assert "future" in capsys.readouterr().out


@pytest.mark.parametrize("page", CONCEPTS, ids=[path.stem for path in CONCEPTS])
def test_a_concept_page_holds_no_long_table_of_results(page: Path) -> None:
    for block in MARKED.findall(page.read_text(encoding="utf-8")):
        rows = [line for line in block.splitlines() if line.startswith("|")][2:]
        assert len(rows) <= MOST_ROWS, f"{block.splitlines()[0]}: long tables belong in results/"


@pytest.mark.parametrize("page", CONCEPTS, ids=[path.stem for path in CONCEPTS])
def test_a_concept_page_opens_with_a_sentence(page: Path) -> None:
    title, blank, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert blank == ""
    assert re.match(r"[A-Z`]", first), "the first paragraph is for a busy reader: no table, no heading"
