"""The pages of docs/how-to, followed as written: every command, in order, in a folder with the user's own files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

import bridgemem as bm
from commands import bridgemem

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "how-to"
if not PAGES.is_dir():
    pytest.skip("needs docs/how-to of the repository", allow_module_level=True)
HEADING = "subject,relation,object,time"
MONDAY = [f"Iran,Consult,Kel,2015-01-{day:02}" for day in range(2, 16)]
# an indented line, or a fenced block as a whole; TOML is the file that the page's next command names
STEP = re.compile(r"^    (?P<line>\S[^\n]*)$|^```(?P<kind>bash|toml)\n(?P<block>.*?)^```$", re.DOTALL | re.MULTILINE)
QUICK = ("aliases", "backup", "json", "ledger", "quarantine", "retention", "what-if")
LONG = ("ask", "configure", "feeds", "new-models", "refresh", "serve")  # processes and fits
RESEARCH = ("compare", "leakage", "own-model", "tables", "tune")  # of runs that were evaluated, with a learned residual
# what a test cannot have: data and models from elsewhere, a package of the system
ELSEWHERE = ("pip install", "benchmarks.load", "explore", "--backbone scores", "my-backbone")
# what stands for the data, the backbones and the hours of a page in a test
SMALLER = {"icews14": "events.csv", "yago": "events.csv", "tirgn": "hri", "backbones/regcn": "recurrence"}
SMALLER |= {" --device cuda": "", "--budget 10m": "--budget 5s"}


@pytest.fixture(scope="session")
def own_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has: events, a run that was fitted on them, a store with a later week, and small tables."""
    folder = tmp_path_factory.mktemp("how-to")
    names, relations = ("Iran", "China", "Iraq", "Oman", "Russia"), ("Consult", "Make_a_visit", "043")
    rows = [
        (names[day % 5], relations[day % 3], names[(day + 1 + day % 4) % 5], f"2014-{month:02}-{day:02}")
        for month in range(1, 13)
        for day in range(1, 29)
    ]
    files = {
        "events.csv": [HEADING, *(",".join(row) for row in rows)],
        "monday.csv": [
            HEADING,
            *(f"Iran,Consult,Kel,2015-01-{day:02}" for day in range(2, 16)),
            "Iran,Consult,,no day",
        ],
        "week.csv": [HEADING, "Iran,Consult,Oman,2015-01-01"],
        "assumed.csv": [HEADING, "China,Make_a_visit,Iran,2015-01-01"],
        "queries.csv": [HEADING, "Iran,Consult,,"],
        "watch.csv": ["Iran", "Consult", "Iran,China"],
        "groups.csv": ["group,member", "EU,Iraq", "EU,Oman", "material conflict,Make_a_visit"],
        "aliases.csv": ["alias,name", "Apple Computer,Apple", "IRAN,Iran"],
        "labels.csv": ["code,label", "043,host a visit"],
        "token.txt": ["a token of clients"],
        "admin-token.txt": ["a token of operators"],
        "feed.jsonl": ['{"subject": "Iran", "relation": "Consult", "object": "Oman", "time": "2015-01-20"}'],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("queries", "watchlist"):
        asked = "VALUES ('Iran', 'Consult'), ('China', 'Make_a_visit')"
        duckdb.sql(f"FROM ({asked}) AS q(subject, relation)").write_parquet(str(folder / f"{name}.parquet"))
    model = bm.Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1))
    model.fit(folder / "events.csv").save(folder / "runs" / "mine")
    (folder / "RUN").symlink_to("runs/mine")
    return folder


