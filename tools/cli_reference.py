"""The reference of the command line, one page for each group of commands, written from the commands themselves.

The site takes the pages from here when it is built (docs/site.py), so that they cannot be older than the commands.
"""

from __future__ import annotations

import html
import inspect
import re
from typing import Any

from typer.main import get_command

from bridgemem.cli.groups import GROUPS
from bridgemem.cli.main import app

PLAIN = {str: "text", int: "number", float: "number", list[str]: "text"}
DEFAULT = re.compile(r" ?\(default: ([^()]*(?:\([^()]*\))?[^()]*)\)")  # as help texts name it
HIDDEN = {"help", "install_completion", "show_completion"}


def pages() -> dict[str, str]:
    """Every page by its name: the groups of commands in the order of `bridgemem --help`."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    found = {}
    for group, names in GROUPS.items():
        lines = [f"# {group} commands", "", "Written from the commands when the site is built.", ""]
        lines += ["| command | what it does |", "|---|---|"]
        lines += [f"| [`{name}`](#bridgemem-{name}) | {words} |" for name, words in names.items()]
        for name in names:
            lines += _section(["bridgemem", name], commands[name])
        found[f"{group.lower()}.md"] = "\n".join([*lines, ""])
    return found


def _section(words: list[str], command: Any) -> list[str]:
    """A command, or a group of them, with every argument and option."""
    lines = ["", f"## {' '.join(words)}", "", *_text(command.help), ""]
    if children := getattr(command, "commands", None):
        for name in children:
            lines += _section([*words, name], children[name])
        return lines
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in HIDDEN and not p.hidden]
    usage = [*words, *(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments), "[OPTIONS]"]
    lines += ["```text", " ".join(usage), "```", ""]
    if arguments or options:
        lines += ["| argument or option | what it sets | default |", "|---|---|---|"]
    lines += [f"| `{p.name.upper()}` | {_cell(p.help)} | {'required' if p.required else ''} |" for p in arguments]
    lines += [f"| {_names(p)} | {_cell(DEFAULT.sub('', p.help or ''))} | {_default(p)} |" for p in options]
    return lines


def _text(text: str | None) -> list[str]:
    """A help text as paragraphs; what a form feed hides in the terminal is left out."""
    return inspect.cleandoc((text or "").partition("\f")[0]).splitlines()


def _names(parameter: Any) -> str:
    names = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
    if parameter.is_flag:
        return ", ".join(names)
    annotation = parameter.type_descriptor.annotation
    kind = parameter.metavar or PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())
    return f"{', '.join(names)} *{_cell(kind)}*"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value in (None, False, (), [], "") or parameter.is_flag:
        found = DEFAULT.search(parameter.help or "")
        return _cell(found[1]) if found else ""
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str | None) -> str:
    return html.escape(" ".join((text or "").split()), quote=False).replace("|", "\\|")
