"""The help of a command: its options in sections, short enough for one screen, every default named once."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

READING = "Reading events"
# the names of the options of each section; all others stand under Options
SECTIONS = {
    READING: "--subject-column --relation-column --object-column --time-column --relation-is --format --step "
    "--time-format --na --keep-na",
    "Limits": "--duplicates --max-new-relations --max-new-names --max-new-names-day --max-ahead --body-limit "
    "--concurrent --timeout",
    "Following a feed": "--follow --until-end --from-start --event-field --offset-field",
    "In parts": "--engine --master --shard --join --cells",
    "Files and output": "--out --force --resume --records --card --rejects --data-dir --memory-dir --relation-names "
    "--groups --aliases --device --json --quiet --help",
}
FULL = "import"  # the command that explains how events are read; the others name these options alone
WORDS = {str: "TEXT", int: "N", float: "X", Path: "PATH", list[str]: "TEXT", bool: ""}
FIRST_COLUMN = 26


def section_of(option: str) -> str:
    """The section that an option is shown in."""
    return next((section for section, names in SECTIONS.items() if option in names.split()), "Options")


class Sectioned(TyperCommand):
    """A command whose help shows its options in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options = list[tuple[str, str]](), dict[str, list[tuple[str, str]]]()
        for parameter in (p for p in self.get_params(ctx) if not getattr(p, "hidden", False)):
            if parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar or parameter.name).upper(), _help(parameter)))
            else:
                options.setdefault(section_of(_long(parameter)), []).append(_record(parameter, ctx))
        _write(formatter, "Arguments", arguments)
        for section in ("Options", *SECTIONS):
            if section == READING and ctx.info_name != FULL and section in options:
                with formatter.section(f"{section}, as `bridgemem data import --help` explains"):
                    names = " ".join(names.split()[0] for names, _ in options[section])
                    for line in textwrap.wrap(names, formatter.width - 4, break_on_hyphens=False):
                        formatter.write(f"  {line}\n")
            else:
                _write(formatter, section, options.get(section, []))


def apply(app: typer.Typer) -> None:
    """Show the help of every command of a program in sections, of its groups too."""
    for command in app.registered_commands:
        if command.cls is None or not issubclass(command.cls, Sectioned):  # such as one that reads a file of settings
            command.cls = Sectioned
    for group in app.registered_groups:
        if group.typer_instance is not None:
            apply(group.typer_instance)


def _write(formatter: Any, section: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(section):
            formatter.write_dl(rows, col_max=FIRST_COLUMN)


def _long(parameter: Any) -> str:
    """The long name of an option."""
    return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])


def _help(parameter: Any) -> str:
    return str(parameter.help or "")


def _record(parameter: Any, ctx: Any) -> tuple[str, str]:
    """The names of an option, and its help with the default named once."""
    names = " / ".join([", ".join(sorted(parameter.opts, key=len)), *parameter.secondary_opts])
    text = _help(parameter)
    shown = getattr(parameter, "_extract_default_help_str", lambda ctx: None)(ctx=ctx)
    if not parameter.is_flag:
        kind = parameter.metavar or WORDS.get(_plain(parameter), "TEXT")
        names = f"{names} {kind}"
        if "default:" not in text and shown not in (None, "", (), []):
            text = f"{text.rstrip('.')} (default: {getattr(shown, 'value', shown)})."
    if parameter.required:
        text = f"{text.rstrip('.')} (required)."
    return names, text


def _plain(parameter: Any) -> Any:
    """The type of an option without None."""
    found = parameter.type_descriptor.annotation if hasattr(parameter, "type_descriptor") else str
    return found if not re.search(r"\| None|Optional", str(found)) else str
