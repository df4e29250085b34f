"""The docstrings of the public names are the API reference: whole, and with examples that run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import bridgemem as bm
from bridgemem.backbones import REGISTERED

# whose methods are called by users; those of the others are called by the program, or written by authors of models
SHOWN = (bm.Forecaster, bm.EventLog, bm.Dataset, bm.Client)
MODULES = sorted({getattr(bm, name).__module__ for name in bm.__all__[1:]})


def named() -> Iterator[tuple[str, Any, bool]]:
    """Every public name and method, and whether it needs an example of its own."""
    for name in bm.__all__[1:]:
        found = getattr(bm, name)
        yield name, found, True
        if inspect.isclass(found):
            for member, value in vars(found).items():
                function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", function, found in SHOWN


NAMED = [pytest.param(*one, id=one[0]) for one in named()]


def parameters(found: Any) -> list[str]:
    if found in (bm.Scorer, bm.Backbone, bm.BridgeMemError):  # made by their authors
        return []
    return [name for name in inspect.signature(found).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize(("name", "found", "shown"), NAMED)
def test_a_docstring_has_all_its_sections(name: str, found: Any, shown: bool) -> None:
    text = inspect.getdoc(found) or ""
    first = text.splitlines()[0] if text else ""
    assert first.endswith("."), "a summary of one sentence"
    told = text.partition("Args:\n")[2]
    assert [p for p in parameters(found) if f"\n    {p}: " not in f"\n{told}" and f"*{p}: " not in told] == []
    if inspect.isfunction(found):
        if inspect.signature(found).return_annotation not in ("None", None):
            assert "Returns:\n" in text
        tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
        if any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree)):
            assert "Raises:\n" in text
    assert not shown or "Example:\n" in text


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples may use: the package, a small data set, and one forecaster that was fitted on it."""
    data = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bm.Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1)).fit(data)
    return {"bm": bm, "data": data, "model": model}


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
    names = {**namespace, **(request.getfixturevalue("service") if module is bm.client else {})}
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(REGISTERED), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 0
    assert outcome.failed == 0
