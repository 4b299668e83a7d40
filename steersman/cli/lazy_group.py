"""A group whose commands are imported when they are used ("Lazily Loading Subcommands" in Click's documentation).

`steer show` imports one command's module; the help and a shell's completion import all of them.
"""

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class LazyCommand:
    """Where a command or a group of commands is defined, and how the group that has it shows it."""

    module: str
    name: str
    """Of the command's function, or of the group's Typer application, in that module."""
    panel: str
    """The heading under which the help lists it."""
    cls: type[TyperCommand] = TyperCommand
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Click's context settings of a command."""

    def load(self, name: str) -> Any:
        """Import the module; the Click command under the name that a person types."""
        found = getattr(importlib.import_module(self.module), self.name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.name, group.rich_help_panel = name, self.panel
            if not isinstance(group, LazyGroup):  # whose commands are named when they are loaded
                for each in group.commands.values():
                    _name_arguments(each)
            return group
        # The application of one command is that command.
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=self.cls, rich_help_panel=self.panel, context_settings=dict(self.settings))(found)
        command = typer.main.get_command(alone)
        _name_arguments(command)
        return command


def _name_arguments(command: Any) -> None:
    """Show arguments in capitals, as the documentation does; Typer shows them by the names of Python's parameters."""
    for each in command.params:
        if each.param_type_name == "argument" and each.metavar is None:
            each.metavar = each.name.upper()


class LazyCommands(MutableMapping[str, Any]):
    """A group's commands by name. Names are known at once, a command is loaded when it is looked up."""

    def __init__(self, table: Mapping[str, LazyCommand]) -> None:
        self._commands: dict[str, Any] = dict(table)

    def __getitem__(self, name: str) -> Any:
        command = self._commands[name]
        if isinstance(command, LazyCommand):
            command = self._commands[name] = command.load(name)
        return command

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


class LazyGroup(TyperGroup):
    """A group with the commands of `table`. For `typer.Typer(cls=...)`, which makes it without any."""

    table: ClassVar[Mapping[str, LazyCommand]]
    aliases: ClassVar[Mapping[str, str]] = {}
    """Further names of commands, which the help does not list."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Not `get_command` and `list_commands` alone: Typer's "Did you mean" reads `commands`.
        self.commands = LazyCommands(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click.Group."""
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))
