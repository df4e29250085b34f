"""The program's help: every command in one group, and no line that is cut or too long for a terminal."""

from __future__ import annotations

import typer

from bridgemem.cli.groups import GROUPS
from bridgemem.cli.main import app
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
