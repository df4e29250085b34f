"""README, ARCHITECTURE, docs and results: written from the records, with commands, code and links that work."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.heads import OCCURRENCE
from tools.publish import BENCH, MARK, fill, publish, read_costs
from typer.main import get_command

from bridgemem import __version__
from bridgemem.cli.main import app
from bridgemem.evaluation.records import Record, read_records

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [p for p in (ROOT / "README.md", ROOT / "ARCHITECTURE.md") if p.is_file()]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
OUTPUT = re.compile(r"^```text\n.*?^```$", re.DOTALL | re.MULTILINE)  # compared with what is printed, in test_readme.py
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]


def needed(name: str) -> Path:
    """A file of the repository, which an installed package or an sdist does not have."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs {name} of the repository")
    return path


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read_records(needed("results/records.jsonl"))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_pages_of_results_are_what_the_records_give(records: list[Record], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    (tmp_path / "results").mkdir()
    for beside in (BENCH, OCCURRENCE):
        shutil.copy2(needed(f"results/{beside}"), tmp_path / "results")
    written = publish(records, tmp_path / "results")
    expected = {path.name: path.read_text(encoding="utf-8") for path in written if path.suffix == ".md"}
    found = {path.name: path.read_text(encoding="utf-8") for path in needed("results").glob("*.md")}
    found.pop("service.md", None)  # what a load test measured, written by itself
    found.pop("speed.md", None)  # what the benchmarks measured, written by python -m benchmarks.report
    assert found.keys() == expected.keys()
    stale = [name for name in expected if found[name] != expected[name]]
    assert stale == [], "write them anew: python -m tools.publish --out results"
    drawn = {path.name for path in written} - expected.keys()
    figures = {path.name for kind in ("svg", "png") for path in needed("results").glob(f"*.{kind}")}
    assert drawn == figures - {"cost.svg"}  # which python -m benchmarks.default draws


@pytest.mark.parametrize("name", NAMES)
def test_the_marked_tables_of_a_document_are_what_the_records_give(
    name: str, records: list[Record], tmp_path: Path
) -> None:
    copy = tmp_path / "document.md"
    copy.write_bytes(needed(name).read_bytes())
    fill(records, copy, read_costs(needed(f"results/{BENCH}")))
    assert copy.read_bytes() == needed(name).read_bytes(), f"renew it: python -m tools.publish --fill {name}"


@pytest.mark.parametrize("name", NAMES)
def test_no_metric_is_typed_by_hand(name: str) -> None:
    outside = OUTPUT.sub("", MARK.sub("", needed(name).read_text(encoding="utf-8")))
    assert re.findall(r"(?<![\w.])[+-]?0?\.\d{4}(?!\d)", outside) == []


# --- commands --------------------------------------------------------------------------------------------------------


def code_lines(text: str) -> Iterator[str]:
    """Lines of fenced and of indented code."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith(("    ", "\t")):
            yield line.strip()


def shown_commands(text: str) -> list[list[str]]:
    """The words after `bridgemem`, one list a command; ' | ' separates alternatives."""
    found: list[list[str]] = []
    inline = re.findall(r"`(bridgemem [^`\n]+)`", text)
    for line in [*code_lines(text), *inline]:
        words = shlex.split(line, comments=True) if line.startswith("bridgemem ") else []
        for word in words:
            if word in ("bridgemem", "|"):
                found.append([])
            else:
                found[-1].append(word)
    return found


def parse(words: list[str]) -> list[str]:
    """Follow the words to a command and give its parser the rest; returns the words that nobody takes.

    Values are not converted, so that placeholders will do, and nothing is run.
    """
    command: Any = get_command(app)
    while hasattr(command, "commands") and words:
        words = parsed(command, words)  # options of the program stand before the command
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return parsed(command, words)


def parsed(command: Any, words: list[str]) -> list[str]:
    """The words that the parser of a command leaves."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    context.resilient_parsing = False  # from here on a mistake counts
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    return list(rest)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_is_shown_exists_with_its_options(name: str) -> None:
    for words in shown_commands(needed(name).read_text(encoding="utf-8")):
        try:
            rest = parse(words)
        except Exception as problem:
            pytest.fail(f"bridgemem {shlex.join(words)}: {problem}")
        assert rest == [], f"bridgemem {shlex.join(words)}: nothing takes {rest}"


def test_the_readme_shows_the_way_from_a_file_to_an_explanation() -> None:
    shown = shown_commands(needed("README.md").read_text(encoding="utf-8"))
    wanted = ["data", "fit", "evaluate", "forecast", "explain", "serve", "reproduce", "audit"]
    assert set(wanted) <= {words[0] for words in shown}


@pytest.mark.parametrize(
    "line",
    ["    bridgemem forecst RUN", "    bridgemem data chek x", "    bridgemem fit --dta x", "    bridgemem audit A B"],
)
def test_a_command_that_does_not_exist_would_be_noticed(line: str) -> None:
    (words,) = shown_commands(line)
    try:
        rest = parse(words)
    except Exception:
        return
    assert rest != []


# --- links and paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_links_point_to_files_that_exist(name: str) -> None:
    if not (ROOT / "results").is_dir():
        pytest.skip("needs results/ and docs/ of the repository")
    text = needed(name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    assert [t for t in local if not (ROOT / name).parent.joinpath(t).exists()] == []


def sections_of_the_map() -> dict[str, str]:
    """The text of each layer in ARCHITECTURE.md, by its heading."""
    text = needed("ARCHITECTURE.md").read_text(encoding="utf-8").split("## Where things live")[1].split("\n## ")[0]
    parts = (part.partition("\n") for part in text.split("\n### ")[1:])
    return {heading: body for heading, _, body in parts if heading != "Outside the package"}


def test_the_map_names_every_module_and_nothing_else() -> None:
    package, named = needed("src/bridgemem"), set()
    for heading, body in sections_of_the_map().items():
        folder = package / heading.strip("`") if heading.startswith("`") else package
        named |= {folder / name for name in re.findall(r"`([\w/]+\.(?:py|toml|js|html|css))`", body)}
    assert [path for path in named if not path.exists()] == []
    # the commands are one thin module each
    modules = [path for path in package.rglob("*.py") if not path.name.startswith("__") and path.parent.name != "cli"]
    assert [path.relative_to(package).as_posix() for path in modules if path not in named] == []


def test_the_map_has_the_layers_that_are_checked_in_their_order() -> None:
    settings = tomllib.loads(needed("pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = contract["layers"][::-1]
    (listed,) = re.findall(
        r"\n\n((?:    .+\n)+)", needed("ARCHITECTURE.md").read_text(encoding="utf-8").split("\n## ")[0]
    )
    assert re.findall(r"\w+", listed) == layers
    described = "".join(f"{heading}\n{body}" for heading, body in sections_of_the_map().items())
    homes = re.findall(r"^(?:`(\w+)/`$|- `(\w+)\.py`)", described, re.MULTILINE)
    found = [name for pair in homes for name in pair if name in layers]
    assert list(dict.fromkeys(found)) == layers


def test_the_citation_and_the_changelog_name_this_version() -> None:
    citation = needed("CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]
    sections = re.findall(r"^## \[(.+?)\]", needed("CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[:2] == ["Unreleased", __version__]
