"""Your own models on the command line: a class in a file, by its name, and a file to start from."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.options import Force, Json
from bridgemem.cli.output import emit, say, table

if TYPE_CHECKING:
    from bridgemem.evaluation.result import Evaluation


_ASKED: ContextVar[tuple[str, ...]] = ContextVar("asked", default=())  # what --register was given


def new_backbone(
    file: Annotated[Path, typer.Argument(help="The Python file to write, as in mymodel.py.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a template for your own model: a class with train and score."""
    from importlib import resources

    from bridgemem.errors import RunError, SettingsError
    from bridgemem.storage.whole import whole_file

    if file.suffix != ".py":
        raise SettingsError(f"{file} is not a Python file; name one that ends in .py.")
    if file.exists() and not force:
        raise RunError(f"{file} exists already; choose another name, or use --force to replace it.")
    text = resources.files("bridgemem.backbones").joinpath("template.py").read_text(encoding="utf-8")
    with whole_file(file, force) as aside:
        aside.write_text(text.replace("mymodel.py", file.name), encoding="utf-8")
    result = {"file": file, "backbone": f"{file}:MyModel"}
    emit(result, as_json, lambda: say(f"Wrote {file}. Next: bridgemem evaluate DATA -b {file}:MyModel"))


def registered(text: str) -> str:
    """The name of a backbone; a class in a file, as mymodel.py:MyModel, is imported and registered for this command."""
    from bridgemem.backbones import REGISTERED
    from bridgemem.backbones.own import from_file, in_file, register

    if not in_file(text):
        return text
    before = dict(REGISTERED)
    register(from_file(text))
    return next(name for name, kind in REGISTERED.items() if before.get(name) is not kind)


def register_all(texts: list[str] | None) -> None:
    """What --register asks for, before the command is run."""
    _ASKED.set(tuple(texts or ()))
    if not texts:
        return
    from bridgemem.backbones.own import in_file
    from bridgemem.errors import SettingsError

    for text in texts:
        if not in_file(text):
            raise SettingsError(f"--register takes FILE.py:CLASS, as in mymodel.py:MyModel, not {text!r}.")
        registered(text)


def registering(backbone: str) -> str:
    """What the next command needs before its name: a run holds no code of its classes."""
    from bridgemem.backbones.own import in_file

    texts = [*_ASKED.get(), *([backbone] if in_file(backbone) else [])]
    return "".join(f"--register {text} " for text in texts)


def given_backbone(text: str) -> Any:
    """What -b names: a class or function in a file, else a name or a folder as it is."""
    from bridgemem.backbones.own import from_file, in_file

    return from_file(text) if in_file(text) else text


def show_own(found: Evaluation, data: str | list[str], backbone: str) -> None:
    """The table of your own model, and what says whether it may be believed."""
    from bridgemem.backbones.own import in_file

    made = found.table()
    table(made.title, made.header, made.rows)
    say(f"\n{made.note} Figures under the other filters: --json, or --records FILE.")
    if in_file(backbone):
        given = data if isinstance(data, str) else " ".join(data)
        say(f"Next: bridgemem check-backbone {given} -b {backbone} checks that it knows nothing later.")


def register(app: typer.Typer) -> None:
    app.command()(new_backbone)
