"""The program's help: every command in one group, and no line that is cut or too long for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from bridgemem.cli.groups import GROUPS
from bridgemem.cli.main import app
from bridgemem.cli.sections import READING, section_of
from commands import bridgemem

WIDTH = 80


def test_every_command_is_in_one_group() -> None:
    listed = [name for commands in GROUPS.values() for name in commands]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)


def test_the_help_names_the_groups_and_cuts_no_line() -> None:
    text = bridgemem("--help").out
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert "..." not in text.replace("[ARGS]...", "")
    assert max(map(len, text.splitlines())) <= WIDTH
    for commands in GROUPS.values():
        for name, words in commands.items():
            assert any(line.split(None, 1) == [name, words] for line in text.splitlines()), name


# --- the help of each command ----------------------------------------------------------------------------------------

SCREEN = 50  # lines


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield " ".join((*words, name)), one


COMMANDS = [pytest.param(*one, id=one[0]) for one in commands(typer.main.get_command(app))]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_the_help_of_a_command_fits_a_screen_and_names_every_default_once(name: str, command: Any) -> None:
    text = bridgemem(*name.split(), "--help").out
    assert len(text.splitlines()) <= SCREEN
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "[default" not in text
    shown = " ".join(text.split())
    for option in (p for p in command.params if p.param_type_name == "option" and not p.hidden):
        assert any(word in shown for word in option.opts), option.opts
        if option.default not in (None, False, "", ()) and not option.is_flag:
            told = section_of(max(option.opts, key=len)) == READING or "(default: " in shown
            assert told, option.opts


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_help_text_is_a_short_sentence(name: str, command: Any) -> None:
    for option in (p for p in command.params if p.param_type_name == "option" and not p.hidden):
        assert option.help, option.opts
        assert option.help.endswith("."), option.help
        assert len(option.help) <= 90, option.help
