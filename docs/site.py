"""How the site is made of the repository: README as first page, results/ next to docs/, and links that follow them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# what lies outside of docs/ and is on the site nevertheless: place in the repository -> place on the site
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md"}
SECTIONS = {"Tutorials": "tutorials", "How to": "how-to", "Concepts": "concepts", "Results": "results"}
LINK = re.compile(r"(?P<text>!?\[(?P<label>[^\]]*)\])\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """The navigation, from the folders, so that a new page is never forgotten."""
    docs = Path(config.docs_dir)
    homes = {folder: (ROOT if folder == "results" else docs) / folder for folder in SECTIONS.values()}
    config.nav = ["index.md"]
    for title, folder in SECTIONS.items():
        config.nav.append({title: [f"{folder}/{page.name}" for page in sorted(homes[folder].glob("*.md"))]})
    config.nav.append("architecture.md")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/."""
    outside = {"architecture.md": ROOT / "ARCHITECTURE.md"}
    for kind in ("md", "svg", "png"):
        outside |= {f"results/{path.name}": path for path in sorted((ROOT / "results").glob(f"*.{kind}"))}
    for uri, path in outside.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links inside the repository into links inside the site; the first page opens with the README."""
    uri = page.file.src_uri
    text = _relinked(markdown, _source(uri), uri, files)
    if uri != "index.md":
        return text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return _relinked(readme, "README.md", uri, files) + "\n\n" + text.replace("# Documentation", "## Documentation", 1)


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