@pytest.fixture
def folder(own_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    shutil.copytree(own_files, home, symlinks=True)
    monkeypatch.chdir(home)
    words = ("ingest", "runs/mine.events.duckdb", "monday.csv", "--run", "runs/mine", "--skip-rejected")
    done = bridgemem(*words)
    assert done.code == 0, done.err
    return home


class Reader:
    """Somebody who follows a page. port: of the service that the page started last."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.running = folder, "", list[subprocess.Popen[str]]()
        (folder / "bin").mkdir()
        program = folder / "bin" / "bridgemem"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bridgemem "$@"\n')
        program.chmod(0o755)

    def follow(self, page: str) -> int:
        """Do what a page says; the number of its steps."""
        text, done = (PAGES / f"{page}.md").read_text(encoding="utf-8"), 0
        for step in STEP.finditer(text):
            line = step["line"] or step["block"]
            if step["kind"] == "toml":
                (self.folder / "service.toml").write_text(line, encoding="utf-8")
            elif re.match(r"(bridgemem|curl|kcat|0 \*) ", line) and not any(word in line for word in ELSEWHERE):
                self.do(line)
                done += 1
        return done

    def do(self, line: str) -> None:
        line = re.sub(r"^0 (\* ){4}", "", line).replace("/srv/runs", "runs").replace("/srv/", "srv/")  # of a crontab
        for written, small in SMALLER.items():
            line = line.replace(written, small)
        words = shlex.split(line)
        if words[1] == "fit":  # a page begins without a run of the name that it gives
            shutil.rmtree(self.folder / words[words.index("-o") + 1], ignore_errors=True)
        if words[:2] == ["bridgemem", "serve"]:
            self.stop()
            self.port = re.findall(r"http://[\d.]+:(\d+)", self.start([*words, "--port", "0"]))[0]
        elif "--every" in words:
            self.start(words)
            self.stop()
        elif "--follow" in words:  # to the end that the file has now
            self.command([*words, "--until-end"])
        elif words[0] == "bridgemem":
            self.command(words)
        else:
            self.shell(line)

    def command(self, words: list[str]) -> None:
        if "--replay" in words:
            rejected = self.folder / "rejected.csv"  # which the page asks its reader to repair
            rejected.write_text(rejected.read_text().replace("Iran,Consult,,no day", "Iran,Consult,Oman,2015-01-15"))
        done = bridgemem(*words[1:])
        assert done.code == 0, (words, done.err)

    def start(self, words: list[str]) -> str:
        """Start what does not end by itself; the first line that it prints."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "bridgemem", *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )
        self.running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, words
        return line

    def stop(self) -> None:
        while self.running:
            process = self.running.pop()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGTERM)  # the latter before it answers at all

    def shell(self, text: str) -> None:
        """What needs a shell: curl, with the service's port; kcat, whose output is given."""
        messages = [{"offset": n, "payload": (self.folder / "feed.jsonl").read_text()} for n in range(2)]
        (self.folder / "topic").write_text("".join(f"{json.dumps(message)}\n" for message in messages))
        text = re.sub(r"^kcat [^|]+", "cat topic ", text)
        text = text.replace("curl -s", "curl -s --fail-with-body").replace("localhost:8008", f"127.0.0.1:{self.port}")
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    try:
        yield reader
        reader.stop()
    finally:
        for process in reader.running:
            process.kill()


@pytest.fixture(scope="session")
def research_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events that are enough for a learned residual, and an evaluated run in eight copies, as if of other seeds."""
    folder = tmp_path_factory.mktemp("research")
    names, relations = ("Iran", "China", "Iraq", "Oman", "Russia"), ("Consult", "Make_a_visit", "043")
    rows = [
        (names[(day + n) % 5], relations[(day + n * n) % 3], names[(day + n + 1 + (day + month) % 4) % 5], month, day)
        for month in range(1, 13)
        for day in range(1, 29)
        for n in range(3)
    ]
    lines = [f"{s},{r},{o},2014-{month:02}-{day:02}" for s, r, o, month, day in rows]
    (folder / "events.csv").write_text("\n".join([HEADING, *lines]) + "\n", encoding="utf-8")
    first = re.findall(r"^```python\n(.*?)^```$", (PAGES / "own-model.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    (folder / "bilinear.py").write_text(first.partition("found = ")[0], encoding="utf-8")
    (folder / "results").mkdir()
    model = bm.Forecaster("recurrence", settings=bm.Settings(max_epochs=1))
    model.fit(folder / "events.csv").save(folder / "runs" / "mine")
    done = bridgemem("evaluate", folder / "runs" / "mine", "--records", folder / "results" / "records.jsonl", "-q")
    assert done.code == 0, done.err
    for name in ("other", *(f"{one}-s{seed}" for one in "ab" for seed in (42, 43, 44))):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("page", RESEARCH)
def test_a_page_for_researchers_can_be_followed(
    page: str, research_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(shutil.copytree(research_files, tmp_path / "home"))
    monkeypatch.chdir(home)
    with reading(home) as reader:
        assert reader.follow(page) > 1


@pytest.mark.parametrize("page", QUICK)
def test_a_page_can_be_followed(page: str, folder: Path) -> None:
    with reading(folder) as reader:
        assert reader.follow(page) > 0


@pytest.mark.long
@pytest.mark.parametrize("page", LONG)
def test_a_page_that_serves_or_fits_can_be_followed(page: str, folder: Path) -> None:
    with reading(folder) as reader:
        assert reader.follow(page) > 1
