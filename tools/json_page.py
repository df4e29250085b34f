"""The tables of docs/how-to/json.md, written from the schemas: `python -m tools.json_page`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bridgemem.cli.schemas import DOCUMENTS, Document

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "json.md"
BLOCK = re.compile(r"(?<=<!-- schemas -->\n).*?(?=<!-- end -->)", re.DOTALL)
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any"}


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {PAGE.name}.")


def filled(text: str) -> str:
    """The page with its block written anew."""
    return BLOCK.sub(lambda _: "\n".join(_tables()), text)


def _tables() -> list[str]:
    """Every document with its fields, then every object that they hold."""
    objects: dict[str, Any] = {}
    lines = ["| command | what it prints | fields |", "|---|---|---|"]
    for command, kind in DOCUMENTS.items():
        for model in typing.get_args(kind) or (kind,):
            what = " ".join((model.__doc__ or "").split())
            lines.append(f"| `{command}` | {what} | {_fields(model, objects)} |")
    lines += ["", "| object | fields |", "|---|---|"]
    seen: set[str] = set()
    while left := sorted(objects.keys() - seen):
        for name in left:
            seen.add(name)
            objects[name] = (objects[name], _fields(objects[name], objects))
    lines += [f"| {name} | {fields} |" for name, (_, fields) in sorted(objects.items())]
    return [*lines, ""]


def _fields(kind: Any, objects: dict[str, Any]) -> str:
    """The fields of a model or dataclass, but for those of every document; objects: filled with those they hold."""
    hints: Mapping[str, Any]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        hints = {name: f.annotation for name, f in kind.model_fields.items() if name not in Document.model_fields}
    else:
        known = typing.get_type_hints(kind)
        hints = {field.name: known[field.name] for field in dataclasses.fields(kind)}
    return ", ".join(f"`{name}` {_words(hint, objects)}" for name, hint in hints.items())


def _words(hint: Any, objects: dict[str, Any]) -> str:
    """A type as JSON has it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _words(inner[0], objects)
    if origin is typing.Literal:
        return " or ".join(f'"{one}"' for one in inner)
    if origin in (types.UnionType, typing.Union):
        some = [_words(one, objects) for one in inner if one is not type(None)]
        return " or ".join([*some, "null"] if type(None) in inner else some)
    if origin in (list, tuple):
        return f"[{_words(inner[0], objects)}]"
    if origin is dict:
        return f"{{{_words(inner[1], objects)}}}"
    if hint in PLAIN:
        return PLAIN[hint]
    objects[hint.__name__] = objects.get(hint.__name__, hint)
    return hint.__name__


if __name__ == "__main__":
    main()
