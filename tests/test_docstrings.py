"""The docstrings of the public names are the API reference: whole, and with examples that run."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import re
import textwrap
import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import bridgemem as bm
from bridgemem.backbones import REGISTERED

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api"
LISTED = re.compile(r"^::: (bridgemem\.\S+)\.(\w+)$", re.MULTILINE)
AUTHORS = (bm.Scorer, bm.Backbone, bm.BridgeMemError)  # whose constructors are written by others


def reference() -> dict[str, Any]:
    """The public names, and what their methods return as far as the API reference has it."""
    found = {name: getattr(bm, name) for name in bm.__all__[1:]}
    for page in sorted(PAGES.glob("*.md")):  # none where the package was installed without its repository
        for module, name in LISTED.findall(page.read_text(encoding="utf-8")):
            found.setdefault(name, getattr(importlib.import_module(module), name))
    return found


def named() -> Iterator[tuple[str, Any]]:
    """Every name of the reference and every public method."""
    for name, found in reference().items():
        yield name, found
        if not inspect.isclass(found):
            continue
        for member in dir(found):
            value = inspect.getattr_static(found, member)
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            own = str(getattr(function, "__module__", "")).startswith("bridgemem")  # not of list, nor of Protocol
            if not member.startswith("_") and member != "cells" and inspect.isfunction(function) and own:
                yield f"{name}.{member}", function


NAMED = [pytest.param(*one, id=one[0]) for one in named()]
MODULES = sorted({found.__module__ for _, found in named()})


def parameters(name: str, found: Any) -> list[str]:
    """What a caller passes; results of the program are constructed by nobody else."""
    if found in AUTHORS or (inspect.isclass(found) and name not in bm.__all__):
        return []
    return [name for name in inspect.signature(found).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize(("name", "found"), NAMED)
def test_a_docstring_has_all_its_sections(name: str, found: Any) -> None:
    text = inspect.getdoc(found) or ""
    first = text.splitlines()[0] if text else ""
    assert first.endswith("."), "a summary of one sentence"
    told = text.partition("Args:\n")[2]
    assert [p for p in parameters(name, found) if f"\n    {p}: " not in f"\n{told}" and f"*{p}: " not in told] == []
    if inspect.isfunction(found):
        if inspect.signature(found).return_annotation not in ("None", None):
            assert "Returns:\n" in text
        tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
        if any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree)):
            assert "Raises:\n" in text
    elif dataclasses.is_dataclass(found) and name not in bm.__all__:
        own = [field.name for field in dataclasses.fields(found)]
        assert [one for one in own if f"\n    {one}: " not in text.partition("Attributes:\n")[2].join("\n\n")] == []
    assert "Example:\n" in text


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples may use, as docs/reference/api/results.md says."""
    data = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bm.Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1)).fit(data)
        ranks = bm.ranks(data, backbones=["recurrence", "popularity"])
        saved = copy(model)
        saved.save(tmp_path_factory.mktemp("saved") / "run")
        saved.evaluate("test")
        return {
            "bm": bm,
            "data": data,
            "model": model,
            "evaluation": model.evaluate("valid"),
            "ranks": ranks,
            "comparison": bm.compare((saved, "backbone"), (saved, "bridgemem")),
            "tuning": bm.tune("recurrence", data),
        }


@pytest.fixture
def service(namespace: dict[str, Any], tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The forecaster behind a real service: `client` asks it, and `admin` has the token of its operator."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(module, reason="needs the extra 'serve'")
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.switching import Switch
    from bridgemem.service.admin import Admin
    from bridgemem.service.app import create_app
    from serving import served

    namespace["model"].save(tmp_path / "run")
    with EventStore(tmp_path / "events.duckdb") as store:
        live = Switch(tmp_path / "run", store, bm.Forecaster.load)
        with served(create_app(live, "everyone", admin=Admin(live, "operator"))) as address:
            yield {"client": bm.Client(address, token="everyone"), "admin": bm.Client(address, token="operator")}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(
    name: str,
    namespace: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    module = importlib.import_module(name)
    # one of its own: where an example saves the model is gone with its folder
    names = {
        **namespace,
        "model": copy(namespace["model"]),
        **(request.getfixturevalue("service") if name.startswith("bridgemem.client") else {}),
    }
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(REGISTERED), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 0
    assert outcome.failed == 0
