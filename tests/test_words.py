"""One thing has one name: words that gave way to the field's own are not used again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("src", "docs", "tools", "benchmarks", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
SUFFIXES = (".py", ".md", ".toml", ".js", ".html")
# the word that is gone, and the contexts in which it means something else
FORBIDDEN = {
    r"\bstrangers?\b": ("a stranger's",),
    r"\bshared? company\b|\bcompany they\b|\"company\"": (),
    r"\bfades\b|\bFADES\b": (),
    r"\b(?:never|ever|has|have|had|not) met\b|\bmet_\w+|\b_met\b|\bnever_met\b|\bNEVER_MET\b": (
        "condition was never met",
        "condition was not met",
        "condition that is never met",
    ),
    r"\b[Qq]uestions?\b|\bQUESTIONS?\b": ("in question",),
    r"\bfixed residual\b|\bthe fixed one\b|[\"']fixed[\"']": (),
    r"--(?:method|selection|within|questions|actor|inverse)\b": (),
    r"\b[Mm]ixtures?\b": (
        "log of a mixture",
        "in that mixture",
        "the mixture's",
        "The mixture of both",
        "window, mixture, gate",
        "window, mixture",
        "mixture and gate",
        "reader, mixture, gate",
        "scorer's part in the mixture",
        "both softmaxes' mixture",
        "import mixture",
        "correction, mixture",
        "mixture(",
        "= mixture",
        "Mixture:",
        "| mixture | Equation 4",
    ),
    r"\btake_apart\w*|\bquick_products\b|\b_Recorded\b|\bResidence\b|\blots\b": (),
    r"\bGrown(?:Log|History)\b|\bWidened\b|\bAnyRelation\b|\bPartly\b|\bgather_file\b": (),
    r"\bto be had\b|\bmend(?:ed)?\b|\b[Ww]hoever\b|\b[Ss]o many\b|\bin one stroke\b|\bmuch the same\b": (),
    r"\b[Bb]eside\b": (),
    r"\b[Bb]ehind\b": ("leave behind", "left behind", "leaves nothing behind", "leaves behind", "behind one proxy"),
    r"\bearns its keep\b|\b[Ww]here the gain comes\b|\bcan be believed\b|\b[Bb]elieve the rows\b": (),
    r"\bB less A\b|\bMRR less\b": (),
    r"_by_(?:static|time)\b|split\(\"_by_\"\)": (),
    r"[Oo]ne column, one filter|one filter a table|admitted at 100|already say what repeats|lines of counting pass": (),
    r"out that was ever true|\bcan it be believed\b": (),
    r"pip install bridgemem\b|bridgemem\[\w+\]": (),  # it is not on PyPI: extras come from the checkout
    r"\bsay --\w|\bbegins? anew\b": (),
}
FILES = re.compile(r"question|mixture|stranger|what-matters|grown|widened")


def texts() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / place
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in files if file.is_file() and file.suffix in SUFFIXES]
    return found


@pytest.mark.parametrize("word", FORBIDDEN, ids=range(len(FORBIDDEN)))
def test_a_word_that_gave_way_is_not_used(word: str) -> None:
    permitted = FORBIDDEN[word]
    found = []
    for path in texts():
        text = " ".join(path.read_text(encoding="utf-8").split())
        for phrase in permitted:
            text = text.replace(phrase, "")
        for match in re.finditer(word, text):
            near = text[max(match.start() - 40, 0) : match.end() + 40]
            found.append(f"{path.relative_to(ROOT)}: {near}")
    assert found == [], "say it in the field's words, or permit the context"


def test_no_file_is_named_by_a_word_that_gave_way() -> None:
    files = [*texts(), *(ROOT / "tests").rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if FILES.search(path.name)] == []
