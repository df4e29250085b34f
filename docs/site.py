"""How the site is made of the repository: README as first page, results/ next to docs/, and links that follow them."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# what lies outside of docs/ and is on the site nevertheless: place in the repository -> place on the site
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
SECTIONS = {"Tutorials": "tutorials", "How to": "how-to", "Concepts": "concepts"}
# the order in which a reader wants the pages; what is not named here follows in the order of its name
FIRST = {
    "tutorials": ["quick-start", "own-data", "own-model", "own-scores", "service"],
    "how-to": ["own-events", "aliases", "ask", "what-if", "ledger", "own-model", "leakage", "compare", "tables"],
    "concepts": ["memory", "choosing", "filters", "causality", "query-leakage", "counting", "stream", "learned"],
    "results": ["main", "backbones", "filters", "learned", "ablations", "mechanism"],
}
LINK = re.compile(r"(?P<text>!?\[(?P<label>[^\]]*)\])\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """The navigation, from the folders, so that a new page is never forgotten."""
    docs = Path(config.docs_dir)
    config.nav = [{"Home": "index.md"}]
    config.nav += [{title: _listed(docs / folder)} for title, folder in SECTIONS.items()]
    reference = [{"Command line": [f"reference/cli/{name}" for name in _cli_pages()]}]
    python = [f"reference/api/{path.name}" for path in sorted((docs / "reference/api").glob("*.md"))]
    reference += [{"Python": [*python, "reference/api/more.md"] if _unplaced(docs) else python}]
    config.nav.append({"Reference": ["reference/glossary.md", *reference]})
    config.nav.append({"Results": _listed(ROOT / "results")})
    config.nav.append({"Project": list(_outside())})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/, and the pages that are written from the commands."""
    outside = _outside()
    for kind in ("md", "svg", "png"):
        outside |= {f"results/{path.name}": path for path in sorted((ROOT / "results").glob(f"*.{kind}"))}
    for uri, path in outside.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    if unplaced := _unplaced(Path(config.docs_dir)):
        files.append(File.generated(config, "reference/api/more.md", content=unplaced))
    for name, text in _cli_pages().items():
        files.append(File.generated(config, f"reference/cli/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links inside the repository into links inside the site; the first page opens with the README."""
    uri = page.file.src_uri
    text = _relinked(markdown, _source(uri), uri, files)
    if uri != "index.md":
        return text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return _relinked(readme, "README.md", uri, files) + "\n\n" + text.replace("# Documentation", "## Documentation", 1)


def _unplaced(docs: Path) -> str:
    """A page with the public names that no page of the API has, or nothing."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (docs / "reference/api").glob("*.md"))
    package = (ROOT / "src/bridgemem/__init__.py").read_text(encoding="utf-8")
    public = re.findall(r'^    "(\w+)": "([\w.]+)",$', package, re.MULTILINE)
    missing = [f"{home}.{name}" for name, home in public if f"::: {home}.{name}\n" not in text + "\n"]
    return "\n".join(["# More", "", *(f"::: {name}\n" for name in missing)]) if missing else ""


def _outside() -> dict[str, Path]:
    """The pages about the project, by their place on the site."""
    found = {place: ROOT / path for path, place in PAGES.items() if place != "index.md"}
    return {place: path for place, path in found.items() if path.is_file()}


def _cli_pages() -> dict[str, str]:
    """The reference of the command line; what is not installed is found in the checkout."""
    for place in (ROOT, ROOT / "src"):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    from tools.cli_reference import pages

    return pages()


def _listed(folder: Path) -> list[str]:
    """The pages of a folder: those with a place of their own first, the others by name."""
    first: Sequence[str] = FIRST.get(folder.name, ())
    found = sorted(folder.glob("*.md"), key=lambda path: (_place(path.stem, first), path.stem))
    return [f"{folder.name}/{path.name}" for path in found]


def _place(name: str, first: Sequence[str]) -> int:
    return first.index(name) if name in first else len(first)


def _source(uri: str) -> str:
    """Where in the repository a page of the site lies."""
    known = {place: path for path, place in PAGES.items() if place != "index.md"}
    return known.get(uri, uri if uri.startswith("results/") else f"docs/{uri}")


def _relinked(markdown: str, source: str, uri: str, files: Any) -> str:
    """The text of a file of the repository with every link as the page `uri` must have it; code is left alone."""

    def renew(match: re.Match[str]) -> str:
        path, hash_, anchor = match["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = PAGES.get(inside, inside.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            # a file of the code is not on the site, and a link that should be is for the strict build to find
            return match["label"] if (ROOT / inside).exists() and not inside.startswith("docs/") else match[0]
        return f"{match['text']}({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{hash_}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(renew, part) for part in parts)
