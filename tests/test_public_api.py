"""The public API: few positional parameters, so that calls say what they mean."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import bridgemem

MOST = 2
# columns and triples are given in their usual order; settings of a fit are those of every family
PERMITTED = {
    "EventLog.from_columns": 7,
    "Forecaster.explain": 3,
    "Client.explain": 3,
    "Backbone.train": 3,
}


def functions() -> Iterator[tuple[str, Any]]:
    for name in bridgemem.__all__:
        found = getattr(bridgemem, name)
        if not inspect.isclass(found):
            if callable(found):
                yield name, found
            continue
        for member, value in vars(found).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            public = not member.startswith("_") or (member == "__init__" and not dataclasses.is_dataclass(found))
            if inspect.isfunction(function) and public:
                yield f"{name}.{member}", function


@pytest.mark.parametrize(("name", "function"), [pytest.param(*one, id=one[0]) for one in functions()])
def test_after_the_second_parameter_all_are_named(name: str, function: Any) -> None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    given = [p.name for p in parameters if p.kind in kinds and p.name not in ("self", "cls")]
    assert len(given) <= PERMITTED.get(name, MOST), given
