"""The documentation site builds strictly, holds every page and needs nothing from elsewhere; the container fits."""

from __future__ import annotations

import html
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import bridgemem
from bridgemem.cli.groups import GROUPS
from bridgemem.cli.main import app

ROOT = Path(__file__).resolve().parents[1]


def needed(name: str) -> Path:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"needs {name} of the repository")
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "griffe")):
        pytest.skip("needs the extra 'docs'")
    config, home = needed("mkdocs.yml"), tmp_path_factory.mktemp("site")
    needed("results")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", home],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home


def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    pages += [path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "results").glob("*.md")]
    pages += [Path("reference", "cli", f"{group.lower()}.html") for group in GROUPS]
    assert len(pages) > 10
    missing = [page for page in pages if not (site / page).is_file()]
    assert missing == []
    assert [page for page in pages if f'href="{page.as_posix()}"' not in index and page.name != "index.html"] == []


def test_the_first_page_is_the_readme(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for heading in re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"<h2[^>]*>{re.escape(heading)}", index), heading
    assert (site / "results" / "gains-time.svg").is_file()


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    missing = []
    for group, names in GROUPS.items():
        page = html.unescape((site / "reference" / "cli" / f"{group.lower()}.html").read_text(encoding="utf-8"))
        for name in names:
            command: Any = get_command(app).commands[name]  # type: ignore[attr-defined]
            for one in getattr(command, "commands", {name: command}).values():
                options = [p for p in one.params if p.param_type_name == "option" and not p.hidden]
                shown = [word for p in options for word in p.opts]
                missing += [(name, option) for option in shown if f"<code>{option}</code>" not in page]
            missing += [] if f"bridgemem {name}" in page else [(name, "")]
    assert [one for one in missing if one[1] != "--help"] == []


def test_every_public_name_is_in_the_reference_with_its_public_methods(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html"))
    wanted = []
    for name in bridgemem.__all__[1:]:
        found = getattr(bridgemem, name)
        wanted.append(f"{found.__module__}.{name}")
        if inspect.isclass(found):
            wanted += [f"{found.__module__}.{name}.{m}" for m, v in vars(found).items() if m[0] != "_" and callable(v)]
    assert [name for name in wanted if f'id="{name}"' not in text] == []


def test_links_between_pages_lead_somewhere(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links are absolute, since it is shown for any address
            continue
        for target in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            local = target.partition("#")[0].partition("?")[0]
            if local and not re.match(r"[a-z]+:|//", local) and not (page.parent / local).exists():
                broken.append((page.name, target))
    assert broken == []


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    found = [(page.name, tag) for page in site.rglob("*.html") for tag in loaded.findall(page.read_text("utf-8"))]
    assert found == []


def test_the_hook_is_not_published(site: Path) -> None:
    assert list(site.rglob("*.py")) == []


# --- the container ---------------------------------------------------------------------------------------------------


def test_the_container_copies_files_that_exist_and_serves_with_options_that_exist() -> None:
    text = needed("Containerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert {"pyproject.toml", "constraints.txt", "constraints-container.txt", "src"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (line,) = re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)
    program, command, *words = re.findall(r'"([^"]*)"', line)
    assert program == "bridgemem"
    known = {option for p in get_command(app).commands[command].params for option in p.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("-")} <= known


def test_the_base_of_the_container_can_be_chosen_and_names_no_host() -> None:
    text = needed("Containerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)
    assert "/" not in base
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${BASE}"]
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)


def test_the_container_installs_by_hash_what_its_lock_holds_and_torch_by_its_pin() -> None:
    text = needed("Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    locked, torch, package = re.findall(r"pip install ([^&]+?) *&&", text)
    assert {"--require-hashes", "--no-deps", "--only-binary :all:"} <= set(re.findall(r"--[a-z-]+(?: :all:)?", locked))
    assert "--requirement constraints-container.txt" in re.sub(r" +", " ", locked)
    assert torch.endswith("--constraint constraints.txt torch")
    assert {"--no-deps", "--no-build-isolation", "."} <= set(package.split())  # it fetches nothing


def test_the_lock_of_the_container_holds_the_tested_versions_of_all_that_it_needs_with_their_hashes() -> None:
    tool = pytest.importorskip("tools.lock_container", reason="needs tools/ of the repository")
    lines = needed("constraints-container.txt").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    entries = [line.split() for line in lines if not line.startswith("#")]
    pins = tool.pinned()
    assert [entry[0] for entry in entries] == [f"{name}=={pins[name]}" for name in tool.needed()]
    for name, *hashes in entries:
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", value) for value in hashes), name
    assert "torch" not in {entry[0].partition("==")[0] for entry in entries}
