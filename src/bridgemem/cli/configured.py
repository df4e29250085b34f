"""Options that are also read from the environment and from a TOML file: serve and explore.

The first of these that gives a value counts: the command line, the environment (`BRIDGEMEM_PORT`), the command's table
in the file that `--config` or `BRIDGEMEM_CONFIG` names (`port` in `[serve]`), the default.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bridgemem.cli.sections import Sectioned
from bridgemem.config import read_toml, shown
from bridgemem.errors import SettingsError

PREFIX = "BRIDGEMEM_"
SAME = {"data_dir": "BRIDGEMEM_DATA"}  # known under this name to every command
COMMANDS = ("serve", "explore")
CLOSE = 0.75  # likeness of a mistyped variable; others, such as those of Kubernetes for a service, are not ours
USAGE: Any = typer.BadParameter.__mro__[1]  # click's UsageError, wherever this version of typer has it from
EPILOG = "BRIDGEMEM_PORT and the like set options too; see `bridgemem config show`."

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of options (default: none)."),
]


@dataclass(frozen=True)
class Setting:
    """A value that a command would start with, and where it comes from: "default", "environment" or "file"."""

    name: str
    value: str | int | float | bool | None
    origin: str
    variable: str


class Configured(Sectioned):
    """A command whose parameters are read from the environment and a file where the command line leaves them out."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.epilog = EPILOG
        every: list[Any] = self.params
        for parameter in every:
            parameter.envvar = variable(parameter.name)
            parameter.show_envvar = False  # the epilog says it once for all

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        named = given.get("config") or os.environ.get(variable("config"))
        if named and not ctx.resilient_parsing:
            ctx.default_map = file_values(self, ctx, Path(named))
        _check_variables(self)
        for name, parameter in _parameters(self).items():
            if given.get(name) is None and (value := parameter.value_from_envvar(ctx)) is not None:
                _checked(variable(name), parameter, ctx, value)  # to say which variable is wrong
        return super().parse_args(ctx, args)


def variable(name: str) -> str:
    """The environment variable of an option."""
    return SAME.get(name, f"{PREFIX}{name.upper()}")


def file_values(command: Any, ctx: Any, path: Path) -> dict[str, Any]:
    """The values of a command's table, checked; paths are relative to the file's folder."""
    tables = read_toml(path)
    if wrong := sorted(set(tables) - set(COMMANDS)):
        raise SettingsError(f"{path}: the tables are [{'] and ['.join(COMMANDS)}], not {wrong[0]!r}.")
    own, parameters = tables.get(command.name, {}), _parameters(command)
    if not isinstance(own, dict):
        raise SettingsError(f"{path}: {command.name} must be a table; write [{command.name}] above its options.")
    return {name: _value(path, command, ctx, name, value) for name, value in own.items() if name in parameters} | {
        name: _unknown(path, command, name) for name in own if name not in parameters
    }


def settings_of(command: Any, path: Path | None) -> list[Setting]:
    """What a command would start with if it were called without any option."""
    _check_variables(command)
    ctx = command.context_class(command, info_name=command.name)
    found = {} if path is None else file_values(command, ctx, path)
    settings = []
    for name, parameter in _parameters(command).items():
        given = parameter.value_from_envvar(ctx)
        if given is not None:
            value, origin = _checked(variable(name), parameter, ctx, given), "environment"
        elif name in found:
            value, origin = found[name], "file"
        else:
            value, origin = parameter.get_default(ctx), "default"
        plain = value if isinstance(value, str | int | float | bool | None) else str(value)
        settings.append(Setting(name, plain, origin, variable(name)))
    return settings


def _parameters(command: Any) -> dict[str, Any]:
    return {p.name: p for p in command.params if p.name not in ("help", "config")}


def _check_variables(command: Any) -> None:
    """Refuse a variable that is nearly one of the command's: a token file that is not read leaves a service open."""
    options = [*_parameters(command), "config"]
    known = set(map(variable, options))
    for name in sorted(name for name, value in os.environ.items() if name.startswith(PREFIX) and value):
        close = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), options, n=1, cutoff=CLOSE)
        if close and name not in known:
            raise SettingsError(f"no option is read from {name}; did you mean {variable(close[0])}?")


def _value(path: Path, command: Any, ctx: Any, name: str, value: Any) -> Any:
    where, parameter = f"{path}: {name} in [{command.name}]", _parameters(command)[name]
    if not isinstance(value, str | int | float | bool):
        raise SettingsError(f"{where} must be one value, not {shown(value)}.")
    checked = _checked(where, parameter, ctx, value)
    return str(path.parent / checked) if isinstance(checked, Path) else value


def _checked(where: str, parameter: Any, ctx: Any, value: Any) -> Any:
    """The value as its option takes it, or one sentence that says where it stands."""
    try:
        if isinstance(value, bool) and not getattr(parameter, "is_flag", False):
            raise SettingsError("it takes a value, and is no switch")
        return parameter.process_value(ctx, value if isinstance(value, bool) else str(value))
    except (USAGE, SettingsError) as problem:
        said = str(getattr(problem, "message", problem)).rstrip(".")
        raise SettingsError(f"{where} cannot be {shown(value)}: {said[:1].lower()}{said[1:]}.") from None


def _unknown(path: Path, command: Any, name: str) -> Any:
    known = list(_parameters(command))
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}."
    raise SettingsError(f"{path}: [{command.name}] has no option {name!r}; {meant}")
