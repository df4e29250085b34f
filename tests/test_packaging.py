"""The package as others meet it: built, installed elsewhere, and kept to the rules that hold for every file."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bridgemem

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bridgemem"
MODULES = sorted(PACKAGE.rglob("*.py"))


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed and that sees neither this checkout nor the caller's Python settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BRIDGEMEM"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- built and installed ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel built from it, without asking a package index."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def install(artefact: Path, folder: Path) -> Path:
    """The scripts folder of a new environment that holds only this artefact, and borrows its dependencies."""
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    purelib = Path(sysconfig.get_path("purelib", scheme="venv", vars={"base": str(folder), "platbase": str(folder)}))
    # A folder named in a .pth file comes after the environment's own, and .pth files inside it are not followed:
    # an editable install of this checkout over there cannot answer for the package under test.
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = scripts / "python"
    flags = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *flags, artefact, cwd=folder)
    return scripts


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_runs_where_only_the_package_is_installed(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    scripts = install(built[kind], tmp_path / "env")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    found = run(scripts / "python", "-c", "import bridgemem; print(bridgemem.__file__)", cwd=elsewhere)
    assert Path(found.strip()).is_relative_to(tmp_path / "env")
    assert bridgemem.__version__ in run(scripts / "bridgemem", "--version", cwd=elsewhere)
    stats = json.loads(run(scripts / "bridgemem", "data", "stats", "world", "--json", cwd=elsewhere))
    assert stats["entities"] > 0
    assert list(elsewhere.iterdir()) == []


def test_sdist_holds_the_sources_and_no_data(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        files = {member.name.partition("/")[2]: member.size for member in archive.getmembers() if member.isfile()}
    sources = {path.relative_to(ROOT).as_posix() for path in MODULES}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/bridgemem/py.typed", *sources} <= files.keys()
    assert not [name for name in files if name.startswith(("runs/", "results/", "datasets/", "shared/", ".venv/"))]
    assert not [name for name in files if name.endswith((".gz", ".parquet", ".safetensors", ".tsv"))]
    assert max(files.values()) < 200_000


def test_wheel_holds_every_module_the_typing_mark_and_the_licence(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in MODULES}
    metadata = f"bridgemem-{bridgemem.__version__}.dist-info"
    assert {*modules, "bridgemem/py.typed", f"{metadata}/licenses/LICENSE"} <= names
    assert all(name.startswith(("bridgemem/", metadata)) for name in names)


def declared() -> dict[str, set[str]]:
    """Names of the packages asked for: ``required``, and one set for each extra; extras may name each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"required": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {re.split(r"[<>=~!\[; ]", entry)[0] for entry in entries} - {project["name"]}
        for group, entries in groups.items()
    }


def test_every_dependency_has_an_exact_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    assert set().union(*declared().values()) <= normal
    assert pins["torch"] == "2.13.0"  # the public version: builds for CPU and for CUDA both satisfy it


def test_what_is_imported_is_what_is_required() -> None:
    names = {alias.name for _, node in nodes(ast.Import) if isinstance(node, ast.Import) for alias in node.names} | {
        node.module or "" for _, node in nodes(ast.ImportFrom) if isinstance(node, ast.ImportFrom) and not node.level
    }
    imported = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"bridgemem"}
    groups = declared()
    assert groups["required"] <= imported, "required and never imported"
    optional = set().union(
        *(groups.get(extra, set()) for extra in ("plots", "serve", "explore", "hub", "mcp", "spark", "tgb"))
    )
    assert imported <= {name.removeprefix("py-").replace("-", "_") for name in groups["required"] | optional}, (
        "imported and not required"
    )


# --- cheap to import -------------------------------------------------------------------------------------------------


def loaded_after(code: str) -> set[str]:
    """Top-level modules loaded once ``code`` has run in a new interpreter that sees this checkout's sources."""
    program = f"import sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}\nprint(*sys.modules)"
    output = run(sys.executable, "-c", program, cwd=ROOT)
    return {name.partition(".")[0] for name in output.splitlines()[-1].split()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_after("import bridgemem")
    assert "bridgemem" in loaded
    assert not loaded & {"torch", "duckdb", "scipy", "typer", "rich", "matplotlib"}


def test_help_does_not_wait_for_torch() -> None:
    ask = (
        "from bridgemem.cli.main import main\nsys.argv = ['bridgemem', '--help']\ntry: main()\nexcept SystemExit: pass"
    )
    loaded = loaded_after(ask)
    assert "typer" in loaded
    assert not loaded & {"torch", "duckdb", "matplotlib"}


# --- rules for every source file -------------------------------------------------------------------------------------


@cache
def imports_and_calls() -> list[tuple[str, ast.AST]]:
    """Every import and every call in the package, with its place as ``file:line``."""
    return [
        (f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}", node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
    ]


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Those of one kind."""
    return ((place, node) for place, node in imports_and_calls() if isinstance(node, kind))


def called(node: ast.AST) -> str:
    """The name that a call is written with, e.g. ``torch.load``."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def test_every_module_says_in_its_first_line_what_it_holds() -> None:
    silent = [
        path.relative_to(PACKAGE).as_posix() for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_only_the_command_line_prints() -> None:
    printing = [place for place, node in nodes(ast.Call) if called(node) == "print" and not place.startswith("cli/")]
    assert printing == []


def test_nothing_is_loaded_through_pickle() -> None:
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    imported = [
        (place, alias.name)
        for place, node in nodes(ast.Import)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] in banned
    ] + [
        (place, node.module)
        for place, node in nodes(ast.ImportFrom)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in banned
    ]
    assert imported == []


def test_no_loader_may_execute_code() -> None:
    unsafe = [
        place
        for place, node in nodes(ast.Call)
        if isinstance(node, ast.Call)
        and (
            called(node) in {"eval", "exec", "torch.save", "torch.load"}
            or any(
                (word.arg, ast.unparse(word.value)) in {("weights_only", "False"), ("allow_pickle", "True")}
                for word in node.keywords
            )
        )
    ]
    assert unsafe == []


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files are tracked")
    machine = re.compile(r"(?<![\w.~-])/(?:work|root|home/\w+|tmp/venv)\b")
    registry = re.compile(r"pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian", re.IGNORECASE)
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if machine.search(line) or registry.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []
